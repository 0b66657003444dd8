"""Tables, one row per step: CSV, Parquet, pandas and Polars frames, and dicts of columns, as arrays by name.

A column comes out as numbers (missing values are NaN) or as text (missing values are empty).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.errors import BecauseError, check_name
from because_rl.io import check_file, read_bytes, read_text
from because_rl.reading import max_bytes, unreadable

MISSING = ("", "na", "n/a", "nan", "null", "<na>", "nat")
"""Text, in small letters, that stands for a missing value."""
BLOCK = 50_000
"""Lines of a CSV file that are held as text at a time."""
FIX = "correct the file; docs/tutorial.md shows one."


class Table(dict[str, np.ndarray]):
    """Column name -> (rows,) numbers, text or times, or (rows, columns) numbers."""

    lines: Sequence[int] = ()
    """the lines of the rows, in a file of text"""

    def place(self, row: int) -> str:
        """A row for messages; rows count from 0."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"


def read_csv(path: Path) -> Table:
    """The columns of a CSV file with a header; separated by commas, semicolons or tabs."""
    text = read_text(path, max_bytes()).removeprefix("\ufeff")
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    names: list[str] = []
    blocks: list[list[np.ndarray]] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        names = _check_header(path.name, next(reader, []))
        for row in reader:
            if not row:
                continue  # an empty line
            if len(row) != len(names):
                raise BecauseError(
                    f"{path.name}, line {reader.line_num}: {len(row)} fields, but the header names {len(names)}.",
                    need="as many fields in every line.",
                    fix="correct the line; text that contains the separator must be quoted.",
                )
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) == BLOCK:
                blocks.append([np.array(column) for column in zip(*rows, strict=True)])
                rows = []
    except csv.Error as error:
        raise unreadable(path, f"line {reader.line_num}: {error}") from error
    if rows:
        blocks.append([np.array(column) for column in zip(*rows, strict=True)])
    if not blocks:
        raise BecauseError(f"{path.name} has a header and no rows.", need="one row per step.", fix=FIX)
    columns = (np.concatenate([block[k] for block in blocks]) for k in range(len(names)))
    table = Table({name: parse_text(column) for name, column in zip(names, columns, strict=True)})
    table.lines = lines
    return table


def _check_header(where: str, header: Sequence[str]) -> list[str]:
    """The names in the first line; a line of numbers alone is a row of a file without a header."""
    names = [name.strip() for name in header]
    if not any(names):
        raise BecauseError(f"{where} is empty.", need="a line of column names, and one row per step.", fix=FIX)
    if all(_is_number(name) for name in names):
        raise BecauseError(
            f"{where}: the first line is {', '.join(names[:5])}{', ...' * (len(names) > 5)}.",
            need="the names of the columns in the first line.",
            fix="add such a line.",
        )
    # pandas writes its index as a first column without a name.
    names = [name or ("index" if k == 0 else "") for k, name in enumerate(names)]
    check_names(where, names)
    return names


