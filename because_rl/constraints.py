"""Limits that a policy must keep, each on one factor of the state or of the action: ``temp<=80``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factor import Factor

Bound = Literal["<=", ">=", "==", "!="]
NEED = "NAME<=NUMBER or NAME>=NUMBER; of a discrete factor also NAME==LEVEL or NAME!=LEVEL."
FIX = "for example --constraint 'temp<=80', with the name of a factor; quotes keep the shell from reading '<'."


@dataclass(frozen=True)
class Constraint:
    """What every step of a policy must satisfy: the state that follows, or the action.

    Levels of a categorical factor are numbered from 0, in the order of its columns. Of a factor with several columns
    each must satisfy it.
    """

    factor: str
    bound: Bound
    limit: float

    @classmethod
    def parse(cls, text: Any) -> Constraint:
        """From text such as ``temp<=80`` or ``mode != 2``.

        >>> Constraint.parse(" temp <= 80"), str(Constraint.parse("mode!=2"))
        (Constraint(factor='temp', bound='<=', limit=80.0), 'mode!=2')
        """
        if isinstance(text, cls):
            return text
        parts = re.fullmatch(r"\s*(.*\S)\s*(<=|>=|==|!=)([^<>=!]*)", text) if isinstance(text, str) else None
        if parts is None:
            raise BecauseError(f"Got the constraint {text!r}.", need=NEED, fix=FIX)
        name, bound, limit = parts.groups()
        try:
            value = float(limit)
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise BecauseError(
                f"The constraint {text!r} has the limit {limit.strip()!r}.", need="a finite number: " + NEED, fix=FIX
            )
        return cls(name, bound, value)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.factor}{self.bound}{self.limit:.12g}"

    def forbidden(self, factor: Factor) -> np.ndarray:
        """Of a discrete factor, bool: the levels of a categorical one, or the values 0 and 1, that break it."""
        values = np.arange(factor.width if factor.type == "categorical" else 2)
        compare = {"<=": np.greater, ">=": np.less, "==": np.not_equal, "!=": np.equal}[self.bound]
        return compare(values, self.limit)

    def broken(self, factor: Factor, values: np.ndarray) -> np.ndarray:
        """(...,) bool: whether the columns `values` (..., width) of the factor break it.

        >>> Constraint("x", "<=", 1.0).broken(Factor("x", 0, 1, "continuous"), np.array([[0.5], [1.5]])).tolist()
        [False, True]
        """
        if factor.is_continuous:
            return np.any(values > self.limit if self.bound == "<=" else values < self.limit, axis=-1)
        forbidden = self.forbidden(factor)
        if factor.type == "categorical":
            return np.any((values > 0.5)[..., forbidden], axis=-1)
        return np.any(forbidden[(values > 0.5).astype(int)], axis=-1)


def parse_constraints(given: Iterable[str | Constraint] | str | None) -> tuple[Constraint, ...]:
    """One constraint or several, each as text or parsed."""
    return tuple(Constraint.parse(text) for text in ([given] if isinstance(given, str) else given or ()))


def check_constraints(constraints: Sequence[Constraint], factors: Sequence[Factor]) -> None:
    """Refuse a constraint on an unknown factor, or one that the type of its factor gives no meaning."""
    by_name = {factor.name: factor for factor in factors}
    for constraint in constraints:
        factor = by_name.get(constraint.factor)
        if factor is None:
            raise BecauseError(
                f"The constraint '{constraint}' names no factor.", need=f"one of {', '.join(by_name)}.", fix=FIX
            )
        ordered = constraint.bound in ("<=", ">=")
        if constraint.bound not in get_args(Bound) or factor.type == "angle" or factor.is_continuous != ordered:
            if factor.type == "binary" and ordered:
                continue
            need = {
                "continuous": f"{factor.name}<=NUMBER or {factor.name}>=NUMBER.",
                "angle": "a factor that has an order: an angle has none. Its sine or cosine could be logged.",
            }.get(factor.type, f"{factor.name}==LEVEL or {factor.name}!=LEVEL, whose levels are numbered from 0.")
            raise BecauseError(
                f"The constraint '{constraint}' is on {factor.name!r}, which is {factor.type}.", need=need, fix=FIX
            )
        if factor.type != "continuous" and constraint.forbidden(factor).all():
            raise BecauseError(f"No level of {factor.name!r} satisfies '{constraint}'.", need=NEED, fix=FIX)
