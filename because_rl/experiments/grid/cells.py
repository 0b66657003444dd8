"""What is there of the cells that are wanted: of this version of the source, or, when asked for, of any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from because_rl.experiments.grid.runner import Job, cell_file
from because_rl.io import read_json

NOT_DECIDING = ("label", "code", "source")
"""What a cell says of itself beside what was run: a name, and versions of the source."""


def find(jobs: Sequence[Job], folder: Path, any_code: bool = False) -> dict[str, dict[str, Any]]:
    """Key -> cell, of those that are there; `file` is the key of the file that it came from.

    `any_code`: where there is none, the newest that another version of the source computed.
    """
    found, others = {}, None
    for key, told in ((key, told) for job in jobs for key, told in job.cells.items()):
        if cell_file(folder, key).exists():
            found[key] = read_json(cell_file(folder, key)) | told | {"file": key}
        elif any_code:
            others = _by_first_word(folder) if others is None else others
            match = [cell for cell in others.get(key.split("-")[0], ()) if _same(cell, told)]
            if match:
                newest = max(match, key=lambda cell: str(cell.get("provenance", {}).get("when")))
                found[key] = newest | {"label": told["label"]}
    return found


def lacking(jobs: Sequence[Job], folder: Path, any_code: bool = False) -> list[Job]:
    """What is left to run, with `any_code` of what no version of the source has run."""
    if not any_code:
        return list(jobs)  # a sweep passes over what is there
    there = find(jobs, folder, any_code)
    rest = [Job(job.key, {key: told for key, told in job.cells.items() if key not in there}) for job in jobs]
    return [job for job in rest if job.cells]


def _by_first_word(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All cells, by the first word of their keys."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((folder / "cells").glob("*.json")):
        found.setdefault(file.name.split("-")[0], []).append(read_json(file) | {"file": file.stem})
    return found


def _same(cell: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    return all(_agree(cell.get(key), told[key]) for key in told if key not in NOT_DECIDING)


def _agree(there: Any, now: Any) -> bool:
    """Settings that only one of two versions of the source knows do not count."""
    if isinstance(there, dict) and isinstance(now, dict):
        return all(_agree(there[key], now[key]) for key in there if key in now)
    return there == now
