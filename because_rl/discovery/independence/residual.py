"""The default test for continuous and mixed data: cross-fitted residuals, with regressions shared by all pairs.

For input x, target y and all other inputs z,

    r_x = x - E[x | z],    r_y = y - E[y | z],    H0: E[r_x r_y] = 0 and E[(f(x, z) - f(E[x|z], z)) r_y] = 0

with the conditional means from `regression` (each row is predicted from folds of other episodes) and the two tests
from `covariance`, in which whole episodes are the unit of replication. Each input is regressed on the others once,
each target on all inputs once; per pair only the linear algebra of the fit without x remains. Beyond `thorough` rows
even that is skipped where it cannot matter: f(E[x|z], z) replaces E[y|z] wherever it already predicts so well that x
cannot have an effect.

- The target of a state factor is its *change*; only its own last value is tested against the level (`margins`).
- Causes that are hidden and constant in an episode are estimated and conditioned on (`confounder`). No data can
  distinguish an input that is itself constant in every episode (a colour, a serial number) from such a cause: it is
  taken as an *echo* of one, and has no edges except to itself unless they are forced. Without hidden causes
  (`confounder=False`) it is tested like any other input.
- effect = 1 - error(x, z) / error(z), held-out: the share of what z leaves unexplained that x explains, in the
  column where it is largest. At large n regression error gives small p-values with tiny effects, so `decide`
  requires both.
- Untestable: the input or the target does not vary; the target moves too rarely; or the input follows from the
  others and could stand in for them (`redundancy`).

Assumptions: a smooth regression can learn the conditional means at this n; episodes are independent of one another;
hidden causes, if any, are constant in an episode and mostly shift the next state.
Valid for: continuous, binary and mixed factors, of any width. Least n: 100 rows, in at least 20 episodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.regression.confounder import hidden_causes
from because_rl.discovery.regression.covariance import Basis, combine, covariance_test, projected_test
from because_rl.discovery.regression.engine import Budget, Engine, Problem
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.kernel_ridge import Fit, LearnedKernel
from because_rl.discovery.regression.margins import Prepared, Target, prepare
from because_rl.discovery.regression.redundancy import loss, loss_after_pruning, relatives, variation
from because_rl.discovery.regression.threads import cores, one_blas_thread, thread_map
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError

LEAST_EPISODES = 20
LEAST_VARIATION = 0.1
"""Share of an input's variance in the rows where the target moves; with less, a large p-value is not informative."""
TRACE = 1e-4
"""p-value below which a redundant input may be a cause whatever its effect, which its small variation limits."""
DOUBT = 0.1
"""Share of `least_effect` that a redundant input must explain, once its relatives are pruned, to count as possible."""

FEW, RARE = 200, 0.05
"""Rows in which a target moves, and their share of all rows. With fewer, a small effect with a small p-value is no
answer: the regression that measures effects has too little to learn from."""

ECHO = "{} never changes in an episode, so it cannot be distinguished from a hidden cause and is taken as its echo"


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
    name: ClassVar[str] = "residual"
    least_n: ClassVar[int] = 100
    least_effect: ClassVar[float] = 0.03

    def settings(self) -> dict[str, Any]:
        return {"test": self.name, "least_effect": self.least_effect, **asdict(self)}

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
            hidden = [hidden_causes(data, self.budget, seed)] if self.confounder else []
            engine = make_engine(np.hstack([data.x, *hidden]), data.folds, self.budget, seed)
            context = _Context(self, data, engine, _regress_inputs(data, engine))
            fits = _regress_targets(data, engine)
            varying = [k for k, target in enumerate(data.targets) if target.level.shape[1]]

            def test(k: int) -> None:
                target = data.targets[k]
                _test_target(context, target, fits.get(target.factor.name), data.target_place[k], out)

            thread_map(test, varying, threads=engine.concurrent_targets)
            if self.confounder:
                _mark_echoes(data, out)
        for i, source in enumerate(variables.inputs):
            for j, target_factor in enumerate(variables.targets):
                if np.isinf(out.detectable[i, j]):
                    constant = source.name if i not in data.input_place else target_factor.name
                    out.why.setdefault((source.name, target_factor.name), f"{constant} never varies in these data")
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


