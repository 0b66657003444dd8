"""The command ``because paper``: the paper's tables and figures, and five of our own, from one folder of results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from because_rl.cli.completion import complete_methods
from because_rl.cli.console import (
    RERUN,
    Json,
    Root,
    emit,
    exit_if_failed,
    interruptible,
    make_table,
    progress_bar,
    stderr,
    sweep_bar,
)
from because_rl.cli.sweep import AnyCode, Together
from because_rl.errors import BecauseError

NAMES = (
    "table-overall, table-ablation, fig-samples, fig-spurious, table-mismatch, fig-mismatch, fig-ebm, fig-energy, "
    "fig-graphs, fig-envs, fig-coverage, table-oracle, table-visual, theorem"
)


def paper(
    name: Annotated[str, typer.Argument(help=f"'all', one of {NAMES}, or attribution, which 'all' leaves out.")],
    results: Annotated[
        Path | None, typer.Option(help="Folder of the results of 'because sweep' (results; results/tiny with --tiny).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the tables and figures (RESULTS/paper).")
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Use the results at hand; missing ones are shown as '-'.")
    ] = False,
    any_code: AnyCode = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small version of everything, in minutes.")] = False,
    grid: Annotated[
        str, typer.Option(help="Seeds, episodes and so on from a grid in YAML, as for 'because sweep'.")
    ] = "paper",
    methods: Annotated[
        str | None, typer.Option(help="Only these, with commas between them.", autocompletion=complete_methods)
    ] = None,
    worlds: Annotated[str | None, typer.Option(help="Only these.")] = None,
    policies: Annotated[str | None, typer.Option(help="Only data of these: random, medium, expert.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that share the work; 0: this one.")] = 1,
    together: Together = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the runs after they are measured.")] = False,
    work: Annotated[
        Path | None, typer.Option(help="Folder of the runs until they are measured (under the root).")
    ] = None,
    compile_cache: Annotated[Path | None, typer.Option(help="Folder of compiled programs (under the root).")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed jobs again.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Make a table or figure of the paper: data (CSV), text (Markdown), picture (SVG, PNG) and provenance (JSON).

    Runs what is missing through the sweep that all experiments share; if interrupted, the same command continues.
    'attribution' takes back what 'because' changes of the paper, switch by switch, on development data and scenes; its
    cells are in its own folder, and dataset seeds of a grid must be for development (500 to 599).
    """
    if tiny:  # compiling takes most of the time: optimising the programs costs more than it saves
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    from because_rl.datasets.paths import home_folder
    from because_rl.experiments.grid.compute import TrainAndEvaluate
    from because_rl.experiments.paper.catalogue import run_missing, select_experiments, write_all
    from because_rl.experiments.paper.scale import make_scale

    results = results or Path("results/tiny" if tiny else "results")
    output = output or results / "paper"
    cache = compile_cache or home_folder(root) / "programs"
    processes = max(1, (os.cpu_count() or 1) // max(workers, 1))
    choices = [tuple(text.split(",")) if text else () for text in (methods, worlds, policies)]
    if name == "attribution":
        return _attribution(
            *(output / name, tiny, grid, choices),
            {"root": root, "work": work, "keep_runs": keep_runs, "compile_cache": cache, "processes": processes},
            {"workers": workers, "retry_failed": retry_failed, "any_code": any_code, "no_run": no_run},
            *(together, as_json),
        )
    names = select_experiments(name)
    scale = make_scale(tiny, grid, *choices)
    if together is not None:
        scale = replace(scale, grid=replace(scale.grid, together=together))
    failed = []
    with interruptible(RERUN):
        if not no_run:
            compute = TrainAndEvaluate(root, work, keep_runs, cache, processes)
            with sweep_bar("Running") as progress:
                failed = run_missing(
                    *(names, scale, results, compute),
                    workers=workers,
                    retry_failed=retry_failed,
                    any_code=any_code,
                    report=progress,
                )
        with progress_bar("Writing", "tables and figures") as advance:
            written = write_all(names, scale, results, output, any_code, advance)
    rows = [
        {"name": row["name"], "cells": row["cells"], "missing": row["missing"]}
        | {"files": " ".join(sorted(Path(file).suffix for file in row["files"]))}
        for row in written
    ]
    emit(
        {"folder": str(output), "made": written, "failed": failed},
        as_json,
        make_table(f"In {output}", rows, ("cells", "missing")),
    )
    if no_run and not any(row["cells"] for row in written) and any(row["missing"] for row in written):
        stderr().print(
            f"There are no results of this version of the source in {results}: see --any-code.", markup=False
        )
    exit_if_failed(failed)


def _attribution(
    folder: Path,
    tiny: bool,
    grid: str,
    choices: Sequence[tuple[str, ...]],
    computation: Mapping[str, Any],
    options: Mapping[str, Any],
    together: int | None,
    as_json: bool,
) -> None:
    """`choices` are methods, worlds and policies; `computation` is of `Develop`, `options` of `tuning.tune.run`."""
    from because_rl.experiments import attribution
    from because_rl.experiments.tuning.tune import Develop, run

    methods, worlds, policies = choices
    if methods:
        raise BecauseError(f"Got the method {methods[0]!r}.", need="no method.", fix="leave --methods out.")
    size = attribution.make_size(tiny, grid, worlds, policies)
    together = size.datasets if together is None else together
    with interruptible(RERUN):
        with sweep_bar("Running") as progress:
            compute = Develop(**computation)
            failed = run(attribution.jobs(size), compute, folder, together=together, report=progress, **options)
        table = attribution.write_table(size, folder, options["any_code"])
    rows = [
        {"world": row["world"], "": row["kind"], "name": row["name"], "datasets": row["datasets"]}
        | {split: "-" if (rate := row[f"success_{split}"]) is None else f"{100 * rate:.1f}" for split in size.splits}
        for row in table["rows"]
        if row["settings"] is not None
    ]
    shown = make_table(f"Success in %; the tables are in {folder / 'table.md'}", rows, ("datasets", *size.splits))
    emit({"folder": str(folder), **table, "failed": failed}, as_json, shown)
    exit_if_failed(failed)
