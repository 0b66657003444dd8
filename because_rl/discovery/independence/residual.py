"""The default test for continuous and mixed data: cross-fitted residuals, with regressions shared by all pairs.

For input x, target y and all other inputs z,

    r_x = x - E[x | z],    r_y = y - E[y | z],    H0: E[r_x r_y] = 0 and E[(f(x, z) - f(E[x|z], z)) r_y] = 0

with the conditional means from `regression` (each row is predicted from folds of other episodes) and the two tests
from `covariance`, in which whole episodes are the unit of replication. Each input is regressed on the others once,
each target on all inputs once; per pair only the linear algebra of the fit without x remains. Beyond `thorough` rows
even that is skipped where it cannot matter: f(E[x|z], z) replaces E[y|z] wherever it already predicts so well that x
cannot have an effect.

- The target of a state factor is its *change*; only its own last value is tested against the level (`margins`).
- A target that is shifted by something hidden and constant in episodes is tested on differences within episodes alone
  (`hidden_cause`). An input that is itself constant in every episode (a colour, a serial number) cannot be tested
  so, and no data distinguish it from a hidden cause: it is taken as an *echo* of one and left out unless forced. A
  factor of the role 'context' is a measured constant that may be a cause: it is tested on differences between episodes.
- effect = 1 - error(x, z) / error(z), held-out: the share of what z leaves unexplained that x explains, in the
  column where it is largest. At large n regression error gives small p-values with tiny effects, so an edge requires
  both.
- detectable: the least effect that the tests would have shown (`covariance.detectable_effect`), had x varied as much
  of its own accord as it varies in all: an input that follows from the others shows little of what it does.
- Undetermined also: the input or the target does not vary; the target moves too rarely; the input could stand in for
  others from which it follows (`redundancy`); or the mask without it predicts worse (`sufficiency`).

Assumptions: a smooth regression can learn the conditional means at this n; episodes are independent of one another;
hidden causes, if any, are constant in an episode and mostly shift the next state.
Valid for: continuous, binary and mixed factors, of any width. Least n: 100 rows, in at least 20 episodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.regression.covariance import Basis, combine, covariance_test, detectable_effect, projected_test
from because_rl.discovery.regression.engine import Budget, Engine, Problem
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.hidden_cause import Variation, has_hidden_cause
from because_rl.discovery.regression.kernel_ridge import Fit, LearnedKernel
from because_rl.discovery.regression.margins import Prepared, Target, prepare
from because_rl.discovery.regression.redundancy import loss, loss_after_pruning, relatives, variation
from because_rl.discovery.regression.threads import cores, one_blas_thread, thread_map
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError

LEAST_EPISODES = 20
LEAST_VARIATION = 0.1
"""Share of an input's variance in the rows where the target moves; with less, a large p-value is not informative."""
DOUBT = 0.1
"""Share of `least_effect` that a redundant input must explain, once its relatives are pruned, to count as possible."""
FEW, RARE = 200, 0.05
"""Rows in which a target moves, and their share of all rows. With fewer, a small effect with a small p-value is no
answer: the regression that measures effects has too little to learn from."""

ECHO = "{} never changes in an episode, so it cannot be distinguished from a hidden cause"
CONTEXT = "give {} the role 'context' if it is an allowed cause"


