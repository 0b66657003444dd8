"""The results of a sweep for its report: one for each method and task, and the comparisons with the method in focus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import current_id
from because_rl.envs.tasks import SPLITS
from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import dataset_of
from because_rl.experiments.grid.compare import TABLE, Runs, compare, task_name
from because_rl.experiments.grid.runner import cell_file, read_cell
from because_rl.records import check_record, read_record
from because_rl.report.grid_data import Grid, Rate, Result
from because_rl.statistics import mean


def read_grid_results(folder: Path) -> tuple[list[Result], int]:
    """The results of a sweep's folder, one for each method and task, and the number of cells that were not used.

    The table says which cells belong together. Where it has no row for a method and task, the newest cells of each
    seed are taken: a sweep that is still running has no table yet.
    """
    table_rows = read_record(folder / TABLE, "table")["rows"] if (folder / TABLE).exists() else []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    used: set[str] = set()
    for row in table_rows:
        keys = [key for key in row["cells"] if cell_file(folder, key).exists()]
        if keys:
            groups[row["method"], row["task"]] = [_cell(folder, key) for key in keys]
            used.update(keys)
    in_table = set(groups)
    rest = [_cell(folder, file.stem) for file in sorted((folder / "cells").glob("*.json")) if file.stem not in used]
    rest = [cell for cell in rest if "measure" not in cell]  # the others belong to the paper's figures
    unused = 0
    for cell in sorted(rest, key=lambda cell: cell["provenance"]["when"], reverse=True):
        key = cell["label"], task_name(dataset_of(cell), cell["split"])
        seeds = {seed for other in groups.get(key, ()) for seed in other["seeds"]}
        if key in in_table or seeds & set(cell["seeds"]):
            unused += 1
        else:
            groups.setdefault(key, []).append(cell)
    if not groups:
        raise BecauseError(
            f"There are no finished cells in {folder}.",
            need="results of a sweep.",
            fix=f"run 'because sweep paper -o {folder}' first.",
        )
    return [_result(method, task, cells) for (method, task), cells in sorted(groups.items())], unused


def _cell(folder: Path, key: str) -> dict[str, Any]:
    cell = read_cell(cell_file(folder, key))
    return {"key": key} | (cell if "measure" in cell else check_record(cell, "cell of a grid", f"The cell {key}"))


def _result(method: str, task: str, cells: list[dict[str, Any]]) -> Result:
    first = cells[0]
    per_seed = [rate for cell in cells for rate in cell["per_seed"]]
    value, low, high = mean(per_seed)
    return Result(
        method,
        task,
        first["recipe"]["world"],
        first["split"],
        first["recipe"]["behaviour"],
        current_id(dataset_of(first)),
        first["spurious"],
        Rate(value, max(low, 0.0), min(high, 1.0)),
        per_seed,
        [seed for cell in cells for seed in cell.get("outcomes", ())],
        [cell["one_step"] for cell in cells if "one_step" in cell],
        cells,
        [cell["scenes_draw"] for cell in cells if "scenes_draw" in cell] or None,
    )


def comparisons(grid: Grid, advance: Callable[[], None]) -> dict[str, dict[str, Any]]:
    """The method in focus against every other method, on the main splits: method -> result of `compare`.

    Tests are two-sided, since the other method may be the better one. `advance` is called once for each method.
    """
    by_method: dict[str, dict[str, Any]] = {}
    focus = _runs(grid, grid.focus)
    for method in grid.methods:
        other = _runs(grid, method)
        if method != grid.focus and set(focus) & set(other):
            by_method[method] = compare(focus, other, "two-sided")
        advance()
    return by_method


def _runs(grid: Grid, method: str) -> dict[str, Runs]:
    results = [r for r in grid.results if r.method == method and r.split in SPLITS]
    return {r.task: Runs(r.per_seed, r.outcomes or None, r.draws) for r in results}
