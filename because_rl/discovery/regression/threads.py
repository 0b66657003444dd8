"""Many small problems at once: one thread for each core, and one BLAS thread in each of them.

Left to itself, OpenBLAS would start threads of its own in every one of ours; they then wait for one another in
busy loops, and two cores take several times as long as one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def cores() -> int:
    """What OMP_NUM_THREADS says, else all."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def each(function: Callable[..., Any], *arguments: Sequence[Any], threads: int | None = None) -> list[Any]:
    """`map` on all cores, or on so many threads.

    >>> each(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """
    with one_blas_thread(), ThreadPoolExecutor(threads or cores()) as pool:
        return list(pool.map(function, *arguments))


@cache
def _openblas() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """How to read and set the number of threads in the libraries that NumPy's and SciPy's wheels bring, if any."""
    found = []
    for package, ending in (("numpy", "64_"), ("scipy", "")):
        folder = Path(np.__file__).parent.with_name(f"{package}.libs")
        for path in folder.glob(f"libscipy_openblas{ending}*"):
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(str(path))
                get, put = (getattr(library, f"scipy_openblas_{verb}_num_threads{ending}") for verb in ("get", "set"))
                found.append((get, put))
    return found


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    before = [get() for get, _ in _openblas()]
    try:
        for _, put in _openblas():
            put(1)
        yield
    finally:
        for (_, put), count in zip(_openblas(), before, strict=True):
            put(count)
