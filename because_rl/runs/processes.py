"""Run a few long computations at once, each in a process of its own with its share of the cores.

Planning on a CPU is many small products: two processes with a core each are 1.5 times as fast as one
with two.
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
"""Called whenever a piece of the work is done."""


def worth_processes(tasks: int) -> bool:
    """Whether there is a core for each task, and no GPU, which the processes would have to share."""
    import jax

    return tasks > 1 and cores() >= tasks and jax.default_backend() == "cpu"


def run_in_processes(function: Callable[..., Any], tasks: Sequence[tuple], tick: Tick) -> list[Any]:
    """[function(*task, tick) for task in tasks], each in a process. The first that fails stops all.

    `function`, the tasks and the results must be picklable; `tick` is called in this process.
    """
    import jax

    # Spawned, not forked: forking a process that has started JAX's threads can hang.
    context = multiprocessing.get_context("spawn")
    cache = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    results: dict[int, Any] = {}
    running: dict[Any, int] = {}  # connection -> number of its task
    processes: list[Any] = []
    try:
        for k, task in enumerate(tasks):
            connection, child_end = context.Pipe()
            child_cores = sorted(_cores())[k :: len(tasks)]
            process = context.Process(target=_serve, args=(child_end, function, task, child_cores, cache))
            process.start()
            child_end.close()
            processes.append(process)
            running[connection] = k
        while running:
            ready: list[Any] = wait(list(running))
            for connection in ready:
                try:
                    kind, content = connection.recv()
                except (EOFError, OSError):
                    dead = processes[running[connection]]
                    dead.join()
                    raise BecauseError(
                        f"A worker process died (exit code {dead.exitcode}).",
                        need="it to end by itself.",
                        fix="look at its messages above; is there enough memory?",
                    ) from None
                if kind == "error":
                    raise content
                if kind == "result":
                    results[running.pop(connection)] = content
                else:
                    tick()
        return [results[k] for k in range(len(tasks))]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(_cores())


def _cores() -> set[int]:
    """The cores that this process may use; all of them where the system does not say (other than Linux)."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _serve(
    connection: Connection, function: Callable[..., Any], task: tuple, cores: Sequence[int], cache: str | None
) -> None:
    """The worker process. It ignores Ctrl-C, which its parent handles, and ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before XLA starts its threads: one for each of these cores
    if cache:
        from because_rl.runs.compilation import use_compilation_cache

        use_compilation_cache(Path(cache))
    try:
        connection.send(("result", function(*task, lambda: connection.send(("tick", None)))))
    except Exception as error:
        connection.send(("error", error))
