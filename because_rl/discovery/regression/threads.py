"""Many small problems at once: one thread per core, and one BLAS thread in each of them.

By default OpenBLAS would start threads of its own in every one of ours; they then wait for one another in busy
loops, and two cores take several times as long as one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def cores() -> int:
    """The value of OMP_NUM_THREADS, or the number of cores where it is not set."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def thread_map(function: Callable[..., Any], *arguments: Sequence[Any], threads: int | None = None) -> list[Any]:
    """Like `map`, in `threads` threads (None: one per core), in the order of the arguments.

    Called with None in a thread of another `thread_map`, it runs in that thread alone: the cores are taken.

    >>> thread_map(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """
    if threads is None and getattr(_thread, "is_worker", False):
        return list(map(function, *arguments))
    count = threads or cores()
    with one_blas_thread(), ThreadPoolExecutor(count, initializer=_mark_worker, initargs=(count > 1,)) as pool:
        return list(pool.map(function, *arguments))


_thread = threading.local()


def _mark_worker(is_worker: bool) -> None:
    _thread.is_worker = is_worker


@cache
def _openblas() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """Functions that read and set the number of threads, for each OpenBLAS in the wheels of NumPy and SciPy."""
    libraries = []
    for package, ending in (("numpy", "64_"), ("scipy", "")):
        folder = Path(np.__file__).parent.with_name(f"{package}.libs")
        for path in folder.glob(f"libscipy_openblas{ending}*"):
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(str(path))
                get, put = (getattr(library, f"scipy_openblas_{verb}_num_threads{ending}") for verb in ("get", "set"))
                libraries.append((get, put))
    return libraries


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside this context OpenBLAS uses one thread; afterwards as many as before."""
    before = [get() for get, _ in _openblas()]
    try:
        for _, put in _openblas():
            put(1)
        yield
    finally:
        for (_, put), count in zip(_openblas(), before, strict=True):
            put(count)
