"""Edge scores on RDDL problems: log a behaviour, discover as `because fit` does, compare with the true graph.

World models take a factor's own past for a cause without asking (status *forced*), but its test is made as for every
other input. The score counts what the rows establish: edges to next states with this status, and a factor's own past
where its own p-value and effect would give it this status. So nothing assumed counts as discovered, right or wrong,
and no true edge is left out. Two more scores stand beside it: with every own past that is assumed, as in the graph of
a fit, and without own pasts on both sides. Edges to the reward are discovered too, as in every fit with rewards, and
not scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.load import load
from because_rl.discovery.discover import choose_test, discover
from because_rl.discovery.mask import STATUSES, CausalMask
from because_rl.errors import BecauseError
from because_rl.graph import Graph, score
from because_rl.io import read_json, write_arrays, write_json
from because_rl.provenance import provenance
from because_rl.rng import stream
from benchmarks.third_party.logs import BEHAVIOURS, ROWS, behaviour, make_factors, make_log, play, with_cue
from benchmarks.third_party.rddl import PROBLEMS, Problem, load_problem
from benchmarks.third_party.truth import true_graph

Report = Callable[[int, int], None]


def graphs(
    keep: Path,
    problems: Sequence[str] = (),
    behaviours: Sequence[str] = (),
    seeds: Sequence[int] = (500,),
    rows: int = ROWS,
    test: str | None = None,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Score the discovered graph of every problem, behaviour and log seed.

    Args:
        keep: a folder for logs and verdicts; what is there is not made again.
        problems: of `PROBLEMS`, or others of the repository; empty: all of `PROBLEMS`.
        behaviours: of `BEHAVIOURS`; empty: all.
        seeds: of the logs; 500 to 599 are for development.
        rows: of each log.
        test: of independence; None: as `because fit` chooses.
        report: called with (graphs scored, graphs in all).

    Returns:
        A row for each log, the mean of each problem, and the mean of these.
    """
    if unknown := set(behaviours) - set(BEHAVIOURS):
        raise BecauseError(
            f"There is no behaviour {min(unknown)!r}.", need=f"one of {', '.join(BEHAVIOURS)}.", fix="correct it."
        )
    names = problems or PROBLEMS
    jobs = [(name, by, seed) for name in names for seed in seeds for by in behaviours or BEHAVIOURS]
    results = []
    for done, (name, by, seed) in enumerate(jobs):
        report(done, len(jobs))
        file = keep / f"{name}-{rows}" / f"{by}-{seed}" / f"graph-{test or 'default'}.json"
        if not file.exists():
            write_json(file, _row(load_problem(name), by, seed, rows, test, keep))
        evidence = read_json(file)
        truth = Graph.from_dict(read_json(_truth_file(keep, name))["graph"])
        verdicts = compare(CausalMask.from_dict(evidence.pop("mask")), with_cue(truth) if by == "confounded" else truth)
        results.append(evidence | verdicts)
    report(len(jobs), len(jobs))
    means = [{"problem": name, **mean_scores([row for row in results if row["problem"] == name])} for name in names]
    settings = {"problems": list(names), "seeds": list(seeds), "rows": rows, "test": test}
    return {
        "rows": results,
        "problems": means,
        "mean_f1": float(np.mean([row["f1"] for row in means])),
        **{f"mean_{key}": float(np.mean([row[key] for row in means])) for key in ("f1_assumed", "f1_without_own_past")},
        "provenance": provenance(**settings),
    }


