"""Make a user's log a dataset like any other: checked against its factors, and kept in Minari's format.

What an episode's end means is decided here. Methods take `terminated` for *ended at its goal*; in a user's log it
may as well mean that something broke. So where there is a goal, an episode is terminated when its last state
satisfies the goal and truncated otherwise, whatever the log's own flags say.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from because_rl.datasets.own_log import Episode, Log
from because_rl.datasets.validate import CHECKSUMS, Checker, episode_sha256
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import file_sha256, new_folder, write_json


class OwnChecker(Checker):
    def __init__(self, name: str, observation_space: spaces.Space, action_space: spaces.Space):
        self.name, self.observation_space, self.action_space = name, observation_space, action_space
        self.checksums = None

    def error(self, what: str, need: str, episode: int | None = None, step: int | None = None) -> BecauseError:
        told = super().error(what, need, episode, step)
        return BecauseError(told.got, need=told.need, fix="correct the log or the factor spec; see docs/tutorial.md.")


def no_policy(factors: FactorSpec) -> str:
    """Why no policy can be planned with these factors; empty where one can.

    Continuous actions are planned by shooting, numbered ones (`codes`) by listing the states within reach.
    """
    if not factors.goal:
        return "the factors name no goal"
    if factors.codes is not None:
        if real := [f.name for f in factors.state if f.type == "continuous"]:
            return f"numbered actions need discrete states, and {real[0]!r} is continuous"
    elif one_hot := [f.name for f in factors.action if f.type == "categorical"]:
        return f"action {one_hot[0]!r} is categorical and the factor spec has no 'codes'"
    return ""


def fit_spec(log: Log, factors: FactorSpec) -> FactorSpec:
    """The spec as this log needs it: numbered actions are one-hot unless it says otherwise."""
    if _numbered(log, factors) and factors.codes is None:
        factors = replace(factors, codes=tuple(tuple(row) for row in np.eye(factors.action_size).tolist()))
    return factors


def adopt(log: Log, factors: FactorSpec, goal: Sequence[float] | None = None) -> Log:
    """The checked log, with goals (of the log, or one for all) and ends that mean what methods take them for."""
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
    checker = _checker(log, factors, goal)
    checker.spec(factors)
    episodes = []
    for n, episode in enumerate(log.episodes):
        mine = {name: value for name, value in episode.items() if name != "goals"}
        mine["actions"] = _actions(log, factors, mine["actions"])
        if size:
            rows = len(mine["observations"])
            mine["goals"] = np.tile(np.asarray(goal, np.float32), (rows, 1)) if goal is not None else episode["goals"]
        checked = checker.episode(n, _raw(mine), factors)
        if not all(np.isfinite(array).all() for array in checked.values()):
            raise checker.error("a number is too large", "numbers that 32 bits hold, below 3.4e38", n)
        kept: Episode = {"observations": checked["state"], "actions": mine["actions"], "rewards": checked["reward"]}
        ended = checked["terminated"]
        if size:
            kept["goals"] = checked["goal"]
            last = np.arange(len(ended)) == len(ended) - 1
            ended = last & bool(np.all(factors.reached(checked["state"][-1], checked["goal"][-1])))
        kept |= {"terminations": ended, "truncations": (checked["terminated"] | checked["truncated"]) & ~ended}
        episodes.append(kept)
    return Log(log.name, episodes, log.names, factors)


def write_dataset(log: Log, folder: Path) -> None:
    """An adopted log as a Minari dataset, with the checksums that `load` verifies."""
    assert log.factors is not None
    checker = _checker(log, log.factors, None)
    raw = [_raw(episode) for episode in log.episodes]
    with new_folder(folder) as new:
        storage = MinariStorage.new(
            new / "data", observation_space=checker.observation_space, action_space=checker.action_space
        )
        storage.update_episodes(EpisodeBuffer(id=n, **one) for n, one in enumerate(raw))
        told = {"dataset_id": log.name, "minari_version": importlib.metadata.version("minari")}
        storage.update_metadata(told | {"because": {"factors": log.factors.to_dict()}})
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        sums = [episode_sha256(*(one[name] for name in names)) for one in raw]
        write_json(new / CHECKSUMS, {"metadata": file_sha256(new / "data" / "metadata.json"), "episodes": sums})


def _numbered(log: Log, factors: FactorSpec) -> bool:
    """Whether actions are kept as numbers; a number may also be the one column of an action factor."""
    return log.numbered and (factors.codes is not None or factors.action_size > 1)


def _actions(log: Log, factors: FactorSpec, actions: np.ndarray) -> np.ndarray:
    if _numbered(log, factors):
        return actions.reshape(-1).astype(np.int64)
    return actions.reshape(len(actions), -1).astype(np.float32)


def _raw(episode: Episode) -> dict[str, Any]:
    """As Minari has it: goals inside the observations."""
    rest = {name: value for name, value in episode.items() if name not in ("observations", "goals")}
    state = episode["observations"].reshape(len(episode["observations"]), -1)
    if "goals" not in episode:
        return rest | {"observations": state}
    return rest | {"observations": {"goal": episode["goals"].reshape(len(state), -1), "state": state}}


def _checker(log: Log, factors: FactorSpec, goal: Sequence[float] | None) -> OwnChecker:
    def box(columns: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (columns,), np.float32)

    state: spaces.Space = box(log.joined("observations").shape[1])
    if factors.goal:
        goals = len(goal) if goal is not None else log.joined("goals").shape[1]
        state = spaces.Dict({"goal": box(goals), "state": state})
    action: spaces.Space = box(log.joined("actions").shape[1])
    if _numbered(log, factors):
        action = spaces.Discrete(factors.action_size if factors.codes is None else len(factors.codes))
    return OwnChecker(log.name, state, action)
