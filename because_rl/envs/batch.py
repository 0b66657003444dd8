"""N worlds of one task stepped together: the interface for collecting data and evaluating agents.

There are two kinds. The fast ones (`UnlockBatch`, `CrashBatch`, `LiftBatch`) are used everywhere;
`SimulatorBatch` runs the unmodified simulators behind the same interface, so that the same code runs on
both and tests can compare them step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from because_rl.envs.spurious import check_level
from because_rl.envs.world import Hidden, World
from because_rl.errors import BecauseError


class Observation(NamedTuple):
    state: np.ndarray
    """(N, state_size) float32"""
    goal: np.ndarray
    """(N, goal_size) float32"""


class Step(NamedTuple):
    observation: Observation
    reward: np.ndarray
    """(N,) float32: 1 on the step that reaches the goal"""
    terminated: np.ndarray
    """(N,) bool: the goal was reached, now or before"""
    truncated: np.ndarray
    """(N,) bool: the horizon was reached without success"""


class BatchEnv(ABC):
    """Worlds whose episode has ended keep their last state and give no more reward, whatever the action."""

    world: type[World]

    def __init__(self, split: str = "I", spurious: int = 1):
        if split not in self.world.splits:
            raise BecauseError(
                f"Got split={split!r} for {self.world.name}.",
                need=f"one of {', '.join(self.world.splits)}.",
                fix="pass split='I' or split='O'.",
            )
        self.split, self.spurious = split, check_level(spurious)
        self.factors = self.world.make_factors(spurious)
        self.horizon = self.world.horizon
        self.action_space = self.world.make_action_space()

    # Implemented by each kind ------------------------------------------------------------------------
    @abstractmethod
    def _place(self, seeds: Sequence[int]) -> None:
        """Set world n to the start of the episode with seed ``seeds[n]``."""

    @abstractmethod
    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        """Step the worlds where `active` (N,) is true with action columns (N, action_size)."""

    @abstractmethod
    def exact_state(self) -> np.ndarray:
        """(N, state_size) float64"""

    @abstractmethod
    def exact_goal(self) -> np.ndarray:
        """(N, goal_size) float64"""

    @abstractmethod
    def hidden(self) -> Hidden:
        """As `World.hidden`, each value with a leading axis of N."""

    # The interface -----------------------------------------------------------------------------------
    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start world n with seed ``seeds[n]``, in the same scene as ``World.reset(seed=seeds[n])``."""
        self._place([int(seed) for seed in seeds])
        self.size, self.steps = len(seeds), 0
        self.terminated = np.zeros(self.size, bool)
        self.truncated = np.zeros(self.size, bool)
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        """Step every world whose episode is running with its action; `actions` has one row per world."""
        if len(actions) != self.size:
            raise BecauseError(
                f"Got {len(actions)} actions for {self.size} worlds.",
                need="one action per world.",
                fix="pass as many actions as seeds were passed to reset.",
            )
        active = ~(self.terminated | self.truncated)
        self._advance(self.factors.encode_action(actions), active)
        self.steps += 1
        observation = self._observe()
        # Of what is observed, in float32, as in `World`: the reward of a step must follow from its observation.
        success = active & self.factors.reached(observation.state, observation.goal)
        self.terminated = self.terminated | success
        self.truncated = self.truncated | (active & ~success & (self.steps >= self.horizon))
        return Step(observation, success.astype(np.float32), self.terminated.copy(), self.truncated.copy())

    def random_actions(self, rng: np.random.Generator) -> np.ndarray:
        """Uniformly drawn actions, one per world."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return rng.integers(0, space.n, self.size)
        assert isinstance(space, spaces.Box)
        return rng.uniform(space.low, space.high, (self.size, *space.shape)).astype(space.dtype)

    @property
    def done(self) -> bool:
        """Whether all episodes have ended."""
        return bool((self.terminated | self.truncated).all())

    def _observe(self) -> Observation:
        return Observation(self.exact_state().astype(np.float32), self.exact_goal().astype(np.float32))

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Release processes, threads and simulators."""


class SimulatorBatch(BatchEnv):
    """The unmodified simulators, one Gymnasium environment per world, one after the other."""

    def __init__(self, world: type[World], split: str = "I", spurious: int = 1, render: bool = False):
        self.world = world
        super().__init__(split, spurious)
        self._render_mode = "rgb_array" if render else None
        self.envs: list[World] = []

    def _place(self, seeds: Sequence[int]) -> None:
        while len(self.envs) < len(seeds):
            self.envs.append(self.world(self.split, self.spurious, self._render_mode))
        self._running = self.envs[: len(seeds)]
        for env, seed in zip(self._running, seeds, strict=True):
            env.reset(seed=seed)

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        for env, row, is_active in zip(self._running, columns, active, strict=True):
            if is_active:
                env.advance(row)

    def exact_state(self) -> np.ndarray:
        return np.stack([env.exact_state() for env in self._running])

    def exact_goal(self) -> np.ndarray:
        return np.stack([env.exact_goal() for env in self._running])

    def hidden(self) -> Hidden:
        hidden = [env.hidden() for env in self._running]
        return {name: np.stack([np.asarray(h[name]) for h in hidden]) for name in hidden[0]}

    def close(self) -> None:
        for env in self.envs:
            env.close()
        self.envs = []
