"""``python -m benchmarks third-party``: problems that others wrote, with graphs that can be known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, deliver, make_table, progress_bar

app = typer.Typer(help="Problems of the RDDL repository: edge scores and returns.", no_args_is_help=True)

Keep = Annotated[Path, typer.Option(help="Folder for logs, fits and results, from which a later run resumes.")]
Problems = Annotated[list[str] | None, typer.Option("--problem", help="Problems; repeatable (eleven by a rule).")]
Behaviours = Annotated[
    list[str] | None, typer.Option("--behaviour", help="random, medium, confounded; repeatable (all).")
]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Seeds of the logs; repeatable (500).")]
RowCount = Annotated[int, typer.Option("--rows", help="Of each log.")]


@app.command("graphs", epilog="Example: python -m benchmarks third-party graphs --keep work/third --problem HVAC")
def bench_graphs(
    keep: Keep,
    problem: Problems = None,
    behaviour: Behaviours = None,
    seed: Seeds = None,
    rows: RowCount = 20_000,
    test: Annotated[str | None, typer.Option(help="Test of independence (as because fit chooses).")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Edge scores against graphs that perturbing the true model gives."""
    from benchmarks.third_party.graphs import graphs

    with progress_bar("Scoring graphs", "logs") as report:
        result = graphs(keep, problem or (), behaviour or (), seed or (500,), rows, test, report)
    shown = [
        {name: row[name] for name in ("problem", "behaviour", "seed")}
        | {name: f"{row['score'][name]:.3f}" for name in ("f1", "precision", "recall")}
        | {"undetermined": f"{row['undetermined']:.2f}", "seconds": f"{row['seconds']:.0f}"}
        for row in result["rows"]
    ]
    title = f"Edges, {rows} rows; mean F1 of the problems {result['mean_f1']:.3f}"
    deliver(result, output, as_json, make_table(title, shown, ("f1", "precision", "recall", "undetermined", "seconds")))
