"""One factor: a named variable that owns columns of the state, the action or the goal vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from because_rl.errors import BecauseError, check_name

FactorType = Literal["categorical", "binary", "continuous", "angle"]
Role = Literal["", "context", "reward", "end"]
OUTCOMES: dict[str, FactorType] = {"reward": "continuous", "end": "binary"}
"""Roles of what a step brings beside the next state, and the types that they need."""
Relation = Literal["equal", "at_least", "at_most"]
PERIODS = {"radians": 2 * math.pi, "degrees": 360.0}
"""Units of angles, and a full turn in each."""

FIX = "see docs/factors.md for a complete example of a factor file."


def wrapped_difference(later: Any, earlier: Any, period: float = 2 * math.pi) -> Any:
    """later - earlier along the shorter way round, in (-period / 2, period / 2]; NumPy or JAX arrays, or numbers.

    >>> round(wrapped_difference(-3.0, 3.0), 4), wrapped_difference(350.0, 10.0, 360.0)
    (0.2832, -20.0)
    """
    half = period / 2
    return half - (half - (later - earlier)) % period


@dataclass(frozen=True)
class Factor:
    """One variable: columns `start` to `stop` (excluded) of its vector.

    - ``categorical``: one column per level, exactly one of them 1 (none of them when ``optional``
      and the thing is absent, like a key that has been picked up).
    - ``binary``: each column is 0 or 1, independently (a set).
    - ``continuous``: real numbers.
    - ``angle``: real numbers of which a full turn makes no difference, in `unit` (radians, unless it is "degrees").

    `kind` defaults to the factor's own name: an encoder that it shares with no other factor. `role` "context" is for
    a measured quantity that is constant within an episode (a site, a device, a recipe) and may be a cause. Roles
    "reward" and "end" are the logged reward and end of a step, which follow a state and an action as the next state
    does and cause nothing (`FactorSpec.with_outcomes`).
    """

    name: str
    start: int
    stop: int
    type: FactorType
    kind: str = ""
    optional: bool = False
    role: Role = ""
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise BecauseError(f"Got a factor named {self.name!r}.", need="a non-empty name.", fix=FIX)
        check_name(self.name, "A factor's name", FIX)
        if self.type not in get_args(FactorType):
            raise BecauseError(
                f"Factor {self.name!r} has type {self.type!r}.",
                need=f"one of {', '.join(get_args(FactorType))}.",
                fix=FIX,
            )
        if not (type(self.start) is int and type(self.stop) is int and 0 <= self.start < self.stop):
            raise BecauseError(
                f"Factor {self.name!r} has columns [{self.start}, {self.stop}].",
                need="whole numbers [start, stop] with 0 <= start < stop (stop excluded).",
                fix=FIX,
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
                fix=FIX,
            )
        if self.kind:
            check_name(self.kind, f"The kind of factor {self.name!r}", FIX)
        if self.optional and self.type != "categorical":
            raise BecauseError(
                f"Factor {self.name!r} is optional but {self.type}.",
                need="'optional' only on categorical factors, where all columns 0 means absent.",
                fix="remove 'optional'.",
            )
        if self.role not in get_args(Role):
            raise BecauseError(
                f"Factor {self.name!r} has role {self.role!r}.", need="'context', or no role at all.", fix=FIX
            )
        if self.role in OUTCOMES and (self.type, self.width) != (OUTCOMES[self.role], 1):
            raise BecauseError(
                f"Factor {self.name!r} of role {self.role!r} is {self.type} with {self.width} columns.",
                need=f"one {OUTCOMES[self.role]} column.",
                fix="remove 'role': the rewards and ends of a log become factors by themselves.",
            )
        if self.unit and (self.type != "angle" or self.unit not in PERIODS):
            raise BecauseError(
                f"Factor {self.name!r} is {self.type} with unit {self.unit!r}.",
                need=f"a unit only on angles: {' or '.join(PERIODS)}.",
                fix="remove 'unit'." if self.type != "angle" else FIX,
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

    @property
    def is_continuous(self) -> bool:
        """Whether its columns are real numbers: of type continuous or angle."""
        return self.type in ("continuous", "angle")

    @property
    def period(self) -> float | None:
        """A full turn, for angles."""
        return PERIODS[self.unit or "radians"] if self.type == "angle" else None

    def difference(self, later: Any, earlier: Any) -> Any:
        """later - earlier; of angles along the shorter way round."""
        return later - earlier if self.period is None else wrapped_difference(later, earlier, self.period)

    def to_dict(self) -> dict[str, Any]:
        """The entry of a factor file; `kind`, `optional`, `role` and `unit` only where they are not the default."""
        out: dict[str, Any] = {"name": self.name, "columns": [self.start, self.stop], "type": self.type}
        if self.kind != self.name:
            out["kind"] = self.kind
        if self.optional:
            out["optional"] = True
        return out | {name: value for name in ("role", "unit") if (value := getattr(self, name))}

    def invalid(self, values: np.ndarray) -> np.ndarray:
        """(n,) bool: the rows of `values` (n, width) that this factor's type does not allow."""
        bad = ~np.isfinite(values).all(-1)
        if not self.is_continuous:
            bad |= ~np.isin(values, (0.0, 1.0)).all(-1)
        if self.type == "categorical":
            total = np.nan_to_num(values).sum(-1)
            bad |= (total > 1) if self.optional else (total != 1)
        return bad


@dataclass(frozen=True)
class GoalFactor(Factor):
    """A wanted value of the state factor named `factor`: reached when state `relation` goal, column by column.

    With `hold` it is not enough to reach it once: the episode goes on, and every step at the goal counts. Factor files
    and `to_dict` write `factor` under the key "of".
    """

    factor: str = ""
    relation: Relation = "equal"
    tolerance: float = 1e-6
    hold: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tolerance", number(self.tolerance, f"Goal {self.name!r}: the tolerance"))
        if self.tolerance < 0:
            raise BecauseError(f"Goal {self.name!r} has tolerance {self.tolerance}.", need="0 or more.", fix=FIX)
        if self.relation not in get_args(Relation):
            raise BecauseError(
                f"Goal {self.name!r} has relation {self.relation!r}.",
                need=f"one of {', '.join(get_args(Relation))}.",
                fix=FIX,
            )
        if not isinstance(self.hold, bool):
            raise BecauseError(f"Goal {self.name!r} has hold {self.hold!r}.", need="true or false.", fix=FIX)
        if self.role:
            raise BecauseError(f"Goal {self.name!r} has role {self.role!r}.", need="no role.", fix="remove 'role'.")

    def to_dict(self) -> dict[str, Any]:
        out = {"of": self.factor, "relation": self.relation, "tolerance": self.tolerance}
        return super().to_dict() | out | ({"hold": True} if self.hold else {})


def number(value: Any, what: str) -> float:
    """`value` as a finite number. Text is converted too, since YAML reads 1e-06 as text."""
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        converted = math.nan
    if isinstance(value, bool) or not math.isfinite(converted):
        raise BecauseError(f"{what} is {value!r}.", need="a finite number.", fix=FIX)
    return converted
