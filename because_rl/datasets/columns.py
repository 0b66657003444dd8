"""Which columns of a log are what: by flags, by a factor file that names columns, or by the names of the arrays.

`arrange` makes the arrays of `ALIASES` from whatever a file holds. A column of text becomes one-hot columns, one per
level, named ``gear=low``; a factor file or a flag may name them, which fixes the levels and their order.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.tables import Table, broken_number
from because_rl.errors import BecauseError
from because_rl.factor_file import name_columns, read_factor_file

ALIASES = {
    "observations": ("observations", "states", "observation", "state"),
    "actions": ("actions", "action"),
    "next_observations": ("next_observations", "next_states", "next_observation", "next_state"),
    "goals": ("goals", "desired_goals", "goal", "desired_goal"),
    "rewards": ("rewards", "reward"),
    "terminations": ("terminations", "terminals", "terminated", "terminal"),
    "truncations": ("truncations", "timeouts", "truncated", "timeout"),
    "dones": ("dones", "done"),
    "episodes": ("episodes", "episode", "episode_ids", "episode_id"),
}
"""Accepted names of each array; D4RL's are among them. 'dones' are ends of either kind."""
ONE_PER_ROW = ("rewards", "terminations", "truncations", "dones", "episodes", "times")
"""Arrays with one value per row."""
FLAGS = ("terminations", "truncations", "dones")
GROUPS = {"state": "observations", "action": "actions", "goal": "goals"}
MAX_LEVELS = 50
"""A column of text with more levels is no category."""
MISSING_SUFFIX = "_missing"
POLICIES = ("drop-episode", "forward-fill", "indicator")
"""What can be done about missing values; they are refused otherwise."""
FIX = "correct the file; docs/tutorial.md lists the arrays."


@dataclass(frozen=True)
class Columns:
    """The roles of columns, by name; empty where the names of the arrays say it (`ALIASES`)."""

    state: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    goal: tuple[str, ...] = ()
    episode: str = ""
    time: str = ""
    """the order of the rows of an episode"""
    reward: str = ""
    missing: str = ""
    """one of `POLICIES`"""

    def __post_init__(self) -> None:
        for group in GROUPS:
            given = getattr(self, group)
            object.__setattr__(self, group, (given,) if isinstance(given, str) else tuple(map(str, given or ())))
        for role in ("episode", "time", "reward", "missing"):
            object.__setattr__(self, role, str(getattr(self, role) or ""))
        if self.missing and self.missing not in POLICIES:
            raise BecauseError(
                f"Got {self.missing!r} for missing values.",
                need=f"one of {', '.join(POLICIES)}.",
                fix="leave it out to have missing values refused.",
            )

    def over(self, other: Columns) -> Columns:
        """These roles, and those of `other` where these are empty."""
        return Columns(**{f.name: getattr(self, f.name) or getattr(other, f.name) for f in fields(self)})

    def names(self) -> set[str]:
        """Every column that is named, and the columns of which levels or missing values are named."""
        given = {*self.state, *self.action, *self.goal, self.episode, self.time, self.reward} - {""}
        bases = {name.partition("=")[0] for name in given} | {name.removesuffix(MISSING_SUFFIX) for name in given}
        return given | bases | {f"next_{name}" for name in self.state}

    @classmethod
    def from_file(cls, path: str | Path) -> Columns:
        """The roles in a factor file whose factors name their columns; none where it numbers them."""
        content = read_factor_file(Path(path))
        names = name_columns(content)
        table = content.get("table") if isinstance(content, Mapping) else None
        table = table if isinstance(table, Mapping) else {}
        known = ("episode", "time", "reward", "missing")
        if unknown := set(table) - set(known):
            raise BecauseError(
                f"{path}: 'table' has the entry {min(map(str, unknown))!r}.",
                need=f"the entries {', '.join(known)}.",
                fix="remove it; docs/factors.md shows an example.",
            )
        roles: dict[str, Any] = {**names, **table}
        return cls(**roles)


