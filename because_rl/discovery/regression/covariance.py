"""Two tests on cross-fitted residuals, each with episodes as its unit of replication.

Covariance (Shah and Peters 2020): E[r_x r_y] = 0 when x and y are independent given z. Doubly robust: the bias
is the product of the errors of the two regressions. It does not detect dependence that averages out over z.

Projected covariance (after Lundborg, Kim, Shah and Samworth 2022): E[g r_y] = 0 for every g(x, z) with mean 0
given z; g is the part of the full fit that x adds, so it detects any dependence that the regression can learn.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

COVARIANCE_PART = 0.9
"""Share of the level that the covariance test gets; the projected test gets the rest."""
POWER = float(stats.norm.isf(0.2))
"""Standard errors beyond the critical value at which an effect is seen with probability .8."""
CONFIDENCE = float(stats.norm.isf(0.05))
"""Standard errors of a one-sided 95% interval."""

FOLDS = 5
"""Of whole episodes, for cross-fitting."""
EPISODES_PER_FOLD = 5
"""Least number for the projected test."""


class Basis:
    """Projects out of residuals what is linear in z, in the fit of x on z, and in the square of that fit.

    A penalised fit errs most along itself; without this step the errors of x given z and of y given z are correlated
    and look like dependence.

    Args:
        x: (n, p) all inputs.
        keep: (p,) 1 for the columns of z, 0 for the others.
        fit: (n, columns) the fit of x on z.
    """

    def __init__(self, x: np.ndarray, keep: np.ndarray, fit: np.ndarray):
        self._x, self._keep = x, keep[:, None]
        self._own = np.hstack([np.ones((len(x), 1)), fit, fit * fit])
        gram = np.hstack([self._against(self._own), self._against(x * keep)])
        self._inverse = np.linalg.pinv(gram / len(x), rcond=1e-10, hermitian=True) / len(x)

    def _against(self, a: np.ndarray) -> np.ndarray:
        return np.vstack([self._own.T @ a, self._keep * (self._x.T @ a)])

    def remove(self, a: np.ndarray) -> np.ndarray:
        """(n, w) a minus its projection."""
        own, rest = np.split(self._inverse @ self._against(a), [self._own.shape[1]])
        fitted = self._x @ (self._keep * rest)
        fitted += self._own @ own
        return np.subtract(a, fitted, out=fitted)

    def where_moving(self, prediction: np.ndarray) -> Projection:
        """For a target whose fit on z is `prediction` (n, w): also projects out what is linear in z where it moves.

        In those rows the fit of x on z, made for all rows, may err by more than on average, and the target's own
        residuals are largest. The columns are weighted by a = |prediction| and by a^2, which are 0 where the target
        does not move.
        """
        size = np.sqrt((prediction**2).sum(1, keepdims=True))
        fit = self._own[:, 1 : 1 + self._own.shape[1] // 2]
        kept = np.flatnonzero(self._keep)
        columns = np.empty((len(prediction), prediction.shape[1] + 2 * (1 + len(kept) + fit.shape[1])))
        columns[:, : prediction.shape[1]] = prediction
        once, twice = np.split(columns[:, prediction.shape[1] :], 2, axis=1)
        once[:, :1] = size
        np.multiply(self._x[:, kept], size, out=once[:, 1 : 1 + len(kept)])
        np.multiply(fit, size, out=once[:, 1 + len(kept) :])
        np.multiply(once, size, out=twice)
        return Projection(self.remove(columns))


class Projection:
    """Projects given columns (n, k) out of residuals."""

    def __init__(self, columns: np.ndarray):
        gram = columns.T @ columns / len(columns)
        scale = np.maximum(np.sqrt(np.diag(gram)), 1e-12)
        self._inverse = np.linalg.pinv(gram / np.outer(scale, scale), rcond=1e-8, hermitian=True)
        self._inverse /= len(columns) * np.outer(scale, scale)
        self._columns = columns

    def remove(self, a: np.ndarray) -> np.ndarray:
        """(n, w) a minus its projection."""
        return a - self._columns @ (self._inverse @ (self._columns.T @ a))


def covariance_test(rx: np.ndarray, ry: np.ndarray, starts: np.ndarray) -> tuple[float, float]:
    """Student's t of the episodes' sums of r_x r_y, for the pair of columns where it is largest, and its p-value.

    The residuals are (n, columns), `starts` are the first rows of the episodes. The p-value is Bonferroni's over the
    pairs of columns.
    """
    products = (rx[:, :, None] * ry[:, None, :]).reshape(len(rx), -1)
    sums = np.add.reduceat(products, starts)
    g, spread = len(sums), sums.std(0, ddof=1)
    t = np.divide(sums.mean(0) * np.sqrt(g), spread, out=np.zeros_like(spread), where=spread > 0)
    best = float(np.abs(t).max())
    return best, float(min(1.0, 2 * stats.t.sf(best, g - 1) * len(t)))


def projected_test(
    direction: np.ndarray, ry: np.ndarray, starts: np.ndarray, folds: tuple[slice, ...]
) -> tuple[float, float]:
    """z and one-sided p-value of E[g r_y] > 0, where g (`direction`) of fold k was learned on the other folds.

    Both arrays are (n, w), `starts` are the first rows of the episodes. In fold k Student's t of the episodes' sums has
    its distribution given the other folds, and becomes z_k, the standard normal number with the same p-value (a sum
    normalised by its own squares could not exceed the square root of the number of episodes). The z_k of different
    folds are dependent: fold k tests what was learned from fold l and the reverse, which doubles the variance of their
    total (as in any degenerate U-statistic). Hence the division by sqrt(2 K), not sqrt(K).

    With fewer than `EPISODES_PER_FOLD` episodes in a fold the tails of t are not to be trusted, and p is 1.
    """
    scale = (ry**2).mean(0)
    direction = np.concatenate([direction[f] - direction[f].mean(0) for f in folds])
    sums = np.add.reduceat((direction * ry / np.where(scale > 0, scale, 1)).sum(1), starts)
    fold = np.searchsorted([f.stop for f in folds], starts, side="right")
    count = np.bincount(fold, minlength=len(folds))
    if count.min() < EPISODES_PER_FOLD:
        return 0.0, 1.0
    mean = np.bincount(fold, sums, len(folds)) / count
    spread = np.sqrt(np.bincount(fold, (sums - mean[fold]) ** 2, len(folds)) / (count - 1))
    t = np.divide(mean * np.sqrt(count), spread, out=np.zeros_like(mean), where=spread > 0)
    z = np.where(t > 0, stats.norm.isf(stats.t.sf(t, count - 1)), stats.norm.ppf(stats.t.cdf(t, count - 1)))
    combined = float(np.clip(z, -30, 30).sum() / np.sqrt(2 * len(folds)))
    return combined, float(stats.norm.sf(combined))


def covariance_share(rx: np.ndarray, ry: np.ndarray) -> float:
    """The share of r_y's variance that is linear in r_x, of the pair of columns where it is largest.

    >>> covariance_share(np.array([[1.0], [-1.0]]), np.array([[2.0], [-2.0]]))
    1.0
    """
    variance = np.outer((rx**2).mean(0), (ry**2).mean(0))
    return float(np.divide((rx.T @ ry / len(rx)) ** 2, variance, out=np.zeros_like(variance), where=variance > 0).max())


def detectable_effect(
    rx: np.ndarray, ry: np.ndarray, starts: np.ndarray, level: float, entropy: float | None = None
) -> float:
    """The least share of r_y's variance that x would have to explain to be seen at this level with probability .8.

    From the tests' own variance: with s the standard error of the mean of r_x r_y between episodes, a covariance of
    (c + .84) s is seen with probability .8, c being the critical value. The share is its square over the product of
    the variances, the median over pairs of columns. `entropy` is that of a discrete target (see `least_share`).

    1, all of it, where there are too few episodes for the projected test.

    >>> rng = np.random.default_rng(0)
    >>> rx, ry = rng.normal(size=(2, 4000, 1))
    >>> round(detectable_effect(rx, ry, np.arange(4000), 1e-4), 3)
    0.013
    """
    groups, n, pairs = len(starts), len(rx), rx.shape[1] * ry.shape[1]
    if groups < FOLDS * EPISODES_PER_FOLD:
        return 1.0
    products = (rx[:, :, None] * ry[:, None, :]).reshape(n, -1)
    error = np.add.reduceat(products, starts).std(0, ddof=1) * np.sqrt(groups) / n
    variance = np.outer((rx**2).mean(0), (ry**2).mean(0)).reshape(-1)
    share = np.divide(error**2, variance, out=np.ones_like(variance), where=variance > 1e-24)
    return least_share(float(np.median(share)), kurtosis(ry), n, critical_values(level, pairs, groups), entropy)


def kurtosis(ry: np.ndarray) -> float:
    """Of residuals (n, w), the median over columns; 3 if they are normal."""
    return float(np.median((ry**4).mean(0) / np.maximum((ry**2).mean(0) ** 2, 1e-300)))


def least_share(
    noise: float, tails: float, n: int, critical: tuple[float, float], entropy: float | None = None
) -> float:
    """The least effect that both tests would have shown.

    Dependence that averages out has to be seen by the projected test, whose critical value is larger, and which the
    dependence between its folds costs a factor of sqrt(2). It may lie where r_y is large: of n rows 3 n / kurtosis
    count, which is n for a normal r_y and three times the number of events for an event that is rare.

    For a discrete target a share of its entropy, as in the G-test, if that is smaller: z standard errors are z^2 / 2
    nats of likelihood, wherever in the rows they lie, and the n rows have n times `entropy`. A rare event has little
    variance that could be explained, but much entropy.

    Args:
        noise: squared standard error of the covariance, over the variances.
        tails: kurtosis of r_y.
        n: rows.
        critical: of `critical_values`.
        entropy: nats per row of a discrete target, given its own last value; None if it is continuous.
    """
    linear, projected = critical
    share = max(noise * linear**2, tails / 3 / n * projected**2)
    if entropy:
        share = min(share, max(n * noise * linear**2, projected**2) / 2 / (n * entropy))
    return min(1.0, share)


def largest_effect(p: float, detectable: float, level: float) -> float:
    """The upper end of the one-sided 95% interval of an effect with this p-value.

    Effects grow with the square of z. The one that is detectable at `level` has its z at critical value + .84, so with
    the z of p the interval ends at ((z + 1.64) / (critical value + .84))^2 times as much.

    >>> round(largest_effect(0.5, 0.02, 1e-4), 4), round(largest_effect(0.001, 0.02, 1e-4), 4)
    (0.0048, 0.0218)
    """
    z, critical = stats.norm.isf(np.array([p, level]) / 2)
    return float(detectable * ((z + CONFIDENCE) / (critical + POWER)) ** 2)


def critical_values(level: float, pairs: int, groups: int) -> tuple[float, float]:
    """What the covariance test and the projected test need to be significant at this level with probability .8.

    In standard errors, for so many pairs of columns and episodes.
    """
    linear = stats.t.isf(level * COVARIANCE_PART / 2 / pairs, groups - 1) + POWER
    projected = np.sqrt(2) * (stats.norm.isf(level * (1 - COVARIANCE_PART)) + POWER)
    return float(linear), float(projected)


def combine(p_covariance: float, p_projected: float) -> float:
    """The p-value of both tests together, valid however they depend on one another (weighted Bonferroni).

    >>> round(combine(0.009, 0.5), 6)
    0.01
    """
    return min(1.0, p_covariance / COVARIANCE_PART, p_projected / (1 - COVARIANCE_PART))
