"""What a method is: it learns from transitions, for several seeds at once, and then acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from because_rl.algorithms.run import Run
from because_rl.factors import FactorSpec


@dataclass(frozen=True)
class Data:
    """Logged transitions as methods see them: arrays and factors, no simulator, no true graph."""

    factors: FactorSpec
    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray
    goal: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    horizon: int
    """steps that an episode may last"""

    def __len__(self) -> int:
        return len(self.state)

    @property
    def held_out(self) -> np.ndarray:
        """Rows of every tenth episode: never trained on, used to choose and to report."""
        return self.episode % 10 == 9

    @property
    def out_of_time(self) -> np.ndarray:
        """The last rows of episodes that did not end at their goal."""
        last = np.append(self.episode[1:] != self.episode[:-1], True)
        return last & ~np.asarray(self.terminated, bool)

    def rows(self, keep: np.ndarray) -> dict[str, Any]:
        """A batch for training: JAX arrays by name."""
        names = ("state", "action", "next_state", "goal", "reward", "terminated", "out_of_time", "step", "episode")
        return {name: jnp.asarray(getattr(self, name)[keep], jnp.float32) for name in names}


class Agent(ABC):
    """A fitted method with K seeds, each acting in n worlds of its own."""

    seeds: tuple[int, ...]

    @abstractmethod
    def begin(self, worlds: int, seed: int) -> None:
        """Forget earlier episodes; `seed` decides whatever acting draws at random."""

    @abstractmethod
    def act(self, state: np.ndarray, goal: np.ndarray, left: int) -> np.ndarray:
        """(K, n, state), (K, n, goal), steps to go -> actions: (K, n) integers, or (K, n, action) columns."""


class Method(ABC):
    """One file per method, its frozen Config on top; `fit` reads like the paper's algorithm."""

    name: ClassVar[str]
    config: Any

    @abstractmethod
    def fit(self, data: Data, run: Run) -> Agent: ...
