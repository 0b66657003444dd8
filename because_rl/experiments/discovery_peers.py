"""Other people's conditional-independence tests, where they are installed, for the comparison in one run.

``pip install causal-learn`` brings RCIT, KCI and Fisher's z; fcit depends on a dead name for scikit-learn:
``pip install scikit-learn joblib xlrd && pip install --no-deps fcit``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

PairTest = Callable[[np.ndarray, np.ndarray, np.ndarray, int], float]


def installed() -> dict[str, PairTest]:
    """Name -> (x, y, z, seed) -> p."""
    peers: dict[str, PairTest] = {}
    if find_spec("causallearn"):
        peers |= {
            "rcit (causal-learn)": _causal_learn("rcit"),
            "kci (causal-learn)": _causal_learn("kci"),
            "fisherz (causal-learn)": _causal_learn("fisherz"),
        }
    if find_spec("fcit"):
        peers["fcit (original)"] = _fcit
    return peers


def _causal_learn(method: str) -> PairTest:
    def run(x: np.ndarray, y: np.ndarray, z: np.ndarray, seed: int) -> float:
        from causallearn.utils.cit import CIT  # type: ignore[import-not-found]

        np.random.seed(seed % 2**32)  # noqa: NPY002  (these tests draw from NumPy's global stream)
        data = np.column_stack([x.reshape(len(x), -1)[:, :1], y.reshape(len(y), -1)[:, :1], z.reshape(len(z), -1)])
        return float(CIT(data, method)(0, 1, list(range(2, data.shape[1]))))

    return run


def _fcit(x: np.ndarray, y: np.ndarray, z: np.ndarray, seed: int) -> float:
    from fcit import fcit  # type: ignore[import-not-found]

    np.random.seed(seed % 2**32)  # noqa: NPY002
    columns = z.reshape(len(z), -1)
    given = columns if columns.shape[1] else None
    return float(fcit.test(x.reshape(len(x), -1), y.reshape(len(y), -1), given, verbose=False))
