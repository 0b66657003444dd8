"""Are regimes, and the graph of each, recovered where the graph changes at unknown times? A file per draw and noise.

Regimes have no names, so theirs are matched to the true ones by the assignment with the most rows in common. Regimes
without a partner count: rows of a surplus regime are wrong, and a true regime that was missed has F1 0. Self-edges do
not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from because_rl.discovery.mask import CausalMask
from because_rl.discovery.regimes.masks import discover_regimes
from because_rl.errors import BecauseError
from because_rl.graph import Edge, Graph
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance, revision
from because_rl.rng import child_seed
from because_rl.statistics import t_interval
from benchmarks.discovery.recovery import score_verdicts
from benchmarks.discovery.regime_systems import NOISES, RegimeLog, draw_log

SCORES = ("accuracy", "f1", "f1_established", "regimes", "cpu_seconds")
Report = Callable[[int, int], None]


def regime_recovery(
    noises: Sequence[str],
    draws: Sequence[int],
    regimes: int | str,
    folder: Path,
    true: int = 3,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Scores of `discover_regimes` on draws of `draw_log`.

    Args:
        noises: of `NOISES`.
        draws: seeds.
        regimes: their number, or 'auto'.
        folder: where the cells are kept; those that are there are not computed again.
        true: the number of regimes that the logs have.
        report: called with (draws done, draws in all).

    Returns:
        JSON-ready: "rows", one per noise with means and 95% intervals over draws, "cells", "provenance".
    """
    if unknown := sorted(set(noises) - set(NOISES)):
        raise BecauseError(
            f"There is no noise {unknown[0]!r}.", need=f"one of {', '.join(NOISES)}.", fix="correct the name."
        )
    cells, pairs = [], [(noise, draw) for draw in draws for noise in noises]
    for done, (noise, draw) in enumerate(pairs):
        file = Path(folder) / f"{noise}--{regimes}-of-{true}--draw{draw}.json"
        if not file.exists():
            write_json(file, examine(draw_log(noise, draw, regimes=true), regimes, noise, draw))
        cells.append(read_json(file))
        report(done + 1, len(pairs))
    rows = []
    for noise in noises:
        group = [cell for cell in cells if cell["noise"] == noise]
        row: dict[str, Any] = {"noise": noise, "draws": len(group)}
        row["edges"] = {
            verdict: {name: sum(cell["edges"][verdict][name] for cell in group) for name in counts}
            for verdict, counts in group[0]["edges"].items()
        }
        for name in SCORES:
            values = [cell[name] for cell in group]
            row[name] = {"mean": float(np.mean(values)), "least": min(values)}
            if len(group) > 1:
                low, high = t_interval(values)
                row[name] |= {"low95": float(low), "high95": float(high)}
        rows.append(row)
    settings = {"noises": list(noises), "draws": list(draws), "regimes": regimes, "true": true}
    return {"rows": rows, "cells": cells, "provenance": provenance(**settings)}


def examine(log: RegimeLog, regimes: int | str, noise: str, draw: int) -> dict[str, Any]:
    """The scores of one log."""
    begin, cpu = time.perf_counter(), time.process_time()
    out = discover_regimes(log.data, regimes, seed=child_seed(draw, "regimes", noise), batches=0)
    seconds = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
    partner, accuracy = match(out.regimes.label, out.regimes.count, log.regime, len(log.graphs))
    graphs = [
        score_regime(out.masks[k], log.graphs[true]) | {"regime": k + 1, "true": true + 1}
        for k, true in partner.items()
    ]
    missing = len(log.graphs) - len(graphs)
    return {
        "noise": noise,
        "draw": draw,
        "n": len(log.data),
        "regimes": out.regimes.count,
        "accuracy": accuracy,
        **{name: float(np.mean([g[name] for g in graphs] + [0.0] * missing)) for name in ("f1", "f1_established")},
        **{name: round(value, 2) for name, value in seconds.items()},
        "graphs": graphs,
        "edges": check_verdicts(out.edges, log.graphs),
        "scores": list(out.regimes.scores),
        "revision": revision(),
    }


def check_verdicts(edges: Mapping[Edge, str], graphs: Sequence[Graph]) -> dict[str, dict[str, int]]:
    """Of each verdict, the edges, and how many are true in all graphs and in some but not all; without self-edges."""
    out = {verdict: {"edges": 0, "in_all": 0, "in_part": 0} for verdict in ("stable", "bound", "open")}
    for edge, verdict in edges.items():
        if edge[0] != edge[1]:
            times = sum(edge in graph.edges for graph in graphs)
            out[verdict]["edges"] += 1
            out[verdict]["in_all"] += times == len(graphs)
            out[verdict]["in_part"] += 0 < times < len(graphs)
    return out


def match(label: np.ndarray, count: int, true: np.ndarray, true_count: int) -> tuple[dict[int, int], float]:
    """Regime -> true regime, with most rows in common, and the share of rows in it.

    >>> match(np.array([1, 1, 0, 2]), 3, np.array([0, 0, 1, 1]), 2)
    ({0: 1, 1: 0}, 0.75)
    """
    common = np.zeros((count, true_count), int)
    np.add.at(common, (label, true), 1)
    rows, columns = linear_sum_assignment(-common)
    partner = {int(k): int(j) for k, j in zip(rows, columns, strict=True)}
    return partner, float(common[rows, columns].sum() / len(label))


def score_regime(mask: CausalMask, truth: Graph) -> dict[str, Any]:
    """F1 of the edges that the mask keeps (`f1`) and of those that are established alone, without self-edges."""
    true = {edge for edge in truth.edges if edge[0] != edge[1]}
    kept = {edge for edge in mask.graph.edges if edge[0] != edge[1]}
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for row in mask.rows():
        verdicts.setdefault(row["status"], []).append((row["from"], row["to"]))
    strict = score_verdicts(verdicts, truth)
    return {
        "f1": 2 * len(kept & true) / (len(kept) + len(true)),
        "missed": sorted(true - kept),
        "false": sorted(kept - true),
        "undetermined": strict["undetermined"],
        "f1_established": strict["f1_established"],
        "false_established": strict["false_established"],
    }
