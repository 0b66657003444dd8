"""Films of a trained agent: an episode that it solved in the evaluation and one that it failed.

An evaluation keeps the actions of both (`keep_episodes`). The simulator repeats and draws them (`policy_films`): the
film is of the very episode that counted, and needs neither the agent nor its data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from because_rl.evaluation.rollout import Outcome, layouts
from because_rl.evaluation.scenes import Picture, Scenes
from because_rl.io import sha256


class PolicyFilm(NamedTuple):
    """An episode of an evaluation."""

    seed: int
    """position among the agent's seeds"""
    scene: int
    """its index in the evaluation"""
    solved: bool
    picture: Picture | None
    """None: it cannot be drawn now"""


def choose_episode(success: np.ndarray, solved: bool) -> tuple[int, int] | None:
    """(seed, scene) of an episode with this outcome, in the scene where most seeds had it; None if there is none.

    `success`: (K, n) bool.

    >>> success = np.array([[True, False, True], [False, False, True]])
    >>> choose_episode(success, True), choose_episode(success, False), choose_episode(success[:, 2:], False)
    ((0, 2), (0, 1), None)
    """
    same = success == solved
    if not same.any():
        return None
    scene = int(same.sum(0).argmax())
    return int(same[:, scene].argmax()), scene


def keep_episodes(outcome: Outcome) -> list[dict[str, Any]]:
    """A solved episode and a failed one, where there are such, as plain data: seed, scene, solved, actions."""
    episodes = []
    for solved in (True, False):
        chosen = choose_episode(outcome.success, solved)
        if chosen is not None and outcome.actions is not None:
            seed, scene = chosen
            actions = outcome.actions[: outcome.steps[seed, scene], seed, scene].tolist()
            episodes.append({"seed": seed, "scene": scene, "solved": solved, "actions": actions})
    return episodes


def policy_films(evaluation: Mapping[str, Any], scenes: Scenes) -> list[PolicyFilm]:
    """The films of the episodes that an evaluation kept."""
    films = []
    for episode in evaluation.get("episodes_kept", ()):
        seed, scene, solved = (episode[name] for name in ("seed", "scene", "solved"))
        films.append(PolicyFilm(seed, scene, solved, _draw(evaluation, scenes, seed, scene, episode["actions"])))
    return films


def _draw(evaluation: Mapping[str, Any], scenes: Scenes, seed: int, scene: int, actions: Sequence) -> Picture | None:
    world, split = evaluation["world"], evaluation["split"]
    layout = layouts(world, split, evaluation["episodes"])[scene]
    name = f"policy{seed}-{sha256(json.dumps(actions).encode())[:8]}"  # another evaluation may have other actions
    return scenes.replay(world, split, name, layout, evaluation["spurious"], actions)
