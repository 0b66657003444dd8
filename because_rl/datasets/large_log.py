"""Parquet logs that are too large for memory: some episodes are drawn at random and the others pass by in chunks.

The rows of an episode must be together, in the order of the parts and of the rows in them; an episode may go on from
one part into the next. Files are read in batches of `BATCH` rows and only in the columns that are needed, so memory
depends on the sample and on the longest episode, not on the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.columns import ALIASES, FLAGS, GROUPS, Columns
from because_rl.datasets.tables import FIX, Table, check_parts, from_arrow, parquet_parts, unreadable_part
from because_rl.errors import BecauseError
from because_rl.io import check_file
from because_rl.rng import stream
from because_rl.transitions import MIN_EPISODES

SAMPLE_ROWS = 200_000
"""Rows of a Parquet log beyond which whole episodes are drawn: four times what the default test uses."""
BATCH = 65_536
CHUNK_ROWS, CHUNK_EPISODES = 100_000, 50
"""Of a chunk, at least; one that has `MOST_ROWS` rows is complete with fewer episodes."""
MOST_ROWS = 400_000


@dataclass(frozen=True)
class LargeLog:
    """A Parquet log, where its episodes are, and which of them are in the sample."""

    path: Path
    names: tuple[str, ...]
    """the columns to read"""
    starts: np.ndarray
    """(episodes + 1,) the first row of each, and the number of rows"""
    in_sample: np.ndarray
    """(episodes,) bool"""
    seed: int

    @property
    def lengths(self) -> np.ndarray:
        """(episodes,) rows of each."""
        return np.diff(self.starts)

    @property
    def rows(self) -> int:
        """Rows of all episodes."""
        return int(self.starts[-1])

    @property
    def sampled_rows(self) -> int:
        """Rows of the sample."""
        return int(self.lengths[self.in_sample].sum())

    def describe(self) -> dict[str, int | float]:
        """What was drawn of how much, JSON-ready; `rare`: the share of episodes from which on a kind of episode is in
        the sample with probability .95."""
        drawn = int(self.in_sample.sum())
        return {
            "episodes": drawn,
            "of_episodes": len(self.in_sample),
            "rows": self.sampled_rows,
            "of_rows": self.rows,
            "seed": self.seed,
            "rare": 1 - 0.05 ** (1 / drawn),
        }

    def sample(self) -> Table:
        """The rows of the sample."""
        keep = np.repeat(self.in_sample, self.lengths)
        kept, at = [], 0
        for batch in read_batches(self.path, self.names):
            kept.append(_select(batch, keep[at : at + len(batch)]))
            at += len(batch)
        return _join(self.path.name, kept)

    def chunks(self) -> list[tuple[int, int]]:
        """[first, stop) episodes of each chunk of the rest."""
        edges, rows, episodes, begin = [], 0, 0, 0
        for number, (length, drawn) in enumerate(zip(self.lengths.tolist(), self.in_sample.tolist(), strict=True)):
            rows, episodes = rows + length * (not drawn), episodes + (not drawn)
            if rows >= MOST_ROWS or (rows >= CHUNK_ROWS and episodes >= CHUNK_EPISODES):
                edges.append((begin, number + 1))
                rows, episodes, begin = 0, 0, number + 1
        if episodes and edges and episodes < CHUNK_EPISODES:
            edges[-1] = (edges[-1][0], len(self.in_sample))  # too few for a chunk of their own
        elif episodes:
            edges.append((begin, len(self.in_sample)))
        return edges

    def rest(self) -> Iterator[Table]:
        """The rows of the episodes that are not in the sample, one table per chunk."""
        keep = ~np.repeat(self.in_sample, self.lengths)
        stops = iter([int(self.starts[stop]) for _, stop in self.chunks()])
        stop, at = next(stops, None), 0
        waiting: list[Any] = []
        for batch in read_batches(self.path, self.names):
            begin, end = at, at + len(batch)
            while stop is not None and stop <= end:
                waiting.append(_select(batch.slice(begin - at, stop - begin), keep[begin:stop]))
                yield _join(self.path.name, waiting)
                waiting, begin, stop = [], stop, next(stops, None)
            if stop is not None:
                waiting.append(_select(batch.slice(begin - at), keep[begin:end]))
            at = end


def open_large_log(path: Path, columns: Columns, sample_rows: int, seed: int = 0) -> LargeLog | None:
    """The log at `path` with a sample of about `sample_rows` rows; None if it has no more than that.

    Args:
        path: a Parquet file or a folder of parts.
        columns: the roles of its columns.
        sample_rows: drawn in whole episodes, of which there are at least `MIN_EPISODES`.
        seed: of the draw.
    """
    files = [_open(part) for part in parquet_parts(path)]
    if sum(file.metadata.num_rows for file in files) <= sample_rows:
        return None
    names = tuple(name for name in files[0].schema_arrow.names if _is_needed(name, columns))
    starts = _episode_starts(path, names, columns)
    lengths = np.diff(starts)
    order = stream(seed, "episodes of a large log").permutation(len(lengths))
    count = max(MIN_EPISODES, int(np.searchsorted(np.cumsum(lengths[order]), sample_rows, side="right")))
    if columns.missing == "indicator":
        raise BecauseError(
            f"{path.name} has {starts[-1]:,} rows and is read in parts, each of which has medians of its own.",
            need="forward-fill or drop-episode for missing values.",
            fix="pass --missing forward-fill; or --sample-rows 0, to read all rows into memory.",
        )
    return LargeLog(path, names, starts, np.isin(np.arange(len(lengths)), order[:count]), seed)


def _open(part: Path) -> Any:
    import pyarrow.parquet as parquet

    check_file(part, 2**62)
    try:
        return parquet.ParquetFile(part)
    except Exception as error:
        raise unreadable_part(part, error) from error


def read_batches(path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Arrow batches of these columns, of at most `BATCH` rows."""
    parts, known = parquet_parts(path), None
    for part in parts:
        file = _open(part)
        have = file.schema_arrow.names
        known = have if known is None else known
        check_parts(parts[0], known, part, have)
        try:
            yield from (batch for batch in file.iter_batches(BATCH, columns=list(names)) if len(batch))
        except Exception as error:
            raise unreadable_part(part, error) from error


