"""A policy that d3rlpy learns in another environment and that acts here; see `d3rlpy_peer`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.algorithms.td3bc import TD3BCConfig
from because_rl.errors import BecauseError

PROGRAM = Path(__file__).with_name("d3rlpy_peer.py")
STEPS = 10_000


class Peer:
    """Answers observations (n, columns) with actions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.trained: dict[str, Any] = self._answer()
        """algorithm, seconds, versions"""

    def act(self, observations: np.ndarray) -> np.ndarray:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(np.asarray(observations, float).tolist()) + "\n")
        self._process.stdin.flush()
        return np.asarray(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise BecauseError(
                f"d3rlpy ended with status {self._process.wait()}; its messages are above.",
                need="the Python of an environment that has d3rlpy.",
                fix="make one as the docstring of benchmarks/third_party/d3rlpy_peer.py says.",
            )
        return json.loads(line)


@contextlib.contextmanager
def d3rlpy_policy(
    python: Path, log: Path, seed: int, steps: int = STEPS, config: TD3BCConfig | None = None
) -> Iterator[Peer]:
    """Train with the Python at `python`.

    `log`: NPZ of flat arrays (actions are numbers or columns), or the folder of a Minari dataset. `config`: what the
    peer's TD3+BC takes over of ours; None: d3rlpy's settings.
    """
    command = [str(python), str(PROGRAM), str(log), str(steps), str(seed)]
    if config is not None:
        command.append(json.dumps(asdict(config)))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Peer(process)
        finally:
            process.terminate()
