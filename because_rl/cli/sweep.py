"""The commands for many runs: ``because sweep`` trains and evaluates a grid, ``because compare`` compares two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from because_rl.cli.completion import complete_methods
from because_rl.cli.console import (
    RERUN,
    Json,
    Output,
    Root,
    deliver,
    emit,
    exit_if_failed,
    interruptible,
    make_table,
    setting,
    sweep_bar,
)
from because_rl.errors import BecauseError

# Options of all commands that run cells
Work = Annotated[Path | None, typer.Option(help="Folder of the runs until they are evaluated (under the root).")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that share the work (1; with Ray: all the cluster has); 0: run in this process."),
]
Engine = Annotated[str, typer.Option(help="Where jobs run: 'local' or 'ray'.")]
Address = Annotated[str, typer.Option(help="HOST:PORT of the Ray cluster ('auto': the local one).")]
Gpus = Annotated[float, typer.Option(help="With Ray: GPUs per job, such as 0.25.")]
CompileCache = Annotated[Path | None, typer.Option(help="Folder where compiled programs are shared.")]
Together = Annotated[
    int | None,
    typer.Option(help="Datasets of a world that a job trains on side by side, as one program on a GPU (1)."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run failed jobs again.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Only write the table of the results at hand.")]
AnyCode = Annotated[
    bool,
    typer.Option("--any-code", help="Also use results of other versions of the source; run only what no version has."),
]


def sweep(
    spec: Annotated[str, typer.Argument(help="A grid in YAML, or 'paper': 18 tasks, 7 methods.")],
    methods: Annotated[
        str | None, typer.Option(help="Only these, with commas between them.", autocompletion=complete_methods)
    ] = None,
    worlds: Annotated[str | None, typer.Option(help="Only these.")] = None,
    policies: Annotated[str | None, typer.Option(help="Only these: random, medium, expert.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train the seeds 0, 1, ... (10).")] = None,
    episodes: Annotated[int | None, typer.Option(help="Evaluation episodes per seed and split (100).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="'hidden=64' for all methods, 'mopo:members=3' for one.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = Path("results"),
    work: Work = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the runs after evaluation.")] = False,
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = "auto",
    gpus: Gpus = 0.0,
    compile_cache: CompileCache = None,
    together: Together = None,
    retry_failed: RetryFailed = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
    no_run: NoRun = False,
    any_code: AnyCode = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train and evaluate a whole grid, each cell once. If interrupted, the same command continues."""
    from because_rl.experiments.grid import grid as grids
    from because_rl.experiments.grid.cells import join_jobs, missing_jobs
    from because_rl.experiments.grid.compare import TABLE, write_table
    from because_rl.experiments.grid.compute import TrainAndEvaluate
    from because_rl.experiments.grid.runner import failures, unfinished_jobs
    from because_rl.experiments.grid.runner import sweep as run

    names = {key: text.split(",") for key, text in (("worlds", worlds), ("policies", policies)) if text}
    options = (("seeds", seeds), ("episodes", episodes), ("together", together))
    numbers = {key: n for key, n in options if n is not None}
    grid = grids.read_grid(spec, names | numbers)
    grid = grids.choose(grid, methods.split(",") if methods else (), dict(setting(text) for text in settings or ()))
    jobs = grids.jobs(grid)
    wanted = join_jobs(missing_jobs(jobs, output, any_code), grid.together)
    if dry_run:
        failed = {failure["job"] for failure in failures(wanted, output)}
        todo = {job.key for job in unfinished_jobs(wanted, output)} | (failed if retry_failed else set())
        shown = wanted + [job for job in jobs if not any(job.cells.keys() & part.cells.keys() for part in wanted)]
        rows = [
            {"job": job.key, "cells": len(job.cells)}
            | {"state": "to run" if job.key in todo else "failed" if job.key in failed else "finished"}
            for job in shown
        ]
        return emit(rows, as_json, make_table(f"{len(todo)} of {len(shown)} jobs to run", rows, ("cells",)))
    place, count, processes = make_engine(engine, address, gpus, workers)
    compute = TrainAndEvaluate(root, work, keep_runs, compile_cache, processes)
    if not no_run:
        with interruptible(RERUN), sweep_bar(Path(spec).stem) as progress:
            run(wanted, compute, output, workers=count, retry_failed=retry_failed, report=progress, engine=place)
            compute.tidy(wanted, output)
    (file, results), failed_jobs = write_table(jobs, output, any_code), failures(wanted, output)
    rows = [
        {"method": r["method"], "task": r["task"], "seeds": len(r["seeds"]), "success": f"{r['success']:.3f}"}
        | {"95%": f"[{r['low95']:.3f}, {r['high95']:.3f}]", "steps": "-" if r["steps"] is None else f"{r['steps']:.1f}"}
        for r in results
    ]
    title = f"Written to {file}" + ("" if file.name == TABLE else f"; {TABLE} has other rows too, and stays as it is")
    table = make_table(title, rows, ("seeds", "success", "95%", "steps"))
    emit({"results": str(output), "table": str(file), "rows": results, "failed": failed_jobs}, as_json, table)
    exit_if_failed(failed_jobs)


