"""The experiments by name, and how to do them: run what is missing, then write what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import find, lacking
from because_rl.experiments.grid.grid import TrainAndEvaluate
from because_rl.experiments.grid.runner import Report, failures, sweep
from because_rl.experiments.paper import study
from because_rl.experiments.paper.energy import FIG_EBM
from because_rl.experiments.paper.energy_maps import FIG_ENERGY
from because_rl.experiments.paper.environments import FIG_ENVS, FIG_GRAPHS, TABLE_ORACLE
from because_rl.experiments.paper.knobs import FIG_COVERAGE, FIG_SAMPLES, FIG_SPURIOUS
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.mismatch import FIG_MISMATCH, TABLE_MISMATCH
from because_rl.experiments.paper.success import TABLE_ABLATION, TABLE_OVERALL

EXPERIMENTS = {
    "table-overall": TABLE_OVERALL,
    "table-ablation": TABLE_ABLATION,
    "fig-samples": FIG_SAMPLES,
    "fig-spurious": FIG_SPURIOUS,
    "table-mismatch": TABLE_MISMATCH,
    "fig-mismatch": FIG_MISMATCH,
    "fig-ebm": FIG_EBM,
    "fig-energy": FIG_ENERGY,
    "fig-graphs": FIG_GRAPHS,
    "fig-envs": FIG_ENVS,
    "fig-coverage": FIG_COVERAGE,
    "table-oracle": TABLE_ORACLE,
}


def chosen(name: str) -> list[str]:
    if name != "all" and name not in EXPERIMENTS:
        raise BecauseError(
            f"There is no experiment {name!r}.",
            need=f"'all' or one of {', '.join(EXPERIMENTS)}.",
            fix="correct the name.",
        )
    return list(EXPERIMENTS) if name == "all" else [name]


def run_missing(
    names: Iterable[str],
    scale: study.Scale,
    results: Path,
    training: TrainAndEvaluate,
    *,
    workers: int = 1,
    retry_failed: bool = False,
    any_code: bool = False,
    report: Report = lambda status: None,
) -> list[dict[str, Any]]:
    """Compute the cells that these experiments lack; returns the records of the jobs that failed.

    `any_code`: a cell that another version of the source computed is not computed again.
    """
    everything = study.merged(*(experiment.jobs(scale) for experiment in EXPERIMENTS.values()))
    owed = {job.key: tuple(job.cells) for job in lacking(everything, results, any_code)}
    jobs = lacking(study.merged(*(EXPERIMENTS[name].jobs(scale) for name in names)), results, any_code)
    compute = Measure(training, results, owed)
    sweep(jobs, compute, results, workers=workers, retry_failed=retry_failed, report=report)
    compute.tidy(jobs, results)
    return failures(jobs, results)


def write_all(
    names: Iterable[str],
    scale: study.Scale,
    results: Path,
    output: Path,
    any_code: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Write the files of each experiment from the cells that are there."""
    names = list(names)
    done: list[dict[str, Any]] = []
    for name in names:
        report(len(done), len(names))
        jobs = EXPERIMENTS[name].jobs(scale)
        cells = find(jobs, results, any_code)
        done.append(study.write(name, EXPERIMENTS[name], scale, jobs, cells, output))
    report(len(done), len(names))
    return done
