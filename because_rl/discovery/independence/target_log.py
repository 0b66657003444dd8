"""The targets that a test has finished: reported one by one, and kept in a folder so that a later run takes them over.

A file holds the evidence on one target. Its name contains a hash of all that decides it (rows, factors, settings of the
test, seed, revision of the code), so what is read is never about other data.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.io import arrays_sha256, read_arrays, sha256, write_arrays
from because_rl.provenance import revision

FORMAT = 1
"""Of the files; another one where a change of the test makes older evidence invalid."""
NUMBERS = ("p", "statistic", "effect", "detectable")


class Counter:
    """Counts what is finished, in any thread, and reports (done, total) each time and at the start."""

    def __init__(self, report: Callable[[int, int], None], total: int):
        self._report, self._total, self._lock = report, total, threading.Lock()
        self.done = 0
        report(0, total)

    def __call__(self, finished: int = 1) -> None:
        with self._lock:
            self.done += finished
            if finished:
                self._report(self.done, self._total)


@dataclass(frozen=True)
class TargetLog:
    """By default it neither reports nor keeps anything."""

    report: Callable[[], None] = lambda: None
    """called after each finished target, in any thread"""
    folder: Path | None = None
    key: str = ""
    """`evidence_key` of what is tested"""

    def recall(self, j: int, out: Evidence) -> bool:
        """Write column j of the evidence from its file, and whether there was one; a damaged file counts as none."""
        file = self._file(j)
        if file is None or not file.exists():
            return False
        try:
            arrays = read_arrays(file)
        except BecauseError:
            return False
        texts = json.loads(arrays.pop("texts").tobytes())
        for name in NUMBERS:
            getattr(out, name)[:, j] = arrays[name]
        for name in ("why", "needs"):
            getattr(out, name).update({(source, texts["target"]): text for source, text in texts[name].items()})
        self.report()
        return True

    def keep(self, j: int, target: str, out: Evidence) -> None:
        """Column j of the evidence, about this target, is finished: write its file and report it."""
        file = self._file(j)
        if file is not None:
            texts = {
                name: {source: text for (source, to), text in list(getattr(out, name).items()) if to == target}
                for name in ("why", "needs")
            }
            arrays = {name: getattr(out, name)[:, j].copy() for name in NUMBERS}
            packed = np.frombuffer(json.dumps({"target": target} | texts).encode(), np.uint8)
            write_arrays(file, arrays | {"texts": packed})
        self.report()

    def _file(self, j: int) -> Path | None:
        return None if self.folder is None else Path(self.folder) / f"{self.key[:32]}-{j}.npz"


def evidence_key(variables: Variables, test: IndependenceTest, seed: int) -> str:
    """A hash of all that decides the evidence."""
    arrays = {f"x{k}": a for k, a in enumerate(variables.x)} | {f"y{k}": a for k, a in enumerate(variables.y)}
    factors = [asdict(factor) for factor in (*variables.inputs, *variables.targets)]
    described = {
        "format": FORMAT,
        "revision": revision(),
        "settings": test.settings(),
        "seed": seed,
        "factors": factors,
    }
    data = arrays_sha256(arrays | {"episode": variables.episode})
    return sha256(json.dumps([data, described], sort_keys=True, default=str).encode())
