"""The table of a sweep's cells, and the comparison of two sets of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from because_rl.datasets.paths import short_name
from because_rl.errors import BecauseError
from because_rl.experiments.formatting import csv_text
from because_rl.experiments.grid.cells import dataset_of, find_cells
from because_rl.experiments.grid.runner import Job, cell_file, read_cell
from because_rl.io import read_json, write_json, write_text
from because_rl.records import check_record, read_record
from because_rl.statistics import (
    Alternative,
    holm,
    iqm_interval,
    mean,
    paired_by_layout,
    paired_t_test,
    probability_of_improvement,
    welch,
)

TABLE, SUBSET = "table.json", "table-subset.json"
COLUMNS = (
    *("method", "task", "dataset", "split", "episodes"),
    *("success", "low95", "high95", "worst", "steps", "seeds", "per_seed"),
)


# The table of a sweep ----------------------------------------------------------------------------------


def write_table(jobs: Sequence[Job], folder: Path, any_code: bool = False) -> tuple[Path, list[dict[str, Any]]]:
    """Write ``table.json`` and ``table.csv`` of the finished cells; returns the path of the first and the rows.

    If there is a table with other methods or tasks, as that of a whole grid beside a part of it, it stays and this one
    is written to ``table-subset.json`` and ``table-subset.csv``. The same cells give the same bytes. `any_code` is that
    of `find_cells`.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, dict[str, Any]]]] = {}
    for _, cell in sorted(find_cells(jobs, folder, any_code).items()):
        groups.setdefault((cell["label"], dataset_of(cell), cell["split"]), []).append((cell["file"], cell))
    rows = [_row(label, dataset, cells) for (label, dataset, _), cells in sorted(groups.items())]
    before = read_record(folder / TABLE, "table")["rows"] if (folder / TABLE).exists() else []
    path = folder / (SUBSET if _tasks(before) - _tasks(rows) else TABLE)
    write_json(path, {"rows": rows})
    write_text(path.with_suffix(".csv"), csv_text(rows, COLUMNS))
    return path, rows


def _tasks(rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, Any]]:
    return {(row.get("method"), row.get("task")) for row in rows}


