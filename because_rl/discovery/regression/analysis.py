"""The regressions that all pairs of the residual test share: each input on the others, each target on all inputs.

Inputs are regressed once. Targets are regressed block by block and forgotten once they are tested, so that memory does
not grow with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from because_rl.discovery.regression.covariance import Basis
from because_rl.discovery.regression.engine import Engine, Problem
from because_rl.discovery.regression.hidden_cause import Variation, has_hidden_cause
from because_rl.discovery.regression.kernel_ridge import Fit, LearnedKernel
from because_rl.discovery.regression.margins import Prepared, Target
from because_rl.discovery.regression.screening import episode_squares
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
    squares: np.ndarray
    """(episodes, columns, columns) `episode_squares` of the residual"""
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
    predicted: np.ndarray
    """(n, p) every input as the others predict it"""
    fits: dict[str, FullFit]
    """target name -> its regression, for the targets at hand that ever change"""


class Regressions:
    """Of each input on the others and of targets on all inputs; kernels are learned once for both analyses."""

    def __init__(self, data: Prepared, engine: Engine):
        self.data, self.engine = data, engine
        keeps = np.ones((len(data.inputs), engine.x.shape[1]))
        for keep, columns in zip(keeps, data.columns, strict=True):
            keep[columns] = 0
        names = [f"input {factor.name}" for factor in data.inputs]
        targets = [engine.x[:, columns] for columns in data.columns]
        self._inputs = thread_map(engine.problem, names, targets, list(keeps))
        self._input_kernels = engine.learn(self._inputs)
        self.pooled = self._analysis(Variation())
        self.within = self.pooled
        """the same, until a hidden cause shows"""
        self.hidden: set[str] = set()
        """the targets at hand that something hidden and constant in episodes shifts"""

    def fit_targets(self, targets: Sequence[Target], confounder: bool) -> None:
        """Regress these targets in place of those before; with `confounder`, look for hidden causes of them."""
        moving = [target for target in targets if target.moves.shape[1]]
        names = [target.factor.name for target in moving]
        every = np.ones(self.engine.x.shape[1])
        problems = thread_map(lambda t: self.engine.problem(f"target {t.factor.name}", t.moves, every), moving)
        kernels = self.engine.learn(problems)
        pooled = self._fits(names, problems, kernels, Variation())
        self.pooled.fits.clear()
        self.pooled.fits.update(pooled)
        self.hidden.clear()
        if not confounder:
            return
        variation = Variation(self.data.starts)
        within = self._fits(names, problems, kernels, variation)
        self.hidden.update(
            name
            for name, (problem, _, _, prediction) in within.items()
            if has_hidden_cause(problem.target - pooled[name].prediction, problem.target - prediction, self.data.starts)
        )
        if self.hidden:
            if self.within is self.pooled:
                self.within = self._analysis(variation)
            self.within.fits.clear()
            self.within.fits.update(within)

    def _analysis(self, variation: Variation) -> Analysis:
        engine, centred = self.engine, variation.centre(self.engine.x)
        predicted = np.zeros_like(engine.x)

        def source(
            columns: np.ndarray, problem: Problem, kernel: LearnedKernel, fitted: tuple[Fit, np.ndarray]
        ) -> Source:
            error = variation.centre(problem.target - fitted[1])
            prediction = problem.target - error
            predicted[:, columns] = prediction
            basis = Basis(centred, problem.keep, variation.centre(prediction))
            residual = basis.remove(error)
            squares = episode_squares(residual, self.data.starts)
            return Source(columns, problem.keep, kernel, basis, residual, squares, prediction)

        fitted = engine.cross_fit(self._inputs, self._input_kernels, variation.starts)
        sources = thread_map(source, self.data.columns, self._inputs, self._input_kernels, fitted)
        return Analysis(variation, sources, predicted, {})

    def _fits(
        self, names: list[str], problems: list[Problem], kernels: list[LearnedKernel], variation: Variation
    ) -> dict[str, FullFit]:
        fits = self.engine.cross_fit(problems, kernels, variation.starts)
        parts = zip(names, problems, kernels, fits, strict=True)
        return {name: FullFit(problem, kernel, *fit) for name, problem, kernel, fit in parts}
