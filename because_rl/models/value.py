"""A goal-conditioned terminal value, so that a sparse reward reaches beyond the planning horizon.

For each goal factor k the network says how likely it is still to be attained, discounted, when the better part
of the logged actions is taken:

    V_k(s) <- expectile of  [ 1 where s' attains k, else gamma V_k(s') ]    over the data's transitions,

and 0 after the last step of an episode that ran out of time.

Binary goal factors are asked whether they will be switched on, whatever the episode's own goal was, so each
trajectory teaches all of them. The value of a goal is the product over the factors it asks for.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import MLP
from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import Batch


class Value(eqx.Module):
    net: MLP

    def __init__(self, factors: FactorSpec, key: PRNGKeyArray, *, hidden: int = 128):
        size = factors.state_size + factors.goal_size
        self.net = MLP((size, hidden, hidden, max(len(factors.goal), 1)), key, last=0.1)

    def __call__(self, stats: Statistics, gate: Array, state: Array, goal: Array) -> Float[Array, " goals"]:
        """Log-odds of each goal factor."""
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