@dataclass(frozen=True)
class ResidualTest(IndependenceTest):
    """See the module docstring."""

    folds: int = 5
    """of whole episodes, for cross-fitting"""
    budget: Budget = field(default_factory=Budget)
    """of each regression"""
    redundant: float = 0.7
    """share of an input's variance, where the target moves, above which it counts as predicted by the others"""
    thorough: int = 5000
    """rows up to which every pair gets a fit of its own"""
    confounder: bool = True
    """whether there may be hidden causes that are constant in episodes"""
    level: float = 1e-4
    """at which effects have to be detectable; the threshold of the mask"""
    name: ClassVar[str] = "residual"
    least_n: ClassVar[int] = 100
    least_effect: ClassVar[float] = 0.02
    excluding_effect: ClassVar[float] = 0.03

    def settings(self) -> dict[str, Any]:
        return {"test": self.name, "least_effect": self.least_effect, "excluding_effect": self.excluding_effect} | asdict(self)

    def for_threshold(self, threshold: float) -> ResidualTest:
        return replace(self, level=threshold)

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        with one_blas_thread():
            return self._evidence(variables, seed)

    def _evidence(self, variables: Variables, seed: int) -> Evidence:
        data = prepare(variables, self.folds, seed)
        if len(data.starts) < LEAST_EPISODES:
            raise BecauseError(
                f"Got {len(data.starts)} episodes.",
                need=f"at least {LEAST_EPISODES}: episodes, not rows, are the independent units.",
                fix="collect more episodes, or leave 'episode' out if the rows are independent draws.",
            )
        shape = (len(variables.inputs), len(variables.targets))
        blank = np.zeros(shape)
        out = Evidence(blank + 1, blank.copy(), blank.copy(), blank + np.inf, {}, echo=blank != 0)
        if data.inputs:
            regressions = _Regressions(data, make_engine(data.x, data.folds, self.budget, seed))
            has_episodes = 2 * len(data.starts) <= len(data.x)
            hidden = regressions.hidden() if self.confounder and has_episodes else set()
            varying = [k for k, target in enumerate(data.targets) if target.level.shape[1]]

            def test(k: int) -> None:
                _TargetTest(self, data, regressions, data.targets[k], data.target_place[k], hidden, out).run()

            thread_map(test, varying, threads=regressions.engine.concurrent_targets)
            if self.confounder and has_episodes:
                _mark_echoes(data, out)
        for i, source in enumerate(variables.inputs):
            for j, target_factor in enumerate(variables.targets):
                pair = source.name, target_factor.name
                if np.isinf(out.detectable[i, j]):
                    constant = source.name if i not in data.input_place else target_factor.name
                    out.why.setdefault(pair, f"{constant} never varies in these data")
        return out


class _Source(NamedTuple):
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


class _FullFit(NamedTuple):
    """The regression of one target on all inputs."""

    problem: Problem
    kernel: LearnedKernel
    fit: Fit
    prediction: np.ndarray


class _Analysis(NamedTuple):
    """All regressions, on all variation or on that within episodes."""

    variation: Variation
    sources: list[_Source]
    fits: dict[str, _FullFit]
    """target name -> its regression, for the targets that ever change"""


class _Regressions:
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

    def analysis(self, variation: Variation, fits: dict[str, _FullFit] | None = None) -> _Analysis:
        engine, centred = self.engine, variation.centre(self.engine.x)

        def source(
            columns: np.ndarray, problem: Problem, kernel: LearnedKernel, fitted: tuple[Fit, np.ndarray]
        ) -> _Source:
            error = variation.centre(problem.target - fitted[1])
            prediction = problem.target - error
            basis = Basis(centred, problem.keep, variation.centre(prediction))
            return _Source(columns, problem.keep, kernel, basis, basis.remove(error), prediction)

        fitted = engine.cross_fit(self._inputs, self._input_kernels, variation.starts)
        sources = thread_map(source, self.data.columns, self._inputs, self._input_kernels, fitted)
        return _Analysis(variation, sources, self._fits(variation) if fits is None else fits)

    def _fits(self, variation: Variation) -> dict[str, _FullFit]:
        fits = self.engine.cross_fit(self._targets, self._kernels, variation.starts)
        parts = zip(self._names, self._targets, self._kernels, fits, strict=True)
        return {name: _FullFit(problem, kernel, *fit) for name, problem, kernel, fit in parts}


