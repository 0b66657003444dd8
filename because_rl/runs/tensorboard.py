"""Write metrics as TensorBoard reads them, without TensorBoard: a file of events, each a small protocol buffer.

    record = length (8 bytes), masked crc of it (4), event, masked crc of that (4)
    event  = {1: wall time, 2: step, 3: version, 5: summary},  summary = {1: value}*,  value = {1: tag, 2: number}

The checksum is CRC-32C, rotated right by 15 bits plus a constant. Tags are stage/metric/seed. The wall time is always
0, so that the same run gives the same bytes: look at the curves by step.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from because_rl.io import write_bytes

FILE = "events.out.tfevents.0.because"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


def write_events(folder: Path, history: Mapping[str, Mapping[str, np.ndarray]], seeds: tuple[int, ...]) -> None:
    """Write the event file of a run into `folder`.

    `history`: stage -> metric -> (chunks, seeds), with the steps among the metrics.
    """
    events = [_field(1, FIXED64, struct.pack("<d", 0.0)) + _field(3, BYTES, b"brain.Event:2")]
    for stage, metrics in history.items():
        names = sorted(set(metrics) - {"step"})
        for chunk, step in enumerate(metrics["step"][:, 0] if names else ()):
            values = b"".join(
                _value(f"{stage}/{name}/seed {seed}", float(metrics[name][chunk, k]))
                for name in names
                for k, seed in enumerate(seeds)
            )
            events.append(
                _field(1, FIXED64, struct.pack("<d", 0.0))
                + _field(2, VARINT, _varint(int(step)))
                + _field(5, BYTES, values)
            )
    write_bytes(folder / FILE, b"".join(_record(event) for event in events))


def _value(tag: str, number: float) -> bytes:
    inner = _field(1, BYTES, tag.encode()) + _field(2, FIXED32, struct.pack("<f", number))
    return _field(1, BYTES, inner)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _field(number: int, kind: int, payload: bytes) -> bytes:
    size = _varint(len(payload)) if kind == BYTES else b""
    return _varint(number << 3 | kind) + size + payload


def _varint(n: int) -> bytes:
    """Seven bits a byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        out.append(byte)
    return tuple(out)


TABLE = _table()
