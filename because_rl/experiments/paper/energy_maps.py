"""Maps of the energy model's uncertainty, with the logged steps in them (`fig-energy`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from because_rl.datasets.paths import current_id
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.experiments.formatting import markdown_table
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import Experiment, Product, add_measure, measures_only, trainings
from because_rl.experiments.paper.scale import Scale
from because_rl.report.energy_figure import draw_maps
from because_rl.report.grid_data import Maps
from because_rl.report.task_page import dataset_name

MEASURE = "energy-map"


def _jobs(scale: Scale) -> list[Job]:
    """One more measure of the trainings of the tables."""
    return measures_only(add_measure(trainings(scale, ("because",)), MEASURE, ["because_rl.evaluation.energy_map"]))


def mean_maps(cells: Iterable[Mapping[str, Any]]) -> list[Maps]:
    """The maps of each dataset, averaged over the seeds of its energy-map cells.

    Of cells that different versions of the source or settings computed, those of the newest count.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["provenance"]["when"], reverse=True):
        group = groups.setdefault(current_id(cell["dataset"]), [])
        if not group or all(cell[name] == group[0][name] for name in ("code", "source", "config")):
            group.append(cell)
    return [_mean(dataset, groups[dataset]) for dataset in sorted(groups)]


def _mean(dataset: str, cells: list[Mapping[str, Any]]) -> Maps:
    by_cell = [[EnergyMap.from_dict(data) for data in cell["maps"]] for cell in cells]
    seeds, origin = [len(cell["seeds"]) for cell in cells], cells[0]["provenance"]
    means = [
        same_map[0]._replace(uncertainty=np.average([m.uncertainty for m in same_map], axis=0, weights=seeds))
        for same_map in zip(*by_cell, strict=True)
    ]
    return Maps(dataset, sum(seeds), origin["revision"], origin["when"], means)


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    by_dataset = {dataset_name(maps.dataset): maps.maps for maps in mean_maps(cells.values())}
    data, shown = [], []
    for name, maps in by_dataset.items():
        for energy_map in maps:
            row = {"data": name, "map": energy_map.title}
            for (j, i), value in np.ndenumerate(energy_map.uncertainty):
                point = {"x": float(energy_map.x[i]), "y": float(energy_map.y[j])}
                steps = int(energy_map.steps[j, i])
                data.append(row | point | {"uncertainty": round(float(value), 4), "steps": steps})
            means = {"where logged": energy_map.where_logged, "elsewhere": energy_map.elsewhere}
            shown.append(row | {where: "-" if value is None else f"{value:.3f}" for where, value in means.items()})
    text = (
        "Uncertainty (E + 1) / 2 that the planner is charged, mean over seeds. Unlock: a room as it was logged, with "
        "the agent in every cell; what the model learns in other rooms makes it sure in this one too. Crash and Lift: "
        "two columns, all else as in the logged steps nearest to each point. The table has the mean over points where "
        f"steps were logged and over the others, which should be higher.\n\n{markdown_table(shown)}"
    )
    return Product(data, text, draw_maps(by_dataset) if by_dataset else None)


FIG_ENERGY = Experiment("Where the energy model is sure", _jobs, _make)
