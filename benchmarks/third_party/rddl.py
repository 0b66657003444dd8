"""Problems of the RDDL repository, as pyRDDLGym grounds them, evaluated for many rows at once.

pyRDDLGym steps one state at a time, about a hundred steps per second. Here the grounded expressions of the same model
are compiled to NumPy functions of whole batches. Every random variable is a function of one uniform number of its own,
so that the same numbers give the same noise: that is what perturbing one input at a time needs. A test compares both
simulators. As in pyRDDLGym, preconditions of actions other than bounds are not enforced.

It needs pyRDDLGym and rddlrepository beside what the package needs. In a checkout::

    pip install --no-deps --target rddl pyRDDLGym==2.7 rddlrepository==2.2 ply==3.11
    PYTHONPATH=rddl python -m benchmarks third-party graphs --keep work/third-party
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy.special import ndtri

from because_rl.errors import BecauseError

PROBLEMS = (
    *("CrossingTraffic_MDP_ippc2011", "Elevators_MDP_ippc2011", "GameOfLife_MDP_ippc2011"),
    *("Navigation_MDP_ippc2011", "SkillTeaching_MDP_ippc2011", "SysAdmin_MDP_ippc2011"),
    *("HVAC", "Navigation_Continuous", "PowerGen_Continuous", "Reservoir_Continuous", "UAV_Continuous"),
)
"""By a rule, before any result: the first instance of every fully observed problem of the planning competition of 2011
and of the repository's standalone problems that grounds to at most 20 state fluents, all Boolean or all real, and
actions that are all Boolean or all real; of several variants of one problem the continuous one."""

Rows = np.ndarray
Value = Any
"""a number, or (rows,)"""
Formula = Callable[[dict[str, Value], np.ndarray], Value]
"""(values by name, (uniform numbers, rows)) -> value"""

RELATIONS: dict[str, Callable] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "<": np.less,
    ">": np.greater,
    "==": np.equal,
    "~=": np.not_equal,
}
LOGIC: dict[str, Callable] = {
    "^": np.logical_and,
    "&": np.logical_and,
    "|": np.logical_or,
    "=>": lambda a, b: np.logical_or(np.logical_not(a), b),
    "<=>": np.equal,
}
ARITHMETIC: dict[str, Callable] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
FUNCTIONS: dict[str, Callable] = {
    **{name: getattr(np, name) for name in ("abs", "cos", "sin", "tan", "exp", "sqrt", "round", "floor", "ceil")},
    **{"min": np.minimum, "max": np.maximum, "pow": np.power, "sgn": np.sign, "ln": np.log},
}


@dataclass(frozen=True)
class Problem:
    """A grounded problem; states and actions are rows of float64, Booleans as 0 and 1."""

    name: str
    states: tuple[str, ...]
    actions: tuple[str, ...]
    boolean_states: bool
    boolean_actions: bool
    low: np.ndarray
    """(actions,) bounds"""
    high: np.ndarray
    horizon: int
    first: np.ndarray
    """(states,) at the beginning of every episode"""
    syntax: dict[str, frozenset[str]]
    """state -> the inputs that its equation names, also through intermediate fluents"""
    equations: tuple[tuple[str, Formula], ...]
    """in the order in which they are evaluated"""
    reward: Formula
    ends: tuple[Formula, ...]
    uniforms: int
    """random variables of a step"""

    @property
    def numbered(self) -> bool:
        """Whether an action is one of a list: nothing, or one fluent of them."""
        return self.boolean_actions

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.states, *self.actions)

    def step(self, state: Rows, action: Rows, noise: np.ndarray) -> tuple[Rows, np.ndarray, np.ndarray]:
        """(n, states), (n, actions) and uniform numbers (`uniforms`, n) -> next state, reward and end of each row."""
        values: dict[str, Value] = dict(zip(self.states, self._typed(state, self.boolean_states), strict=True))
        values |= zip(self.actions, self._typed(action, self.boolean_actions), strict=True)
        for name, formula in self.equations:
            values[name] = formula(values, noise)
        n = len(state)
        reward = np.broadcast_to(np.asarray(self.reward(values, noise), float), n)
        after = np.stack([np.broadcast_to(np.asarray(values[name + "'"], float), n) for name in self.states], 1)
        values |= zip(self.states, self._typed(after, self.boolean_states), strict=True)
        end = np.zeros(n, bool)
        for formula in self.ends:
            end |= np.broadcast_to(formula(values, noise), n)
        return after, reward, end

    def noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """For a step of n rows."""
        return rng.uniform(1e-12, 1.0, (self.uniforms, n))

    def random_actions(self, n: int, rng: np.random.Generator) -> Rows:
        """(n, actions) uniform over the numbered actions, or between the bounds."""
        if self.numbered:
            return self.codes[rng.integers(len(self.codes), size=n)]
        return rng.uniform(self.low, self.high, (n, len(self.actions)))

    @property
    def codes(self) -> np.ndarray:
        """(numbered actions, actions): nothing, and each fluent alone."""
        return np.vstack([np.zeros(len(self.actions)), np.eye(len(self.actions))])

    @staticmethod
    def _typed(rows: Rows, boolean: bool) -> Rows:
        return (rows.T > 0.5) if boolean else rows.T


def load_problem(name: str) -> Problem:
    """The first instance of a problem of the repository."""
    try:
        import pyRDDLGym  # type: ignore[import-not-found]
        from pyRDDLGym.core.compiler.levels import RDDLLevelAnalysis  # type: ignore[import-not-found]
        from pyRDDLGym.core.grounder import RDDLGrounder  # type: ignore[import-not-found]
        from rddlrepository.core.manager import RDDLRepoManager  # type: ignore[import-not-found]
    except ImportError as error:
        raise BecauseError(
            f"RDDL problems need pyRDDLGym and rddlrepository ({error}).",
            need="both importable.",
            fix="install them as the docstring of benchmarks/third_party/rddl.py says.",
        ) from error
    with contextlib.redirect_stdout(io.StringIO()):  # of the parser
        manager = RDDLRepoManager()
        if name not in (known := manager.list_problems()):
            raise BecauseError(f"There is no problem {name!r}.", need=f"one of {', '.join(known)}.", fix="correct it.")
        env = pyRDDLGym.make(name, manager.archiver_dict[name]["instances"][0])
        model = RDDLGrounder(env.model.ast).ground()
        order = [cpf for level in RDDLLevelAnalysis(model).compute_levels().values() for cpf in level]
    states, actions = tuple(model.state_fluents), tuple(model.action_fluents)
    compiler = Compiler(model.non_fluents)
    equations = tuple((cpf, compiler.formula(model.cpfs[cpf][1])) for cpf in order)
    box = [env.action_space[action] for action in actions]
    boolean_actions = _all_boolean(model.action_ranges, actions, name)
    return Problem(
        name,
        states,
        actions,
        _all_boolean(model.state_ranges, states, name),
        boolean_actions,
        np.array([0.0 if boolean_actions else float(np.squeeze(b.low)) for b in box]),
        np.array([1.0 if boolean_actions else float(np.squeeze(b.high)) for b in box]),
        int(env.horizon),
        np.array([float(value) for value in model.state_fluents.values()]),
        {s: _named_inputs(model, s + "'", {*states, *actions}) for s in states},
        equations,
        compiler.formula(model.reward),
        tuple(compiler.formula(end) for end in model.terminations),
        compiler.uniforms,
    )


def _all_boolean(ranges: dict[str, str], names: Sequence[str], problem: str) -> bool:
    kinds = {ranges[name] for name in names}
    if kinds not in ({"bool"}, {"real"}):
        raise BecauseError(
            f"{problem} has fluents of types {', '.join(sorted(kinds))}.", need="all bool or all real.", fix="drop it."
        )
    return kinds == {"bool"}


def _named_inputs(model: Any, name: str, inputs: set[str]) -> frozenset[str]:
    """The inputs that an equation names, also through other equations."""

    def walk(part: Any) -> frozenset[str]:
        if hasattr(part, "etype"):
            if part.etype[0] == "pvar":
                named = part.args[0]
                if named in inputs:
                    return frozenset((named,))
                return walk(model.cpfs[named][1]) if named in model.cpfs else frozenset()
            return walk(part.args)
        if isinstance(part, dict):
            part = list(part.values())
        return frozenset().union(*map(walk, part)) if isinstance(part, list | tuple) else frozenset()

    return walk(model.cpfs[name][1])


class Compiler:
    """Grounded expressions to functions of batches; parts that only name constants are evaluated once."""

    def __init__(self, constants: dict[str, Value]) -> None:
        self.constants = constants
        self.uniforms = 0

    def formula(self, expression: Any) -> Formula:
        """Of a grounded expression of pyRDDLGym."""
        made = self._make(expression)
        return made if callable(made) else lambda values, noise: made

    def _make(self, e: Any) -> Formula | Value:
        """A function, or the value of what is constant."""
        (kind, name), args = e.etype, e.args
        if kind == "constant":
            return args
        if kind == "pvar":
            fluent = args[0]
            if fluent in self.constants:
                return self.constants[fluent]
            return lambda values, noise: values[fluent]
        if kind == "randomvar":
            return self._random(name, [self._make(arg) for arg in args])
        if kind == "control" and name == "if":
            condition, *branches = map(self._make, args)
            if not callable(condition):
                return branches[0] if condition else branches[1]
            return _apply(np.where, [condition, *branches])
        parts = [self._make(arg) for arg in args]
        if kind == "boolean":
            if name == "~" and len(parts) == 1:
                return _apply(np.logical_not, parts)
            decisive = {"^": False, "&": False, "|": True}.get(name)
            if decisive is not None and any(not callable(p) and bool(p) == decisive for p in parts):
                return decisive
            if name in LOGIC:
                return _apply(lambda *given: reduce(LOGIC[name], given), parts)
        if kind == "arithmetic":
            if name == "-" and len(parts) == 1:
                return _apply(lambda given: -_number(given), parts)
            return _apply(lambda *given: reduce(ARITHMETIC[name], map(_number, given)), parts)
        if kind == "relational":
            return _apply(RELATIONS[name], parts)
        if kind == "func" and name in FUNCTIONS:
            return _apply(lambda *given: FUNCTIONS[name](*map(_number, given)), parts)
        raise BecauseError(f"Got the RDDL expression {kind} {name}.", need="a known one.", fix="drop the problem.")

    def _random(self, name: str, parts: list[Formula | Value]) -> Formula | Value:
        if name in ("KronDelta", "DiracDelta"):
            return parts[0]
        draws: dict[str, Callable] = {
            "Bernoulli": lambda u, p: u < p,
            "Normal": lambda u, mean, variance: mean + np.sqrt(variance) * ndtri(u),
            "Uniform": lambda u, low, high: low + u * (high - low),
        }
        if name not in draws:
            raise BecauseError(f"Got the distribution {name}.", need="a known one.", fix="drop the problem.")
        number, draw = self.uniforms, draws[name]
        self.uniforms += 1
        return _apply(draw, [lambda values, noise: noise[number], *parts])


def _apply(function: Callable, parts: Sequence[Formula | Value]) -> Formula | Value:
    if not any(map(callable, parts)):
        return function(*parts)
    return lambda values, noise: function(*(p(values, noise) if callable(p) else p for p in parts))


def _number(value: Value) -> Value:
    """Booleans count as 0 and 1 in sums."""
    return np.asarray(value, float)
