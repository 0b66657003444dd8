"""All rows that are trained on in one memory-mapped file, for logs that do not fit in memory.

A row has the columns of all arrays of `Transitions` beside one another, so that a row drawn at random is one read.
First come the chunks of the rest, then the rows of the sample that are not held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import append_bytes, check_file, new_folder, read_json, write_json
from because_rl.transitions import LEARNED, Transitions

NAMES = (*LEARNED, "truncated")
ROWS, INDEX = "rows.bin", "index.json"


@dataclass(frozen=True)
class RowStore:
    """Rows on disk; as `Transitions.rest` it iterates over the chunks of the rest."""

    rows: np.ndarray
    """(n, columns) float32, memory-mapped"""
    factors: FactorSpec
    ends: tuple[int, ...]
    """the row after each chunk of the rest"""
    places: tuple[tuple[int, int], ...]
    """the rows of each chunk in the log"""
    horizon: int

    def draw(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """`count` rows drawn at random from all episodes, as arrays by name."""
        return self._arrays(self.rows[np.sort(rng.integers(len(self.rows), size=count))])

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Transitions]:
        for (begin, end), place in zip(pairwise([0, *self.ends]), self.places, strict=True):
            arrays = self._arrays(np.array(self.rows[begin:end]))
            yield Transitions(
                self.factors,
                arrays["state"],
                arrays["action"],
                arrays["next_state"],
                arrays["goal"],
                arrays["reward"],
                terminated=arrays["terminated"].astype(bool),
                episode=arrays["episode"].astype(np.int64),
                step=arrays["step"].astype(np.int64),
                horizon=self.horizon,
                metadata={"rows": list(place)},
            )

    def _arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        widths = _widths(self.factors)
        ends = np.cumsum([1 if width is None else width for width in widths.values()])
        parts = np.split(rows, ends[:-1], axis=1)
        return {
            name: part[:, 0] if width is None else part
            for (name, width), part in zip(widths.items(), parts, strict=True)
        }


def _widths(factors: FactorSpec) -> dict[str, int | None]:
    """Array -> its number of columns; None for one number per row."""
    sizes = {"state": factors.state_size, "action": factors.action_size, "next_state": factors.state_size}
    return {name: (sizes | {"goal": factors.goal_size}).get(name) for name in NAMES}


def write_row_store(
    folder: Path, sample: Transitions, report: Callable[[int, int], None] = lambda done, total: None
) -> RowStore:
    """Write the rest of a sample, and its rows that are not held out, to a new folder.

    `report` is called with (chunks written, chunks in total).
    """
    assert sample.rest is not None
    total, ends, places, horizon, size = len(sample.rest), [0], [], sample.horizon, 0
    report(0, total)
    with new_folder(folder) as new:
        for done, chunk in enumerate(sample.rest, 1):
            size = append_bytes(new / ROWS, _side_by_side(chunk), size)
            ends.append(ends[-1] + len(chunk))
            places.append(chunk.metadata["rows"])
            horizon = max(horizon, chunk.horizon)
            report(done, total)
        append_bytes(new / ROWS, _side_by_side(sample.rows(~sample.held_out)), size)
        rows = ends[-1] + int((~sample.held_out).sum())
        write_json(new / INDEX, {"rows": rows, "ends": ends[1:], "places": places, "horizon": horizon})
    return open_row_store(folder, sample.factors)


def open_row_store(folder: Path, factors: FactorSpec) -> RowStore:
    """The store in a folder that `write_row_store` wrote."""
    index = read_json(folder / INDEX)
    columns = sum(1 if width is None else width for width in _widths(factors).values())
    if check_file(folder / ROWS, 2**62) != 4 * columns * index["rows"]:
        raise BecauseError(
            f"{folder / ROWS} does not have the size that its index says.",
            need="the file as it was written.",
            fix="remove its folder, and run the same command again.",
        )
    rows = np.memmap(folder / ROWS, np.float32, "r", shape=(index["rows"], columns))
    places = tuple((first, stop) for first, stop in index["places"])
    return RowStore(rows, factors, tuple(index["ends"]), places, index["horizon"])


def _side_by_side(data: Transitions) -> bytes:
    arrays = [np.asarray(getattr(data, name), np.float32).reshape(len(data), -1) for name in NAMES]
    return np.hstack(arrays).tobytes()
