"""The regressions that all pairs share: of each input on the others, and of each target on all inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from because_rl.discovery.regression.covariance import Basis
from because_rl.discovery.regression.engine import Engine, Problem
from because_rl.discovery.regression.hidden_cause import Variation, has_hidden_cause
from because_rl.discovery.regression.kernel_ridge import Fit, LearnedKernel
from because_rl.discovery.regression.margins import Prepared
from because_rl.discovery.regression.threads import thread_map


class Source(NamedTuple):
    """One input, and its regression on the others."""

    columns: np.ndarray
    """its columns in x"""
    keep: np.ndarray
    """(p,) 1 for the columns of the other inputs"""
    kernel: LearnedKernel
    basis: Basis
    residual: np.ndarray
    """(n, columns)"""
    prediction: np.ndarray
    """(n, columns) of this input from the others"""


class FullFit(NamedTuple):
    """The regression of one target on all inputs."""

    problem: Problem
    kernel: LearnedKernel
    fit: Fit
    prediction: np.ndarray


class Analysis(NamedTuple):
    """All regressions, on all variation or on that within episodes."""

    variation: Variation
    sources: list[Source]
    fits: dict[str, FullFit]
    """target name -> its regression, for the targets that ever change"""


class Regressions:
    """Of each input on the others and of each target on all inputs; kernels are learned once for both analyses."""

    def __init__(self, data: Prepared, engine: Engine):
        self.data, self.engine = data, engine
        keeps = np.ones((len(data.inputs), engine.x.shape[1]))
        for keep, columns in zip(keeps, data.columns, strict=True):
            keep[columns] = 0
        names = [f"input {factor.name}" for factor in data.inputs]
        targets = [engine.x[:, columns] for columns in data.columns]
        self._inputs = thread_map(engine.problem, names, targets, list(keeps))
        moving = [target for target in data.targets if target.moves.shape[1]]
        self._names = [target.factor.name for target in moving]
        every = np.ones(engine.x.shape[1])
        self._targets = thread_map(lambda t: engine.problem(f"target {t.factor.name}", t.moves, every), moving)
        self._input_kernels, self._kernels = engine.learn(self._inputs), engine.learn(self._targets)
        self.pooled = self.analysis(Variation())
        self.within = self.pooled
        """the same, unless there are hidden causes"""

    def hidden(self) -> set[str]:
        """The targets that something hidden and constant in episodes shifts."""
        variation, pooled = Variation(self.data.starts), self.pooled.fits
        fits = self._fits(variation)
        hidden = {
            name
            for name, (problem, _, _, prediction) in fits.items()
            if has_hidden_cause(problem.target - pooled[name].prediction, problem.target - prediction, self.data.starts)
        }
        if hidden:
            self.within = self.analysis(variation, fits)
        return hidden

    def analysis(self, variation: Variation, fits: dict[str, FullFit] | None = None) -> Analysis:
        engine, centred = self.engine, variation.centre(self.engine.x)

        def source(
            columns: np.ndarray, problem: Problem, kernel: LearnedKernel, fitted: tuple[Fit, np.ndarray]
        ) -> Source:
            error = variation.centre(problem.target - fitted[1])
            prediction = problem.target - error
            basis = Basis(centred, problem.keep, variation.centre(prediction))
            return Source(columns, problem.keep, kernel, basis, basis.remove(error), prediction)

        fitted = engine.cross_fit(self._inputs, self._input_kernels, variation.starts)
        sources = thread_map(source, self.data.columns, self._inputs, self._input_kernels, fitted)
        return Analysis(variation, sources, self._fits(variation) if fits is None else fits)

    def _fits(self, variation: Variation) -> dict[str, FullFit]:
        fits = self.engine.cross_fit(self._targets, self._kernels, variation.starts)
        parts = zip(self._names, self._targets, self._kernels, fits, strict=True)
        return {name: FullFit(problem, kernel, *fit) for name, problem, kernel, fit in parts}
