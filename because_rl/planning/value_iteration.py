"""Exact values where the reachable space is small: Algorithm 1's backward pass on the states a model can reach.

From the given states every action is tried in the model, and in turn from whatever comes out, until nothing new
appears or the steps are spent. What has been tried is kept, so a state that the model did not predict costs only what
is new about it. On this set, for h steps to go,

    Q_h(s, a) = p(s'|s,a) [ r(s') + (1 - r(s')) gamma V_{h-1}(s') ] - lambda penalty(s, a),    V_h = max_a Q_h

with s' the likeliest successor, p its probability and r whether it reaches the goal. Less likely successors count as
worth nothing: a lower bound, which is exact where the world is deterministic.

Where there are constraints (`planning.limits`), only those actions are compared after which the least is broken,

    C_h(s, a) = violation(s, a) + (1 - r(s')) min_b C_{h-1}(s', b).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.rng import stream

CHUNK = 4096
"""Rows per call of the model: one compiled program."""
MOST_STATES = 400_000
TIE = 1e-6
"""Violations that differ by less are equal."""


class Successors(NamedTuple):
    """What follows n state-action rows."""

    state: np.ndarray
    """(n, state columns), every discrete factor at a definite level"""
    p: np.ndarray
    """(n,) probability"""
    penalty: np.ndarray
    """(n,) in [0, 1]"""
    violation: Any = 0.0
    """(n,) how much the step counts as a violation of constraints; 0: not at all"""


Model = Callable[[np.ndarray, np.ndarray], Successors]
"""Rows of states and action columns -> what follows; called with CHUNK rows at a time."""


class ValueIteration:
    """Plans for any number of worlds at once, and again when a world is in a state that the model did not predict."""

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
        columns = factors.state_size + factors.goal_size
        self._hash = stream(0, "value iteration").integers(1, 2**63, columns, dtype=np.uint64)
        self.calls = 0
        self.forget()

    def forget(self) -> None:
        """Start with an empty list of states. Until then every prediction of the model is kept."""
        actions, state, goal = len(self.codes), self.factors.state_size, self.factors.goal_size
        self._places: dict[int, int] = {}
        self._state, self._goal = np.zeros((0, state), np.float32), np.zeros((0, goal), np.float32)
        self._deep = np.zeros(0, np.int64)  # steps explored from each state; goal states need none
        self._child = np.zeros((0, actions), np.int64)  # itself until the action has been tried
        self._chance, self._reward, self._penalty, self._violation = (np.zeros((0, actions)) for _ in range(4))
        self._tried, self._reached = np.zeros(0, bool), np.zeros(0, bool)
        self._policy = np.zeros((self.horizon, 0), np.int16)
        self.values = np.zeros((self.horizon + 1, 0))

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        """The best action in each of n worlds with `steps_left` steps to go, (n,) integers.

        `state`: (n, state columns). `goal`: (n, goal columns).
        """
        places = self._enter(state, goal)
        unsolved = places.max(initial=0) >= self._policy.shape[1]  # a goal state that the model did not predict
        if unsolved or (self._deep[places] < steps_left).any():
            self.plan(state, goal, steps_left)
            places = self._enter(state, goal)
        return self._policy[steps_left - 1, places].astype(np.int64)

    def plan(self, state: np.ndarray, goal: np.ndarray, steps: int | None = None) -> None:
        """List what can be reached from these states within `steps` (default: the horizon), and solve."""
        steps = self.horizon if steps is None else steps
        if not self._explore(state, goal, steps):
            self.forget()  # of earlier worlds
            if not self._explore(state, goal, steps):
                raise BecauseError(
                    f"The model reaches more than {MOST_STATES} states.",
                    need="a space that can be listed.",
                    fix="choose a sampling planner.",
                )
        self._solve()

    def _explore(self, state: np.ndarray, goal: np.ndarray, steps: int) -> bool:
        """List the reachable states; False if there are too many."""
        frontier = np.unique(self._enter(state, goal))
        for steps_left in range(steps, 0, -1):
            frontier = frontier[self._deep[frontier] < steps_left]
            self._deep[frontier] = steps_left
            self._try_all(frontier[~self._tried[frontier]])
            frontier = np.unique(self._child[frontier])
            if len(self._state) > MOST_STATES:
                return False
        return True

    def _try_all(self, places: np.ndarray) -> None:
        """Every action in each of these states, which have not been tried before."""
        if not len(places):
            return
        actions = len(self.codes)
        goals = np.repeat(self._goal[places], actions, axis=0)
        rows = np.repeat(self._state[places], actions, axis=0)
        after = self._predict(rows, np.tile(self.codes, (len(places), 1)))
        child = self._enter(after.state, goals)
        self._tried[places] = True
        self._child[places] = child.reshape(-1, actions)
        self._reward[places] = self._reached[child].reshape(-1, actions)
        self._chance[places] = after.p.reshape(-1, actions)
        self._penalty[places] = after.penalty.reshape(-1, actions)
        self._violation[places] = after.violation.reshape(-1, actions)

    def _enter(self, state: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """The places of these states in the list, to which new ones are added."""
        names, first, which = np.unique(self._names(state, goal), return_index=True, return_inverse=True)
        count = len(self._places)
        places = np.array([self._places.setdefault(int(name), len(self._places)) for name in names])
        new = first[places >= count]
        if len(new):
            state, goal = np.asarray(state, np.float32)[new], np.asarray(goal, np.float32)[new]
            reached = np.asarray(self.factors.reached(state, goal)) & np.ones(len(new), bool)
            self._state, self._goal = np.concatenate([self._state, state]), np.concatenate([self._goal, goal])
            self._deep = np.append(self._deep, np.where(reached, self.horizon, 0))
            self._reached = np.append(self._reached, reached)
            self._tried = np.append(self._tried, np.zeros(len(new), bool))
            itself = np.repeat(np.arange(count, count + len(new))[:, None], len(self.codes), axis=1)
            self._child = np.concatenate([self._child, itself])
            nothing = np.zeros(itself.shape)
            self._chance = np.concatenate([self._chance, nothing])
            self._reward = np.concatenate([self._reward, nothing])
            self._penalty = np.concatenate([self._penalty, nothing])
            self._violation = np.concatenate([self._violation, nothing])
        return places[which]

    def _solve(self) -> None:
        count = len(self._state)
        self._policy = np.zeros((self.horizon, count), np.int16)
        self.values, broken = np.zeros((self.horizon + 1, count)), np.zeros(count)
        for h in range(1, self.horizon + 1):
            future = self._reward + (1 - self._reward) * self.discount * self.values[h - 1][self._child]
            q = self._chance * future - self.pessimism * self._penalty
            breaks = self._violation + (1 - self._reward) * broken[self._child]
            broken = breaks.min(1)
            q = np.where(breaks <= broken[:, None] + TIE, q, -np.inf)
            self._policy[h - 1] = q.argmax(1)
            self.values[h] = q.max(1)

    def _predict(self, states: np.ndarray, actions: np.ndarray) -> Successors:
        parts = []
        for start in range(0, len(states), CHUNK):
            s, a = states[start : start + CHUNK], actions[start : start + CHUNK]
            fill = CHUNK - len(s)
            after = self.model(np.pad(s, ((0, fill), (0, 0))), np.pad(a, ((0, fill), (0, 0))))
            parts.append(Successors(*(np.broadcast_to(x, (CHUNK, *np.shape(x)[1:]))[: len(s)] for x in after)))
            self.calls += 1
        return Successors(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _names(self, state: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """One number per (state, goal), equal where they are (a 64-bit random linear hash of the bits)."""
        values = np.hstack([state, goal]).astype(np.float32) + np.float32(0)  # -0 is 0
        bits = values.view(np.uint32)
        turned = (bits >> np.uint32(23)) | (bits << np.uint32(9))  # round numbers end in zeros: a product keeps them
        with np.errstate(over="ignore"):
            return (turned.astype(np.uint64) * self._hash).sum(1, dtype=np.uint64)
