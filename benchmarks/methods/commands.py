"""The commands ``python -m benchmarks exported``, ``penalties``, ``imitators`` and ``given``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, deliver, make_table, progress_bar, setting

app = typer.Typer()


@app.command("exported", epilog="Example: python -m benchmarks exported --keep work/exported -o exported.json")
def bench_exported(
    keep: Annotated[Path, typer.Option(help="Folder for logs, agents and rows, from which a later run resumes.")],
    case: Annotated[list[str] | None, typer.Option(help="cartpole, pendulum, unlock; repeatable (all).")] = None,
    states: Annotated[int, typer.Option(help="Logged states in which both decide.")] = 1000,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Does an exported agent act as the agent does, in a process without JAX?"""
    from benchmarks.methods.exported import CASES, exported

    with progress_bar("Acting", "cases") as report:
        result = exported(keep, case or CASES, states, report)
    rows = [{name: value for name, value in row.items() if name != "provenance"} for row in result["rows"]]
    deliver(result, output, as_json, make_table("Exported agents beside our own", rows, tuple(rows[0])[1:]))


@app.command(
    "penalties", epilog="Example: python -m benchmarks penalties unlock-medium --keep work/penalties --method mopo"
)
def bench_penalties(
    data: Annotated[str, typer.Argument(help="A recipe, such as unlock-medium.")],
    keep: Annotated[Path, typer.Option(help="Folder for datasets.")],
    seed: Annotated[int, typer.Option(help="Dataset seed, one for development: 500 to 599.")] = 500,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods with a penalty; repeatable (because, mopo, delphic, mnm ...).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of all that have it: 'world_steps=500'; repeatable.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """How much more than an ordinary step the worst plan pays for uncertainty, by method."""
    from benchmarks.methods.penalties import METHODS, penalties

    overrides = dict(setting(text) for text in settings or ())
    with progress_bar("Measuring", "methods") as report:
        result = penalties(data, seed, keep, method or METHODS, overrides, report)
    rows = [
        {name.replace("_", " "): value if isinstance(value, str) else f"{value:.3g}" for name, value in row.items()}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table(f"{data}, dataset seed {seed}", rows, tuple(rows[0])[2:]))


@app.command("imitators", epilog="Example: python -m benchmarks imitators unlock-expert --keep work/imitators")
def bench_imitators(
    data: Annotated[list[str], typer.Argument(help="Recipes, such as unlock-expert.")],
    keep: Annotated[Path, typer.Option(help="Folder for datasets.")],
    dataset_seed: Annotated[list[int] | None, typer.Option(help="500 to 599; repeatable (500).")] = None,
    method: Annotated[list[str] | None, typer.Option(help="ccil, icil (both); repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of training.")] = 1,
    episodes: Annotated[int, typer.Option(help="Development scenes for each seed.")] = 100,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Success of imitators in distribution beside that of the behaviour, without and with what tuning chose."""
    from benchmarks.methods.imitators import METHODS, imitators

    with progress_bar("Imitating", "trainings") as report:
        result = imitators(data, dataset_seed or (500,), keep, method or METHODS, seeds, episodes, report)
    rows = [
        {name: row[name] for name in ("dataset", "method", "settings")}
        | {name: f"{row[name]:.2f}" for name in ("behaviour", "success", "share")}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Imitators", rows, ("behaviour", "success", "share")))


@app.command("given", epilog="Example: python -m benchmarks given")
def bench_given(output: Output = None, as_json: Json = False) -> None:
    """What each method that plans in a model is given: encoders, proposals, value, vote, background, gates, penalty."""
    from benchmarks.methods.given import given

    result = given()
    deliver(result, output, as_json, make_table("What methods are given", result["rows"]))
