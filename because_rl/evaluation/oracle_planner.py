"""The same planners with the simulator as their model: how well a perfect model would do.

No learned model can beat it by much, and where it is low the planner is the problem. It sees what no method may:
the simulator, and with it the hidden confounders. It gets no data, so its proposals are uniform knots (Crash) or
the expert's law with noise (Lift, where uniform actions never grasp).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.tasks import check_world, world_class
from because_rl.evaluation.rollout import Outcome, layouts, roll
from because_rl.rng import child_seed


class Oracle(ABC):
    """Acts in the worlds of one batch."""

    @abstractmethod
    def begin(self, batch: BatchEnv) -> None:
        """The worlds have been reset: look behind them."""

    @abstractmethod
    def act(self, observation: Observation, steps_left: int) -> np.ndarray: ...

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Give back threads."""


def make_oracle(world: str, seed: int = 0) -> Oracle:
    """The oracle of a world; `seed` decides what its planning draws."""
    world_class(check_world(world))  # tells what to install where its simulator is missing
    module = importlib.import_module(f"because_rl.evaluation.oracle_{world}")
    return getattr(module, f"{world.capitalize()}Oracle")(seed)


def oracle_outcome(world: str, split: str, episodes: int, spurious: int = 1, seed: int = 0) -> Outcome:
    """Of the oracle planner in the scenes that every method is evaluated in."""
    oracle = make_oracle(world, child_seed(seed, "oracle", world, split))
    try:
        return roll(world, split, layouts(world, split, episodes), oracle.act, begin=oracle.begin, spurious=spurious)
    finally:
        oracle.close()
