"""Fitted Q evaluation where states repeat and actions are numbered: a table for each number of steps to go.

    Q_h(s, a) <- mean of  r + gamma V_{h-1}(s')  over the logged rows with (s, a),     V_h(s) = sum_a pi(a|s) Q_h(s, a)

The mean of N rows counts N / (N + kappa); the rest of Q, kappa / (N + kappa), comes from elsewhere. In the estimate it
is the mean of the state over the logged actions; at the least it is also no more than a low one among the values of all
logged states, and at the most no less than a high one (`EXTREMES`). A policy that does what was seldom logged has wide
bounds.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.evaluation.worth.log import FOLDS, ROW_STEP, FittedQ, LoggedEpisodes, Policy

PRIOR_ROWS = 0.1
"""kappa, in rows: 1/11 of what is known from a single row, and all of what is not in the log, comes from elsewhere."""
EXTREMES = (0.1, 0.9)
"""Quantiles of the values of logged states that stand for what is not in the log."""
BATCH = 5
"""Fits at a time."""
REPEATS = 5
"""A table is used where there are at least as many rows for each state, on average."""
SMOOTHING = 1.0
"""Rows that the frequencies of actions in all states count for in those of one."""


class Rows(NamedTuple):
    """The log as arrays of a compiled program; n rows."""

    state: Array
    next_state: Array
    number: Array
    reward: Array
    goes_on: Array
    episode: Array
    step: Array
    fold: Array
    real: Array
    """0 for rows that only fill up"""


class TableModel:
    """Q and the behaviour of a log as tables over its states."""

    name = "table"

    def __init__(self, log: LoggedEpisodes, state: np.ndarray, next_state: np.ndarray, count: int):
        """`state` and `next_state` (n,): the states of the rows as numbers below `count`."""
        assert log.number is not None
        self.log, self.state, self.next_state, self.count = log, state, next_state, count
        columns = (getattr(log, name) for name in Rows._fields[2:-1])
        real = np.ones(len(state), np.float32), np.zeros(-len(state) % ROW_STEP, np.float32)
        parts = [log.filled(part) for part in (state, next_state, *columns)]
        self._rows = Rows(*map(jnp.asarray, [*parts, np.concatenate(real)]))

    @classmethod
    def of_log(cls, log: LoggedEpisodes) -> TableModel | None:
        """None where states are too many, or actions are not numbered."""
        if log.number is None:
            return None
        states, numbers = np.unique(np.concatenate([log.inputs, log.next_inputs]), axis=0, return_inverse=True)
        now, after = np.split(numbers.reshape(-1), 2)
        return None if len(np.unique(now)) * REPEATS > len(now) else cls(log, now, after, len(states))

    def behaviour(self) -> Policy:
        """The logged frequencies of actions in each state, smoothed by those of all states.

        They are of the same rows whose ratios they are the denominators of: that estimate of a ratio varies less than
        with propensities of other rows, and less than with the true ones (Hanna, Niekum and Stone 2019).
        """
        assert self.log.number is not None
        counts = np.zeros((self.count, self.log.actions))
        np.add.at(counts, (self.state, self.log.number), 1.0)
        of_all = (counts.sum(0) + 1.0) / (counts.sum() + self.log.actions)
        chance = (counts + SMOOTHING * of_all) / (counts.sum(1, keepdims=True) + SMOOTHING)
        return Policy("behaviour", chance[self.state], chance[self.next_state])

    def fit(self, policy: Policy, weights: np.ndarray, side: int = 0) -> FittedQ:
        """Fits with these weights of episodes (fits, E); `side`: 0 the estimate, -1 the least, 1 the most."""
        rows = np.concatenate([self.state, self.next_state])
        total = np.zeros((self.count, self.log.actions))  # the mean over the rows of a state
        np.add.at(total, rows, np.concatenate([policy.now, policy.after]))
        chance = total / np.maximum(np.bincount(rows, minlength=self.count), 1)[:, None]
        fits = _fit_table(
            jnp.asarray(weights, jnp.float32),
            jnp.asarray(chance, jnp.float32),
            self._rows,
            (jnp.asarray(self.log.first), jnp.asarray(self.log.last)),
            horizon=self.log.horizon,
            discount=self.log.discount,
            side=side,
        )
        first, surprise, rest = (np.asarray(part, float) for part in fits)
        return FittedQ(first, surprise[:, : len(self.state)], rest)


@partial(jax.jit, static_argnames=("horizon", "discount", "side"))
def _fit_table(
    weights: Float[Array, "fits episodes"],
    policy: Float[Array, "states actions"],
    rows: Rows,
    ends: tuple[Array, Array],
    *,
    horizon: int,
    discount: float,
    side: int,
) -> tuple[Array, ...]:
    states, actions = policy.shape
    pairs = states * actions
    pair = rows.state * actions + rows.number
    first, last = ends

    def one_batch(weights: Float[Array, "batch episodes"]) -> tuple[Array, ...]:
        # Fits and folds are the last axis: sums over scattered rows of several numbers cost a CPU little more than of
        # one.
        learned = (rows.fold[:, None, None] != jnp.arange(FOLDS)[None, None]).astype(jnp.float32)
        by_row = weights[:, rows.episode].T * rows.real[:, None]
        weight = (by_row[:, :, None] * learned).reshape(len(pair), -1)
        count = jax.ops.segment_sum(weight, pair, pairs).reshape(states, actions, -1)
        rows_of_state = count.sum(1)

        def one_step_more(carry: tuple[Array, ...], h: Array) -> tuple[tuple[Array, ...], None]:
            later, surprise, rest = carry
            expected = discount * rows.goes_on[:, None] * later[rows.next_state]
            target = rows.reward[:, None] + expected
            total = jax.ops.segment_sum(weight * target, pair, pairs).reshape(count.shape)
            of_all = (total.sum((0, 1)) / weight.sum(0))[None]
            of_state = (total.sum(1) + PRIOR_ROWS * of_all) / (rows_of_state + PRIOR_ROWS)
            if side == 0:
                elsewhere = of_state[:, None]
            else:
                extreme = weighted_quantiles(of_state, rows_of_state, EXTREMES[(side + 1) // 2])[None]
                elsewhere = (jnp.minimum if side < 0 else jnp.maximum)(of_state, extreme)[:, None]
            q = (total + PRIOR_ROWS * elsewhere) / (count + PRIOR_ROWS)
            value = (policy[:, :, None] * q).sum(1)
            due = (rows.step == horizon - h)[:, None]
            surprise = jnp.where(due, target - q.reshape(pairs, -1)[pair], surprise)
            return (value, surprise, jnp.where(due[last], expected[last], rest)), None

        start = tuple(jnp.zeros((size, weight.shape[1])) for size in (states, len(pair), len(last)))
        (value, surprise, rest), _ = jax.lax.scan(one_step_more, start, jnp.arange(1, horizon + 1))
        parts = (value[rows.state[first]], surprise, rest), (rows.fold[first], rows.fold, rows.fold[first])
        return tuple(
            jnp.take_along_axis(part.reshape(len(part), -1, FOLDS), fold[:, None, None], 2)[:, :, 0].T
            for part, fold in zip(*parts, strict=True)
        )

    fits = len(weights)
    size = min(BATCH, fits)
    padded = jnp.concatenate([weights, jnp.ones((-fits % size, weights.shape[1]), weights.dtype)])
    parts = jax.lax.map(one_batch, padded.reshape(-1, size, weights.shape[1]))
    return tuple(part.reshape(-1, part.shape[-1])[:fits] for part in parts)


def weighted_quantiles(
    values: Float[Array, "states fits"], weights: Float[Array, "states fits"], share: float
) -> Float[Array, " fits"]:
    """For each fit the value below which this share of the weights lies."""
    order = jnp.argsort(values, axis=0)
    below = jnp.cumsum(jnp.take_along_axis(weights, order, 0), axis=0) / weights.sum(0)[None]
    place = (below < share).sum(0).clip(max=len(values) - 1)
    return jnp.take_along_axis(jnp.take_along_axis(values, order, 0), place[None], 0)[0]
