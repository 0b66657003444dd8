"""Do discovery and other methods recover the graphs of systems whose equations are known?

A cell is a system, a behaviour, a size, a seed and a method; each is a file of its own, so an interrupted run goes on
where it stopped. All methods get the same rows. Self-edges do not count: discovery forces them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from because_rl.discovery.discover import discover
from because_rl.errors import BecauseError
from because_rl.graph import Edge, Graph
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance, revision
from because_rl.rng import child_seed, stream
from because_rl.transitions import Transitions
from benchmarks.discovery.graph_peers import PEERS, require, versions
from benchmarks.discovery.synthetic import sparse, thermostat
from benchmarks.discovery.systems import BEHAVIOURS, CLASSIC, System, with_drift

OURS = "because"
METHODS = (OURS, *PEERS)
NAMES = (*CLASSIC, "thermostat")
SIZES = ("2000", "10000", "50000")
"""By default. 'N': N rows in episodes of 100; 'GxT': G episodes of T rows, as in '30x100'. Where episodes end early
(cartpole, mountaincar), as many rows in more episodes."""
LENGTH = 100
SPARSE = re.compile(r"(linear|nonlinear)-(\d+)x(\d+)")
DRIFT = "+drift"

Report = Callable[[int, int], None]
Verdicts = dict[str, list[Edge]]
"""status -> edges; "established" and "undetermined" matter"""


class Cell(NamedTuple):
    """What one file is about."""

    system: str
    behaviour: str
    size: str
    seed: int
    method: str


def make_system(name: str) -> System:
    """The system of this name: one of `NAMES`, or 'linear-DxK' or 'nonlinear-DxK' with D state factors and K actions.

    With the suffix '+drift' it has one more factor that causes nothing.

    >>> make_system("linear-3x1").factors.inputs, make_system("mountaincar+drift").factors.targets
    (('s0', 's1', 's2', 'a0'), ('position', 'velocity', 'drift'))
    """
    if name.endswith(DRIFT):
        return with_drift(make_system(name.removesuffix(DRIFT)))
    if name in CLASSIC:
        return CLASSIC[name]
    if name == "thermostat":
        return thermostat()
    if match := SPARSE.fullmatch(name):
        return sparse(int(match[2]), int(match[3]), match[1] == "linear")
    raise BecauseError(
        f"There is no system {name!r}.",
        need=f"one of {', '.join(NAMES)}, or linear-DxK or nonlinear-DxK; all with or without {DRIFT}.",
        fix="correct the name.",
    )


def parse_size(size: str) -> tuple[int, int]:
    """(rows, rows of an episode).

    >>> parse_size("2000"), parse_size("30x200")
    ((2000, 100), (6000, 200))
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", size)
    if match is None:
        raise BecauseError(f"Got size {size!r}.", need="rows, or episodes x rows of each.", fix="try 2000 or 30x100.")
    length = int(match[2] or LENGTH)
    return int(match[1]) * (length if match[2] else 1), length


def recovery(
    systems: Sequence[str],
    behaviours: Sequence[str],
    sizes: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    folder: Path,
    report: Report = lambda done, total: None,
    workers: int = 1,
) -> dict[str, Any]:
    """Scores of each method on each system.

    Args:
        systems: names that `make_system` knows.
        behaviours: of `BEHAVIOURS`.
        sizes: as `parse_size` reads them.
        seeds: of the rows.
        methods: of `METHODS`.
        folder: where the cells are kept.
        report: called with (cells done, cells in all).
        workers: processes that share the data sets.

    Returns:
        JSON-ready: "rows", one per system, behaviour, size and method with means over seeds, "cells", "provenance".
    """
    _check(systems, behaviours, sizes, methods)
    logs = [
        Cell(system, behaviour, size, seed, OURS)
        for system, behaviour, size, seed in itertools.product(systems, behaviours, sizes, seeds)
    ]
    done, total = 0, len(logs) * len(methods)
    if workers > 1:
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(variable, "1")  # the workers are the parallelism
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for future in as_completed([pool.submit(run_log, folder, log, tuple(methods)) for log in logs]):
                future.result()
                report(done := done + len(methods), total)
    else:
        for log in logs:
            for method in methods:
                run_log(folder, log, (method,))
                report(done := done + 1, total)
    cells = [read_json(_file(folder, log._replace(method=method))) for method in methods for log in logs]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in ("system", "behaviour", "size", "method")), []).append(cell)
    settings = {"systems": list(systems), "behaviours": list(behaviours), "sizes": list(sizes), "seeds": list(seeds)}
    return {
        "rows": [_row(group) for group in groups.values()],
        "cells": cells,
        "provenance": provenance(**settings, methods=list(methods), peers=versions()),
    }


