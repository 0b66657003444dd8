"""A few long computations at once, each in a process of its own with its share of the cores.

Planning on a CPU is many small products: two processes with a core each are half as fast again as one with two.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError

Tick = Callable[[], None]
"""To be called now and then: another piece is done."""


def worth_processes(tasks: int) -> bool:
    """Whether there are cores to share, and no GPU, which would have to be shared as well."""
    import jax

    return tasks > 1 and cores() >= tasks and jax.default_backend() == "cpu"


def run_in_processes(function: Callable[..., Any], tasks: Sequence[tuple], tick: Tick) -> list[Any]:
    """function(*task, tick) of each task, in their order. The first that fails stops all."""
    import jax

    # Spawned, not forked: forking a process that has started JAX's threads can hang.
    context = multiprocessing.get_context("spawn")
    programs = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    found: dict[int, Any] = {}
    busy: dict[Any, int] = {}
    team: list[Any] = []
    try:
        for k, task in enumerate(tasks):
            pipe, theirs = context.Pipe()
            mine = sorted(_cores())[k :: len(tasks)]
            process = context.Process(target=_serve, args=(theirs, function, task, mine, programs))
            process.start()
            theirs.close()
            team.append(process)
            busy[pipe] = k
        while busy:
            ready: list[Any] = wait(list(busy))
            for end in ready:
                try:
                    what, told = end.recv()
                except (EOFError, OSError):
                    died = team[busy[end]]
                    died.join()
                    raise BecauseError(
                        f"A process of ours died (exit code {died.exitcode}).",
                        need="it to end by itself.",
                        fix="look at its messages above; is there enough memory?",
                    ) from None
                if what == "failed":
                    raise told
                if what == "found":
                    found[busy.pop(end)] = told
                else:
                    tick()
        return [found[k] for k in range(len(tasks))]
    finally:
        for process in team:
            process.kill()
        for process in team:
            process.join()


def cores() -> int:
    """How many this process may use."""
    return len(_cores())


def _cores() -> set[int]:
    """The cores that this process may use; elsewhere than on Linux, their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _serve(
    pipe: Connection, function: Callable[..., Any], task: tuple, mine: Sequence[int], programs: str | None
) -> None:
    """In a process of ours. It leaves Ctrl-C to its parent, and dies with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, mine)  # XLA has not started its threads yet: there will be as many
    if programs:
        from because_rl.runs.compilation import use_compilation_cache

        use_compilation_cache(Path(programs))
    try:
        pipe.send(("found", function(*task, lambda: pipe.send(("tick", None)))))
    except Exception as error:
        pipe.send(("failed", error))
