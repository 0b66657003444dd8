"""How commands talk: a result as a table or as JSON on stdout, progress on stderr, and the options that many share."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from because_rl.errors import BecauseError

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Root = Annotated[
    Path | None, typer.Option("--root", envvar="BECAUSE_HOME", help="Where datasets and runs live (~/.because-rl).")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Also write the result to this JSON file.")]

stderr = Console(stderr=True)


def emit(value: Any, as_json: bool, table: Table | None = None) -> None:
    """The result: JSON alone, or a table."""
    if as_json:
        print(json.dumps(value, indent=1, allow_nan=False))
    elif table is not None:
        # Wide enough for every column when stdout is a file or a pipe.
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def make_table(title: str, rows: list[dict[str, Any]], right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in rows[0] if rows else ("nothing here yet",):
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row.values()))
    return table


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "") -> Iterator[Any]:
    """Yields report(done, total); drawn on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=stderr) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def training_bar(label: str) -> Iterator[Any]:
    """Yields report(stage, done, total, metrics): a line for each stage, with its loss if it has one, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=stderr) as bar:
        lines: dict[str, Any] = {}

        def report(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
            if stage not in lines:
                lines[stage] = bar.add_task(f"{label}: {stage}", total=total, loss="")
            loss = f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""
            bar.update(lines[stage], completed=done, total=total, loss=loss)

        yield report


def setting(text: str) -> tuple[str, str]:
    """The two sides of ``--set name=value``."""
    key, equals, value = text.partition("=")
    if not equals:
        raise BecauseError(f"Got the setting {text!r}.", need="name=value.", fix="for example --set hidden=64.")
    return key.strip(), value.strip()


def deliver(result: dict[str, Any], output: Path | None, as_json: bool, table: Table) -> None:
    """The result, also kept in a file where one is asked for."""
    from because_rl.io import write_json

    if output is not None:
        write_json(output, result)
    emit(result, as_json, table)


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line; bad input ends with its explanation on stderr and exit code 2."""
    gc.set_threshold(200_000, 50, 100)  # tracing a program makes many small objects that stay: seconds of looking
    try:
        app()
    except BecauseError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
