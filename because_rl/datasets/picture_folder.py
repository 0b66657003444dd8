"""A folder of PNG files, and a table in it that says which of them follow which, by what action.

    pictures.csv      or pictures.parquet: one row per step, with the columns
                      picture         the file that shows what was there before the step
                      next_picture    the file that shows what followed
                      episode         a number or a name
                      action, or several columns action_...
                      reward, terminated    if they are logged
    frames/0001.png   the files, wherever the table says that they are in the folder

Without next_picture an episode has one row more, whose picture is what followed its last step. Other names of columns
are given as for any table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from because_rl.datasets.columns import ALIASES, Columns, list_names
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.tables import Table, read_csv, read_parquet
from because_rl.datasets.user_dataset import add_action_codes
from because_rl.datasets.user_log import Log, arrange_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import read_png, sha256
from because_rl.reading import max_bytes

TABLES = ("pictures.csv", "pictures.parquet")
PICTURE, NEXT = "picture", "next_picture"
FIX = "correct the table; docs/visual.md shows one."
CheckFrames = Callable[[Any, str], np.ndarray]


class PictureFolder(NamedTuple):
    """What is in such a folder."""

    episodes: list[dict[str, np.ndarray]]
    """frames (T + 1, height, width, 3) uint8, action (T, columns), reward and terminated (T,)"""
    factors: FactorSpec
    """of the actions, as their values suggest; the state is the number of a picture"""
    notes: tuple[str, ...]
    """what was left out while reading"""


def find_table(path: str | Path) -> Path | None:
    """The table of pictures that is at a path, or in the folder there; None if there is none."""
    path = Path(path)
    if path.is_file():
        return path if path.name in TABLES else None
    tables = [path / name for name in TABLES if (path / name).is_file()]
    if len(tables) > 1:
        raise BecauseError(f"{path} has {' and '.join(TABLES)}.", need="one table.", fix="remove the other.")
    return tables[0] if tables else None


def read_picture_folder(table: Path, columns: Columns, check_frames: CheckFrames) -> PictureFolder:
    """The episodes of a table and of the PNG files that it names, relative to its folder.

    Args:
        table: a CSV or Parquet file.
        columns: the roles of its columns, where they have other names than the module says.
        check_frames: refuses frames of another form, as `because_rl.datasets.pictures.check_frames`.
    """
    parts = read_csv(table) if table.suffix == ".csv" else read_parquet(table)
    _check_columns(table.name, parts, columns)
    frames, numbers = _read_frames(table, parts, check_frames)
    arrays = Table({name: column for name, column in parts.items() if name not in numbers})
    arrays.lines = parts.lines
    arrays["observations"] = numbers[PICTURE]
    if NEXT in numbers:
        arrays["next_observations"] = numbers[NEXT]
    try:
        log = _with_whole_actions(arrange_log(table.name, arrays, columns), parts)
    except BecauseError as error:
        raise BecauseError(_by_column(error.got), need=_by_column(error.need), fix=_by_column(error.fix)) from error
    spec = add_action_codes(log, FactorSpec.from_dict(yaml.safe_load(propose_factors(log))))
    episodes = [
        {
            "frames": frames[episode["observations"].astype(int).reshape(-1)],
            "action": _encode(spec, episode["actions"]),
            "reward": np.asarray(episode["rewards"], np.float32),
            "terminated": episode["terminations"],
        }
        for episode in log.episodes
    ]
    return PictureFolder(episodes, spec, tuple(map(_by_column, log.notes)))


def _by_column(text: str) -> str:
    """A message about arrays, with the names of the columns that they are made of."""
    return text.replace("'next_observations'", repr(NEXT)).replace("'observations'", repr(PICTURE))


def _check_columns(where: str, parts: Table, columns: Columns) -> None:
    """Refuse a table that lacks a column, or whose pictures are no names."""
    if columns.state:
        raise BecauseError(
            f"{where}: got state columns {list_names(columns.state)}.",
            need="none: the pictures are the state.",
            fix="leave --state out.",
        )
    if PICTURE not in parts or not (columns.action or any(name.startswith(ALIASES["actions"]) for name in parts)):
        what = "column of the action" if PICTURE in parts else f"column {PICTURE!r}"
        raise BecauseError(
            f"{where} has no {what}; it has {list_names(parts)}.",
            need=f"the columns {PICTURE}, {NEXT}, episode, and action or action_...",
            fix="rename them, or name those of the action with --action; docs/visual.md shows a table.",
        )
    for name in (PICTURE, NEXT):
        if name in parts and parts[name].dtype.kind != "U":
            raise BecauseError(
                f"{where}: {name!r} holds numbers, such as {parts[name][0]}.", need="the names of PNG files.", fix=FIX
            )
    if (parts[PICTURE] == "").any():
        row = int(np.argmax(parts[PICTURE] == ""))
        raise BecauseError(f"{where}, {parts.place(row)}: no picture is named.", need="one in every row.", fix=FIX)


def _read_frames(table: Path, parts: Table, check_frames: CheckFrames) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The different pictures, (n, height, width, 3), and which of them each row of each column names; NaN: none."""
    frames: list[np.ndarray] = []
    number_of: dict[str, int] = {}
    by_content: dict[str, int] = {}
    numbers = {}
    for column in (name for name in (PICTURE, NEXT) if name in parts):
        for row, file in enumerate(parts[column].tolist()):
            if not file or file in number_of:
                continue
            where = f"{table.name}, {parts.place(row)}"
            try:
                frame = check_frames(read_png(table.parent / file)[None], file)[0]
            except BecauseError as error:
                raise BecauseError(f"{where}: {error.got}", need=error.need, fix=error.fix) from error
            if frames and frame.shape != frames[0].shape:
                raise BecauseError(
                    f"{where}: {file} has {_size(frame)} pixels, and {next(iter(number_of))} has {_size(frames[0])}.",
                    need="pictures of one size.",
                    fix="crop or scale them to one size.",
                )
            number_of[file] = by_content.setdefault(sha256(frame.tobytes()), len(frames))
            if number_of[file] == len(frames):
                frames.append(frame)
            if len(frames) * frame.nbytes > max_bytes():
                raise BecauseError(
                    f"The pictures of {table} take more than {max_bytes():,} bytes.",
                    need="as much as fits in memory.",
                    fix="raise the limit with --max-gb, or scale the pictures down.",
                )
        numbers[column] = np.array([number_of.get(file, np.nan) for file in parts[column].tolist()])
    return np.stack(frames), numbers


def _size(frame: np.ndarray) -> str:
    return " x ".join(map(str, frame.shape[:2]))


def _with_whole_actions(log: Log, parts: Mapping[str, np.ndarray]) -> Log:
    """Numbers of actions that became floats because the table has none in the last row of an episode."""
    gaps = any(column.dtype.kind == "f" and np.isnan(column).any() for column in parts.values())
    actions = log.joined("actions")
    if not gaps or log.episodes[0]["actions"].ndim > 1 or (actions != np.round(actions)).any() or actions.min() < 0:
        return log
    return replace(log, episodes=[episode | {"actions": episode["actions"].astype(int)} for episode in log.episodes])


def _encode(factors: FactorSpec, actions: np.ndarray) -> np.ndarray:
    """(T, action columns) float32 of numbers or columns."""
    if factors.codes is not None and actions.ndim == 1:
        actions = factors.encode_action(actions.astype(int))
    return actions.reshape(len(actions), -1).astype(np.float32)
