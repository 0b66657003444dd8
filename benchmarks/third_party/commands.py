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
        | {"assumed": f"{row['score_assumed']['f1']:.3f}", "without": f"{row['score_without_own_past']['f1']:.3f}"}
        | {"undetermined": f"{row['undetermined']:.2f}", "seconds": f"{row['seconds']:.0f}"}
        for row in result["rows"]
    ]
    means = [f"{result[key]:.3f}" for key in ("mean_f1", "mean_f1_assumed", "mean_f1_without_own_past")]
    title = (
        f"Edges that {rows} rows establish; mean F1 of the problems {means[0]}"
        f" ({means[1]} if a factor's own past is assumed, {means[2]} without own pasts)"
    )
    columns = ("f1", "precision", "recall", "assumed", "without", "undetermined", "seconds")
    deliver(result, output, as_json, make_table(title, shown, columns))


@app.command("returns", epilog="Example: python -m benchmarks third-party returns --keep work/third --problem HVAC")
def bench_returns(
    keep: Keep,
    problem: Problems = None,
    behaviour: Behaviours = None,
    seed: Seeds = None,
    method: Annotated[list[str] | None, typer.Option(help="planner, because, mopo, td3bc; repeatable (all).")] = None,
    training_seeds: Annotated[int, typer.Option(help="Of each method.")] = 3,
    episodes: Annotated[int, typer.Option(help="In the true model, for each training seed.")] = 20,
    rows: RowCount = 20_000,
    d3rlpy: Annotated[Path | None, typer.Option(help="The Python of an environment with d3rlpy.")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Policies learned from logs, in the true model, beside the behaviours of the logs."""
    from benchmarks.third_party.returns import compare_returns

    chosen = problem or (), behaviour or (), seed or (500,), method or ()
    with progress_bar("Comparing returns", "policies") as report:
        result = compare_returns(keep, *chosen, training_seeds, episodes, rows, d3rlpy, report)
    shown = [
        {name: row[name] for name in ("problem", "behaviour", "seed", "method")}
        | {"logged": f"{row['logged']:.1f}", "return": f"{row['return']:.1f}", "verdict": row["verdict"]}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Mean returns", shown, ("logged", "return")))
