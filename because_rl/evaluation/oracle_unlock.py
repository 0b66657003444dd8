"""Unlock's oracle planner: value iteration on the true transitions."""

from __future__ import annotations

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.unlock.batch import unlock_step
from because_rl.evaluation.oracle_planner import Oracle
from because_rl.planning.value_iteration import Successors, ValueIteration


class UnlockOracle(Oracle):
    """Acts by exact values."""

    def __init__(self, seed: int = 0):
        """The planner is deterministic: `seed` is not used."""

    def begin(self, batch: BatchEnv) -> None:
        self.planner = ValueIteration(_unlock_model, batch.factors, batch.horizon)

    def act(self, observation: Observation, steps_left: int) -> np.ndarray:
        return self.planner.act(observation.state, observation.goal, steps_left)


def _unlock_model(state: np.ndarray, action: np.ndarray) -> Successors:
    return Successors(unlock_step(state, action), np.ones(len(state)), np.zeros(len(state)))