def check_names(where: str, names: Sequence[str]) -> None:
    """Refuse column names that are empty, cannot be printed, or occur twice."""
    for name in names:
        check_name(name, f"{where}: the name of a column", FIX)
    if repeated := [name for name in names if names.count(name) > 1]:
        raise BecauseError(f"{where} has two columns {repeated[0]!r}.", need="a name for each.", fix="rename one.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parquet_parts(path: Path) -> list[Path]:
    """A Parquet file, or all parts ``*.parquet`` in a folder, in the order of their names; pyarrow must be there."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise BecauseError(
            f"{path.name} is Parquet, and pyarrow is not installed.", need="pyarrow.", fix="pip install pyarrow"
        ) from error
    parts = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not parts:
        raise BecauseError(f"The folder {path} has no *.parquet.", need="at least one part.", fix="correct the path.")
    return parts


def read_parquet(path: Path) -> Table:
    """The columns of `parquet_parts`."""
    parts = parquet_parts(path)
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    left = max_bytes()
    tables: list[Table] = []
    for part in parts:
        left -= check_file(part, max(left, 0))
        try:
            file = parquet.ParquetFile(arrow.BufferReader(read_bytes(part)))
            left -= 8 * file.metadata.num_rows * file.metadata.num_columns  # what it will take as numbers
            if left < 0:
                raise ValueError(f"it declares more than {max_bytes():,} bytes, the limit that --max-gb sets")
            tables.append(from_arrow(part.name, file.read()))
        except BecauseError:
            raise
        except Exception as error:  # pyarrow has errors of its own beside those of Python
            raise unreadable_part(part, error) from error
        check_parts(parts[0], list(tables[0]), part, list(tables[-1]))
    return Table({name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


def unreadable_part(part: Path, error: Exception) -> BecauseError:
    """An error for a part that pyarrow could not read."""
    return unreadable(part, (str(error) or type(error).__name__).splitlines()[0])


def check_parts(first: Path, known: Sequence[str], part: Path, names: Sequence[str]) -> None:
    """Refuse parts of different columns."""
    if other := sorted(set(known) ^ set(names)):
        raise BecauseError(
            f"{first.name} and {part.name} do not have the same columns: {other[0]!r} is in one of them.",
            need="the same columns in all parts.",
            fix="move the other files out of the folder.",
        )


def from_arrow(where: str, content: Any) -> Table:
    """The columns of an Arrow table."""
    import pyarrow as arrow

    decoded = {name: content.column(name).combine_chunks() for name in content.column_names}
    decoded = {k: c.dictionary_decode() if arrow.types.is_dictionary(c.type) else c for k, c in decoded.items()}
    return read_columns(where, {k: c.to_numpy(zero_copy_only=False) for k, c in decoded.items()})


def read_columns(where: str, frame: Any) -> Table:
    """The columns of a mapping or of a frame (pandas, Polars), by name, without single values."""
    keys = list(frame) if isinstance(frame, Mapping) else list(frame.columns)
    check_names(where, [str(key) for key in keys])
    return Table({str(key): as_column(where, str(key), frame[key]) for key in keys if np.ndim(frame[key])})


def as_column(where: str, name: str, values: Any) -> np.ndarray:
    """One column: numbers, text or times; an array of several columns stays one."""
    try:
        array = np.asarray(values)
    except Exception as error:
        raise _no_column(where, name, str(error)) from error
    if array.ndim == 0:
        raise _no_column(where, name, "it is a single value")
    if array.dtype.kind in "fiubM":
        return array
    if array.ndim > 1:
        array = _stack(array)
        if array.dtype.kind not in "fiub":
            raise _no_column(where, name, f"it is of type {array.dtype} and shape {array.shape}")
        return array
    if array.dtype.kind == "O" and len(array) and isinstance(array[0], np.ndarray | list | tuple):
        try:
            return as_column(where, name, np.stack([np.asarray(row, float) for row in array]))
        except (TypeError, ValueError) as error:
            raise _no_column(where, name, f"its rows are lists of different kinds ({error})") from error
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "O":
        array = np.array([_as_text(value) for value in array], dtype=str)
    if array.dtype.kind not in "UT":
        raise _no_column(where, name, f"it is of type {array.dtype}")
    return parse_text(array.astype(str))


def _stack(array: np.ndarray) -> np.ndarray:
    """An array of objects as one of numbers, where it is one."""
    try:
        return array.astype(float)
    except (TypeError, ValueError):
        return array


def _as_text(value: Any) -> str:
    """A value of an array of objects; pandas has missing values of its own, which are equal to nothing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _no_column(where: str, name: str, why: str) -> BecauseError:
    return BecauseError(
        f"{where}: {name!r} cannot be read as a column ({why}).", need="numbers or text, one value per row.", fix=FIX
    )


def parse_text(values: np.ndarray) -> np.ndarray:
    """Numbers (rows,), where every value that is not missing is one, else text without blanks around it."""
    text = np.char.strip(values)
    small = np.char.lower(text)
    missing = np.isin(small, MISSING)
    given = text[~missing]
    if not len(given):
        return np.full(len(text), np.nan)
    if np.isin(small[~missing], ("true", "false")).all():
        numbers = (small[~missing] == "true").astype(np.int64)
    else:
        try:
            numbers = given.astype(np.int64)
        except (ValueError, OverflowError):
            try:
                numbers = given.astype(np.float64)
            except ValueError:
                return np.where(missing, "", text)
    if not missing.any():
        return numbers
    out = np.full(len(text), np.nan)
    out[~missing] = numbers
    return out


def broken_number(text: np.ndarray) -> int | None:
    """The first row of a column of text that is no number, where most are: a slip, not a level of a category."""
    levels, counts = np.unique(text[text != ""], return_counts=True)
    numeric = np.array([_is_number(level) for level in levels], bool)
    if counts[numeric].sum() <= counts.sum() / 2:
        return None
    return int(np.argmax(np.isin(text, levels[~numeric])))