def _regress_inputs(data: Prepared, engine: Engine) -> list[_Source]:
    """Regress each input on the others."""
    keeps = np.ones((len(data.inputs), engine.x.shape[1]))
    for keep, columns in zip(keeps, data.columns, strict=True):
        keep[columns] = 0
    names = [f"input {factor.name}" for factor in data.inputs]
    problems = thread_map(engine.problem, names, [engine.x[:, columns] for columns in data.columns], list(keeps))
    kernels = engine.learn(problems)

    def source(columns: np.ndarray, problem: Problem, kernel: LearnedKernel, fitted: tuple[Fit, np.ndarray]) -> _Source:
        prediction = fitted[1]
        basis = Basis(engine.x, problem.keep, prediction)
        return _Source(columns, problem.keep, kernel, basis, basis.remove(problem.target - prediction), prediction)

    return thread_map(source, data.columns, problems, kernels, engine.cross_fit(problems, kernels))


class _Context(NamedTuple):
    """What the tests of all targets share."""

    test: ResidualTest
    data: Prepared
    engine: Engine
    sources: list[_Source]


class _FullFit(NamedTuple):
    """The regression of one target on all inputs."""

    problem: Problem
    kernel: LearnedKernel
    fit: Fit
    prediction: np.ndarray


def _regress_targets(data: Prepared, engine: Engine) -> dict[str, _FullFit]:
    """Target name -> its regression, for the targets that ever change."""
    keep = np.ones(engine.x.shape[1])
    targets = [target for target in data.targets if target.moves.shape[1]]
    problems = thread_map(lambda t: engine.problem(f"target {t.factor.name}", t.moves, keep), targets)
    kernels = engine.learn(problems)
    fits = engine.cross_fit(problems, kernels)
    return {t.factor.name: _FullFit(p, k, *f) for t, p, k, f in zip(targets, problems, kernels, fits, strict=True)}


