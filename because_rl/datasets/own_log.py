"""Read a user's own log: episodes of observations, actions and whatever else was logged.

A log is a file of flat arrays (one row per step), a file of one group per episode (Minari's ``main_data.hdf5``), or a
Minari dataset by its folder or id; docs/tutorial.md lists the arrays. Nothing is guessed: what is ambiguous is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from minari.dataset.minari_storage import MinariStorage

from because_rl.datasets.home import dataset_path
from because_rl.datasets.validate import CHECKSUMS, episode_sha256
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import arrays_sha256, file_sha256, read_json

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
"""What arrays may be called; D4RL's names are among them."""
SINGLE = ("rewards", "terminations", "truncations", "episodes")
"""Arrays of one number per row."""
LEAST_EPISODES = 10
"""Every tenth episode is held out, and one of them must exist."""
SAME = {"rtol": 1e-5, "atol": 1e-6}
"""next_observations and the following observations are the same up to rounding."""
FIX = "correct the file; docs/tutorial.md lists the arrays."

Episode = dict[str, np.ndarray]
"""observations (T + 1, ...), actions (T, ...), rewards, terminations, truncations (T,); goals (T + 1, ...) if any"""


@dataclass(frozen=True)
class Log:
    name: str
    episodes: list[Episode]
    names: Mapping[str, tuple[str, ...]]
    """of the columns of observations, actions and goals, where the file tells them"""
    factors: FactorSpec | None = None
    """of a dataset that brings them"""

    def joined(self, name: str) -> np.ndarray:
        """All rows of all episodes, with at least two axes."""
        rows = np.concatenate([episode[name] for episode in self.episodes])
        return rows.reshape(len(rows), -1)

    @property
    def has_goals(self) -> bool:
        return "goals" in self.episodes[0]

    @property
    def numbered(self) -> bool:
        """Whether an action is one whole number."""
        actions = [episode["actions"] for episode in self.episodes]
        return all(a.dtype.kind in "iu" and a[0].size == 1 and a.min() >= 0 for a in actions)

    @property
    def sha256(self) -> str:
        parts = self.episodes[0]
        lengths = np.array([len(episode["actions"]) for episode in self.episodes])
        return arrays_sha256({name: self.joined(name) for name in parts} | {"lengths": lengths})


# Reading -----------------------------------------------------------------------------------------------


def read_log(data: str | Path, root: str | Path | None = None) -> Log:
    """The log at a path, or the local dataset of a Minari id."""
    path = Path(data)
    if path.is_file() and not (path.name == "main_data.hdf5" and (path.parent / "metadata.json").is_file()):
        log = _read_file(path)
    else:
        log = _read_minari(_find(data, root))
    if len(log.episodes) < LEAST_EPISODES:
        raise BecauseError(
            f"{log.name} has {len(log.episodes)} episode{'s' * (len(log.episodes) > 1)}.",
            need=f"at least {LEAST_EPISODES}, since every tenth is held out.",
            fix="log more; or number stretches of one long log as episodes: episodes = numpy.arange(n) // 100.",
        )
    return log


def _find(data: str | Path, root: str | Path | None) -> Path:
    """The folder that holds ``data/`` of a Minari dataset: at the path, under the root, or in Minari's own place."""
    path = Path(data)
    if path.name == "main_data.hdf5":
        path = path.parent
    places = [path.parent if path.name == "data" else path]
    if re.fullmatch(r"[\w-]+(/[\w-]+)*", str(data)):
        minari = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        places += [dataset_path(str(data), root), dataset_path(f"because/{data}-v0", root), Path(minari) / str(data)]
    for place in places:
        if (place / "data").is_dir():
            return place.absolute()
    raise BecauseError(
        f"There is no data {str(data)!r}.",
        need="an HDF5 file, or the folder or id of a local Minari dataset.",
        fix="correct the path; 'minari download ID' fetches a public dataset.",
    )


def _read_minari(folder: Path) -> Log:
    try:
        metadata = read_json(folder / "data" / "metadata.json")
        storage = MinariStorage.read(folder / "data")
        raw = list(storage.get_episodes(range(metadata["total_episodes"])))
        _verify(folder, raw)
        told = metadata.get("because", {}).get("factors")
        episodes = [_episode(f"{folder.name}, episode {n}", one) for n, one in enumerate(raw)]
        return Log(folder.name, _alike(folder.name, episodes), {}, told and FactorSpec.from_dict(told))
    except BecauseError:
        raise
    except Exception as error:  # Minari signals damage with asserts, KeyErrors and whatever its readers raise
        raise _unreadable(folder, error) from error


