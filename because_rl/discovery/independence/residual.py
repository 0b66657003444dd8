"""The default test for continuous and mixed data: cross-fitted residuals, with regressions shared by all pairs.

For input x, target y and all other inputs z,

    r_x = x - E[x | z],    r_y = y - E[y | z],    H0: E[r_x r_y] = 0 and E[(f(x, z) - f(E[x|z], z)) r_y] = 0

with the conditional means from `regression` (each row predicted by folds of other episodes) and the two tests
from `covariance`, in which whole episodes are the unit of replication. Each input is regressed on the others
once, each target on all inputs once; per pair only the linear algebra of the fit without x remains. Beyond
`thorough` rows even that is left out where nothing can hang on it: f(E[x|z], z) stands in for E[y|z] wherever
it already predicts so well that x cannot have an effect.

- The target of a state factor is its *change*; only its own last value is tested against the level (`margins`).
- Causes that are hidden and constant in an episode are estimated and conditioned on (`confounder`). An input
  that is itself constant in every episode (a colour, a serial number) cannot be told from such a cause by any
  data: it is taken as an *echo* of one, and has no edges but to itself unless they are forced. Without hidden
  causes (`confounder=False`) it is tested like any other input.
- effect = 1 - error(x, z) / error(z), held-out: the share of what z leaves unexplained that x explains, in the
  column where it is largest. Small p with a tiny effect is what regression error looks like at large n, so
  `decide` asks for both.
- Untestable: the input or the target does not vary; the target moves too rarely; or the input follows from the
  others and could stand in for them (`redundancy`).

Assumes that the conditional means are within reach of a smooth regression at this n, and that episodes are
independent of one another. Least n: 100 rows, in at least 20 episodes.
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
from because_rl.discovery.regression.kernel_ridge import Fit, Law
from because_rl.discovery.regression.margins import Prepared, Target, prepare
from because_rl.discovery.regression.redundancy import last_chance, loss, relatives, variation
from because_rl.discovery.regression.threads import cores, each, one_blas_thread
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError

LEAST_EPISODES = 20
LEAST_VARIATION = 0.1
"""Of an input's variance, in the rows where the target moves: with less, a test that finds nothing says nothing."""
TRACE = 1e-4
"""A p-value below which a redundant input counts as possible whatever its effect, which its little variation bounds."""
DOUBT = 0.1
"""Of `least_effect`: what a redundant input must explain, given its last chance, to stay possible."""

FEW, RARE = 200, 0.05
"""Rows in which a target moves, and their share of all. With fewer, a small effect beside a small p-value is no
answer: the regression by which effects are measured has too little to learn from."""

ECHO = "{} never changes in an episode, so it cannot be told from a hidden cause and is taken as its echo"


@dataclass(frozen=True)
class ResidualTest(IndependenceTest):
    folds: int = 5
    budget: Budget = field(default_factory=Budget)
    redundant: float = 0.7
    """share of an input's variance that the others may tell, where the target moves, before we doubt the test"""
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
        out = Evidence(blank + 1, blank.copy(), blank.copy(), blank == 0, {}, echo=blank != 0)
        if data.inputs:
            hidden = [hidden_causes(data, self.budget, seed)] if self.confounder else []
            engine = make_engine(np.hstack([data.x, *hidden]), data.folds, self.budget, seed)
            inquiry = _Inquiry(self, data, engine, _regress_inputs(data, engine))
            fits = _regress_targets(data, engine)
            varying = [k for k, target in enumerate(data.targets) if target.level.shape[1]]

            def test(k: int) -> None:
                target = data.targets[k]
                _test_target(inquiry, target, fits.get(target.factor.name), data.target_place[k], out)

            each(test, varying, threads=engine.lanes)
            if self.confounder:
                _set_echoes_apart(data, out)
        for i, source in enumerate(variables.inputs):
            for j, target_factor in enumerate(variables.targets):
                if out.untestable[i, j]:
                    still = source.name if i not in data.input_place else target_factor.name
                    out.why.setdefault((source.name, target_factor.name), f"{still} never varies in these data")
        return out


class _Source(NamedTuple):
    """One input: its columns, the others, how they tell it, and what they do not tell of it."""

    columns: np.ndarray
    keep: np.ndarray
    law: Law
    basis: Basis
    residual: np.ndarray
    guess: np.ndarray


