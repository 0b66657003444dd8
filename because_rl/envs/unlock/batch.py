"""Unlock, many rooms at once, in NumPy. A test compares it with minigrid step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.envs.batch import BatchEnv
from because_rl.envs.unlock.env import CELLS, COLUMN, MOVES, ROW, SIDE, Unlock, draw_cues, draw_layout, draw_u_pi
from because_rl.envs.world import Hidden

DESTINATION = np.stack(
    [np.clip(ROW + row, 0, SIDE - 1) * SIDE + np.clip(COLUMN + column, 0, SIDE - 1) for row, column in MOVES],
    axis=1,
)
"""(36, 4): the cell that a move leads to; a wall keeps the agent where it is."""


def unlock_step(state: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The next state rows (n, 110 or more), given state rows and action columns (n, 8); changes neither."""
    after = state.copy()
    agent, key, door = (state[:, start : start + CELLS] for start in (0, CELLS, 2 * CELLS))
    has_key, pick, open_ = state[:, 3 * CELLS + 1 : 3 * CELLS + 2], columns[:, 5:6], columns[:, 7:8]
    picked = agent * key * pick
    after[:, CELLS : 2 * CELLS] = key - picked
    after[:, 2 * CELLS : 3 * CELLS] = door * (1 - agent * open_ * has_key)
    has_key_after = np.maximum(has_key[:, 0], picked.sum(1))
    after[:, 3 * CELLS : 3 * CELLS + 2] = np.stack([1 - has_key_after, has_key_after], axis=1)
    moving = np.flatnonzero(columns[:, :4].any(1))
    after[moving, :CELLS] = 0
    after[moving, DESTINATION[agent[moving].argmax(1), columns[moving, :4].argmax(1)]] = 1
    return after


class UnlockBatch(BatchEnv):
    world = Unlock

    def _place(self, seeds: Sequence[int]) -> None:
        layouts = [draw_layout(seed, self.split) for seed in seeds]
        self._rows = np.arange(len(seeds))
        self._agent = np.array([layout.agent for layout in layouts])
        self._key = np.array([layout.key for layout in layouts])  # CELLS when picked
        self._has_key = np.zeros(len(seeds), int)
        self._door = np.zeros((len(seeds), CELLS + 1), bool)
        for room, layout in enumerate(layouts):
            self._door[room, list(layout.doors)] = True
        self._cues = np.stack(
            [draw_cues(seed, layout, self.spurious, self.split) for seed, layout in zip(seeds, layouts, strict=True)]
        )
        self._hidden = {
            "u_c": np.array([layout.u_c for layout in layouts]),
            "u_pi": np.array([draw_u_pi(seed) for seed in seeds]),
            "fewest_steps": np.array([layout.fewest_steps for layout in layouts]),
        }

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        pick, open_ = (columns[:, 5] > 0) & active, (columns[:, 7] > 0) & active
        picked = pick & (self._key == self._agent)
        opened = open_ & (self._has_key == 1)
        self._door[self._rows[opened], self._agent[opened]] = False
        self._key = np.where(picked, CELLS, self._key)
        self._has_key = np.where(picked, 1, self._has_key)
        moving = columns[:, :4].any(1) & active
        self._agent = np.where(moving, DESTINATION[self._agent, columns[:, :4].argmax(1)], self._agent)

    def exact_state(self) -> np.ndarray:
        state = np.zeros((len(self._rows), 3 * CELLS + 2))
        state[self._rows, self._agent] = 1
        on_floor = self._key < CELLS
        state[self._rows[on_floor], CELLS + self._key[on_floor]] = 1
        state[:, 2 * CELLS : 3 * CELLS] = self._door[:, :CELLS]
        state[self._rows, 3 * CELLS + self._has_key] = 1
        return np.concatenate([state, self._cues], axis=1)

    def exact_goal(self) -> np.ndarray:
        return np.zeros((len(self._rows), CELLS))

    def hidden(self) -> Hidden:
        return dict(self._hidden)
