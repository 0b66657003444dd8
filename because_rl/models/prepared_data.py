"""Logged data made ready for models: where their factors are, centres and scales of their columns, rows to train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.layout import Layout
from because_rl.training.stage import Batch
from because_rl.transitions import Transitions

LEAST = 1e-6


class Statistics(NamedTuple):
    """Arrays that networks use and never train. Columns are those of a row [state, action]."""

    mean: jax.Array
    """(columns,) 0 for discrete columns"""
    scale: jax.Array
    """(columns,) standard deviation, pooled over the factors of a kind; 1 for discrete columns"""
    change: jax.Array
    """(state columns,) standard deviation of s' - s"""
    difference: jax.Array
    """(pair columns,) standard deviation of the differences of `Layout.pairs`"""
    moves: jax.Array
    """(targets,) 1 where a discrete factor fills, in at least one row, a column that was empty before"""
    low: jax.Array
    """(columns,) least value in the data"""
    high: jax.Array
    """(columns,) greatest value in the data"""


def statistics(layout: Layout, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> Statistics:
    """Statistics of n transitions: (n, state columns), (n, action columns), (n, state columns)."""
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


@dataclass(frozen=True)
class PreparedData:
    """What every world model starts from."""

    transitions: Transitions
    layout: Layout
    stats: Statistics
    """of all rows"""
    train: Batch
    """the rows that are not held out"""


def prepare(data: Transitions) -> PreparedData:
    """Layout, statistics and training rows of a dataset."""
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    return PreparedData(data, layout, stats, data.batch(~data.held_out))
