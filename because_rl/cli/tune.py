"""The command ``because tune``: the same number of trials for every method, scored on development data and scenes."""

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
from because_rl.errors import BecauseError


def tune(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas between them (all that have trials).", autocompletion=complete_methods
        ),
    ] = None,
    worlds: Annotated[str | None, typer.Option(help="Only these (all three).")] = None,
    policies: Annotated[
        str | None, typer.Option(help="Behaviour policies of the training data (random,medium,expert).")
    ] = None,
    dataset_seeds: Annotated[
        str | None,
        typer.Option(
            help="A dataset of each policy for each of these seeds, from 500 to 599 (500,501). One cannot tell a lead "
            "from noise."
        ),
    ] = None,
    splits: Annotated[str | None, typer.Option(help="Splits of the development scenes (I,O).")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train the seeds 0, 1, ... on each dataset (1).")] = None,
    episodes: Annotated[int | None, typer.Option(help="Development scenes of a split, per seed (100).")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of cells and table (results/tuning/2; results/tiny/tuning)."),
    ] = None,
    work: Work = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the runs after they are scored.")] = False,
    workers: Workers = None,
    engine: Engine = "local",
    address: Address = "auto",
    gpus: Gpus = 0.0,
    compile_cache: CompileCache = None,
    together: Annotated[
        int | None,
        typer.Option(
            help="Datasets of a trial that a job trains on side by side, as one program on a GPU (all, 6 as a rule). "
            "Fewer need less memory; results are the same."
        ),
    ] = None,
    retry_failed: RetryFailed = False,
    no_run: NoRun = False,
    any_code: AnyCode = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small round of one cheap method, in a minute.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Try eight settings of every method on development data and scenes; print what presets would take.

    No preset is changed. If interrupted, the same command continues; several may share a folder.
    """
    from because_rl.experiments.tuning import tune as tuning
    from because_rl.experiments.tuning.table import format_choice, format_settings, write_table

    names = {"methods": methods, "worlds": worlds, "policies": policies, "splits": splits}
    options: dict[str, Any] = {key: tuple(text.split(",")) for key, text in names.items() if text}
    options |= {key: number for key, number in (("seeds", seeds), ("episodes", episodes)) if number is not None}
    if dataset_seeds:
        options["dataset_seeds"] = tuple(map(_whole_number, dataset_seeds.split(",")))
    wanted = replace(tuning.TINY if tiny else tuning.Round(), **options)
    jobs = tuning.jobs(wanted)
    output = output or Path("results/tiny/tuning" if tiny else "results/tuning/2")
    place, count, processes = make_engine(engine, address, gpus, workers)
    compute = tuning.Develop(root, work, keep_runs, compile_cache, processes)
    together = wanted.datasets if together is None else together
    with interruptible(RERUN), sweep_bar("Tuning") as progress:
        failed = tuning.run(
            *(jobs, compute, output),
            together=together,
            workers=count,
            any_code=any_code,
            no_run=no_run,
            retry_failed=retry_failed,
            report=progress,
            engine=place,
        )
    table = write_table(wanted, jobs, output, any_code)
    rates = {
        (row["method"], row["world"], row["trial"]): (f"{row['success']:.3f}", format_settings(row["settings"]))
        for row in table["rows"]
        if row["success"] is not None
    }
    rows = []
    for choice in table["choices"]:
        name = choice["method"], choice["world"]
        preset, best = (rates.get((*name, trial), ("-", "-")) for trial in (0, choice["best"]))
        rows.append(
            {"method": name[0], "world": name[1], "trials": f"{choice['trials']} of {tuning.TRIALS}"}
            | {"preset": preset[0], "best": best[0], "settings of the best": best[1], "noise": choice["noise"] or "-"}
        )
    title = f"Mean success over all tasks of development; every trial is in {output / 'table.md'}"
    shown = make_table(title, rows, ("trials", "preset", "best"))
    emit({"results": str(output), **table, "failed": failed}, as_json, shown)
    if not as_json:
        print("A preset would take:")
        for choice in table["choices"]:
            print(f"  {choice['method']} on {choice['world']}: {format_choice(choice)}")
    exit_if_failed(failed)


def _whole_number(text: str) -> int:
    if not text.strip().isdecimal():
        raise BecauseError(f"Got the dataset seed {text!r}.", need="whole numbers.", fix="give them as 500,501.")
    return int(text)
