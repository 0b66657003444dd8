"""Conditional-independence tests of other packages, where these are installed, for comparison in one run.

``pip install causal-learn`` provides RCIT, KCI, Fisher's z, G-square and chi-square. fcit depends on an obsolete name
of scikit-learn: ``pip install scikit-learn joblib xlrd && pip install --no-deps fcit``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

from because_rl.discovery.independence.gtest import row_codes

PairTest = Callable[[np.ndarray, np.ndarray, np.ndarray, int], float]
"""(x, y, z, seed) -> p-value"""

COUNTING = ("gsq (causal-learn)", "chisq (causal-learn)")
"""Tests for categorical data."""
MOST_ROWS = {"kci (causal-learn)": 1000}
"""Per test: KCI takes minutes for one p-value at n = 4,000 and does not fit in memory at 15,000."""


def installed() -> dict[str, PairTest]:
    """Name -> test, for the packages that are installed."""
    peers: dict[str, PairTest] = {}
    if find_spec("causallearn"):
        peers |= {f"{method} (causal-learn)": _CausalLearn(method) for method in ("rcit", "kci", "fisherz")}
        peers |= {name: _CausalLearn(name.split()[0], counts=True) for name in COUNTING}
    if find_spec("fcit"):
        peers["fcit (original)"] = _fcit
    return peers


def versions() -> dict[str, str]:
    """Versions of the packages of the installed tests."""
    packages = {"causallearn": "causal-learn", "fcit": "fcit", "sklearn": "scikit-learn"}
    return {package: version(package) for module, package in packages.items() if find_spec(module)}


class _CausalLearn:
    def __init__(self, method: str, counts: bool = False):
        self.method, self.counts = method, counts

    def __call__(self, x: np.ndarray, y: np.ndarray, z: np.ndarray, seed: int) -> float:
        from causallearn.utils.cit import CIT  # type: ignore[import-not-found]

        np.random.seed(seed % 2**32)  # noqa: NPY002  (these tests draw from NumPy's global stream)
        x, y, z = (a.reshape(len(a), -1) for a in (x, y, z))
        if self.counts:  # one-hot blocks become integer codes; all of z becomes one variable, which is equivalent
            data = np.column_stack([row_codes(a) for a in (x, y, z) if a.shape[1]])
        else:
            data = np.column_stack([x[:, :1], y[:, :1], z])
        return float(CIT(data, self.method)(0, 1, list(range(2, data.shape[1]))))


def _fcit(x: np.ndarray, y: np.ndarray, z: np.ndarray, seed: int) -> float:
    import joblib  # type: ignore[import-not-found]

    with joblib.parallel_config(backend="sequential"):  # starting processes takes longer than one p-value
        return fcit_as_shipped(x, y, z, seed)


def fcit_as_shipped(x: np.ndarray, y: np.ndarray, z: np.ndarray, seed: int) -> float:
    """The p-value of the original fcit as its authors ship it: on all cores, in processes of its own."""
    from fcit import fcit  # type: ignore[import-not-found]

    np.random.seed(seed % 2**32)  # noqa: NPY002
    columns = z.reshape(len(z), -1)
    given = columns if columns.shape[1] else None
    p = float(fcit.test(x.reshape(len(x), -1), y.reshape(len(y), -1), given, verbose=False))
    return 1.0 if np.isnan(p) else p  # 0 / 0 where no tree ever splits, with x or without