def arrange(
    where: str, source: Mapping[str, Any], columns: Columns, example: str = ""
) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """The arrays by the keys of `ALIASES` and 'times', and the names of the columns of those that were put together.

    Args:
        where: the file, for messages.
        source: name -> (rows,) or (rows, ...) array, text allowed; None for what was not read.
        columns: the roles; what is neither named there nor in `ALIASES` is ignored.
        example: the command to show where roles are missing.
    """
    parts = Table({name: array for name, array in source.items() if array is not None})
    parts.lines = getattr(source, "lines", ())
    out, names = _arrays_by_alias(where, parts), {}
    for group, array in GROUPS.items():
        wanted = getattr(columns, group) or ([] if array in out else _prefixed(parts, array))
        if wanted:
            out[array], names[array] = _put_together(where, parts, wanted, is_action=group == "action")
    if columns.state:
        after = [f"next_{name.partition('=')[0]}" for name in names["observations"]]
        if set(after) <= set(parts):
            bare = Table({name.removeprefix("next_"): parts[name] for name in after})
            out["next_observations"] = _put_together(where, bare, names["observations"], False)[0]
        elif "next_observations" in out:
            del out["next_observations"]  # it is not known to have the columns that were named
    for role, array in (("episode", "episodes"), ("time", "times"), ("reward", "rewards")):
        if name := getattr(columns, role):
            out[array] = _find(where, parts, name)
    for name in ONE_PER_ROW:
        if name in out:
            out[name] = _one_per_row(where, name, out[name], parts.place)
    missing = [group for group in ("state", "action") if GROUPS[group] not in out]
    if missing:
        raise _unknown_roles(where, parts, missing, example)
    return out, {array: given for array, given in names.items() if given}


def _arrays_by_alias(where: str, parts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    out = {}
    for name, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in parts]
        if len(present) > 1:
            raise BecauseError(f"{where} has both {present[0]!r} and {present[1]!r}.", need="one of them.", fix=FIX)
        if present:
            out[name] = _check_numbers(where, present[0], np.asarray(parts[present[0]]), text=name == "episodes")
    return out


def _check_numbers(where: str, name: str, array: np.ndarray, text: bool = False) -> np.ndarray:
    kinds = "fiub" + "UM" * text
    if array.dtype.kind not in kinds or array.ndim == 0 or 0 in array.shape[1:]:
        raise BecauseError(
            f"{where}: {name!r} is of type {array.dtype} and shape {array.shape}.",
            need="an array of numbers.",
            fix=FIX,
        )
    return array


def _one_per_row(where: str, name: str, array: np.ndarray, place: Callable[[int], str]) -> np.ndarray:
    """(rows,) values; flags 0 and 1 alone, ids and times without gaps."""
    if array.size != len(array):
        raise BecauseError(f"{where}: {name!r} has shape {array.shape}.", need="one number per row.", fix=FIX)
    array = array.reshape(-1)
    if name in FLAGS and not np.isin(array, (0, 1)).all():
        raise BecauseError(f"{where}: {name!r} has other values than 0 and 1.", need="flags.", fix=FIX)
    if array.dtype.kind == "U" and name == "rewards":
        raise BecauseError(f"{where}: {name!r} is text.", need="one number per row.", fix=FIX)
    if name in ("episodes", "times"):
        gaps = (
            array == "" if array.dtype.kind == "U" else np.isnat(array) if array.dtype.kind == "M" else ~_finite(array)
        )
        if gaps.any():
            raise BecauseError(
                f"{where}: {name!r} is missing in {int(gaps.sum())} rows, the first is {place(int(np.argmax(gaps)))}.",
                need="a value in each row.",
                fix="fill them in the file, or remove these rows.",
            )
    return array


def _finite(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array) if array.dtype.kind == "f" else np.ones(len(array), bool)


def _prefixed(parts: Mapping[str, Any], array: str) -> list[str]:
    """Columns such as observations_0, state.x or action/push, in the order of the file."""
    starts = tuple(alias + mark for alias in ALIASES[array] for mark in "_./[")
    single = {alias for name in ALIASES if name not in GROUPS.values() for alias in ALIASES[name]}
    return [name for name in parts if name.startswith(starts) and name not in single]


def _find(where: str, parts: Mapping[str, Any], name: str) -> np.ndarray:
    if name in parts:
        return np.asarray(parts[name])
    near = difflib.get_close_matches(name, parts, 1)
    raise BecauseError(
        f"{where} has no column {name!r}; it has {list_names(parts)}.",
        need="the name of a column.",
        fix=f"did you mean {near[0]!r}?" if near else "correct the name, or the factor file that has it.",
    )


def list_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    """The first names of a file for a message."""
    shown = sorted(names)
    return ", ".join(shown[:30]) + f" and {len(shown) - 30} more" * (len(shown) > 30) or "nothing"


