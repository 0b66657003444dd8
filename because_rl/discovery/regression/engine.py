"""Many regressions that share their inputs, run in threads with NumPy (`gpu_engine` runs them on a GPU with JAX)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from because_rl.discovery.regression.kernel_ridge import (
    Centres,
    Fit,
    LearnedKernel,
    Rows,
    cross_fit,
    held_out_error,
    learn,
    predict,
)
from because_rl.discovery.regression.threads import cores, thread_map
from because_rl.rng import stream


@dataclass(frozen=True)
class Budget:
    """Sizes that bound the cost of a regression; beyond `learn_rows` learning and probing do not grow with n."""

    centres: int = 300
    """of a cross-fit (at most 4 sqrt(n))"""
    learn_rows: int = 8000
    """that the metric is learned from"""
    learn_centres: int = 256
    probe_rows: int = 3000
    """for quick estimates of an error (`Engine.errors`)"""
    probe_centres: int = 150


class Problem(NamedTuple):
    """Regress `target` on the kept input columns."""

    target: np.ndarray
    """(n, w)"""
    keep: np.ndarray
    """(p,) 1 for the columns that are used, 0 for the others"""
    centres: Centres
    sample: list[np.ndarray]
    """per fold, indices of the rows that the metric is learned from"""
    weight: list[np.ndarray]
    """per fold, the weight of each of these rows"""


class Engine:
    """Regressions on x (n, p), whose rows are sorted by fold.

    `folds` are the K slices of rows; `seed` determines the choice of centres and rows.
    """

    def __init__(self, x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int):
        self.x, self.folds, self.budget, self.seed = x, folds, budget, seed
        self.concurrent_targets = cores()
        """how many targets are best tested at a time"""
        self._rows = Rows([x[f] for f in folds])
        self.spread = np.atleast_2d(np.cov(x.T))
        self._fold_of = np.repeat(np.arange(len(folds)), [f.stop - f.start for f in folds])

    def problem(self, name: str, target: np.ndarray, keep: np.ndarray) -> Problem:
        """The problem of regressing `target` (n, w) on the columns where `keep` (p,) is 1.

        Centres and rows to learn from are drawn half uniformly and half in proportion to the squared error of a linear
        fit: rare events (a near miss, a contact) would otherwise be in few rows and have no centres. `name` is the
        name of the random stream.
        """
        n, k = len(self.x), len(self.folds)
        z = np.hstack([np.ones((n, 1)), self.x[:, keep > 0]])
        slope = np.linalg.solve(z.T @ z / n + 1e-9 * np.eye(z.shape[1]), z.T @ target / n)
        error = ((target - z @ slope) ** 2).sum(1)
        chance = 0.5 / n + 0.5 * error / max(error.sum(), 1e-300) if error.any() else np.full(n, 1 / n)
        rng = stream(self.seed, "discovery", name)
        pick, _ = draw_rows(rng, chance, min(self.budget.centres, int(4 * np.sqrt(n))))
        pick = rng.permutation(pick)
        free = (self._fold_of[pick][None] != np.arange(k)[:, None]).astype(float)
        sample, weight = [], []
        for f in self.folds:
            rows, inclusion = draw_rows(rng, chance[f], min(self.budget.learn_rows // k, f.stop - f.start))
            sample.append(rows + f.start)
            weight.append(1 / np.sqrt(inclusion))
        return Problem(target, keep, Centres(self.x[pick], free), sample, weight)

    def learn(self, problems: Sequence[Problem]) -> list[LearnedKernel]:
        """The metric and penalty of each problem."""

        def one(problem: Problem) -> LearnedKernel:
            rows, target, centres = self._sample(problem, self.budget.learn_rows, self.budget.learn_centres)
            return learn(rows, target, problem.keep, centres, self.spread)

        return thread_map(one, problems)

    def errors(self, problems: Sequence[Problem], kernel: LearnedKernel) -> list[np.ndarray]:
        """For each problem, (w,) a quick estimate of the share of each target column that stays unexplained."""

        def one(problem: Problem) -> np.ndarray:
            rows, target, centres = self._sample(problem, self.budget.probe_rows, self.budget.probe_centres)
            return held_out_error(rows, target, problem.keep, centres, self.spread, kernel.metric, kernel.ridge)

        return thread_map(one, problems)

    def _sample(self, problem: Problem, rows: int, centres: int) -> tuple[Rows, list[np.ndarray], Centres]:
        """About `rows` rows and at most `centres` centres of a problem; the target is multiplied by the weights."""
        step = max(1, round(sum(map(len, problem.sample)) / rows))
        sample, weight = ([a[::step] for a in part] for part in (problem.sample, problem.weight))
        points, free = problem.centres
        target = [problem.target[s] * w[:, None] for s, w in zip(sample, weight, strict=True)]
        return Rows([self.x[s] for s in sample], weight), target, Centres(points[:centres], free[:, :centres])

    def cross_fit(
        self, problems: Sequence[Problem], kernels: Sequence[LearnedKernel], starts: np.ndarray | None = None
    ) -> list[tuple[Fit, np.ndarray]]:
        """The fits, and the predictions (n, w) of each row by the fit on the other folds.

        With `starts`, the first rows of the episodes, the fits use only differences within episodes.
        """
        return thread_map(lambda problem, kernel: self._cross_fit(problem, kernel, starts), problems, kernels)

    def _cross_fit(self, problem: Problem, kernel: LearnedKernel, starts: np.ndarray | None) -> tuple[Fit, np.ndarray]:
        target = [problem.target[f] for f in self.folds]
        fold_starts = [] if starts is None else self._fold_starts(starts)

        def within(k: int, rows: np.ndarray) -> np.ndarray:
            length = np.diff(np.r_[fold_starts[k], len(rows)])
            return rows - np.repeat(np.add.reduceat(rows, fold_starts[k]) / length[:, None], length, axis=0)

        shared = problem.keep, problem.centres, self.spread, kernel.metric, kernel.ridge
        fit, prediction = cross_fit(self._rows, target, *shared, within if fold_starts else None)
        return fit, np.concatenate(prediction)

    def _fold_starts(self, starts: np.ndarray) -> list[np.ndarray]:
        """Per fold, the first rows of its episodes, counted from the start of the fold."""
        return [starts[(starts >= f.start) & (starts < f.stop)] - f.start for f in self.folds]

    def predict(self, fit: Fit, x: np.ndarray) -> np.ndarray:
        """(n, w) the fit at other inputs `x` (n, p), each row by the fit on the other folds."""
        return np.concatenate(predict(fit, Rows([x[f] for f in self.folds]), np.ones(x.shape[1])))

    def predict_substituted(self, problems: Sequence[Problem], fit: Fit, substitute: np.ndarray) -> list[np.ndarray]:
        """For each problem, (n, w) the fit with the columns that it does not keep replaced by `substitute` (n, p)."""
        return thread_map(lambda problem: self.predict(fit, np.where(problem.keep > 0, self.x, substitute)), problems)


def draw_rows(rng: np.random.Generator, chance: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """`size` different rows, row i with probability proportional to chance_i (at most 1), and their probabilities.

    >>> rows, inclusion = draw_rows(np.random.default_rng(0), np.array([5.0, 1.0, 1.0, 1.0]), 2)
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