def make_engine(name: str, address: str, gpus: float, workers: int | None) -> tuple[Any, int, int]:
    """The engine (None: local), its number of workers, and the processes that each may start for slow simulators."""
    if name == "ray":
        from because_rl.experiments.grid.ray_engine import RayEngine

        if not 0 <= gpus < float("inf"):
            raise BecauseError(f"Got {gpus} GPUs.", need="0 or more.", fix="for example --gpus 0.25.")
        return RayEngine(address, gpus), workers or 0, 1
    if name != "local":
        raise BecauseError(f"There is no engine {name!r}.", need="'local' or 'ray'.", fix="correct --engine.")
    if address != "auto" or gpus:
        raise BecauseError("Got --address or --gpus.", need="a Ray cluster for them.", fix="add --engine ray.")
    count = 1 if workers is None else workers
    return None, count, max(1, (os.cpu_count() or 1) // max(count, 1))


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="Results: a sweep's folder or table, a run, an evaluation; ':METHOD' picks one of several."
        ),
    ],
    b: Annotated[str, typer.Argument(help="The results to compare with, in the same form.")],
    two_sided: Annotated[bool, typer.Option("--two-sided", help="Test for any difference, not for A > B.")] = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Is A better than B? Task by task, with tests over seeds and over scenes, adjusted for their number (Holm)."""
    from because_rl.experiments.grid.compare import compare as compare_results
    from because_rl.experiments.grid.compare import read_results

    result = {"a": a, "b": b} | compare_results(
        read_results(a), read_results(b), "two-sided" if two_sided else "greater"
    )
    shown = (("p", "p"), ("Holm", "p_holm"), ("p by scene", "paired_p"), ("its Holm", "paired_p_holm"))
    rows = [
        {"task": r["task"], "A": f"{r['a']:.3f}", "B": f"{r['b']:.3f}", "A - B": f"{r['difference']:+.3f}"}
        | {"95%": "-" if r["p"] is None else f"[{r['low95']:+.3f}, {r['high95']:+.3f}]"}
        | {title: "-" if r[name] is None else f"{r[name]:.2g}" for title, name in shown}
        for r in result["rows"]
    ]
    o = result["overall"]
    chance = o["probability_of_improvement"]
    title = (
        f"A {o['a']:.3f}, B {o['b']:.3f} over {o['tasks']} tasks; A higher on {o['higher']}, significantly on "
        f"{o['better']}; chance that a run of A beats one of B: "
        f"{chance['value']:.2f} [{chance['low']:.2f}, {chance['high']:.2f}]"
    )
    deliver(result, output, as_json, make_table(title, rows, tuple(rows[0])[1:]))