def _row(label: str, dataset: str, cells: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """One row of the table, from one cell or from several with different seeds."""
    first = cells[0][1]
    draws = sorted((seed, cell["scenes_draw"]) for _, cell in cells if "scenes_draw" in cell for seed in cell["seeds"])
    runs = sorted((seed, rate) for _, cell in cells for seed, rate in zip(cell["seeds"], cell["per_seed"], strict=True))
    solved = [(cell["steps"], sum(cell["per_seed"])) for _, cell in cells if cell["steps"] is not None]
    success = mean([rate for _, rate in runs])
    return {
        "method": label,
        "task": task_name(dataset, first["split"]),
        "world": first["recipe"]["world"],
        "policy": first["recipe"]["behaviour"],
        "dataset": dataset,
        **{name: first[name] for name in ("split", "spurious", "episodes")},
        "seeds": [seed for seed, _ in runs],
        "per_seed": [rate for _, rate in runs],
        **({"draws": [draw for _, draw in draws]} if draws else {}),
        "success": success.value,
        "low95": max(success.low, 0.0),
        "high95": min(success.high, 1.0),
        "worst": min(rate for _, rate in runs),
        "steps": sum(steps * n for steps, n in solved) / sum(n for _, n in solved) if solved else None,
        "cells": [key for key, _ in cells],
    }


def task_name(dataset: str, split: str) -> str:
    """The name of a task: world, split and behaviour policy.

    >>> task_name("because/unlock-medium-x4-v1", "O")
    'unlock-O-medium-x4'
    """
    world, _, rest = short_name(dataset).partition("-")
    return f"{world}-{split}-{rest}" if rest else f"{world}-{split}"


# Two sets of results -----------------------------------------------------------------------------------


class Runs(NamedTuple):
    """The runs of one method on one task."""

    per_seed: Sequence[float]
    """success rate of each seed"""
    outcomes: Sequence[str] | None = None
    """per seed a string with '1' (solved) or '0' for each scene; the scenes are the same for all methods"""
    draws: Sequence[int] | None = None
    """per seed its draw of data and scenes; None: all seeds have the same scenes"""


def compare(
    a: Mapping[str, Runs], b: Mapping[str, Runs], alternative: Alternative = "greater", seed: int = 0
) -> dict[str, Any]:
    """Is `a` better than `b` on each task that both have, and over all of them?

    Per task: Welch's t-test over seeds and a paired t-test, each with Holm's adjustment over the tasks. What is paired:
    where each seed has data and scenes of its own, the means of a seed's scenes, so that scenes of the same draw count
    as one cluster; else the scenes, where outcomes are known. Over all tasks: interquartile means and the probability
    of improvement, with bootstrap intervals drawn with `seed`.

    Args:
        a: runs of one side by task name.
        b: runs of the other side by task name.
        alternative: 'greater' asks whether `a` is better, 'two-sided' for any difference.

    Returns:
        `rows` (one per task), `overall`, and the tasks of only one side as `only_a` and `only_b`; JSON data.
    """
    tasks = sorted(set(a) & set(b))
    if not tasks:
        raise BecauseError(
            f"The results have no task in common: {_first_tasks(a)} here and {_first_tasks(b)} there.",
            need="results on the same tasks.",
            fix="name the method where results hold several: RESULTS:METHOD.",
        )
    rows = [_compare_task(task, a[task], b[task], alternative) for task in tasks]
    for name in ("p", "paired_p"):
        known = [row for row in rows if row[name] is not None]
        for row, adjusted in zip(known, holm([row[name] for row in known]), strict=True):
            row[f"{name}_holm"] = adjusted
    first, second = ([runs[task].per_seed for task in tasks] for runs in (a, b))
    return {
        "alternative": alternative,
        "rows": rows,
        "overall": {
            **{name: float(np.mean([row[name] for row in rows])) for name in ("a", "b", "difference")},
            "iqm_a": iqm_interval(first, seed)._asdict(),
            "iqm_b": iqm_interval(second, seed)._asdict(),
            "probability_of_improvement": probability_of_improvement(first, second, seed)._asdict(),
            "tasks": len(tasks),
            "higher": sum(row["difference"] > 0 for row in rows),
            "better": sum(_significant(row) and row["difference"] > 0 for row in rows),
            "worse": sum(_significant(row) and row["difference"] < 0 for row in rows),
        },
        "only_a": sorted(set(a) - set(b)),
        "only_b": sorted(set(b) - set(a)),
    }


def _compare_task(task: str, a: Runs, b: Runs, alternative: Alternative) -> dict[str, Any]:
    row: dict[str, Any] = {"task": task, "a": mean(a.per_seed).value, "b": mean(b.per_seed).value}
    row |= {"difference": row["a"] - row["b"], "seeds": [len(a.per_seed), len(b.per_seed)]}
    row |= dict.fromkeys(
        ("low95", "high95", "p", "p_holm", "paired_low95", "paired_high95", "paired_p", "paired_p_holm")
    )
    if min(row["seeds"]) > 1:
        over_seeds = welch(a.per_seed, b.per_seed, alternative)
        row |= {"low95": over_seeds.low, "high95": over_seeds.high, "p": over_seeds.p}
    if a.draws and b.draws:
        common = sorted(set(a.draws) & set(b.draws))
        if len(common) > 1:
            of_a, of_b = (dict(zip(runs.draws or (), runs.per_seed, strict=True)) for runs in (a, b))
            of_draws = paired_t_test([of_a[d] for d in common], [of_b[d] for d in common], alternative)
            row |= {"paired_low95": of_draws.low, "paired_high95": of_draws.high, "paired_p": of_draws.p}
    elif a.outcomes and b.outcomes and min(len(a.outcomes[0]), len(b.outcomes[0])) > 1:
        over_scenes = paired_by_layout(_solved(a.outcomes), _solved(b.outcomes), alternative)
        row |= {"paired_low95": over_scenes.low, "paired_high95": over_scenes.high, "paired_p": over_scenes.p}
    return row


def _significant(row: Mapping[str, Any]) -> bool:
    return row["p_holm"] is not None and row["p_holm"] <= 0.05


def _solved(outcomes: Sequence[str]) -> np.ndarray:
    """(seeds, scenes) bool"""
    return np.array([[solved == "1" for solved in seed] for seed in outcomes])


def read_results(source: str | Path) -> dict[str, Runs]:
    """Runs by task name, from a sweep's folder, a table, a run's folder or one evaluation.

    RESULTS:METHOD selects one method. Without it, results of several methods are named 'task (method)'. A table is
    ``{"rows": [{"task": ..., "per_seed": [...]}, ...]}``, where 'method' and 'outcomes' are optional.
    """
    path, method = Path(source), ""
    if not path.exists() and ":" in str(source):
        path, method = (kind(part) for kind, part in zip((Path, str), str(source).rsplit(":", 1), strict=True))
    rows = [row for row in _rows(path) if not method or row.get("method") == method]
    methods = sorted({str(row.get("method", "")) for row in rows})
    if not rows:
        raise BecauseError(
            f"There are no results{f' of {method}' if method else ''} in {path}.",
            need="finished cells or evaluations.",
            fix="make them with 'because sweep' or 'because evaluate'.",
        )
    by_task: dict[str, Runs] = {}
    for row in rows:
        task = _task(row, path)
        name = f"{task} ({row.get('method', '')})" if len(methods) > 1 else task
        if name in by_task:
            raise BecauseError(f"{path} has {name} twice.", need="each task once.", fix="remove one of the two.")
        by_task[name] = Runs(*_checked(row, name, path), row.get("draws"))
    return by_task


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """The rows of the result files, with the outcomes that their cells have."""
    if path.is_dir():
        files = [path / TABLE] if (path / TABLE).exists() else sorted(path.glob("evaluation-*.json"))
    else:
        files = [path] if path.is_file() else []
    for file in files:
        content = read_json(file)
        is_table = isinstance(content, dict) and isinstance(content.get("rows"), list)
        rows = content["rows"] if is_table else [content]
        for row in rows:
            if not isinstance(row, dict):
                raise _unusable(file, "a row that is not an object")
            check_record(row, "row of a table", f"A row of {file}")
            keys = row.get("cells")
            cells = [cell_file(file.parent, str(key)) for key in keys] if isinstance(keys, list) else []
            if cells and all(cell.exists() for cell in cells):
                outcomes = [seed for cell in cells for seed in read_cell(cell).get("outcomes", ())]
                row = {"outcomes": outcomes} | row
            yield row


def _task(row: Mapping[str, Any], path: Path) -> str:
    if "task" in row:
        return str(row["task"])
    if "dataset" in row and "split" in row:
        return task_name(str(row["dataset"]), str(row["split"]))
    raise _unusable(path, "a row without 'task'")


def _checked(row: Mapping[str, Any], name: str, path: Path) -> tuple[list[float], list[str] | None]:
    rates, outcomes = row.get("per_seed"), row.get("outcomes") or None
    if not isinstance(rates, list) or not rates or not all(isinstance(r, int | float) and 0 <= r <= 1 for r in rates):
        raise _unusable(path, f"{name} without rates from 0 to 1 in 'per_seed'")
    if outcomes is not None:
        valid = isinstance(outcomes, list) and all(
            isinstance(o, str) and o and not set(o) - {"0", "1"} for o in outcomes
        )
        if not valid or len({len(o) for o in outcomes}) != 1:
            raise _unusable(path, f"{name} with outcomes that are not strings of 0 and 1 of one length")
    return rates, outcomes


def _unusable(path: Path, what: str) -> BecauseError:
    return BecauseError(
        f"{path} has {what}.",
        need='{"rows": [{"task": "unlock-O-medium", "per_seed": [0.9, 0.8]}]}, or what our commands write.',
        fix="correct the file.",
    )


def _first_tasks(runs: Mapping[str, Runs]) -> str:
    return ", ".join(sorted(runs)[:3]) + (", ..." if len(runs) > 3 else "")
