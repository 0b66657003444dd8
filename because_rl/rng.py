"""Named random streams: every draw is addressed by a seed and a path of names.

A stream does not depend on how many numbers other streams have drawn, on the order of calls, or on how work is split
over processes. A dataset therefore is the same bytes on one core and on ten.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _words(seed: int, names: tuple[str | int, ...]) -> list[int]:
    """Eight 32-bit words of the hash of the path."""
    if seed < 0:
        raise ValueError(f"seed must be >= 0, we got {seed}")
    path = "/".join(str(name) for name in (seed, *names)).encode()
    digest = hashlib.sha256(path).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """A generator that is a function of the seed and the names alone.

    >>> float(stream(0, "unlock", "layout").random()) == float(stream(0, "unlock", "layout").random())
    True
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_words(seed, names))))


def child_seed(seed: int, *names: str | int) -> int:
    """A seed derived from this seed and the names, of 31 bits, which every simulator accepts."""
    return _words(seed, names)[0] & 0x7FFF_FFFF
