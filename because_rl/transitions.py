"""Logged transitions: the one form in which data enter discovery, learning and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from because_rl.factors import FactorSpec
from because_rl.io import arrays_sha256

if TYPE_CHECKING:
    import jax

LEARNED = ("state", "action", "next_state", "goal", "reward", "terminated", "episode", "step")
"""The arrays that decide what is learned."""


@dataclass(frozen=True)
class Transitions:
    """n transitions in the order they were logged; rows of one episode are adjacent. No simulator, no true graph.

    >>> from because_rl.factors import Factor
    >>> position, push = Factor("x", 0, 1, "continuous", "position"), Factor("push", 0, 1, "continuous", "push")
    >>> ones = np.ones((4, 1), np.float32)
    >>> data = Transitions(FactorSpec((position,), (push,)), ones, ones, ones, np.zeros((4, 0)), np.zeros(4),
    ...                    np.array([False, True, False, False]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 2)
    >>> len(data), data.episodes, data.success_rate, data.truncated.tolist()
    (4, 2, 0.5, [False, False, False, True])
    """

    factors: FactorSpec
    state: np.ndarray
    """(n, state columns) float32"""
    action: np.ndarray
    """(n, action columns) float32: as models see it"""
    next_state: np.ndarray
    """(n, state columns) float32"""
    goal: np.ndarray
    """(n, goal columns) float32; no columns where the data have no goal"""
    reward: np.ndarray
    """(n,)"""
    terminated: np.ndarray
    """(n,) bool: this step reached the goal and ended its episode"""
    episode: np.ndarray
    """(n,) int: the episode of each row"""
    step: np.ndarray
    """(n,) int: its step within the episode"""
    horizon: int
    """steps that an episode may last"""
    name: str = ""
    """of the dataset, for messages"""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """what the dataset says of itself, such as the recipe that it was collected by"""

    def __len__(self) -> int:
        return len(self.state)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return int(self.episode[-1]) + 1

    @property
    def success_rate(self) -> float:
        """Share of episodes that ended at their goal."""
        return float(self.terminated.sum() / self.episodes)

    @property
    def truncated(self) -> np.ndarray:
        """(n,) bool: the last rows of episodes that did not end at their goal."""
        last = np.append(self.episode[1:] != self.episode[:-1], True)
        return last & ~np.asarray(self.terminated, bool)

    @property
    def held_out(self) -> np.ndarray:
        """(n,) bool: rows of every tenth episode, which are never trained on but used to choose and to report."""
        return self.episode % 10 == 9

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe that `because collect` followed; empty for data from elsewhere."""
        return self.metadata.get("because", {}).get("recipe", {})

    def batch(self, keep: np.ndarray) -> dict[str, jax.Array]:
        """The rows that `keep` selects (a boolean mask or row numbers), as float32 JAX arrays by name."""
        import jax.numpy as jnp

        return {name: jnp.asarray(getattr(self, name)[keep], jnp.float32) for name in (*LEARNED, "truncated")}

    def sha256(self) -> str:
        """A hash of all that decides what is learned."""
        return arrays_sha256({name: getattr(self, name) for name in LEARNED})
