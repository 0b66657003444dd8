"""Memory and descriptors of one process that computes the cells of a long sweep, one after the other."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from because_rl.errors import BecauseError
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.grid import Grid, jobs
from because_rl.experiments.grid.runner import Compute, Job, sweep
from because_rl.provenance import provenance
from because_rl.report.graph_figure import save

SETTLED = 50
"""Cells after which nothing may grow"""
TINY = {"steps": 4, "hidden": 4, "batch": 8}


@dataclass(frozen=True)
class Measured:
    """Computes cells as `compute` does, and notes after each what the process holds by then."""

    compute: Compute
    notes: list[dict[str, Any]]

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key, result in self.compute(job, missing):
            yield key, result
            self.notes.append({"cell": len(self.notes) + 1} | held())


def held() -> dict[str, Any]:
    """Resident memory in MiB, open descriptors and threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "memory_mib": round(pages * resource.getpagesize() / 2**20, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def soak(
    folder: Path,
    cells: int = 500,
    method: str = "ccil",
    root: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Compute tiny cells in this process, into the new folder `folder`.

    Returns a row per cell (what the process held after it), and what a hundred cells after the first 50 add to each.
    """
    if cells <= SETTLED or (folder / "cells").exists():
        need = f"more than {SETTLED} cells, since what grows is counted from there, and a new folder."
        raise BecauseError(f"Got {cells} cells and {folder}.", need=need, fix="pass --cells 500 --keep NEW.")
    grid = Grid(
        methods={method: TINY},
        worlds=("unlock",),
        policies=("medium",),
        splits=("I", "O"),
        subcases=False,
        seeds=(cells + 1) // 2,
        group=1,
        episodes=2,
        ratios=(0.05,),
        chunk=4,
    )
    rows: list[dict[str, Any]] = []
    compute = Measured(TrainAndEvaluate(root, folder / "work", compile_cache=folder / "programs"), rows)
    status = sweep(jobs(grid), compute, folder, workers=0, report=lambda status: report(status.done, status.total))
    if status.failed:
        reason = f"{status.failed} jobs failed."
        raise BecauseError(reason, need="all to finish.", fix=f"see the files in {folder / 'failed'}.")
    settled = rows[SETTLED:]
    growth = {
        name: float(np.polyfit([row["cell"] for row in settled], [row[name] for row in settled], 1)[0] * 100)
        for name in ("memory_mib", "descriptors", "threads")
    }
    return {"rows": rows, "growth_per_100": growth, "provenance": provenance(cells=cells, method=method)}


def draw_soak(result: dict[str, Any], path: Path) -> None:
    """Memory and descriptors against cells."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    for axes, name, label in zip(
        figure.subplots(1, 2), ("memory_mib", "descriptors"), ("resident memory (MiB)", "open descriptors"), strict=True
    ):
        axes.plot([row["cell"] for row in result["rows"]], [row[name] for row in result["rows"]], color="#0072b2")
        axes.axvline(SETTLED, color="#718096", linestyle=":", linewidth=1)
        axes.set(xlabel="cells computed", ylabel=label, ylim=(0, None))
    save(figure, path)
