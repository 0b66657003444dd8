"""Fuzzed files of ours (cells, tables, graphs, metrics), HDF5 files of odd structure, and names.

What is accepted is then used as a command uses it, which must not fail.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from because_rl.datasets.user_log import read_log
from because_rl.discovery.export import to_dot, to_graphml, to_node_link
from because_rl.discovery.mask import CausalMask
from because_rl.experiments.grid.compare import compare, read_results
from because_rl.experiments.grid.results import read_grid_results
from because_rl.factors import pack
from because_rl.graph import Graph
from because_rl.records import read_record
from because_rl.report.graph_figure import draw_graph, render
from because_rl.report.graph_svg import explore
from because_rl.report.grid_data import Curves
from because_rl.runs.folder import read_metrics
from because_rl.runs.report import _oracle
from benchmarks.fuzz import mutations as damage
from benchmarks.fuzz.configs import Case, Wrong
from benchmarks.fuzz.mutations import WORDS, Rng, pick

# Files of ours -----------------------------------------------------------------------------------------

CELL: dict[str, Any] = {
    **{"label": "a", "dataset": "because/walk-v1", "split": "I", "spurious": 1, "seeds": [0, 1], "episodes": 4},
    **{"recipe": {"world": "walk", "behaviour": "x"}, "provenance": {"when": "2026", "revision": "a"}, "steps": 2.5},
    **{"per_seed": [0.5, 1.0], "outcomes": ["0101", "1111"], "success": 0.75, "seconds": {"training": 1.0}},
    **{"one_step": {"error": 0.1, "factors": {"x": [0.1, 0.2]}}, "stages": {"world": {"loss": 0.1, "step": 5.0}}},
}
EDGE = {"from": "x", "to": "x", "status": "established", "kept": True, "weight": 1.0, "p": 0.0, "effect": 0.5}
EDGE |= {"statistic": 3.0, "detectable": 0.1, "why": "a", "needs": "b", "weight_ci95": [0.5, 1.0]}
GRAPH: dict[str, Any] = {
    "dataset": "because/walk-v1",
    "inputs": ["x", "push"],
    "targets": ["x"],
    "settings": {"n": 5, "test": "gtest"},
}
GRAPH |= {"edges": [EDGE, EDGE | {"from": "push", "status": "excluded", "kept": False, "weight": 0.0}]}
GRAPH |= {"sufficiency": {"x": {"loss": 0.1, "p": 0.2, "reopened": ["push"], "suffices": False}}}
GRAPH |= {"score": {"f1": 0.9, "shd": 1, "precision": 1.0, "recall": 0.9, "missed": [["push", "x"]], "false": []}}
TABLE = {"rows": [{"method": "a", "task": f"walk-{n}", "per_seed": [0.5, 1.0], "cells": ["a-0"]} for n in range(2)]}
ORACLE = {"rows": [{"world": "walk", "split": "I", "success": 0.9, "low95": 0.8, "high95": 1.0}]}
METRICS = {"stage": "world", "step": 10, "loss": [0.5, None]}


def _use_graph(file: Path) -> None:
    graph = read_record(file, "graph")
    explore({"dataset": "x"} | graph)
    mask = CausalMask.from_dict(read_record(file, "mask"))
    to_dot(mask)
    to_graphml(mask)


def _use_table(file: Path) -> None:
    results = read_results(file)
    compare(results, results)


def _use_metrics(file: Path) -> None:
    lines = read_metrics(file.parent)
    if lines:
        Curves.from_metrics("a", "b", lines)


FILES: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    "cells/a-0.json": (CELL, lambda file: read_grid_results(file.parents[1])),
    "graph.json": (GRAPH, _use_graph),
    "table.json": (TABLE, _use_table),
    "oracle.json": (ORACLE, lambda file: _oracle(file, "walk", [])),
    "metrics.jsonl": (METRICS, _use_metrics),
}
"""Name of a file -> its sound content, and what a command does with it."""


def record_case(rng: Rng, base: Path, work: Path) -> Case:
    """A damaged file of ours."""
    name = pick(rng, sorted(FILES))
    tree, use = FILES[name]
    whats = []
    if rng.random() < 0.8:
        for _ in range(int(rng.integers(1, 4))):
            what, tree = damage.damage_tree(rng, tree)
            whats.append(what)
        data = damage.as_json(tree).replace("\n", " ").encode("utf-8", "surrogatepass")
    else:
        what, data = damage.damage_bytes(rng, json.dumps(tree).encode())
        whats.append(what)
    file = work / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)

    def read() -> str:
        use(file)
        return "accepted"

    return f"{name}: {', '.join(whats)}", read


# HDF5 structures ---------------------------------------------------------------------------------------


def structure_case(rng: Rng, base: Path, work: Path) -> Case:
    """A log with links, storage elsewhere, cycles, or arrays that declare more than they hold."""
    path, rows = work / "log.hdf5", 120
    (work / "raw").write_bytes(bytes(8 * rows))
    names = ("observations", "actions", "rewards", "goals", "terminations", "episodes", "infos")
    whats = []
    with h5py.File(path, "w") as file:
        for name in names[: int(rng.integers(2, len(names)))]:
            try:
                what = _add_array(rng, file, name, rows)
            except (KeyError, RuntimeError):  # what it links to cannot be reached, or not yet
                what = "same"
            whats.append(f"{name} {what}")
        if "episodes" not in file:
            file["episodes"] = np.arange(rows) // 5

    def read() -> str:
        log = read_log(path)
        if any(what.split()[1] not in ("plain", "group") for what in whats if not what.startswith("infos")):
            raise Wrong("a log that is not whole in its file")
        return "accepted" if len(log.episodes) == rows // 5 else "unprotected"

    return ", ".join(whats), read


def _add_array(rng: Rng, file: Any, name: str, rows: int) -> str:
    ways = (*("plain",) * 20, "external", "soft", "storage", "virtual", "same", "cycle", "huge", "packed")
    what = pick(rng, ways)
    values = np.arange(rows) // 5 if name == "episodes" else np.zeros((rows, 1))
    if what == "external":
        file[name] = h5py.ExternalLink(pick(rng, ("log.hdf5", "raw", "/dev/zero", "gone")), "/x")
    elif what == "soft":
        file[name] = h5py.SoftLink(pick(rng, ("/", "/gone", f"/{name}", "/observations")))
    elif what == "storage":
        file.create_dataset(name, (rows,), "f8", external=[("raw", 0, 8 * rows)])
    elif what == "virtual":
        layout = h5py.VirtualLayout((rows,), "f8")
        layout[:] = h5py.VirtualSource("raw", "x", (rows,))
        file.create_virtual_dataset(name, layout)
    elif what == "same":
        file[name] = file[next(iter(file))] if len(file) else file["/"]
    elif what == "cycle":
        file.create_group(name)["observations"] = file["/"]
    elif what == "huge":
        file.create_dataset(name, (int(2 ** rng.uniform(30, 60)),), "f4", chunks=(2**16,))
    elif what == "packed":
        file.create_dataset(name, (2**26,), "f8", chunks=(2**20,), compression="gzip")
    else:
        file[name] = values
    return what


# Names -------------------------------------------------------------------------------------------------

LETTERS = [chr(n) for n in (*range(128), *range(0x2000, 0x2070), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x1F5DD, 0x0301)]
FRAGMENTS = (*WORDS, "$", "\\", "{", "}", "[/b]", "[red]", '"', "]]>", "<!--", "&", "->", ";", "_", "^")


def name_case(rng: Rng, base: Path, work: Path) -> Case:
    """Factors of odd names, written in every format for graphs, and now and then drawn."""
    names = [
        "".join(pick(rng, FRAGMENTS if rng.random() < 0.7 else LETTERS) for _ in range(int(rng.integers(1, 5))))
        for _ in range(2)
    ]
    drawn = rng.random() < 0.05

    def read() -> str:
        pack(*((name, 1, "continuous") for name in names))
        for name in names:
            if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
                raise Wrong("a name with a control character")
        graph = Graph.from_parents(tuple(dict.fromkeys(names)), {names[0]: (names[-1],)})
        for text in (to_dot(graph), to_graphml(graph), to_node_link(graph)):
            text.encode()
        if drawn:
            render(draw_graph(graph, names[0]), Path("graph.svg"))
        return "accepted"

    return ascii(names), read
