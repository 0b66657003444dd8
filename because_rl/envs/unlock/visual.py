"""Visual Unlock: the same rooms, seen as pictures (`unlock.pictures`).

The goal is the same in every episode, no closed door left, and is not observed: the reward shows what it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from because_rl.envs.batch import Observation, Step
from because_rl.envs.unlock.batch import UnlockBatch
from because_rl.envs.unlock.env import Unlock
from because_rl.envs.unlock.pictures import SHAPE, draw
from because_rl.envs.world import get_world

SPACE = spaces.Box(0, 255, SHAPE, np.uint8)
"""Of a picture."""


class UnlockVisual(gymnasium.ObservationWrapper):
    """``gymnasium.make("because/UnlockVisual-v0", split="I")``: `Unlock` with pictures as observations."""

    def __init__(self, split: str = "I", render_mode: str | None = None):
        super().__init__(Unlock(split, render_mode=render_mode))
        self.observation_space = SPACE

    def observation(self, observation: Any) -> np.ndarray:
        """(64, 64, 3) uint8"""
        return draw(get_world(self.env).exact_state())


class UnlockVisualBatch(UnlockBatch):
    """`UnlockBatch` that shows pictures, one row of bytes each, and no goal."""

    def __init__(self, split: str = "I"):
        super().__init__(split)

    def reset(self, seeds: Sequence[int]) -> Observation:
        super().reset(seeds)
        return self._look()

    def step(self, actions: np.ndarray) -> Step:
        return super().step(actions)._replace(observation=self._look())

    def _look(self) -> Observation:
        """(N, bytes of a picture) uint8 and (N, 0): what an agent is given."""
        pictures = draw(self.exact_state())
        return Observation(pictures.reshape(self.size, -1), np.zeros((self.size, 0), np.float32))
