"""Success of BECAUSE and MOPO against one property of the data: their number (`fig-samples`), the number of distractors
(`fig-spurious`), how often they show a door tried without its key (`fig-coverage`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from because_rl.envs.tasks import SPLITS, WORLDS
from because_rl.experiments.formatting import markdown_table, method_name, p_value, percent
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import Experiment, Product, Row, success_rows, trainings
from because_rl.experiments.paper.scale import Scale
from because_rl.report.paper_figures import draw_knob
from because_rl.statistics import holm, mean, welch

METHODS = ("because", "mopo")
Property = Callable[[Mapping[str, Any]], float]
"""The recipe of a dataset -> the value of the property that is varied."""


def _product(value: Property, name: str, axis: str, scale: Scale, jobs: list[Job], cells: Mapping) -> Product:
    """`name` is the property's column in the data, `axis` its title in text and figure."""
    rows = [row for row in success_rows(cells) if row.split in SPLITS]
    wanted = {_task(cell["recipe"], cell["split"]) for job in jobs for cell in job.cells.values()}
    points = [_point(value, name, row) for row in rows] + _averages(value, name, rows, wanted)
    order = {key: n for n, key in enumerate([*WORLDS, "average"])}
    points.sort(key=lambda p: (order[p["world"]], p["policy"], p["split"], p[name], p["method"] != "because"))
    _compare(name, points)
    shown = [
        {"data": f"{p['world']} {p['policy']}".strip(), "split": p["split"], axis: f"{p[name]:g}"}
        | {
            "method": method_name(p["method"]),
            "success": percent(p["estimate"]),
            "p": p_value(p["p"]),
            "Holm": p_value(p["p_holm"]),
        }
        for p in points
    ]
    text = (
        "Mean over seeds of the success rate in percent, ± half of the 95% t-interval; p: one-sided Welch t-test over "
        "seeds, BECAUSE > MOPO at this point, and with Holm's adjustment over these points (not averages).\n\n"
    )
    data = [{key: entry for key, entry in p.items() if key not in ("estimate", "per_seed")} for p in points]
    figure = draw_knob(data, name, axis) if data else None
    return Product(data, text + markdown_table(shown), figure)


def _point(value: Property, name: str, row: Row) -> dict[str, Any]:
    where = {"world": row.recipe["world"], "policy": row.recipe["behaviour"], "split": row.split}
    return _with_success(where | {"method": row.label, name: value(row.recipe)}, row.runs.per_seed)


def _with_success(point: dict[str, Any], per_seed: Any) -> dict[str, Any]:
    estimate = mean(per_seed)
    point |= {"success": estimate.value, "low95": max(estimate.low, 0.0), "high95": min(estimate.high, 1.0)}
    return point | {"seeds": len(per_seed), "p": None, "p_holm": None, "estimate": estimate, "per_seed": per_seed}


def _task(recipe: Mapping[str, Any], split: str) -> tuple[str, str, str]:
    return recipe["world"], recipe["behaviour"], split


def _averages(value: Property, name: str, rows: list[Row], wanted: set[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Each seed's mean over the tasks, where there are several and a point has all of them."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.label, row.split, value(row.recipe)), []).append(row)
    points: list[dict[str, Any]] = []
    for (method, split, at), group in sorted(groups.items(), key=lambda item: item[0]):
        complete = {_task(row.recipe, split) for row in group} == {task for task in wanted if task[2] == split}
        if complete and len(group) > 1 and len({len(row.seeds) for row in group}) == 1:
            point = {"world": "average", "policy": "", "split": split, "method": method, name: at}
            points.append(_with_success(point, np.mean([row.runs.per_seed for row in group], axis=0).tolist()))
    return points


def _compare(name: str, points: list[dict[str, Any]]) -> None:
    """Add the p-values of BECAUSE against MOPO wherever both have several seeds."""

    def place(p: dict[str, Any]) -> tuple:
        return p["world"], p["policy"], p["split"], p[name]

    mopo = {place(p): p for p in points if p["method"] == "mopo"}
    pairs = [(p, mopo[place(p)]) for p in points if p["method"] == "because" and place(p) in mopo]
    for because, other in pairs:
        if min(because["seeds"], other["seeds"]) > 1:
            because["p"] = welch(because["per_seed"], other["per_seed"], "greater").p
    tested = [because for because, _ in pairs if because["p"] is not None and because["world"] != "average"]
    for because, adjusted in zip(tested, holm([because["p"] for because in tested]), strict=True):
        because["p_holm"] = adjusted


def _coverage(recipe: Mapping[str, Any]) -> float:
    from because_rl.envs.unlock.behaviour import COVERAGE

    return COVERAGE[recipe["behaviour"]] if recipe["coverage"] is None else recipe["coverage"]


def _jobs(scale: Scale, **axes: Any) -> list[Job]:
    return trainings(scale, METHODS, policies=scale.knob_policies, splits=scale.knob_splits, **axes)


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
