"""The report of a whole grid: one self-contained page from the folder of a sweep.

Beside ``cells/`` and ``table.json``, which `because sweep` writes, the page shows what else is in the folder:
``oracle.json``, ``datasets.json`` (or ``worlds/datasets.json``), ``graphs/``, ``runs/``, ``pictures/``, and cells
of energy maps. The page lists what is missing, each with the command that makes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import current_id, short_name
from because_rl.envs.tasks import WORLDS
from because_rl.evaluation.rollout import layouts
from because_rl.evaluation.scenes import Scenes
from because_rl.experiments.grid.compare import TABLE
from because_rl.experiments.grid.results import comparisons, read_grid_results
from because_rl.experiments.paper.energy_maps import MEASURE, mean_maps
from because_rl.experiments.paper.numbers import paper_success
from because_rl.records import read_record
from because_rl.report.grid_data import Curves, Failure, Film, Grid, Maps, Rate, Result
from because_rl.report.grid_page import write_grid_page
from because_rl.runs.folder import METRICS, RUN, read_metrics

FAILURES = 3
"""Number of failed scenes shown for each task."""
SECONDS = 15.0
"""Default time to spend on new pictures."""

Report = Callable[[int, int], None]
"""Called with the steps done and their total."""
Missing = list[tuple[str, str]]
"""What is missing on the page, and the command that makes it."""


def is_grid(folder: Path) -> bool:
    return (folder / "cells").is_dir()


def report_grid(
    folder: Path,
    output: Path,
    oracle: Path | None = None,
    seconds: float = SECONDS,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Write the page of a sweep's folder into the folder `output`.

    Args:
        oracle: results of `because oracle`; by default ``oracle.json`` in the folder.
        seconds: time to spend on new pictures.

    Returns:
        The page's path, size, methods, tasks and number of cells, the seconds it took, and what is missing on it.
    """
    begin = time.monotonic()
    results, unused = read_grid_results(folder)
    grid = Grid(folder.resolve().name, results)
    missing: Missing = []
    if unused:
        what = f"{unused} cells of other settings or source code than those of {TABLE}"
        missing.append((what, f"because sweep SPEC -o {grid.name}"))
    films = {key for task in grid.tasks for key in _films_of(grid, task)}
    steps = len(grid.methods) + len(films) + len(grid.tasks)
    done = count(1)
    report(0, steps)
    grid = replace(grid, comparisons=comparisons(grid, lambda: report(next(done), steps)))
    grid = replace(grid, **_pictures(grid, folder / "pictures", seconds, missing, lambda: report(next(done), steps)))
    grid = replace(
        grid,
        paper=_paper(results),
        oracle=_oracle(oracle or folder / "oracle.json", missing),
        behaviour=_behaviour(folder, missing),
        graphs=_graphs(folder, grid, missing),
        curves=_curves(folder, missing),
        maps=_maps(folder, missing),
        missing=missing,
    )
    page = write_grid_page(output, grid)
    return {
        "page": str(page),
        "megabytes": round(page.stat().st_size / 1e6, 2),
        "seconds": round(time.monotonic() - begin, 2),
        "methods": grid.methods,
        "tasks": grid.tasks,
        "cells": sum(len(r.cells) for r in results),
        "missing": [{"what": what, "command": command} for what, command in missing],
    }


# Other files -----------------------------------------------------------------------------------------


def _oracle(file: Path, missing: Missing) -> dict[tuple[str, str], Rate]:
    if not file.exists():
        missing.append(("the oracle planner, a ceiling for all methods", f"because oracle -o {_name(file)}"))
        return {}
    return {
        (row["world"], row["split"]): Rate(row["success"], row["low95"], row["high95"])
        for row in read_record(file, "oracle table")["rows"]
    }


def _behaviour(folder: Path, missing: Missing) -> dict[str, Rate]:
    for file in (folder / "datasets.json", folder / "worlds" / "datasets.json"):
        if file.exists():
            rows = [row for row in read_record(file, "table of datasets")["rows"] if row.get("success_ci95")]
            return {current_id(row["dataset"]): Rate(row["success_rate"], *row["success_ci95"]) for row in rows}
    missing.append(
        ("success of the policies that logged the data", f"because datasets -o {_name(folder)}/datasets.json")
    )
    return {}


def _paper(results: Sequence[Result]) -> dict[tuple[str, str], Rate]:
    """(method, task) -> success in the paper's tables; `because-paper` is the paper's BECAUSE too."""
    rates = {}
    for r in results:
        method = "because" if r.method == "because-paper" else r.method
        number = paper_success("overall", method, r.task) or paper_success("ablation", method, r.task)
        if number is not None:
            mean, half = number.mean / 100, (number.half or 0.0) / 100
            rates[r.method, r.task] = Rate(mean, max(mean - half, 0.0), min(mean + half, 1.0))
    return rates


