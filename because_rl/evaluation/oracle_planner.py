"""The same planners with the simulator as their model: success with a perfect model.

No learned model can beat it by much; where its success is low, the planner is the limit. It has access to what no
method may use: the simulator and the hidden confounders. It has no data, so its proposals are uniform knots (Crash) or
the expert policy with noise (Lift, where uniform actions never grasp).
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
    """Plans and acts in the worlds of one batch. Subclasses: `<World>Oracle` in ``oracle_<world>.py``."""

    @abstractmethod
    def begin(self, batch: BatchEnv) -> None:
        """Called once after the worlds have been reset, to read their hidden state."""

    @abstractmethod
    def act(self, observation: Observation, steps_left: int) -> np.ndarray:
        """One action for each world of the batch, with `steps_left` steps to the horizon."""

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Release simulators and threads."""


def make_oracle(world: str, seed: int = 0) -> Oracle:
    """The oracle of a world; `seed` seeds its planning."""
    world_class(check_world(world))  # raises an error that names the package to install
    module = importlib.import_module(f"because_rl.evaluation.oracle_{world}")
    return getattr(module, f"{world.capitalize()}Oracle")(seed)


def oracle_outcome(world: str, split: str, episodes: int, spurious: int = 1, seed: int = 0) -> Outcome:
    """Outcome of the oracle planner in the scenes that every method is evaluated in; `seed` seeds its planning."""
    oracle = make_oracle(world, child_seed(seed, "oracle", world, split))
    try:
        return roll(world, split, layouts(world, split, episodes), oracle.act, begin=oracle.begin, spurious=spurious)
    finally:
        oracle.close()
