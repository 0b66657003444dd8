"""N worlds of one task stepped together: the one interface of bulk collection and evaluation.

Two families implement it. The fast ones (`UnlockBatch`, `CrashBatch`, `LiftBatch`) are what we use;
`SimulatorBatch` drives the unmodified simulators behind the same interface, so that anything that runs
on one runs on the other and tests can hold them against each other step by step.
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
    """(N,) bool: the horizon came first"""


class BatchEnv(ABC):
    """Worlds that have ended stay where they ended and pay no more reward, whatever is done to them."""

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

    # What an implementation provides ---------------------------------------------------------------
    @abstractmethod
    def _place(self, seeds: Sequence[int]) -> None: ...

    @abstractmethod
    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        """Step the worlds where `active` (N,) is true with action columns (N, action_size)."""

    @abstractmethod
    def exact_state(self) -> np.ndarray:
        """(N, state_size) float64"""

    @abstractmethod
    def exact_goal(self) -> np.ndarray: ...

    @abstractmethod
    def hidden(self) -> Hidden:
        """As `World.hidden`, each value with a leading axis of N."""

    # The interface -----------------------------------------------------------------------------------
    def reset(self, seeds: Sequence[int]) -> Observation:
        """Put world n at the scene of seeds[n], the same scene as ``World.reset(seed=seeds[n])``."""
        self._place([int(seed) for seed in seeds])
        self.size, self.steps = len(seeds), 0
        self.terminated = np.zeros(self.size, bool)
        self.truncated = np.zeros(self.size, bool)
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        if len(actions) != self.size:
            raise BecauseError(
                f"Got {len(actions)} actions for {self.size} worlds.",
                need="one action per world.",
                fix="check the batch.",
            )
        active = ~(self.terminated | self.truncated)
        self._advance(self.factors.encode_action(actions), active)
        self.steps += 1
        success = active & self.factors.reached(self.exact_state(), self.exact_goal())
        self.terminated = self.terminated | success
        self.truncated = self.truncated | (active & ~success & (self.steps >= self.horizon))
        return Step(self._observe(), success.astype(np.float32), self.terminated.copy(), self.truncated.copy())

    def random_actions(self, rng: np.random.Generator) -> np.ndarray:
        """Uniform actions, one per world."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return rng.integers(0, space.n, self.size)
        assert isinstance(space, spaces.Box)
        return rng.uniform(space.low, space.high, (self.size, *space.shape)).astype(space.dtype)

    @property
    def done(self) -> bool:
        return bool((self.terminated | self.truncated).all())

    def _observe(self) -> Observation:
        return Observation(self.exact_state().astype(np.float32), self.exact_goal().astype(np.float32))

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Give back processes, threads and simulators."""


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
        self._live = self.envs[: len(seeds)]
        for env, seed in zip(self._live, seeds, strict=True):
            env.reset(seed=seed)

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        for env, row, on in zip(self._live, columns, active, strict=True):
            if on:
                env.advance(row)

    def exact_state(self) -> np.ndarray:
        return np.stack([env.exact_state() for env in self._live])

    def exact_goal(self) -> np.ndarray:
        return np.stack([env.exact_goal() for env in self._live])

    def hidden(self) -> Hidden:
        each = [env.hidden() for env in self._live]
        return {name: np.stack([np.asarray(h[name]) for h in each]) for name in each[0]}

    def close(self) -> None:
        for env in self.envs:
            env.close()
        self.envs = []
