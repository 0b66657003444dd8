"""A goal-conditioned terminal value, so that a sparse reward reaches beyond the planning horizon.

For each goal factor k the network says how likely it is still to be attained, discounted, when the better part
of the logged actions is taken:

    V_k(s) <- expectile of  [ 1 where s' attains k, else gamma V_k(s') ]    over the data's transitions,

and 0 after the last step of an episode that ran out of time.

Binary goal factors are asked whether they will be switched on, whatever the episode's own goal was, so each
trajectory teaches all of them. The value of a goal is the product over the factors it asks for.

Where rewards are to be maximised, the value is the discounted sum of what is still to come, by steps n at a time:

    V(s) <- expectile of  r_1 + gamma r_2 + ... + gamma^{n-1} r_n + gamma^n V(s_n),

without the last term where the episode ended for good. A goal beside rewards adds 1 to the reward of the step that
reaches it, in units of the returns, and ends the episode; one to be held adds 1 - gamma to each step at it.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import MLP
from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import Batch
from because_rl.transitions import Transitions

STEPS_AHEAD = 10
"""of rewards that are added up before a value is asked"""


class Value(eqx.Module):
    net: MLP

    def __init__(self, factors: FactorSpec, key: PRNGKeyArray, *, hidden: int = 128):
        size = factors.state_size + factors.goal_size
        self.net = MLP((size, hidden, hidden, max(len(factors.goal), 1)), key, last=0.1)

    def __call__(self, stats: Statistics, gate: Array, state: Array, goal: Array) -> Float[Array, " goals"]:
        """Log-odds of each goal factor; without goals the return in units of `Returns.unit`."""
        size = len(state)
        inputs = (state - stats.mean[:size]) / stats.scale[:size] * gate
        return self.net(jnp.concatenate([inputs, goal]))


def attained_factors(factors: FactorSpec, state: Array, goal: Array) -> Float[Array, " goals"]:
    """1 where a goal factor is satisfied; binary ones with 'at_least' count as wanted, whatever the goal says."""
    out = []
    for wanted in factors.goal:
        have, want = state[factors[wanted.factor].slice], goal[wanted.slice]
        if factors[wanted.factor].type == "binary":
            hit = have > 0.5 if wanted.relation == "at_least" else jnp.abs(have - want) < 0.5
        elif wanted.relation == "equal":
            hit = jnp.abs(wanted.difference(have, want)) <= wanted.tolerance
        elif wanted.relation == "at_least":
            hit = have >= want - wanted.tolerance
        else:
            hit = have <= want + wanted.tolerance
        out.append(hit.all().astype(jnp.float32))
    return jnp.stack(out)


def neutral(factors: FactorSpec, goal: Array) -> Array:
    """The goal without the columns that say which binary factors are asked for: the network must not see those."""
    for wanted in factors.goal:
        if factors[wanted.factor].type == "binary" and wanted.relation == "at_least":
            goal = goal.at[wanted.slice].set(0.0)
    return goal


def value_loss(
    factors: FactorSpec,
    stats: Statistics,
    discount: float,
    expectile: float,
    model: Value,
    gate: Array,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    def row(state: Array, goal: Array, next_state: Array, truncated: Array) -> tuple[Array, Array]:
        asked = neutral(factors, goal)
        hit = attained_factors(factors, next_state, goal)
        later = jax.lax.stop_gradient(jax.nn.sigmoid(model(stats, gate, next_state, asked)))
        target = hit + (1 - hit) * discount * later * (1 - truncated)
        odds = model(stats, gate, state, asked)
        now = jax.nn.sigmoid(odds)
        side = jnp.where(target > now, expectile, 1 - expectile)
        # Cross-entropy, not squares: a value that has saturated at the wrong end must find its way back.
        return (side * (jax.nn.softplus(odds) - odds * target)).sum(), now.mean()

    loss, value = jax.vmap(row)(batch["state"], batch["goal"], batch["next_state"], batch["truncated"])
    return loss.mean(), {"value": value.mean()}


def value_of_goal(
    factors: FactorSpec, stats: Statistics, model: Value, gate: Array, state: Array, goal: Array
) -> Array:
    """The product of the chances of all that the goal asks for; what is attained counts as 1."""
    chance = jax.nn.sigmoid(model(stats, gate, state, neutral(factors, goal)))
    total = jnp.ones(())
    for k, wanted in enumerate(factors.goal):
        have, want = state[factors[wanted.factor].slice], goal[wanted.slice]
        if factors[wanted.factor].type == "binary" and wanted.relation == "at_least":
            each = jnp.where(want > 0.5, have + (1 - have) * chance[k], 1.0).prod()
        else:
            each = chance[k]
        total = total * each
    return total


class Returns(NamedTuple):
    """What is known of the discounted returns of the data before a value is fitted."""

    unit: Array
    """the range of the returns that were logged"""
    least: Array
    """that no return can be below, in units"""
    most: Array
    end: Array
    """what an end brings beyond the reward that is a factor, not in units"""


def logged_returns(data: Transitions, discount: float) -> Returns:
    """The returns to go of all rows; after the last row of an episode that was cut off its mean reward goes on."""
    last = np.append(data.episode[1:] != data.episode[:-1], True)
    mean = np.bincount(data.episode, data.reward) / np.maximum(np.bincount(data.episode), 1)
    after = np.where(data.terminated, 0.0, mean[data.episode] / (1 - discount))
    to_go, returns = 0.0, np.empty(len(data))
    for t in range(len(data) - 1, -1, -1):
        to_go = returns[t] = data.reward[t] + discount * (after[t] if last[t] else to_go)
    if not data.factors.outcomes:
        return Returns(*(jnp.asarray(value, jnp.float32) for value in (1.0, 0.0, 1.0, 0.0)))
    unit = max(np.ptp(returns), 1e-3 * np.abs(returns).max(), 1e-6)
    (at,) = [f.start for f in data.factors.outcomes if f.role == "reward"]
    brought = (data.reward - data.next_state[:, at])[data.terminated]
    end = float(brought.mean()) if len(brought) else 0.0
    bounds = np.array([min(data.reward.min(), 0.0), max(data.reward.max(), 0.0)]) / (1 - discount) / unit
    bounds[1] += bool(data.factors.goal)
    return Returns(*(jnp.asarray(value, jnp.float32) for value in (unit, *bounds, end)))


def rewards_ahead(
    data: Transitions, returns: Returns, discount: float, steps: int = STEPS_AHEAD
) -> dict[str, np.ndarray]:
    """For each row: the discounted rewards of the next `steps` rows of its episode, the state behind them, and the
    discount of its value, 0 after an end. What a goal pays is among the rewards."""
    rows, spec = np.arange(len(data)), data.factors
    stop = np.searchsorted(data.episode, data.episode, side="right")  # behind the last row of the episode
    paid, over = data.reward if spec.outcomes else np.zeros(len(data)), data.terminated
    if spec.goal:
        hit = np.asarray(spec.reached(data.next_state, data.goal))
        paid = paid + hit * float(returns.unit) * ((1 - discount) if spec.holds_goal else 1.0)
        if not spec.holds_goal:  # nothing follows the first step that reaches it
            over = over | hit
            behind = np.flatnonzero(over) + 1
            stop = np.minimum(stop, np.append(behind, len(data))[np.searchsorted(behind, rows, side="right")])
    total = np.zeros(len(data))
    for k in range(steps):
        total += np.where(rows + k < stop, discount**k * paid[np.minimum(rows + k, len(data) - 1)], 0.0)
    end = np.minimum(rows + steps, stop) - 1
    # States behind a step have its outcome, which the value must not see: those before it are blank.
    state = np.hstack([data.next_state[end, : data.factors.observed_size], data.state[:, data.factors.observed_size :]])
    later = np.where(over[end], 0.0, discount ** (end - rows + 1))
    ahead = {"reward_ahead": total, "state_ahead": state, "discount_ahead": later}
    return {name: np.asarray(values, np.float32) for name, values in ahead.items()}


def return_loss(
    stats: Statistics, returns: Returns, expectile: float, model: Value, gate: Array, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    def row(state: Array, goal: Array, reward: Array, ahead: Array, discount: Array) -> tuple[Array, Array]:
        later = jax.lax.stop_gradient(model(stats, gate, ahead, goal)[0])
        target = jnp.clip(reward / returns.unit + discount * later, returns.least, returns.most)
        now = model(stats, gate, state, goal)[0]
        return jnp.where(target > now, expectile, 1 - expectile) * (target - now) ** 2, now

    columns = (batch[name] for name in ("state", "goal", "reward_ahead", "state_ahead", "discount_ahead"))
    loss, value = jax.vmap(row)(*columns)
    return loss.mean(), {"value": value.mean()}