def _verify(folder: Path, raw: Sequence[Mapping[str, Any]]) -> None:
    """The checksums of a dataset that we wrote."""
    if not (folder / CHECKSUMS).exists():
        return
    told = read_json(folder / CHECKSUMS)
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    found = {"metadata": file_sha256(folder / "data" / "metadata.json")}
    if told != found | {"episodes": [episode_sha256(*(one[name] for name in names)) for one in raw]}:
        raise BecauseError(
            f"{folder.name} does not match its checksums.", need="the data as they were written.", fix="restore them."
        )


def _read_file(path: Path) -> Log:
    try:
        with h5py.File(path, "r") as file:
            if groups := _episode_groups(path.name, file):
                raw = [_tree(file[name]) for name in groups]
                episodes = [_episode(f"{path.name}, {g}", one) for g, one in zip(groups, raw, strict=True)]
                return Log(path.stem, _alike(path.name, episodes), {})
            arrays, names = _known(path.name, _tree(file)), _names(file)
    except BecauseError:
        raise
    except Exception as error:  # a damaged file makes HDF5 raise a dozen kinds, or ask for more memory than there is
        raise _unreadable(path, error) from error
    return Log(path.stem, _cut(path.name, arrays), names)


def _episode_groups(where: str, file: Any) -> list[str]:
    named = [name for name in file if name.startswith("episode_") and name not in ALIASES["episodes"]]
    groups = [name for name in named if isinstance(file.get(name), h5py.Group)]
    if groups and (other := set(named) - set(groups)):
        raise BecauseError(f"{where}: {min(other)!r} is no group.", need="one group per episode.", fix=FIX)
    return sorted(groups, key=_number)


def _number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("episode_")
    return (int(digits) if digits.isdigit() else -1, name)


def _tree(group: Any) -> dict[str, Any]:
    return {name: _tree(part) if isinstance(part, h5py.Group) else part[()] for name, part in group.items()}


def _names(file: Any) -> dict[str, tuple[str, ...]]:
    """The attribute ``names`` of an array."""
    found = {}
    for name in ("observations", "actions", "goals"):
        for alias in ALIASES[name]:
            if alias in file and "names" in file[alias].attrs:
                found[name] = tuple(x.decode() if isinstance(x, bytes) else str(x) for x in file[alias].attrs["names"])
    return found


