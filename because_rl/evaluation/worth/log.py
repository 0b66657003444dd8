"""A log as off-policy evaluation sees it, and the quantity that is estimated.

The worth of a policy is the expected return of an episode that begins like the logged ones and lasts at most H steps,

    v = E [ sum_{t < H} gamma^t r_t ],     H: the longest logged episode,

where the action is the policy's at every step and nothing comes after an end. In a log with a goal and no rewards, r
is 1 at the step that reaches the goal, and v is the probability of reaching it within H steps if gamma = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import nearest_code
from because_rl.rng import stream
from because_rl.transitions import Transitions

FOLDS = 3
"""Parts of the episodes; what is said of one part has been learned from the others."""


ROW_STEP = 1024
"""Rows are filled up to a multiple, so that logs of about one size share a compiled program."""


class Policy(NamedTuple):
    """What a policy does in the states of a log's n rows.

    Where actions are numbered, probabilities (n, actions); otherwise actions that it draws, (n, draws, columns).
    """

    name: str
    now: np.ndarray
    """at the states"""
    after: np.ndarray
    """at the next states"""


class FittedQ(NamedTuple):
    """Fits at the logged rows, each row by a fit that has not seen its episode."""

    first: np.ndarray
    """(fits, E) V_H at the first state of each episode"""
    surprise: np.ndarray
    """(fits, n) r + gamma V_{H-t-1}(s') - Q_{H-t}(s, a) of step t"""
    rest: np.ndarray
    """(fits, E) gamma V_{H-t-1}(s') of the last step t of an episode, 0 if it ended for good: what was not logged"""


@dataclass(frozen=True)
class LoggedEpisodes:
    """n rows of E episodes, those of one episode adjacent and in order."""

    inputs: np.ndarray
    """(n, columns) float32: what a policy sees, the observed state and the goal"""
    next_inputs: np.ndarray
    """(n, columns) float32"""
    action: np.ndarray
    """(n, action columns) float32; (n, 0) where actions are numbered and have no columns"""
    number: np.ndarray | None
    """(n,) int: the number of the action; None where actions are not numbered"""
    actions: int
    """how many numbered actions there are; 0 where they are not numbered"""
    reward: np.ndarray
    """(n,) float32"""
    goes_on: np.ndarray
    """(n,) float32: 0 where the step ended the episode for good, else 1"""
    episode: np.ndarray
    """(n,) int, 0 to E - 1"""
    step: np.ndarray
    """(n,) int"""
    horizon: int
    discount: float = 1.0
    factors: FactorSpec | None = None
    """of the inputs, without outcomes; None where states are numbers"""

    @property
    def episodes(self) -> int:
        return int(self.episode[-1]) + 1

    @cached_property
    def first(self) -> np.ndarray:
        """(E,) the first row of each episode."""
        return np.flatnonzero(np.append(True, self.episode[1:] != self.episode[:-1]))

    @cached_property
    def last(self) -> np.ndarray:
        """(E,) the last row of each episode."""
        return np.append(self.first[1:], len(self.episode)) - 1

    @cached_property
    def fold(self) -> np.ndarray:
        """(n,) int: the part that the episode of a row belongs to; parts are equal in size and drawn at random."""
        parts = np.arange(self.episodes) % FOLDS
        return stream(0, "worth", "folds").permutation(parts)[self.episode]

    @cached_property
    def discounts(self) -> np.ndarray:
        """(n,) gamma^t."""
        return (self.discount**self.step).astype(np.float32)

    @cached_property
    def returns(self) -> np.ndarray:
        """(E,) what was logged."""
        return np.bincount(self.episode, self.reward * self.discounts)

    @classmethod
    def from_transitions(cls, data: Transitions, discount: float = 1.0) -> LoggedEpisodes:
        """The log of a fit: its rewards where a policy is for them, else 1 where the goal is reached, or held."""
        spec, size = data.factors, data.factors.observed_size
        codes = None if spec.codes is None else np.asarray(spec.codes, np.float32)
        reward = data.reward if spec.outcomes or not spec.goal else data.terminated
        if spec.holds_goal and not spec.outcomes:
            reward = np.asarray(spec.reached(data.next_state, data.goal))
        _, episode = np.unique(data.episode, return_inverse=True)
        return cls(
            np.hstack([data.state[:, :size], data.goal]).astype(np.float32),
            np.hstack([data.next_state[:, :size], data.goal]).astype(np.float32),
            np.asarray(data.action, np.float32),
            None if codes is None else np.asarray(nearest_code(jnp.asarray(codes), jnp.asarray(data.action))),
            0 if codes is None else len(codes),
            np.asarray(reward, np.float32),
            1.0 - np.asarray(data.terminated, np.float32),
            episode.reshape(-1),
            np.asarray(data.step),
            int(data.step.max()) + 1,
            discount,
            replace(spec, state=tuple(f for f in spec.state if f not in spec.outcomes), constraints=()),
        )

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Rows (n, ...) filled up by the last one to a multiple of ROW_STEP."""
        return np.concatenate([values, np.repeat(values[-1:], -len(self.reward) % ROW_STEP, 0)])


def resampling_weights(episodes: int, resamples: int, seed: int = 0) -> np.ndarray:
    """(1 + resamples, E) float32: how often each episode counts, once in the first row and as drawn in the others."""
    drawn = stream(seed, "worth", "bootstrap").multinomial(episodes, np.full(episodes, 1 / episodes), resamples)
    return np.concatenate([np.ones((1, episodes)), drawn]).astype(np.float32)
