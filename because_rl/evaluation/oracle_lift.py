"""Lift's oracle planner: shooting with MuJoCo as the model."""

from __future__ import annotations

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.lift.batch import LiftBatch
from because_rl.envs.lift.behaviour import expert
from because_rl.evaluation.oracle_planner import Oracle
from because_rl.rng import stream


class Branches(LiftBatch):
    """Copies of worlds from which candidate plans are simulated."""

    def copy_worlds(self, worlds: LiftBatch, which: np.ndarray) -> np.ndarray:
        """Start from the worlds with these indices (repeats allowed); returns their states."""
        self._rows, self._state = worlds._rows[which], worlds._state[which]
        return self._state

    def advance(self, actions: np.ndarray, going: np.ndarray) -> np.ndarray:
        """Step the copies that are `going`; returns all states."""
        self._advance(actions, going)
        return self._state


class LiftOracle(Oracle):
    """`planning.shooting` with method 'best', in NumPy.

    The score of a candidate is gamma^t with t the step at which it lifts the cube. So once one candidate of a world
    has lifted it, the others of that world cannot win and are not simulated any further.
    """

    def __init__(self, seed: int = 0, population: int = 8, spread: float = 0.3, memory: float = 0.6):
        self.rng = stream(seed, "lift", "shooting")
        self.population, self.spread, self.memory = population, spread, memory

    def begin(self, batch: BatchEnv) -> None:
        assert isinstance(batch, LiftBatch)
        self.worlds, self.branches = batch, Branches(batch.split, batch.spurious, batch.workers)
        self.plans = np.zeros((batch.size, batch.horizon, batch.factors.action_size))

    def act(self, observation: Observation, steps_left: int) -> np.ndarray:
        n, running = self.population, np.flatnonzero(~self.worlds.terminated)
        state = self.branches.copy_worlds(self.worlds, np.repeat(running, n))
        goal = np.repeat(observation.goal[running], n, axis=0)
        has_plan = steps_left < self.worlds.horizon  # there is none at the first step
        follow = (np.arange(len(state)) % n == 0) & has_plan
        last_plan = np.repeat(self.plans[running], n, axis=0)
        chosen = np.zeros((len(state), steps_left, last_plan.shape[2]))
        winner = np.full(len(running), -1)
        noise = self.rng.standard_normal(chosen[:, 0].shape)
        for t in range(steps_left):
            fresh = np.clip(expert(state) + self.spread * noise, -1.0, 1.0).astype(np.float32)  # the dtype of actions
            chosen[:, t] = np.where(follow[:, None], last_plan[:, t], fresh)
            state = self.branches.advance(chosen[:, t], np.repeat(winner < 0, n))
            reached = self.worlds.factors.reached(state, goal).reshape(-1, n)
            winner = np.where((winner < 0) & reached.any(1), reached.argmax(1), winner)
            if (winner >= 0).all():
                break
            innovation = self.rng.standard_normal(noise.shape)
            noise = self.memory * noise + (1 - self.memory**2) ** 0.5 * innovation
        best = chosen.reshape(-1, n, steps_left, last_plan.shape[2])[np.arange(len(running)), np.maximum(winner, 0)]
        self.plans[running, : steps_left - 1] = best[:, 1:]
        actions = np.zeros((self.worlds.size, last_plan.shape[2]))
        actions[running] = best[:, 0]
        return actions

    def close(self) -> None:
        if hasattr(self, "branches"):
            self.branches.close()