def _regress_inputs(data: Prepared, engine: Engine) -> list[_Source]:
    keeps = np.ones((len(data.inputs), engine.x.shape[1]))
    for keep, columns in zip(keeps, data.columns, strict=True):
        keep[columns] = 0
    names = [f"input {factor.name}" for factor in data.inputs]
    problems = each(engine.problem, names, [engine.x[:, columns] for columns in data.columns], list(keeps))
    laws = engine.learn(problems)

    def source(columns: np.ndarray, problem: Problem, law: Law, fitted: tuple[Fit, np.ndarray]) -> _Source:
        guess = fitted[1]
        basis = Basis(engine.x, problem.keep, guess)
        return _Source(columns, problem.keep, law, basis, basis.remove(problem.target - guess), guess)

    return each(source, data.columns, problems, laws, engine.cross_fit(problems, laws))


class _Inquiry(NamedTuple):
    """What the tests of all targets share."""

    test: ResidualTest
    data: Prepared
    engine: Engine
    sources: list[_Source]


class _Whole(NamedTuple):
    """One target on all inputs."""

    problem: Problem
    law: Law
    fit: Fit
    guess: np.ndarray


def _regress_targets(data: Prepared, engine: Engine) -> dict[str, _Whole]:
    keep = np.ones(engine.x.shape[1])
    targets = [target for target in data.targets if target.moves.shape[1]]
    problems = each(lambda t: engine.problem(f"target {t.factor.name}", t.moves, keep), targets)
    laws = engine.learn(problems)
    fits = engine.cross_fit(problems, laws)
    return {t.factor.name: _Whole(p, w, *f) for t, p, w, f in zip(targets, problems, laws, fits, strict=True)}


