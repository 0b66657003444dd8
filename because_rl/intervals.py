"""Confidence intervals that several stages need."""

from __future__ import annotations

from typing import Any

import numpy as np

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
