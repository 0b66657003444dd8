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
- detectable: the least effect that the tests would have shown (`covariance.detectable_effect`); 0 where the
  established causes explain the target, so that nothing is left for another input.
- A rare event needs a p-value a hundred times smaller (`target_test.EVENT_FACTOR`).
- Undetermined also: the input or the target does not vary; the target moves too rarely; the dependence is significant,
  but measured as tiny; an effect that counts is within the 95% interval (`covariance.largest_effect`); the input could
  stand in for others from which it follows (`redundancy`), or follows from others where the target is an event; the
  mask without it predicts worse (`sufficiency`); or the input drives a cause of the target. Within a step of dt a force
  moves a position by dt^2 / 2, and in the equations of a simulator that is an edge, which no number of rows rules out.

Assumptions: a smooth regression can learn the conditional means at this n; episodes are independent of one another;
hidden causes, if any, are constant in an episode and mostly shift the next state.
Valid for: continuous, binary and mixed factors, of any width. Least n: 100 rows, in at least 20 episodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.independence.target_log import TargetLog
from because_rl.discovery.independence.target_test import Criteria, TargetTest
from because_rl.discovery.regression.analysis import Regressions
from because_rl.discovery.regression.covariance import FOLDS
from because_rl.discovery.regression.engine import Budget
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.margins import Prepared, prepare
from because_rl.discovery.regression.threads import one_blas_thread, thread_map
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factor import OUTCOMES
from because_rl.transitions import MIN_EPISODES

BLOCK = 16
"""Targets that are regressed at a time."""

ECHO = "{} never changes in an episode, so it cannot be distinguished from a hidden cause"
CONTEXT = "give {} the role 'context' if it is an allowed cause"
CHAIN = "{0} drives {1}, which may drive {2}: what {0} adds to {2} within one step can be too small to show"
EQUATIONS = "knowledge of the system: force or forbid the edge"


@dataclass(frozen=True)
class ResidualTest(IndependenceTest):
    """See the module docstring."""

    folds: int = FOLDS
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
        if len(data.starts) < MIN_EPISODES:
            raise BecauseError(
                f"Got {len(data.starts)} episodes.",
                need=f"at least {MIN_EPISODES}: episodes, not rows, are the independent units.",
                fix="collect more episodes, or leave 'episode' out if the rows are independent draws.",
            )
        shape = (len(variables.inputs), len(variables.targets))
        blank = np.zeros(shape)
        out = Evidence(
            blank + 1, blank.copy(), blank.copy(), blank + np.inf, {}, echo=blank != 0, rows_used=len(data.x)
        )
        if data.inputs:
            may_hide = self.confounder and 2 * len(data.starts) <= len(data.x)
            constant = constant_inputs(data) if may_hide else set()
            echoes = {i for i in constant if data.inputs[i].role != "context"}
            self._test_targets(data, may_hide, constant, echoes, seed, out, log)
            _mark_echoes(data, echoes, out)
            self._mark_chains(variables, out)
        for i, source in enumerate(variables.inputs):
            for j, target_factor in enumerate(variables.targets):
                pair = source.name, target_factor.name
                if np.isinf(out.detectable[i, j]):
                    silent = source.name if i not in data.input_place else target_factor.name
                    out.why.setdefault(pair, f"{silent} never varies in these data")
        return out

    def _test_targets(
        self,
        data: Prepared,
        may_hide: bool,
        constant: set[int],
        echoes: set[int],
        seed: int,
        out: Evidence,
        log: TargetLog,
    ) -> None:
        """Write the columns of all targets that vary, block by block; those in the log are taken from there."""
        varying = [k for k, target in enumerate(data.targets) if target.level.shape[1]]
        waiting = [k for k in varying if not log.recall(data.target_place[k], out)]
        if not waiting:
            return
        regressions = Regressions(data, make_engine(data.x, data.folds, self.budget, seed))
        concurrent = regressions.engine.concurrent_targets
        criteria = Criteria(*(getattr(self, name) for name in Criteria._fields))

        def test(k: int) -> None:
            target, j = data.targets[k], data.target_place[k]
            TargetTest(criteria, data, regressions, target, j, constant, echoes, out).run()
            log.keep(j, target.factor.name, out)

        for start in range(0, len(waiting), size := max(BLOCK, concurrent)):
            block = waiting[start : start + size]
            regressions.fit_targets([data.targets[k] for k in block], may_hide)
            thread_map(test, block, threads=concurrent if len(block) >= concurrent else 1)

    def _mark_chains(self, variables: Variables, out: Evidence) -> None:
        """An input that drives a cause of the target is not excluded: what it adds within one step may not show."""
        assert out.echo is not None
        inputs, targets = ([f.name for f in factors] for factors in (variables.inputs, variables.targets))
        outcomes = {f.name for f in variables.targets if f.role in OUTCOMES}  # these cause nothing
        decided = np.isfinite(out.detectable)
        established = decided & (out.p < self.level) & (out.effect >= self.least_effect) & ~out.echo
        possible = established | ~decided & ~out.echo
        small = (out.effect < self.least_effect) & (out.detectable <= self.excluding_effect)
        for i, j in np.argwhere(small & ~out.echo):
            between = [
                name
                for k, name in enumerate(targets)
                if name not in (inputs[i], targets[j]) and name in inputs and name not in outcomes
                if established[i, k] and possible[inputs.index(name), j]
            ]
            if between and inputs[i] != targets[j]:
                pair = inputs[i], targets[j]
                out.detectable[i, j] = 1.0
                out.why[pair] = CHAIN.format(inputs[i], between[0], targets[j])
                out.needs[pair] = EQUATIONS


def constant_inputs(data: Prepared) -> set[int]:
    """The inputs that never change in an episode."""
    if len(data.starts) == len(data.x):
        return set()  # rows are independent draws: there are no episodes to be constant in

    def constant(x: np.ndarray) -> bool:
        return bool((np.maximum.reduceat(x, data.starts) == np.minimum.reduceat(x, data.starts)).all())

    return {i for i, columns in enumerate(data.columns) if constant(data.x[:, columns])}


def _mark_echoes(data: Prepared, echoes: set[int], out: Evidence) -> None:
    """Mark inputs as echoes of a hidden cause, except for their own targets."""
    assert out.echo is not None
    for i in echoes:
        for j, target in zip(data.target_place, data.targets, strict=True):
            if target.own != i:
                name = data.inputs[i].name
                out.echo[data.input_place[i], j] = True
                out.why[name, target.factor.name] = ECHO.format(name)
                out.needs[name, target.factor.name] = CONTEXT.format(name)
