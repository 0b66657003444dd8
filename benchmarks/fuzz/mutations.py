"""Random damage to bytes, to lines of text, to trees of plain data and to HDF5 files, decided by a random generator.

Every function returns a word for the damage (and the damaged copy, except for files). None depends on the content.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Rng = np.random.Generator

WORDS = (
    "",
    " ",
    "x",
    "ключ",
    "鍵\u202e",
    "🗝",
    "\x00",
    "a\nb",
    "-",
    "~",
    "null",
    "true",
    "nan",
    "1e400",
    "../..",
    "%s{}",
    "x" * 9999,
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    -2,
    7,
    2**31,
    -(2**63),
    2**64,
    10**30,
    0.5,
    -0.0,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
    -float("inf"),
)
NEST = "@nest@"
"""placeholder for more levels of nesting than Python's JSON and YAML readers accept; the writers do not, either"""
LEVELS = {"json": 50_000, "yaml": 1_200}


def pick(rng: Rng, choices: Any) -> Any:
    """One of the choices, uniformly."""
    return choices[int(rng.integers(len(choices)))]


# Bytes -------------------------------------------------------------------------------------------------


def damage_bytes(rng: Rng, data: bytes) -> tuple[str, bytes]:
    """Bits flipped, the end cut off, a stretch removed, repeated, made noise or zeros, or two stretches swapped."""
    size = max(len(data), 1)
    at, other = (int(x) for x in rng.integers(0, size, 2))
    length = min(int(2 ** rng.uniform(0, 10)), size)
    head, part, tail = data[:at], data[at : at + length], data[at + length :]
    what = pick(rng, ("flip", "flip", "flip", "cut", "hole", "repeat", "noise", "zeros", "swap"))
    if what == "flip":
        out = np.frombuffer(data, np.uint8).copy()
        places = rng.integers(0, size, int(rng.integers(1, 9)))
        out[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
        return what, out.tobytes()
    if what == "swap":
        low, high = sorted((at, other))
        length = min(length, high - low)
        a, b = data[low : low + length], data[high : high + length]
        return what, data[:low] + b + data[low + length : high] + a + data[high + length :]
    return what, {
        "cut": head,
        "hole": head + tail,
        "repeat": head + part + part + tail,
        "noise": head + rng.bytes(len(part)) + tail,
        "zeros": head + bytes(len(part)) + tail,
    }[what]


# Text --------------------------------------------------------------------------------------------------


def damage_lines(rng: Rng, text: str) -> tuple[str, str]:
    """A YAML file with one line repeated, lost, moved or indented, or with a foreign construct inserted."""
    lines = text.splitlines()
    at, other = (int(x) for x in rng.integers(0, len(lines), 2))
    usual = ("repeated line", "lost line", "moved line", "indent", "tab", "foreign")
    what = pick(rng, usual if rng.random() < 0.95 else ("bomb", "loop", "nested"))  # these are slow to read
    if what == "repeated line":
        lines.insert(other, lines[at])
    elif what == "lost line":
        del lines[at]
    elif what == "moved line":
        lines.insert(other, lines.pop(at))
    elif what in ("indent", "tab"):
        lines[at] = ("\t" if what == "tab" else "  ") + lines[at]
    elif what == "foreign":
        foreign = (
            "!!python/object/apply:os.getcwd []",
            "*gone",
            "&a",
            "---",
            "%YAML 9.9",
            "? [1]\n: 2",
            "<<: 3",
            "\ufeff",
        )
        lines.insert(at, pick(rng, foreign))
    elif what == "bomb":  # expands to 10^12 words
        levels = [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 13)]
        lines += ["b0: &b0 [x]", *levels] if rng.random() < 0.5 else [f"{_key(lines[at])}: &b0 [x]", *levels]
    elif what == "loop":
        lines[at] = f"{_key(lines[at])}: &a [*a]"
    else:
        lines[at] = f"{_key(lines[at])}: {_nested('yaml')}"
    return what, "\n".join(lines) + "\n"


def _key(line: str) -> str:
    return line.partition(":")[0] or "x"


# Trees of plain data -----------------------------------------------------------------------------------


def damage_tree(rng: Rng, tree: Any) -> tuple[str, Any]:
    """A copy with one node lost, renamed, doubled, wrapped or replaced by a value of another type or size."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return "replaced", replacement(rng, tree)
    holder, key = pick(rng, places)
    old = holder[key]
    usual = ("lost", "renamed", "doubled", "wrapped", "replaced", "replaced", "number", "number")
    what = pick(rng, usual) if rng.random() < 0.98 else "nested"
    if what == "lost":
        del holder[key]
    elif what == "renamed" and isinstance(holder, dict):
        holder[pick(rng, (*WORDS, f"{key}_", str(key).upper()))] = holder.pop(key)
    elif what == "doubled" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif what == "wrapped":
        holder[key] = pick(rng, ([old], {"x": old}, [[old]], str(old), [old, old]))
    elif what == "nested":
        holder[key] = NEST
    elif what == "number":
        number = isinstance(old, int | float) and not isinstance(old, bool)
        holder[key] = pick(rng, (-old, old + 1, old * 1000, old + 0.5, *NUMBERS)) if number else pick(rng, NUMBERS)
    else:
        what, holder[key] = "replaced", replacement(rng, old)
    return what, tree


def _nested(style: str) -> str:
    return "[" * LEVELS[style] + "]" * LEVELS[style]


def as_json(tree: Any) -> str:
    """JSON text, with `NEST` expanded."""
    return json.dumps(tree, indent=1).replace(f'"{NEST}"', _nested("json"))


def as_yaml(tree: Any) -> str:
    """YAML text, with `NEST` expanded."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).replace(f"'{NEST}'", _nested("yaml"))


