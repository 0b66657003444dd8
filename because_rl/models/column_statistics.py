"""What the data look like: centres and scales of columns, changes and differences."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.layout import Layout

LEAST = 1e-6


class Statistics(NamedTuple):
    """Arrays that networks use and never train."""

    mean: jax.Array
    """(columns,) of [state, action]; 0 for discrete columns"""
    scale: jax.Array
    """(columns,) the spread inside a factor, pooled over its kind; 1 for discrete columns"""
    change: jax.Array
    """(state columns,) the spread of s' - s"""
    difference: jax.Array
    """(pair columns,) the spread of differences, for `Layout.pairs`"""
    moves: jax.Array
    """(targets,) 1 where a discrete factor was ever seen to fill a column that was empty before"""
    low: jax.Array
    """(columns,)"""
    high: jax.Array


def statistics(layout: Layout, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> Statistics:
    x = np.hstack([state, action]).astype(np.float64)
    mean, scale = np.zeros(layout.size), np.ones(layout.size)
    kinds: dict[tuple[str, int], list[slice]] = {}
    for factor, columns in zip(layout.inputs, layout.columns, strict=True):
        if factor.type == "continuous":
            kinds.setdefault((factor.kind, factor.width), []).append(columns)
    for members in kinds.values():
        variance = np.mean([x[:, c].var(0) for c in members], axis=0)
        for c in members:
            mean[c] = x[:, c].mean(0)
            scale[c] = np.maximum(np.sqrt(variance), LEAST)
    difference = [(x[:, layout.columns[i]] - x[:, layout.columns[k]]).std(0) for i, k in layout.pairs]
    change = np.maximum((next_state.astype(np.float64) - state).std(0), LEAST)
    moves = [bool((next_state[:, f.slice] > state[:, f.slice]).any()) for f in layout.factors.state]
    arrays = (
        mean,
        scale,
        change,
        np.concatenate([np.zeros(0), *difference]) + LEAST,
        np.array(moves),
        x.min(0),
        x.max(0),
    )
    return Statistics(*(jnp.asarray(a, jnp.float32) for a in arrays))
