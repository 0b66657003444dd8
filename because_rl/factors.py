"""Factors: the named variables of the state, the action and the goal, between which causal graphs are drawn.

A factor owns a slice of columns of the state, the action or the goal vector. Factors of one *kind* mean the same sort
of thing (agent, key and door are all sets of cells) and share an encoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import read_json, read_yaml

FactorType = Literal["categorical", "binary", "continuous"]
Relation = Literal["equal", "at_least", "at_most"]

_FIX = "see docs/factors.md for a complete example of a factor file."


@dataclass(frozen=True)
class Factor:
    """One variable: columns `start` to `stop` (excluded) of its vector.

    - ``categorical``: one column per level, exactly one of them 1 (none of them when ``optional``
      and the thing is absent, like a key that has been picked up).
    - ``binary``: each column is 0 or 1, independently (a set).
    - ``continuous``: real numbers.

    `kind` defaults to the factor's own name: an encoder that it shares with no other factor.
    """

    name: str
    start: int
    stop: int
    type: FactorType
    kind: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise BecauseError(f"Got a factor named {self.name!r}.", need="a non-empty name.", fix=_FIX)
        if self.type not in get_args(FactorType):
            raise BecauseError(
                f"Factor {self.name!r} has type {self.type!r}.",
                need=f"one of {', '.join(get_args(FactorType))}.",
                fix=_FIX,
            )
        if not (type(self.start) is int and type(self.stop) is int and 0 <= self.start < self.stop):
            raise BecauseError(
                f"Factor {self.name!r} has columns [{self.start}, {self.stop}].",
                need="whole numbers [start, stop] with 0 <= start < stop (stop excluded).",
                fix=_FIX,
            )
        if self.type == "categorical" and self.width == 1:
            raise BecauseError(
                f"Categorical factor {self.name!r} has one column.",
                need="one column per level (one-hot), so at least two.",
                fix="use type 'binary' for a single 0/1 column.",
            )
        if not isinstance(self.kind, str) or not isinstance(self.optional, bool):
            raise BecauseError(
                f"Factor {self.name!r} has kind {self.kind!r} and optional {self.optional!r}.",
                need="text for 'kind' and true or false for 'optional'.",
                fix=_FIX,
            )
        if self.optional and self.type != "categorical":
            raise BecauseError(
                f"Factor {self.name!r} is optional but {self.type}.",
                need="'optional' only on categorical factors, where all columns 0 means absent.",
                fix="remove 'optional'.",
            )
        if not self.kind:
            object.__setattr__(self, "kind", self.name)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """Its columns, as an index into the last axis of its vector."""
        return slice(self.start, self.stop)

    def to_dict(self) -> dict[str, Any]:
        """The entry of a factor file; `kind` and `optional` only where they are not the default."""
        out: dict[str, Any] = {"name": self.name, "columns": [self.start, self.stop], "type": self.type}
        if self.kind != self.name:
            out["kind"] = self.kind
        if self.optional:
            out["optional"] = True
        return out

    def invalid(self, values: np.ndarray) -> np.ndarray:
        """(n,) bool: the rows of `values` (n, width) that this factor's type does not allow."""
        bad = ~np.isfinite(values).all(-1)
        if self.type != "continuous":
            bad |= ~np.isin(values, (0.0, 1.0)).all(-1)
        if self.type == "categorical":
            total = np.nan_to_num(values).sum(-1)
            bad |= (total > 1) if self.optional else (total != 1)
        return bad


@dataclass(frozen=True)
class GoalFactor(Factor):
    """A wanted value of the state factor named `factor`: reached when state `relation` goal, column by column.

    Factor files and `to_dict` write `factor` under the key "of".
    """

    factor: str = ""
    relation: Relation = "equal"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tolerance", _number(self.tolerance, f"Goal {self.name!r}: the tolerance"))
        if self.tolerance < 0:
            raise BecauseError(f"Goal {self.name!r} has tolerance {self.tolerance}.", need="0 or more.", fix=_FIX)
        if self.relation not in get_args(Relation):
            raise BecauseError(
                f"Goal {self.name!r} has relation {self.relation!r}.",
                need=f"one of {', '.join(get_args(Relation))}.",
                fix=_FIX,
            )

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"of": self.factor, "relation": self.relation, "tolerance": self.tolerance}


