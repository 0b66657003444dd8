"""Write metrics as TensorBoard reads them, without TensorBoard: files of events, each a small protocol buffer.

    record = length (8 bytes), masked crc of it (4), event, masked crc of that (4)
    event  = {1: wall time, 2: step, 3: version, 5: summary},  summary = {1: value}*,  value = {1: tag, 2: number}

The checksum is CRC-32C, rotated right by 15 bits plus a constant. Each seed has a folder, which TensorBoard takes for
a run; tags are stage/metric. Files grow by whole records, after the checkpoint that holds the same metrics: TensorBoard
can follow a running training. A process that is killed leaves at most the beginning of a record, which TensorBoard
ignores and the next process cuts off; what is missing then is written, and nothing is written twice.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from because_rl.io import append_bytes, read_bytes

FOLDER, FILE = "tensorboard", "events.out.tfevents.0.because"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

History = Mapping[str, Mapping[str, np.ndarray]]
"""stage -> metric -> (chunks, seeds), with the steps among the metrics"""


class EventFiles:
    """The event files of a run in `folder`, one per seed; they may hold events already."""

    def __init__(self, folder: Path, seeds: Sequence[int]):
        self.files = [_EventFile(folder / FOLDER / f"seed-{seed}" / FILE) for seed in seeds]

    def write(self, history: History) -> None:
        """Append the events of those chunks that the files do not have yet."""
        for k, file in enumerate(self.files):
            file.write(history, k)


class _EventFile:
    def __init__(self, path: Path):
        data = read_bytes(path) if path.exists() else b""
        self.path, self.size = path, 0
        """the bytes of whole records"""
        self.written: set[tuple[str, int]] = set()
        """stage and step of the events in the file"""
        for event, end in _records(data):
            self.written |= {(tag.rpartition("/")[0], step) for step, tag in _tags(event)}
            self.size = end
        self.damaged = len(data) > self.size

    def write(self, history: History, k: int) -> None:
        """Append what is missing; `k` is the place of the seed in the arrays."""
        wall = _field(1, FIXED64, struct.pack("<d", time.time()))
        events = [] if self.size else [wall + _field(3, BYTES, b"brain.Event:2")]
        for stage, metrics in history.items():
            names = sorted(set(metrics) - {"step"})
            for chunk, step in enumerate(metrics["step"][:, 0].astype(int).tolist() if names else ()):
                if (stage, step) not in self.written:
                    values = b"".join(_value(f"{stage}/{name}", float(metrics[name][chunk, k])) for name in names)
                    events.append(wall + _field(2, VARINT, _varint(step)) + _field(5, BYTES, values))
                    self.written.add((stage, step))
        if events or self.damaged:
            self.size, self.damaged = append_bytes(self.path, b"".join(map(_record, events)), self.size), False


def _value(tag: str, number: float) -> bytes:
    inner = _field(1, BYTES, tag.encode()) + _field(2, FIXED32, struct.pack("<f", number))
    return _field(1, BYTES, inner)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Every event up to the first record that is cut off or damaged, and where its record ends."""
    start = 0
    while len(head := data[start : start + 12]) == 12 and head[8:] == _masked(head[:8]):
        end = start + 16 + struct.unpack("<Q", head[:8])[0]
        event, checksum = data[start + 12 : end - 4], data[end - 4 : end]
        if checksum != _masked(event):
            return
        yield event, end
        start = end


def _tags(event: bytes) -> Iterator[tuple[int, str]]:
    """(step, tag) of every number in an event that `_EventFile` wrote."""
    content = dict(_fields(event))
    for _, value in _fields(bytes(content.get(5, b""))):
        yield int(content[2]), bytes(dict(_fields(bytes(value)))[1]).decode()


def _field(number: int, kind: int, payload: bytes) -> bytes:
    size = _varint(len(payload)) if kind == BYTES else b""
    return _varint(number << 3 | kind) + size + payload


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of every field of a protocol buffer: the value of a varint, the bytes of others."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
            if byte < 128:
                return value

    while place < len(data):
        number, kind = divmod(varint(), 8)
        if kind == VARINT:
            yield number, varint()
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind) or varint()
        yield number, data[place : place + size]
        place += size


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
