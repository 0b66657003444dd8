"""Confidence intervals that several stages need."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

Z95 = 1.959963984540054


def wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """95% interval of a share seen in n trials (Wilson's: right also at 0 and 1).

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

    >>> [round(float(x), 3) for x in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    middle = share + Z95**2 / (2 * n)
    spread = Z95 * np.sqrt(np.maximum(share * (1 - share), 0.0) / n + Z95**2 / (4 * n * n))
    return (middle - spread) / (1 + Z95**2 / n), (middle + spread) / (1 + Z95**2 / n)


def t_interval(values: Any) -> tuple[float, float]:
    """95% interval of the mean of a few independent figures (Student's t); the mean itself when there is one.

    >>> [round(x, 3) for x in t_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
