"""Which cells are finished, by this version of the source or, on request, by any; and the jobs for the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import current_id
from because_rl.datasets.recipe import Recipe
from because_rl.experiments.grid.grid import address
from because_rl.experiments.grid.runner import Job, cell_file, read_cell

NOT_COMPARED = ("label", "code", "source")
"""Fields of a cell that may differ between two versions of the source: a display name and hashes of the source."""


def recipe_of(cell: Mapping[str, Any]) -> Recipe:
    """The recipe of a cell's dataset."""
    return Recipe(**{key: value for key, value in cell["recipe"].items() if key != "format"})


def dataset_of(cell: Mapping[str, Any]) -> str:
    """The id of a cell's dataset; where each training seed has a draw of its own, that of the draw with seed 0."""
    return replace(recipe_of(cell), seed=0).id if "scenes_draw" in cell else str(cell["dataset"])


def find_cells(jobs: Sequence[Job], folder: Path, any_code: bool = False) -> dict[str, dict[str, Any]]:
    """The finished cells of these jobs in the results folder, by key.

    Each cell gets a field `file`, the key of the file that it was read from. With `any_code`, a missing cell is
    replaced by the newest one that another version of the source computed with the same settings.
    """
    cells, by_word = {}, None
    for key, head in ((key, head) for job in jobs for key, head in job.cells.items()):
        if cell_file(folder, key).exists():
            cells[key] = read_cell(cell_file(folder, key)) | dict(head) | {"file": key}
        elif any_code:
            by_word = _cells_by_first_word(folder) if by_word is None else by_word
            matches = [cell for cell in by_word.get(key.split("-")[0], ()) if _same_settings(cell, head)]
            if matches:
                newest = max(matches, key=lambda cell: str(cell.get("provenance", {}).get("when")))
                cells[key] = newest | {"label": head["label"]}
    return cells


def missing_jobs(jobs: Sequence[Job], folder: Path, any_code: bool = False) -> list[Job]:
    """The jobs to hand to a sweep. With `any_code`: only the cells that no version of the source has computed.

    Without it these are all jobs, since a sweep itself skips the cells that are there.
    """
    if not any_code:
        return list(jobs)
    finished = find_cells(jobs, folder, any_code)
    rest = [Job(job.key, {key: head for key, head in job.cells.items() if key not in finished}) for job in jobs]
    return [job for job in rest if job.cells]


def join_jobs(jobs: Sequence[Job], together: int) -> list[Job]:
    """The same cells in fewer jobs: of one method and world, up to `together` datasets are one job.

    Its trainings run side by side (`training.side_by_side`), and a cell does not depend on which others are beside it.
    """
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        head = next(iter(job.cells.values()))
        same: list[Any] = [job.key]
        if "method" in head:  # it is trained
            same = [head[name] for name in ("method", "config", "chunk", "code")]
            same += [head["recipe"]["world"], head["recipe"]["spurious"], len(head["seeds"])]
        alike.setdefault(json.dumps(same, sort_keys=True), []).append(job)
    parts = [group[k : k + together] for group in alike.values() for k in range(0, len(group), together)]
    place = {job.key: n for n, job in enumerate(jobs)}
    return [_joint_job(part) for part in sorted(parts, key=lambda part: place[part[0].key])]


def _joint_job(parts: Sequence[Job]) -> Job:
    if len(parts) == 1:
        return parts[0]
    head = next(iter(parts[0].cells.values()))
    prefix = f"{head['method']}-{head['recipe']['world']}-{len(parts)}-datasets"
    cells = {key: cell for part in parts for key, cell in part.cells.items()}
    return Job(address(prefix, {"parts": [part.key for part in parts]}), cells, tuple(parts))


def _cells_by_first_word(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All cells of the folder, grouped by the first word of their keys."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((folder / "cells").glob("*.json")):
        groups.setdefault(file.name.split("-")[0], []).append(_current(read_cell(file)) | {"file": file.stem})
    return groups


def _current(cell: dict[str, Any]) -> dict[str, Any]:
    """A recorded cell with its dataset's id in today's version, whose transitions are the same."""
    return cell | {"dataset": current_id(cell["dataset"])} if "dataset" in cell else cell


def _same_settings(cell: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    return all(_agree(cell.get(name), head[name]) for name in head if name not in NOT_COMPARED)


def _agree(old: Any, new: Any) -> bool:
    """Equal values; settings that only one of two versions of the source knows are not compared."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_agree(old[key], new[key]) for key in old if key in new)
    return old == new
