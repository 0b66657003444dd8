"""The sparse goal reward of the paper, on imagined states whose binary factors are probabilities."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from because_rl.factors import FactorSpec


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
