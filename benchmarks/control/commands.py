"""The command ``python -m benchmarks control``."""

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
