"""The view of a grid that shows its energy maps; where there are none, there is no view."""

from __future__ import annotations

from pathlib import Path

from because_rl.evaluation.energy_map import EnergyMap
from because_rl.report.energy_figure import draw_map, summary
from because_rl.report.graph_figure import drawn
from because_rl.report.grid_data import Grid
from because_rl.report.markup import Html, data_uri, tag
from because_rl.report.model_pages import view
from because_rl.report.task_page import dataset_name


def energy_view(grid: Grid) -> Html | None:
    if not grid.maps:
        return None
    told = (
        f"How unsure {grid.focus}'s energy model is, which is what its planner pays for: pale where it is sure, "
        "orange where it is not. Blue dots are logged steps, the larger the more. It should be sure where they are, "
        "and nowhere else. Unlock: one room as it was logged, with the agent put into every cell; what was logged in "
        "other rooms counts too. Crash and Lift: two columns, all else as in the logged steps nearest to a point."
    )
    parts = [tag("p", told)]
    for found in grid.maps:
        name = dataset_name(found.dataset)
        where = f"{found.seeds} seeds, revision {found.revision[:12]}, {found.when[:10]}"
        figures = (tag("figure", _map(name, one), class_="map") for one in found.maps)
        parts += [tag("h3", name), tag("p", where, class_="soft"), tag("div", *figures, class_="films")]
    return view("energy", "Energy maps", *parts)


def _map(name: str, told: EnergyMap) -> Html:
    picture = data_uri(drawn(draw_map(told), Path("map.svg")), "image/svg+xml")
    return tag("img", src=picture, alt=f"{name}, {told.title}: {summary(told)}")
