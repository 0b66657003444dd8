"""Acting in an environment of Gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec


class Episodes(NamedTuple):
    """What came of n episodes."""

    returns: np.ndarray
    """(n,) the sum of all rewards"""
    steps: np.ndarray
    """(n,) int"""
    terminated: np.ndarray
    """(n,) bool: the environment ended it; otherwise it was cut off"""


def play(
    begin: Callable[[int], Callable[[Any, int], Any]], env: Any, episodes: int, first_seed: int, most_steps: int
) -> Episodes:
    """Act through episodes, the k-th reset with `first_seed` + k.

    `begin(k)` returns how to act in it: (observation, steps taken) -> action.
    """
    out = []
    for k in range(episodes):
        act, total, steps, over, terminated = begin(k), 0.0, 0, False, False
        observation, _ = env.reset(seed=first_seed + k)
        while not over and steps < most_steps:
            observation, reward, terminated, truncated, _ = env.step(act(observation, steps))
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
        out.append((total, steps, terminated))
    return Episodes(*(np.array(column) for column in zip(*out, strict=True)))


def split_observation(factors: FactorSpec, observation: Any) -> tuple[np.ndarray, np.ndarray]:
    """State and goal, (columns,) each, of an observation: an array, or the dict of a goal environment."""
    parts = observation if isinstance(observation, dict) else {"observation": observation}
    sizes = {"observation": factors.observed_size, "desired_goal": factors.goal_size}
    out = []
    for name, size in sizes.items():
        columns = np.asarray(parts.get(name, ()), np.float32).reshape(-1) if size else np.zeros(0, np.float32)
        if len(columns) != size:
            raise BecauseError(
                f"The environment's {name!r} has {len(columns)} columns.",
                need=f"{size}, as the agent's factors have.",
                fix="wrap the environment so that it shows what was logged.",
            )
        out.append(columns)
    return out[0], out[1]
