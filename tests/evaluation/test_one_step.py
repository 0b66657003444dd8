"""One-step errors: of a model that is right, and of one that predicts no change."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import world_class
from because_rl.evaluation.one_step import new_steps, one_step_error

RECIPE = Recipe.parse("crash-random", 4)
FACTORS = world_class("crash").make_factors(1)


@pytest.fixture(scope="module")
def steps():
    return new_steps(RECIPE, "O", 3, FACTORS)


def agent(successor):
    """Two seeds: the second adds 0.1 to the prediction of the first."""
    learned = SimpleNamespace(successor=lambda p, s, a: (successor(s, a) + p, 0.0, 0.0))
    return SimpleNamespace(learned=learned, parameters=jnp.array([0.0, 0.1]), factors=FACTORS)


def test_steps_follow_each_other(steps):
    assert len(steps.state) == 90
    np.testing.assert_array_equal(steps.next_state[:29], steps.state[1:30])
    assert (steps.next_state[29] != steps.state[30]).any()
    assert steps.action.shape == (90, FACTORS.action_size)
    again, in_distribution = new_steps(RECIPE, "O", 3, FACTORS), new_steps(RECIPE, "I", 3, FACTORS)
    np.testing.assert_array_equal(again.state, steps.state)
    assert (in_distribution.state[0] != steps.state[0]).any()


def test_error_of_predicting_no_change_is_one(steps):
    result = one_step_error(agent(lambda s, a: s), steps)
    assert result["rows"] == 90
    for name in ("ego", "ped1"):
        assert result["factors"][name][0] == pytest.approx(1.0, abs=1e-4)
    wrong = (steps.next_state[:, 20] != steps.state[:, 20]).mean()
    assert result["factors"]["flag1"] == pytest.approx([wrong, wrong])
    assert result["error"] == pytest.approx(np.mean(result["per_seed"]))
    assert result["per_seed"][1] > result["per_seed"][0]


def test_error_of_the_true_model_is_zero(steps):
    def truth(state, action):
        row = jnp.abs(jnp.asarray(steps.state, jnp.float32) - state[None]).sum(1).argmin()
        return jnp.asarray(steps.next_state, jnp.float32)[row]

    assert one_step_error(agent(truth), steps)["per_seed"][0] == pytest.approx(0.0, abs=1e-5)
