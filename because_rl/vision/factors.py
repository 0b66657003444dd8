"""Factors from codes that change over time: nobody names them, and no state is seen.

A cell of a picture has a code at every frame (`codes`). Cells that never change are left out. The others are grouped by
their *resting* code, the most frequent one when episodes begin: cells that look alike then are places of the same kind.

- A group of a few cells has one categorical factor per cell, a *switch*: which of its codes the cell has.
- The codes of a larger group are sets of *layers*: the resting code is the empty set, and a code may be two layers on
  one cell (a thing on another). Of all such readings the one is taken in which the least happens over the logged
  steps: the fewest bits change, and the fewest things appear or vanish. When a thing moves onto another one, both are
  still there, and only one has changed.
- A layer with exactly one cell in every frame, which moves, is a categorical factor, a *mover*. The others have a bit
  per cell: *still* ones, of which no bit is ever set while another is cleared, and *sets*.

The goal is what the logged ends show: the layer that is empty, or the switch that is set, exactly where episodes end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec, GoalFactor

LEAST_CELLS = 3
"""Of a group that has layers."""
LEAST_ACTIVE = 0.5
"""Share of the cells with a resting code that must have changed, for the others to be places of the same kind."""
GOAL_ACCURACY = 0.99

Kind = Literal["mover", "still", "set", "switch"]


@dataclass(frozen=True)
class PictureFactor:
    """One factor, as it is read from the codes of cells."""

    name: str
    kind: Kind
    cells: tuple[int, ...]
    """their numbers in the picture, row by row"""
    codes: tuple[int, ...]
    """of a layer: those that contain it; of a switch: its levels, the resting one first"""
    known: tuple[int, ...]
    """all codes that these cells had in the data; any other is read as the nearest of them"""

    @property
    def width(self) -> int:
        return len(self.codes) if self.kind == "switch" else len(self.cells)

    def columns(self, codes: np.ndarray) -> np.ndarray:
        """(n, width) float32 of the codes of all cells (n, cells)."""
        own = codes[:, self.cells]
        bits = own == np.array(self.codes) if self.kind == "switch" else np.isin(own, self.codes)
        return bits.astype(np.float32)

    def to_factor(self, start: int) -> Factor:
        """The factor of the pipeline, from column `start` on."""
        kinds = "switch" if self.kind == "switch" else f"cells {self.cells[0]}"
        return Factor(
            self.name,
            start,
            start + self.width,
            "categorical" if self.kind in ("mover", "switch") else "binary",
            f"{kinds} {self.width}",
        )


def find_factors(codes: np.ndarray, before: np.ndarray, first: np.ndarray) -> list[PictureFactor]:
    """The factors of frames whose cells have codes (frames, rows, columns).

    `before`: the frames that are followed by the next one. `first`: those that begin an episode.
    """
    flat = codes.reshape(len(codes), -1)
    changed = (flat[before] != flat[before + 1]).any(0) | (flat != flat[0]).any(0)
    if not changed.any():
        raise BecauseError(
            "No cell of the pictures ever changes from one look to another.",
            need="pictures of something that moves, with less noise than what moves.",
            fix="check the frames, or take the noise out.",
        )
    resting = np.array([np.bincount(column).argmax() for column in flat[first].T])
    parts: list[PictureFactor] = []
    for code in np.unique(resting[changed]):
        alike, active = np.flatnonzero(resting == code), np.flatnonzero((resting == code) & changed)
        cells = alike if len(active) >= LEAST_ACTIVE * len(alike) else active
        if len(cells) < LEAST_CELLS:
            parts += [_switch(flat, int(cell), int(code)) for cell in cells]
        else:
            parts += _layers(flat, before, tuple(int(cell) for cell in cells), int(code))
    return _named(parts)


def _switch(flat: np.ndarray, cell: int, resting: int) -> PictureFactor:
    others = sorted(set(flat[:, cell].tolist()) - {resting})
    return PictureFactor("", "switch", (cell,), (resting, *others), (resting, *others))


def _layers(flat: np.ndarray, before: np.ndarray, cells: tuple[int, ...], resting: int) -> list[PictureFactor]:
    """The layers of a group of cells, the largest first."""
    own = flat[:, cells]
    known = tuple(int(code) for code in np.unique(own))
    number = np.searchsorted(known, own)
    steps = np.zeros((len(known), len(known)))
    np.add.at(steps, (number[before].reshape(-1), number[before + 1].reshape(-1)), 1)
    counts = np.stack([(number == code).sum(1) for code in range(len(known))], axis=1)
    sets = fewest_events(steps, counts[before + 1] - counts[before], known.index(resting))
    layers = []
    for layer in sorted(set().union(*sets)):
        members = tuple(code for code, layers_of_code in zip(known, sets, strict=True) if layer in layers_of_code)
        bits = np.isin(own, members)
        layers.append((bits.sum(), PictureFactor("", _kind(bits, before), cells, members, known)))
    return [layer for _, layer in sorted(layers, key=lambda pair: -pair[0])]


def _kind(bits: np.ndarray, before: np.ndarray) -> Kind:
    """Of a layer with bits (frames, cells)."""
    set_now, cleared = (bits[before + 1] & ~bits[before]).any(1), (bits[before] & ~bits[before + 1]).any(1)
    if not (set_now & cleared).any():
        return "still"
    return "mover" if (bits.sum(1) == 1).all() else "set"


def fewest_events(steps: np.ndarray, change: np.ndarray, resting: int) -> list[frozenset[int]]:
    """The set of layers that each code stands for, so that the least happens.

    Every code begins as a layer of its own; then, one after the other, the code is read as two others together that
    saves the most events.

    Args:
        steps: (codes, codes) how often a cell had one code and then another.
        change: (n, codes) of how many cells more have a code after a step than before.
        resting: the code of no layer.

    >>> steps = np.zeros((4, 4))  # nothing, agent, key, agent on key
    >>> steps[0, 1], steps[1, 0], steps[2, 3], steps[3, 1], steps[3, 2] = 90, 90, 5, 3, 2
    >>> [sorted(layers) for layers in fewest_events(steps, np.zeros((1, 4), int), 0)]
    [[], [1], [2], [1, 2]]
    """
    count = len(steps)
    sets = [frozenset() if code == resting else frozenset({code}) for code in range(count)]
    while True:
        best, chosen = _events(steps, change, sets), None
        single = [code for code in range(count) if len(sets[code]) == 1]
        for code in single:
            if any(sets[code] < other for other in sets):  # a part of another code stays one layer
                continue
            for a, b in combinations([other for other in single if other != code], 2):
                trial = list(sets)
                trial[code] = sets[a] | sets[b]
                if trial.count(trial[code]) == 1 and (events := _events(steps, change, trial)) < best:
                    best, chosen = events, trial
        if chosen is None:
            return sets
        sets = chosen


def _events(steps: np.ndarray, change: np.ndarray, sets: list[frozenset[int]]) -> float:
    """How many bits change, and how many things appear or vanish."""
    flips = sum(steps[a, b] * len(sets[a] ^ sets[b]) for a, b in zip(*np.nonzero(steps), strict=True))
    layers = sorted(set().union(*sets))
    inside = np.array([[layer in layers_of_code for layer in layers] for layers_of_code in sets], int)
    return float(flips + np.abs(change @ inside).sum())


def _named(parts: list[PictureFactor]) -> list[PictureFactor]:
    """Layers first, then switches, each numbered among its kind."""
    order: tuple[Kind, ...] = ("mover", "set", "still", "switch")
    out: list[PictureFactor] = []
    for kind in order:
        members = [part for part in parts if part.kind == kind]
        out += [
            PictureFactor(f"{kind}_{n}", kind, part.cells, part.codes, part.known) for n, part in enumerate(members, 1)
        ]
    return out


# The spec of the pipeline ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """One value of one factor: no bit of a layer, or a level of a switch."""

    factor: str
    value: tuple[float, ...]
    accuracy: float
    """balanced: the mean of the shares of ends and of other steps that it tells"""


def find_goal(parts: list[PictureFactor], codes: np.ndarray, after: np.ndarray, ended: np.ndarray) -> Goal | None:
    """What holds exactly after the steps that ended an episode; None if nothing does, or none ended.

    `codes`: (frames, cells). `after`: (n,) the frame after each step. `ended`: (n,) bool.
    """
    if not ended.any() or ended.all():
        return None
    best = None
    for part in parts:
        columns = part.columns(codes)[after]
        values = np.eye(part.width) if part.kind == "switch" else np.zeros((1, part.width))
        for value in values:
            holds = (columns == value).all(1)
            accuracy = float(holds[ended].mean() + (~holds[~ended]).mean()) / 2
            if best is None or accuracy > best.accuracy:
                best = Goal(part.name, tuple(float(x) for x in value), accuracy)
    return best if best is not None and best.accuracy >= GOAL_ACCURACY else None


def make_spec(parts: list[PictureFactor], goal: Goal | None, actions: FactorSpec) -> FactorSpec:
    """The factor spec of the columns of `parts`, with the action factors of `actions`."""
    state, start = [], 0
    for part in parts:
        state.append(part.to_factor(start))
        start += part.width
    wanted: tuple[GoalFactor, ...] = ()
    if goal is not None:
        target = next(factor for factor in state if factor.name == goal.factor)
        name = f"{goal.factor} at the end"
        wanted = (GoalFactor(name, 0, target.width, target.type, target.kind, factor=goal.factor, relation="equal"),)
    return FactorSpec(tuple(state), actions.action, wanted, actions.codes)


def to_records(parts: Sequence[PictureFactor]) -> list[dict[str, Any]]:
    """As JSON."""
    return [{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(part).items()} for part in parts]


def from_records(records: Sequence[Mapping[str, Any]]) -> list[PictureFactor]:
    """The inverse of `to_records`."""
    return [
        PictureFactor(r["name"], r["kind"], *(tuple(map(int, r[key])) for key in ("cells", "codes", "known")))
        for r in records
    ]
