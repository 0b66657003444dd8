"""Factors: the named variables of the state, the action and the goal, between which causal graphs are drawn.

A factor owns a slice of columns of the state, the action or the goal vector. Factors of one *kind* mean the same sort
of thing (agent, key and door are all sets of cells) and share an encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.constraints import Constraint, check_constraints, parse_constraints
from because_rl.errors import BecauseError
from because_rl.factor import FIX, OUTCOMES, GoalFactor, number
from because_rl.factor import Factor as Factor
from because_rl.factor import wrapped_difference as wrapped_difference
from because_rl.factor_file import name_columns, number_columns, read_factor_file


@dataclass(frozen=True)
class FactorSpec:
    """The factors of state, action and goal of one dataset or environment.

    `codes` is for discrete actions: row a holds the action columns that models take for action a. `constraints` are
    limits that a policy must keep before all else.

    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))
    >>> spec.inputs, spec.targets, spec.state_size
    (('x', 'on', 'push'), ('x', 'on'), 2)
    """

    state: tuple[Factor, ...]
    action: tuple[Factor, ...]
    goal: tuple[GoalFactor, ...] = ()
    codes: tuple[tuple[float, ...], ...] | None = None
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        for group in ("state", "action", "goal"):
            factors: tuple[Factor, ...] = getattr(self, group)
            if group != "goal" and not factors:
                raise BecauseError(f"No {group} factor is given.", need=f"at least one {group} factor.", fix=FIX)
            column = 0
            for factor in sorted(factors, key=lambda f: f.start):
                if factor.start != column:
                    what = "is missing from" if factor.start > column else "belongs twice to"
                    raise BecauseError(
                        f"Column {min(column, factor.start)} {what} the {group} factors (near {factor.name!r}).",
                        need=f"every {group} column in exactly one factor, from 0 on without a gap.",
                        fix="correct the 'columns' entries; " + FIX,
                    )
                column = factor.stop
        names = [f.name for f in (*self.state, *self.action)]
        if duplicates := sorted({n for n in names if names.count(n) > 1}):
            raise BecauseError(
                f"Factor name {duplicates[0]!r} is used twice.",
                need="names unique over state and action.",
                fix="rename one.",
            )
        for goal in self.goal:
            target = next((f for f in self.state if f.name == goal.factor), None)
            if target is None or target.width != goal.width:
                raise BecauseError(
                    f"Goal {goal.name!r} is about {goal.factor!r} with {goal.width} columns.",
                    need="'of' naming a state factor with as many columns.",
                    fix=FIX,
                )
            if (target.type == "angle" or goal.type == "angle") and (
                (goal.type, goal.period, goal.relation) != (target.type, target.period, "equal")
            ):
                raise BecauseError(
                    f"Goal {goal.name!r} ({goal.type}, {goal.relation}) is about {target.name!r} ({target.type}).",
                    need="for an angle: a goal of type angle with its unit and the relation equal.",
                    fix=FIX,
                )
        if len({goal.hold for goal in self.goal}) > 1:
            raise BecauseError(
                "Of the goal factors, some are to be held and others to be reached.",
                need="the same for all of them.",
                fix="write 'hold: true' at each, or at none.",
            )
        roles = [f.role for f in sorted(self.state, key=lambda f: f.start)]
        outcomes = [role for role in roles if role in OUTCOMES]
        misplaced = outcomes != roles[len(roles) - len(outcomes) :] or len(set(outcomes)) != len(outcomes)
        if misplaced or any(f.role in OUTCOMES for f in self.action):
            raise BecauseError(
                "Factors of role reward and end are not where they belong.",
                need="at most one of each, behind all other state factors.",
                fix="leave them out: the rewards and ends of a log become factors by themselves.",
            )
        if self.codes is not None and any(len(row) != self.action_size for row in self.codes):
            raise BecauseError(
                f"'codes' has rows of {sorted({len(row) for row in self.codes})} columns.",
                need=f"one row of {self.action_size} action columns per discrete action.",
                fix=FIX,
            )
        check_constraints(self.constraints, (*self.state, *self.action))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the possible causes: state factors, then action factors."""
        return tuple(f.name for f in (*self.state, *self.action))

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the possible effects: the state factors at the next step."""
        return tuple(f.name for f in self.state)

    @property
    def state_size(self) -> int:
        return max(f.stop for f in self.state)

    @property
    def outcomes(self) -> tuple[Factor, ...]:
        """The state factors that are the reward or the end of a step; they follow all columns that are observed."""
        return tuple(f for f in self.state if f.role in OUTCOMES)

    @property
    def maximises_reward(self) -> bool:
        """Whether a policy is for a discounted sum, of rewards or of steps at a goal to hold; else a goal ends it."""
        return bool(self.outcomes) or self.holds_goal

    @property
    def holds_goal(self) -> bool:
        """Whether the goal is to be held; a goal that is only to be reached ends the episode."""
        return any(goal.hold for goal in self.goal)

    @property
    def observed_size(self) -> int:
        """Columns of an observation: those of the state without outcomes."""
        return self.state_size - len(self.outcomes)

    def with_outcomes(self, reward: str, has_ends: bool) -> FactorSpec:
        """The spec with two more state factors: the reward, by this name, and, if `has_ends`, the end of an episode.

        So both are targets like the next state: their causes are discovered and they are predicted, with their doubt.

        >>> spec = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 1, "continuous")))
        >>> spec = spec.with_outcomes("yield", has_ends=True)
        >>> spec.targets, spec.observed_size, spec.state_size
        (('x', 'yield', 'end'), 1, 3)
        """
        taken = {f.name for f in (*self.state, *self.action)}
        reward, end = (name if name not in taken else f"logged {name}" for name in (reward, "end"))
        at = self.state_size
        outcomes = [Factor(reward, at, at + 1, "continuous", role="reward")]
        outcomes += [Factor(end, at + 1, at + 2, "binary", role="end")] * has_ends
        return replace(self, state=(*self.state, *outcomes))

    @property
    def action_size(self) -> int:
        return max(f.stop for f in self.action)

    @property
    def goal_size(self) -> int:
        return max((f.stop for f in self.goal), default=0)

    def __getitem__(self, name: str) -> Factor:
        for factor in (*self.state, *self.action):
            if factor.name == name:
                return factor
        raise KeyError(name)

    def change(self, state: Any, next_state: Any) -> Any:
        """next_state - state (..., state columns), NumPy or JAX; of angles along the shorter way round."""
        change = next_state - state
        for factor in self.state:
            if factor.period is not None:
                inside = np.zeros((1,) * (change.ndim - 1) + (self.state_size,), change.dtype)
                inside[..., factor.slice] = 1
                change = change + (wrapped_difference(change, 0.0, factor.period) - change) * inside
        return change

    def encode_action(self, action: Any) -> np.ndarray:
        """The action columns that models take, (..., action columns) float64.

        `action`: one action or a batch. Where there are `codes`, integers (...); otherwise columns already, which are
        returned as float64.
        """
        if self.codes is None:
            return np.asarray(action, np.float64)
        return np.asarray(self.codes, np.float64)[np.asarray(action, np.int64)]

    def reached(self, state: Any, goal: Any) -> Any:
        """Whether each state satisfies all goal factors.

        `state` (..., state columns) and `goal` (..., goal columns), NumPy or JAX arrays of any leading shape; returns
        booleans (...), or True where there is no goal factor.
        """
        return _all_hit([(f, state[..., self[f.factor].slice], goal[..., f.slice]) for f in self.goal])

    def achieved_goal(self, state: np.ndarray) -> np.ndarray:
        """The state columns that the goal is about, in the columns of the goal.

        `state` (..., state columns); returns (..., goal columns).

        >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")),
        ...                   (GoalFactor("lit", 0, 1, "binary", factor="on"),))
        >>> spec.achieved_goal(np.array([0.3, 1.0]))
        array([1.])
        """
        factors = sorted(self.goal, key=lambda f: f.start)
        return np.concatenate([state[..., :0], *(state[..., self[f.factor].slice] for f in factors)], axis=-1)

    def violated(self, next_state: np.ndarray, action: np.ndarray) -> np.ndarray:
        """(..., constraints) bool: what each step breaks, by the state that follows and its action columns."""
        broken = []
        for constraint in self.constraints:
            factor = self[constraint.factor]
            values = next_state if factor in self.state else action
            broken.append(constraint.broken(factor, values[..., factor.slice]))
        return np.stack(broken, -1) if broken else np.zeros((*next_state.shape[:-1], 0), bool)

    def satisfied(self, achieved_goal: Any, goal: Any) -> Any:
        """The same as `reached`, of what `achieved_goal` returns instead of states."""
        return _all_hit([(f, achieved_goal[..., f.slice], goal[..., f.slice]) for f in self.goal])

    def to_dict(self) -> dict[str, Any]:
        """The content of a factor file, which `from_dict` reads back."""
        out: dict[str, Any] = {
            "state": [f.to_dict() for f in self.state],
            "action": [f.to_dict() for f in self.action],
            "goal": [f.to_dict() for f in self.goal],
        }
        if self.codes is not None:
            out["codes"] = [list(row) for row in self.codes]
        if self.constraints:
            out["constraints"] = [str(constraint) for constraint in self.constraints]
        return out

    @classmethod
    def from_dict(cls, value: Any) -> FactorSpec:
        """From the content of a factor file: 'state', 'action' and optionally 'goal', 'codes' and 'constraints'."""
        known = {"state", "action", "goal", "codes", "constraints"}
        if isinstance(value, Mapping):
            name_columns(value)  # refuses a mixture of names and numbers
            value = number_columns({key: entry for key, entry in value.items() if key != "table"})
        if not isinstance(value, Mapping) or not {"state", "action"} <= set(value) <= known:
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BecauseError(
                f"A factor spec has the entries {got}.",
                need="'state' and 'action' (and optionally 'goal', 'codes' and 'constraints').",
                fix=FIX,
            )
        codes = value.get("codes")
        for name, part in value.items():
            if not (isinstance(part, list | tuple) or (part is None and name in ("goal", "codes", "constraints"))):
                raise BecauseError(f"{name!r} is {part!r}.", need="a list.", fix=FIX)
        if not all(isinstance(row, list | tuple) for row in codes or ()):
            raise BecauseError("'codes' has rows that are not lists.", need="lists of numbers.", fix=FIX)
        return cls(
            tuple(_parse(entry, Factor) for entry in value["state"]),
            tuple(_parse(entry, Factor) for entry in value["action"]),
            tuple(_parse(entry, GoalFactor) for entry in value.get("goal") or ()),
            None if codes is None else tuple(tuple(number(x, "An entry of 'codes'") for x in row) for row in codes),
            parse_constraints(value.get("constraints")),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> FactorSpec:
        """Read a spec from ``.json``, ``.yaml`` or ``.yml``."""
        return cls.from_dict(read_factor_file(Path(path)))

    def rows(self) -> list[dict[str, str]]:
        """One row per factor, for printing: group, factor, columns, width, type, kind."""
        return [
            {
                "group": group,
                "factor": f.name,
                "columns": str(f.start) if f.width == 1 else f"{f.start}-{f.stop - 1}",
                "width": str(f.width),
                "type": " ".join(filter(None, (f.role, f.unit, f.type, "or absent" if f.optional else ""))),
                "kind": f.kind,
            }
            for group in ("state", "action", "goal")
            for f in getattr(self, group)
        ]

    def __str__(self) -> str:
        rows = self.rows()
        head = {key: key for key in rows[0]}
        width = {key: max(len(row[key]) for row in (head, *rows)) for key in head}
        return "\n".join("  ".join(row[key].ljust(width[key]) for key in head).rstrip() for row in (head, *rows))


def _all_hit(parts: list[tuple[GoalFactor, Any, Any]]) -> Any:
    """Whether all goals are reached; each part is a goal factor, what the state has and what the goal wants."""
    done: Any = True
    for factor, have, want in parts:
        if factor.relation == "equal":
            hit = abs(factor.difference(have, want)) <= factor.tolerance
        elif factor.relation == "at_least":
            hit = have >= want - factor.tolerance
        else:
            hit = have <= want + factor.tolerance
        done = done & hit.all(-1)
    return done


def pack(*entries: tuple) -> tuple[Factor, ...]:
    """Factors in adjacent columns from 0 on; each entry is (name, width, type[, kind[, optional]]).

    >>> [(f.name, f.start, f.stop) for f in pack(("agent", 36, "categorical", "cells"), ("on", 1, "binary"))]
    [('agent', 0, 36), ('on', 36, 37)]
    """
    factors, column = [], 0
    for name, width, *rest in entries:
        factors.append(Factor(name, column, column + width, *rest))
        column += width
    return tuple(factors)


def _parse(entry: Any, cls: type) -> Any:
    """The `Factor` or `GoalFactor` (`cls`) of one entry of a factor file."""
    allowed = {"name", "columns", "type", "kind", "optional", "role", "unit"} | (
        {"of", "relation", "tolerance", "hold"} if cls is GoalFactor else set()
    )
    if not isinstance(entry, Mapping) or not {"name", "columns", "type"} <= set(entry) <= allowed:
        raise BecauseError(
            f"A factor is written as {entry!r}.",
            need=f"the entries name, columns, type; allowed are {sorted(allowed)}.",
            fix=FIX,
        )
    columns = entry["columns"]
    if type(columns) is int:
        columns = [columns, columns + 1]
    if not (isinstance(columns, list | tuple) and len(columns) == 2):
        raise BecauseError(
            f"Factor {entry['name']!r} has columns {columns!r}.",
            need="one column number, or [start, stop] with stop excluded.",
            fix=FIX,
        )
    rest = {("factor" if key == "of" else key): entry[key] for key in entry if key != "columns"}
    return cls(start=columns[0], stop=columns[1], **rest)
