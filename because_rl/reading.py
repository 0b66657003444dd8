"""The gate for files: everything that is read comes through here, or through `hdf5` for HDF5.

A file must be a regular file of limited size, text must be UTF-8, and numbers must be finite. Whatever its bytes are, a
file is read as it was written or refused with a `BecauseError`; memory is never allocated on the word of a file alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from because_rl.errors import BecauseError

MAX_GB = "BECAUSE_MAX_GB"
"""Environment variable: the largest file that is read, and the most that an HDF5 file may declare, in GB."""
DEFAULT_GB = 4.0
MAX_JSON_BYTES = 2**28
MAX_YAML_BYTES = 2**20
MAX_YAML_DEPTH = 100
MAX_PIXELS = 2**24
"""Of a PNG: a small file can declare more than fits in memory."""
MAX_YAML_NODES = 100_000
"""With aliases expanded: a few lines of nested aliases can expand to more than fits in memory."""


def max_bytes() -> int:
    """The largest amount of data that one file may hold: `DEFAULT_GB`, unless the environment says otherwise."""
    text = os.environ.get(MAX_GB) or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < 1e6:
        raise BecauseError(f"Got --max-gb {text}.", need="a number of GB above 0.", fix="for example --max-gb 16.")
    return int(gigabytes * 1e9)


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes; None: `max_bytes`."""
    path = Path(path)
    try:
        check_file(path, limit)
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    except MemoryError as error:
        raise unreadable(path, "it does not fit in memory") from error


def check_file(path: Path, limit: int | None = None) -> int:
    """The size of a regular file; anything else, such as a device without an end, and a larger file are refused."""
    limit = max_bytes() if limit is None else limit
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise unreadable(path, "it is not a regular file")
    if status.st_size > limit:
        raise BecauseError(
            f"{path} has {status.st_size:,} bytes.",
            need=f"at most {limit:,}.",
            fix=f"is it the right file? If so, raise the limit with --max-gb, or {MAX_GB} in the environment.",
        )
    return status.st_size


def unreadable(path: Path, why: str) -> BecauseError:
    """An error for a file that could not be read, to be raised by the caller."""
    return BecauseError(
        f"{str(path)!r} cannot be read ({why}).",
        need="a file that is as it was written.",
        fix="correct its path, restore it, or delete it and make it again.",
    )


# Text --------------------------------------------------------------------------------------------------


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """The content of a file in UTF-8, whatever the locale."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise unreadable(path, f"it is not text in UTF-8 ({error})") from error


def read_json(path: Path, finite: bool = True) -> Any:
    """The content of a JSON file. `finite`: refuse NaN and infinite numbers, which JSON does not have."""
    return parse_json(read_text(path), str(path), finite)


def read_json_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line."""
    return [parse_json(line, f"{path}, line {n},") for n, line in enumerate(read_text(path).splitlines(), 1)]


