"""The content of a factor file before it becomes a `FactorSpec`: which columns it names, and their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.factor import FIX
from because_rl.io import read_json, read_yaml


def read_factor_file(path: Path) -> Any:
    """The content of a factor file, which `FactorSpec.from_dict` checks."""
    if not path.is_file():
        raise BecauseError(f"There is no file {path}.", need="a factor spec in JSON or YAML.", fix=FIX)
    return read_json(path) if path.suffix == ".json" else read_yaml(path)


def name_columns(content: Any) -> dict[str, tuple[str, ...]]:
    """The columns of each group of a factor file, in order, where its factors name them: columns: [speed, angle].

    Groups whose factors have column numbers are left out.

    >>> name_columns({"state": [{"columns": ["x", "y"]}, {"columns": "angle"}], "action": [{"columns": 0}]})
    {'state': ('x', 'y', 'angle')}
    """
    out = {}
    for group in ("state", "action", "goal"):
        entries = content.get(group) if isinstance(content, Mapping) else None
        given = [entry.get("columns") for entry in _entries(entries)]
        by_name = [_is_named(columns) for columns in given]
        if any(by_name) and not all(by_name):
            raise BecauseError(
                f"Of the {group} factors, some name their columns and others number them.",
                need="names or numbers, not both.",
                fix=FIX,
            )
        if any(by_name):
            out[group] = tuple(name for columns in given for name in _as_list(columns))
            if repeated := [name for name in out[group] if out[group].count(name) > 1]:
                raise BecauseError(
                    f"Column {repeated[0]!r} belongs twice to the {group} factors.",
                    need="every column in one factor.",
                    fix="correct the 'columns' entries; " + FIX,
                )
    return out


def number_columns(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a factor file with numbers in place of names: columns are numbered in the order of the file."""
    out = dict(content)
    for group in name_columns(content):
        entries, column = [], 0
        for entry in content[group]:
            if isinstance(entry, Mapping):
                width = len(_as_list(entry["columns"]))
                entry = {**entry, "columns": [column, column + width]}
                column += width
            entries.append(entry)
        out[group] = entries
    return out


def _entries(group: Any) -> list[Mapping]:
    return [entry for entry in group if isinstance(entry, Mapping)] if isinstance(group, list | tuple) else []


def _is_named(columns: Any) -> bool:
    names = _as_list(columns)
    ranges = any(isinstance(name, str) and re.fullmatch(r"\d+\s*[-:,]\s*\d+", name) for name in names)
    return bool(names) and all(isinstance(name, str) for name in names) and not ranges


def _as_list(columns: Any) -> list:
    return list(columns) if isinstance(columns, list | tuple) else [columns]