@dataclass(frozen=True)
class FactorSpec:
    """The factors of state, action and goal of one dataset or environment.

    `codes` is for discrete actions: row a holds the action columns that models take for action a.

    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))
    >>> spec.inputs, spec.targets, spec.state_size
    (('x', 'on', 'push'), ('x', 'on'), 2)
    """

    state: tuple[Factor, ...]
    action: tuple[Factor, ...]
    goal: tuple[GoalFactor, ...] = ()
    codes: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        for group in ("state", "action", "goal"):
            factors: tuple[Factor, ...] = getattr(self, group)
            if group != "goal" and not factors:
                raise BecauseError(f"No {group} factor is given.", need=f"at least one {group} factor.", fix=_FIX)
            column = 0
            for factor in sorted(factors, key=lambda f: f.start):
                if factor.start != column:
                    what = "is missing from" if factor.start > column else "belongs twice to"
                    raise BecauseError(
                        f"Column {min(column, factor.start)} {what} the {group} factors (near {factor.name!r}).",
                        need=f"every {group} column in exactly one factor, from 0 on without a gap.",
                        fix="correct the 'columns' entries; " + _FIX,
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
                    fix=_FIX,
                )
        if self.codes is not None and any(len(row) != self.action_size for row in self.codes):
            raise BecauseError(
                f"'codes' has rows of {sorted({len(row) for row in self.codes})} columns.",
                need=f"one row of {self.action_size} action columns per discrete action.",
                fix=_FIX,
            )

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
        return out

    @classmethod
    def from_dict(cls, value: Any) -> FactorSpec:
        """From the content of a factor file: 'state', 'action' and optionally 'goal' and 'codes'."""
        known = {"state", "action", "goal", "codes"}
        if not isinstance(value, Mapping) or not {"state", "action"} <= set(value) <= known:
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BecauseError(
                f"A factor spec has the entries {got}.",
                need="'state' and 'action' (and optionally 'goal' and 'codes').",
                fix=_FIX,
            )
        codes = value.get("codes")
        for name, part in value.items():
            if not (isinstance(part, list | tuple) or (part is None and name in ("goal", "codes"))):
                raise BecauseError(f"{name!r} is {part!r}.", need="a list.", fix=_FIX)
        if not all(isinstance(row, list | tuple) for row in codes or ()):
            raise BecauseError("'codes' has rows that are not lists.", need="lists of numbers.", fix=_FIX)
        return cls(
            tuple(_parse(entry, Factor) for entry in value["state"]),
            tuple(_parse(entry, Factor) for entry in value["action"]),
            tuple(_parse(entry, GoalFactor) for entry in value.get("goal") or ()),
            None if codes is None else tuple(tuple(_number(x, "An entry of 'codes'") for x in row) for row in codes),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> FactorSpec:
        """Read a spec from ``.json``, ``.yaml`` or ``.yml``."""
        path = Path(path)
        if not path.is_file():
            raise BecauseError(f"There is no file {path}.", need="a factor spec in JSON or YAML.", fix=_FIX)
        if path.suffix == ".json":
            return cls.from_dict(read_json(path))
        return cls.from_dict(read_yaml(path))

    def rows(self) -> list[dict[str, str]]:
        """One row per factor, for printing: group, factor, columns, width, type, kind."""
        return [
            {
                "group": group,
                "factor": f.name,
                "columns": str(f.start) if f.width == 1 else f"{f.start}-{f.stop - 1}",
                "width": str(f.width),
                "type": f.type + (" or absent" if f.optional else ""),
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
            hit = abs(have - want) <= factor.tolerance
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


def _number(value: Any, what: str) -> float:
    """`value` as a finite number. Text is converted too, since YAML reads 1e-06 as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BecauseError(f"{what} is {value!r}.", need="a finite number.", fix=_FIX)
    return number


def _parse(entry: Any, cls: type) -> Any:
    """The `Factor` or `GoalFactor` (`cls`) of one entry of a factor file."""
    allowed = {"name", "columns", "type", "kind", "optional"} | (
        {"of", "relation", "tolerance"} if cls is GoalFactor else set()
    )
    if not isinstance(entry, Mapping) or not {"name", "columns", "type"} <= set(entry) <= allowed:
        raise BecauseError(
            f"A factor is written as {entry!r}.",
            need=f"the entries name, columns, type; allowed are {sorted(allowed)}.",
            fix=_FIX,
        )
    columns = entry["columns"]
    if type(columns) is int:
        columns = [columns, columns + 1]
    if not (isinstance(columns, list | tuple) and len(columns) == 2):
        raise BecauseError(
            f"Factor {entry['name']!r} has columns {columns!r}.",
            need="one column number, or [start, stop] with stop excluded.",
            fix=_FIX,
        )
    rest = {("factor" if key == "of" else key): entry[key] for key in entry if key != "columns"}
    return cls(start=columns[0], stop=columns[1], **rest)
