"""Random numbers: the same as JAX's, from a key that is an input of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import TensorProto

from because_rl.onnx.graph import Builder, Tensor, constant, output, translates, unsupported

WORD = 0xFFFF_FFFF
ROTATIONS = np.tile([13, 15, 26, 6, 17, 29, 16, 24], 3)[:20]


def threefry(first: jax.Array, second: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): two words for each key and count."""
    keys = jnp.stack([first, second, first ^ second ^ jnp.uint32(0x1BD11BDA)])
    inject = (np.arange(20) % 4 == 3).astype(np.uint32)
    turn = np.arange(20) // 4 + 1
    pair = (inject.reshape(-1, *(1,) * first.ndim) * keys[(turn + k) % 3] for k in (0, 1))

    def step(words: tuple, now: tuple) -> tuple:
        (x, y), (left, right, more_x, more_y) = words, now
        x = x + y
        y = (y * left | y // right) ^ x
        return (x + more_x, y + more_y), None

    more_x, more_y = pair
    more_y = more_y + (inject * turn.astype(np.uint32)).reshape(-1, *(1,) * first.ndim)
    rows = (2**ROTATIONS).astype(np.uint32), (2 ** (32 - ROTATIONS)).astype(np.uint32)
    start = first + jnp.zeros_like(count), second + count
    return lax.scan(step, start, (*rows, more_x, more_y))[0]


def _random_words(b: Builder, key: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """Two words for each key and element."""
    whole = b.node("Cast", key, kind="i", shape=key.shape, to=TensorProto.UINT64)
    shift = b.node("Cast", constant(np.int64(32)), kind="i", shape=(), to=TensorProto.UINT64)
    high = b.node("BitShift", whole, shift, kind="i", shape=key.shape, direction="RIGHT")
    high = b.node("Cast", high, kind="u", shape=key.shape, to=TensorProto.INT64)
    low = b.node("BitwiseAnd", key, constant(np.int64(WORD)), kind="u", shape=key.shape)

    def words(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = jnp.arange(prod(shape), dtype=jnp.uint32).reshape(shape)
        spread = (*key.shape, *(1,) * len(shape))
        count = jnp.broadcast_to(count, (*key.shape, *shape))
        return threefry(first.reshape(spread), second.reshape(spread), count)

    return b.call(words, high, low)


@translates("random_bits")
def _random_bits(b: Builder, equation: Any, key: Tensor) -> Tensor:
    if equation.params["bit_width"] != 32:
        raise unsupported("random numbers of other than 32 bits")
    return b.node("BitwiseXor", *_random_words(b, key, equation.params["shape"]), **output(equation))


@translates("random_split")
def _random_split(b: Builder, equation: Any, key: Tensor) -> Tensor:
    high, low = _random_words(b, key, equation.params["shape"])
    shift = b.node("Cast", constant(np.int64(32)), kind="i", shape=(), to=TensorProto.UINT64)
    parts = [b.node("Cast", x, kind="i", shape=x.shape, to=TensorProto.UINT64) for x in (high, low)]
    high = b.node("BitShift", parts[0], shift, kind="i", shape=high.shape, direction="LEFT")
    whole = b.node("BitwiseOr", high, parts[1], kind="i", shape=high.shape)
    return b.node("Cast", whole, to=TensorProto.INT64, **output(equation))
