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
    drawn = (uniform(k2, swap.shape) * len(x)).astype(jnp.int32)  # with replacement: sorting takes a CPU longer
    other = jnp.where(swap, drawn, jnp.arange(len(x))[:, None])
    in_order = sorted(enumerate(layout.columns), key=lambda pair: pair[1].start)
    return jnp.hstack([x[other[:, i], columns] for i, columns in in_order])
