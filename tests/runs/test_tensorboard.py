"""The event file, read back by the rules of its format."""

import struct

import numpy as np

from because_rl.runs.tensorboard import FILE, crc32c, write_events

HISTORY = {
    "world": {"step": np.array([[500, 500], [1000, 1000]]), "loss": np.array([[3.0, 2.5], [1.0, np.nan]])},
    "energy": {"step": np.array([[300, 300]]), "loss": np.array([[-0.5, -0.25]])},
    "empty": {},
}


def records(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for part, checksum in ((data[:8], data[8:12]), (body, data[12 + length : 16 + length])):
            crc = crc32c(part)
            assert struct.unpack("<I", checksum)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        yield body
        data = data[16 + length :]


def fields(data):
    """(number, value) of a protocol buffer, by wire type."""

    def varint():
        nonlocal data
        n = shift = 0
        while True:
            byte, data = data[0], data[1:]
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    while data:
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        yield number, data[:size]
        data = data[size:]


def test_events_read_back(tmp_path):
    write_events(tmp_path, HISTORY, (0, 7))
    first, *events = [list(fields(body)) for body in records((tmp_path / FILE).read_bytes())]
    assert dict(first)[3] == b"brain.Event:2"
    values = {}
    for event in events:
        step = dict(event)[2]
        for number, value in fields(dict(event)[5]):
            assert number == 1
            inner = dict(fields(value))
            values[inner[1].decode(), step] = struct.unpack("<f", inner[2])[0]
    assert np.isnan(values.pop(("world/loss/seed 7", 1000)))
    assert values == {
        ("world/loss/seed 0", 500): 3.0,
        ("world/loss/seed 7", 500): 2.5,
        ("world/loss/seed 0", 1000): 1.0,
        ("energy/loss/seed 0", 300): -0.5,
        ("energy/loss/seed 7", 300): -0.25,
    }
    before = (tmp_path / FILE).read_bytes()
    write_events(tmp_path, HISTORY, (0, 7))
    assert (tmp_path / FILE).read_bytes() == before
