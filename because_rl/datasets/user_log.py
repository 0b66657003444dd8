"""Read a user's own log: episodes of observations, actions and, if logged, rewards, goals and ends.

A log is a file of flat arrays with one row per step (HDF5, NPZ), a table (CSV, Parquet, a pandas or Polars frame, a
dict of columns), a file of one group per episode (Minari's ``main_data.hdf5``), or a Minari dataset by its folder or
id; docs/tutorial.md lists the arrays. Nothing is guessed: ambiguous logs are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from because_rl.datasets.columns import ALIASES, FIX, GROUPS, MISSING_SUFFIX, Columns, arrange, list_names
from because_rl.datasets.episodes import Cut, Episode, check_same_arrays, read_episode, split_episodes
from because_rl.datasets.large_log import SAMPLE_ROWS, LargeLog, open_large_log
from because_rl.datasets.minari_files import read_dataset, read_metadata, read_spaces
from because_rl.datasets.missing import handle_missing
from because_rl.datasets.paths import dataset_path, full_id
from because_rl.datasets.tables import Table, read_columns, read_csv, read_parquet
from because_rl.datasets.validate import CHECKSUMS, compute_checksums
from because_rl.errors import BecauseError, check_name
from because_rl.factors import FactorSpec
from because_rl.hdf5 import Content, read_hdf5
from because_rl.io import arrays_sha256, read_json, read_npz
from because_rl.transitions import MIN_EPISODES

FORMATS = "a CSV, Parquet, NPZ or HDF5 file, a folder of Parquet parts, or the folder or id of a local Minari dataset"


@dataclass(frozen=True)
class Log:
    """Logged episodes, all with the same arrays."""

    name: str
    episodes: list[Episode]
    names: Mapping[str, tuple[str, ...]]
    """column names of observations, actions and goals, as far as the file has them"""
    factors: FactorSpec | None = None
    """the factor spec of a dataset that contains one"""
    notes: tuple[str, ...] = ()
    """what was left out or filled while reading, for the user"""
    is_table: bool = False
    """whether columns have their roles by name, as in a table"""
    columns: Columns | None = None
    """the roles with which a file was read"""
    action_count: int = 0
    """the number of discrete actions, where the data say it"""
    large: LargeLog | None = None
    """where the episodes are a sample: what they were drawn from"""

    def joined(self, name: str) -> np.ndarray:
        """The rows of one array over all episodes, (rows, columns)."""
        rows = np.concatenate([episode[name] for episode in self.episodes])
        return rows.reshape(len(rows), -1)

    @property
    def has_goals(self) -> bool:
        """Whether the log has an array of goals."""
        return "goals" in self.episodes[0]

    @cached_property
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


def read_log(
    data: Any,
    root: str | Path | None = None,
    columns: Columns | None = None,
    sample_rows: int = SAMPLE_ROWS,
    seed: int = 0,
) -> Log:
    """The log at a path, of an id of a local Minari dataset (under `root` or in Minari's own folder), or in memory.

    Args:
        data: a path, an id, a pandas or Polars frame, or a mapping of arrays or columns by name.
        root: where ids are looked up.
        columns: the roles of columns, and what is done about missing values.
        sample_rows: of Parquet with more rows, about as many are read, in whole episodes; 0: all rows.
        seed: of the sample.
    """
    columns = columns or Columns()
    if sample_rows < 0:
        raise BecauseError(f"Got {sample_rows} rows of a sample.", need="0 or more.", fix="0 reads all rows.")
    log = _complete(*_read(data, root, columns, sample_rows, seed), columns)
    check_episode_count(log.name, len(log.episodes), log.notes)
    if log.large is None:
        return log
    drawn = log.large.describe()
    note = (
        f"a sample: {drawn['episodes']:,} of {drawn['of_episodes']:,} episodes, drawn with seed {seed}, with"
        f" {drawn['rows']:,} of {drawn['of_rows']:,} rows; what happens in fewer than {drawn['rare']:.2%} of the"
        " episodes may be in none of them"
    )
    return replace(log, notes=(note, *log.notes))


def check_episode_count(name: str, count: int, notes: Sequence[str] = ()) -> None:
    """Refuse a log of too few episodes; `notes`: what was left out while reading it."""
    if count < MIN_EPISODES:
        raise BecauseError(
            f"{name} has {count} episode{'s' * (count != 1)}{'; ' * bool(notes)}{'; '.join(notes)}.",
            need=f"at least {MIN_EPISODES}: episodes are what is held out, and what tests take as independent.",
            fix="log more; or cut one long log into episodes: episodes = numpy.arange(n) // 100.",
        )


def arrange_log(where: str, table: Mapping[str, Any], columns: Columns) -> Log:
    """The log of a table that has been read, of however many episodes; `where` it is from, for messages."""
    return _complete(*_arranged(where, table, columns), columns)


def _complete(log: Log, cut: Cut, wanted: Mapping[str, Sequence[str]], columns: Columns) -> Log:
    """The log with these episodes, in which missing values have been handled."""
    if not cut.episodes:
        raise BecauseError(f"{log.name} has no episode with a step.", need=f"at least {MIN_EPISODES}.", fix=FIX)
    check_same_arrays(log.name, cut.episodes)
    cut, names = handle_missing(log.name, cut, log.names, columns.missing, wanted)
    return replace(
        log, episodes=cut.episodes, notes=cut.notes, names={array: tuple(given) for array, given in names.items()}
    )


def read_chunk(sample: Log, table: Table, where: str) -> Log:
    """Other rows of the log that `sample` was drawn from, with the same columns; `where` they are, for messages."""
    assert sample.columns is not None
    columns = sample.columns
    if sample.is_table:
        state, action, goal = (sample.names.get(array, getattr(columns, group)) for group, array in GROUPS.items())
        columns = replace(columns, state=state, action=action, goal=goal)
    return arrange_log(where, table, columns)


Read = tuple[Log, Cut, Mapping[str, Sequence[str]]]
"""A log that has no episodes yet, the episodes, and the columns that were asked for by name."""


def _read(data: Any, root: str | Path | None, columns: Columns, sample_rows: int, seed: int) -> Read:
    if not isinstance(data, str | os.PathLike):
        if not isinstance(data, Mapping) and not hasattr(data, "columns"):
            raise BecauseError(
                f"Got data of type {type(data).__name__}.", need=f"{FORMATS}; a frame; or a dict of arrays.", fix=FIX
            )
        return _arranged("data", read_columns("data", data), columns, "because_rl.load(DATA, factors, ...) with")
    path = Path(data)
    if path.is_dir() and not (path / "data").is_dir() and any(path.rglob("*.parquet")):
        return _read_parquet(path, columns, sample_rows, seed)
    if not path.is_file() or (path.name == "main_data.hdf5" and (path.parent / "metadata.json").is_file()):
        return _select(*_read_minari(_find_folder(str(data), root)), columns)
    match path.suffix.lower():
        case ".csv" | ".tsv" | ".txt":
            return _arranged(path.name, read_csv(path), columns)
        case ".parquet" | ".pq":
            return _read_parquet(path, columns, sample_rows, seed)
        case ".npz":
            return _arranged(path.name, read_columns(path.name, read_npz(path)), columns)
    return _read_hdf5(path, columns)


def _read_parquet(path: Path, columns: Columns, sample_rows: int, seed: int) -> Read:
    large = open_large_log(path, columns, sample_rows, seed) if sample_rows else None
    if large is None:
        return _arranged(path.name, read_parquet(path), columns)
    log, cut, wanted = _arranged(path.name, large.sample(), columns)
    return replace(log, large=large), cut, wanted


def _arranged(
    where: str,
    source: Mapping[str, Any],
    columns: Columns,
    example: str = "",
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> Read:
    """The log of flat arrays or columns; `names` are those of the columns of arrays, as far as they have them."""
    arrays, own = arrange(where, source, columns, example or f"because factors {where}")
    cut = split_episodes(where, arrays)
    wanted = {array: getattr(columns, group) for group, array in GROUPS.items() if getattr(columns, group)}
    numbered = arrays["actions"].ndim == 1 and len(own.get("actions", ())) > 1
    stem = re.sub(r"\.\w+$", "", where)
    count = len(own["actions"]) if numbered else 0
    log = Log(stem, [], {**(names or {}), **own}, is_table=bool(own), columns=columns, action_count=count)
    return log, cut, wanted


def _find_folder(data: str | Path, root: str | Path | None) -> Path:
    """The folder that holds ``data/`` of a Minari dataset: at the path, under `root`, or in Minari's own folder."""
    path = Path(data)
    if path.name == "main_data.hdf5":
        path = path.parent
    candidates = [path.parent if path.name == "data" else path]
    if re.fullmatch(r"[\w-]+(/[\w-]+)*", str(data)):
        minari = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        candidates += [dataset_path(name, root) for name in (str(data), full_id(str(data)))]
        candidates.append(Path(minari) / str(data))
    for folder in candidates:
        if (folder / "data").is_dir():
            return folder.absolute()
    raise BecauseError(
        f"There is no data {str(data)!r}.",
        need=f"{FORMATS}.",
        fix="correct the path; 'minari download ID' fetches a public dataset.",
    )


def _select(log: Log, cut: Cut, columns: Columns) -> Read:
    """A log that comes in episodes, with the columns that are named, which its arrays must have names for."""
    if columns.episode or columns.time or columns.reward:
        raise BecauseError(
            f"{log.name} comes in episodes, so it has no columns of episode, time and reward.",
            need="a table for --episode, --time and --reward.",
            fix="leave them out.",
        )
    names, wanted = dict(log.names), {}
    for group, array in GROUPS.items():
        if not (given := getattr(columns, group)):
            continue
        wanted[array], known = given, log.names.get(array, ())
        own = [name for name in given if not name.endswith(MISSING_SUFFIX)]
        if not set(own) <= set(known):
            raise BecauseError(
                f"{log.name}: the {group} has no column {min(set(own) - set(known))!r}; it has {list_names(known)}.",
                need="the names that its arrays have, or a factor file that numbers columns.",
                fix=f"propose factors again: because factors {log.name}",
            )
        if own != list(known):
            at = [known.index(name) for name in own]
            episodes = [e | {array: e[array].reshape(len(e[array]), -1)[:, at]} for e in cut.episodes]
            cut, names[array] = cut._replace(episodes=episodes), tuple(own)
    return replace(log, names=names, columns=columns), cut, wanted


def _read_minari(folder: Path) -> tuple[Log, Cut]:
    metadata = read_metadata(folder, folder.name)
    raw, names = read_dataset(folder, metadata, folder.name)
    _verify_checksums(folder, raw)
    space = read_spaces(metadata, folder.name)[1]
    if isinstance(space, spaces.Discrete) and space.start:
        raw = [episode | {"actions": episode["actions"] - space.start} for episode in raw]
    factors = metadata.get("because", {}).get("factors")
    cut = _read_episodes(folder.name, [f"episode {n}" for n in range(len(raw))], raw)
    count = int(space.n) if isinstance(space, spaces.Discrete) else 0
    spec = factors and FactorSpec.from_dict(factors)
    return Log(folder.name, [], _array_names(names), spec, action_count=count), cut


def _verify_checksums(folder: Path, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse data that differ from the checksums, which datasets that this package wrote have."""
    path = folder / CHECKSUMS
    if path.exists() and read_json(path) != compute_checksums(folder, episodes):
        raise BecauseError(
            f"{folder.name} does not match its checksums.", need="the data as they were written.", fix="restore them."
        )


def _read_episodes(where: str, labels: Sequence[str], trees: Sequence[Mapping[str, Any]]) -> Cut:
    """Episodes that come one by one; those without a step are left out."""
    episodes, kept = [], []
    for label, tree in zip(labels, trees, strict=True):
        arrays, _ = arrange(f"{where}, {label}", _inner_arrays(tree), Columns())
        if (episode := read_episode(f"{where}, {label}", arrays)) is not None:
            episodes.append(episode)
            kept.append(label.removeprefix("episode ").removeprefix("episode_"))
    empty = len(labels) - len(kept)
    return Cut(episodes, kept, (f"{empty} episode(s) without a step left out",) * (empty > 0))


def _inner_arrays(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A dict of observations gives observations and goals."""
    parts = dict(tree)
    if isinstance(parts.get("observations"), Mapping):
        inner = dict(parts.pop("observations"))
        parts["observations"] = inner.get("state", inner.get("observation"))
        parts["goals"] = inner.get("goal", inner.get("desired_goal"))
    return {name: part for name, part in parts.items() if not isinstance(part, Mapping)}


def _read_hdf5(path: Path, columns: Columns) -> Read:
    content = read_hdf5(path, {alias for aliases in ALIASES.values() for alias in aliases} | columns.names() - {""})
    if groups := _episode_groups(path.name, content):
        cut = _read_episodes(path.name, groups, [content.tree(group) for group in groups])
        return _select(Log(path.stem, [], _column_names(content, f"{groups[0]}/")), cut, columns)
    names = _column_names(content)
    parts = _inner_arrays(content.tree(""))
    for array, given in names.items():  # columns of an array may be given roles by their names
        alias = next(alias for alias in ALIASES[array] if alias in content.names)
        if (rows := parts.get(alias)) is not None and rows.ndim == 2 and len(given) == rows.shape[1]:
            parts = {name: rows[:, k] for k, name in enumerate(given) if name in columns.names()} | parts
    return _arranged(path.name, parts, columns, names=names)


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


def _column_names(content: Content, group: str = "") -> dict[str, tuple[str, ...]]:
    """The attribute ``names`` of observations, actions and goals, where they have one."""
    return _array_names({k.removeprefix(group): v for k, v in content.names.items() if k.startswith(group)})


def _array_names(given: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Array, or array of a dict of observations -> column names, by the keys of `ALIASES`."""
    inner = {
        "observations": ("observations/state", "observations/observation"),
        "goals": ("observations/goal", "observations/desired_goal"),
    }
    names = {
        array: given[alias]
        for array in GROUPS.values()
        for alias in (*inner.get(array, ()), *ALIASES[array])
        if alias in given
    }
    for column in (column for columns in names.values() for column in columns if column):
        check_name(column, "The name of a column", FIX)
    return names
