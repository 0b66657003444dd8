"""The command that explains a choice of a fitted agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import MAX_COUNT, RERUN, Json, Root, emit, interruptible, make_table, progress_bar


def explain(
    folder: Annotated[Path, typer.Argument(help="Folder of 'because fit' or 'because train'.")],
    row: Annotated[int, typer.Option(help="A row of the log, counted from 0 through all episodes.")],
    steps: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="How far futures are imagined.")] = 10,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Explain the agent's choice in one logged step: imagined futures, and the factors and edges it depends on.

    The planner is asked again with one thing changed at a time: without its penalty on uncertainty, with other values
    of a factor, without an edge of the causal graph. Writes a page into the folder's report.
    """
    from because_rl.runs.explain import explain as run
    from because_rl.runs.explain import future_rows, in_one_line, reason_rows

    with interruptible(RERUN), progress_bar("Asking", "questions") as progress:
        result = run(folder, row, root, steps, progress)
    if not as_json:
        emit(None, False, make_table("What the model expects", future_rows(result), wrap=("first action", "then")))
        if reasons := reason_rows(result):
            title = f"What the choice depends on ({result['measure']}; {result['unchanged']:.2f} with nothing changed)"
            emit(None, False, make_table(title, reasons, ("choice changes",), wrap=("then it would be",)))
        else:
            print("No single factor or edge changes the choice clearly.")
    rows = [
        {"quantity": "choice", "result": in_one_line(result["choice"])},
        {"quantity": "in", "result": f"row {row}: episode {result['episode']}, step {result['step']}"},
    ]
    emit(result, as_json, make_table(f"Open {result['page']}", rows))
