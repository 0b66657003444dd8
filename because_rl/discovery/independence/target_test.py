"""Every input against one target: the tests, their power, and what these data cannot decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from because_rl.discovery.independence.base import Evidence
from because_rl.discovery.regression.analysis import Analysis, FullFit, Regressions, Source
from because_rl.discovery.regression.covariance import (
    COVARIANCE_PART,
    combine,
    covariance_share,
    covariance_test,
    detectable_effect,
    largest_effect,
    projected_test,
)
from because_rl.discovery.regression.engine import Engine
from because_rl.discovery.regression.margins import Prepared, Target
from because_rl.discovery.regression.redundancy import loss, loss_after_pruning, relatives, variation
from because_rl.discovery.regression.screening import SHARE, changes, covariance_tests
from because_rl.discovery.regression.sufficiency import Sufficiency, compare, restore
from because_rl.discovery.regression.threads import cores, thread_map

LEAST_VARIATION = 0.1
"""Share of an input's variance in the rows where the target moves; with less, a large p-value is not informative."""
DOUBT = 0.1
"""Share of `least_effect` that a redundant input must explain, once its relatives are pruned, to count as possible."""
TRACE = 0.25
"""Share of `least_effect` from which on a significant dependence is not excluded: regressions err, and hide effects."""
UNEXPLAINED = 1e-4
"""Share of a target's change that its established causes may leave, if no other input could be one."""
FEW_INPUTS = 12
"""Up to which every pair is tested in full."""
MORE_EPISODES = "more episodes like these"
FEW, RARE = 200, 0.05
"""Rows in which a target moves, and their share of all rows. With fewer, a small effect with a small p-value is no
answer: the regression that measures effects has too little to learn from."""
EVENT_FACTOR = 100
"""On p-values where a discrete target moves rarely, but in `FEW` rows or more. The regression is too smooth for a rare,
sharp event, and what goes along with its causes seems to explain some of what it leaves: on development data of Crash
one false edge in 75 has p < 1e-4, where causes have 1e-9 to 1e-36."""


class Criteria(NamedTuple):
    """What counts; the fields of `ResidualTest`."""

    level: float
    least_effect: float
    excluding_effect: float
    redundant: float
    thorough: int


