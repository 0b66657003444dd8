"""HDF5 files. A damaged file can crash the library that reads it, and a full disk the library that writes it.

So files are read by a process of their own (`hdf5_reader`), which is started once and serves all requests, and they are
made in memory and written like any other file. A process that crashes costs one error message.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import write_bytes
from because_rl.reading import check_file, max_bytes, unreadable

PROGRAM = Path(__file__).with_name("hdf5_reader.py")
IMAGE_AXES = 4
"""Of an array of pictures: steps, height, width, channels. Such arrays are compressed."""
BLOCK = 2**22
"""Bytes by which a file in memory grows."""


@dataclass(frozen=True)
class Content:
    """The wanted arrays of an HDF5 file by their paths, such as ``episode_0/observations/state``."""

    arrays: dict[str, np.ndarray]
    """those that are not of numbers are empty"""
    members: dict[str, list[str]]
    """group ("" for the file) -> names in it, also of what was not read"""
    names: dict[str, tuple[str, ...]]
    """array -> its attribute ``names``, where it has one"""

    def tree(self, group: str) -> dict[str, Any]:
        """The arrays of a group as nested dicts; other members of it are None."""
        out: dict[str, Any] = {}
        for name in self.members[group]:
            path = f"{group}/{name}".lstrip("/")
            out[name] = self.tree(path) if path in self.members else self.arrays.get(path)
        return out


def read_hdf5(path: Path, wanted: Iterable[str]) -> Content:
    """The arrays of these names: at the top of the file, in its groups ``episode_*``, and in ``observations`` there."""
    check_file(path)
    request = {"path": os.path.abspath(path), "wanted": sorted(wanted), "max_bytes": max_bytes()}
    with _lock:
        try:
            return _ask(json.dumps(request).encode() + b"\n", path)
        except BecauseError:
            raise
        except BaseException:
            _stop()  # whatever it still has to say belongs to this request
            raise


def _ask(request: bytes, path: Path) -> Content:
    reader = _running_reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        reader.stdin.write(request)
        reader.stdin.flush()
        head = json.loads(reader.stdout.readline() or b"null")
        if head is None:
            raise EOFError
        if "error" in head:
            raise unreadable(path, head["error"])
        arrays = {}
        for name, dtype, shape in head["arrays"]:
            data = bytearray(math.prod(shape) * np.dtype(dtype).itemsize)
            if data and reader.stdout.readinto(data) != len(data):  # type: ignore[attr-defined]
                raise EOFError
            arrays[name] = np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)
    except (OSError, EOFError) as error:
        raise unreadable(path, f"the process that reads it ended with exit code {reader.wait()}") from error
    except (MemoryError, ValueError, TypeError) as error:
        _stop()
        raise unreadable(path, str(error) or "it does not fit in memory") from error
    return Content(arrays, head["members"], {name: tuple(names) for name, names in head["names"].items()})


_lock = threading.Lock()
_reader: tuple[int, subprocess.Popen] | None = None
"""Process id of the owner, and the process that reads: a forked child must not talk to its parent's."""


def _running_reader() -> subprocess.Popen:
    global _reader
    if _reader is None or _reader[0] != os.getpid() or _reader[1].poll() is not None:
        # -P: beside the program are modules with the names of Python's own.
        command = [sys.executable, "-P", "-W", "ignore", str(PROGRAM)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=2**20
        )
        if _reader is None:
            atexit.register(_stop)
        _reader = os.getpid(), process
    return _reader[1]


def _stop() -> None:
    global _reader
    if _reader is not None and _reader[0] == os.getpid():
        _reader[1].kill()
        _reader[1].wait()
        for pipe in (_reader[1].stdin, _reader[1].stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    _reader = None


# Writing -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_hdf5(path: Path) -> Iterator[Any]:
    """Yields an `h5py.File` in memory to fill, which is then written to `path` in one step."""
    import h5py

    try:
        with h5py.File(path.name, "w", driver="core", backing_store=False, block_size=BLOCK, track_order=True) as file:
            yield file
            file.flush()
            image = file.id.get_file_image()
    except MemoryError as error:
        raise BecauseError(
            f"Could not write {path}: it does not fit in memory.", need="free memory.", fix="use less data."
        ) from error
    write_bytes(path, image)


def add_episodes(file: Any, episodes: Iterable[Mapping[str, Any]], attributes: Iterable[Mapping[str, Any]]) -> int:
    """Write episodes as Minari does, one group each with these attributes; returns the number of steps."""
    steps = 0
    for number, (episode, own) in enumerate(zip(episodes, attributes, strict=True)):
        group, length = file.create_group(f"episode_{number}"), len(episode["rewards"])
        group.attrs.update({"id": number, **own, "total_steps": length})
        steps += length
        for name, part in episode.items():
            inner = (
                {f"{name}/{key}": array for key, array in part.items()} if isinstance(part, Mapping) else {name: part}
            )
            for place, array in inner.items():
                shape = np.shape(array)
                packed = {"compression": "gzip"} if len(shape) == IMAGE_AXES else {}
                group.create_dataset(place, data=array, chunks=True, maxshape=(None, *shape[1:]), **packed)
    return steps
