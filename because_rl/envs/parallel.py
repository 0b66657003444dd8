"""A batch whose worlds are divided among processes: for Lift, whose physics gains little from threads.

Every process steps a batch of its own; the result does not depend on their number. The processes end when the
process that started them ends, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from because_rl.envs.batch import BatchEnv
from because_rl.envs.world import Hidden, World
from because_rl.errors import BecauseError

MIN_WORLDS_PER_PROCESS = 25
"""With fewer worlds, starting a process takes longer than it saves."""


class ParallelBatch(BatchEnv):
    def __init__(
        self, world: type[World], batch: type[BatchEnv], split: str = "I", spurious: int = 1, processes: int = 2
    ):
        """`batch`: the class of batch that each of the `processes` steps."""
        self.world, self.batch = world, batch
        super().__init__(split, spurious)
        self.processes = processes
        self._workers: list[tuple[Any, Connection]] = []

    def _place(self, seeds: Sequence[int]) -> None:
        needed = max(1, min(self.processes, len(seeds) // MIN_WORLDS_PER_PROCESS))
        while len(self._workers) < needed:
            self._workers.append(_start(self.batch, self.split, self.spurious))
        self._shares = np.array_split(np.arange(len(seeds)), len(self._workers))
        starts = self._request([("place", [seeds[n] for n in share]) for share in self._shares])
        state, goal, hidden = zip(*starts, strict=True)
        self._state, self._goal = np.concatenate(state), np.concatenate(goal)
        self._hidden = {name: np.concatenate([np.asarray(h[name]) for h in hidden]) for name in hidden[0]}

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        self._state = np.concatenate(self._request([("advance", (columns[s], active[s])) for s in self._shares]))

    def _request(self, requests: list[tuple[str, Any]]) -> list[Any]:
        """Send each process its request, then wait for all replies, so that the processes work at the same time."""
        try:
            for (_, pipe), request in zip(self._workers, requests, strict=True):
                pipe.send(request)
            replies = [pipe.recv() for _, pipe in self._workers]
        except (EOFError, OSError) as error:
            raise BecauseError(
                f"A process that simulated {self.world.name} has died.",
                need="every worker process to keep running.",
                fix="look for its error message above; it may have been killed for lack of memory.",
            ) from error
        for reply in replies:
            if isinstance(reply, BecauseError):
                raise reply
        return replies

    def exact_state(self) -> np.ndarray:
        return self._state.copy()

    def exact_goal(self) -> np.ndarray:
        return self._goal.copy()

    def hidden(self) -> Hidden:
        return dict(self._hidden)

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.join()
        self._workers = []


def _start(batch: type[BatchEnv], split: str, spurious: int) -> tuple[Any, Connection]:
    """A new process that serves a batch, and our end of the pipe to it."""
    context = multiprocessing.get_context("spawn")  # forking a process that has started JAX's threads can hang
    parent_end, child_end = context.Pipe()
    process = context.Process(target=_serve, args=(child_end, batch, split, spurious))
    process.start()
    child_end.close()
    return process, parent_end


def _serve(pipe: Connection, batch_class: type[BatchEnv], split: str, spurious: int) -> None:
    """Main loop of a process: answer requests until the parent closes its end of the pipe."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    try:
        batch = batch_class(split, spurious)
    except BecauseError as error:  # the simulator is not installed, for instance
        pipe.recv()
        return pipe.send(error)
    while True:
        try:
            command, argument = pipe.recv()
        except EOFError:
            batch.close()
            return
        if command == "place":
            batch._place(argument)
            pipe.send((batch.exact_state(), batch.exact_goal(), batch.hidden()))
        else:
            columns, active = argument
            batch._advance(columns, active)
            pipe.send(batch.exact_state())