def _test_target(
    inquiry: _Inquiry,
    target: Target,
    whole: _Whole | None,
    j: int,
    out: Evidence,
) -> None:
    test, data, engine, sources = inquiry
    others = [i for i in range(len(sources)) if i != target.own]
    plug = np.zeros_like(engine.x)
    for source in sources:
        plug[:, source.columns] = source.guess

    def compare(i: int, y: np.ndarray, full: np.ndarray, reduced: np.ndarray, plugged: np.ndarray) -> None:
        source, place = sources[i], (data.input_place[i], j)
        ry = y - reduced
        rx, direction = source.residual, source.basis.remove(full - plugged)
        if _is_told(test, source, y):
            near = source.basis.near(reduced)
            rx, direction = near.remove(rx), near.remove(direction)
        t, p_covariance = covariance_test(rx, ry, data.starts)
        z, p_projected = projected_test(direction, ry, data.starts, data.folds)
        out.p[place], out.statistic[place] = combine(p_covariance, p_projected), max(t, z)
        without = np.minimum((ry**2).mean(0), ((y - plugged) ** 2).mean(0))
        out.effect[place] = loss(without, ((y - full) ** 2).mean(0))
        out.untestable[place] = False

    if whole is None:  # it keeps its value for good, so nothing else moves it
        out.untestable[data.input_place[others], j] = False
    else:
        y, full = whole.problem.target, whole.guess
        problems = {i: whole.problem._replace(keep=sources[i].keep) for i in others}
        plugged = dict(zip(others, engine.without(list(problems.values()), whole.fit, plug), strict=True))
        error = ((y - full) ** 2).mean(0)
        open_questions = [
            i
            for i in others
            if len(y) <= test.thorough or loss(((y - plugged[i]) ** 2).mean(0), error) >= test.least_effect
        ]
        fits = engine.cross_fit([problems[i] for i in open_questions], [whole.law] * len(open_questions))
        reduced = plugged | {i: guess for i, (_, guess) in zip(open_questions, fits, strict=True)}
        threads = max(1, cores() // engine.lanes)
        each(lambda i: compare(i, y, full, reduced[i], plugged[i]), others, threads=threads)
        _look_for_untestable(inquiry, target, whole, j, out)

    if target.own is not None:
        # The change and the last value cannot be told apart here: test the level, told as last value + change.
        own, i = sources[target.own], target.own
        mixed = np.where(own.keep > 0, engine.x, plug)
        change, guess = (target.moves * 0,) * 2 if whole is None else (whole.guess, engine.predict(whole.fit, mixed))
        own_law = own.law if whole is None else own.law._replace(metric=own.law.metric + whole.law.metric)
        problem = engine.problem(f"level {target.factor.name}", target.level, own.keep)
        compare(
            i,
            target.level,
            engine.x[:, own.columns] @ target.persist + change @ target.gain,
            engine.cross_fit([problem], [own_law])[0][1],
            own.guess @ target.persist + guess @ target.gain,
        )
        if variation(own.residual, target.level) < LEAST_VARIATION:
            place = data.input_place[i], j
            out.untestable[place] = True
            out.why[data.inputs[i].name, target.factor.name] = _told(data, engine, sources, i)


def _look_for_untestable(
    inquiry: _Inquiry,
    target: Target,
    whole: _Whole,
    j: int,
    out: Evidence,
) -> None:
    test, data, _, sources = inquiry
    p, effect = out.p[data.input_place, j], out.effect[data.input_place, j]
    open_questions = [
        i
        for i in range(len(sources))
        if i != target.own and not (p[i] < TRACE and effect[i] > test.least_effect)  # those are edges
    ]
    why = _too_few_moves(target, whole, [i for i in open_questions if p[i] < TRACE])
    rest = [i for i in open_questions if i not in why]
    why |= _redundant(inquiry, target, whole, rest, p)
    for i, reason in why.items():
        out.untestable[data.input_place[i], j] = True
        out.why[data.inputs[i].name, target.factor.name] = reason


def _too_few_moves(target: Target, whole: _Whole, suspects: list[int]) -> dict[int, str]:
    """The suspects, if the target moves so rarely that their effects cannot be measured."""
    y = whole.problem.target
    moved = int((np.abs(y - np.median(y, axis=0)) > 1e-9).any(1).sum())
    few = moved < FEW and moved < RARE * len(y)
    reason = f"{target.factor.name} moved only {moved} times, too few to measure an effect by"
    return dict.fromkeys(suspects, reason) if few else {}


def _redundant(
    inquiry: _Inquiry,
    target: Target,
    whole: _Whole,
    inputs: list[int],
    p: np.ndarray,
) -> dict[int, str]:
    """Inputs that have too little variation of their own and could still matter."""
    test, data, engine, sources = inquiry
    y, why, unclear = whole.problem.target, {}, []
    # Of states that move together a tenth of variation of their own is enough to tell. An action that follows from
    # the state is another matter: the policy that logged it never tried what we ask about (positivity fails).
    states = {t.factor.name for t in data.targets}
    for i in inputs:
        name, source = data.inputs[i].name, sources[i]
        if not _is_told(test, source, y):
            continue
        if variation(engine.x[:, source.columns], y) < LEAST_VARIATION:
            why[i] = f"where {target.factor.name} moves, {name} hardly varies"
        elif p[i] < TRACE:
            why[i] = _told(data, engine, sources, i) + "; there is a trace of dependence"
        elif name not in states or variation(source.residual, y) < LEAST_VARIATION:
            unclear.append(i)
    gate, doubt = test.least_effect / 3, test.least_effect * DOUBT
    needs = last_chance(engine, whole.problem, whole.law, unclear, data.columns, gate, doubt)
    return why | {i: _told(data, engine, sources, i) for i, need in zip(unclear, needs, strict=True) if need > doubt}


def _is_told(test: ResidualTest, source: _Source, y: np.ndarray) -> bool:
    """Whether, where y moves, the other inputs tell so much of this one that its test is in doubt."""
    return variation(source.residual, y) < 1 - test.redundant


def _set_echoes_apart(data: Prepared, out: Evidence) -> None:
    assert out.echo is not None
    if len(data.starts) == len(data.x):
        return  # rows are independent draws: there are no episodes to be constant in
    for i, (source, columns) in enumerate(zip(data.inputs, data.columns, strict=True)):
        x = data.x[:, columns]
        if (np.maximum.reduceat(x, data.starts) == np.minimum.reduceat(x, data.starts)).all():
            for j, target in zip(data.target_place, data.targets, strict=True):
                if target.own != i:
                    place = data.input_place[i], j
                    out.echo[place], out.untestable[place] = True, False
                    out.why[source.name, target.factor.name] = ECHO.format(source.name)


def _told(data: Prepared, engine: Engine, sources: list[_Source], i: int) -> str:
    share = 1 - (sources[i].residual ** 2).mean()
    names = [data.inputs[k].name for k in relatives(engine.spread, data.columns, i)][:4]
    return f"{data.inputs[i].name} follows from the other inputs (R2 {share:.3f}); it goes with {', '.join(names)}"
