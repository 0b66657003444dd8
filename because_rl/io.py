"""The only place that writes files. All but logs is atomic: a reader sees the old file or the new one.

A file is written beside its target, flushed to disk and renamed over it; a folder likewise. Killing the process at any
moment leaves at most a hidden ``.name.tmp-*`` entry, which `remove_leftovers` removes.
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
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.reading import (  # noqa: F401  (this module is the door to both halves: reading and writing)
    arrays_sha256,
    check_file,
    read_arrays,
    read_bytes,
    read_json,
    read_json_lines,
    read_npz,
    read_png,
    read_text,
    read_yaml,
    unpack_json,
)


def sha256(data: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """The hash of a file's content, read in blocks of 1 MiB."""
    check_file(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.tmp-{_machine()}-{os.getpid()}-{os.urandom(4).hex()}"


@cache
def _machine() -> str:
    """A short id of this machine. Process ids are valid on one machine only, but folders may be shared by several."""
    return sha256(platform.node().encode())[:8]


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error while writing into a `BecauseError` that names the path."""
    try:
        yield
    except OSError as error:
        raise BecauseError(
            f"Could not write {path}: {error.strerror or error}.",
            need="a writable folder with free space.",
            fix="free space, or choose another folder with --root DIR or BECAUSE_HOME.",
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; missing parent folders are made."""
    path = Path(path)
    temporary = _temporary(path)
    with _explain_write_errors(path):
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


def append_bytes(path: Path, data: bytes, size: int) -> int:
    """Cut a file to its first `size` bytes, append `data`, and return its new size; a missing file is made.

    For a log that readers keep open while it grows, and that no other file can replace. A killed process may leave a
    part of `data`: pass the place where its last whole record ends.
    """
    path = Path(path)
    with _explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.truncate(size)
            file.write(data)
    return size + len(data)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys; infinite numbers and NaN are refused."""
    try:
        text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise BecauseError(
            f"Could not write {path} ({error}).",
            need="finite numbers, since JSON has no others.",
            fix="correct the setting or the data that are infinite or NaN.",
        ) from error
    write_text(path, text + "\n")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` whose ``_sha256`` entry lets `read_arrays` refuse a damaged file."""
    buffer = _io.BytesIO()
    digest = np.frombuffer(bytes.fromhex(arrays_sha256(arrays)), np.uint8)
    np.savez(buffer, allow_pickle=False, _sha256=digest, **dict(arrays))
    write_bytes(path, buffer.getvalue())


def pack_json(value: Any) -> np.ndarray:
    """(bytes,) uint8: JSON that can be kept among arrays.

    >>> unpack_json(pack_json({"inputs": ["a"]}))
    {'inputs': ['a']}
    """
    return np.frombuffer(json.dumps(value, allow_nan=False).encode(), np.uint8)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder to fill, which then replaces `path` in one step; on an error `path` stays as it was."""
    path = Path(path)
    temporary = _temporary(path)
    with _explain_write_errors(path):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with _explain_write_errors(path):
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
    """Hold the lock on the file `lock`; the operating system releases it when the process dies.

    `what` completes the error "Another process is ..." where the lock is taken.
    """

    def take(file: IO[str]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BecauseError(
                f"Another process is {what}.", need="one at a time.", fix="wait for it to finish."
            ) from error

    yield from _hold(lock, take)


@contextlib.contextmanager
def in_turn(lock: Path) -> Iterator[None]:
    """Hold the lock on the file `lock`, and wait for it where another process holds it.

    Threads of one process do not wait for each other: one may hold it while it waits for the other.
    """
    yield from _hold(lock, lambda file: fcntl.lockf(file, fcntl.LOCK_EX))


def _hold(lock: Path, take: Callable[[IO[str]], None]) -> Iterator[None]:
    while True:
        with _explain_write_errors(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = open(lock, "w")  # noqa: SIM115  (held open while the lock is held)
        with file:
            take(file)
            # If the last holder removed the file after we had opened it, our lock excludes nobody: lock the new file.
            if _is_open_file(file, lock):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return


def _is_open_file(file: IO[str], path: Path) -> bool:
    """Whether `path` still is the file that we have open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


STALE_SECONDS = 24 * 3600.0
"""Age at which a temporary file of another machine is taken to be abandoned."""


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in `folder`; those in use stay."""
    for leftover in Path(folder).glob(".*.tmp-*"):
        with contextlib.suppress(FileNotFoundError):  # its owner has just renamed or removed it
            if not _in_use(leftover):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def remove_free_locks(folder: Path) -> None:
    """Remove the files of locks that nobody holds, in a folder that has nothing else."""
    for lock in Path(folder).glob("*.lock"):
        with contextlib.suppress(BecauseError), exclusive(lock, "using it"):
            pass  # letting go of a lock removes its file


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _in_use(temporary: Path) -> bool:
    """Whether its process is alive; for a process of another machine, whether the file is less than a day old."""
    name = re.fullmatch(r".+\.tmp-([0-9a-f]{8})-(\d+)-[0-9a-f]+", temporary.name)
    if name is None or name[1] != _machine():
        return time.time() - temporary.stat().st_mtime < STALE_SECONDS
    return int(name[2]) != os.getpid() and _alive(int(name[2]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
