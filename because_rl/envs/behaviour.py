"""Base class of the hand-written behaviour policies that generate the datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation


class Behaviour(ABC):
    """A policy over a batch of worlds.

    All its randomness is drawn in `reset` from streams named by each episode's seed, so an episode
    does not depend on which others share its batch. It may read ``batch.hidden()`` (that is what makes
    u_pi a confounder); learners may not.
    """

    levels: ClassVar[tuple[str, ...]] = ("random", "medium", "expert")

    def __init__(self, level: str):
        if level not in self.levels:
            raise ValueError(f"behaviour level must be one of {self.levels}, we got {level!r}")
        self.level = level

    @abstractmethod
    def reset(self, batch: BatchEnv, seeds: Sequence[int]) -> None:
        """Draw all random numbers of the episodes with these seeds, which `batch` has just started."""

    @abstractmethod
    def act(self, observation: Observation) -> np.ndarray:
        """One action per world, (N, ...), each in the action space."""

    @abstractmethod
    def settings(self) -> dict[str, float | str]:
        """The parameters of this behaviour, as recorded in the dataset's metadata."""