def _graphs(folder: Path, grid: Grid, missing: Missing) -> list[dict[str, Any]]:
    graphs = {}
    for file in sorted([*(folder / "graphs").glob("*.json"), *(folder / "graphs").glob("*/graph.json")]):
        graph = read_record(file, "graph")
        if "dataset" in graph:
            dataset = current_id(graph["dataset"])
            graphs[dataset] = graph | {"dataset": dataset}
    for dataset in grid.datasets:
        if dataset not in graphs:
            name = short_name(dataset)
            command = f"because discover {name} --batches 10 -o {_name(folder)}/graphs/{name}"
            missing.append((f"the causal graph of {name}", command))
    return [graphs[dataset] for dataset in sorted(graphs)]


def _curves(folder: Path, missing: Missing) -> list[Curves]:
    """The learning curves of the kept runs."""
    curves = []
    for file in sorted((folder / "runs").glob(f"*/{METRICS}")):
        run = read_record(file.parent / RUN, "head of a run")
        curves.append(Curves.from_metrics(run["method"], current_id(run["dataset"]), read_metrics(file.parent)))
    if not curves:
        name = _name(folder)
        missing.append(("learning curves", f"because sweep SPEC -o {name} --work {name}/runs --keep-runs"))
    return curves


def _maps(folder: Path, missing: Missing) -> list[Maps]:
    maps = mean_maps(read_record(file, "cell") for file in sorted((folder / "cells").glob(f"*-{MEASURE}-*.json")))
    if not maps:
        missing.append(("energy maps", f"because paper fig-energy --results {_name(folder)}"))
    return maps


def _name(path: Path) -> str:
    """A path as a command names it that runs beside the results folder."""
    return path.name if path.suffix != ".json" else f"{path.parent.name}/{path.name}"


# Pictures ----------------------------------------------------------------------------------------------


def _pictures(
    grid: Grid, folder: Path, seconds: float, missing: Missing, advance: Callable[[], None]
) -> dict[str, Any]:
    """Films of each task, and the scenes that the method in focus failed most; drawn in the order of their use."""
    scenes = Scenes(folder, seconds)
    films: dict[tuple[str, str, str, int], Film] = {}
    failures: dict[str, list[Failure]] = {}
    wanted = dict.fromkeys(_films_of(grid, task)[k] for k in (1, 0) for task in grid.tasks)
    try:
        for key in sorted(wanted, key=lambda key: WORLDS[key[0]].slow):
            world, split, behaviour, spurious = key
            picture = scenes.film(world, split, behaviour, layouts(world, split, 1)[0], spurious)
            if picture is not None:
                law = "under the law of the data" if split == "I" else "with that law broken"
                end = "reaches the goal" if picture.reached else "does not reach the goal"
                films[key] = Film(f"The {behaviour} policy, {law}: {end}.", picture)
            advance()
        for task in grid.tasks:
            result = grid.result(grid.focus, task)
            if result is not None:
                failures[task] = _failures(result, scenes)
            advance()
    finally:
        scenes.close()
    if scenes.left_out:
        why = f" ({scenes.problem})" if scenes.problem else ""
        missing.append((f"{scenes.left_out} pictures{why}", f"because report {grid.name} --pictures 600"))
    by_task = {task: [films[key] for key in _films_of(grid, task) if key in films] for task in grid.tasks}
    return {"films": by_task, "failures": failures}


def _films_of(grid: Grid, task: str) -> list[tuple[str, str, str, int]]:
    """(world, split, behaviour, spurious) of two films: the policy that logged the data, and the expert in the task."""
    r = grid.one(task)
    return [(r.world, "I", r.policy, r.spurious), (r.world, r.split, "expert", r.spurious)]


def _failures(result: Result, scenes: Scenes) -> list[Failure]:
    """The scenes that fewest seeds solved; where each seed has scenes of its own, the first that a seed failed."""
    draws = [0] if result.draws is None else result.draws
    runs = len(result.outcomes) if result.draws is None else 1
    shares = [result.solved] if result.draws is None else [[float(s) for s in seed] for seed in result.outcomes]
    ranked = sorted((share, k, draw) for draw, own in zip(draws, shares, strict=False) for k, share in enumerate(own))
    failures = []
    for share, k, draw in ranked[:FAILURES]:
        if share < 1:
            place = layouts(result.world, result.split, k + 1, draw)[k]
            picture = scenes.start(result.world, result.split, place, result.spurious)
            if picture is not None:
                failures.append(Failure(k, round(share * runs), runs, picture))
    return failures
