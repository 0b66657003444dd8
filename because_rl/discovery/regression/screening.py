"""Screening: which inputs of a large data set cannot have an effect that counts, all inputs of a target at once.

With f the fit of a target on all inputs, replacing input x by its prediction from the others changes f by

    d_x(row) = f(x, z) - f(E[x|z], z),    D_x = mean of d_x^2,    effect of x = about D_x / (error of f + D_x)

since d_x is a function of the inputs, with which the error of f is not correlated. D_x is estimated from `ROWS` rows,
drawn as the problem draws its centres: half of them where the target is hard to predict. Another x shifts every
distance to a centre by a product of low rank, so this is exact for these rows and costs a few operations per centre.

An input is screened where D_x is below `SHARE` of what counts. Error: an effect that counts is then missed only if the
sample shows less than a tenth of D_x. A mean of n numbers that are not negative, with weights of at most 2, does so
with a probability of at most exp(-.2 n / k), k being the kurtosis of d_x: 1e-28 for a normal d_x, .01 where one row in
40 shows the effect and these rows are no harder to predict than others (else they are drawn more often).

For a screened input no regression is made of its own: E[y|z] is taken as f(x, z) - b r_x, with b the slope of d_x on
r_x. Its covariance test and its power are computed for all screened inputs together, from products of residuals. What
follows from other inputs is not projected out where the target moves (`Basis.where_moving`), since the p-value of an
effect that cannot count decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from because_rl.discovery.regression.covariance import (
    EPISODES_PER_FOLD,
    FOLDS,
    critical_values,
    kurtosis,
    least_share,
)
from because_rl.discovery.regression.engine import Problem
from because_rl.discovery.regression.kernel_ridge import Fit, kernel
from because_rl.discovery.regression.redundancy import SMALL

ROWS = 1000
SHARE = 0.1
"""Of the least effect that counts."""


class Change(NamedTuple):
    """What replacing an input by its prediction does to a fit, estimated from a sample of rows."""

    size: np.ndarray
    """(w,) D: the mean squared change of each target column"""
    slope: np.ndarray
    """(columns, w) of the change on r_x"""

    def effect(self, error: np.ndarray) -> float:
        """The share D / (error + D), in the target column where it is largest; `error` (w,) is that of the fit."""
        return float((self.size / (error + self.size + SMALL)).max(initial=0.0))


def changes(
    problem: Problem, fit: Fit, x: np.ndarray, substitute: np.ndarray, inputs: Sequence[np.ndarray]
) -> list[Change]:
    """The change of a fit by each of the `inputs`, given as its columns in x.

    Args:
        problem: the regression of one target on all inputs.
        fit: of this problem.
        x: (n, p) the inputs.
        substitute: (n, p) every input as the others predict it.
        inputs: the columns of each input in question.
    """
    step, p = max(1, sum(map(len, problem.sample)) // ROWS), x.shape[1]
    centres, metric = fit.points @ fit.root, fit.root @ fit.root.T
    pull = -2 * fit.points @ metric
    power, slopes = [np.zeros(fit.coefficients.shape[-1]) for _ in inputs], [_LeastSquares() for _ in inputs]
    total = 0.0
    for sample, weights, coefficients in zip(problem.sample, problem.weight, fit.coefficients, strict=True):
        rows, weight = sample[::step], weights[::step, None]
        delta = substitute[rows] - x[rows]
        distance = 1 / kernel(centres, x[rows] @ fit.root)  # 1 + squared distance, (m, rows)
        linear, curved = coefficients[1 : 1 + p], coefficients[1 + p :]
        push = 2 * x[rows] @ metric
        before, moved_distance = (1 / distance).T @ curved, np.empty_like(distance)
        total += float((weight**2).sum())
        for k, columns in enumerate(inputs):
            # |c - (u + a)|^2 = |c - u|^2 - 2 a'c + 2 a'u + |a|^2, of as low a rank as the input has columns
            moved = delta[:, columns]
            product = np.multiply if len(columns) == 1 else np.matmul  # the same; matmul is slow for one column
            product(pull[:, columns], moved.T, out=moved_distance)
            moved_distance += distance
            moved_distance += (moved * (push[:, columns] + moved @ metric[np.ix_(columns, columns)])).sum(1)
            np.reciprocal(moved_distance, out=moved_distance)
            change = (before - moved_distance.T @ curved - moved @ linear[columns]) * weight
            power[k] += (change**2).sum(0)
            slopes[k].add(-moved * weight, change)
    return [Change(size / total, slope.solve()) for size, slope in zip(power, slopes, strict=True)]


class _LeastSquares:
    """Least squares in parts: the sums of a'a and a'b."""

    def __init__(self) -> None:
        self._square: np.ndarray | float = 0.0
        self._cross: np.ndarray | float = 0.0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        self._square, self._cross = self._square + a.T @ a, self._cross + a.T @ b

    def solve(self) -> np.ndarray:
        """(columns of a, columns of b)"""
        return np.linalg.pinv(np.atleast_2d(self._square), rcond=1e-8, hermitian=True) @ self._cross


class Batch(NamedTuple):
    """What `covariance_test` and `detectable_effect` give for each input."""

    statistic: np.ndarray
    p: np.ndarray
    detectable: np.ndarray


def episode_squares(rx: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(episodes, columns, columns): the episodes' sums of r_x r_x', which serve all targets."""
    products = rx[:, :, None] * rx[:, None, :]
    return np.add.reduceat(products.reshape(len(rx), -1), starts).reshape(-1, *products.shape[1:])


