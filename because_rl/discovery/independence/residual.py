"""The default test for continuous and mixed data: cross-fitted residuals, with regressions shared by all pairs.

For input x, target y and all other inputs z,

    r_x = x - E[x | z],    r_y = y - E[y | z],    H0: E[r_x r_y] = 0 and E[(f(x, z) - f(E[x|z], z)) r_y] = 0

with the conditional means from `regression` (each row is predicted from folds of other episodes) and the two tests
from `covariance`, in which whole episodes are the unit of replication. Each input is regressed on the others once,
each target on all inputs once; per pair only the linear algebra of the fit without x remains. Beyond `thorough` rows
even that is skipped where it cannot matter: f(E[x|z], z) replaces E[y|z] wherever it already predicts so well that x
cannot have an effect, and inputs that hardly change f are tested all at once (`screening`, which states its error).
Beyond `max_rows` rows, whole episodes are drawn; the power is that of the rows used.

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
from typing import Any, ClassVar

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.independence.regressions import Analysis, FullFit, Regressions, Source
from because_rl.discovery.independence.target_log import TargetLog
from because_rl.discovery.regression.covariance import (
    COVARIANCE_PART,
    combine,
    covariance_test,
    detectable_effect,
    projected_test,
)
from because_rl.discovery.regression.engine import Budget, Engine
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.margins import Prepared, Target, prepare
from because_rl.discovery.regression.redundancy import loss, loss_after_pruning, relatives, variation
from because_rl.discovery.regression.screening import SHARE, changes, covariance_tests
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

BLOCK = 16
"""Targets that are regressed at a time."""

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
    max_rows: int = 50_000
    """beyond which whole episodes are drawn at random: more rows add power that no verdict needs"""
    confounder: bool = True
    """whether there may be hidden causes that are constant in episodes"""
    level: float = 1e-4
    """at which effects have to be detectable; the threshold of the mask"""
    name: ClassVar[str] = "residual"
    least_n: ClassVar[int] = 100
    least_effect: ClassVar[float] = 0.02
    excluding_effect: ClassVar[float] = 0.03

    def settings(self) -> dict[str, Any]:
        return {
            "test": self.name,
            "least_effect": self.least_effect,
            "excluding_effect": self.excluding_effect,
        } | asdict(self)

    def for_threshold(self, threshold: float) -> ResidualTest:
        return replace(self, level=threshold)

    def __call__(self, variables: Variables, seed: int = 0, log: TargetLog | None = None) -> Evidence:
        self.check_size(variables)
        with one_blas_thread():
            return self._evidence(variables, seed, log or TargetLog())

    def _evidence(self, variables: Variables, seed: int, log: TargetLog) -> Evidence:
        data = prepare(variables, self.folds, seed, self.max_rows)
        if len(data.starts) < LEAST_EPISODES:
            raise BecauseError(
                f"Got {len(data.starts)} episodes.",
                need=f"at least {LEAST_EPISODES}: episodes, not rows, are the independent units.",
                fix="collect more episodes, or leave 'episode' out if the rows are independent draws.",
            )
        shape = (len(variables.inputs), len(variables.targets))
        blank = np.zeros(shape)
        out = Evidence(blank + 1, blank.copy(), blank.copy(), blank + np.inf, {}, {}, blank != 0, len(data.x))
        if data.inputs:
            hidden_causes = self.confounder and 2 * len(data.starts) <= len(data.x)
            self._test_targets(data, hidden_causes, seed, out, log)
            if hidden_causes:
                _mark_echoes(data, out)
        for i, source in enumerate(variables.inputs):
            for j, target_factor in enumerate(variables.targets):
                pair = source.name, target_factor.name
                if np.isinf(out.detectable[i, j]):
                    constant = source.name if i not in data.input_place else target_factor.name
                    out.why.setdefault(pair, f"{constant} never varies in these data")
        return out

    def _test_targets(self, data: Prepared, hidden_causes: bool, seed: int, out: Evidence, log: TargetLog) -> None:
        """Write the columns of all targets that vary, block by block; those in the log are taken from there."""
        varying = [k for k, target in enumerate(data.targets) if target.level.shape[1]]
        waiting = [k for k in varying if not log.recall(data.target_place[k], out)]
        if not waiting:
            return
        regressions = Regressions(data, make_engine(data.x, data.folds, self.budget, seed))
        concurrent = regressions.engine.concurrent_targets

        def test(k: int) -> None:
            target, j, hidden = data.targets[k], data.target_place[k], regressions.hidden
            _TargetTest(self, data, regressions, target, j, hidden, out).run()
            log.keep(j, target.factor.name, out)

        for start in range(0, len(waiting), size := max(BLOCK, concurrent)):
            block = waiting[start : start + size]
            regressions.fit_targets([data.targets[k] for k in block], hidden_causes)
            thread_map(test, block, threads=concurrent if len(block) >= concurrent else 1)


@dataclass
class _TargetTest:
    """Every input against one target: writes column j of the evidence."""

    test: ResidualTest
    data: Prepared
    regressions: Regressions
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

    def _test(self, analysis: Analysis, inputs: list[int]) -> None:
        """Test these inputs against the change of the target."""
        if not inputs:
            return
        engine, test = self.regressions.engine, self.test
        full_fit, sources = analysis.fits[self.target.factor.name], analysis.sources
        y, full = full_fit.problem.target, full_fit.prediction
        screened = self._screen(analysis, full_fit, inputs)
        compared = [i for i in inputs if i not in screened]
        problems = {i: full_fit.problem._replace(keep=sources[i].keep) for i in compared}
        predictions = engine.predict_substituted(list(problems.values()), full_fit.fit, analysis.predicted)
        substituted = dict(zip(compared, predictions, strict=True))
        square = analysis.variation.mean_square
        error = square(y - full)
        refitted = [
            i
            for i in compared
            if len(y) <= test.thorough or loss(square(y - substituted[i]), error) >= test.least_effect
        ]
        kernels = [full_fit.kernel] * len(refitted)
        fits = engine.cross_fit([problems[i] for i in refitted], kernels, analysis.variation.starts)
        reduced = substituted | {i: prediction for i, (_, prediction) in zip(refitted, fits, strict=True)}
        threads = cores() // engine.concurrent_targets if engine.concurrent_targets < cores() else None
        thread_map(lambda i: self._compare(analysis, i, y, full, reduced[i], substituted[i]), compared, threads=threads)
        self._explain(analysis, full_fit, inputs)

    def _screen(self, analysis: Analysis, full_fit: FullFit, inputs: list[int]) -> set[int]:
        """Test the inputs that cannot have an effect that counts all at once (`screening`), and return them.

        None up to `thorough` rows, or where the target moves so rarely that a p-value decides by itself.
        """
        test, data, out, place = self.test, self.data, self.out, self.data.input_place
        y = full_fit.problem.target
        if len(y) <= test.thorough or _moves(y)[1]:
            return set()
        ry = analysis.variation.centre(y - full_fit.prediction)
        error, columns = (ry**2).mean(0), [data.columns[i] for i in inputs]
        changed = changes(full_fit.problem, full_fit.fit, self.regressions.engine.x, analysis.predicted, columns)
        small = {
            i: change
            for i, change in zip(inputs, changed, strict=True)
            if change.effect(error) < SHARE * test.least_effect
        }
        if small:
            sources, slopes = [analysis.sources[i] for i in small], [change.slope for change in small.values()]
            residuals, squares = [s.residual for s in sources], [s.squares for s in sources]
            batch = covariance_tests(residuals, squares, slopes, ry, data.starts, test.level)
            rows = place[list(small)], self.j
            out.p[rows], out.statistic[rows] = np.minimum(1, batch.p / COVARIANCE_PART), batch.statistic
            out.effect[rows] = [change.effect(error) for change in small.values()]
            out.detectable[rows] = batch.detectable
        return set(small)

    def _test_own(self, analysis: Analysis) -> None:
        """Test the last value against the level, last value + change: the change contains the last value."""
        engine, target, i = self.regressions.engine, self.target, self.target.own
        assert i is not None
        own = analysis.sources[i]
        full_fit, starts = analysis.fits.get(target.factor.name), analysis.variation.starts
        mixed = np.where(own.keep > 0, engine.x, analysis.predicted)
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
        self, analysis: Analysis, i: int, y: np.ndarray, full: np.ndarray, reduced: np.ndarray, substituted: np.ndarray
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

    def _is_redundant(self, source: Source, y: np.ndarray) -> bool:
        """Whether, where y moves, the other inputs predict so much of this one that its test is in doubt."""
        return variation(source.residual, y) < 1 - self.test.redundant

    def _lacks_variation(self, source: Source, i: int, y: np.ndarray) -> bool:
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

    def _explain(self, analysis: Analysis, full_fit: FullFit, inputs: list[int]) -> None:
        """Decide which inputs, other than clear edges, these data cannot judge, and why."""
        test, out, least = self.test, self.out, self.test.least_effect
        place, y = (lambda i: (self.data.input_place[i], self.j)), full_fit.problem.target
        open_inputs = [i for i in inputs if not (out.p[place(i)] < test.level and out.effect[place(i)] >= least)]
        (moved, few), name = _moves(y), self.target.factor.name
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

    def _judge_redundant(self, analysis: Analysis, full_fit: FullFit, inputs: list[int]) -> None:
        """An input with too little variation of its own is undetermined, unless the target needs neither it nor those
        from which it follows."""
        engine, prune_max, loss_max = (
            self.regressions.engine,
            self.test.least_effect / 3,
            self.test.least_effect * DOUBT,
        )
        arguments = inputs, self.data.columns, prune_max, loss_max
        losses = loss_after_pruning(engine, full_fit.problem, full_fit.kernel, *arguments)
        for i, loss_without in zip(inputs, losses, strict=True):
            if loss_without > loss_max:
                name = self.data.inputs[i].name
                reason = _redundancy_reason(self.data, engine, analysis.sources, i)
                self._undetermined(i, reason, f"rows in which {name} varies while these stay")


def _moves(y: np.ndarray) -> tuple[int, bool]:
    """In how many rows a target moves, and whether these are too few to measure an effect."""
    moved = int((np.abs(y - np.median(y, axis=0)) > 1e-9).any(1).sum())
    return moved, moved < FEW and moved < RARE * len(y)


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


def _redundancy_reason(data: Prepared, engine: Engine, sources: list[Source], i: int) -> str:
    share = 1 - (sources[i].residual ** 2).mean()
    names = [data.inputs[k].name for k in relatives(engine.spread, data.columns, i)][:4]
    return f"{data.inputs[i].name} follows from the other inputs (R2 {share:.3f}); it goes with {', '.join(names)}"
