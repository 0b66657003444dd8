"""Fuzzed texts: grids, method settings and factor specs. An accepted text must have been read as it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from because_rl.algorithms.registry import METHODS, make_method
from because_rl.cli.console import setting
from because_rl.experiments.grid.grid import jobs, read_grid
from because_rl.factor_file import name_columns
from because_rl.factors import FactorSpec
from because_rl.io import write_json
from benchmarks.fuzz import mutations as damage
from benchmarks.fuzz.mutations import Rng, pick

Case = tuple[str, Callable[[], str]]
"""(description of the damage, function that reads the input)

The function returns 'accepted', or 'unprotected' where the content differs and no checksum could have revealed it.
"""


class Wrong(Exception):
    """An input was accepted that should have been refused."""


# Configs -----------------------------------------------------------------------------------------------

GRID = """\
methods:
  td3bc: {steps: 500, hidden: 16, alpha: 1e-1}
  cautious: {method: mopo, members: 3, planner.horizon: 5, pessimism: null}
worlds: [unlock]
policies: [medium]
splits: [I, O]
subcases: false
seeds: [0, 3]
group: 2
episodes: 20
spurious: [1]
ratios: [0.25]
dataset_seeds: [0]
coverages: [null, 0.5]
set: {batch: 16}
chunk: 100
"""


def grid_case(rng: Rng, base: Path, work: Path) -> Case:
    """A damaged ``grid.yaml`` in `work`."""
    what, text = _text(rng, GRID, "yaml")
    (work / "grid.yaml").write_bytes(text)

    def read() -> str:
        grid = read_grid(work / "grid.yaml")
        planned = jobs(grid)
        for key, value in _plain(text, "yaml").items():
            _same(getattr(grid, key), value, key)
        for job in planned:
            for cell in job.cells.values():
                _sound_numbers(cell["config"])
        return "accepted"

    return what, read


def settings_case(rng: Rng, base: Path, work: Path) -> Case:
    """Damaged ``--set NAME=VALUE`` options, read as `because train` reads them before a run begins."""
    method = pick(rng, sorted(METHODS))
    known = _leaves(METHODS[method].config())
    whats, texts = [], []
    for name in rng.choice(sorted(known), int(rng.integers(1, 4)), replace=False):
        what, tree = damage.damage_tree(rng, {str(name): known[str(name)]})
        whats.append(what)
        for key, value in tree.items():
            plain = isinstance(value, str) and value != damage.NEST
            texts.append(f"{key}={value if plain else damage.as_json(value)}")
    if texts and rng.random() < 0.2:
        what, raw = damage.damage_bytes(rng, texts[0].encode())
        whats.append(what)
        texts[0] = raw.decode(errors="replace")
    world = pick(rng, ("unlock", "crash", "lift", None))

    def read() -> str:
        overrides = dict(setting(text) for text in texts)
        config = make_method(method, overrides, world).config
        write_json(work / "config.json", asdict(config))  # as a run does first
        values = _leaves(config)
        for key, value in overrides.items():
            if key in values:
                _same(values[key], value, key)
        _sound_numbers(asdict(config))
        return "accepted"

    return ", ".join(whats), read


# Factors -----------------------------------------------------------------------------------------------

FACTORS = {
    "state": [
        {"name": "x", "columns": 0, "type": "continuous"},
        {"name": "on", "columns": [1, 2], "type": "binary", "kind": "lamp"},
        {"name": "gear", "columns": [2, 5], "type": "categorical", "optional": True},
    ],
    "action": [{"name": "push", "columns": [0, 2], "type": "continuous"}],
    "goal": [{"name": "far", "columns": 0, "type": "continuous", "of": "x", "relation": "at_least", "tolerance": 1e-6}],
    "codes": [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
}


def factors_case(rng: Rng, base: Path, work: Path) -> Case:
    """A damaged ``factors.yaml`` or ``factors.json`` in `work`."""
    style = pick(rng, ("yaml", "json"))
    tree = {key: value for key, value in FACTORS.items() if key != "codes" or rng.random() < 0.5}
    what, text = _text(rng, damage.as_yaml(tree) if style == "yaml" else damage.as_json(tree), style)
    (work / f"factors.{style}").write_bytes(text)

    def read() -> str:
        spec = FactorSpec.from_file(work / f"factors.{style}")
        written, read_back = _plain(text, style), spec.to_dict()
        named = name_columns(written)
        for group in ("state", "action", "goal"):
            entries = [_entry(group, entry) for entry in written.get(group) or ()]
            if group in named:  # columns are numbered in their order
                entries = [e | {"columns": r["columns"]} for e, r in zip(entries, read_back[group], strict=True)]
            _same(read_back[group], entries, group)
        _same(read_back.get("codes"), written.get("codes"), "codes")
        if extra := set(written) - {"state", "action", "goal", "codes"}:
            raise Wrong(f"the entry {sorted(map(str, extra))[0]!r} is ignored")
        _sound_numbers(read_back)
        return "accepted"

    return what, read


def _entry(group: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """A factor of the file in the form in which `to_dict` writes it."""
    columns = written["columns"]
    out = dict(written) | {"columns": [columns, columns + 1] if isinstance(columns, int) else columns}
    if group == "goal":
        out = {"relation": "equal", "tolerance": 1e-6} | out
    if out.get("kind") in ("", out["name"]):
        del out["kind"]
    if out.get("optional") is False:
        del out["optional"]
    return out


# Shared ------------------------------------------------------------------------------------------------


def _text(rng: Rng, text: str, style: str) -> tuple[str, bytes]:
    """A text file, damaged as a tree (up to three times), as lines or as bytes, and the description of the damage."""
    way = rng.random()
    if way < 0.5:
        tree, whats = _plain(text.encode(), style), []
        for _ in range(int(rng.integers(1, 4))):
            what, tree = damage.damage_tree(rng, tree)
            whats.append(what)
        return ", ".join(whats), (damage.as_yaml(tree) if style == "yaml" else damage.as_json(tree)).encode()
    if way < 0.8 and style == "yaml":
        what, text = damage.damage_lines(rng, text)
        return what, text.encode()
    return damage.damage_bytes(rng, text.encode())


def _plain(text: bytes, style: str) -> Any:
    """The content by the format's standard reader; a duplicate key, which it ignores, must have been refused."""
    if style == "yaml":
        _check_duplicate_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise Wrong("a duplicate key")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def _check_duplicate_keys(node: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise Wrong("a duplicate key")
        for _, value in node.value:
            _check_duplicate_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _check_duplicate_keys(value)


def _same(value: Any, written: Any, where: str) -> None:
    """Raise `Wrong` unless `value` is what was written; text may stand for the number or list that it spells."""
    if isinstance(written, str) and not isinstance(value, str):
        try:
            written = json.loads(written)
        except ValueError:
            written = float(written)  # YAML reads 1e-06 as text
    if isinstance(value, dict | tuple | list) and isinstance(written, dict | tuple | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        expected = dict(written.items() if isinstance(written, dict) else enumerate(written))
        if isinstance(value, dict) == isinstance(written, dict) and len(value) == len(expected):
            for key, entry in entries:
                _same(entry, expected.get(key, Wrong), f"{where}.{key}")
            return
    elif isinstance(value, bool) == isinstance(written, bool) and value in (written, _as_float(written)):
        return
    raise Wrong(f"{where} was written as {str(written)[:60]!r} and read as {str(value)[:60]!r}")


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and abs(value) < 1e300 else value


def _sound_numbers(tree: Any) -> None:
    """Raise `Wrong` for a number that is not finite and for a negative count."""
    if isinstance(tree, Mapping):
        tree = [*tree.values()]
    if isinstance(tree, list | tuple):
        for value in tree:
            _sound_numbers(value)
    elif isinstance(tree, float) and not math.isfinite(tree):
        raise Wrong(f"the number {tree}")
    elif isinstance(tree, int) and tree < 0:
        raise Wrong(f"the count {tree}")


def _leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their full dotted names."""
    out: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        out |= _leaves(value, f"{prefix}{f.name}.") if is_dataclass(value) else {prefix + f.name: value}
    return out
