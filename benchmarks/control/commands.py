"""The commands ``python -m benchmarks control`` and ``td3bc``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, deliver, make_table, progress_bar, setting

app = typer.Typer()


@app.command("control", epilog="Example: python -m benchmarks control --keep work/control --problem pendulum")
def bench_control(
    keep: Annotated[Path, typer.Option(help="Folder for logs, fits and results, from which a later run resumes.")],
    problem: Annotated[
        list[str] | None, typer.Option(help="pendulum, cartpole, acrobot, mountaincar (all); industrial.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seeds of the logs; repeatable (0).")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds trained as one program.")] = 3,
    episodes: Annotated[int, typer.Option(help="Episodes in the real environment.")] = 50,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of BECAUSE: 'hidden=128'; repeatable.")
    ] = None,
    td3bc: Annotated[bool, typer.Option("--td3bc", help="Also train our TD3+BC on the logs.")] = False,
    d3rlpy: Annotated[Path | None, typer.Option(help="Also that of d3rlpy: the Python of its environment.")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Policies of 'because fit' beside the operators of their logs, in Gymnasium's classic control."""
    from benchmarks.control.run import control

    overrides = {name: str(value) for name, value in (setting(text) for text in settings or ())}
    with progress_bar("Controlling", "logs") as report:
        result = control(keep, problem or (), seed or (0,), seeds, episodes, overrides, report, td3bc, d3rlpy)
    rows = [
        {name: row[name] for name in ("problem", "seed")}
        | {"operator": f"{row['operator']:.1f}", "policy": f"{row['policy']:.1f}", "p": f"{row['p']:.2g}"}
        | {"better": "yes" if row["better"] else "no", "fit": f"{row['fit_seconds']:.0f} s"}
        | {other: f"{row[other]['policy']:.1f}" for other in ("td3bc", "d3rlpy") if other in row}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Mean returns", rows, ("operator", "policy", "p", "fit")))


@app.command("td3bc", epilog="Example: python -m benchmarks td3bc --keep work/td3bc --d3rlpy d3/bin/python")
def bench_td3bc(
    keep: Annotated[Path, typer.Option(help="Folder for datasets and returns, from which a later run resumes.")],
    d3rlpy: Annotated[Path, typer.Option(help="The Python of an environment with d3rlpy and Minari.")],
    seeds: Annotated[int, typer.Option(help="Seeds of training.")] = 3,
    episodes: Annotated[int, typer.Option(help="Episodes in the real environment, for each seed.")] = 20,
    steps: Annotated[int, typer.Option(help="Gradient steps of both.")] = 10_000,
    hidden: Annotated[int, typer.Option(help="Width of the networks of both.")] = 64,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Our TD3+BC beside that of d3rlpy, on one Minari dataset of a mediocre operator of Pendulum."""
    from benchmarks.control.td3bc import td3bc_beside_d3rlpy

    with progress_bar("Training", "trainings") as report:
        result = td3bc_beside_d3rlpy(keep, d3rlpy, seeds, episodes, steps, hidden, report)
    rows = [
        {"learner": row["learner"], "return": f"{row['return']:.1f}"}
        | {"per seed": ", ".join(f"{one:.1f}" for one in row["per_seed"])}
        | {"difference": f"{row['difference']:.1f}" if "p" in row else "", "p": f"{row['p']:.2g}" if "p" in row else ""}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Mean returns", rows, ("return", "difference", "p")))