@dataclass
class TargetTest:
    """Every input against one target: writes column j of the evidence."""

    test: Criteria
    data: Prepared
    regressions: Regressions
    target: Target
    j: int
    constant: set[int]
    """inputs that never change in an episode"""
    echoes: set[int]
    """those of them that are not known to be causes"""
    out: Evidence
    traced: set[int] = field(default_factory=set)
    """inputs of significant dependence, which is not negligible"""

    @cached_property
    def moved(self) -> int:
        """In how many rows the target moves."""
        y = self.target.moves
        return int((np.abs(y - np.median(y, axis=0)) > 1e-9).any(1).sum())

    @property
    def is_rare(self) -> bool:
        return self.moved < RARE * len(self.target.moves)

    @property
    def moves_too_rarely(self) -> bool:
        """Whether these are too few rows to measure an effect."""
        return self.is_rare and self.moved < FEW

    @property
    def is_event(self) -> bool:
        return self.target.entropy is not None and self.is_rare

    @property
    def level(self) -> float:
        """Below which a p-value establishes a cause of this target."""
        return self.test.level / EVENT_FACTOR if self.is_event and self.moved >= FEW else self.test.level

    def run(self) -> None:
        own, name = self.target.own, self.target.factor.name
        others = [i for i in range(len(self.data.inputs)) if i != own]
        if name not in self.regressions.pooled.fits:  # the target never changes, so no other input moves it
            self.out.detectable[self.data.input_place[others], self.j] = 0
        elif name in self.regressions.hidden:
            self._test(self.regressions.within, [i for i in others if i not in self.constant])
            self._test(self.regressions.pooled, [i for i in others if i in self.constant])
        else:
            self._test(self.regressions.pooled, others)
        analysis = self.regressions.within if name in self.regressions.hidden else self.regressions.pooled
        if own is not None:
            self._test_own(analysis)
        if name in analysis.fits:
            self._check_sufficiency(analysis)
        self.out.p[:, self.j] = np.minimum(1.0, self.out.p[:, self.j] * (self.test.level / self.level))

    def _check_sufficiency(self, analysis: Analysis) -> None:
        """Reopen excluded inputs without which the mask predicts worse than all inputs (`sufficiency`)."""
        data, test, out, place = self.data, self.test, self.out, self.data.input_place
        full_fit = analysis.fits[self.target.factor.name]
        inputs = [i for i in range(len(data.inputs)) if i not in self.echoes]
        full = self._predict(analysis, set(inputs)) if self.echoes else full_fit.prediction

        def check(kept: set[int]) -> Sufficiency:
            return compare(
                full_fit.problem.target, self._predict(analysis, kept), full, data.starts, analysis.variation
            )

        p, effect, detectable = (a[place, self.j] for a in (out.p, out.effect, out.detectable))
        established = (p < self.level) & (effect >= test.least_effect)
        excluded = [i for i in inputs if i != self.target.own and not established[i] and np.isfinite(detectable[i])]
        excluded.sort(key=lambda i: (-effect[i], p[i]))
        # What goes along with the causes of a rare event improves its prediction too (`EVENT_FACTOR`).
        candidates = [] if self.is_event else excluded
        result = restore(check, set(inputs) - set(excluded), candidates, test.least_effect)
        for i in result.reopened:
            self._undetermined(i, f"without it the mask predicts {self.target.factor.name} worse than all inputs do")
        names = [data.inputs[i].name for i in result.reopened]
        out.sufficiency[self.target.factor.name] = {
            "loss": result.loss,
            "p": result.p,
            "reopened": names,
            "suffices": result.suffices,
            "hidden_cause": self.target.factor.name in self.regressions.hidden,
        }

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

        None up to `thorough` rows or `FEW_INPUTS` inputs, or where the target moves so rarely that a p-value decides
        by itself.
        """
        test, data, out, place = self.test, self.data, self.out, self.data.input_place
        y = full_fit.problem.target
        if len(y) <= test.thorough or len(inputs) <= FEW_INPUTS or self.moves_too_rarely:
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
            entropies = [self._entropy(source, y) for source in sources]
            batch = covariance_tests(residuals, squares, slopes, ry, data.starts, test.level, entropies)
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
        entropy = self._entropy(source, y)
        out.detectable[place] = detectable_effect(rx, ry, data.starts, self.test.level, entropy)
        trace = max(out.effect[place], covariance_share(rx, ry), covariance_share(direction, ry))
        if out.p[place] < self.test.level and trace >= TRACE * self.test.least_effect:
            self.traced.add(i)

    def _is_redundant(self, source: Source, y: np.ndarray) -> bool:
        """Whether, where y moves, the other inputs predict so much of this one that its test is in doubt."""
        return variation(source.residual, y) < 1 - self.test.redundant

    def _entropy(self, source: Source, y: np.ndarray) -> float | None:
        """Of a discrete target, for inputs that vary of their own accord: what an input that follows from the others
        adds to a rare event would have to show in the little that they leave of it."""
        return None if self._is_redundant(source, y) else self.target.entropy

    def _lacks_variation(self, source: Source, i: int, y: np.ndarray) -> bool:
        """Whether an input varies too little of its own accord.

        For states that move together, a tenth of their variance is enough. For an action that follows from the state
        it is not: the policy that logged it never tried the alternatives (positivity fails).
        """
        is_state = self.data.inputs[i].name in {target.factor.name for target in self.data.targets}
        return variation(source.residual, y) < (LEAST_VARIATION if is_state else 1 - self.test.redundant)

    def _undetermined(self, i: int, why: str, needs: str = "", kept: bool = True) -> None:
        """The data cannot decide whether input i matters; if not `kept`, it is left out while the mask suffices."""
        pair = self.data.inputs[i].name, self.target.factor.name
        self.out.detectable[self.data.input_place[i], self.j] = np.inf if kept else 1.0
        self.out.why[pair] = why
        if needs:
            self.out.needs[pair] = needs

    def _explain(self, analysis: Analysis, full_fit: FullFit, inputs: list[int]) -> None:
        """Decide which inputs, other than clear edges, these data cannot judge, and why."""
        test, out, least = self.test, self.out, self.test.least_effect
        place, y = (lambda i: (self.data.input_place[i], self.j)), full_fit.problem.target
        open_inputs = [i for i in inputs if not (out.p[place(i)] < self.level and out.effect[place(i)] >= least)]
        few, name = self.moves_too_rarely, self.target.factor.name
        redundant, testable = [], []
        for i in open_inputs:
            source = analysis.sources[i]
            if few and out.p[place(i)] < test.level:
                reason = f"{name} moved only {self.moved} times, too few to measure an effect"
                self._undetermined(i, reason, f"about {FEW} rows in which {name} moves")
            elif variation(self.regressions.engine.x[:, source.columns], y) < LEAST_VARIATION:
                self._undetermined(
                    i,
                    f"where {name} moves, {self.data.inputs[i].name} hardly varies",
                    f"rows in which {name} moves at other values of {self.data.inputs[i].name}",
                )
            elif i in self.traced:
                p, effect = out.p[place(i)], out.effect[place(i)]
                reason = f"significant (p {p:.1g}), but its effect is measured as {effect:.2g}"
                if effect >= least:
                    reason = f"{name} is a rare event, of which p {p:.1g} says too little: {self.level:g} is needed"
                self._undetermined(i, reason, "more rows, for a more accurate regression", kept=False)
            elif self._lacks_variation(source, i, y):
                redundant.append(i)
            else:
                testable.append(i)
        testable += self._judge_redundant(analysis, full_fit, redundant)
        established = set(inputs) - set(open_inputs)
        weak = [i for i in testable if out.detectable[place(i)] > test.excluding_effect]
        if weak and self._explained(analysis, full_fit, established):
            out.detectable[self.data.input_place[weak], self.j] = 0
        else:
            for i in weak:
                self._lacks_power(i, out.detectable[place(i)])
        for i in set(testable) - set(weak):
            p, effect, detectable = out.p[place(i)], out.effect[place(i)], out.detectable[place(i)]
            if effect >= least:
                pair = self.data.inputs[i].name, name
                out.why[pair] = f"its effect counts, but may be chance: p is not below {self.level:g}"
                out.needs[pair] = MORE_EPISODES
            elif (most := largest_effect(p, detectable, test.level)) >= least:
                reason = f"an effect of {most:.2g} is not ruled out (p {p:.1g})"
                self._undetermined(i, reason, MORE_EPISODES, kept=False)

    def _explained(self, analysis: Analysis, full_fit: FullFit, established: set[int]) -> bool:
        """Whether the established inputs leave nothing of the target unexplained that another input could explain."""
        y, square = full_fit.problem.target, analysis.variation.mean_square
        causes = established | ({self.target.own} if self.target.own is not None else set())
        unexplained = square(y - self._predict(analysis, causes)) / np.maximum(square(y), 1e-300)
        return bool((unexplained <= UNEXPLAINED).all())

    def _predict(self, analysis: Analysis, kept: set[int]) -> np.ndarray:
        """(n, w) the change of the target, held-out, from these inputs alone."""
        full_fit = analysis.fits[self.target.factor.name]
        keep = np.zeros_like(full_fit.problem.keep)
        keep[[c for i in kept for c in self.data.columns[i]]] = 1
        problem, starts = full_fit.problem._replace(keep=keep), analysis.variation.starts
        return self.regressions.engine.cross_fit([problem], [full_fit.kernel], starts)[0][1]

    def _lacks_power(self, i: int, detectable: float) -> None:
        pair = self.data.inputs[i].name, self.target.factor.name
        episodes, least = len(self.data.starts), self.test.excluding_effect
        if detectable == 1:
            self.out.why[pair], wanted = "too few episodes for a test of interactions", 30
        else:
            self.out.why[pair] = f"only an effect of {detectable:.2g} would have been seen; {least:g} is needed"
            wanted = int(np.ceil(episodes * detectable / least))
        self.out.needs[pair] = f"about {wanted:,} episodes like these {episodes:,}"

    def _judge_redundant(self, analysis: Analysis, full_fit: FullFit, inputs: list[int]) -> list[int]:
        """The inputs, of those with too little variation of their own, that the rows can judge all the same: the
        target needs neither them nor those from which they follow.

        The others are undetermined. So are all causes of an event: whether it needs them may show in few rows.
        """
        engine, prune_max, loss_max = (
            self.regressions.engine,
            self.test.least_effect / 3,
            self.test.least_effect * DOUBT,
        )
        arguments = inputs, self.data.columns, prune_max, loss_max
        losses, spare = loss_after_pruning(engine, full_fit.problem, full_fit.kernel, *arguments), []
        for i, loss_without in zip(inputs, losses, strict=True):
            needed = loss_without > loss_max
            if needed or self.target.entropy is not None:
                name = self.data.inputs[i].name
                reason = _redundancy_reason(self.data, engine, analysis.sources, i)
                self._undetermined(i, reason, f"rows in which {name} varies while these stay", kept=needed)
            else:
                spare.append(i)
        return spare


def _redundancy_reason(data: Prepared, engine: Engine, sources: list[Source], i: int) -> str:
    share = 1 - (sources[i].residual ** 2).mean()
    names = [data.inputs[k].name for k in relatives(engine.spread, data.columns, i)][:4]
    return f"{data.inputs[i].name} follows from the other inputs (R2 {share:.3f}); it goes with {', '.join(names)}"