def _select(batch: Any, keep: np.ndarray) -> Any:
    import pyarrow as arrow

    return batch if keep.all() else batch.filter(arrow.array(keep))


def _join(where: str, batches: Sequence[Any]) -> Table:
    import pyarrow as arrow

    return from_arrow(where, arrow.Table.from_batches(batches))


def _is_needed(name: str, columns: Columns) -> bool:
    """Whether a column has a role: by the names that were given, or by its own."""
    if name in columns.names() or any(name in aliases for aliases in ALIASES.values()):
        return True
    open_groups = [array for group, array in GROUPS.items() if not getattr(columns, group)]
    starts = tuple(alias + mark for array in open_groups for alias in ALIASES[array] for mark in "_./[")
    return bool(starts) and name.startswith(starts)


def _episode_starts(path: Path, names: Sequence[str], columns: Columns) -> np.ndarray:
    """(episodes + 1,) the first row of each, and the number of rows, from ids or else from flags of ends."""
    ids = columns.episode or next((name for name in names if name in ALIASES["episodes"]), "")
    if ids and ids not in names:
        raise BecauseError(
            f"{path.name} has no column {ids!r}.", need="the column that names the episode.", fix="correct --episode."
        )
    flags = [name for name in names if any(name in ALIASES[flag] for flag in FLAGS)]
    if not ids and not flags:
        raise BecauseError(
            f"{path.name} does not say where episodes end.",
            need=f"'episodes' (an id per row), or {', '.join(map(repr, FLAGS))} (1 at the last row).",
            fix="add one of them, or pass --episode COLUMN.",
        )
    starts: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    at, last = 0, None
    for batch in read_batches(path, [ids] if ids else flags):
        if ids:
            if batch.column(0).null_count:
                raise BecauseError(
                    f"{path.name}: {ids!r} is missing in a row after row {at}.", need="an id in each row.", fix=FIX
                )
            values = np.asarray(batch.column(0).to_pylist()) if _is_text(batch) else batch.column(0).to_numpy()
            begins = np.append(last is None or values[0] != last, values[1:] != values[:-1])
            last = values[-1]
            labels.append(values[begins])
        else:
            columns_of_flags = [np.asarray(batch.column(k).to_numpy(zero_copy_only=False)) for k in range(len(flags))]
            ends = np.any([column.astype(bool) for column in columns_of_flags], axis=0)
            begins = np.append(last is None or last, ends[:-1])
            last = bool(ends[-1])
        starts.append(at + np.flatnonzero(begins))
        at += len(batch)
    if labels:
        known, count = np.unique(np.concatenate(labels), return_counts=True)
        if (count > 1).any():
            raise BecauseError(
                f"{path.name}: the rows of episode {str(known[count > 1][0])!r} are not together.",
                need="the rows of an episode together, parts in the order of their names.",
                fix="sort the file by episode; or, if ids are used again, give each episode its own.",
            )
    return np.append(np.concatenate(starts), at)


def _is_text(batch: Any) -> bool:
    import pyarrow as arrow

    kind = batch.schema.types[0]
    return arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_dictionary(kind)