def parse_json(text: str, where: str, finite: bool = True) -> Any:
    """The value of a JSON text. A duplicate key is refused; `json.loads` would silently keep the last one."""
    strict: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite_float} if finite else {}
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, **strict)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # half of a pair of surrogates cannot be written or printed again
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:  # broken syntax, a too long number, half a surrogate pair, ...
        raise BecauseError(
            f"{where} is not valid JSON ({error}).",
            need="the file as it was written.",
            fix="restore it from a copy, or delete it and make it again.",
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it has the number {name}")


def _finite_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict; a ValueError where a key occurs twice."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return dict(pairs)


def read_yaml(path: Path) -> Any:
    """The content of a plain YAML file. Duplicate keys, cyclic aliases and aliases that expand too far are refused."""
    try:
        text = read_text(path, MAX_YAML_BYTES)
        _check_depth(text)
        _count_nodes(yaml.compose(text, Loader=yaml.SafeLoader), {})
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML's own errors, and those of its parsers of dates and numbers
        raise BecauseError(
            f"Could not read {path} ({error}).", need="a file of plain YAML.", fix="correct what the message names."
        ) from error


def _check_depth(text: str) -> None:
    """Runs before the file is composed, which takes long on deeply nested files before it fails."""
    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MAX_YAML_DEPTH:
            raise ValueError(f"it is nested more than {MAX_YAML_DEPTH} levels deep")


def _count_nodes(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Nodes of the tree with aliases expanded. `known`: id of a collection -> its count, 0 while being counted."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias refers to a value that it is part of")
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        _unique_keys([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        parts = [part for pair in node.value for part in pair]
    known[id(node)] = total = 1 + sum(_count_nodes(part, known) for part in parts)
    if total > MAX_YAML_NODES:
        raise ValueError(f"it holds more than {MAX_YAML_NODES} values")
    return total


# Pictures ----------------------------------------------------------------------------------------------


def read_png(path: Path) -> np.ndarray:
    """The bytes of the pixels of a PNG, whose checksums must be right: (height, width, 3) uint8 where it is coloured.

    A grey one is (height, width), one with transparency (height, width, 4). Colours of a palette are looked up.
    """
    from PIL import Image

    data = read_bytes(path)
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise unreadable(path, "it is no PNG")
    if data[24:25] == b"\x10":
        raise unreadable(path, "it has 16 bits per channel, not 8")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if math.prod(image.size) > MAX_PIXELS:
                raise ValueError(f"it has {image.size[0]} x {image.size[1]} pixels, more than {MAX_PIXELS:,}")
            if getattr(image, "n_frames", 1) > 1:
                raise ValueError("it is an animation")
            image.verify()  # the checksums; what it has read cannot be used afterwards
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            modes = {"1": "L", "P": "RGBA" if "transparency" in image.info else "RGB"}
            return np.asarray(image.convert(modes.get(image.mode, image.mode)))
    except Exception as error:  # Pillow, zlib and struct raise a dozen kinds for a damaged file
        raise unreadable(path, str(error) or type(error).__name__) from error


# Arrays ------------------------------------------------------------------------------------------------


def arrays_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of names, shapes, dtypes and bytes, whatever the order of the mapping."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `io.write_arrays` wrote; a damaged file is refused."""
    data = read_bytes(path)
    try:
        arrays = _unpack_arrays(data)
        intact = arrays.pop("_sha256").tobytes().hex() == arrays_sha256(arrays)
    except Exception as error:  # zipfile and numpy raise a dozen kinds for a damaged archive
        raise damaged(path, str(error)) from error
    if not intact:
        raise damaged(path, "checksum mismatch")
    return arrays


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` that anybody wrote, compressed or not: no Python objects, `max_bytes` in all."""
    data = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _unique_keys([(member.filename, None) for member in members])
            if sum(member.file_size for member in members) > max_bytes():
                raise ValueError(f"its arrays have more than {max_bytes():,} bytes, the limit that --max-gb sets")
            return dict(_read_member(archive, member) for member in members)
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for a damaged archive
        raise unreadable(path, str(error) or type(error).__name__) from error


def _unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of an archive that is not compressed: together they cannot be larger than the archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if packed or sum(member.file_size for member in members) > len(data):
            raise ValueError("it holds more than its size")
        return dict(_read_member(archive, member) for member in members)


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[str, np.ndarray]:
    """Name and array of one file of an archive."""
    name = member.filename.removesuffix(".npy")
    content = io.BytesIO(archive.read(member))
    version = np.lib.format.read_magic(content)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, in_columns, dtype = header(content)
    if dtype.hasobject:
        raise ValueError(f"the array {name} holds Python objects, which are not read")
    if math.prod(shape) * dtype.itemsize != member.file_size - content.tell():
        raise ValueError(f"the array {name} does not have the size that it declares")
    flat = np.frombuffer(content.getvalue(), dtype, offset=content.tell()).copy()
    return name, flat.reshape(shape, order="F" if in_columns else "C")


def unpack_json(array: np.ndarray) -> Any:
    """The inverse of `io.pack_json`."""
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError as error:
        raise BecauseError(
            f"What is kept among arrays is no text ({error}).", need="the file as it was written.", fix="make it again."
        ) from error
    return parse_json(text, "What is kept among arrays")


def damaged(path: Path, why: str) -> BecauseError:
    """An error for a file of ours with other content than was written, to be raised by the caller."""
    return BecauseError(
        f"{path} is damaged ({why}).",
        need="the file as it was written.",
        fix="delete it and run the command that made it again.",
    )