def _put_together(
    where: str, parts: Table, wanted: Sequence[str], is_action: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The wanted columns side by side, (rows, columns), and their names.

    An action that is one category becomes the number of its level, (rows,), with the names of the levels.
    """
    levels_of = {name.partition("=")[0] for name in wanted}
    if is_action and len(wanted) > 1 and len(levels_of) == 1 and not any(name in parts for name in wanted):
        codes = np.stack([_level(where, parts, name, wanted) for name in wanted], 1)
        index = codes.argmax(1)
        gaps = np.isnan(codes).any(1)
        return (np.where(gaps, np.nan, index) if gaps.any() else index), tuple(wanted)
    columns: list[np.ndarray] = []
    names: list[str] = []
    for name in wanted:
        if name not in parts and "=" in name and name.partition("=")[0] in parts:
            columns, names = [*columns, _level(where, parts, name, wanted)], [*names, name]
            continue
        if name not in parts and name.endswith(MISSING_SUFFIX) and name.removesuffix(MISSING_SUFFIX) in parts:
            continue  # made where missing values are handled
        array = _find(where, parts, name)
        if array.dtype.kind == "U":
            levels = _levels(where, name, array, parts.place)
            if is_action and len(wanted) == 1:
                return _put_together(where, parts, [f"{name}={level}" for level in levels], True)
            columns += [_one_hot(array, level) for level in levels]
            names += [f"{name}={level}" for level in levels]
            continue
        if array.dtype.kind == "M":
            raise BecauseError(
                f"{where}: {name!r} is a time.", need="numbers.", fix=f"leave it out, or pass it as --time {name}."
            )
        array = _check_numbers(where, name, array)
        array = array.reshape(len(array), math.prod(array.shape[1:]))
        columns += [array[:, k] for k in range(array.shape[1])]
        names += [name] if array.shape[1] == 1 else [f"{name}_{k}" for k in range(array.shape[1])]
    if not columns:
        raise BecauseError(f"{where}: no column is named.", need="at least one.", fix=FIX)
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise BecauseError(f"{where}: {names[0]!r} and others have {sorted(lengths)} rows.", need="as many.", fix=FIX)
    return (columns[0] if is_action and len(columns) == 1 else np.stack(columns, 1)), tuple(names)


def _levels(where: str, name: str, array: np.ndarray, place: Callable[[int], str]) -> list[str]:
    if (row := broken_number(array)) is not None:
        raise BecauseError(
            f"{where}, {place(row)}: {name!r} is {str(array[row])[:40]!r}, and most values of the column are numbers.",
            need="a number, or nothing where it is missing.",
            fix="correct the value, or leave the field empty and choose with --missing.",
        )
    levels = [str(level) for level in np.unique(array[array != ""])]
    if not 2 <= len(levels) <= MAX_LEVELS:
        row = int(np.argmax(array != ""))
        raise BecauseError(
            f"{where}: {name!r} is text with {len(levels)} different values, such as {str(array[row])[:40]!r}.",
            need=f"numbers, or a category of 2 to {MAX_LEVELS} levels.",
            fix="leave the column out; or write it as numbers, with a decimal point.",
        )
    return levels


def _level(where: str, parts: Table, name: str, wanted: Sequence[str]) -> np.ndarray:
    """The one-hot column ``gear=low`` of the column ``gear``, whose other levels must be wanted too if one is."""
    base, _, level = name.partition("=")
    array = _find(where, parts, base)
    known = [other.partition("=")[2] for other in wanted if other.partition("=")[0] == base]
    if array.dtype.kind != "U":
        text = np.array([f"{value:g}" for value in np.asarray(array, float).reshape(-1)])
        array = np.where(text == "nan", "", text)
    odd = ~np.isin(array, [*known, ""])
    if len(known) > 1 and odd.any():
        row = int(np.argmax(odd))
        raise BecauseError(
            f"{where}, {parts.place(row)}: {base!r} is {str(array[row])[:40]!r}, none of {', '.join(known)}.",
            need="one of the levels that the factors name.",
            fix=f"add the column {base}={str(array[row])[:40]} to the factor, or propose factors again.",
        )
    return _one_hot(array, level)


def _one_hot(array: np.ndarray, level: str) -> np.ndarray:
    return np.where(array == "", np.nan, array == level) if (array == "").any() else (array == level).astype(float)


def _unknown_roles(where: str, parts: Mapping[str, Any], missing: Sequence[str], example: str) -> BecauseError:
    """An error for a table that does not say what its columns are, with the command that would."""
    ids = [name for name in parts if any(word in name.lower() for word in ("episode", "batch", "trial", "run", "id"))]
    plain = [name for name, array in parts.items() if np.ndim(array) == 1 and name not in ids[:1]]
    state = ",".join(plain[:-1]) or "COLUMNS"
    flags = f"--state '{state}' --action '{plain[-1] if plain else 'COLUMN'}' --episode '{ids[0] if ids else 'COLUMN'}'"
    arrays = " and ".join(f"'{GROUPS[group]}'" for group in missing)
    return BecauseError(
        f"{where} has no array {arrays}; it has {list_names(parts)}.",
        need="the columns of state and action, one row per step.",
        fix=f"say what the columns are, for example: {example or 'because factors DATA'} {flags}",
    )
