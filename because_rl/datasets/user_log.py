"""Read a user's own log: episodes of observations, actions and, if logged, rewards, goals and ends.

A log is a file of flat arrays (one row per step), a file of one group per episode (Minari's ``main_data.hdf5``), or a
Minari dataset by its folder or id; docs/tutorial.md lists the arrays. Nothing is guessed: ambiguous logs are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.minari_files import read_episodes, read_metadata
from because_rl.datasets.paths import VERSION, dataset_path
from because_rl.datasets.validate import CHECKSUMS, compute_checksums
from because_rl.errors import BecauseError, check_name
from because_rl.factors import FactorSpec
from because_rl.hdf5 import Content, read_hdf5
from because_rl.io import arrays_sha256, read_json

ALIASES = {
    "observations": ("observations", "states"),
    "actions": ("actions",),
    "next_observations": ("next_observations", "next_states"),
    "goals": ("goals", "desired_goals", "goal", "desired_goal"),
    "rewards": ("rewards",),
    "terminations": ("terminations", "terminals"),
    "truncations": ("truncations", "timeouts"),
    "episodes": ("episodes", "episode", "episode_ids"),
}
"""Accepted names of each array; D4RL's are among them."""
ONE_PER_ROW = ("rewards", "terminations", "truncations", "episodes")
"""Arrays with one number per row."""
MIN_EPISODES = 10
"""Every tenth episode is held out, so with ten there is one."""
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Accepted difference of next_observations and the observations of the next row."""
FIX = "correct the file; docs/tutorial.md lists the arrays."

Episode = dict[str, np.ndarray]
"""observations (T + 1, ...), actions (T, ...), rewards, terminations, truncations (T,); goals (T + 1, ...) if any"""


@dataclass(frozen=True)
class Log:
    """Logged episodes, all with the same arrays."""

    name: str
    episodes: list[Episode]
    names: Mapping[str, tuple[str, ...]]
    """column names of observations, actions and goals, as far as the file has them"""
    factors: FactorSpec | None = None
    """the factor spec of a dataset that contains one"""

    def joined(self, name: str) -> np.ndarray:
        """The rows of one array over all episodes, (rows, columns)."""
        rows = np.concatenate([episode[name] for episode in self.episodes])
        return rows.reshape(len(rows), -1)

    @property
    def has_goals(self) -> bool:
        """Whether the log has an array of goals."""
        return "goals" in self.episodes[0]

    @property
    def has_whole_number_actions(self) -> bool:
        """Whether every action is one integer, 0 or more."""
        actions = [episode["actions"] for episode in self.episodes]
        return all(a.dtype.kind in "iu" and a[0].size == 1 and a.min() >= 0 for a in actions)

    @property
    def sha256(self) -> str:
        """A hash of all arrays and of the lengths of the episodes."""
        lengths = np.array([len(episode["actions"]) for episode in self.episodes])
        return arrays_sha256({name: self.joined(name) for name in self.episodes[0]} | {"lengths": lengths})


# Reading -----------------------------------------------------------------------------------------------


def read_log(data: str | Path, root: str | Path | None = None) -> Log:
    """The log at a path, or the local Minari dataset of an id (under `root` or in Minari's own folder)."""
    path = Path(data)
    if path.is_file() and not (path.name == "main_data.hdf5" and (path.parent / "metadata.json").is_file()):
        log = _read_file(path)
    else:
        log = _read_minari(_find_folder(data, root))
    if len(log.episodes) < MIN_EPISODES:
        raise BecauseError(
            f"{log.name} has {len(log.episodes)} episode{'s' * (len(log.episodes) > 1)}.",
            need=f"at least {MIN_EPISODES}, since every tenth is held out.",
            fix="log more; or cut one long log into episodes: episodes = numpy.arange(n) // 100.",
        )
    return log


def _find_folder(data: str | Path, root: str | Path | None) -> Path:
    """The folder that holds ``data/`` of a Minari dataset: at the path, under `root`, or in Minari's own folder."""
    path = Path(data)
    if path.name == "main_data.hdf5":
        path = path.parent
    candidates = [path.parent if path.name == "data" else path]
    if re.fullmatch(r"[\w-]+(/[\w-]+)*", str(data)):
        minari = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        candidates += [dataset_path(name, root) for name in (str(data), f"because/{data}-{VERSION}")]
        candidates.append(Path(minari) / str(data))
    for folder in candidates:
        if (folder / "data").is_dir():
            return folder.absolute()
    raise BecauseError(
        f"There is no data {str(data)!r}.",
        need="an HDF5 file, or the folder or id of a local Minari dataset.",
        fix="correct the path; 'minari download ID' fetches a public dataset.",
    )


def _read_minari(folder: Path) -> Log:
    metadata = read_metadata(folder, folder.name)
    raw = read_episodes(folder, metadata, folder.name)
    _verify_checksums(folder, raw)
    factors = metadata.get("because", {}).get("factors")
    episodes = [_read_episode(f"{folder.name}, episode {n}", episode) for n, episode in enumerate(raw)]
    _check_same_arrays(folder.name, episodes)
    return Log(folder.name, episodes, {}, factors and FactorSpec.from_dict(factors))


def _verify_checksums(folder: Path, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse data that differ from the checksums, which datasets that this package wrote have."""
    path = folder / CHECKSUMS
    if path.exists() and read_json(path) != compute_checksums(folder, episodes):
        raise BecauseError(
            f"{folder.name} does not match its checksums.", need="the data as they were written.", fix="restore them."
        )


def _read_file(path: Path) -> Log:
    content = read_hdf5(path, [alias for aliases in ALIASES.values() for alias in aliases])
    if groups := _episode_groups(path.name, content):
        episodes = [_read_episode(f"{path.name}, {group}", content.tree(group)) for group in groups]
        _check_same_arrays(path.name, episodes)
        return Log(path.stem, episodes, {})
    return Log(
        path.stem, _split_episodes(path.name, _known_arrays(path.name, content.tree(""))), _column_names(content)
    )


def _episode_groups(where: str, content: Content) -> list[str]:
    """Names of the groups episode_0, episode_1, ..., in the order of their numbers; none in a file of flat arrays."""
    named = [name for name in content.members[""] if name.startswith("episode_") and name not in ALIASES["episodes"]]
    groups = [name for name in named if name in content.members]
    if groups and (other := set(named) - set(groups)):
        raise BecauseError(f"{where}: {min(other)!r} is not a group.", need="one group per episode.", fix=FIX)
    return sorted(groups, key=_episode_number)


def _episode_number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("episode_")
    return (int(digits) if digits.isdigit() else -1, name)


def _column_names(content: Content) -> dict[str, tuple[str, ...]]:
    """The attribute ``names`` of observations, actions and goals, where they have one."""
    names = {
        name: content.names[alias]
        for name in ("observations", "actions", "goals")
        for alias in ALIASES[name]
        if alias in content.names
    }
    for column in (column for columns in names.values() for column in columns if column):
        check_name(column, "The name of a column", FIX)
    return names


def _known_arrays(where: str, tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays by the keys of `ALIASES`; a dict of observations gives observations and goals. Others are ignored."""
    parts = dict(tree)
    if isinstance(parts.get("observations"), Mapping):
        inner = dict(parts.pop("observations"))
        parts["observations"] = inner.get("state", inner.get("observation"))
        parts["goals"] = inner.get("goal", inner.get("desired_goal"))
    out = {}
    for name, aliases in ALIASES.items():
        present = [alias for alias in aliases if parts.get(alias) is not None]
        if len(present) > 1:
            raise BecauseError(f"{where} has both {present[0]!r} and {present[1]!r}.", need="one of them.", fix=FIX)
        if present:
            array = np.asarray(parts[present[0]])
            if array.dtype.kind not in "fiub" or array.ndim == 0 or 0 in array.shape[1:]:
                raise BecauseError(
                    f"{where}: {present[0]!r} is of type {array.dtype} and shape {array.shape}.",
                    need="an array of numbers.",
                    fix=FIX,
                )
            out[name] = _flatten(where, present[0], array) if name in ONE_PER_ROW else array
            if name in ("terminations", "truncations") and not np.isin(array, (0, 1)).all():
                raise BecauseError(f"{where}: {present[0]!r} has other values than 0 and 1.", need="flags.", fix=FIX)
    if missing := [name for name in ("observations", "actions") if name not in out]:
        raise BecauseError(
            f"{where} has no array {missing[0]!r}; it has {', '.join(sorted(tree)) or 'nothing'}.",
            need="'observations' and 'actions', one row per step.",
            fix=FIX,
        )
    return out


def _flatten(where: str, name: str, array: np.ndarray) -> np.ndarray:
    """(rows,) finite numbers."""
    if array.size != len(array):
        raise BecauseError(f"{where}: {name!r} has shape {array.shape}.", need="one number per row.", fix=FIX)
    if not np.isfinite(array).all():
        raise BecauseError(f"{where}: {name!r} has values that are not finite.", need="finite numbers.", fix=FIX)
    return array.reshape(-1)


def _read_episode(where: str, raw: Mapping[str, Any]) -> Episode:
    """One episode of a grouped file: one row more of observations (and goals) than of actions."""
    arrays = _known_arrays(where, raw)
    length = len(arrays["actions"])
    if length == 0:
        raise BecauseError(f"{where} is empty.", need="at least one step.", fix=FIX)
    goals = arrays.get("goals")
    if goals is not None and len(goals) == length:
        arrays["goals"] = np.concatenate([goals, goals[-1:]])  # the last goal also holds after the last action
    for name in ("observations", "goals"):
        if name in arrays and len(arrays[name]) != length + 1:
            raise BecauseError(
                f"{where}: {name!r} has {len(arrays[name])} rows for {length} actions.",
                need=f"{length + 1}: the last row is what followed the last action.",
                fix=FIX,
            )
    return _set_end(where, arrays, length)


def _split_episodes(where: str, arrays: Mapping[str, np.ndarray]) -> list[Episode]:
    """Flat arrays -> episodes, by the array 'episodes' or else by terminations and truncations."""
    rows = len(arrays["observations"])
    for name, array in arrays.items():
        if len(array) != rows:
            raise BecauseError(
                f"{where}: {name!r} has {len(array)} rows and 'observations' {rows}.", need="as many.", fix=FIX
            )
    if rows == 0:
        raise BecauseError(f"{where} has no rows.", need="one row per step.", fix=FIX)
    ends = np.flatnonzero(_last_rows(where, arrays, rows)) + 1
    episodes = []
    for number, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = {name: array[start:stop] for name, array in arrays.items() if name != "episodes"}
        after = part.pop("next_observations", None)
        if after is None:
            # What followed the last row was not logged, so that row only serves as the next state of the one before.
            if stop - start < 2:
                raise BecauseError(
                    f"{where}: episode {number} (row {start}) has one row and there are no 'next_observations'.",
                    need="at least two rows per episode.",
                    fix=FIX,
                )
            part = {name: part[name] if name in ("observations", "goals") else part[name][:-1] for name in part}
        else:
            _check_order(where, part["observations"], after, start)
            part["observations"] = np.concatenate([part["observations"], after[-1:]])
            if "goals" in part:
                part["goals"] = np.concatenate([part["goals"], part["goals"][-1:]])
        episodes.append(_set_end(where, part, len(part["actions"])))
    return episodes


def _last_rows(where: str, arrays: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """(rows,) bool: whether a row is the last of its episode."""
    last = np.zeros(rows, bool)
    if "episodes" in arrays:
        last[:-1] = arrays["episodes"][1:] != arrays["episodes"][:-1]
    elif "terminations" in arrays or "truncations" in arrays:
        for name in ("terminations", "truncations"):
            last |= np.asarray(arrays.get(name, last)).astype(bool)
    else:
        raise BecauseError(
            f"{where} does not say where episodes end.",
            need="'episodes' (a number per row), or 'terminations' and 'truncations' (1 at the last row).",
            fix="add one of them; for one long log: episodes = numpy.arange(n) // 100.",
        )
    last[-1] = True
    return last


def _check_order(where: str, now: np.ndarray, after: np.ndarray, start: int) -> None:
    """Refuse an episode, rows from `start` on, where next_observations are not the observations of the next row."""
    if now.shape != after.shape:
        raise BecauseError(
            f"{where}: rows of 'next_observations' have shape {after.shape[1:]} and of 'observations' {now.shape[1:]}.",
            need="the same.",
            fix=FIX,
        )
    same = np.isclose(after[:-1], now[1:], equal_nan=True, **ROUNDING).all(tuple(range(1, now.ndim)))
    if not same.all():
        row = start + int(np.flatnonzero(~same)[0])
        raise BecauseError(
            f"{where}: 'next_observations' of row {row} are not the 'observations' of row {row + 1}, same episode.",
            need="the rows of an episode in the order they were logged.",
            fix="sort them, or end an episode where rows are missing.",
        )


def _set_end(where: str, part: Mapping[str, np.ndarray], length: int) -> Episode:
    """The episode with rewards (0 where there are none) and an end at its last step and nowhere else."""
    out = {name: np.asarray(part[name]) for name in ("observations", "actions", "goals") if name in part}
    for name in ("rewards", "terminations"):
        out[name] = np.asarray(part.get(name, np.zeros(length, np.float32))).reshape(-1)
        if len(out[name]) != length:
            raise BecauseError(
                f"{where}: {name!r} has {len(out[name])} rows for {length} actions.", need="as many.", fix=FIX
            )
    last = np.arange(length) == length - 1
    out["terminations"] = last & out["terminations"].astype(bool)
    out["truncations"] = last & ~out["terminations"]
    return out


def _check_same_arrays(where: str, episodes: list[Episode]) -> None:
    """Refuse episodes whose arrays, or the shapes of their rows, are not those of the first episode."""
    for n, episode in enumerate(episodes):
        for name in sorted({*episodes[0], *episode}):
            first, shape = (e[name].shape[1:] if name in e else "nothing" for e in (episodes[0], episode))
            if first != shape:
                raise BecauseError(
                    f"{where}: {name!r} has shape {shape} in episode {n} and {first} in the first.",
                    need="the same in all episodes.",
                    fix=FIX,
                )
