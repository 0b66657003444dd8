"""The paper's experiments by name: run their missing cells, and write their tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import find_cells, join_jobs, missing_jobs
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.runner import Report, failures, sweep
from because_rl.experiments.paper.energy_maps import FIG_ENERGY
from because_rl.experiments.paper.energy_training import FIG_EBM
from because_rl.experiments.paper.environments import FIG_ENVS, FIG_GRAPHS, TABLE_ORACLE
from because_rl.experiments.paper.experiment import merge_jobs, write_experiment
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.mismatch import FIG_MISMATCH, TABLE_MISMATCH
from because_rl.experiments.paper.scale import Scale
from because_rl.experiments.paper.sensitivity import FIG_COVERAGE, FIG_SAMPLES, FIG_SPURIOUS
from because_rl.experiments.paper.success import TABLE_ABLATION, TABLE_OVERALL
from because_rl.experiments.paper.theorem import THEOREM
from because_rl.experiments.paper.visual import TABLE_VISUAL

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
    "table-visual": TABLE_VISUAL,
    "theorem": THEOREM,
}


def select_experiments(name: str) -> list[str]:
    """The experiments that a command names: one, or all for 'all'."""
    if name != "all" and name not in EXPERIMENTS:
        raise BecauseError(
            f"There is no experiment {name!r}.",
            need=f"'all', 'attribution' or one of {', '.join(EXPERIMENTS)}.",
            fix="correct the name.",
        )
    return list(EXPERIMENTS) if name == "all" else [name]


def run_missing(
    names: Iterable[str],
    scale: Scale,
    results: Path,
    training: TrainAndEvaluate,
    *,
    workers: int = 1,
    retry_failed: bool = False,
    any_code: bool = False,
    report: Report = lambda status: None,
) -> list[dict[str, Any]]:
    """Compute the missing cells of these experiments into the folder `results`, by `training`.

    With `any_code`, a cell that another version of the source computed is not computed again. `workers`,
    `retry_failed` and `report` are those of `sweep`. Returns the records of the jobs that failed.
    """
    all_jobs = merge_jobs(*(experiment.jobs(scale) for experiment in EXPERIMENTS.values()))
    wanted = {job.key: tuple(job.cells) for job in missing_jobs(all_jobs, results, any_code)}
    jobs = missing_jobs(merge_jobs(*(EXPERIMENTS[name].jobs(scale) for name in names)), results, any_code)
    jobs = join_jobs(jobs, scale.grid.together)
    compute = Measure(training, results, wanted)
    sweep(jobs, compute, results, workers=workers, retry_failed=retry_failed, report=report)
    compute.tidy(jobs, results)
    return failures(jobs, results)


def write_all(
    names: Iterable[str],
    scale: Scale,
    results: Path,
    output: Path,
    any_code: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Write the files of each experiment into `output`, from the finished cells in `results`.

    `report` is called with the number of experiments done and their total. Returns a summary of each.
    """
    names = list(names)
    done: list[dict[str, Any]] = []
    for name in names:
        report(len(done), len(names))
        jobs = EXPERIMENTS[name].jobs(scale)
        cells = find_cells(jobs, results, any_code)
        done.append(write_experiment(name, EXPERIMENTS[name], scale, jobs, cells, output))
    report(len(done), len(names))
    return done
