"""The value of a log with rewards: returns to go, rewards of the next steps, and a chain whose values are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.datasets.load import blank_and_logged
from because_rl.factors import FactorSpec, pack
from because_rl.models.prepared_data import blank_outcomes, prepare
from because_rl.models.value import Value, logged_returns, return_loss, rewards_ahead
from because_rl.training.run import Run
from because_rl.training.stage import Stage
from because_rl.transitions import Transitions

CHAIN = FactorSpec(pack(("x", 1, "continuous")), pack(("go", 1, "binary"))).with_outcomes("gain", True)
G = 0.8


def chain(episodes=30, length=6):
    """x counts up from 0. The last step pays 1 and ends every second episode; the others are cut off there."""
    x = np.tile(np.arange(length), episodes).astype(np.float32)[:, None]
    episode = np.repeat(np.arange(episodes), length)
    last = x[:, 0] == length - 1
    reward, ended = last.astype(np.float32), last & (episode % 2 == 0)
    blank, logged = blank_and_logged(CHAIN, (reward, ended))
    go, step = np.ones_like(x), x[:, 0].astype(int)
    state, after = np.hstack([x, blank]), np.hstack([x + 1, logged])
    goal = np.zeros((len(x), 0), np.float32)
    return Transitions(CHAIN, state, go, after, goal, reward, ended, episode, step, length)


def test_returns_go_on_after_a_cut_and_not_after_an_end():
    data = chain(2, 3)
    ends, cut = 1.0, 1.0 + G * (1 / 3) / (1 - G)
    returns = [G**2 * ends, G * ends, ends, G**2 * cut, G * cut, cut]
    known = logged_returns(data, G)
    assert known.unit == pytest.approx(max(returns) - min(returns))
    assert known.least == 0
    assert known.most == pytest.approx(1 / (1 - G) / known.unit)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_rewards_ahead_are_those_of_the_same_episode(steps):
    data = chain()
    ahead = rewards_ahead(data, logged_returns(data, G), G, steps)
    for row in range(12):
        end = min(row + steps, row // 6 * 6 + 6)
        assert ahead["reward_ahead"][row] == pytest.approx((G ** np.arange(end - row) * data.reward[row:end]).sum())
        assert ahead["state_ahead"][row].tolist() == [data.next_state[end - 1, 0], data.state[0, 1], 0.0]
        assert ahead["discount_ahead"][row] == pytest.approx(0.0 if data.terminated[end - 1] else G ** (end - row))


def test_the_value_of_a_chain_that_ends_is_its_discounted_reward():
    data = chain()
    data = data.rows(data.episode % 2 == 0)
    prepared, returns = prepare(data), logged_returns(data, G)
    rows = {**data.batch(np.ones(len(data), bool)), **rewards_ahead(data, returns, G, 2)}
    loss = partial(return_loss, prepared.stats, returns, 0.5)
    stage = Stage("value", lambda key, fixed: Value(CHAIN, key, hidden=16), loss, 600, 32, 1e-2)
    gate = jnp.ones((1, 3))
    value = Run([0]).fit(stage, {name: jnp.asarray(values) for name, values in rows.items()}, gate)
    net = jax.tree.map(lambda a: a[0], value)
    states = jnp.asarray(data.state[:6])
    fitted = jax.vmap(lambda s: net(prepared.stats, gate[0], s, jnp.zeros(0))[0])(states) * returns.unit
    assert np.allclose(fitted, G ** np.arange(5, -1, -1), atol=0.03)
    blank = blank_outcomes(CHAIN, prepared.stats, jnp.asarray(data.next_state[5]))
    assert np.allclose(blank, [6.0, data.next_state[:, 1].mean(), 0.0])


def test_what_an_end_brings_is_taken_off_the_reward_and_kept():
    data = chain()
    brings = 1 - data.reward[~data.terminated].mean()
    assert np.allclose(data.next_state[:, 1] + brings * data.terminated, data.reward)
    assert logged_returns(data, G).end == pytest.approx(brings)
    assert data.state[0, 1] == pytest.approx(data.next_state[:, 1].mean())
