"""The contract of a method: it learns from transitions, for several seeds at once, and returns an agent that acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from because_rl.training.run import Run
from because_rl.transitions import Transitions


class Agent(ABC):
    """A fitted method with K seeds, each acting in n worlds of its own."""

    seeds: tuple[int, ...]

    @abstractmethod
    def begin(self, worlds: int, seed: int) -> None:
        """Start new episodes in n = `worlds` worlds for every seed; `seed` decides whatever acting draws at random."""

    @abstractmethod
    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """One action for every seed and world.

        `state`: (K, n, state columns). `goal`: (K, n, goal columns). `steps_left`: steps until the episodes end.
        Returns (K, n) action numbers where actions are discrete, else (K, n, action columns).
        """


class Method(ABC):
    """One file per method, its frozen Config on top; `fit` reads like the paper's algorithm."""

    name: ClassVar[str]
    config: Any

    @abstractmethod
    def fit(self, data: Transitions, run: Run) -> Agent:
        """Learn from `data` for all seeds of `run`, which trains the stages and keeps what they come to."""
