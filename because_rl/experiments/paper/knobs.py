"""Success against a knob of the data: how many there are (`fig-samples`), how many distractors they have
(`fig-spurious`), how often they show a door tried without its key (`fig-coverage`). BECAUSE and MOPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from because_rl.envs.tasks import SPLITS, WORLDS
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.study import Experiment, Product, Row, Scale, success_rows, trainings
from because_rl.experiments.paper.text import called, chance, percent, table
from because_rl.report.paper_figures import draw_knob
from because_rl.statistics import holm, mean, welch

METHODS = ("because", "mopo")
Knob = Callable[[Mapping[str, Any]], float]
"""a dataset's recipe -> where its knob stands"""


def _product(knob: Knob, name: str, axis: str, scale: Scale, jobs: list[Job], cells: Mapping) -> Product:
    rows = [row for row in success_rows(cells) if row.split in SPLITS]
    wanted = {_task(cell["recipe"], cell["split"]) for job in jobs for cell in job.cells.values()}
    points = [_point(knob, name, row) for row in rows] + _averages(knob, name, rows, wanted)
    order = {key: n for n, key in enumerate([*WORLDS, "average"])}
    points.sort(key=lambda p: (order[p["world"]], p["policy"], p["split"], p[name], p["method"] != "because"))
    _compare(name, points)
    shown = [
        {"data": f"{p['world']} {p['policy']}".strip(), "split": p["split"], axis: f"{p[name]:g}"}
        | {
            "method": called(p["method"]),
            "success": percent(p["told"]),
            "p": chance(p["p"]),
            "Holm": chance(p["p_holm"]),
        }
        for p in points
    ]
    text = (
        "Mean over seeds of the success rate in percent, ± half of the 95% t-interval; p: one-sided Welch t-test over "
        "seeds, BECAUSE > MOPO at this point, and with Holm's adjustment over these points (not averages).\n\n"
    )
    data = [{key: value for key, value in p.items() if key not in ("told", "per_seed")} for p in points]
    figure = draw_knob(data, name, axis) if data else None
    return Product(data, text + table(shown), figure)


def _point(knob: Knob, name: str, row: Row) -> dict[str, Any]:
    where = {"world": row.recipe["world"], "policy": row.recipe["behaviour"], "split": row.split}
    return _told(where | {"method": row.label, name: knob(row.recipe)}, row.runs.per_seed)


def _told(where: dict[str, Any], per_seed: Any) -> dict[str, Any]:
    told = mean(per_seed)
    numbers = {"success": told.value, "low95": max(told.low, 0.0), "high95": min(told.high, 1.0)}
    return where | numbers | {"seeds": len(per_seed), "p": None, "p_holm": None, "told": told, "per_seed": per_seed}


def _task(recipe: Mapping[str, Any], split: str) -> tuple[str, str, str]:
    return recipe["world"], recipe["behaviour"], split


def _averages(knob: Knob, name: str, rows: list[Row], wanted: set[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Each seed's mean over the tasks, where there are several and a point has all of them."""
    found: list[dict[str, Any]] = []
    for method, split, at in sorted({(row.label, row.split, knob(row.recipe)) for row in rows}):
        mine = [row for row in rows if (row.label, row.split, knob(row.recipe)) == (method, split, at)]
        whole = {_task(row.recipe, split) for row in mine} == {task for task in wanted if task[2] == split}
        if whole and len(mine) > 1 and len({len(row.seeds) for row in mine}) == 1:
            where = {"world": "average", "policy": "", "split": split, "method": method, name: at}
            found.append(_told(where, np.mean([row.runs.per_seed for row in mine], axis=0).tolist()))
    return found


def _compare(name: str, points: list[dict[str, Any]]) -> None:
    """BECAUSE against MOPO wherever both have several seeds."""

    def place(p: dict[str, Any]) -> tuple:
        return p["world"], p["policy"], p["split"], p[name]

    mopo = {place(p): p for p in points if p["method"] == "mopo"}
    pairs = [(p, mopo[place(p)]) for p in points if p["method"] == "because" and place(p) in mopo]
    for mine, theirs in pairs:
        if min(mine["seeds"], theirs["seeds"]) > 1:
            mine["p"] = welch(mine["per_seed"], theirs["per_seed"], "greater").p
    counted = [mine for mine, _ in pairs if mine["p"] is not None and mine["world"] != "average"]
    for mine, adjusted in zip(counted, holm([mine["p"] for mine in counted]), strict=True):
        mine["p_holm"] = adjusted


def _coverage(recipe: Mapping[str, Any]) -> float:
    from because_rl.envs.unlock.behaviour import COVERAGE

    return COVERAGE[recipe["behaviour"]] if recipe["coverage"] is None else recipe["coverage"]


def _jobs(scale: Scale, **knob: Any) -> list[Job]:
    return trainings(scale, METHODS, policies=scale.knob_policies, splits=scale.knob_splits, **knob)


def _coverage_jobs(scale: Scale) -> list[Job]:
    return _jobs(
        scale, worlds=tuple(world for world in scale.grid.worlds if world == "unlock"), coverages=scale.coverages
    )


FIG_SAMPLES = Experiment(
    "Success against the share of the offline data",
    lambda scale: _jobs(scale, ratios=scale.ratios),
    partial(
        _product,
        lambda recipe: recipe["episodes"] / WORLDS[recipe["world"]].episodes,
        "share",
        "share of the data",
    ),
)
FIG_SPURIOUS = Experiment(
    "Success against the spurious level",
    lambda scale: _jobs(scale, spurious=scale.levels),
    partial(_product, lambda recipe: recipe["spurious"], "level", "spurious level"),
)
FIG_COVERAGE = Experiment(
    "Success in Unlock against the share q of episodes that try the door without the key",
    _coverage_jobs,
    partial(_product, _coverage, "q", "coverage q"),
)
