"""Noisy shortest paths through Unlock.

With probability eps a step is a uniformly random action. Otherwise the agent walks to the key, picks
it, walks to the nearest door and opens it. u_pi: in a share q of the episodes (the *coverage*) the
agent first goes to the door and tries to open it without the key. Without such episodes the data almost never
show that a door stays shut without a key, and no method can learn it (positivity).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.behaviour import Behaviour
from because_rl.envs.unlock.env import CELLS, COLUMN, DOWN, HORIZON, LEFT, OPEN, PICK, RIGHT, ROW, UP, distance
from because_rl.rng import stream

EPS = {"random": 0.385, "medium": 0.185, "expert": 0.033}
COVERAGE = {"random": 0.3, "medium": 0.3, "expert": 0.1}
_DISTANCE = distance(np.arange(CELLS)[:, None], np.arange(CELLS)[None, :])


class UnlockBehaviour(Behaviour):
    def __init__(self, level: str, coverage: float | None = None):
        super().__init__(level)
        self.eps = EPS[level]
        self.coverage = COVERAGE[level] if coverage is None else float(coverage)

    def reset(self, batch: BatchEnv, seeds: Sequence[int]) -> None:
        draws = [stream(seed, "unlock", "behaviour") for seed in seeds]
        self._noise = np.stack([rng.random((HORIZON, 2)) for rng in draws])
        self._random_action = np.stack([rng.integers(0, 6, HORIZON) for rng in draws])
        self._door_first = batch.hidden()["u_pi"] < self.coverage
        self._step = 0

    def act(self, observation: Observation) -> np.ndarray:
        state = observation.state
        agent, key = state[:, :CELLS].argmax(1), state[:, CELLS : 2 * CELLS].argmax(1)
        doors, has_key = state[:, 2 * CELLS : 3 * CELLS] > 0, state[:, 3 * CELLS + 1] > 0
        door = np.where(doors, _DISTANCE[agent], CELLS).argmin(1)

        to_door = has_key | self._door_first
        target, action_there = np.where(to_door, door, key), np.where(to_door, OPEN, PICK)
        planned = np.where(agent == target, action_there, _towards(agent, target, self._noise[:, self._step, 0]))
        is_random = self._noise[:, self._step, 1] < self.eps
        action = np.where(is_random, self._random_action[:, self._step], planned)

        tried = (action == OPEN) & (agent == door)
        self._door_first = self._door_first & ~tried & ~has_key
        self._step += 1
        return action

    def settings(self) -> dict[str, float | str]:
        return {"policy": "noisy shortest path", "eps": self.eps, "coverage": self.coverage}


def _towards(agent: np.ndarray, target: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A move along a shortest path; `uniform` in [0, 1) picks the axis, with probability proportional to distance."""
    down, right = ROW[target] - ROW[agent], COLUMN[target] - COLUMN[agent]
    total = np.maximum(abs(down) + abs(right), 1)
    vertical = uniform < abs(down) / total
    return np.where(vertical, np.where(down > 0, DOWN, UP), np.where(right > 0, RIGHT, LEFT))
