"""What a fitted model says of logged rows sets how planners read it: the price of penalties, the chances of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import over_rows
from because_rl.transitions import Transitions

Read = Callable[[Any, Array, Array], tuple[Array, Array]]
"""(parameters of one seed, state, action) -> next state with binary factors as probabilities, penalty in [0, 1]"""
CHUNK = 2000
"""Rows that the model is asked about at once, so that one program serves all data."""
MOST_ROWS = 20_000
HALVINGS = 40
LEAST_CHANCE = 1e-12


def price_pessimism(data: Transitions, imagine: Read, parameters: Any, price: float) -> np.ndarray:
    """(seeds,) lambda such that a trajectory like the held-out ones pays `price` of the goal's reward in penalties.

    lambda = price / (horizon * mean penalty of held-out rows), at most 1.
    """
    rows = np.flatnonzero(data.held_out)[:CHUNK]
    ordinary = read_rows(imagine, parameters, data.state[rows], data.action[rows])[1].mean(1)
    return np.minimum(price / (data.horizon * np.maximum(ordinary, 0.02)), 1.0)


def event_shifts(data: Transitions, stats: Statistics, expect: Read, parameters: Any) -> np.ndarray:
    """(seeds, state columns) what to add to the log-odds of a switch, so that as many are foreseen as were logged.

    Rows in which a rare event happens weigh w times in training, and log w is taken off the log-odds again
    (`likelihood.negative_log_likelihood`). Where the boundary of an event is sharp and learned from few of them, this
    takes off too much: of a near miss in 3 of 1,000 rows three quarters were foreseen. So up to log w is given back, by
    the training rows.

    `expect` must read the model without shifts.
    """
    rarity = np.asarray(stats.rarity)
    columns = np.flatnonzero(rarity > 0)
    shifts = np.zeros((len(jax.tree.leaves(parameters)[0]), len(rarity)), np.float32)
    if not len(columns):
        return shifts
    rows = np.flatnonzero(~data.held_out)
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    before = data.state[rows][:, columns]
    expected = read_rows(expect, parameters, data.state[rows], data.action[rows])[0]
    chance = np.abs(expected[..., columns] - before[None])
    switched = np.abs(data.next_state[rows][:, columns] - before) > 0.5
    shifts[:, columns] = calibrating_shift(chance, switched.sum(0), rarity[columns])
    return shifts


def error_scale(data: Transitions, forecast: Callable[..., Any], parameters: Any) -> np.ndarray:
    """(seeds, state columns) by how much the errors on held-out rows exceed the deviation that the model gives them.

    At least 1; so it is for columns without a deviation, those of discrete factors. `forecast` is that of the model,
    which must not have been scaled yet.
    """
    rows = np.flatnonzero(data.held_out)[:CHUNK]
    expected, deviation, _ = read_rows(forecast, parameters, data.state[rows], data.action[rows])
    error = data.factors.change(expected, np.broadcast_to(data.next_state[rows], expected.shape))
    ratio = np.divide(error, deviation, out=np.zeros_like(error), where=deviation > 0)
    return np.maximum(np.sqrt((ratio**2).mean(1)), 1.0).astype(np.float32)


def calibrating_shift(chance: np.ndarray, switches: np.ndarray, most: np.ndarray) -> np.ndarray:
    """What to add to the log-odds of chances (seeds, rows, columns) so that they sum to `switches` (columns,).

    At least -`most` and at most `most` (columns,). Returns (seeds, columns).

    >>> chance = np.array([[[0.1], [0.1], [0.1], [0.1]]])
    >>> float(calibrating_shift(chance, np.array([2]), np.array([5.0]))[0, 0].round(3))  # to odds of 1
    2.197
    >>> float(calibrating_shift(chance, np.array([2]), np.array([1.0]))[0, 0].round(3))
    1.0
    """
    chance = np.clip(chance.astype(np.float64), LEAST_CHANCE, 1 - LEAST_CHANCE)
    log_odds = np.log(chance) - np.log1p(-chance)
    low = np.broadcast_to(-most, (len(chance), chance.shape[2])).astype(np.float64)
    high = -low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = (1 / (1 + np.exp(-log_odds - middle[:, None]))).sum(1) >= switches
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def read_rows(
    model: Callable[..., tuple[Array, ...]], parameters: Any, state: np.ndarray, action: np.ndarray
) -> list[np.ndarray]:
    """What a model of (parameters of one seed, state, action) returns for rows: arrays (seeds, rows, ...)."""
    read, parts = over_rows("logged rows", model), []
    for start in range(0, len(state), CHUNK):
        chunk = np.minimum(np.arange(start, start + CHUNK), len(state) - 1)
        rows = (jnp.asarray(part[chunk], jnp.float32) for part in (state, action))
        parts.append([np.asarray(part) for part in read(parameters, *rows)])
    return [np.concatenate(each, axis=1)[:, : len(state)] for each in zip(*parts, strict=True)]