def run_log(folder: Path, log: Cell, methods: Sequence[str]) -> None:
    """Write the cells of one log that have no file yet; `log.method` does not matter."""
    missing = [cell for cell in (log._replace(method=method) for method in methods) if not _file(folder, cell).exists()]
    if not missing:
        return
    system = make_system(log.system)
    rng = stream(log.seed, "system", log.system, log.behaviour, log.size)
    data = system.transitions(rng, log.behaviour, *parse_size(log.size))
    for cell in missing:
        write_json(_file(folder, cell), _examine(cell, system, data))


def _examine(cell: Cell, system: System, data: Transitions) -> dict[str, Any]:
    """The scores of one method on these rows; "failed" if discovery refuses them or another method breaks."""
    seed = child_seed(cell.seed, "recovery", *map(str, cell))
    out: dict[str, Any] = {**cell._asdict(), "n": len(data), "episodes": data.episodes, "revision": revision()}
    peer = None if cell.method == OURS else require(cell.method)
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        verdicts = discovered(data, seed) if peer is None else reported(data, peer(data, seed))
    except Exception as error:
        if isinstance(error, ImportError) or (peer is None and not isinstance(error, BecauseError)):
            raise
        return out | {"failed": f"{type(error).__name__}: {error}"}
    out |= {"seconds": round(time.perf_counter() - begin, 2), "cpu_seconds": round(time.process_time() - cpu, 2)}
    return out | score_verdicts(verdicts, system.graph) | {"verdicts": {k: sorted(v) for k, v in verdicts.items()}}


def discovered(data: Transitions, seed: int) -> Verdicts:
    """The verdicts of `discover` with its default settings."""
    verdicts: Verdicts = {}
    for row in discover(data, batches=0, seed=seed).rows():
        verdicts.setdefault(row["status"], []).append((row["from"], row["to"]))
    return verdicts


def reported(data: Transitions, edges: np.ndarray) -> Verdicts:
    """The edges (inputs, targets) that another method reports, which knows no doubt."""
    names = data.factors.inputs, data.factors.targets
    return {"established": [(names[0][i], names[1][j]) for i, j in np.argwhere(edges)]}


def score_verdicts(verdicts: Verdicts, truth: Graph) -> dict[str, Any]:
    """Scores against the true graph, without self-edges.

    precision = |established and true| / |established| (1 if none is established);
    recall = |(established or undetermined) and true| / |true|; F1 is their harmonic mean. An undetermined edge is no
    claim, so `recall_established` and `f1_established` count it as missed.
    """
    true = {edge for edge in truth.edges if edge[0] != edge[1]}
    established, undetermined = (
        {edge for edge in map(tuple, verdicts.get(status, ())) if edge[0] != edge[1]}
        for status in ("established", "undetermined")
    )
    precision = len(established & true) / len(established) if established else 1.0
    recall, strict = (
        len(edges & true) / len(true) if true else 1.0 for edges in (established | undetermined, established)
    )
    return {
        "precision": precision,
        "recall": recall,
        "f1": _harmonic(precision, recall),
        "recall_established": strict,
        "f1_established": _harmonic(precision, strict),
        "undetermined": len(undetermined),
        "true": len(true),
        "possible": len(truth.inputs) * len(truth.targets) - len(truth.targets),
        "false_established": sorted(established - true),
        "missed": sorted(true - established - undetermined),
    }


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0


def _row(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds of the cells that did not fail."""
    head = {name: group[0][name] for name in ("system", "behaviour", "size", "method")}
    passed = [cell for cell in group if "failed" not in cell]
    row = head | {"seeds": [cell["seed"] for cell in group], "failed": len(group) - len(passed)}
    names = ("precision", "recall", "f1", "recall_established", "f1_established", "undetermined", "seconds")
    return row | {name: float(np.mean([cell[name] for cell in passed])) for name in names if passed}


def _check(systems: Sequence[str], behaviours: Sequence[str], sizes: Sequence[str], methods: Sequence[str]) -> None:
    """Raise an error about any name that is unknown, or about packages that are missing, before the first cell."""
    for what, names, known in (("behaviour", behaviours, BEHAVIOURS), ("method", methods, METHODS)):
        if unknown := [name for name in names if name not in known]:
            raise BecauseError(
                f"There is no {what} {unknown[0]!r}.", need=f"one of {', '.join(known)}.", fix="correct the name."
            )
    for name in systems:
        make_system(name)
    for size in sizes:
        parse_size(size)
    for method in methods:
        if method != OURS:
            require(method)


def _file(folder: Path, cell: Cell) -> Path:
    return Path(folder) / f"{cell.system}--{cell.behaviour}--{cell.size}--seed{cell.seed}--{cell.method}.json"
