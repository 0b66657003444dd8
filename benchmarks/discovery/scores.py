"""Edge scores on fresh datasets: collect each, discover its graph, compare with the true one.

The settings of discovery were chosen on dataset seeds 0 to 2, with the true graphs known; only other seeds count.
Every dataset's verdict is a file of its own, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe, all_recipes
from because_rl.discovery.discover import choose_test, discover
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import STATUSES
from because_rl.graph import Graph, score
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance
from because_rl.statistics import t_interval

FRESH = (11, 12, 13, 14, 15)
"""Default dataset seeds."""
DISTRACTORS = ("colour", "cue", "marker")
"""How the names of distractor factors start."""
POOLED = "pooled"
"""Suffix of verdicts that ignore hidden causes, which show how the confounder biases such a test."""

Report = Callable[[int, int], None]


def scores(
    names: Sequence[str] | None,
    seeds: Sequence[int],
    spurious: Sequence[int],
    folder: Path,
    report: Report = lambda done, total: None,
    workers: int = 1,
    pooled: bool = False,
) -> dict[str, Any]:
    """Mean scores per dataset and spurious level over `seeds`.

    Args:
        names: recipes such as "lift-expert"; None for all nine.
        seeds: of the datasets.
        spurious: spurious levels.
        folder: where datasets and verdicts are kept.
        report: called with (verdicts done, verdicts in total).
        workers: processes that share the work.
        pooled: adds, for the worlds with continuous factors, verdicts that ignore hidden causes.

    Returns:
        JSON-ready: "rows" (see `_row`), "verdicts" and "provenance".
    """
    recipes = [Recipe.parse(name) for name in names] if names else all_recipes()
    jobs = [
        (Recipe(r.world, r.behaviour, r.episodes, seed, level), hidden)
        for level in spurious
        for r in reversed(recipes)  # the slowest worlds first
        for seed in seeds
        for hidden in (True, False)
        if hidden or (pooled and r.world != "unlock")
    ]
    done = 0
    if workers > 1:
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(variable, "1")  # the workers are the parallelism
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for future in as_completed([pool.submit(_verdict, folder, *job) for job in jobs]):
                future.result()
                report(done := done + 1, len(jobs))
    else:
        for job in jobs:
            _verdict(folder, *job)
            report(done := done + 1, len(jobs))
    verdicts = [{k: v for k, v in read_json(_file(folder, *job)).items() if k != "mask"} for job in jobs]
    groups: dict[tuple[str, int, bool], list[dict[str, Any]]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict["dataset"], verdict["spurious"], verdict["hidden_causes"]), []).append(verdict)
    return {
        "rows": [_row(*key, group) for key, group in sorted(groups.items())],
        "verdicts": verdicts,
        "provenance": provenance(seeds=list(seeds), spurious=list(spurious), datasets=[r.id for r in recipes]),
    }


def _file(folder: Path, recipe: Recipe, hidden: bool) -> Path:
    return folder / "verdicts" / f"{recipe.id.partition('/')[2]}{'' if hidden else '-' + POOLED}.json"


def _verdict(folder: Path, recipe: Recipe, hidden: bool) -> None:
    """Collect a dataset, discover its graph and write its scores, unless that file exists."""
    path = _file(folder, recipe, hidden)
    if path.exists():
        return
    collect(recipe, folder / "data", workers=1)
    data = load(recipe.id, folder / "data")
    test = choose_test(data.factors)
    begin = time.perf_counter()
    chosen = test if hidden else ResidualTest(confounder=False)
    mask = discover(data, test=chosen, batches=0, seed=recipe.seed)
    seconds = time.perf_counter() - begin
    truth = Graph.from_dict(data.metadata["because"]["true_graph"])
    rows = mask.rows()
    pairs = {status: [(r["from"], r["to"]) for r in rows if r["status"] == status] for status in STATUSES}
    sure = Graph(mask.inputs, mask.targets, frozenset(pairs["established"] + pairs["forced"]))
    result = {
        "dataset": f"{recipe.world}-{recipe.behaviour}",
        "seed": recipe.seed,
        "spurious": recipe.spurious,
        "hidden_causes": hidden,
        "test": test,
        "n": len(data),
        "seconds": round(seconds, 1),
        "score": score(sure, truth).to_dict(),
        "score_without_rare": score(sure, truth, count_rare=False).to_dict(),
        "kept": score(mask.graph, truth).to_dict(),
        "pairs": len(rows),
        "undetermined": [edge for edge in pairs["undetermined"]],
        "true_undetermined": [edge for edge in pairs["undetermined"] if edge in truth.edges],
        "true_excluded": [edge for edge in pairs["excluded"] if edge in truth.edges],
        "mask": mask.to_dict(),
    }
    write_json(path, result)


def _row(dataset: str, spurious: int, hidden: bool, group: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds of the established edges, without the rare edges that data of this size cannot show.

    `all_f1` counts these too; `recall_decided` leaves out true edges that are undetermined.
    """
    main = [v["score_without_rare"] for v in group]
    f1 = np.array([v["f1"] for v in main])
    low, high = t_interval(f1)
    return {
        "dataset": dataset,
        "spurious": spurious,
        "hidden_causes": hidden,
        "seeds": [v["seed"] for v in group],
        "f1": float(f1.mean()),
        "low95": float(low),
        "high95": float(high),
        "precision": float(np.mean([v["precision"] for v in main])),
        "recall": float(np.mean([v["recall"] for v in main])),
        "shd": float(np.mean([v["shd"] for v in main])),
        "recall_decided": float(np.mean([_recall_decided(v) for v in group])),
        "true_excluded": sum(len(v["true_excluded"]) for v in group),
        "undetermined": float(np.mean([len(v["undetermined"]) / v["pairs"] for v in group])),
        "kept_precision": float(np.mean([v["kept"]["precision"] for v in group])),
        "kept_recall": float(np.mean([v["kept"]["recall"] for v in group])),
        "all_f1": float(np.mean([v["score"]["f1"] for v in group])),
        "from_distractors": sum(map(_from_distractors, main)),
        "seconds": float(np.median([v["seconds"] for v in group])),
    }


def _recall_decided(verdict: dict[str, Any]) -> float:
    """Share of the true edges that are established, of those that the data decide."""
    missed = len(verdict["score"]["missed"])
    true = missed / max(1 - verdict["score"]["recall"], 1e-12) if missed else 1.0
    decided = true - len(verdict["true_undetermined"])
    return 1.0 if not missed else float((true - missed) / decided)


def _from_distractors(edge_score: dict[str, Any]) -> int:
    """Number of false edges whose source is a distractor."""
    return sum(source.startswith(DISTRACTORS) for source, _ in edge_score["false"])
