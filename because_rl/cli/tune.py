"""The command ``because tune``: the same number of trials for every method, scored on development scenes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from because_rl.cli.completion import complete_methods
from because_rl.cli.console import RERUN, Json, Root, emit, exit_if_failed, interruptible, make_table, sweep_bar
from because_rl.cli.sweep import (
    Address,
    AnyCode,
    CompileCache,
    Engine,
    Gpus,
    NoRun,
    RetryFailed,
    Work,
    Workers,
    make_engine,
)


def tune(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas between them (all that have trials).", autocompletion=complete_methods
        ),
    ] = None,
    worlds: Annotated[str | None, typer.Option(help="Only these (all three).")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Behaviour policy of the training data: random, medium, expert (medium).")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Train the seeds 0, 1, ... (3).")] = None,
    episodes: Annotated[int | None, typer.Option(help="Development scenes, per seed (100).")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of cells and table (results/tuning; results/tiny/tuning)."),
    ] = None,
    work: Work = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the runs after they are scored.")] = False,
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = "auto",
    gpus: Gpus = 0.0,
    compile_cache: CompileCache = None,
    retry_failed: RetryFailed = False,
    no_run: NoRun = False,
    any_code: AnyCode = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small round of two cheap methods, in a minute.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Try four settings of every method on development scenes and report which a preset would take; changes no preset.

    If interrupted, the same command continues; several may share a folder.
    """
    from because_rl.experiments.grid.cells import missing_jobs
    from because_rl.experiments.grid.grid import TrainAndEvaluate
    from because_rl.experiments.grid.runner import failures, sweep
    from because_rl.experiments.tuning import tune as tuning
    from because_rl.experiments.tuning.table import format_settings, write_table

    names = {"methods": methods, "worlds": worlds}
    options: dict[str, Any] = {key: tuple(text.split(",")) for key, text in names.items() if text}
    options |= {key: v for key, v in (("policy", policy), ("seeds", seeds), ("episodes", episodes)) if v is not None}
    wanted = replace(tuning.TINY if tiny else tuning.Round(), **options)
    jobs = tuning.jobs(wanted)
    output = output or Path("results/tiny/tuning" if tiny else "results/tuning")
    missing = missing_jobs(jobs, output, any_code)
    place, count, processes = make_engine(engine, address, gpus, workers)
    compute = tuning.Develop(TrainAndEvaluate(root, work, keep_runs, compile_cache, processes), output, {})
    if not no_run:
        with interruptible(RERUN), sweep_bar("Tuning") as progress:
            sweep(missing, compute, output, workers=count, retry_failed=retry_failed, report=progress, engine=place)
            compute.tidy(missing, output)
    table, failed = write_table(wanted, jobs, output, any_code), failures(missing, output)
    rates = {(row["method"], row["world"], row["trial"]): f"{row['success']:.3f}" for row in table["rows"]}
    rows = [
        {"method": v["method"], "world": v["world"], "trials": f"{v['trials']} of {tuning.TRIALS}"}
        | {("preset", "1", "2", "3")[n]: rates.get((v["method"], v["world"], n), "-") for n in range(tuning.TRIALS)}
        | {"a preset would take": format_settings(v["settings"]), "noise": v["noise"] or "-"}
        for v in table["winners"]
    ]
    title = f"Success on development scenes; the settings of each trial are in {output / 'table.md'}"
    emit(
        {"results": str(output), **table, "failed": failed},
        as_json,
        make_table(title, rows, ("trials", "preset", "1", "2", "3")),
    )
    exit_if_failed(failed)
