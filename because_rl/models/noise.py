"""Random arrays, drawn flat and shaped afterwards.

On a CPU, XLA takes many seconds to compile the random bits of an array of several axes and a fraction of one for
a flat array.
"""

from __future__ import annotations

from math import prod

import jax
from jaxtyping import Array, PRNGKeyArray


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, (prod(shape),)).reshape(shape)


def uniform(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, (prod(shape),)).reshape(shape)
