"""Run many regressions that share their inputs: on threads with NumPy, or on a GPU as one JAX program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from because_rl.discovery.regression.kernel_ridge import (
    Centres,
    Fit,
    Law,
    Rows,
    cross_fit,
    held_out_error,
    learn,
    predict,
)
from because_rl.discovery.regression.threads import each
from because_rl.rng import stream


@dataclass(frozen=True)
class Budget:
    """How much a regression may cost; all of it is constant in n beyond `learn_rows`."""

    centres: int = 300
    learn_rows: int = 8000
    learn_centres: int = 256
    probe_rows: int = 3000
    probe_centres: int = 150


class Problem(NamedTuple):
    """Regress `target` (n, w) on the kept input columns."""

    target: np.ndarray
    keep: np.ndarray
    centres: Centres
    sample: list[np.ndarray]
    """per fold, the rows that the metric is learned from"""
    weight: list[np.ndarray]


class Engine:
    """Regressions on x (n, p), whose rows are sorted into `folds`."""

    lanes: ClassVar[int] = 1
    """how many targets are worth testing at a time"""

    def __init__(self, x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int):
        self.x, self.folds, self.budget, self.seed = x, folds, budget, seed
        self._rows = Rows([x[f] for f in folds])
        self.spread = np.atleast_2d(np.cov(x.T))
        self._fold_of = np.repeat(np.arange(len(folds)), [f.stop - f.start for f in folds])

    def problem(self, name: str, target: np.ndarray, keep: np.ndarray) -> Problem:
        """Choose centres, and rows to learn from: half evenly, half where a linear fit errs.

        What happens rarely (a near miss, a contact) would otherwise be in no centre and in few rows.
        """
        n, k = len(self.x), len(self.folds)
        z = np.hstack([np.ones((n, 1)), self.x[:, keep > 0]])
        slope = np.linalg.solve(z.T @ z / n + 1e-9 * np.eye(z.shape[1]), z.T @ target / n)
        error = ((target - z @ slope) ** 2).sum(1)
        chance = 0.5 / n + 0.5 * error / max(error.sum(), 1e-300) if error.any() else np.full(n, 1 / n)
        rng = stream(self.seed, "discovery", name)
        pick, _ = draw(rng, chance, min(self.budget.centres, int(4 * np.sqrt(n))))
        pick = rng.permutation(pick)
        free = (self._fold_of[pick][None] != np.arange(k)[:, None]).astype(float)
        sample, weight = [], []
        for f in self.folds:
            rows, inclusion = draw(rng, chance[f], min(self.budget.learn_rows // k, f.stop - f.start))
            sample.append(rows + f.start)
            weight.append(1 / np.sqrt(inclusion))
        return Problem(target, keep, Centres(self.x[pick], free), sample, weight)

    def learn(self, problems: Sequence[Problem]) -> list[Law]:
        def one(problem: Problem) -> Law:
            rows, target, centres = self._sample(problem, self.budget.learn_rows, self.budget.learn_centres)
            return learn(rows, target, problem.keep, centres, self.spread)

        return each(one, problems)

    def errors(self, problems: Sequence[Problem], law: Law) -> list[np.ndarray]:
        """Quick estimates of the share of each target column that stays unexplained."""

        def one(problem: Problem) -> np.ndarray:
            rows, target, centres = self._sample(problem, self.budget.probe_rows, self.budget.probe_centres)
            return held_out_error(rows, target, problem.keep, centres, self.spread, law.metric, law.ridge)

        return each(one, problems)

    def _sample(self, problem: Problem, rows: int, centres: int) -> tuple[Rows, list[np.ndarray], Centres]:
        """At most so many rows and centres of a problem, the target times the weight of its row."""
        every = max(1, round(sum(map(len, problem.sample)) / rows))
        sample, weight = ([a[::every] for a in part] for part in (problem.sample, problem.weight))
        points, free = problem.centres
        target = [problem.target[s] * w[:, None] for s, w in zip(sample, weight, strict=True)]
        return Rows([self.x[s] for s in sample], weight), target, Centres(points[:centres], free[:, :centres])

    def cross_fit(
        self, problems: Sequence[Problem], laws: Sequence[Law], starts: np.ndarray | None = None
    ) -> list[tuple[Fit, np.ndarray]]:
        """The fits, and the prediction (n, w) of each row by the folds it is not in.

        With `starts`, the first rows of the episodes, the fits rest on differences inside episodes only.
        """
        return each(lambda problem, law: self._cross_fit(problem, law, starts), problems, laws)

    def _cross_fit(self, problem: Problem, law: Law, starts: np.ndarray | None) -> tuple[Fit, np.ndarray]:
        target = [problem.target[f] for f in self.folds]
        begins = [] if starts is None else self._begins(starts)

        def within(k: int, rows: np.ndarray) -> np.ndarray:
            length = np.diff(np.r_[begins[k], len(rows)])
            return rows - np.repeat(np.add.reduceat(rows, begins[k]) / length[:, None], length, axis=0)

        shared = problem.keep, problem.centres, self.spread, law.metric, law.ridge
        fit, prediction = cross_fit(self._rows, target, *shared, within if begins else None)
        return fit, np.concatenate(prediction)

    def _begins(self, starts: np.ndarray) -> list[np.ndarray]:
        """Where in each fold its episodes start."""
        return [starts[(starts >= f.start) & (starts < f.stop)] - f.start for f in self.folds]

    def predict(self, fit: Fit, x: np.ndarray) -> np.ndarray:
        """The fit at other inputs `x` (n, p), each row by the folds it is not in."""
        return np.concatenate(predict(fit, Rows([x[f] for f in self.folds]), np.ones(x.shape[1])))

    def without(self, problems: Sequence[Problem], fit: Fit, plug: np.ndarray) -> list[np.ndarray]:
        """For each problem the fit on all columns, with those that it does not keep replaced by `plug`."""
        return each(lambda problem: self.predict(fit, np.where(problem.keep > 0, self.x, plug)), problems)


def draw(rng: np.random.Generator, chance: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """`size` different rows, row i with probability proportional to chance_i (at most 1), and those probabilities.

    >>> rows, inclusion = draw(np.random.default_rng(0), np.array([5.0, 1.0, 1.0, 1.0]), 2)
    >>> rows[0], float(inclusion[0])
    (np.int64(0), 1.0)
    """
    if size >= len(chance):
        return np.arange(len(chance)), np.ones(len(chance))
    certain = np.zeros(len(chance), bool)
    while True:
        left = size - certain.sum()
        inclusion = np.where(certain, 1.0, left * chance / chance[~certain].sum())
        if not (inclusion > 1).any():
            break
        certain |= inclusion >= 1
    edges = np.cumsum(inclusion)
    rows = np.searchsorted(edges, (rng.random() + np.arange(size)) * (edges[-1] / size) * (1 - 1e-12))
    return rows, inclusion[rows]