def _known(where: str, tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by our names; a dict of observations gives observations and goals."""
    parts = dict(tree)
    if isinstance(parts.get("observations"), Mapping):
        inner = dict(parts.pop("observations"))
        parts["observations"] = inner.get("state", inner.get("observation"))
        parts["goals"] = inner.get("goal", inner.get("desired_goal"))
    out = {}
    for name, aliases in ALIASES.items():
        found = [alias for alias in aliases if parts.get(alias) is not None]
        if len(found) > 1:
            raise BecauseError(f"{where} has both {found[0]!r} and {found[1]!r}.", need="one of them.", fix=FIX)
        if found:
            array = np.asarray(parts[found[0]])
            if array.dtype.kind not in "fiub" or array.ndim == 0 or 0 in array.shape[1:]:
                raise BecauseError(
                    f"{where}: {found[0]!r} is of type {array.dtype} and shape {array.shape}.",
                    need="an array of numbers.",
                    fix=FIX,
                )
            out[name] = _one_each(where, found[0], array) if name in SINGLE else array
            if name in ("terminations", "truncations") and not np.isin(array, (0, 1)).all():
                raise BecauseError(f"{where}: {found[0]!r} has other values than 0 and 1.", need="flags.", fix=FIX)
    if missing := [name for name in ("observations", "actions") if name not in out]:
        raise BecauseError(
            f"{where} has no array {missing[0]!r}; it has {', '.join(sorted(tree)) or 'nothing'}.",
            need="'observations' and 'actions', one row per step.",
            fix=FIX,
        )
    return out


def _one_each(where: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.size != len(array):
        raise BecauseError(f"{where}: {name!r} has shape {array.shape}.", need="one number per row.", fix=FIX)
    if not np.isfinite(array).all():
        raise BecauseError(f"{where}: {name!r} has values that are not finite.", need="finite numbers.", fix=FIX)
    return array.reshape(-1)


def _episode(where: str, raw: Mapping[str, Any]) -> Episode:
    """One episode of a grouped file: one row more of observations (and goals) than of actions."""
    told = _known(where, raw)
    length = len(told["actions"])
    if length == 0:
        raise BecauseError(f"{where} is empty.", need="at least one step.", fix=FIX)
    goals = told.get("goals")
    if goals is not None and len(goals) == length:
        told["goals"] = np.concatenate([goals, goals[-1:]])  # wanted to the end
    for name in ("observations", "goals"):
        if name in told and len(told[name]) != length + 1:
            raise BecauseError(
                f"{where}: {name!r} has {len(told[name])} rows for {length} actions.",
                need=f"{length + 1}: the last row is what followed the last action.",
                fix=FIX,
            )
    return _ended(where, told, length)


def _cut(where: str, told: Mapping[str, np.ndarray]) -> list[Episode]:
    """Flat arrays -> episodes, by ids or by their ends."""
    rows = len(told["observations"])
    for name, array in told.items():
        if len(array) != rows:
            raise BecauseError(
                f"{where}: {name!r} has {len(array)} rows and 'observations' {rows}.", need="as many.", fix=FIX
            )
    if rows == 0:
        raise BecauseError(f"{where} has no rows.", need="one row per step.", fix=FIX)
    breaks = np.zeros(rows, bool)
    if "episodes" in told:
        breaks[:-1] = told["episodes"][1:] != told["episodes"][:-1]
    elif "terminations" in told or "truncations" in told:
        breaks |= np.asarray(told.get("terminations", breaks)).astype(bool)
        breaks |= np.asarray(told.get("truncations", breaks)).astype(bool)
    else:
        raise BecauseError(
            f"{where} does not say where episodes end.",
            need="'episodes' (a number per row), or 'terminations' and 'truncations' (1 at the last row).",
            fix="add one of them; for one long log: episodes = numpy.arange(n) // 100.",
        )
    breaks[-1] = True
    ends = np.flatnonzero(breaks) + 1
    episodes = []
    for n, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = {name: array[start:stop] for name, array in told.items() if name != "episodes"}
        after = part.pop("next_observations", None)
        if after is None:
            # What followed the last row was not logged: that row only tells what followed the one before it.
            if stop - start < 2:
                raise BecauseError(
                    f"{where}: episode {n} (row {start}) has one row and there are no 'next_observations'.",
                    need="at least two rows per episode.",
                    fix=FIX,
                )
            shorter = {k: v[:-1] for k, v in part.items() if k not in ("observations", "goals")}
            part = {k: v for k, v in part.items() if k in ("observations", "goals")} | shorter
        else:
            _check_order(where, part["observations"], after, start)
            part["observations"] = np.concatenate([part["observations"], after[-1:]])
            if "goals" in part:
                part["goals"] = np.concatenate([part["goals"], part["goals"][-1:]])
        episodes.append(_ended(where, part, len(part["actions"])))
    return episodes


def _check_order(where: str, now: np.ndarray, after: np.ndarray, start: int) -> None:
    if now.shape != after.shape:
        raise BecauseError(
            f"{where}: rows of 'next_observations' have shape {after.shape[1:]} and of 'observations' {now.shape[1:]}.",
            need="the same.",
            fix=FIX,
        )
    same = np.isclose(after[:-1], now[1:], equal_nan=True, **SAME).all(tuple(range(1, now.ndim)))
    if not same.all():
        row = start + int(np.flatnonzero(~same)[0])
        raise BecauseError(
            f"{where}: 'next_observations' of row {row} are not the 'observations' of row {row + 1}, same episode.",
            need="the rows of an episode in the order they were logged.",
            fix="sort them, or end an episode where rows are missing.",
        )


def _ended(where: str, part: Mapping[str, np.ndarray], length: int) -> Episode:
    """The episode with rewards (0 where none are told) and an end at its last step and nowhere else."""
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


def _alike(where: str, episodes: list[Episode]) -> list[Episode]:
    """Refuse episodes that differ in what they hold."""
    for n, episode in enumerate(episodes):
        for name in sorted({*episodes[0], *episode}):
            first, mine = (e[name].shape[1:] if name in e else "nothing" for e in (episodes[0], episode))
            if first != mine:
                raise BecauseError(
                    f"{where}: {name!r} has shape {mine} in episode {n} and {first} in the first.",
                    need="the same in all episodes.",
                    fix=FIX,
                )
    return episodes


def _unreadable(path: Path, error: Exception) -> BecauseError:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return BecauseError(f"{path} cannot be read ({why}).", need="an HDF5 file or a Minari dataset.", fix=FIX)
