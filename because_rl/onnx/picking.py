"""Primitives that pick elements, or put them somewhere: by their places in the flat array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from because_rl.onnx.graph import Builder, Tensor, translates
from because_rl.onnx.primitives import reshape


def _flat(b: Builder, x: Tensor) -> Tensor:
    return reshape(b, x, (prod(x.sizes),))


def _take(b: Builder, x: Tensor, places: Tensor) -> Tensor:
    return b.node("Gather", _flat(b, x), places, kind=x.kind, shape=places.shape, axis=0)


def _along(size: int, axis: int, rank: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32).reshape([-1 if d == axis else 1 for d in range(rank)])


@translates("gather")
def _gather(b: Builder, equation: Any, x: Tensor, starts: Tensor) -> Tensor:
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    inside = [d for d in range(len(sizes)) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    return _take(
        b,
        x,
        _places(
            *(b, x.sizes, starts, equation.outvars[0].aval.shape, sizes, numbers.offset_dims, inside),
            *(numbers.start_index_map, numbers.operand_batching_dims, numbers.start_indices_batching_dims),
        ),
    )


@translates("scatter", "scatter-add")
def _scatter(b: Builder, equation: Any, x: Tensor, starts: Tensor, updates: Tensor) -> Tensor:
    numbers = equation.params["dimension_numbers"]
    skipped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    inside = [d for d in range(len(x.shape)) if d not in skipped]
    sizes = [1] * len(x.shape)
    for d, axis in zip(inside, numbers.update_window_dims, strict=True):
        sizes[d] = updates.shape[axis]
    places = _places(
        *(b, x.sizes, starts, updates.sizes, sizes, numbers.update_window_dims, inside),
        *(numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims),
    )
    how = {"reduction": "add"} if equation.primitive.name == "scatter-add" else {}
    parts = (_flat(b, part) for part in (x, places, updates))
    flat = b.node("ScatterElements", *parts, kind=x.kind, shape=(prod(x.sizes),), axis=0, **how)
    return reshape(b, flat, x.sizes)


def _places(
    b: Builder,
    operand: Sequence[int],
    starts: Tensor,
    shape: Sequence[int],
    sizes: Sequence[int],
    window_axes: Sequence[int],
    inside: Sequence[int],
    started: Sequence[int],
    batching: Sequence[int],
    index_batching: Sequence[int],
) -> Tensor:
    """For each element of an array of `shape` its place in the flat `operand`, for gather and scatter.

    `inside` are the operand's dimensions that the axes `window_axes` of `shape` run through, `started` those to which
    the last axis of `starts` refers, and `batching` go together with the dimensions `index_batching` of `starts`.
    """
    rank, outside = len(shape), [d for d in range(len(shape)) if d not in window_axes]

    def places(starts: jax.Array) -> jax.Array:
        total = jnp.zeros(shape, jnp.int32)
        for d, size in enumerate(operand):
            stride = prod(operand[d + 1 :])
            if d in started:
                start = lax.index_in_dim(starts, list(started).index(d), starts.ndim - 1, keepdims=False)
                start = jnp.clip(start.astype(jnp.int32), 0, size - sizes[d])
                total += stride * lax.broadcast_in_dim(start, shape, outside)
            if d in batching:
                total += stride * _along(size, outside[index_batching[list(batching).index(d)]], rank)
            if d in inside:
                axis = window_axes[list(inside).index(d)]
                total += stride * _along(shape[axis], axis, rank)
        return total

    return b.call(places, starts)[0]


@translates("dynamic_slice")
def _dynamic_slice(b: Builder, equation: Any, x: Tensor, *starts: Tensor) -> Tensor:
    return _take(b, x, _window(b, x, equation.params["slice_sizes"], starts))


@translates("dynamic_update_slice")
def _dynamic_update_slice(b: Builder, equation: Any, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    places = _window(b, x, update.sizes, starts)
    parts = (_flat(b, part) for part in (x, places, update))
    return reshape(b, b.node("ScatterElements", *parts, kind=x.kind, shape=(prod(x.sizes),), axis=0), x.sizes)


def _window(b: Builder, x: Tensor, sizes: Sequence[int], starts: Sequence[Tensor]) -> Tensor:
    def places(*starts: jax.Array) -> jax.Array:
        total = jnp.zeros(sizes, jnp.int32)
        for d, (size, start) in enumerate(zip(x.sizes, starts, strict=True)):
            first = jnp.clip(start.astype(jnp.int32), 0, size - sizes[d])
            total += prod(x.sizes[d + 1 :]) * (first + _along(sizes[d], d, len(sizes)))
        return total

    return b.call(places, *starts)[0]