def replacement(rng: Rng, old: Any) -> Any:
    """Another value, of any type."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: bool(rng.integers(2)),
        lambda: pick(rng, NUMBERS),
        lambda: pick(rng, WORDS),
        lambda: [],
        lambda: {},
        lambda: [pick(rng, NUMBERS)],
        lambda: {pick(rng, WORDS): pick(rng, NUMBERS)},
        lambda: str(old),
        lambda: [0] * 300,
    )
    return pick(rng, kinds)()


def _places(tree: Any) -> Any:
    """(holder, key) of every node but the root."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


# HDF5 --------------------------------------------------------------------------------------------------


def damage_hdf5(rng: Rng, path: Path) -> str:
    """Damage that a faulty program could write: shapes, types, values, names, links and attributes."""
    import h5py

    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = pick(rng, names)
        arrays = [n for n in names if isinstance(file[n], h5py.Dataset)]
        array = pick(rng, arrays)
        what = pick(
            rng,
            (
                "lost",
                "renamed",
                "copied",
                "link to itself",
                "loop",
                "dangling",
                "type",
                "shape",
                "rows",
                "value",
                "value",
            )
            + ("attribute", "attribute", "empty", "huge", "group for array", "outside"),
        )
        if what == "lost":
            del file[name]
        elif what == "renamed":
            file.move(name, pick(rng, ("states", "goal", "episode_x", "episode_-1", "ключ", "a/b", name + "_")))
        elif what == "copied":
            file.copy(name, pick(rng, ("states", "goals", "desired_goals", "timeouts", "episode_99", "next_states")))
        elif what in ("link to itself", "dangling", "outside"):
            del file[name]
            to: dict[str, Any] = {"link to itself": h5py.SoftLink(f"/{name}"), "dangling": h5py.SoftLink("/nowhere")}
            file[name] = to.get(what) or h5py.ExternalLink("nowhere.hdf5", "/x")
        elif what == "loop":
            groups: list[Any] = [file, *(file[n] for n in names if isinstance(file[n], h5py.Group))]
            pick(rng, groups)["again"] = pick(rng, groups)
        elif what == "attribute":
            _damage_attribute(rng, file[name] if rng.random() < 0.8 else file)
        else:
            _damage_array(rng, file, array, what)
    return what


def _damage_array(rng: Rng, file: Any, name: str, what: str) -> None:
    import h5py

    old = file[name][()]
    new: Any = old
    if what == "type":
        kinds = ("S4", "f2", "f4", "f8", "i1", "u1", "i8", "c8", "?", [("a", "f4"), ("b", "S2")], h5py.string_dtype())
        kind: Any = pick(rng, kinds)
        new = np.zeros(old.shape, kind) if isinstance(kind, list) else old.astype(kind, copy=True)
    elif what == "shape":
        new = pick(rng, (old.reshape(-1), old[None], old[..., None], old.reshape(-1)[:1], old.T, old[()].sum()))
    elif what == "rows":
        new = pick(rng, (old[:-1], old[:0], old[1:], np.concatenate([old, old[-1:]]), old[::-1], old[:1]))
    elif what == "value" and old.size:
        flat = old.astype(float).reshape(-1)
        flat[int(rng.integers(flat.size))] = float(pick(rng, NUMBERS))
        new = flat.reshape(old.shape).astype(old.dtype if rng.random() < 0.5 else float)
    attributes = dict(file[name].attrs)
    del file[name]
    if what == "empty":
        file[name] = h5py.Empty("f4")
    elif what == "huge":  # declared, not stored
        file.create_dataset(name, (2 ** int(rng.integers(33, 60)), *old.shape[1:]), "f4", chunks=(16, *old.shape[1:]))
    elif what == "group for array":
        file.create_group(name)["x"] = old
    else:
        file[name] = new
    file[name].attrs.update(attributes)


def _damage_attribute(rng: Rng, thing: Any) -> None:
    import h5py

    known = list(thing.attrs)
    name = pick(rng, known) if known and rng.random() < 0.8 else pick(rng, ("names", "total_steps", "ключ"))
    values: tuple[Any, ...] = (
        0,
        -1,
        10**9,
        1.5,
        float("nan"),
        "x",
        "",
        [],
        ["a"],
        ["a", "a", "a"],
        b"\xff\xfe",
        np.zeros((2, 2)),
        h5py.Empty("f"),
    )
    if name in thing.attrs and rng.random() < 0.3:
        del thing.attrs[name]
    else:
        thing.attrs[name] = pick(rng, values)