@dataclass
class _TargetTest:
    """Every input against one target: writes column j of the evidence."""

    test: ResidualTest
    data: Prepared
    regressions: _Regressions
    target: Target
    j: int
    hidden: set[str]
    out: Evidence

    def run(self) -> None:
        own, name = self.target.own, self.target.factor.name
        others = [i for i in range(len(self.data.inputs)) if i != own]
        if name not in self.regressions.pooled.fits:  # the target never changes, so no other input moves it
            self.out.detectable[self.data.input_place[others], self.j] = 0
        elif name in self.hidden:
            constant = constant_inputs(self.data)
            self._test(self.regressions.within, [i for i in others if i not in constant])
            self._test(self.regressions.pooled, [i for i in others if i in constant])
        else:
            self._test(self.regressions.pooled, others)
        if own is not None:
            self._test_own(self.regressions.within if name in self.hidden else self.regressions.pooled)

    def _test(self, analysis: _Analysis, inputs: list[int]) -> None:
        """Test these inputs against the change of the target."""
        if not inputs:
            return
        engine, test = self.regressions.engine, self.test
        full_fit, sources = analysis.fits[self.target.factor.name], analysis.sources
        y, full = full_fit.problem.target, full_fit.prediction
        problems = {i: full_fit.problem._replace(keep=sources[i].keep) for i in inputs}
        predictions = engine.predict_substituted(list(problems.values()), full_fit.fit, self._predicted(analysis))
        substituted = dict(zip(inputs, predictions, strict=True))
        square = analysis.variation.mean_square
        error = square(y - full)
        refitted = [
            i
            for i in inputs
            if len(y) <= test.thorough or loss(square(y - substituted[i]), error) >= test.least_effect
        ]
        kernels = [full_fit.kernel] * len(refitted)
        fits = engine.cross_fit([problems[i] for i in refitted], kernels, analysis.variation.starts)
        reduced = substituted | {i: prediction for i, (_, prediction) in zip(refitted, fits, strict=True)}
        threads = max(1, cores() // engine.concurrent_targets)
        thread_map(
            lambda i: self._compare(analysis, i, y, full, reduced[i], substituted[i]), inputs, threads=threads
        )
        self._explain(analysis, full_fit, inputs)

    def _predicted(self, analysis: _Analysis) -> np.ndarray:
        """(n, p) every input as the others predict it."""
        predicted = np.zeros_like(self.regressions.engine.x)
        for source in analysis.sources:
            predicted[:, source.columns] = source.prediction
        return predicted

    def _test_own(self, analysis: _Analysis) -> None:
        """Test the last value against the level, last value + change: the change contains the last value."""
        engine, target, i = self.regressions.engine, self.target, self.target.own
        assert i is not None
        own = analysis.sources[i]
        full_fit, starts = analysis.fits.get(target.factor.name), analysis.variation.starts
        mixed = np.where(own.keep > 0, engine.x, self._predicted(analysis))
        kernel = own.kernel
        if full_fit is not None:
            kernel = kernel._replace(metric=kernel.metric + full_fit.kernel.metric)
        problem = engine.problem(f"level {target.factor.name}", target.level, own.keep)
        reduced = engine.cross_fit([problem], [kernel], starts)[0][1]
        if target.persist is None or target.gain is None:
            fit, full = engine.cross_fit([problem._replace(keep=np.ones_like(own.keep))], [kernel], starts)[0]
            substituted = engine.predict(fit, mixed)
        else:
            change = target.moves * 0 if full_fit is None else full_fit.prediction
            substituted_change = change if full_fit is None else engine.predict(full_fit.fit, mixed)
            full = engine.x[:, own.columns] @ target.persist + change @ target.gain
            substituted = own.prediction @ target.persist + substituted_change @ target.gain
        self._compare(analysis, i, target.level, full, reduced, substituted)
        if variation(own.residual, target.level) < LEAST_VARIATION:
            self._undetermined(i, _redundancy_reason(self.data, engine, analysis.sources, i))

    def _compare(
        self, analysis: _Analysis, i: int, y: np.ndarray, full: np.ndarray, reduced: np.ndarray, substituted: np.ndarray
    ) -> None:
        """Test input i, from predictions of y: with all inputs, without i, and with i replaced by its prediction."""
        data, out, source = self.data, self.out, analysis.sources[i]
        place, centre, square = (data.input_place[i], self.j), analysis.variation.centre, analysis.variation.mean_square
        ry = centre(y - reduced)
        rx, direction = source.residual, source.basis.remove(centre(full - substituted))
        if self._is_redundant(source, y):
            projection = source.basis.where_moving(centre(reduced))
            rx, direction = projection.remove(rx), projection.remove(direction)
        t, p_covariance = covariance_test(rx, ry, data.starts)
        z, p_projected = projected_test(direction, ry, data.starts, data.folds)
        out.p[place], out.statistic[place] = combine(p_covariance, p_projected), max(t, z)
        out.effect[place] = loss(np.minimum((ry**2).mean(0), square(y - substituted)), square(y - full))
        out.detectable[place] = detectable_effect(rx, ry, data.starts, self.test.level)

    def _is_redundant(self, source: _Source, y: np.ndarray) -> bool:
        """Whether, where y moves, the other inputs predict so much of this one that its test is in doubt."""
        return variation(source.residual, y) < 1 - self.test.redundant

    def _lacks_variation(self, source: _Source, i: int, y: np.ndarray) -> bool:
        """Whether an input varies too little of its own accord.

        For states that move together, a tenth of their variance is enough. For an action that follows from the state
        it is not: the policy that logged it never tried the alternatives (positivity fails).
        """
        is_state = self.data.inputs[i].name in {target.factor.name for target in self.data.targets}
        return variation(source.residual, y) < (LEAST_VARIATION if is_state else 1 - self.test.redundant)

    def _undetermined(self, i: int, why: str, needs: str = "") -> None:
        """The data cannot decide whether input i matters."""
        pair = self.data.inputs[i].name, self.target.factor.name
        self.out.detectable[self.data.input_place[i], self.j], self.out.why[pair] = np.inf, why
        if needs:
            self.out.needs[pair] = needs

    def _explain(self, analysis: _Analysis, full_fit: _FullFit, inputs: list[int]) -> None:
        """Decide which inputs, other than clear edges, these data cannot judge, and why."""
        test, out, least = self.test, self.out, self.test.least_effect
        place, y = (lambda i: (self.data.input_place[i], self.j)), full_fit.problem.target
        open_inputs = [i for i in inputs if not (out.p[place(i)] < test.level and out.effect[place(i)] >= least)]
        moved = int((np.abs(y - np.median(y, axis=0)) > 1e-9).any(1).sum())
        few, name = moved < FEW and moved < RARE * len(y), self.target.factor.name
        redundant = []
        for i in open_inputs:
            detectable, source = out.detectable[place(i)], analysis.sources[i]
            if few and out.p[place(i)] < test.level:
                reason = f"{name} moved only {moved} times, too few to measure an effect"
                self._undetermined(i, reason, f"about {FEW} rows in which {name} moves")
            elif variation(self.regressions.engine.x[:, source.columns], y) < LEAST_VARIATION:
                self._undetermined(
                    i,
                    f"where {name} moves, {self.data.inputs[i].name} hardly varies",
                    f"rows in which {name} moves at other values of {self.data.inputs[i].name}",
                )
            elif self._lacks_variation(source, i, y):
                redundant.append(i)
            elif detectable > test.excluding_effect:
                self._lacks_power(i, detectable)
        self._judge_redundant(analysis, full_fit, redundant)

    def _lacks_power(self, i: int, detectable: float) -> None:
        pair = self.data.inputs[i].name, self.target.factor.name
        episodes, least = len(self.data.starts), self.test.excluding_effect
        if np.isinf(detectable):
            self.out.why[pair], wanted = "too few episodes for a test of interactions", 30
        else:
            self.out.why[pair] = f"only an effect of {detectable:.2g} would have been seen; {least:g} is needed"
            wanted = int(np.ceil(episodes * detectable / least))
        self.out.needs[pair] = f"about {wanted:,} episodes like these {episodes:,}"

    def _judge_redundant(self, analysis: _Analysis, full_fit: _FullFit, inputs: list[int]) -> None:
        """An input with too little variation of its own is undetermined, unless the target needs neither it nor those
        from which it follows."""
        engine, prune_max, loss_max = self.regressions.engine, self.test.least_effect / 3, self.test.least_effect * DOUBT
        arguments = inputs, self.data.columns, prune_max, loss_max
        losses = loss_after_pruning(engine, full_fit.problem, full_fit.kernel, *arguments)
        for i, loss_without in zip(inputs, losses, strict=True):
            if loss_without > loss_max:
                name = self.data.inputs[i].name
                reason = _redundancy_reason(self.data, engine, analysis.sources, i)
                self._undetermined(i, reason, f"rows in which {name} varies while these stay")


def constant_inputs(data: Prepared) -> set[int]:
    """The inputs that never change in an episode."""
    if len(data.starts) == len(data.x):
        return set()  # rows are independent draws: there are no episodes to be constant in

    def constant(x: np.ndarray) -> bool:
        return bool((np.maximum.reduceat(x, data.starts) == np.minimum.reduceat(x, data.starts)).all())

    return {i for i, columns in enumerate(data.columns) if constant(data.x[:, columns])}


def _mark_echoes(data: Prepared, out: Evidence) -> None:
    """Mark the inputs that never change in an episode as echoes of a hidden cause, except for their own targets."""
    assert out.echo is not None
    for i in constant_inputs(data):
        if getattr(data.inputs[i], "role", "") == "context":
            continue
        for j, target in zip(data.target_place, data.targets, strict=True):
            if target.own != i:
                name = data.inputs[i].name
                out.echo[data.input_place[i], j] = True
                out.why[name, target.factor.name] = ECHO.format(name)
                out.needs[name, target.factor.name] = CONTEXT.format(name)


def _redundancy_reason(data: Prepared, engine: Engine, sources: list[_Source], i: int) -> str:
    share = 1 - (sources[i].residual ** 2).mean()
    names = [data.inputs[k].name for k in relatives(engine.spread, data.columns, i)][:4]
    return f"{data.inputs[i].name} follows from the other inputs (R2 {share:.3f}); it goes with {', '.join(names)}"
