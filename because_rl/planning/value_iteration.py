"""Exact values where the reachable space is small: Algorithm 1's backward pass on the states a model can reach.

From the given states every action is tried in the model, and in turn from whatever comes out, until nothing new
appears or the horizon is spent. On this set, for h steps to go,

    Q_h(s, a) = p(s'|s,a) [ r(s') + (1 - r(s')) gamma V_{h-1}(s') ] - lambda penalty(s, a),    V_h = max_a Q_h

with s' the likeliest successor, p its probability and r whether it reaches the goal. What the model holds for
unlikely counts as worth nothing: a bound from below, and exact where the world is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.rng import stream

CHUNK = 4096
"""Rows per call of the model: one compiled program."""
MOST_STATES = 400_000


class Successors(NamedTuple):
    """Of n state-action rows."""

    state: np.ndarray
    """(n, state columns), every discrete factor at a definite level"""
    p: np.ndarray
    """(n,) probability"""
    penalty: np.ndarray
    """(n,) in [0, 1]"""


Model = Callable[[np.ndarray, np.ndarray], Successors]
"""Rows of states and action columns -> what follows; called with CHUNK rows at a time."""


class ValueIteration:
    """Plans for any number of worlds at once, and again when a world turns out otherwise than the model said."""

    def __init__(
        self, model: Model, factors: FactorSpec, horizon: int, *, discount: float = 0.99, pessimism: float = 0.0
    ):
        if factors.codes is None:
            raise BecauseError(
                "Value iteration needs discrete actions.",
                need="a factor spec with 'codes'.",
                fix="choose a sampling planner for continuous actions.",
            )
        self.model, self.factors, self.horizon = model, factors, horizon
        self.discount, self.pessimism = discount, pessimism
        self.codes = np.asarray(factors.codes, np.float32)
        self._hash = stream(0, "value iteration").integers(
            1, 2**63, factors.state_size + factors.goal_size, dtype=np.uint64
        )
        self._places: dict[int, int] = {}
        self._policy = np.zeros((horizon, 0), np.int16)
        self.values = np.zeros((horizon + 1, 0))
        self.calls = 0

    def act(self, state: np.ndarray, goal: np.ndarray, left: int) -> np.ndarray:
        """The best action of each world with `left` steps to go, (n,) integers."""
        names = self._names(state, goal)
        if any(int(name) not in self._places for name in names):
            self.plan(state, goal)
        places = np.array([self._places[int(name)] for name in names])
        return self._policy[left - 1, places].astype(np.int64)

    def plan(self, state: np.ndarray, goal: np.ndarray) -> None:
        """Forget what was planned, explore from these states and solve."""
        names = self._names(state, goal)
        names, first = np.unique(names, return_index=True)
        frontier, wanted = np.asarray(state, np.float32)[first], np.asarray(goal, np.float32)[first]
        places = {int(name): k for k, name in enumerate(names)}
        children, chances, rewards, penalties, count = [], [], [], [], len(names)
        actions = len(self.codes)
        for _ in range(self.horizon):
            if not len(frontier):
                break
            rows = np.repeat(frontier, actions, axis=0)
            goals = np.repeat(wanted, actions, axis=0)
            after = self._predict(rows, np.tile(self.codes, (len(frontier), 1)))
            reached = np.asarray(self.factors.reached(after.state, goals)) & np.ones(len(rows), bool)
            names = self._names(after.state, goals)
            new, where = np.unique(names, return_index=True)
            fresh = [k for k, name in enumerate(new) if int(name) not in places]
            for k in fresh:
                places[int(new[k])] = count
                count += 1
            children.append(np.array([places[int(name)] for name in names]).reshape(-1, actions))
            chances.append(after.p.reshape(-1, actions))
            rewards.append(reached.reshape(-1, actions).astype(np.float64))
            penalties.append(after.penalty.reshape(-1, actions))
            frontier, wanted = after.state[where[fresh]], goals[where[fresh]]
            if count > MOST_STATES:
                raise BecauseError(
                    f"The model reaches more than {MOST_STATES} states.",
                    need="a space that can be listed.",
                    fix="choose a sampling planner.",
                )
        self._solve(places, count, *(np.concatenate(part) for part in (children, chances, rewards, penalties)))

    def _solve(
        self,
        places: dict[int, int],
        count: int,
        child: np.ndarray,
        chance: np.ndarray,
        reward: np.ndarray,
        penalty: np.ndarray,
    ) -> None:
        self._places = places
        self._policy = np.zeros((self.horizon, count), np.int16)
        self.values = np.zeros((self.horizon + 1, count))
        explored = len(child)  # states first met at the horizon have no successors, and are worth nothing
        for h in range(1, self.horizon + 1):
            future = reward + (1 - reward) * self.discount * self.values[h - 1][child]
            q = chance * future - self.pessimism * penalty
            self._policy[h - 1, :explored] = q.argmax(1)
            self.values[h, :explored] = q.max(1)

    def _predict(self, states: np.ndarray, actions: np.ndarray) -> Successors:
        parts = []
        for start in range(0, len(states), CHUNK):
            s, a = states[start : start + CHUNK], actions[start : start + CHUNK]
            fill = CHUNK - len(s)
            after = self.model(np.pad(s, ((0, fill), (0, 0))), np.pad(a, ((0, fill), (0, 0))))
            parts.append(Successors(*(np.asarray(x)[: len(s)] for x in after)))
            self.calls += 1
        return Successors(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _names(self, state: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """One number per (state, goal), equal where they are (a 64-bit random linear hash of the bits)."""
        bits = np.ascontiguousarray(np.hstack([state, goal]), np.float32).view(np.uint32).astype(np.uint64)
        with np.errstate(over="ignore"):
            return (bits * self._hash).sum(1, dtype=np.uint64)
