"""CCIL: it drops the factors that do not cause the action, and the policy still imitates."""

import jax
import numpy as np
import pytest

from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import actions_by_cells, actions_on_first_rows
from tests.support import LENGTH, logged


def proxied(episodes, seed, sign):
    """The action follows the cause with noise, and a proxy follows the action with more: given the cause, the proxy
    still tells .11 nats about the action, and given the proxy, the cause tells .46. A nuisance tells nothing.

    Also returns the action that the cause alone asks for. `sign` -1: the proxy shows the opposite of the action.
    """
    rng, n = stream(seed, "proxied"), episodes * LENGTH
    cause, nuisance, noise, blur = rng.normal(size=(4, n))
    intended = 0.5 * np.sin(cause)
    action = intended + 0.2 * noise
    state = np.stack([cause, sign * action + 0.4 * blur, nuisance], 1)
    factors = FactorSpec(
        pack(("cause", 1, "continuous"), ("proxy", 1, "continuous"), ("nuisance", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("there", 0, 1, "continuous", factor="cause"),),
    )
    return logged(factors, state, action[:, None], state, np.zeros((n, 1))), intended


@pytest.mark.slow
def test_a_proxy_of_the_action_that_flips_fools_cloning_only():
    """A proxy worth less than its price is dropped. At a price below .11, or for a proxy that tells more than the
    cause, it would be kept: the likelihood of offline data cannot show which of the two is the cause."""
    data, (flipped, intended) = proxied(300, 0, 1.0)[0], proxied(20, 1, -1.0)
    settings = {"hidden": 16, "batch": 128, "steps": 600, "rate": 5e-3, "greedy": True, "mask_rate": 0.03}
    agent = make_method("ccil", settings | {"weight": 0.25}).fit(data, Run([0]))
    cause, proxy, nuisance = np.asarray(jax.nn.sigmoid(agent.actors.nets.theta))[0]
    assert cause > 0.9
    assert max(proxy, nuisance) < 0.5
    actions = actions_on_first_rows(agent, flipped)
    assert abs(actions[0, :, 0] - intended).mean() < 0.06
    other = Transitions(**(vars(flipped) | {"state": flipped.state * [1, -1, 5] + np.float32([0, 3, -2])}))
    np.testing.assert_array_equal(actions, actions_on_first_rows(agent, other))  # what is dropped has no effect at all
    cloned = make_method("ccil", settings | {"weight": 0.0}).fit(data, Run([0]))
    assert np.asarray(cloned.actors.nets.theta)[0, 1] > 0
    assert abs(actions_on_first_rows(cloned, flipped)[0, :, 0] - intended).mean() > 0.1


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
