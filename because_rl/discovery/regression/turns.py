"""Unwrapped angles: continuous columns that pass several turns and act through their sine or cosine.

A heading that is never wrapped ends at hundreds of radians. No smooth regression learns its cosine from its values, so
what it causes would count as noise. A column h that passes at least `TURNS` turns, in radians or in degrees, is tried:

    base: 1, x, h x        with turns: and sin h, cos h, x sin h, x cos h        for all input columns x, also h itself

Both are regressed linearly, each fold of whole episodes from the other folds. The sine and the cosine stand beside the
values of h where, for one target,

- they explain at least `SHARE` of what the base leaves of it,
- p < `LEVEL` (Student's t of the correlations of both in groups of episodes), after Bonferroni over columns, units and
  targets, and
- they explain twice as much as sines of one turn more or less over the middle half of h. A curve that is no wave, like
  the switch of a thermostat, is explained by those as well; regression learns it from the values.

They are additional columns of the same factor, so what is tested stays the same: a column that enters by chance costs
power, not level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from because_rl.factor import PERIODS

TURNS = 4.0
"""Least range of a column, in turns."""
SHARE = 0.02
LEVEL = 1e-6
ROWS = 20_000
"""Of whole episodes, from which this is decided."""
GROUPS = 100
"""Of episodes, at most, whose correlations are compared."""
SPECIFIC = 2.0
"""How many times the share that neighbouring periods explain."""
RIDGE = 1e-6
"""Of the regressions, relative to the mean squared feature."""


def count_turns(values: np.ndarray, period: float) -> float:
    """Over the middle half of a column.

    >>> round(count_turns(np.linspace(0, 120, 101), 30.0), 6)
    2.0
    """
    low, high = np.quantile(values, (0.25, 0.75))
    return float((high - low) / period)


def candidate_periods(values: np.ndarray) -> list[float]:
    """The units of angles in which a column passes at least `TURNS` turns, and its middle half half as many.

    >>> candidate_periods(np.linspace(0, 30, 101))
    [6.283185307179586]
    """
    return [
        turn for turn in PERIODS.values() if np.ptp(values) >= TURNS * turn and count_turns(values, turn) >= TURNS / 2
    ]


def periods_of_columns(
    columns: Sequence[np.ndarray],
    x: np.ndarray,
    targets: Sequence[np.ndarray],
    starts: np.ndarray,
    folds: Sequence[slice],
) -> list[float | None]:
    """For each column, the period with which it acts on a target; None where no period shows.

    Args:
        columns: (n,) each, in their own units.
        x: (n, p) all inputs, standardised.
        targets: (n, w) each, what the inputs are to explain, standardised.
        starts: the first rows of the episodes.
        folds: of whole episodes.
    """
    tried = [(k, turn) for k, column in enumerate(columns) for turn in candidate_periods(column)]
    least = LEVEL / max(len(tried) * len(targets), 1)
    groups = starts[:: -(-len(starts) // GROUPS)]
    best: list[tuple[float, float | None]] = [(0.0, None)] * len(columns)
    for k, period in tried:
        share, p = _explained(columns[k], period, x, targets, groups, folds)
        counts, turns = (share >= SHARE) & (p < least), count_turns(columns[k], period)
        for neighbour in (turns - 1, turns + 1):
            if counts.any():
                other = _explained(columns[k], period * turns / neighbour, x, targets, groups, folds)[0]
                counts &= share >= SPECIFIC * other
        if counts.any():
            best[k] = max(best[k], (float(share[counts].max()), period), key=lambda pair: pair[0])
    return [period for _, period in best]


def _explained(
    column: np.ndarray,
    period: float,
    x: np.ndarray,
    targets: Sequence[np.ndarray],
    groups: np.ndarray,
    folds: Sequence[slice],
) -> tuple[np.ndarray, np.ndarray]:
    """Of each target, the share of what the base leaves that sine and cosine explain, and its p-value.

    `groups` are the first rows of groups of episodes.
    """
    value = (column - column.mean()) / column.std()
    angle = column * (2 * np.pi / period)
    ones = np.ones((len(x), 1))
    parts = [np.hstack([ones, x]) * wave[:, None] for wave in (np.sin(angle), np.cos(angle))]
    base = np.hstack([ones, x, x * value[:, None]])
    features = np.hstack([base, *parts])
    features /= np.sqrt(np.maximum((features**2).mean(0), 1e-300))
    y, width = np.hstack(targets), base.shape[1]
    moments = [(features[f].T @ features[f], features[f].T @ y[f]) for f in folds]
    gram, cross = (sum(part) for part in zip(*moments, strict=True))
    left, direction = np.empty_like(y), np.empty_like(y)
    for f, (own_gram, own_cross) in zip(folds, moments, strict=True):
        others = gram - own_gram + RIDGE * len(x) * np.eye(len(gram))
        rest = cross - own_cross
        of_base = features[f, :width] @ np.linalg.solve(others[:width, :width], rest[:width])
        left[f] = y[f] - of_base
        direction[f] = features[f] @ np.linalg.solve(others, rest) - of_base
    first = np.cumsum([0, *(target.shape[1] for target in targets[:-1])])

    def by_target(a: np.ndarray) -> np.ndarray:
        return np.add.reduceat(a, first, axis=-1)

    def of_groups(a: np.ndarray) -> np.ndarray:
        return by_target(np.add.reduceat(a, groups))

    products, sizes = of_groups(left * direction), of_groups(left**2) * of_groups(direction**2)
    correlation = np.divide(products, np.sqrt(sizes), out=np.zeros_like(products), where=sizes > 0)
    spread = np.maximum(correlation.std(0, ddof=1), 1e-9)
    p = stats.t.sf(correlation.mean(0) * np.sqrt(len(groups)) / spread, len(groups) - 1)
    error = by_target((left**2).mean(0))
    share = 1 - by_target(((left - direction) ** 2).mean(0)) / np.maximum(error, 1e-300)
    return np.where(error > 0, share, 0.0), p
