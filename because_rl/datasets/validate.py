"""Refuse a dataset that is damaged or ill-formed, and say what is wrong and where.

Works on any Minari dataset. A dataset that this package wrote also has checksums, which detect a flipped bit in an
otherwise plausible number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec
from because_rl.io import arrays_sha256, file_sha256
from because_rl.records import read_record

CHECKSUMS = "checksums.json"


COLLECT_AGAIN = "repair the data, or collect it again (because collect NAME --force)."
CORRECT = "correct the log or the factor spec; see docs/tutorial.md."
"""The advice for data that are the user's own."""


def episode_sha256(episode: Mapping[str, Any]) -> str:
    """A hash of one episode as Minari has it: observations (an array or a dict of arrays), actions, rewards, ends."""
    observations = episode["observations"]
    arrays = dict(observations) if isinstance(observations, dict) else {"observations": observations}
    arrays |= {name: episode[name] for name in ("actions", "rewards", "terminations", "truncations")}
    return arrays_sha256({name: np.asarray(array) for name, array in arrays.items()})


def compute_checksums(folder: Path, episodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of a dataset's ``checksums.json``, computed from its metadata file and its episodes."""
    return {
        "metadata": file_sha256(folder / "data" / "metadata.json"),
        "episodes": [episode_sha256(episode) for episode in episodes],
    }


class Checker:
    """Checks one dataset, episode by episode; every error names dataset, episode and step.

    `folder` is where its checksums are, if anywhere; `fix` is what errors suggest.
    """

    def __init__(
        self,
        name: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        folder: Path | None = None,
        fix: str = CORRECT,
    ):
        self.name, self.observation_space, self.action_space, self.fix = name, observation_space, action_space, fix
        self.checksums: dict[str, Any] | None = None
        if folder is None or not (folder / CHECKSUMS).exists():
            return
        self.checksums = read_record(folder / CHECKSUMS, "file of checksums")
        if self.checksums.get("metadata") != file_sha256(folder / "data" / "metadata.json"):
            raise self.error("metadata.json does not match its checksum", "the file as it was collected")

    def error(self, what: str, need: str, episode: int | None = None, step: int | None = None) -> BecauseError:
        """An error about this dataset, to be raised by the caller."""
        where = f"Dataset {self.name}"
        if episode is not None:
            where += f", episode {episode}"
        if step is not None:
            where += f", step {step}"
        return BecauseError(f"{where}: {what}.", need=need + ".", fix=self.fix)

    # The factor spec against the spaces --------------------------------------------------------------
    def check_spec(self, factors: FactorSpec) -> None:
        """Refuse a factor spec whose numbers of columns are not those of the spaces."""
        sizes = {"state": self.state_size, "action": self.action_size(factors), "goal": self.goal_size}
        for group, have in sizes.items():
            want = factors.observed_size if group == "state" else getattr(factors, f"{group}_size")
            if want != have and not (group == "goal" and have == 0):
                raise self.error(
                    f"the factor spec has {want} {group} columns but the data have {have}",
                    f"a factor spec that covers the {have} {group} columns",
                )

    @property
    def _parts(self) -> dict[str, spaces.Space]:
        """The spaces of 'state' and, if there are goals, 'goal', under these names or those of goal environments."""
        space = self.observation_space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"state": space}
        if "observation" in parts:
            parts["state"] = parts.pop("observation")
        ok = "state" in parts and all(isinstance(part, spaces.Box | spaces.MultiBinary) for part in parts.values())
        if not ok or set(parts) - {"state", "goal", "achieved_goal", "desired_goal"}:
            raise self.error(
                f"the observation space is {space}",
                "a flat Box or MultiBinary, or a Dict with 'observation' and optionally 'desired_goal'",
            )
        if "desired_goal" in parts:
            parts["goal"] = parts.pop("desired_goal")
        return parts

    @property
    def state_size(self) -> int:
        """Number of state columns."""
        return int(np.prod(self._parts["state"].shape or (1,)))

    @property
    def goal_size(self) -> int:
        """Number of goal columns; 0 where the data have no goals."""
        return int(np.prod(self._parts["goal"].shape or (1,))) if "goal" in self._parts else 0

    def action_size(self, factors: FactorSpec) -> int:
        """Number of action columns after encoding: one-hot, or `codes`, where actions are discrete."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            if factors.codes is not None:
                if len(factors.codes) != space.n:
                    raise self.error(
                        f"'codes' has {len(factors.codes)} rows for {space.n} actions", "one row per discrete action"
                    )
                return factors.action_size
            # The number itself may be the only column, as `because factors` proposes for two actions.
            return 1 if factors.action_size == 1 else int(space.n)
        if isinstance(space, spaces.Box | spaces.MultiBinary):
            return int(np.prod(space.shape or (1,)))
        raise self.error(f"the action space is {space}", "Box, MultiBinary or Discrete actions")

    # One episode ---------------------------------------------------------------------------------------
    def check_episode(self, number: int, raw: Mapping[str, Any], factors: FactorSpec) -> dict[str, np.ndarray]:
        """One episode of T steps, checked and converted; `raw` is the episode as Minari has it.

        Returns state (T + 1, columns), action (T, columns), reward (T,) and, if there are goals, goal (T + 1, columns),
        all float32, and terminated and truncated (T,) bool.
        """
        actions = np.asarray(raw["actions"])
        if actions.ndim == 0:
            raise self.error("the actions are not an array", "one row per step", number)
        length = len(actions)
        if length == 0:
            raise self.error("the episode is empty", "at least one step", number)
        observations = raw["observations"]
        parts = dict(observations) if isinstance(observations, dict) else {"state": observations}
        for old, new in (("observation", "state"), ("desired_goal", "goal")):
            if old in parts:
                parts[new] = parts.pop(old)
        out = {
            "state": self._columns("state", parts.get("state"), self._parts["state"], length + 1, number),
            "action": self._actions(actions, number, factors),
        }
        if "goal" in self._parts:
            out["goal"] = self._columns("goal", parts.get("goal"), self._parts["goal"], length + 1, number)
        for group, values in out.items():
            self._check_factors(number, group, values, getattr(factors, group))
        out |= self._rewards_and_ends(raw, number, length)
        self._check_sum(number, raw)
        return out

    def check_picture_episode(self, number: int, raw: Mapping[str, Any], factors: FactorSpec) -> dict[str, np.ndarray]:
        """The same of an episode whose observations are pictures, as "frames" (T + 1, ...) in place of the state."""
        actions, observations = np.asarray(raw["actions"]), raw["observations"]
        frames = observations.get("observation") if isinstance(observations, dict) else observations
        if actions.ndim == 0 or not len(actions):
            raise self.error("the episode is empty", "at least one step", number)
        if frames is None or len(frames) != len(actions) + 1:
            have = 0 if frames is None else len(frames)
            raise self.error(f"there are {have} pictures for {len(actions)} actions", "one more than actions", number)
        out = {"frames": frames, "action": self._actions(actions, number, factors)}
        self._check_factors(number, "action", out["action"], factors.action)
        out |= self._rewards_and_ends(raw, number, len(actions))
        self._check_sum(number, raw)
        return out

    def _check_sum(self, number: int, raw: Mapping[str, Any]) -> None:
        if self.checksums is not None and self.checksums["episodes"][number : number + 1] != [episode_sha256(raw)]:
            raise self.error("the data do not match their checksum", "the data as they were collected", number)

    def _columns(self, group: str, value: Any, space: spaces.Space, length: int, number: int) -> np.ndarray:
        """(length, columns) float32, inside the space."""
        array = np.asarray(value)
        if value is None or array.dtype.kind not in "fiub":
            kind = "missing" if value is None else f"of type {array.dtype}"
            raise self.error(f"{group} is {kind}", f"numbers of shape {space.shape}", number)
        if array.shape[1:] != (space.shape or ()):
            raise self.error(f"{group} has shape {array.shape[1:]}", f"the space's shape {space.shape}", number)
        if len(array) != length:
            raise self.error(
                f"{group} has {len(array)} rows for {length - 1} actions",
                f"{length} rows (one more than actions)",
                number,
            )
        array = array.reshape(length, -1)
        self._check_finite(group, array, number)
        if isinstance(space, spaces.Box):
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            outside = (array < low) | (array > high)
            if outside.any():
                step, column = np.argwhere(outside)[0]
                raise self.error(
                    f"{group} column {column} is {array[step, column]:g}, outside its space",
                    f"a value in [{low[column]:g}, {high[column]:g}]",
                    number,
                    int(step),
                )
        return array.astype(np.float32)

    def _check_finite(self, group: str, array: np.ndarray, number: int) -> None:
        bad = ~np.isfinite(array)
        if bad.any():
            step, column = np.argwhere(bad)[0]
            raise self.error(f"{group} column {column} is {array[step, column]}", "a finite number", number, int(step))

    def _actions(self, actions: np.ndarray, number: int, factors: FactorSpec) -> np.ndarray:
        """(T, action columns) float32; discrete actions are encoded."""
        space = self.action_space
        if not isinstance(space, spaces.Discrete):
            return self._columns("action", actions, space, len(actions), number)
        if actions.dtype.kind not in "iu" or actions.ndim != 1:
            raise self.error(
                f"actions have type {actions.dtype} and shape {actions.shape}", "one whole number per step", number
            )
        index = actions - int(space.start)
        outside = (index < 0) | (index >= space.n)
        if outside.any():
            step = int(np.flatnonzero(outside)[0])
            raise self.error(f"action {actions[step]} is outside its space", f"a member of {space}", number, step)
        if factors.codes is None and factors.action_size == 1:
            return index[:, None].astype(np.float32)
        if factors.codes is None:
            return np.eye(int(space.n), dtype=np.float32)[index]
        return factors.encode_action(index).astype(np.float32)

    def _check_factors(self, number: int, group: str, values: np.ndarray, factors: tuple[Factor, ...]) -> None:
        """Refuse values (rows, columns) that a factor's type does not allow."""
        needs = {
            "categorical": "exactly one column 1 and the others 0",
            "binary": "every column 0 or 1",
            "continuous": "finite numbers",
            "angle": "finite numbers",
        }
        for factor in factors:
            bad = factor.invalid(values[:, factor.slice])
            if bad.any():
                step = int(np.flatnonzero(bad)[0])
                shown = np.array2string(values[step, factor.slice], threshold=8, precision=3)
                raise self.error(
                    f"{group} factor {factor.name!r} is {shown}, which a {factor.type} factor cannot be",
                    needs[factor.type] + (" (or all 0 when absent)" if factor.optional else ""),
                    number,
                    step,
                )
            rows = values[:, factor.slice]
            if factor.role == "context" and (rows != rows[0]).any():
                step = int(np.flatnonzero((rows != rows[0]).any(1))[0])
                raise self.error(
                    f"{group} factor {factor.name!r} of role 'context' changes from {rows[0]} to {rows[step]}",
                    "one value for a whole episode, or no role",
                    number,
                    step,
                )

    def _rewards_and_ends(self, raw: Mapping[str, Any], number: int, length: int) -> dict[str, np.ndarray]:
        """reward (T,) float32, terminated and truncated (T,) bool: the episode ends at its last step and no earlier."""
        out = {}
        for key, name in (("rewards", "reward"), ("terminations", "terminated"), ("truncations", "truncated")):
            array = np.asarray(raw[key])
            if array.shape != (length,) or array.dtype.kind not in "fiub":
                raise self.error(
                    f"{key} has shape {array.shape} and type {array.dtype}", f"{length} numbers, one per action", number
                )
            out[name] = array
        bad = ~np.isfinite(out["reward"])
        if bad.any():
            raise self.error("the reward is not finite", "a finite number", number, int(np.flatnonzero(bad)[0]))
        ends = out["terminated"].astype(bool) | out["truncated"].astype(bool)
        if ends[:-1].any():
            step = int(np.flatnonzero(ends)[0])
            raise self.error(
                "the episode goes on after it ended", "termination or truncation at the last step only", number, step
            )
        if not ends[-1]:
            raise self.error("the episode never ends", "termination or truncation at the last step", number, length - 1)
        return {
            "reward": out["reward"].astype(np.float32),
            "terminated": out["terminated"].astype(bool),
            "truncated": out["truncated"].astype(bool),
        }
