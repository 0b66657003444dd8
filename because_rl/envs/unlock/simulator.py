"""minigrid's room as Unlock uses it. Imports minigrid: `unlock.env` imports this module when it builds a room."""

from __future__ import annotations

from typing import Any

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Door, Key
from minigrid.minigrid_env import MiniGridEnv


class _Overlappable:
    """The agent can stand on it: keys lie on the floor, and doors are hatches in the floor."""

    def can_overlap(self) -> bool:
        return True


class FloorKey(_Overlappable, Key):
    pass


class FloorDoor(_Overlappable, Door):
    pass


class Room(MiniGridEnv):
    """minigrid's engine, in which pick-up and toggle act on the agent's own cell instead of the one in front.

    Cells are numbers in [0, side * side), row by row.
    """

    def __init__(self, side: int) -> None:
        self.side, self._act_on_own_cell = side, False
        self.carrying: Any
        mission = MissionSpace(lambda: "fetch the key and open every door")
        super().__init__(mission, grid_size=side + 2, max_steps=10**9, see_through_walls=True, highlight=False)

    @property
    def front_pos(self):
        return np.asarray(self.agent_pos) if self._act_on_own_cell else super().front_pos

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.agent_pos, self.agent_dir = (1, 1), 0

    def gen_obs(self) -> dict:
        return {}  # the agent's field of view is not used, and costs most of minigrid's step

    def _grid_position(self, cell: int) -> tuple[int, int]:
        """minigrid's (column, row) of a cell, inside the walls."""
        row, column = divmod(int(cell), self.side)
        return column + 1, row + 1

    def object_at(self, cell: int):
        return self.grid.get(*self._grid_position(cell))

    def put(self, cell: int, thing: Any) -> None:
        self.grid.set(*self._grid_position(cell), thing)

    @staticmethod
    def make_key() -> FloorKey:
        return FloorKey("yellow")

    @staticmethod
    def make_door() -> FloorDoor:
        """A locked one."""
        return FloorDoor("yellow", is_locked=True)

    @staticmethod
    def is_key(thing: Any) -> bool:
        return isinstance(thing, Key)

    @staticmethod
    def is_door(thing: Any) -> bool:
        return isinstance(thing, Door)

    @property
    def agent_cell(self) -> int:
        return (int(self.agent_pos[1]) - 1) * self.side + int(self.agent_pos[0]) - 1

    @agent_cell.setter
    def agent_cell(self, cell: int) -> None:
        self.agent_pos = self._grid_position(cell)

    def move(self, direction: int) -> None:
        self.agent_dir = (3, 1, 2, 0)[direction]  # minigrid counts right, down, left, up
        self.step(self.actions.forward)

    def on_own_cell(self, action: Any) -> None:
        self._act_on_own_cell = True
        try:
            self.step(action)
        finally:
            self._act_on_own_cell = False
