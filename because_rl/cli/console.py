"""What all commands share: options, results on stdout (a table or JSON), progress and errors on stderr."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from because_rl.cli.signals import announced, exit_code, interrupt_of, signals_handled
from because_rl.errors import BecauseError

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Root = Annotated[
    Path | None, typer.Option("--root", envvar="BECAUSE_HOME", help="Where datasets and runs live (~/.because-rl).")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Also write the result to this JSON file.")]


def _set_max_gb(gigabytes: float | None) -> None:
    """For this process and those that it starts; whatever reads files looks it up there."""
    from because_rl.reading import MAX_GB, max_bytes

    if gigabytes is not None:
        os.environ[MAX_GB] = str(gigabytes)
        max_bytes()


MaxGB = Annotated[
    float | None,
    typer.Option(
        "--max-gb", envvar="BECAUSE_MAX_GB", callback=_set_max_gb, help="The most that one file may hold, in GB (4)."
    ),
]

RERUN = "Nothing is lost: run the same command again to continue."
RESUME = "Run the same command with --resume to continue."
MAX_SEEDS, MAX_COUNT = 1000, 10**7
"""Of seeds, and of episodes, steps and rounds: more is a slip of the keyboard, and might take all memory."""
EVERY = 10.0
"""Seconds between two lines of progress where stderr is not a terminal."""


def stderr() -> Console:
    """A console on the present sys.stderr."""
    return Console(stderr=True)


def emit(value: Any, as_json: bool, table: Table | None = None) -> None:
    """Print the result on stdout: `value` as JSON, or the table."""
    if as_json:
        print(json.dumps(value, indent=1, allow_nan=False))
    elif table is not None:
        # Wide enough for every column when stdout is a file or a pipe.
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_notes(notes: Iterable[str]) -> None:
    """On stdout, a line each: what was left out of a log or filled in while reading it."""
    for note in notes:
        print(f"Note: {note}.")


def deliver(result: dict[str, Any], output: Path | None, as_json: bool, table: Table) -> None:
    """Print the result as `emit` does and, if `output` is given, write it to that JSON file."""
    from because_rl.io import remove_leftovers, write_json

    if output is not None:
        remove_leftovers(output.parent)
        write_json(output, result)
    emit(result, as_json, table)


def make_table(
    title: str, rows: list[dict[str, Any]], right: tuple[str, ...] = (), wrap: tuple[str, ...] = ()
) -> Table:
    """A table with the keys of the first row as columns.

    Those named in `right` are aligned to the right, those in `wrap` may take several lines.
    All text is shown as it is: rich would read a name in square brackets as markup and drop it.
    """
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for column in rows[0] if rows else ("nothing here yet",):
        table.add_column(escape(column), justify="right" if column in right else "left", no_wrap=column not in wrap)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row.values()))
    return table


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; yields report(done, total)."""
    with _progress(TextColumn(unit)) as bar:
        task = bar.add_task(label, total=None)
        bar.update(task)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def training_bar(label: str) -> Iterator[Callable[[str, int, int, dict[str, float]], None]]:
    """One progress bar per stage of training, with its loss; yields report(stage, done, total, metrics)."""
    with _progress(TextColumn(""), TextColumn("{task.fields[loss]}")) as bar:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(f"{label}: {stage}", total=total, loss="")
            loss = f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""
            bar.update(tasks[stage], completed=done, total=total, loss=loss)

        yield report


@contextlib.contextmanager
def sweep_bar(label: str) -> Iterator[Callable[[Any], None]]:
    """A progress bar of a grid's cells, with the jobs running and failed; yields report(status)."""
    jobs = TextColumn("{task.fields[running]} running, {task.fields[failed]} failed")
    with _progress(TextColumn("cells"), jobs) as bar:
        tasks: list[Any] = []

        def report(status: Any) -> None:
            fields = {"running": len(status.running), "failed": status.failed}
            if not tasks:  # cells finished by an earlier run are no measure of this run's speed
                tasks.append(bar.add_task(label, total=status.total, completed=status.done, **fields))
            bar.update(tasks[0], completed=status.done, **fields)

        yield report


