"""Where the energy model is sure (`fig-energy`): maps of its uncertainty, with the logged steps in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from because_rl.evaluation.energy_map import EnergyMap
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.study import Experiment, Product, Scale, also, trainings
from because_rl.experiments.paper.text import table
from because_rl.report.energy_figure import draw_maps
from because_rl.report.grid_data import Maps
from because_rl.report.task_page import dataset_name

MEASURE = "energy-map"


def _jobs(scale: Scale) -> list[Job]:
    """The trainings of the tables, looked at in one more way."""
    looks = also(trainings(scale, ("because",)), MEASURE, ["because_rl.evaluation.energy_map"])
    return [Job(job.key, {key: cell for key, cell in job.cells.items() if "measure" in cell}) for job in looks]


def maps_of(cells: Iterable[Mapping[str, Any]]) -> list[Maps]:
    """By dataset, the mean over the seeds of all its cells; of several versions of the source, the newest counts."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["provenance"]["when"], reverse=True):
        group = groups.setdefault(cell["dataset"], [])
        if not group or all(cell[name] == group[0][name] for name in ("code", "source", "config")):
            group.append(cell)
    return [_mean(dataset, groups[dataset]) for dataset in sorted(groups)]


def _mean(dataset: str, cells: list[Mapping[str, Any]]) -> Maps:
    every = [[EnergyMap.from_dict(told) for told in cell["maps"]] for cell in cells]
    seeds, where = [len(cell["seeds"]) for cell in cells], cells[0]["provenance"]
    means = [
        parts[0]._replace(uncertainty=np.average([part.uncertainty for part in parts], axis=0, weights=seeds))
        for parts in zip(*every, strict=True)
    ]
    return Maps(dataset, sum(seeds), where["revision"], where["when"], means)


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    found = {dataset_name(told.dataset): told.maps for told in maps_of(cells.values())}
    data, shown = [], []
    for name, maps in found.items():
        for told in maps:
            row = {"data": name, "map": told.title}
            for (j, i), value in np.ndenumerate(told.uncertainty):
                place = {"x": float(told.x[i]), "y": float(told.y[j])}
                data.append(row | place | {"uncertainty": round(float(value), 4), "steps": int(told.steps[j, i])})
            means = {"where logged": told.where_logged, "elsewhere": told.elsewhere}
            shown.append(row | {where: "-" if value is None else f"{value:.3f}" for where, value in means.items()})
    text = (
        "Uncertainty (E + 1) / 2 that the planner is charged, mean over seeds. Unlock: a room as it was logged, with "
        "the agent in every cell; what the model learns in other rooms makes it sure in this one too. Crash and Lift: "
        "two columns, all else as in the logged steps nearest to each point. The table has the mean over points where "
        f"steps were logged and over the others, which should be higher.\n\n{table(shown)}"
    )
    return Product(data, text, draw_maps(found) if found else None)


FIG_ENERGY = Experiment("Where the energy model is sure", _jobs, _make)