def covariance_tests(
    residuals: Sequence[np.ndarray],
    squares: Sequence[np.ndarray],
    slopes: Sequence[np.ndarray],
    ry: np.ndarray,
    starts: np.ndarray,
    level: float,
    entropies: Sequence[float | None],
) -> Batch:
    """The covariance tests of all inputs at once, and their power.

    Args:
        residuals: of each input, r_x (n, columns).
        squares: of each input, its `episode_squares`.
        slopes: of each input, b (columns, w): the input is tested against r_y + r_x b.
        ry: (n, w) residuals of the fit on all inputs.
        starts: the first rows of the episodes.
        level: at which effects have to be detectable.
        entropies: for each input, that of a discrete target (see `least_share`).

    Returns:
        `covariance_test(r_x, r_y + r_x b)` and `detectable_effect(r_x, r_y)` of each input, up to rounding.
    """
    widths, (n, w), groups = [rx.shape[1] for rx in residuals], ry.shape, len(starts)
    first = np.cumsum([0, *widths[:-1]])
    rx = np.hstack(residuals)
    sums = np.stack([np.add.reduceat(rx * ry[:, [c]], starts) for c in range(w)], axis=-1)
    shifted = sums + np.concatenate([square @ b for square, b in zip(squares, slopes, strict=True)], axis=1)
    spread = shifted.std(0, ddof=1)
    t = np.divide(shifted.mean(0) * np.sqrt(groups), spread, out=np.zeros_like(spread), where=spread > 0)
    best, pairs = np.maximum.reduceat(np.abs(t).max(1), first), w * np.array(widths)
    p = np.minimum(1.0, 2 * stats.t.sf(best, groups - 1) * pairs)
    if groups < FOLDS * EPISODES_PER_FOLD:
        return Batch(best, p, np.ones(len(widths)))
    error, power = sums.std(0, ddof=1) * np.sqrt(groups) / n, (ry**2).mean(0)
    variance = np.outer((rx**2).mean(0), power)
    share = np.divide(error**2, variance, out=np.ones_like(variance), where=variance > 1e-24)
    critical = {count: critical_values(level, count, groups) for count in set(pairs.tolist())}
    noise, tails = (
        [float(np.median(share[a : a + width])) for a, width in zip(first, widths, strict=True)],
        kurtosis(ry),
    )
    each = zip(noise, pairs, entropies, strict=True)
    detectable = [least_share(e, tails, n, critical[count], entropy) for e, count, entropy in each]
    return Batch(best, p, np.array(detectable))
