"""Pictures of Unlock's rooms, many at once: a table of tiles that minigrid drew, put together by their places.

The room with its walls is 8 x 8 tiles of 8 pixels, so a picture is 64 x 64. It is a function of the state:

- the agent faces right: where it faces is no part of Unlock's state;
- a door that was opened is gone, as from the state;
- the carried key is drawn in the top left corner, in the place of a wall tile. minigrid itself draws what an agent
  carries only in the agent's own view, on the agent's tile, where it would look like a key on the floor.

A test compares the pictures with what minigrid renders, pixel by pixel.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from because_rl.envs.unlock.env import CELLS, COLUMN, ROW, SIDE
from because_rl.envs.world import needs_extra
from because_rl.errors import BecauseError

TILE = 8
"""Pixels along a side of a tile."""
TILES = SIDE + 2
"""Tiles along a side of a picture."""
SHAPE = (TILE * TILES, TILE * TILES, 3)
STATE = 3 * CELLS + 2
CORNER = (0, 0)
"""Row and column of the tile that shows the carried key."""
KEY, DOOR, AGENT = 1, 2, 3
"""A tile of the floor has the number 0; what is on it is added: an agent on a door is 5."""

_PIXELS = np.dtype((np.void, 3 * TILE))
"""A row of a tile as one value, which NumPy copies faster than its bytes."""


@cache
def _tiles() -> tuple[np.ndarray, np.ndarray]:
    """What minigrid draws: the tiles by number (6, TILE) and an empty room (TILES, TILE, TILES), as rows of tiles."""
    with needs_extra("unlock"):
        from minigrid.core.grid import Grid

        from because_rl.envs.unlock.simulator import Room
    things = (None, Room.make_key(), Room.make_door())
    tiles = [Grid.render_tile(thing, facing, False, TILE) for facing in (None, 0) for thing in things]
    grid = Grid(TILES, TILES)
    grid.wall_rect(0, 0, TILES, TILES)
    room = grid.render(TILE, (-1, -1), 0)
    packed = (np.ascontiguousarray(np.asarray(part, np.uint8)) for part in (np.stack(tiles), room))
    by_row = [part.reshape(*part.shape[:-2], -1, 3 * TILE).view(_PIXELS)[..., 0] for part in packed]
    return by_row[0][..., 0], by_row[1].reshape(TILES, TILE, TILES)


def draw(state: np.ndarray) -> np.ndarray:
    """The pictures of states: (n, 64, 64, 3) uint8 of (n, 110); or (64, 64, 3) of (110,).

    >>> from because_rl.envs.unlock.batch import UnlockBatch
    >>> draw(UnlockBatch().reset([0, 1, 2]).state).shape
    (3, 64, 64, 3)
    """
    rows = np.atleast_2d(np.asarray(state))
    if rows.ndim != 2 or rows.shape[1] != STATE:
        raise BecauseError(
            f"Got states of shape {np.shape(state)}.", need=f"(n, {STATE}).", fix="pass Unlock's states without cues."
        )
    tiles, room = _tiles()
    on = rows != 0
    agent, key, door = (on[:, start : start + CELLS] for start in (0, CELLS, 2 * CELLS))
    if (both := (key & door).any(1)).any():
        raise BecauseError(
            f"State {int(both.argmax())} has a key and a door on one cell.",
            need="one object per cell, as in minigrid.",
            fix="move one of them.",
        )
    number = AGENT * agent.view(np.uint8)
    number += KEY * key.view(np.uint8)
    number += DOOR * door.view(np.uint8)
    pictures = np.empty((len(rows), TILES, TILE, TILES), _PIXELS)
    pictures[:] = room
    which = np.flatnonzero(number)
    n, cell = np.divmod(which, CELLS)
    pictures[n, ROW[cell] + 1, :, COLUMN[cell] + 1] = tiles[number.reshape(-1)[which]]
    carrying = np.flatnonzero(on[:, STATE - 1])
    pictures[carrying, CORNER[0], :, CORNER[1]] = tiles[KEY]
    return pictures.view(np.uint8).reshape(*np.shape(state)[:-1], *SHAPE)
