"""Check a user's log against its factors, and write it as a Minari dataset.

The end of an episode gets its meaning here. Methods that reach goals take `terminated` to mean *ended at its goal*; in
a user's log it may as well mean that something broke. So where there is a goal, an episode is terminated when its last
state satisfies the goal and truncated otherwise, whatever the log's own flags are. Where there is none, or it is to be
held, the flags of the log say after which steps nothing follows. Rewards beside a goal to reach end by either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.datasets.episodes import Episode
from because_rl.datasets.minari_files import write_dataset_files
from because_rl.datasets.user_log import Log
from because_rl.datasets.validate import CHECKSUMS, Checker, compute_checksums
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import new_folder, write_json

MOST_CODES = 100
"""Logged combinations of discrete action factors that are numbered at most: each is a class of the policy."""


def add_action_codes(log: Log, factors: FactorSpec) -> FactorSpec:
    """The spec, with `codes` added where actions are discrete and it has none.

    Numbers get one-hot codes. Columns of discrete factors, of which one at least is categorical, get the combinations
    that were logged, unless these are more than `MOST_CODES`: then each factor is planned as one beside others.
    """
    if factors.codes is not None:
        return factors
    if _has_discrete_actions(log, factors):
        return replace(factors, codes=tuple(tuple(row) for row in np.eye(factors.action_size).tolist()))
    rows, types = log.joined("actions"), {factor.type for factor in factors.action}
    if "categorical" not in types or not types <= {"categorical", "binary"} or rows.shape[1] != factors.action_size:
        return factors
    if any(factor.invalid(rows[:, factor.slice]).any() for factor in factors.action):
        return factors  # `prepare_log` says where
    combinations = np.unique(rows, axis=0).astype(float).tolist()
    return replace(factors, codes=tuple(map(tuple, combinations))) if len(combinations) <= MOST_CODES else factors


def add_outcomes(
    factors: FactorSpec,
    rewards: Iterable[np.ndarray],
    ends: Iterable[np.ndarray],
    reward: str = "",
    beside_goal: bool = False,
) -> FactorSpec:
    """The spec with the rewards and ends of episodes as factors, where they are what a policy is to be good at.

    That is where rewards are logged and the spec names no goal, unless they are to count `beside_goal`. `reward` is the
    name of their factor.
    """
    if (factors.goal and not beside_goal) or factors.outcomes or not any(np.any(values) for values in rewards):
        return factors
    return factors.with_outcomes(reward or "reward", has_ends=any(np.any(flags) for flags in ends))


OBJECTIVES = ("", "goal", "reward", "both")
"""What a policy is for; "": for the goal, if the spec names one, and else for rewards."""


def complete_spec(log: Log, factors: FactorSpec, objective: str = "") -> FactorSpec:
    """The spec with all that the log adds to it: `add_action_codes`, `add_outcomes`."""
    rewards, ends = [e["rewards"] for e in log.episodes], [e["terminations"] for e in log.episodes]
    if objective not in OBJECTIVES:
        raise BecauseError(f"Got the objective {objective!r}.", need="goal, reward or both.", fix="leave it out.")
    lacks_goal = objective in ("goal", "both") and not factors.goal
    if lacks_goal or (objective in ("reward", "both") and not any(np.any(values) for values in rewards)):
        raise BecauseError(
            f"The objective is {objective!r}, and " + ("there is no goal." if lacks_goal else "no reward is logged."),
            need="what the policy is to be good at.",
            fix="add a section 'goal' to the factor file." if lacks_goal else "name its column with --reward.",
        )
    factors = replace(add_action_codes(log, factors), goal=() if objective == "reward" else factors.goal)
    name = log.columns.reward if log.columns else ""
    return add_outcomes(factors, rewards, ends, name, beside_goal=objective == "both")


def prepare_log(log: Log, factors: FactorSpec, goal: Sequence[float] | None = None) -> Log:
    """The log, checked against `factors`, converted to float32, and with each episode's goal and end set.

    `goal` replaces the goals of all episodes; without it they come from the log. See the module on ends.
    """
    log = _set_goals(log, factors, goal)
    checker = _make_checker(log, factors)
    checker.check_spec(factors)
    episodes = [_prepare_episode(log, n, factors, checker) for n in range(len(log.episodes))]
    return replace(log, episodes=episodes, factors=factors)


def encode_log(log: Log) -> list[dict[str, np.ndarray]]:
    """The episodes of a log that `prepare_log` returned, as `Checker.check_episode` returns them."""
    assert log.factors is not None
    checker = _make_checker(log, log.factors)
    raw = (_as_minari(episode, log.factors) for episode in log.episodes)
    return [checker.check_episode(number, episode, log.factors) for number, episode in enumerate(raw)]


def write_dataset(log: Log, folder: Path) -> None:
    """Write a log that `prepare_log` returned as a Minari dataset, with the checksums that `load` verifies."""
    assert log.factors is not None
    checker = _make_checker(log, log.factors)
    episodes = [_as_minari(episode, log.factors) for episode in log.episodes]
    with new_folder(folder) as new:
        both = checker.observation_space, checker.action_space
        metadata = {"dataset_id": log.name, "because": {"factors": log.factors.to_dict()}}
        write_dataset_files(new, *both, episodes, metadata)
        write_json(new / CHECKSUMS, compute_checksums(new, episodes))


def _set_goals(log: Log, factors: FactorSpec, goal: Sequence[float] | None) -> Log:
    """The log with a goal in every row of observations, if the spec has goal factors, and without goals otherwise."""
    size = factors.goal_size
    if goal is not None and len(goal) != size:
        raise BecauseError(
            f"Got {len(goal)} goal value{'s' * (len(goal) != 1)}.",
            need=f"{size}, one for each goal column of the factor spec.",
            fix="correct --goal, or the section 'goal' of the factor spec.",
        )
    if size and goal is None and not log.has_goals:
        raise BecauseError(
            f"The factor spec has a goal ({factors.goal[0].name!r}) and {log.name} has no goals.",
            need="an array 'goals', or one goal for all episodes.",
            fix="pass --goal VALUE; or drop 'goal' from the factor spec, for a graph and a world model alone.",
        )
    if size and goal is None:
        return log
    episodes = []
    for episode in log.episodes:
        with_goal = {name: array for name, array in episode.items() if name != "goals"}
        if size:
            with_goal["goals"] = np.tile(np.asarray(goal, np.float32), (len(episode["observations"]), 1))
        episodes.append(with_goal)
    return replace(log, episodes=episodes)


def _prepare_episode(log: Log, number: int, factors: FactorSpec, checker: Checker) -> Episode:
    episode = dict(log.episodes[number])
    episode["actions"] = _convert_actions(log, factors, episode["actions"])
    checked = checker.check_episode(number, _as_minari(episode, factors), factors)
    if not all(np.isfinite(array).all() for array in checked.values()):
        raise checker.error("a number is too large", "numbers that 32 bits hold, below 3.4e38", number)
    prepared: Episode = {
        "observations": checked["state"],
        "actions": episode["actions"],
        "rewards": checked["reward"],
    }
    terminated = checked["terminated"]
    if factors.goal:
        prepared["goals"] = checked["goal"]
        last = np.arange(len(terminated)) == len(terminated) - 1
        own = checked["terminated"] if factors.maximises_reward else np.zeros_like(last)
        reached = bool(np.all(factors.reached(checked["state"][-1], checked["goal"][-1])))
        terminated = own if factors.holds_goal else own | (last & reached)
    ended = checked["terminated"] | checked["truncated"]
    return prepared | {"terminations": terminated, "truncations": ended & ~terminated}


def _has_discrete_actions(log: Log, factors: FactorSpec) -> bool:
    """Whether actions become numbers. Without codes they may also be the only column of an action factor."""
    return factors.codes is not None or (log.has_whole_number_actions and factors.action_size > 1)


def _convert_actions(log: Log, factors: FactorSpec, actions: np.ndarray) -> np.ndarray:
    """(T,) int64 where they are discrete, else (T, columns) float32."""
    if not _has_discrete_actions(log, factors):
        return actions.reshape(len(actions), -1).astype(np.float32)
    if log.has_whole_number_actions:
        return actions.reshape(-1).astype(np.int64)
    rows, codes = actions.reshape(len(actions), -1).astype(np.float32), np.asarray(factors.codes, np.float32)
    if rows.shape[1] != codes.shape[1]:
        return rows  # the checker says so
    equal = (rows[:, None] == codes[None]).all(2)
    if not equal.any(1).all():
        raise BecauseError(
            f"{log.name} has the action {rows[equal.any(1).argmin()].tolist()}, which is not in 'codes'.",
            need="action numbers, or rows of 'codes'.",
            fix="add it to 'codes', or leave 'codes' out.",
        )
    return equal.argmax(1)


def _as_minari(episode: Episode, factors: FactorSpec) -> dict[str, Any]:
    """The episode in Minari's form, where goals are part of the observations, as in goal environments."""
    rest = {name: array for name, array in episode.items() if name not in ("observations", "goals")}
    state = episode["observations"].reshape(len(episode["observations"]), -1)
    if "goals" not in episode:
        return rest | {"observations": state}
    goal = episode["goals"].reshape(len(state), -1)
    achieved = factors.achieved_goal(state)
    return rest | {"observations": {"achieved_goal": achieved, "desired_goal": goal, "observation": state}}


def _make_checker(log: Log, factors: FactorSpec) -> Checker:
    """A checker with spaces as wide as the log's arrays."""

    def box(array: str) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (log.joined(array).shape[1],), np.float32)

    observation: spaces.Space = box("observations")
    if factors.goal:
        goal = box("goals")
        observation = spaces.Dict({"achieved_goal": goal, "desired_goal": goal, "observation": observation})
    action: spaces.Space = box("actions")
    if _has_discrete_actions(log, factors):
        action = spaces.Discrete(factors.action_size if factors.codes is None else len(factors.codes))
    return Checker(log.name, observation, action)
