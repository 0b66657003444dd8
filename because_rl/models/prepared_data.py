"""Logged data made ready for models: where their factors are, centres and scales of their columns, rows to train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.factors import FactorSpec
from because_rl.models.layout import Layout
from because_rl.training.run import check_saved
from because_rl.training.stage import Batch, StreamedRows
from because_rl.transitions import Transitions

LEAST = 1e-6
"""Deviation below which a column counts as constant; relative to its largest value where that is below SMALL."""
SMALL = 1e-3


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
    rarity: jax.Array
    """(state columns,) log of the weight, in training, of rows in which a binary factor switches; 0 for others"""


def blank_outcomes(factors: FactorSpec, stats: Statistics, state: Array) -> Array:
    """The state with its outcomes as they are before a step in the data: what they were in the last one is no cause."""
    for factor in factors.outcomes:
        state = state.at[factor.slice].set(stats.mean[factor.slice])
    return state


EVENT_SHARE = 0.1
"""Share of all rows, by weight, that those make up in which a binary factor switches, if they are not more already."""
MOST_WEIGHT = 50.0
"""Of a row in which a binary factor switches."""


def statistics(layout: Layout, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> Statistics:
    """Statistics of n transitions: (n, state columns), (n, action columns), (n, state columns)."""
    x = np.hstack([state, action]).astype(np.float64)
    for factor in layout.factors.outcomes:  # before a step they are blank
        x[:, factor.slice] = next_state[:, factor.slice]
    mean, scale = np.zeros(layout.size), np.ones(layout.size)
    # In units in which all values of a column are tiny, its changes are as well: what counts as none is relative then.
    size = np.abs(x).max(0, initial=0.0)
    least = np.where((size > 0) & (size < SMALL), LEAST * size, LEAST)
    kinds: dict[tuple[str, int], list[slice]] = {}
    for factor, columns in zip(layout.inputs, layout.columns, strict=True):
        if factor.is_continuous:
            kinds.setdefault((factor.kind, factor.width), []).append(columns)
    for members in kinds.values():
        variance = np.mean([x[:, c].var(0) for c in members], axis=0)
        for c in members:
            mean[c] = x[:, c].mean(0)
            scale[c] = np.maximum(np.sqrt(variance), least[c])
    difference = [(x[:, layout.columns[i]] - x[:, layout.columns[k]]).std(0) for i, k in layout.pairs]
    change = layout.factors.change(state, next_state.astype(np.float64)).std(0)
    change = np.maximum(change, least[: layout.factors.state_size])
    moves = [bool((next_state[:, f.slice] > state[:, f.slice]).any()) for f in layout.factors.state]
    arrays = (
        mean,
        scale,
        change,
        np.concatenate([np.zeros(0), *difference]) + LEAST,
        np.array(moves),
        x.min(0),
        x.max(0),
        np.log(event_weights(layout, state, next_state)),
    )
    return Statistics(*(jnp.asarray(a, jnp.float32) for a in arrays))


def event_weights(layout: Layout, state: np.ndarray, next_state: np.ndarray) -> np.ndarray:
    """(state columns,) how much a row counts in which a binary factor switches.

    As much as it takes for these rows to make up `EVENT_SHARE` of all, at most `MOST_WEIGHT`. Of an event in 4 of 1,000
    rows a batch has one, too few to learn a sharp boundary from in the steps that training takes.
    """
    weights = np.ones(layout.factors.state_size)
    for family in layout.families:
        if family.type == "binary" and not family.slots:
            columns = layout.family_columns(family).reshape(-1)
            share = (np.abs(next_state[:, columns] - state[:, columns]) > 0.5).mean(0)
            needed = EVENT_SHARE * (1 - share) / ((1 - EVENT_SHARE) * np.maximum(share, 1e-12))
            weights[columns] = np.where(share > 0, np.clip(needed, 1.0, MOST_WEIGHT), 1.0)
    return weights


class ActionStatistics(NamedTuple):
    """Statistics of the logged actions, (columns,) each."""

    mean: Array
    scale: Array
    coin: Array
    """1 where a column only ever took two values, `low` and `high`: a Bernoulli column; 2 where it is a level of a
    categorical factor; else 0"""
    low: Array
    high: Array


def action_statistics(action: np.ndarray, factors: FactorSpec | None = None) -> ActionStatistics:
    """Statistics of (n, columns) logged actions; without `factors` none of them is categorical."""
    low, high = action.min(0), action.max(0)
    coin = np.array([len(np.unique(column)) == 2 for column in action.T], np.float32)
    for factor in () if factors is None or factors.codes is not None else factors.action:
        if factor.type == "categorical":
            coin[factor.slice] = 2
    scale = np.where(coin, 1.0, np.maximum(action.std(0), 1e-3))
    return ActionStatistics(*(jnp.asarray(a, jnp.float32) for a in (action.mean(0), scale, coin, low, high)))


@dataclass(frozen=True)
class Summary:
    """What an agent keeps of its data: no rows."""

    layout: Layout
    horizon: int
    stats: Statistics
    actions: ActionStatistics

    @property
    def factors(self) -> FactorSpec:
        return self.layout.factors

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, for a file."""
        parts = {"statistics": self.stats._asdict(), "actions": self.actions._asdict()}
        return {f"{part}/{name}": np.asarray(a) for part, values in parts.items() for name, a in values.items()}

    @classmethod
    def restore(cls, factors: FactorSpec, horizon: int, arrays: Mapping[str, np.ndarray]) -> Summary:
        """The inverse of `arrays`, which must have the shapes that these factors give."""
        layout = Layout(factors)
        check_saved(arrays, "statistics/mean", (layout.size,))  # first: factors of any width can be declared
        state, action = np.zeros((1, factors.state_size)), np.zeros((1, factors.action_size))
        blank = cls(layout, horizon, statistics(layout, state, action, state), action_statistics(action))
        for name, array in blank.arrays().items():
            check_saved(arrays, name, array.shape)
        stats = Statistics(*(jnp.asarray(arrays[f"statistics/{name}"]) for name in Statistics._fields))
        actions = ActionStatistics(*(jnp.asarray(arrays[f"actions/{name}"]) for name in ActionStatistics._fields))
        return cls(layout, horizon, stats, actions)


def summarise(data: Transitions, rows: np.ndarray | None = None) -> Summary:
    """The summary of the `rows` of a dataset (a boolean mask); None: of all."""
    keep = np.ones(len(data), bool) if rows is None else rows
    layout = Layout(data.factors)
    stats = statistics(layout, data.state[keep], data.action[keep], data.next_state[keep])
    return Summary(layout, data.horizon, stats, action_statistics(data.action[keep], data.factors))


@dataclass(frozen=True)
class PreparedData:
    """What every world model starts from."""

    transitions: Transitions
    summary: Summary
    """of all rows"""
    train: Batch
    """the rows that are not held out; of a sample those that are stored for training are drawn block by block"""

    @property
    def layout(self) -> Layout:
        return self.summary.layout

    @property
    def stats(self) -> Statistics:
        return self.summary.stats


def prepare(data: Transitions) -> PreparedData:
    """Layout, statistics and training rows of a dataset."""
    train: Batch = data.batch(~data.held_out)
    return PreparedData(data, summarise(data), train if data.stored is None else StreamedRows(train, data.stored))
