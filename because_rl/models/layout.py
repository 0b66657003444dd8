"""The columns, families and slots of a factor spec, as arrays that compiled code can use.

A *family* is a group of state factors of one kind, type and width: they share a network. For each target the
inputs are gated by the mask and then relabelled so that the target looks like the first of its family: the
target and the family's first change places, and so do the parents that only one of the two has, kind by kind.
What ped1 is to flag1, ped2 is to flag2. So one network can serve both.

A kind whose discrete factors have several columns, with at least two state factors of it, has *slots*: column c
means the same thing (a cell of a grid) in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from because_rl.factors import Factor, FactorSpec, wrapped_difference

LEAST_SLOTS = 3


@dataclass(frozen=True)
class Family:
    """Targets that share a network, by their places in `FactorSpec.state`."""

    kind: str
    type: str
    width: int
    optional: bool
    members: tuple[int, ...]
    slots: bool
    period: float | None = None
    """a full turn, for angles"""

    @property
    def is_continuous(self) -> bool:
        """Whether its columns are real numbers: of type continuous or angle."""
        return self.type in ("continuous", "angle")

    def difference(self, later: Any, earlier: Any) -> Any:
        """later - earlier; of angles along the shorter way round."""
        return later - earlier if self.period is None else wrapped_difference(later, earlier, self.period)


@dataclass(frozen=True)
class Layout:
    factors: FactorSpec

    @cached_property
    def inputs(self) -> tuple[Factor, ...]:
        """State factors, then action factors."""
        return (*self.factors.state, *self.factors.action)

    @cached_property
    def columns(self) -> tuple[slice, ...]:
        """Of each input in the row [state, action]."""
        shift = self.factors.state_size
        return tuple(
            slice(f.start + shift * (i >= len(self.factors.state)), f.stop + shift * (i >= len(self.factors.state)))
            for i, f in enumerate(self.inputs)
        )

    @property
    def size(self) -> int:
        return self.factors.state_size + self.factors.action_size

    @cached_property
    def slot_kinds(self) -> dict[str, tuple[int, ...]]:
        """Kind -> the state factors that share its slots."""
        groups: dict[str, list[int]] = {}
        for j, f in enumerate(self.factors.state):
            if not f.is_continuous and f.width >= LEAST_SLOTS:
                groups.setdefault(f"{f.kind}/{f.width}", []).append(j)
        return {name.partition("/")[0]: tuple(js) for name, js in groups.items() if len(js) > 1}

    @cached_property
    def families(self) -> tuple[Family, ...]:
        groups: dict[tuple[str, str, int, bool, float | None], list[int]] = {}
        for j, f in enumerate(self.factors.state):
            groups.setdefault((f.kind, f.type, f.width, f.optional, f.period), []).append(j)
        slotted = {j for members in self.slot_kinds.values() for j in members}
        return tuple(
            Family(kind, name, width, optional, tuple(js), js[0] in slotted, period)
            for (kind, name, width, optional, period), js in groups.items()
        )

    @cached_property
    def plain(self) -> tuple[int, ...]:
        """Inputs that have no slots."""
        slotted = {j for members in self.slot_kinds.values() for j in members}
        return tuple(i for i in range(len(self.inputs)) if i not in slotted)

    @cached_property
    def plain_columns(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, int), *(np.arange(self.size)[self.columns[i]] for i in self.plain)])

    @cached_property
    def turns(self) -> np.ndarray:
        """(columns,) a full turn of the columns that are angles, 0 for others."""
        return np.array([self.inputs[i].period or 0.0 for i in self.factor_of_column])

    @cached_property
    def angle_columns(self) -> np.ndarray:
        """The columns that are angles; networks see sines in their place, and cosines behind all columns."""
        return np.flatnonzero(self.turns)

    @cached_property
    def context_columns(self) -> np.ndarray:
        """The plain columns, then the cosines of angles."""
        return np.concatenate([self.plain_columns, self.size + np.arange(len(self.angle_columns))])

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of continuous state factors of one kind, whose differences mean something."""
        state = self.factors.state
        return tuple(
            (i, k)
            for i, a in enumerate(state)
            for k, b in enumerate(state)
            if i < k and a.type == b.type == "continuous" and a.kind == b.kind and a.width == b.width
        )

    @cached_property
    def pair_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns of the first and of the second of all pairs, side by side."""
        every = np.arange(self.size)
        first, second = (
            np.concatenate([np.zeros(0, int), *(every[self.columns[pair[k]]] for pair in self.pairs)]) for k in (0, 1)
        )
        return first, second

    @cached_property
    def goal_bearing(self) -> tuple[bool, ...]:
        """For each family whether the goal is about a member of it."""
        wanted = {goal.factor for goal in self.factors.goal}
        return tuple(any(self.factors.state[j].name in wanted for j in f.members) for f in self.families)

    @cached_property
    def events(self) -> tuple[int, ...]:
        """The families of binary factors that the goal is about."""
        pairs = zip(self.families, self.goal_bearing, strict=True)
        return tuple(n for n, (f, bearing) in enumerate(pairs) if bearing and f.type == "binary")

    def family_columns(self, family: Family) -> np.ndarray:
        """(members, width) columns of the state."""
        return np.stack([np.arange(*self.factors.state[j].slice.indices(self.size)) for j in family.members])

    @cached_property
    def factor_of_column(self) -> np.ndarray:
        """(columns,) which input each column belongs to."""
        out = np.zeros(self.size, int)
        for i, columns in enumerate(self.columns):
            out[columns] = i
        return out

    @cached_property
    def meetings(self) -> tuple[tuple[int, int], ...]:
        """Pairs of factors on the same slots: whether they meet in one."""
        kinds = self.slot_kinds.values()
        return tuple((i, k) for members in kinds for n, i in enumerate(members) for k in members[n + 1 :])

    def gates(self, weights: np.ndarray) -> np.ndarray:
        """Edge weights (inputs, targets) -> a factor for each column, (targets, columns)."""
        widths = [f.width for f in self.inputs]
        order = np.concatenate([np.arange(self.size)[c] for c in self.columns])
        out = np.zeros((weights.shape[1], self.size), np.float32)
        out[:, order] = np.repeat(np.asarray(weights, np.float32), widths, axis=0).T
        return out

    def relabelling(self, weights: np.ndarray) -> np.ndarray:
        """For each target the column that takes each column's place, (targets, columns)."""
        kept = np.asarray(weights) > 0
        out = np.tile(np.arange(self.size), (len(self.factors.state), 1))
        for family in self.families:
            if family.slots:
                continue  # there the head is the same for every slot, which shares more
            first = family.members[0]
            common = np.asarray(kept[:, list(family.members)].all(axis=1))
            for j in family.members[1:]:
                place = np.arange(len(self.inputs))
                _swap(place, [first], [j])
                for kind in {(f.kind, f.width) for f in self.inputs}:
                    own_first, own_other = (
                        [
                            i
                            for i, f in enumerate(self.inputs)
                            if (f.kind, f.width) == kind and kept[i, t] and not common[i] and i not in (first, j)
                        ]
                        for t in (first, j)
                    )
                    _swap(place, own_first, own_other)
                for i, source in enumerate(place):
                    out[j, self.columns[i]] = np.arange(self.size)[self.columns[source]]
        return out


def _swap(place: np.ndarray, first: Sequence[int], second: Sequence[int]) -> None:
    for a, b in zip(first, second, strict=False):
        if a not in second and b not in first:
            place[a], place[b] = place[b], place[a]