def _test_target(context: _Context, target: Target, full_fit: _FullFit | None, j: int, out: Evidence) -> None:
    """Write column j of the evidence: every input against one target."""
    test, data, engine, sources = context
    others = [i for i in range(len(sources)) if i != target.own]
    predicted_inputs = np.zeros_like(engine.x)
    for source in sources:
        predicted_inputs[:, source.columns] = source.prediction

    def compare(i: int, y: np.ndarray, full: np.ndarray, reduced: np.ndarray, substituted: np.ndarray) -> None:
        """Test input i, from predictions of y: with all inputs, without i, and with i replaced by its prediction."""
        source, place = sources[i], (data.input_place[i], j)
        ry = y - reduced
        rx, direction = source.residual, source.basis.remove(full - substituted)
        if _is_redundant(test, source, y):
            projection = source.basis.where_moving(reduced)
            rx, direction = projection.remove(rx), projection.remove(direction)
        t, p_covariance = covariance_test(rx, ry, data.starts)
        z, p_projected = projected_test(direction, ry, data.starts, data.folds)
        out.p[place], out.statistic[place] = combine(p_covariance, p_projected), max(t, z)
        without = np.minimum((ry**2).mean(0), ((y - substituted) ** 2).mean(0))
        out.effect[place] = loss(without, ((y - full) ** 2).mean(0))
        out.detectable[place] = 0

    if full_fit is None:  # the target never changes, so no other input moves it
        out.detectable[data.input_place[others], j] = 0
    else:
        y, full = full_fit.problem.target, full_fit.prediction
        problems = {i: full_fit.problem._replace(keep=sources[i].keep) for i in others}
        predictions = engine.predict_substituted(list(problems.values()), full_fit.fit, predicted_inputs)
        substituted = dict(zip(others, predictions, strict=True))
        error = ((y - full) ** 2).mean(0)
        refitted = [
            i
            for i in others
            if len(y) <= test.thorough or loss(((y - substituted[i]) ** 2).mean(0), error) >= test.least_effect
        ]
        fits = engine.cross_fit([problems[i] for i in refitted], [full_fit.kernel] * len(refitted))
        reduced = substituted | {i: prediction for i, (_, prediction) in zip(refitted, fits, strict=True)}
        threads = max(1, cores() // engine.concurrent_targets)
        thread_map(lambda i: compare(i, y, full, reduced[i], substituted[i]), others, threads=threads)
        _mark_untestable(context, target, full_fit, j, out)

    if target.own is not None:
        # The change contains the last value, so that input is tested against the level: last value + change.
        own, i = sources[target.own], target.own
        mixed = np.where(own.keep > 0, engine.x, predicted_inputs)
        if full_fit is None:
            change = substituted_change = target.moves * 0
            kernel = own.kernel
        else:
            change, substituted_change = full_fit.prediction, engine.predict(full_fit.fit, mixed)
            kernel = own.kernel._replace(metric=own.kernel.metric + full_fit.kernel.metric)
        problem = engine.problem(f"level {target.factor.name}", target.level, own.keep)
        compare(
            i,
            target.level,
            engine.x[:, own.columns] @ target.persist + change @ target.gain,
            engine.cross_fit([problem], [kernel])[0][1],
            own.prediction @ target.persist + substituted_change @ target.gain,
        )
        if variation(own.residual, target.level) < LEAST_VARIATION:
            place = data.input_place[i], j
            out.detectable[place] = np.inf
            out.why[data.inputs[i].name, target.factor.name] = _redundancy_reason(data, engine, sources, i)


def _mark_untestable(context: _Context, target: Target, full_fit: _FullFit, j: int, out: Evidence) -> None:
    """Mark the pairs of one target, other than clear edges, that the data cannot decide."""
    test, data, _, sources = context
    p, effect = out.p[data.input_place, j], out.effect[data.input_place, j]
    undecided = [
        i
        for i in range(len(sources))
        if i != target.own and not (p[i] < TRACE and effect[i] > test.least_effect)  # those are edges
    ]
    why = _too_few_moves(target, full_fit, [i for i in undecided if p[i] < TRACE])
    rest = [i for i in undecided if i not in why]
    why |= _redundant(context, target, full_fit, rest, p)
    for i, reason in why.items():
        out.detectable[data.input_place[i], j] = np.inf
        out.why[data.inputs[i].name, target.factor.name] = reason


def _too_few_moves(target: Target, full_fit: _FullFit, suspects: list[int]) -> dict[int, str]:
    """Reasons for all suspects, if the target moves too rarely to measure their effects; else none."""
    y = full_fit.problem.target
    moved = int((np.abs(y - np.median(y, axis=0)) > 1e-9).any(1).sum())
    few = moved < FEW and moved < RARE * len(y)
    reason = f"{target.factor.name} moved only {moved} times, too few to measure an effect"
    return dict.fromkeys(suspects, reason) if few else {}


def _redundant(
    context: _Context, target: Target, full_fit: _FullFit, inputs: list[int], p: np.ndarray
) -> dict[int, str]:
    """Reasons for the inputs that have too little variation of their own and could still matter."""
    test, data, engine, sources = context
    y, why, unclear = full_fit.problem.target, {}, []
    # For states that move together, a tenth of variation of their own is enough to decide. For an action that follows
    # from the state it is not: the policy that logged it never tried the alternatives (positivity fails).
    states = {t.factor.name for t in data.targets}
    for i in inputs:
        name, source = data.inputs[i].name, sources[i]
        if not _is_redundant(test, source, y):
            continue
        if variation(engine.x[:, source.columns], y) < LEAST_VARIATION:
            why[i] = f"where {target.factor.name} moves, {name} hardly varies"
        elif p[i] < TRACE:
            why[i] = _redundancy_reason(data, engine, sources, i) + "; there is a trace of dependence"
        elif name not in states or variation(source.residual, y) < LEAST_VARIATION:
            unclear.append(i)
    prune_max, loss_max = test.least_effect / 3, test.least_effect * DOUBT
    losses = loss_after_pruning(engine, full_fit.problem, full_fit.kernel, unclear, data.columns, prune_max, loss_max)
    needed = [i for i, loss_without in zip(unclear, losses, strict=True) if loss_without > loss_max]
    return why | {i: _redundancy_reason(data, engine, sources, i) for i in needed}


def _is_redundant(test: ResidualTest, source: _Source, y: np.ndarray) -> bool:
    """Whether, where y moves, the other inputs predict so much of this one that its test is in doubt."""
    return variation(source.residual, y) < 1 - test.redundant


def _mark_echoes(data: Prepared, out: Evidence) -> None:
    """Mark the inputs that are constant in every episode as echoes of a hidden cause, except for their own targets."""
    assert out.echo is not None
    if len(data.starts) == len(data.x):
        return  # rows are independent draws: there are no episodes to be constant in
    for i, (source, columns) in enumerate(zip(data.inputs, data.columns, strict=True)):
        x = data.x[:, columns]
        if (np.maximum.reduceat(x, data.starts) == np.minimum.reduceat(x, data.starts)).all():
            for j, target in zip(data.target_place, data.targets, strict=True):
                if target.own != i:
                    place = data.input_place[i], j
                    out.echo[place], out.detectable[place] = True, 0
                    out.why[source.name, target.factor.name] = ECHO.format(source.name)


def _redundancy_reason(data: Prepared, engine: Engine, sources: list[_Source], i: int) -> str:
    share = 1 - (sources[i].residual ** 2).mean()
    names = [data.inputs[k].name for k in relatives(engine.spread, data.columns, i)][:4]
    return f"{data.inputs[i].name} follows from the other inputs (R2 {share:.3f}); it goes with {', '.join(names)}"