class ProgressLines(Progress):
    """Progress as lines of text, where stderr is a file or a pipe.

    A line for the stage at work about every `EVERY` seconds, whether it has advanced or not, and one when it is done.
    """

    def __init__(self, *columns: TextColumn):
        super().__init__(*columns, disable=True)
        self._file, self._texts, self._ended = sys.stderr, columns, threading.Event()
        self._at_work: TaskID | None = None
        self._done: set[TaskID] = set()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, task_id: TaskID, *arguments: Any, **changes: Any) -> None:
        super().update(task_id, *arguments, **changes)
        self._at_work = task_id
        if self.tasks[task_id].finished and task_id not in self._done:
            self._done.add(task_id)
            self._print(task_id)

    def _repeat(self) -> None:
        while not self._ended.wait(EVERY):
            task_id = self._at_work
            if task_id is not None and task_id not in self._done:
                self._print(task_id)

    def _print(self, task_id: TaskID) -> None:
        task = self.tasks[task_id]
        unit, *texts = (column.text_format.format(task=task) for column in self._texts)
        count = "starting" if task.total is None else f"{task.completed:.0f} of {task.total:.0f} {unit}".rstrip()
        parts = filter(None, (count, *texts, f"{task.elapsed or 0:.0f} s"))
        print(f"{task.description}: {', '.join(parts)}", file=self._file, flush=True)


def _progress(*columns: TextColumn) -> Progress:
    """A bar on a terminal, else lines; the first of `columns` is the unit of what is counted."""
    if not stderr().is_terminal:
        return ProgressLines(*columns)
    first = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    return Progress(*first, *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=stderr())


def setting(text: str) -> tuple[str, str]:
    """The name and the value in ``--set name=value``."""
    key, equals, value = text.partition("=")
    if not equals:
        raise BecauseError(f"Got the setting {text!r}.", need="name=value.", fix="for example --set hidden=64.")
    return key.strip(), value.strip()


@contextlib.contextmanager
def interruptible(how_to_continue: str = "") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into exit code 130 or 143, and say on stderr how to continue."""
    try:
        yield
    except BaseException as error:
        interrupt = None if isinstance(error, typer.Exit) else interrupt_of(error)
        if interrupt is None:
            raise
        announced.set()
        stderr().print(f"Interrupted. {how_to_continue}".rstrip(), markup=False, soft_wrap=True)
        raise typer.Exit(exit_code(interrupt)) from None


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """A command that says so when it is interrupted, wherever it is."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        with interruptible():
            function(*arguments, **options)

    return run


def exit_if_failed(failures: Sequence[Mapping[str, Any]]) -> None:
    """Name each failed job and its reason on stderr, and end with exit code 1; nothing if none failed."""
    for failure in failures:
        print(f"because: {failure['job']} failed: {failure['reason']}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line; bad input ends with its explanation on stderr and exit code 2."""
    # Tracing a JAX program makes many small objects that stay: with the default thresholds the garbage collector
    # takes seconds to look at them again and again.
    gc.set_threshold(200_000, 50, 100)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where the locale has no such letter
    try:
        _check_arguments()
        with signals_handled(name):
            app(prog_name=name)
    except BecauseError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        _exit_without_memory(name)
    except (Exception, KeyboardInterrupt) as error:
        if type(error).__name__ == "JaxRuntimeError" and "out of memory" in str(error).lower():
            _exit_without_memory(name)
        interrupt = interrupt_of(error)
        if interrupt is None:
            raise
        print(f"{name}: interrupted.", file=sys.stderr)
        sys.exit(exit_code(interrupt))


def _check_arguments() -> None:
    """Refuse arguments that are no UTF-8, as the names of files may be: no page or record could name them."""
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise BecauseError(
                f"Got the argument {argument!a}.",
                need="text in UTF-8 and a locale that has it.",
                fix="rename the file.",
            ) from error


def _exit_without_memory(name: str) -> NoReturn:
    need = "Needed: more memory, or less to compute. Fix: fewer seeds, smaller layers, batches or populations."
    print(f"{name}: The memory of this machine is used up. {need}", file=sys.stderr)
    sys.exit(2)
