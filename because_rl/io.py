"""The only place that writes files. Everything is atomic: a reader sees the old file or the new one.

A file is written beside its target, flushed to disk and renamed over it; a folder likewise. Killing
the process at any moment leaves at most a hidden ``.name.tmp-*`` entry, which `sweep` removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io as _io
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml

from because_rl.errors import BecauseError


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def arrays_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of names, shapes, dtypes and bytes; the order of the mapping does not matter."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.tmp-{_machine()}-{os.getpid()}-{os.urandom(4).hex()}"


@cache
def _machine() -> str:
    """A word for this machine: ids of processes mean something on it alone, and folders may be shared."""
    return sha256(platform.node().encode())[:8]


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn an operating-system error while writing into one that names the path."""
    try:
        yield
    except OSError as error:
        raise BecauseError(
            f"Could not write {path}: {error.strerror or error}.",
            need="a writable folder with free space.",
            fix="free some space or choose another place with --root DIR or BECAUSE_HOME.",
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    path = Path(path)
    temporary = _temporary(path)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    try:
        text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise BecauseError(
            f"Could not write {path} ({error}).",
            need="finite numbers, which is all that JSON has.",
            fix="correct the setting or the data that are infinite or no number.",
        ) from error
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """A key that is there twice is refused: JSON itself would silently take the last."""
    try:
        return json.loads(Path(path).read_text(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # broken syntax, other bytes than text, a number without end, ...
        raise BecauseError(
            f"{path} is not valid JSON ({error}).",
            need="the file as it was written.",
            fix="restore it from a copy, or delete it and make it again.",
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


MOST_LEVELS = 100
MOST_NODES = 100_000
"""of a YAML file, aliases written out: a few lines of aliases of aliases can stand for more than any memory holds"""


def read_yaml(path: Path) -> Any:
    """Plain data. What YAML would take silently is refused: a key that is there twice, aliases that explode or loop."""
    try:
        text = Path(path).read_text()
        _check_levels(text)
        _count_nodes(yaml.compose(text, Loader=yaml.SafeLoader), {})
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML's own, and whatever its readers of dates and numbers raise
        raise BecauseError(
            f"Could not read {path} ({error}).", need="a file of plain YAML.", fix="correct what the message names."
        ) from error


def _check_levels(text: str) -> None:
    """First, since what follows takes long for deep files before it fails."""
    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def _count_nodes(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Nodes of the tree, each alias counted as what it stands for."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias stands for what it is part of")
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        _once([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        parts = [part for pair in node.value for part in pair]
    known[id(node)] = total = 1 + sum(_count_nodes(part, known) for part in parts)
    if total > MOST_NODES:
        raise ValueError(f"it holds more than {MOST_NODES} values")
    return total


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` whose ``_sha256`` entry lets `read_arrays` refuse a damaged file."""
    buffer = _io.BytesIO()
    digest = np.frombuffer(bytes.fromhex(arrays_sha256(arrays)), np.uint8)
    np.savez(buffer, allow_pickle=False, _sha256=digest, **dict(arrays))
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        intact = arrays.pop("_sha256").tobytes().hex() == arrays_sha256(arrays)
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for a damaged archive
        raise _damaged(path, str(error)) from error
    if not intact:
        raise _damaged(path, "checksum mismatch")
    return arrays


def _damaged(path: Path, why: str) -> BecauseError:
    return BecauseError(
        f"{path} is damaged ({why}).",
        need="the file as it was written.",
        fix="delete it and run the command that made it again.",
    )


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Build a folder in private, then move it to `path` in one step, replacing what was there."""
    path = Path(path)
    temporary = _temporary(path)
    with _naming(path):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with _naming(path):
            for file in temporary.rglob("*"):
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
            if path.exists():
                old = _temporary(path)
                os.rename(path, old)
                os.rename(temporary, path)
                shutil.rmtree(old)
            else:
                os.rename(temporary, path)
            _sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def exclusive(lock: Path, what: str) -> Iterator[None]:
    """Hold the file lock; the operating system lets go of it when the process dies."""
    with _naming(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")  # noqa: SIM115  (held open until we are done)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BecauseError(
                f"Another process is {what}.", need="one at a time.", fix="wait for it to finish."
            ) from error
        if _is_at(file, lock):
            yield
            lock.unlink(missing_ok=True)
            return
    # Its last holder removed the file after we had opened it: what we hold is nobody's lock.
    with exclusive(lock, what):
        yield


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


ABANDONED = 24 * 3600.0
"""seconds after which what another machine began to write is taken for left behind"""


def sweep(folder: Path) -> None:
    """Remove what killed processes left behind in `folder`, never another live one's work."""
    for leftover in Path(folder).glob(".*.tmp-*"):
        with contextlib.suppress(FileNotFoundError):  # its owner has just finished with it
            if not _in_use(leftover):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _in_use(temporary: Path) -> bool:
    """Whether its process lives; of one that cannot be asked after, whether it is young."""
    name = re.fullmatch(r".+\.tmp-([0-9a-f]{8})-(\d+)-[0-9a-f]+", temporary.name)
    if name is None or name[1] != _machine():
        return time.time() - temporary.stat().st_mtime < ABANDONED
    return int(name[2]) != os.getpid() and _alive(int(name[2]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