def mean_scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Over the logs of a problem."""
    return {
        **{key: float(np.mean([row["score"][key] for row in rows])) for key in ("f1", "precision", "recall")},
        "f1_assumed": float(np.mean([row["score_assumed"]["f1"] for row in rows])),
        "f1_without_own_past": float(np.mean([row["score_without_own_past"]["f1"] for row in rows])),
        **{key: float(np.mean([row[key] for row in rows])) for key in ("undetermined", "recall_decided", "seconds")},
        "kept_f1": float(np.mean([row["kept"]["f1"] for row in rows])),
        "true_excluded": float(np.mean([len(row["true_excluded"]) for row in rows])),
    }


def cached_log(problem: Problem, by: str, seed: int, rows: int, keep: Path) -> Path:
    """The file of a log, which is made if it is not there."""
    file = keep / f"{problem.name}-{rows}" / f"{by}-{seed}" / "log.npz"
    if not file.exists():
        write_arrays(
            file, {name: part for name, part in make_log(problem, by, seed, rows).items() if name != "episode"}
        )
    return file


def cached_truth(problem: Problem, keep: Path) -> dict[str, Any]:
    """The true graph as JSON, with how often each input shows; from the states of 40,000 rows of two behaviours."""
    file = _truth_file(keep, problem.name)
    if not file.exists():
        rng, states = stream(0, "third party", problem.name, "truth"), []
        for by in ("random", "medium"):
            log = play(problem, behaviour(problem, by, rng), -(-ROWS // problem.horizon), rng)
            states.append(log["observations"][:, :-1])
        truth = true_graph(problem, np.concatenate(states), rng)
        write_json(
            file,
            {
                "graph": truth.graph.to_dict(),
                "share": truth.share.tolist(),
                "named": int(truth.named.sum()),
                "provenance": provenance(problem=problem.name),
            },
        )
    return read_json(file)


def _truth_file(keep: Path, name: str) -> Path:
    return keep / "truth" / f"{name}.json"


def _row(problem: Problem, by: str, seed: int, rows: int, test: str | None, keep: Path) -> dict[str, Any]:
    log = cached_log(problem, by, seed, rows, keep)
    known = cached_truth(problem, keep)
    data = load(log, factors=make_factors(problem, by == "confounded"))
    begin = time.perf_counter()
    mask = discover(data, test=test, batches=0, seed=seed)
    return {
        "problem": problem.name,
        "behaviour": by,
        "seed": seed,
        "rows": len(data),
        "episodes": data.episodes,
        "test": test or choose_test(data.factors),
        "named": known["named"],
        "seconds": round(time.perf_counter() - begin, 1),
        "mask": mask.to_dict(),
        "provenance": provenance(),
    }


def shows(row: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether the rows would establish an edge that is forced: by the rule of `decide`, from its p-value and effect."""
    least = settings.get("least_effect", 0.0)
    return row["detectable"] is not None and row["p"] < settings["threshold"] and row["effect"] >= least


def compare(mask: CausalMask, truth: Graph) -> dict[str, Any]:
    """The verdicts on the edges to the targets of `truth`, beside it."""
    rows = [row for row in mask.rows() if row["to"] in truth.targets and row["from"] in truth.inputs]
    pairs = {status: [(r["from"], r["to"]) for r in rows if r["status"] == status] for status in STATUSES}

    def compared(edges: list[tuple[str, str]], own: bool = True) -> dict[str, Any]:
        have, want = (
            Graph(truth.inputs, truth.targets, frozenset((i, j) for i, j in given if own or i != j))
            for given in (edges, truth.edges)
        )
        return score(have, want).to_dict()

    own = [(r["from"], r["to"]) for r in rows if r["status"] == "forced" and shows(r, mask.settings)]
    sure = pairs["established"] + own
    hits = len(truth.edges & set(sure))
    doubtful = [(r["from"], r["to"]) for r in rows if r["status"] == "forced" and r["detectable"] is None]
    undetermined = [edge for edge in pairs["undetermined"] + doubtful if edge in truth.edges - {*own}]
    decided = len(truth.edges) - len(undetermined)
    return {
        "score": compared(sure),
        "score_assumed": compared(pairs["established"] + pairs["forced"]),
        "score_without_own_past": compared(sure, own=False),
        "kept": compared([(r["from"], r["to"]) for r in rows if r["kept"]]),
        "true_edges": len(truth.edges),
        "pairs": len(rows),
        "undetermined": len(pairs["undetermined"]) / len(rows),
        "true_undetermined": undetermined,
        "true_excluded": [edge for edge in pairs["excluded"] if edge in truth.edges],
        "recall_decided": hits / decided if decided else 1.0,
    }
