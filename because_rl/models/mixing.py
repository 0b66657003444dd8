"""Rows whose parts come from different logged rows: each part was logged, the whole may be unlike the data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.layout import Layout
from because_rl.models.nets import uniform


def shuffles(key: PRNGKeyArray, rows: int, columns: int) -> Array:
    """(rows, columns): each column a permutation of the rows."""
    return jnp.argsort(uniform(key, (rows, columns)), axis=0)


def mix(layout: Layout, x: Float[Array, "rows columns"], key: PRNGKeyArray, share_key: PRNGKeyArray) -> Array:
    """Rows put together from different rows: each factor stays or is replaced, more or less often by the row."""
    k1, k2 = jax.random.split(key)
    share = 0.1 + 0.8 * uniform(share_key, (len(x), 1))
    swap = uniform(k1, (len(x), len(layout.inputs))) < share
    other = jnp.where(swap, shuffles(k2, *swap.shape), jnp.arange(len(x))[:, None])
    return jnp.take_along_axis(x, other[:, layout.factor_of_column], axis=0)
