"""Unlock: fetch the key, open every door. On minigrid.

A 6 x 6 room. The six actions are four absolute moves, pick and open; pick and open act on the agent's
own cell, and the agent can walk over keys and doors. minigrid's own `step` moves the agent, picks up the
key and unlocks the door; this file only points it at the right cell.

State (110): agent cell 36, key cell 36, door cells 36, has-key 2. The columns of a picked key and of an
opened door are 0. An action is encoded in 8 columns: move 4, pick 2, open 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from because_rl.envs import spurious as spurious_channels
from because_rl.envs.world import Hidden, World, caption, needs_extra
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.graph import Graph
from because_rl.rng import stream

if TYPE_CHECKING:
    from because_rl.envs.unlock.simulator import Room

SIDE = 6
CELLS = SIDE * SIDE
HORIZON = 15
UP, DOWN, LEFT, RIGHT, PICK, OPEN = range(6)
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""(row, column) change of UP, DOWN, LEFT, RIGHT."""

ROW, COLUMN = np.divmod(np.arange(CELLS), SIDE)
QUADRANT = 2 * (ROW >= SIDE // 2) + (COLUMN >= SIDE // 2)
"""0 top left, 1 top right, 2 bottom left, 3 bottom right; the opposite of q is 3 - q."""
HELD_OUT = (ROW + 2 * COLUMN) % 3 == 0
"""12 cells, three in each quadrant, that never hold a door in training."""

CODES = np.zeros((6, 8))
CODES[:4, :4] = np.eye(4)
CODES[:, 4:6] = np.eye(2)[(np.arange(6) == PICK).astype(int)]
CODES[:, 6:8] = np.eye(2)[(np.arange(6) == OPEN).astype(int)]


def distance(a: Any, b: Any) -> Any:
    """Steps from cell `a` to cell `b` (numbers or arrays of them): nothing blocks the way."""
    return abs(ROW[a] - ROW[b]) + abs(COLUMN[a] - COLUMN[b])


@dataclass(frozen=True)
class Layout:
    """Where an episode starts; cells are numbers in [0, 36), row by row."""

    agent: int
    key: int
    doors: tuple[int, ...]
    u_c: int
    """the quadrant that the hidden confounder chose for the key"""

    @property
    def fewest_steps(self) -> int:
        """Of a solution: to the key, pick it, then open the doors in the better order."""
        legs = [distance(self.agent, self.key)]
        if len(self.doors) == 1:
            legs.append(distance(self.key, self.doors[0]))
        else:
            first, second = self.doors
            legs += [min(distance(self.key, first), distance(self.key, second)), distance(first, second)]
        return int(sum(legs)) + 1 + len(self.doors)


@lru_cache(maxsize=100_000)
def draw_layout(seed: int, split: str) -> Layout:
    """The scene of a seed, solvable within the horizon.

    ======== ===== =========================== ====================
    split    doors door quadrant               door cells
    ======== ===== =========================== ====================
    I        1     opposite the key's          24 training cells
    O        2     never opposite the key's    all 36
    O-law    1     never opposite the key's    24 training cells
    O-doors  2     opposite the key's          24 training cells
    O-cells  1     opposite the key's          12 held-out cells
    ======== ===== =========================== ====================
    """
    rng = stream(seed, "unlock", "layout")
    doors = 2 if split in ("O", "O-doors") else 1
    opposite = split in ("I", "O-doors", "O-cells")
    cells = {"O": np.ones(CELLS, bool), "O-cells": HELD_OUT}.get(split, ~HELD_OUT)
    while True:
        u = int(rng.integers(4))
        key = int(rng.choice(np.flatnonzero(u == QUADRANT)))
        allowed = cells & ((3 - u == QUADRANT) == opposite)
        allowed[key] = False
        door = rng.choice(np.flatnonzero(allowed), doors, replace=False)
        free = np.setdiff1d(np.arange(CELLS), [key, *door])
        layout = Layout(int(rng.choice(free)), key, tuple(int(d) for d in door), u)
        if layout.fewest_steps <= HORIZON:
            return layout


def draw_u_pi(seed: int) -> float:
    """Uniform on [0, 1]; a behaviour with coverage q goes to the door first when it is below q."""
    return float(stream(seed, "unlock", "u_pi").random())


def draw_cues(seed: int, layout: Layout, spurious: int, split: str) -> np.ndarray:
    """Spurious cues on the floor, one-hot: in training they show in turn u_c and the opposite quadrant."""
    signals = (layout.u_c, 3 - layout.u_c)
    return spurious_channels.categorical_channels(seed, spurious, signals, 4, split)


class Unlock(World):
    """``gymnasium.make("because/Unlock-v1", split="I")``"""

    name: ClassVar[str] = "unlock"
    horizon: ClassVar[int] = HORIZON
    splits: ClassVar[tuple[str, ...]] = ("I", "O", "O-law", "O-doors", "O-cells")
    room: Room
    _cues: np.ndarray

    @classmethod
    def make_factors(cls, spurious: int) -> FactorSpec:
        state = pack(
            ("agent", CELLS, "categorical", "cells"),
            ("key", CELLS, "categorical", "cells", True),
            ("door", CELLS, "binary", "cells"),
            ("has_key", 2, "categorical", "flag"),
        )
        action = pack(
            ("move", 4, "categorical", "move", True),
            ("pick", 2, "categorical", "switch"),
            ("open", 2, "categorical", "switch"),
        )
        goal = (GoalFactor("doors_left", 0, CELLS, "binary", "cells", factor="door", relation="equal"),)
        codes = tuple(tuple(float(x) for x in row) for row in CODES)
        return FactorSpec(spurious_channels.extend(state, "cue", spurious, 4), action, goal, codes)

    @classmethod
    def state_bounds(cls, spurious: int) -> tuple[np.ndarray, np.ndarray]:
        size = cls.make_factors(spurious).state_size
        return np.zeros(size), np.ones(size)

    @classmethod
    def goal_bounds(cls) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(CELLS), np.ones(CELLS)

    @classmethod
    def make_action_space(cls) -> spaces.Space:
        return spaces.Discrete(6)

    @classmethod
    def make_true_graph(cls, spurious: int) -> Graph:
        parents: dict[str, tuple[str, ...]] = {
            "agent": ("agent", "move"),
            "key": ("agent", "key", "pick"),
            "door": ("agent", "door", "has_key", "open"),
            "has_key": ("agent", "key", "has_key", "pick"),
        }
        cues: dict[str, tuple[str, ...]] = {cue: (cue,) for cue in spurious_channels.names("cue", spurious)}
        return Graph.from_parents(cls.make_factors(spurious).inputs, parents | cues)

    # The simulator -----------------------------------------------------------------------------------
    def _place(self, seed: int) -> None:
        layout = draw_layout(seed, self.split)
        if not hasattr(self, "room"):
            with needs_extra("unlock"):
                from because_rl.envs.unlock.simulator import Room
            self.room = Room(SIDE)
        self.room.reset()
        self.room.agent_cell = layout.agent
        self.room.put(layout.key, self.room.make_key())
        for door in layout.doors:
            self.room.put(door, self.room.make_door())
        self._cues = draw_cues(seed, layout, self.spurious, self.split)
        self._hidden = {"u_c": layout.u_c, "u_pi": draw_u_pi(seed), "fewest_steps": layout.fewest_steps}

    def _advance(self, columns: np.ndarray) -> None:
        move, pick, open_ = columns[:4], columns[5], columns[7]
        below, carried_before = self.room.object_at(self.room.agent_cell), self.room.carrying
        if pick and self.room.is_key(below):
            self.room.carrying = None  # minigrid's agent carries one object: a new key replaces it
            self.room.on_own_cell(self.room.actions.pickup)
        if open_ and self.room.is_door(below) and below.is_locked:
            # A key that is picked in this step does not open a door yet: only the key carried before counts.
            carried_now, self.room.carrying = self.room.carrying, carried_before
            self.room.on_own_cell(self.room.actions.toggle)
            self.room.carrying = carried_now
        if move.any():
            self.room.move(int(move.argmax()))

    def exact_state(self) -> np.ndarray:
        state = np.zeros(3 * CELLS + 2)
        state[self.room.agent_cell] = 1
        for cell in range(CELLS):
            thing = self.room.object_at(cell)
            if self.room.is_key(thing):
                state[CELLS + cell] = 1
            elif self.room.is_door(thing) and thing.is_locked:
                state[2 * CELLS + cell] = 1
        state[3 * CELLS + int(self.room.carrying is not None)] = 1
        return np.concatenate([state, self._cues])

    def exact_goal(self) -> np.ndarray:
        return np.zeros(CELLS)

    def hidden(self) -> Hidden:
        return dict(self._hidden)

    def snapshot(self) -> Any:
        objects = [self.room.object_at(cell) for cell in range(CELLS)]
        locked = [self.room.is_door(thing) and thing.is_locked for thing in objects]
        return objects, locked, self.room.agent_cell, self.room.agent_dir, self.room.carrying, self._cues.copy()

    def restore(self, snapshot: Any) -> None:
        objects, locked, agent, direction, carrying, cues = snapshot
        for cell, (thing, lock) in enumerate(zip(objects, locked, strict=True)):
            self.room.put(cell, thing)
            if self.room.is_door(thing):
                thing.is_locked, thing.is_open = lock, not lock
        self.room.agent_cell, self.room.agent_dir = agent, direction
        self.room.carrying, self._cues = carrying, cues.copy()

    def intervene(self, factor: str, value: np.ndarray) -> None:
        value = np.asarray(value, float)
        if factor == "agent":
            self.room.agent_cell = int(value.argmax())
        elif factor == "has_key":
            self.room.carrying = self.room.make_key() if value[1] else None
        elif factor in ("key", "door"):
            is_kind, is_other = self.room.is_key, self.room.is_door
            if factor == "door":
                is_kind, is_other = is_other, is_kind
            cells = [int(cell) for cell in np.flatnonzero(value)]
            if any(is_other(self.room.object_at(cell)) for cell in cells):
                raise BecauseError(
                    f"Cannot put the {factor} on a cell that holds another object.",
                    need="a free cell (minigrid allows one object per cell).",
                    fix="choose another value.",
                )
            for cell in range(CELLS):
                if is_kind(self.room.object_at(cell)):
                    self.room.put(cell, None)
            for cell in cells:
                self.room.put(cell, self.room.make_key() if factor == "key" else self.room.make_door())
        else:
            start = self.factors[factor].start - (3 * CELLS + 2)
            self._cues[start : start + 4] = value

    def picture(self) -> np.ndarray:
        frame = self.room.get_frame(highlight=False, tile_size=48)
        state = self.exact_state()
        doors_left = int(state[2 * CELLS : 3 * CELLS].sum())
        key = "in hand" if state[-1 - len(self._cues)] else "on the floor"
        return caption(frame, f"step {self._steps}/{HORIZON}   key {key}   doors left {doors_left}")
