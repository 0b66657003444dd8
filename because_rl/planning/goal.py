"""The sparse goal reward of the paper, on imagined states whose binary factors are probabilities."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from because_rl.factors import FactorSpec


def ended(factors: FactorSpec, state: Float[Array, " state"], goal: Float[Array, " goal"]) -> Float[Array, ""]:
    """The probability that an episode is over in `state` since its goal has been reached; a goal to hold ends none."""
    return attained(factors, state, goal) if factors.goal and not factors.holds_goal else jnp.zeros(())


def goal_reward(
    factors: FactorSpec, discount: float, state: Float[Array, " state"], goal: Float[Array, " goal"]
) -> Float[Array, ""]:
    """What being in `state` pays beside rewards: 1 for reaching a goal; 1 in all for holding it for ever."""
    if not factors.goal:
        return jnp.zeros(())
    return attained(factors, state, goal) * ((1 - discount) if factors.holds_goal else 1.0)


def attained(factors: FactorSpec, state: Float[Array, " state"], goal: Float[Array, " goal"]) -> Float[Array, ""]:
    """The probability that `state` satisfies `goal`: 0 or 1 in the continuous and categorical factors."""
    chance = jnp.ones(())
    for wanted in factors.goal:
        have, want = state[factors[wanted.factor].slice], goal[wanted.slice]
        if factors[wanted.factor].type == "binary":
            if wanted.relation == "equal":
                each = jnp.where(want > 0.5, have, 1.0 - have)
            elif wanted.relation == "at_least":
                each = jnp.where(want > 0.5, have, 1.0)
            else:
                each = jnp.where(want > 0.5, 1.0, 1.0 - have)
        elif wanted.relation == "equal":
            each = (jnp.abs(wanted.difference(have, want)) <= wanted.tolerance).astype(jnp.float32)
        elif wanted.relation == "at_least":
            each = (have >= want - wanted.tolerance).astype(jnp.float32)
        else:
            each = (have <= want + wanted.tolerance).astype(jnp.float32)
        chance = chance * each.prod()
    return chance
