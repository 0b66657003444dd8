"""CCIL: it drops the factors that do not cause the action, and the policy still imitates."""

import jax
import numpy as np
import pytest

from because_rl.algorithms.registry import make_method
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import actions_by_cells, actions_on_first_rows, confounded


@pytest.mark.slow
def test_it_drops_what_does_not_cause_the_action():
    data, _ = confounded()
    settings = {"hidden": 32, "batch": 128, "steps": 1000, "rate": 3e-3}
    settings |= {"greedy": True, "mask_rate": 0.02, "weight": 0.03}
    agent = make_method("ccil", settings).fit(data, Run([0, 1]))
    cause, marker, nuisance = np.asarray(jax.nn.sigmoid(agent.actors.theta)).T
    assert (cause > 0.9).all()
    assert (marker < 0.5).all()
    assert (nuisance < 0.5).all()
    actions, expected = actions_on_first_rows(agent, data), 0.5 * np.tanh(2 * data.state[:200, 0])
    assert abs(actions[:, :, 0] - expected).max() < 0.2
    other = Transitions(**(vars(data) | {"state": data.state * [1, -1, 5] + np.float32([0, 3, -2])}))
    np.testing.assert_array_equal(actions, actions_on_first_rows(agent, other))  # what is dropped has no effect at all


@pytest.mark.slow
def test_it_clones_discrete_actions_of_training_rows():
    """By default it takes the likeliest action, so it should be right on every row that it was trained on."""
    data, number = actions_by_cells()
    agent = make_method("ccil", {"hidden": 32, "batch": 64, "steps": 400, "rate": 5e-3}).fit(data, Run([0, 1]))
    train = ~data.held_out[:200]
    actions = actions_on_first_rows(agent, data)
    np.testing.assert_array_equal(actions[:, train], np.stack([number[:200][train]] * 2))


def test_the_papers_table():
    for world, hidden, weight, rate in (
        ("lift", 256, 1e-4, 1e-4),
        ("unlock", 64, 1e-3, 1e-3),
        ("crash", 128, 1e-4, 1e-4),
    ):
        c = make_method("ccil", world=world, tuned=False).config
        assert (c.hidden, c.weight, c.rate, c.keep) == (hidden, weight, rate, 0.95)
