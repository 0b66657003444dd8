"""Refuse a dataset that is damaged or ill-formed, and say what is wrong and where.

Works on any Minari dataset; one that we collected also carries checksums, so that a flipped bit in an
otherwise plausible number is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec
from because_rl.io import arrays_sha256, file_sha256, read_json

CHECKSUMS = "checksums.json"


def episode_sha256(observations: Any, actions: Any, rewards: Any, terminations: Any, truncations: Any) -> str:
    parts = {"observations": observations} if not isinstance(observations, dict) else observations
    rest = {"actions": actions, "rewards": rewards, "terminations": terminations, "truncations": truncations}
    return arrays_sha256({k: np.asarray(v) for k, v in (parts | rest).items()})


class Checker:
    """Checks one dataset, episode by episode; every refusal names dataset, episode and step."""

    def __init__(self, name: str, folder: Path, observation_space: spaces.Space, action_space: spaces.Space):
        self.name, self.observation_space, self.action_space = name, observation_space, action_space
        self.checksums: dict[str, Any] | None = None
        if not (folder / CHECKSUMS).exists():
            return
        self.checksums = read_json(folder / CHECKSUMS)
        if not isinstance(self.checksums, dict) or not isinstance(self.checksums.get("episodes"), list):
            raise self.error(f"{CHECKSUMS} holds no checksums", "the file as it was written")
        if self.checksums.get("metadata") != file_sha256(folder / "data" / "metadata.json"):
            raise self.error("metadata.json does not match its checksum", "the file as it was collected")

    def error(self, what: str, need: str, episode: int | None = None, step: int | None = None) -> BecauseError:
        where = f"Dataset {self.name}"
        if episode is not None:
            where += f", episode {episode}"
        if step is not None:
            where += f", step {step}"
        return BecauseError(
            f"{where}: {what}.",
            need=need + ".",
            fix="repair the data, or collect it again (because collect NAME --force).",
        )

    # The factor spec against the spaces --------------------------------------------------------------
    def spec(self, factors: FactorSpec) -> None:
        sizes = {"state": self.state_size, "action": self.action_size(factors), "goal": self.goal_size}
        for group, have in sizes.items():
            want = getattr(factors, f"{group}_size")
            if want != have and not (group == "goal" and have == 0):
                raise self.error(
                    f"the factor spec has {want} {group} columns but the data have {have}",
                    f"a factor spec that covers the {have} {group} columns",
                )

    @property
    def _parts(self) -> dict[str, spaces.Space]:
        space = self.observation_space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"state": space}
        if "observation" in parts:
            parts["state"] = parts.pop("observation")
        ok = "state" in parts and all(isinstance(part, spaces.Box | spaces.MultiBinary) for part in parts.values())
        if not ok or set(parts) - {"state", "goal", "achieved_goal", "desired_goal"}:
            raise self.error(
                f"the observation space is {space}",
                "a flat Box or MultiBinary, or a Dict with 'state' (or 'observation') and if you like 'goal'",
            )
        if "desired_goal" in parts:
            parts["goal"] = parts.pop("desired_goal")
        return parts

    @property
    def state_size(self) -> int:
        return int(np.prod(self._parts["state"].shape or (1,)))

    @property
    def goal_size(self) -> int:
        return int(np.prod(self._parts["goal"].shape or (1,))) if "goal" in self._parts else 0

    def action_size(self, factors: FactorSpec) -> int:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            if factors.codes is not None:
                if len(factors.codes) != space.n:
                    raise self.error(
                        f"'codes' has {len(factors.codes)} rows for {space.n} actions", "one row per discrete action"
                    )
                return factors.action_size
            return int(space.n)
        if isinstance(space, spaces.Box | spaces.MultiBinary):
            return int(np.prod(space.shape or (1,)))
        raise self.error(f"the action space is {space}", "Box, MultiBinary or Discrete actions")

    # One episode ---------------------------------------------------------------------------------------
    def episode(self, number: int, raw: dict[str, Any], factors: FactorSpec) -> dict[str, np.ndarray]:
        """The episode as float32 arrays (state, goal, action columns, reward, ends), or a refusal."""
        actions = np.asarray(raw["actions"])
        if actions.ndim == 0:
            raise self.error("the actions are no array", "one row per step", number)
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
            self._factors(number, group, values, getattr(factors, group))
        out |= self._ends(raw, number, length)
        if self.checksums is not None:
            found = episode_sha256(
                observations, raw["actions"], raw["rewards"], raw["terminations"], raw["truncations"]
            )
            if number >= len(self.checksums["episodes"]) or found != self.checksums["episodes"][number]:
                raise self.error("the data do not match their checksum", "the data as they were collected", number)
        return out

    def _columns(self, group: str, value: Any, space: spaces.Space, length: int, number: int) -> np.ndarray:
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
        self._finite(group, array, number)
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

    def _finite(self, group: str, array: np.ndarray, number: int) -> None:
        bad = ~np.isfinite(array)
        if bad.any():
            step, column = np.argwhere(bad)[0]
            raise self.error(f"{group} column {column} is {array[step, column]}", "a finite number", number, int(step))

    def _actions(self, actions: np.ndarray, number: int, factors: FactorSpec) -> np.ndarray:
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
        if factors.codes is None:
            return np.eye(int(space.n), dtype=np.float32)[index]
        return factors.encode_action(index).astype(np.float32)

    def _factors(self, number: int, group: str, values: np.ndarray, factors: tuple[Factor, ...]) -> None:
        needs = {
            "categorical": "exactly one column 1 and the others 0",
            "binary": "every column 0 or 1",
            "continuous": "finite numbers",
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

    def _ends(self, raw: dict[str, Any], number: int, length: int) -> dict[str, np.ndarray]:
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
