"""The default test for continuous and mixed data: cross-fitted residuals, shared by all pairs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import stats

from because_rl.discovery.confounder import hidden_causes
from because_rl.discovery.engine import Budget, Engine
from because_rl.discovery.independence import Evidence, IndependenceTest, Variables
from because_rl.discovery.margins import Prepared, prepare
from because_rl.discovery.regression import Law

COVARIANCE_SHARE = 0.9
"""Of the level, for the covariance test; the rest is for the projected one."""
BORROW = 0.1
"""Weight of the metric of x given z in the metric of y given z: their errors must not line up."""
SMALL = 1e-4
"""Shares of variance of this order count as approximation error, not as effect."""


@dataclass(frozen=True)
class ResidualTest(IndependenceTest):
    folds: int = 5
    budget: Budget = Budget()
    redundant: float = 0.9
    gate: float = 0.03
    confounder: bool = True
    name: ClassVar[str] = "residual"
    least_n: ClassVar[int] = 100

    def settings(self) -> dict[str, Any]:
        return {"test": self.name, **asdict(self)}

    def decide(self, evidence: Evidence, alpha: float) -> np.ndarray:
        """Edges: significant and not negligible, or beyond what the data can tell."""
        return ((evidence.p < alpha) & (evidence.effect > self.gate)) | evidence.untestable

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        data = prepare(variables, self.folds, seed)
        x = np.hstack([data.x, hidden_causes(data, self.budget, seed)]) if self.confounder else data.x
        engine = Engine(x, data.folds, self.budget, seed)
        sources = _sources(data, engine)
        shape = (len(data.inputs), len(data.targets))
        found = [np.full(shape, default) for default in (1.0, 0.0, 0.0)]
        untestable, why = np.zeros(shape, bool), {}
        for j, target in enumerate(data.targets):
            _against(engine, data, sources, j, found)
        out = [np.empty_like(a) for a in (*found, untestable)]
        for to, a in zip(out, (*found, untestable), strict=True):
            to[np.ix_(data.input_place, data.target_place)] = a
        return Evidence(*out, why)


class _Sources(NamedTuple):
    """Of each input: its metric, what to project out of residuals, and its own residual."""

    keep: list[np.ndarray]
    law: list[Law]
    basis: list[_Basis]
    residual: list[np.ndarray]
    plug: np.ndarray
    """(n, p): each column as the other inputs predict it"""


def _sources(data: Prepared, engine: Engine) -> _Sources:
    x = engine.x
    keeps = []
    for columns in data.columns:
        keep = np.ones(x.shape[1])
        keep[columns] = 0
        keeps.append(keep)
    problems = [
        engine.problem(f"input {f.name}", x[:, c], keep)
        for f, c, keep in zip(data.inputs, data.columns, keeps, strict=True)
    ]
    laws = engine.learn(problems)
    guesses = [guess for _, guess in engine.cross_fit(problems, laws)]
    plug = np.zeros_like(x)
    for columns, guess in zip(data.columns, guesses, strict=True):
        plug[:, columns] = guess
    bases = [_Basis(x[:, keep > 0], guess) for keep, guess in zip(keeps, guesses, strict=True)]
    residuals = [b.remove(p.target - g) for b, p, g in zip(bases, problems, guesses, strict=True)]
    return _Sources(keeps, laws, bases, residuals, plug)


def _against(engine: Engine, data: Prepared, sources: _Sources, j: int, found: list[np.ndarray]) -> None:
    """Test every input against target j."""
    target = data.targets[j]
    y = target.level if target.change is None else target.change
    others = [i for i in range(len(data.inputs)) if i != target.own]
    if y.shape[1]:
        problem = engine.problem(f"target {target.factor.name}", y, np.ones(engine.x.shape[1]))
        law = engine.learn([problem])[0]
        fit, full = engine.cross_fit([problem], [law])[0]
        problems = [problem._replace(keep=sources.keep[i]) for i in others]
        laws = [law._replace(metric=law.metric + BORROW * sources.law[i].metric) for i in others]
        for i, (reduced, plugged) in zip(others, engine.reduce(problems, laws, fit, sources.plug), strict=True):
            _compare(data, sources, i, j, y, full, reduced, plugged, found)
    if target.own is not None and target.level.shape[1]:
        # The last value cannot be told from the change, so here the level is tested, predicted as last value + change.
        i, columns = target.own, data.columns[target.own]
        law_of_own = sources.law[i]
        level = engine.problem(f"level {target.factor.name}", target.level, sources.keep[i])
        full_level = engine.x[:, columns] @ target.persist
        plugged_level = sources.plug[:, columns] @ target.persist
        metric = sources.law[i].metric
        if y.shape[1]:
            plugged = engine.predict(fit, np.where(sources.keep[i] > 0, engine.x, sources.plug))
            full_level, plugged_level = full_level + full @ target.gain, plugged_level + plugged @ target.gain
            metric = metric + law.metric
        reduced = engine.cross_fit([level], [law_of_own._replace(metric=metric)])[0][1]
        _compare(data, sources, i, j, target.level, full_level, reduced, plugged_level, found)


def _compare(
    data: Prepared,
    sources: _Sources,
    i: int,
    j: int,
    y: np.ndarray,
    full: np.ndarray,
    reduced: np.ndarray,
    plugged: np.ndarray,
    found: list[np.ndarray],
) -> None:
    pvalue, statistic, effect = found
    ry, error = y - reduced, ((y - full) ** 2).mean(0)
    t, p_covariance = _covariance(sources.residual[i], ry, data.starts)
    z, p_projected = _projected(sources.basis[i].remove(full - plugged), ry, data.starts, data.folds)
    pvalue[i, j] = min(1.0, p_covariance / COVARIANCE_SHARE, p_projected / (1 - COVARIANCE_SHARE))
    statistic[i, j] = max(abs(t), z)
    without = np.minimum((ry**2).mean(0), ((y - plugged) ** 2).mean(0))
    effect[i, j] = np.clip((without - error) / (without + SMALL), 0, 1).max()


class _Basis:
    """What is linear in z, and the fit of x with its square: projected out of residuals once more.

    A penalised fit errs most along itself; without this step the errors of x given z and of y given z
    line up and look like dependence.
    """

    def __init__(self, z: np.ndarray, fit: np.ndarray):
        self._b = np.hstack([np.ones((len(z), 1)), z, fit, fit * fit])
        self._inverse = np.linalg.pinv(self._b.T @ self._b / len(z), rcond=1e-10, hermitian=True) / len(z)

    def remove(self, a: np.ndarray) -> np.ndarray:
        return a - self._b @ (self._inverse @ (self._b.T @ a))


def _covariance(rx: np.ndarray, ry: np.ndarray, starts: np.ndarray) -> tuple[float, float]:
    products = (rx[:, :, None] * ry[:, None, :]).reshape(len(rx), -1)
    sums = np.add.reduceat(products, starts)
    g = len(sums)
    spread = sums.std(0, ddof=1)
    t = np.divide(sums.mean(0) * np.sqrt(g), spread, out=np.zeros_like(spread), where=spread > 0)
    best = t[np.argmax(np.abs(t))]
    return float(best), float(min(1.0, 2 * stats.t.sf(abs(best), g - 1) * len(t)))


def _projected(
    direction: np.ndarray, ry: np.ndarray, starts: np.ndarray, folds: tuple[slice, ...]
) -> tuple[float, float]:
    scale = (ry**2).mean(0)
    scale[scale == 0] = 1
    direction = np.concatenate([direction[f] - direction[f].mean(0) for f in folds])
    sums = np.add.reduceat((direction * ry / scale).sum(1), starts)
    fold = np.searchsorted([f.stop for f in folds], starts, side="right")
    total, square = np.bincount(fold, sums, len(folds)), np.bincount(fold, sums**2, len(folds))
    z = np.divide(total, np.sqrt(square), out=np.zeros_like(total), where=square > 0)
    combined = float(z.sum() / np.sqrt(2 * len(folds)))
    return combined, float(stats.norm.sf(combined))
