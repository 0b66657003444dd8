"""An agent in an environment of Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from because_rl.errors import BecauseError

if TYPE_CHECKING:
    from because_rl.training.method import Agent


class Episodes(NamedTuple):
    """What came of n episodes."""

    returns: np.ndarray
    """(n,) the sum of all rewards"""
    steps: np.ndarray
    """(n,) int"""
    terminated: np.ndarray
    """(n,) bool: the environment ended it; otherwise it was cut off"""


def play(agent: Agent, env: Any, episodes: int, first_seed: int, most_steps: int) -> Episodes:
    """Act through episodes, the k-th reset with `first_seed` + k; at every step the agent's seeds vote."""
    out = []
    for k in range(episodes):
        controller, total, steps, over = agent.start(1, k), 0.0, 0, False
        observation, _ = env.reset(seed=first_seed + k)
        while not over and steps < most_steps:
            # Rewards have no last step, unless the log says that episodes end.
            left = agent.horizon if agent.factors.maximises_reward else max(agent.horizon - steps, 1)
            action = agent.choose(controller, *split_observation(agent, observation), left)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
        out.append((total, steps, terminated))
    returns, lengths, ends = (np.array(column) for column in zip(*out, strict=True))
    return Episodes(returns, lengths, ends)


def split_observation(agent: Agent, observation: Any) -> tuple[np.ndarray, np.ndarray]:
    """State and goal, (columns,) each, of an observation: an array, or the dict of a goal environment."""
    parts = observation if isinstance(observation, dict) else {"observation": observation}
    names = {"observation": agent.factors.observed_size, "desired_goal": agent.factors.goal_size}
    columns = [np.asarray(parts.get(name, ()), np.float32).reshape(-1) for name in names]
    for (name, want), have in zip(names.items(), columns, strict=True):
        if len(have) != want and not (name == "desired_goal" and want == 0):
            raise BecauseError(
                f"The environment's {name!r} has {len(have)} columns.",
                need=f"{want}, as the agent's factors have.",
                fix="wrap the environment so that it shows what was logged.",
            )
    return columns[0], columns[1][: agent.factors.goal_size]
