"""Two ways to read factors from pictures, trained on the same episodes and compared with the truth in new scenes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment

from because_rl.datasets.collect import collect
from because_rl.datasets.pictures import Pictures, load_pictures
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.discover import discover
from because_rl.envs.tasks import SPLITS, world_class
from because_rl.envs.unlock.pictures import draw
from because_rl.evaluation.one_step import new_steps
from because_rl.evaluation.recovery import Match, accuracy, edge_score
from because_rl.factors import FactorSpec
from because_rl.provenance import provenance
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from because_rl.vision.encoder import STEPS, fit_encoder
from benchmarks.vision.limits import SCENES
from benchmarks.vision.slots import SLOTS, fit_slots


class Reader(Protocol):
    """Anything that reads the columns of factors from pictures."""

    @property
    def factors(self) -> FactorSpec: ...

    def read(self, frames: np.ndarray) -> np.ndarray: ...


def match_columns(read: np.ndarray, spec: FactorSpec, true: np.ndarray, true_spec: FactorSpec) -> dict[str, Match]:
    """True factor -> the factor, one to one, and the columns of ``with_opposites(read)``, with which most frames agree.

    More lenient than `because_rl.evaluation.recovery.match_factors`: a factor may have more columns than the true one,
    and a column may be its opposite. `read` is (n, columns of `spec`) and `true` (n, columns of `true_spec`), 0 and 1.
    """
    both = with_opposites(read)
    agreement = np.zeros((len(true_spec.state), len(spec.state)))
    columns: dict[tuple[int, int], np.ndarray] = {}
    for i, wanted in enumerate(true_spec.state):
        a = true[:, wanted.slice]
        for j, factor in enumerate(spec.state):
            own = np.r_[factor.slice, factor.start + read.shape[1] : factor.stop + read.shape[1]]
            if len(own) < wanted.width:
                continue
            same = a.T @ both[:, own] + (1 - a).T @ (1 - both[:, own])
            columns[i, j] = own[linear_sum_assignment(-same)[1]]
            agreement[i, j] = (a == both[:, columns[i, j]]).all(1).mean()
    pairs = zip(*linear_sum_assignment(-agreement), strict=True)
    return {true_spec.state[i].name: Match(spec.state[j].name, columns[i, j]) for i, j in pairs if (i, j) in columns}


def with_opposites(read: np.ndarray) -> np.ndarray:
    """(n, 2 m): the columns and 1 minus each."""
    return np.concatenate([read, 1 - read], axis=1)


def to_transitions(reader: Reader, pictures: Pictures) -> Transitions:
    """The log in the columns of a reader, without a goal."""
    state = reader.read(pictures.frames)
    after = state[pictures.before + 1]
    return Transitions.from_arrays(
        state[pictures.before], pictures.action, after, pictures.episode, factors=replace(reader.factors, goal=())
    )


def score_reader(reader: Reader, pictures: Pictures, recipe: Recipe, scenes: int = SCENES) -> dict[str, Any]:
    """The share of frames of new scenes in which each true factor is right, by split, and the edge score of the graph.

    Factors are matched on every other frame of both splits; the others count.
    """
    world = world_class(recipe.world)
    truth, plain = world.make_factors(recipe.spurious), replace(recipe, visual=False)
    states = {split: new_steps(plain, split, scenes, truth).state for split in SPLITS}
    known = np.concatenate([rows[::2] for rows in states.values()])
    matches = match_columns(reader.read(draw(known)), reader.factors, known, truth)
    right = {
        split: accuracy(matches, with_opposites(reader.read(draw(rows[1::2]))), rows[1::2], truth)
        for split, rows in states.items()
    }
    graph = discover(to_transitions(reader, pictures), batches=0).graph
    edges = edge_score(graph, matches, world.make_true_graph(recipe.spurious))
    named = {name: match.factor for name, match in matches.items()}
    return {"matches": named, "read": right, "edges": edges}


def compare_readers(
    recipe: Recipe,
    root: Path | None = None,
    steps: tuple[int, int] = (STEPS, 4000),
    seeds: Iterable[int] = range(3),
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """A row for each way to read factors and each seed of its training.

    Args:
        recipe: of the dataset, which is collected if it is not there.
        root: where datasets live.
        steps: of training, of the codes of cells and of the slots.
        seeds: of training.
        report: called with (trainings done, trainings in all).
    """
    collect(recipe, root)
    pictures, seeds = load_pictures(recipe.id, root), tuple(seeds)
    ways: Mapping[str, Callable[[int], Reader | None]] = {
        "codes of cells": lambda seed: fit_encoder(pictures, Run([seed]), steps[0]),
        "slot autoencoder": lambda seed: fit_slots(pictures, Run([seed]), steps[1]),
    }
    rows: list[dict[str, Any]] = []
    for number, (way, make) in enumerate(ways.items()):
        for k, seed in enumerate(seeds):
            report(number * len(seeds) + k, len(ways) * len(seeds))
            begin = time.perf_counter()
            reader = make(seed)
            row: dict[str, Any] = {"way": way, "seed": seed, "steps": steps[number], "factors": 0}
            row["seconds"] = round(time.perf_counter() - begin, 1)
            if reader is not None:
                row |= {"factors": len(reader.factors.state)} | score_reader(reader, pictures, recipe)
            rows.append(row)
    report(len(ways) * len(seeds), len(ways) * len(seeds))
    return {"rows": rows, "provenance": provenance(recipe=recipe.to_dict(), scenes=SCENES, slots=SLOTS)}


def reader_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each training: factors, the share of frames in which all are right and each is, and edge F1."""
    rows = []
    for row in result["rows"]:
        shown = {"way": row["way"], "seed": row["seed"], "steps": row["steps"], "factors": row["factors"]}
        read = row.get("read", {})
        names = [name for name in next(iter(read.values()), ()) if name != "all"]
        shown |= {f"all {split}": f"{right['all']:.3f}" for split, right in read.items()}
        shown |= {name: f"{np.mean([right[name] for right in read.values()]):.3f}" for name in names}
        rows.append(shown | ({"edge F1": f"{row['edges']['f1']:.3f}"} if read else {}))
    return rows
