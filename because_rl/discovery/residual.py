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
            change = target.level if target.change is None else target.change
            others = [i for i in range(shape[0]) if i != target.own]
            _against(engine, data, sources, f"change of {target.factor.name}", change, others, j, found)
            if target.own is not None:
                _against(engine, data, sources, f"level of {target.factor.name}", target.level, [target.own], j, found)
        out = [np.empty_like(a) for a in (*found, untestable)]
        for to, a in zip(out, (*found, untestable), strict=True):
            to[np.ix_(data.input_place, data.target_place)] = a
        return Evidence(*out, why)


class _Sources(NamedTuple):
    """Of each input: its metric, what to project out of residuals, and its own residual."""

    keep: list[np.ndarray]
    metric: list[np.ndarray]
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
    return _Sources(keeps, [_unit(law.metric) for law in laws], bases, residuals, plug)


def _against(
    engine: Engine,
    data: Prepared,
    sources: _Sources,
    name: str,
    y: np.ndarray,
    inputs: list[int],
    j: int,
    found: list[np.ndarray],
) -> None:
    if not y.shape[1] or not inputs:
        return
    problem = engine.problem(name, y, np.ones(engine.x.shape[1]))
    law = engine.learn([problem])[0]
    fit, full = engine.cross_fit([problem], [law])[0]
    problems = [problem._replace(keep=sources.keep[i]) for i in inputs]
    laws = [law._replace(metric=_unit(law.metric) + BORROW * sources.metric[i]) for i in inputs]
    error = ((y - full) ** 2).mean(0)
    pvalue, statistic, effect = found
    for i, (reduced, plugged) in zip(inputs, engine.reduce(problems, laws, fit, sources.plug), strict=True):
        ry = y - reduced
        t, p_covariance = _covariance(sources.residual[i], ry, data.starts)
        z, p_projected = _projected(sources.basis[i].remove(full - plugged), ry, data.starts, data.folds)
        pvalue[i, j] = min(1.0, p_covariance / COVARIANCE_SHARE, p_projected / (1 - COVARIANCE_SHARE))
        statistic[i, j] = max(abs(t), z)
        without = np.minimum((ry**2).mean(0), ((y - plugged) ** 2).mean(0))
        effect[i, j] = np.clip((without - error) / (without + SMALL), 0, 1).max()


def _unit(metric: np.ndarray) -> np.ndarray:
    return metric / max(np.trace(metric), 1e-12)


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
