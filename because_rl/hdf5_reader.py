"""A program that reads HDF5 files for `because_rl.hdf5`, so that a damaged file can crash this process and no other.

It answers requests on stdin until stdin ends. A request is a line of JSON:

    {"path": ..., "wanted": [names], "max_bytes": n}

The answer is a line of JSON and, after it, the bytes of the arrays in the order of the line:

    {"arrays": [[path, dtype, shape], ...], "members": {group: [names]}, "names": {path: [column names]}}
    {"error": why}

Only arrays of wanted names are read: at the top, in groups ``episode_*``, and in a group ``observations`` of these.
Data outside the file (external and soft links, external storage, virtual datasets) are refused, and so is an object
that is reached twice. It imports nothing of the package, so that starting it takes little more than `import h5py`.
"""

import json
import math
import os
import resource
import signal
import sys

import h5py
import numpy as np

PIECE = 2**26
"""Bytes that are read and sent at a time."""
SECONDS = 8.0
"""CPU time for one piece, or for the list of arrays, after which the system ends this process."""
MEMORY = 2**29
"""Bytes that it may allocate beside those of the arrays."""
SLACK, RATIO = 2**26, 1100
"""An array may declare SLACK bytes more than RATIO times the size of its file: gzip cannot compress further."""
MAX_NAMES = 100_000


class Refused(Exception):
    """The file has a structure that is not read."""


class Listing:
    """The wanted arrays of an open file; nothing is read yet, and none stays open: each would take 100 kB."""

    def __init__(self, file, wanted, limit, size):
        self.wanted, self.limit, self.size = set(wanted), limit, size
        self.arrays, self.members, self.names = [], {}, {}
        self.bytes, self.addresses = 0, {h5py.h5o.get_info(file.id).addr}
        self.list_group(file, "")

    def list_group(self, group, path):
        """List the arrays of a group; deeper ones only where a log has them."""
        if len(group) > MAX_NAMES:
            raise Refused(f"the group {path or '/'} has {len(group)} members")
        self.members[path] = names = list(group)
        for name in names:
            inside = path.rpartition("/")[2] == "observations"
            if name not in self.wanted and not inside and not (path == "" and name.startswith("episode_")):
                continue
            where = f"{path}/{name}".lstrip("/")
            if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
                raise Refused(f"{where!r} is a link to data elsewhere")
            part = group[name]
            address = h5py.h5o.get_info(part.id).addr
            if address in self.addresses:
                raise Refused(f"{where!r} is the same object as another")
            self.addresses.add(address)
            if isinstance(part, h5py.Dataset):
                self.list_array(part, where)
            elif isinstance(part, h5py.Group) and not inside:
                self.list_group(part, where)

    def list_array(self, array, path):
        if array.is_virtual or array.external:
            raise Refused(f"the data of {path!r} are in another file")
        size = math.prod(array.shape or (0,)) * array.dtype.itemsize
        self.bytes += size
        if size > SLACK + RATIO * self.size:
            raise Refused(f"{path!r} declares {size:,} bytes in a file of {self.size:,}")
        if self.bytes > self.limit:
            raise Refused(f"its arrays have more than {self.limit:,} bytes, the limit that --max-gb sets")
        if (names := array.attrs.get("names")) is not None and np.size(names) <= MAX_NAMES:
            flat = np.asarray(names).reshape(-1).tolist()
            self.names[path] = [x.decode() if isinstance(x, bytes) else str(x) for x in flat]
        self.arrays.append((path, array.dtype, array.shape))


def is_numeric(dtype):
    return dtype.kind in "fiub"


def answer(request, send):
    with h5py.File(request["path"], "r") as file:
        listing = Listing(file, request["wanted"], request["max_bytes"], os.stat(request["path"]).st_size)
        limit_memory(MEMORY + 2 * listing.bytes)
        heads = [[path, dtype.str, list(shape) if is_numeric(dtype) else [0]] for path, dtype, shape in listing.arrays]
        send(json.dumps({"arrays": heads, "members": listing.members, "names": listing.names}).encode() + b"\n")
        for path, dtype, _ in listing.arrays:
            if not is_numeric(dtype):
                continue
            array = file[path]
            if array.ndim == 0 or array.size == 0:
                send(np.asarray(array[()]).tobytes() if array.shape == () else b"")
                continue
            rows = max(1, PIECE // max(1, array.dtype.itemsize * math.prod(array.shape[1:])))
            for start in range(0, len(array), rows):
                limit_seconds()
                send(array[start : start + rows].tobytes())


def limit_memory(more):
    """Let this process allocate `more` bytes beside what it uses."""
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    allowed = used + more if most == resource.RLIM_INFINITY else min(used + more, most)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, most))


def limit_seconds():
    signal.setitimer(signal.ITIMER_PROF, SECONDS)


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and this process ends with the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    started = False

    def send(data):
        nonlocal started
        started = True
        sys.stdout.buffer.write(data)

    for line in sys.stdin.buffer:
        started = False
        limit_seconds()
        limit_memory(MEMORY)
        try:
            answer(json.loads(line), send)
        except Exception as error:
            if started:  # the arrays are incomplete: only the end of the stream can say so
                sys.stdout.buffer.flush()
                os._exit(1)
            why = (str(error) or type(error).__name__).splitlines()[0]
            send(json.dumps({"error": why}).encode() + b"\n")
        sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
