"""Confidence intervals, and tests of whether one set of runs is better than another.

`scores` are runs grouped by task: one array per task, one number per run (seed). The bootstrap is stratified: runs are
resampled within their task only. The same seed gives the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from because_rl.errors import BecauseError
from because_rl.rng import stream

Alternative = Literal["greater", "less", "two-sided"]
"""The alternative hypothesis: the first mean is greater than the second, less, or different."""
Scores = Sequence[Any]

"""One array of numbers per task."""

RESAMPLES = 2000
Z95 = 1.959963984540054


class Estimate(NamedTuple):
    """A value and its 95% interval."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A difference of two means, its two-sided 95% interval, and the t-test of its being 0."""

    value: float
    low: float
    high: float
    t: float
    dof: float
    p: float


# Intervals -----------------------------------------------------------------------------------------------


def wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """Wilson's 95% interval (low, high) of a share observed in n trials, valid at 0 and 1 too. Broadcasts.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

    >>> [round(float(x), 3) for x in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    middle = share + Z95**2 / (2 * n)
    spread = Z95 * np.sqrt(np.maximum(share * (1 - share), 0.0) / n + Z95**2 / (4 * n * n))
    return (middle - spread) / (1 + Z95**2 / n), (middle + spread) / (1 + Z95**2 / n)


def t_interval(values: Any) -> tuple[float, float]:
    """95% interval (low, high) of the mean of independent values (Student's t); the value itself when there is one.

    >>> [round(x, 3) for x in t_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def stratified_t_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95% interval (low, high) of the mean over fixed groups of their means, of independent values in each.

    The variance is that within the groups, each its own; the degrees of freedom are those of all groups together. The
    mean itself where no group has two values.

    >>> [round(x, 3) for x in stratified_t_interval([[1.0, 3.0], [11.0, 13.0]])]
    [3.958, 10.042]
    """
    means = [float(np.mean(group)) for group in groups]
    middle, dof = float(np.mean(means)), sum(len(group) - 1 for group in groups)
    if not dof:
        return middle, middle
    variance = sum(np.var(group, ddof=1) / len(group) for group in groups if len(group) > 1) / len(groups) ** 2
    half = float(stats.t.ppf(0.975, dof) * np.sqrt(variance))
    return middle - half, middle + half


# Means -------------------------------------------------------------------------------------------------


def mean(values: Any) -> Estimate:
    """The mean of (n,) values with Student's t-interval.

    >>> [round(x, 3) for x in mean([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    return Estimate(float(np.mean(_runs(values, 1))), *t_interval(values))


def iqm(values: Any, axis: int = -1) -> Any:
    """Interquartile mean: the mean without the lowest and the highest quarter (rounded down).

    >>> float(iqm([0, 1, 2, 3, 4, 5, 6, 100]))
    3.5
    """
    return stats.trim_mean(np.asarray(values, float), 0.25, axis=axis)


def iqm_interval(scores: Scores, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Interquartile mean of all runs of all tasks, with a stratified bootstrap interval (Agarwal et al. 2021)."""
    resampled = np.concatenate(_resample(scores, stream(seed, "bootstrap", "iqm"), resamples), axis=1)
    return Estimate(float(iqm(np.concatenate(_strata(scores)))), *_percentile_interval(iqm(resampled)))


# Two sets ----------------------------------------------------------------------------------------------


def welch(a: Any, b: Any, alternative: Alternative = "two-sided") -> Difference:
    """Welch's t-test of mean(a) - mean(b), for a (n_a,) and b (n_b,), not assuming equal variances.

    t = (mean a - mean b) / sqrt(s_a^2 / n_a + s_b^2 / n_b), with as many degrees of freedom as
    (s_a^2 / n_a + s_b^2 / n_b)^2 / ((s_a^2 / n_a)^2 / (n_a - 1) + (s_b^2 / n_b)^2 / (n_b - 1)).
    """
    a, b = _runs(a, 2), _runs(b, 2)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    weights = np.array([1 / (len(a) - 1), 1 / (len(b) - 1)])
    share = parts / parts.sum() if parts.sum() > 0 else np.array([0.5, 0.5])  # squares of tiny ones would underflow
    return _student(
        float(a.mean() - b.mean()), float(np.sqrt(parts.sum())), float(1 / (share**2 @ weights)), alternative
    )


def paired_t_test(a: Any, b: Any, alternative: Alternative = "two-sided") -> Difference:
    """Student's t-test on the differences a - b of pairs, (n,) each."""
    a, b = _runs(a, 2), _runs(b, 2)
    if len(a) != len(b):
        raise BecauseError(
            f"Got {len(a)} and {len(b)} values.", need="pairs.", fix="give two lists of the same length."
        )
    d = a - b
    return _student(float(d.mean()), float(d.std(ddof=1) / np.sqrt(len(d))), float(len(d) - 1), alternative)


def paired_by_layout(a: Any, b: Any, alternative: Alternative = "two-sided") -> Difference:
    """Compare two methods in the same scenes (layouts): outcomes (seeds, scenes), whose numbers of seeds may differ.

    d_j = mean over seeds of a in scene j - mean over seeds of b in scene j; then Student's t-test on d over scenes.
    A scene's difficulty for both methods cancels. The test generalises to other scenes for these trained seeds;
    Welch's test over seeds generalises to other seeds in these scenes. Where one set has more scenes, the first ones
    are paired.
    """
    a, b = (np.atleast_2d(np.asarray(x, float)) for x in (a, b))
    scenes = min(a.shape[1], b.shape[1])
    return paired_t_test(a[:, :scenes].mean(0), b[:, :scenes].mean(0), alternative)


def leads_over_first(values: Any) -> list[Difference]:
    """Of settings that were all tried on the same data: the lead of each but the first over the first.

    One-sided t-tests of a two-way analysis of variance within each task, whose noise is pooled. With values
    y (settings, tasks, datasets), at least 2, 1 and 2 of them, the noise of setting i on dataset k of task j is

        r_ijk = y_ijk - mean_k y_ijk - mean_i y_ijk + mean_ik y_ijk,

    its variance s^2 = sum r^2 / (J (I - 1) (K - 1)), and the standard error of a lead sqrt(2 s^2 / (J K)). What differs
    between tasks, also how much a setting helps there, is no noise.
    """
    values = np.asarray(values, float)
    settings, tasks, datasets = values.shape
    _runs(values.ravel(), 1)
    both = values - values.mean(2, keepdims=True)
    noise, dof = both - both.mean(0), tasks * (settings - 1) * (datasets - 1)
    error = float(np.sqrt(2 * (noise**2).sum() / dof / (tasks * datasets)))
    means = values.mean((1, 2))
    return [_student(float(value - means[0]), error, float(dof), "greater") for value in means[1:]]


def probability_of_improvement(a: Scores, b: Scores, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Probability that a run of a beats a run of b on the same task, ties counting half; the mean over tasks.

    P = mean over tasks of mean_ij ([a_i > b_j] + [a_i = b_j] / 2), which is Mann and Whitney's U / (n_a n_b).
    """
    if len(a) != len(b):
        raise BecauseError(f"Got {len(a)} and {len(b)} tasks.", need="the same tasks.", fix="leave out unmatched ones.")

    def beats(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(..., runs of a) and (..., runs of b) -> (...); by ranks, which takes no memory for pairs of runs."""
        n, m = x.shape[-1], y.shape[-1]
        ranks = stats.rankdata(np.concatenate([x, y], -1), axis=-1)[..., :n]
        return (ranks.sum(-1) - n * (n + 1) / 2) / (n * m)

    rng = stream(seed, "bootstrap", "improvement")
    resampled = [beats(*pair) for pair in zip(_resample(a, rng, resamples), _resample(b, rng, resamples), strict=True)]
    point = np.mean([beats(*pair) for pair in zip(_strata(a), _strata(b), strict=True)])
    return Estimate(float(point), *_percentile_interval(np.mean(resampled, 0)))


def mann_whitney(a: Any, b: Any, alternative: Alternative = "two-sided") -> tuple[float, float]:
    """U of `a`, and its p-value (exact for small sets without ties)."""
    u, p = stats.mannwhitneyu(_runs(a, 1), _runs(b, 1), alternative=alternative)
    return float(u), float(p)


def wasserstein(a: Any, b: Any) -> float:
    """Wasserstein-1 distance of two samples: the area between their distribution functions."""
    return float(stats.wasserstein_distance(_runs(a, 1), _runs(b, 1)))


# Many --------------------------------------------------------------------------------------------------


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values: rejecting those at most .05 keeps the family-wise error rate at .05.

    The k-th smallest of m becomes the largest of (m - i + 1) p_(i) over i <= k, at most 1.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate((len(values) - np.arange(len(values))) * values[order])
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def performance_profile(
    scores: Scores, taus: Sequence[float], seed: int = 0, resamples: int = RESAMPLES
) -> list[Estimate]:
    """For each tau the share of runs, over all tasks, that score above it, with stratified bootstrap intervals."""
    pooled = np.concatenate(_strata(scores))
    resampled = np.concatenate(_resample(scores, stream(seed, "bootstrap", "profile"), resamples), axis=1)
    return [Estimate(float((pooled > tau).mean()), *_percentile_interval((resampled > tau).mean(1))) for tau in taus]


def log_slope(x: Any, values: Any, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Exponent b of the power law mean ~ x^b: the least squares slope of log mean against log x.

    The interval is of a bootstrap over repetitions, which are resampled for all x at once. Points whose mean is 0 are
    left out; where less than two remain there is no slope (nan).

    Args:
        x: (K,) positive.
        values: (K, R) for R repetitions; or (K, C, R), of which the largest of the C means counts.

    >>> log_slope([1, 10, 100], [[2.0, 4.0], [20.0, 40.0], [200.0, 400.0]]).value
    1.0
    """
    values, logs = np.asarray(values, float), np.log(np.asarray(x, float))
    values = values.reshape(len(logs), -1, values.shape[-1])
    repetitions = values.shape[-1]
    weights = _resampling_weights(seed, repetitions, resamples)
    slopes = _slopes(logs, (values @ weights / repetitions).max(1))
    known = slopes[~np.isnan(slopes)]
    if np.isnan(slopes[0]):
        return Estimate(float("nan"), float("nan"), float("nan"))
    return Estimate(round(float(slopes[0]), 12), *_percentile_interval(known[1:] if len(known) > 1 else known))


@cache
def _resampling_weights(seed: int, repetitions: int, resamples: int) -> np.ndarray:
    """How often each repetition is drawn, (repetitions, 1 + resamples); each once in the first column."""
    picks = stream(seed, "bootstrap", "slope").integers(0, repetitions, (resamples, repetitions))
    drawn = [np.bincount(pick, minlength=repetitions) for pick in picks]
    return np.stack([np.ones(repetitions), *drawn], -1)


def _slopes(logs: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Least squares slopes of log means (K, B) against logs (K,), over the points whose mean is positive: (B,)."""
    used = means > 0
    y, n = np.log(np.where(used, means, 1.0)), np.maximum(used.sum(0), 1)
    x = np.where(used, logs[:, None] - (used * logs[:, None]).sum(0) / n, 0.0)
    squares = (x**2).sum(0)
    return np.where(used.sum(0) > 1, (x * y).sum(0) / np.where(squares > 0, squares, 1.0), np.nan)


# Shared ------------------------------------------------------------------------------------------------


def _student(difference: float, error: float, dof: float, alternative: Alternative) -> Difference:
    """The t-test of a difference with this standard error.

    With a standard error of 0, t is infinite where there is a difference, and 0 (no evidence) where there is none.
    """
    t = difference / error if error > 0 else float(np.sign(difference) * np.inf) if difference else 0.0
    upper = float(stats.t.sf(t, dof))
    tails = {"greater": upper, "less": float(stats.t.cdf(t, dof)), "two-sided": 2 * float(stats.t.sf(abs(t), dof))}
    if alternative not in tails:
        raise BecauseError(f"Got {alternative!r}.", need=f"one of {', '.join(tails)}.", fix="pass one of them.")
    half = float(stats.t.ppf(0.975, dof)) * error
    return Difference(difference, difference - half, difference + half, t, dof, tails[alternative])


def _runs(values: Any, least: int) -> np.ndarray:
    """(n,) float; anything but at least `least` finite numbers is refused."""
    values = np.asarray(values, float)
    if values.ndim != 1 or len(values) < least or not np.isfinite(values).all():
        raise BecauseError(
            f"Got an array of shape {values.shape}{'' if np.isfinite(values).all() else ', not all of it finite'}.",
            need=f"at least {least} finite number{'s' if least > 1 else ''}, one for each run.",
            fix="train more seeds, or leave this comparison out.",
        )
    return values


def _strata(scores: Scores) -> list[np.ndarray]:
    if not len(scores):
        raise BecauseError("Got no task.", need="the runs of at least one.", fix="give one list of numbers per task.")
    return [_runs(runs, 1) for runs in scores]


def _resample(scores: Scores, rng: np.random.Generator, times: int) -> list[np.ndarray]:
    """For each task (times, runs): its runs, resampled with replacement."""
    return [runs[rng.integers(0, len(runs), (times, len(runs)))] for runs in _strata(scores)]


def _percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95% of bootstrap values (n,)."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
