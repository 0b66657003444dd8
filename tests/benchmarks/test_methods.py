"""What methods are given is what the docs say, and the range of a penalty is measured in units of the ordinary one."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.planning.learned_model import LearnedModel
from benchmarks.methods.given import given, markdown
from benchmarks.methods.imitators import behaviour_success, imitators
from benchmarks.methods.penalties import penalties, penalty_range
from tests.support import REPOSITORY, lamps


@pytest.mark.slow
def test_the_page_of_methods_has_the_table_of_what_they_are_given():
    assert markdown(given()["rows"]) in (REPOSITORY / "docs/methods.md").read_text()


def test_range_is_in_units_of_the_penalty_of_held_out_rows():
    """A penalty of .1 for the first action and .7 for the second, of which held-out rows have only the first."""
    data = lamps()
    data.action[data.held_out] = [1, 0]

    def successor(p, state, action):
        return state, jnp.zeros(()), 0.1 + 0.6 * action[1]

    def predict(state, action, seed):
        return SimpleNamespace(uncertainty=0.1 + 0.6 * action[:, 1])

    agent = SimpleNamespace(
        factors=data.factors,
        learned=LearnedModel(None, None, successor, None, None),
        config=SimpleNamespace(horizon=3),
        parameters={"p": jnp.zeros(1)},
        seeds=(0,),
        pessimism=np.array([0.2]),
        predict=predict,
    )
    figures = penalty_range(agent, data)
    assert figures["ordinary"] == pytest.approx(0.1)
    assert (figures["worst_plan"], figures["worst_step"]) == (pytest.approx(7), pytest.approx(7))
    assert 3 < figures["median_plan"] < 6


def test_penalties_are_measured_on_development_data(tmp_path):
    with pytest.raises(BecauseError, match="500 to 599"):
        penalties("unlock-medium", 0, tmp_path)


def test_the_behaviour_succeeds_in_the_episodes_that_end_in_the_goal():
    data = lamps()
    episodes = np.unique(data.episode)
    data.terminated[:] = False
    assert behaviour_success(data) == 0.0
    for episode in episodes[: len(episodes) // 2]:
        data.terminated[np.flatnonzero(data.episode == episode)[-1]] = True
    assert behaviour_success(data) == pytest.approx(len(episodes) // 2 / len(episodes))


def test_imitators_are_measured_on_development_data(tmp_path):
    with pytest.raises(BecauseError, match="500 to 599"):
        imitators(["unlock-expert"], [0], tmp_path)
