"""Other people's methods for the graph of logged transitions, where they are installed, on the same rows as ours.

- PCMCI with partial correlation (tigramite): lag 1, level .01.
- Lasso (scikit-learn): the largest penalty within a standard error of the best, folds of whole episodes.
- Boosted trees (scikit-learn): the loss of held-out R^2 when a column is permuted. On one thread: on a busy machine
  its threads spend their time waiting for each other.
- VARLiNGAM (lingam): one lag, with its own pruning.

They need an environment of their own. In a checkout::

    python3 -m venv peers && . peers/bin/activate
    pip install --no-deps -r requirements.lock && pip install --no-deps --no-build-isolation -e .
    pip install --no-deps scikit-learn joblib threadpoolctl narwhals tigramite six lingam statsmodels patsy graphviz \\
        semopy sympy mpmath pygam progressbar psy autograd
    python -m benchmarks systems --keep work/systems --method because --method lasso
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import Factor
from because_rl.transitions import Transitions

GraphPeer = Callable[[Transitions, int], np.ndarray]
"""(transitions, seed) -> (inputs, targets) bool: the edges that the method reports"""

LEVEL = 0.01
"""of PCMCI's tests, as in its tutorials"""
LEAST_LOSS = 0.01
"""of R^2, that permuting an input of boosted trees must cause"""
FOLDS, REPEATS = 5, 5
"""of the lasso's cross-validation, and permutations of each column"""


def pcmci(data: Transitions, seed: int = 0) -> np.ndarray:
    """PCMCI with ParCorr; each episode is a series of its own, of states and of the actions taken in them.

    The last state of an episode has no action; its row repeats the one before, which no state follows.
    """
    from tigramite.data_processing import DataFrame  # type: ignore[import-not-found]
    from tigramite.independence_tests.parcorr import ParCorr  # type: ignore[import-not-found]
    from tigramite.pcmci import PCMCI  # type: ignore[import-not-found]

    starts = np.flatnonzero(np.append(True, data.episode[1:] != data.episode[:-1]))
    series = {}
    for number, rows in enumerate(np.split(np.arange(len(data)), starts[1:])):
        states = np.vstack([data.state[rows], data.next_state[rows[-1:]]])
        actions = np.vstack([data.action[rows], data.action[rows[-1:]]])
        series[number] = np.hstack([states, actions]).astype(np.float64)
    frame = DataFrame(series, analysis_mode="multiple")
    result = PCMCI(frame, ParCorr(), verbosity=0).run_pcmci(tau_min=1, tau_max=1, pc_alpha=None)
    return by_factor(data, result["p_matrix"][:, : data.state.shape[1], 1] < LEVEL)


def lasso(data: Transitions, seed: int = 0) -> np.ndarray:
    """Columns with a coefficient, in the regression of each column's change on all standardised inputs."""
    from sklearn.linear_model import Lasso, LassoCV  # type: ignore[import-not-found]
    from sklearn.model_selection import GroupKFold  # type: ignore[import-not-found]

    x, change = _standard(np.hstack([data.state, data.action])), _standard(data.next_state - data.state)
    edges = np.zeros((x.shape[1], change.shape[1]), bool)
    folds = list(GroupKFold(FOLDS).split(x, groups=data.episode))
    for j, y in enumerate(change.T):
        if not y.any():
            continue
        path = LassoCV(cv=folds, alphas=50).fit(x, y)
        error, spread = path.mse_path_.mean(1), path.mse_path_.std(1, ddof=1) / np.sqrt(FOLDS)
        best = int(error.argmin())
        alpha = path.alphas_[error <= error[best] + spread[best]].max()
        edges[:, j] = Lasso(alpha=alpha).fit(x, y).coef_ != 0
    return by_factor(data, edges)


def boosted_trees(data: Transitions, seed: int = 0) -> np.ndarray:
    """Columns whose permutation lowers R^2 in the held-out third of the episodes by .01 and by two deviations."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-not-found]
    from sklearn.inspection import permutation_importance  # type: ignore[import-not-found]
    from threadpoolctl import threadpool_limits  # type: ignore[import-not-found]

    x, change = np.hstack([data.state, data.action]), data.next_state - data.state
    edges, held_out = np.zeros((x.shape[1], change.shape[1]), bool), data.episode % 3 == 2
    for j, y in enumerate(change.T):
        if not np.ptp(y):
            continue
        with threadpool_limits(1):
            model = HistGradientBoostingRegressor(random_state=seed % 2**32).fit(x[~held_out], y[~held_out])
            loss = permutation_importance(
                model, x[held_out], y[held_out], n_repeats=REPEATS, random_state=seed % 2**32, scoring="r2"
            )
        edges[:, j] = loss.importances_mean > np.maximum(LEAST_LOSS, 2 * loss.importances_std)
    return by_factor(data, edges)


def var_lingam(data: Transitions, seed: int = 0) -> np.ndarray:
    """VARLiNGAM with one lag; it takes one series, so the episodes follow each other without a gap."""
    from lingam import VARLiNGAM  # type: ignore[import-not-found]

    states, series = data.state.shape[1], np.hstack([data.state, data.action])
    varying = np.flatnonzero(np.ptp(series, axis=0) > 0)
    model = VARLiNGAM(lags=1, criterion=None, prune=True, random_state=seed % 2**32).fit(_standard(series[:, varying]))
    edges = np.zeros((series.shape[1], series.shape[1]), bool)
    edges[np.ix_(varying, varying)] = model.adjacency_matrices_[1].T != 0
    return by_factor(data, edges[:, :states])


PEERS: dict[str, tuple[GraphPeer, str, str]] = {
    "pcmci": (pcmci, "tigramite.independence_tests.parcorr", "tigramite"),
    "lasso": (lasso, "sklearn.linear_model", "scikit-learn"),
    "trees": (boosted_trees, "sklearn.ensemble", "scikit-learn"),
    "varlingam": (var_lingam, "lingam", "lingam"),
}
"""Name -> method, the module that it needs, and the package of this module"""


def require(name: str) -> GraphPeer:
    """The method of this name; an error that says what to install if its package is missing."""
    method, module, package = PEERS[name]
    try:
        import_module(module)
    except ImportError as error:
        raise BecauseError(
            f"{name} needs {package}, which cannot be imported ({error}).",
            need="the other methods in an environment of their own.",
            fix="make one as the docstring of benchmarks/discovery/graph_peers.py says, or leave the method out.",
        ) from error
    return method


def versions() -> dict[str, str]:
    """Package -> version, of the packages that are installed."""
    return {package: version(package) for _, module, package in PEERS.values() if find_spec(module.split(".")[0])}


def by_factor(data: Transitions, columns: np.ndarray) -> np.ndarray:
    """(input columns, state columns) -> (inputs, targets): an edge between factors is one between any columns."""
    state, action, offset = data.factors.state, data.factors.action, data.state.shape[1]

    def start(factor: Factor) -> int:
        return factor.start if factor in state else offset + factor.start

    return np.array(
        [[columns[start(i) : start(i) + i.width, j.slice].any() for j in state] for i in (*state, *action)], bool
    )


def _standard(values: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and variance 1, float64; constant ones stay 0."""
    centred = np.asarray(values, np.float64) - values.mean(0)
    return centred / np.where(np.ptp(values, axis=0) > 0, centred.std(0), 1)
