"""Read event files by the rules of their format, independently of `because_rl.runs.tensorboard`."""

import struct

from because_rl.runs.tensorboard import crc32c


def read_events(file):
    """(wall time, step, {tag: value}) of every event of a file that is whole."""
    events = []
    for body in records(file.read_bytes()):
        content = list(fields(body))
        values = [dict(fields(value)) for number, summary in content if number == 5 for _, value in fields(summary)]
        numbers = {inner[1].decode(): struct.unpack("<f", inner[2])[0] for inner in values}
        events.append((struct.unpack("<d", dict(content)[1])[0], dict(content).get(2), numbers))
    return events


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
