"""Hidden causes that are constant in an episode: is there one, and how to test in spite of it.

Such a confounder u_c (a slope under all bodies of a scene, say) makes pooled tests accept false edges: the speed of one
body is informative about the slope, and so about the next speed of another. Differences within an episode do not depend
on constants. So where a target is shifted by something that is constant in episodes, every regression and every test of
this target uses deviations from the mean of the episode ("fixed effects"):

    y_t = f(x_t) + u + e_t    =>    y_t - mean(y) = f(x_t) - mean(f(x)) + e_t - mean(e).

The price is whatever varies only between episodes. So targets without such a shift are tested on all variation. There
is one if either of these holds for f, fitted on all variation:

- Analysis of variance of r = y - f(x) between episodes: F is significant, and the share of r's variance that is
  constant in episodes may be `LEAST_SHARE` or more (the upper end of its interval).
- f explains u through its proxies among the inputs, so that little is left in r. But then f predicts the deviations
  from the episode's mean worse than a regression that was fitted on them.

A smaller share cannot make an edge that counts, and errors of approximation have one too.

Assumptions: the effect of u on the next state is mostly a shift; several steps per episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from because_rl.discovery.regression.redundancy import SMALL

LEVEL = 0.1
"""p-value of F below which there may be a hidden cause: to miss one costs more than the power that caution costs."""
BIASED_LEVEL = 0.01
"""p-value below which a fit predicts deviations within episodes worse."""
LEAST_SHARE = 0.05
"""Of the variance of r, or of the deviations that f predicts worse."""


@dataclass(frozen=True)
class Variation:
    """What counts in an analysis: all variation, or only that within episodes, whose first rows are `starts`."""

    starts: np.ndarray | None = None

    def centre(self, a: np.ndarray) -> np.ndarray:
        """(n, w) a, or its deviations from the means of the episodes."""
        if self.starts is None:
            return a
        length = np.diff(np.r_[self.starts, len(a)])
        return a - np.repeat(np.add.reduceat(a, self.starts) / length[:, None], length, axis=0)

    def mean_square(self, a: np.ndarray) -> np.ndarray:
        """(w,) of what counts of a (n, w)."""
        return (self.centre(a) ** 2).mean(0)


def has_hidden_cause(pooled: np.ndarray, within: np.ndarray, starts: np.ndarray) -> bool:
    """Whether something constant in episodes shifts a target.

    Args:
        pooled: (n, w) residuals of the regression on all variation.
        within: (n, w) residuals of the regression on deviations within episodes.
        starts: the first rows of the episodes.

    >>> rng = np.random.default_rng(0)
    >>> u, noise = np.repeat(rng.normal(size=100), 10)[:, None], rng.normal(size=(1000, 1))
    >>> starts = np.arange(0, 1000, 10)
    >>> has_hidden_cause(0.5 * u + noise, 0.5 * u + noise, starts), has_hidden_cause(noise, noise, starts)
    (True, False)
    """
    return bool(_upper_share(pooled, starts) >= LEAST_SHARE or _biased(pooled, within, starts))


def _upper_share(residual: np.ndarray, starts: np.ndarray) -> float:
    """Upper end of the 90% interval of the share that is constant in episodes, of the column where it is largest.

    0 where F is not significant (Bonferroni over columns).
    """
    n, groups = len(residual), len(starts)
    length = np.diff(np.r_[starts, n])
    r = residual - residual.mean(0)
    between = (np.add.reduceat(r, starts) ** 2 / length[:, None]).sum(0)
    within = np.maximum((r**2).sum(0) - between, 1e-300) / (n - groups)
    ratio = between / (groups - 1) / within
    significant = stats.f.sf(ratio, groups - 1, n - groups) * r.shape[1] < LEVEL
    size = (n - (length**2).sum() / n) / (groups - 1)  # rows of an episode, where they differ
    upper = ratio / stats.f.ppf(0.05, groups - 1, n - groups)
    return float(np.where(significant, (upper - 1) / (upper - 1 + size), 0.0).max(initial=0.0))


def _biased(pooled: np.ndarray, within: np.ndarray, starts: np.ndarray) -> bool:
    """Whether `pooled` predicts deviations within episodes worse than `within`, in a column."""
    centre = Variation(starts).centre
    first, second = centre(pooled) ** 2, centre(within) ** 2
    excess = np.add.reduceat(first - second, starts)
    spread = excess.std(0, ddof=1)
    t = np.divide(excess.mean(0) * np.sqrt(len(starts)), spread, out=np.zeros_like(spread), where=spread > 0)
    p = stats.t.sf(t, len(starts) - 1) * len(t)
    loss = (first.mean(0) - second.mean(0)) / (first.mean(0) + SMALL)
    return bool(((p < BIASED_LEVEL) & (loss >= LEAST_SHARE)).any())
