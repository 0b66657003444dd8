"""A batch whose worlds are shared out among processes: for Lift, whose physics threads do not speed up by much.

Every process steps a batch of its own; what comes out does not depend on how many there are. They end with the
process that started them, however it ends.
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

LEAST = 25
"""Worlds that a process should have, or starting it takes longer than it saves."""


class ParallelBatch(BatchEnv):
    def __init__(
        self, world: type[World], batch: type[BatchEnv], split: str = "I", spurious: int = 1, processes: int = 2
    ):
        """`batch`: what each process steps."""
        self.world, self.batch = world, batch
        super().__init__(split, spurious)
        self.processes = processes
        self._team: list[tuple[Any, Connection]] = []

    def _place(self, seeds: Sequence[int]) -> None:
        wanted = max(1, min(self.processes, len(seeds) // LEAST))
        while len(self._team) < wanted:
            self._team.append(_start(self.batch, self.split, self.spurious))
        self._shares = np.array_split(np.arange(len(seeds)), len(self._team))
        placed = self._ask([("place", [seeds[n] for n in share]) for share in self._shares])
        self._state, self._goal = (np.concatenate(part) for part in list(zip(*placed, strict=True))[:2])
        each = [hidden for _, _, hidden in placed]
        self._hidden = {name: np.concatenate([np.asarray(h[name]) for h in each]) for name in each[0]}

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        self._state = np.concatenate(self._ask([("advance", (columns[s], active[s])) for s in self._shares]))

    def _ask(self, questions: list[tuple[str, Any]]) -> list[Any]:
        """All are asked before the first answer is awaited."""
        try:
            for (_, pipe), question in zip(self._team, questions, strict=True):
                pipe.send(question)
            return [pipe.recv() for _, pipe in self._team]
        except (EOFError, OSError) as error:
            raise BecauseError(
                f"A process that simulated {self.world.name} has died.",
                need="all of them.",
                fix="look at its message above; was it killed for want of memory?",
            ) from error

    def exact_state(self) -> np.ndarray:
        return self._state.copy()

    def exact_goal(self) -> np.ndarray:
        return self._goal.copy()

    def hidden(self) -> Hidden:
        return dict(self._hidden)

    def close(self) -> None:
        for process, pipe in self._team:
            pipe.close()
            process.join()
        self._team = []


def _start(*task: Any) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")  # forking a process that has started JAX's threads can hang
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, *task))
    process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection, make: type[BatchEnv], split: str, spurious: int) -> None:
    """In a process: answer until nobody asks any more."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is our parent's to handle
    batch = make(split, spurious)
    while True:
        try:
            what, told = pipe.recv()
        except EOFError:
            batch.close()
            return
        if what == "place":
            batch._place(told)
            pipe.send((batch.exact_state(), batch.exact_goal(), batch.hidden()))
        else:
            batch._advance(*told)
            pipe.send(batch.exact_state())
