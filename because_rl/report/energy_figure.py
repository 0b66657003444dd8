"""Energy maps as figures: pale where the model is certain, orange where it is not, blue dots at logged steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from because_rl.evaluation.energy_map import EnergyMap
from because_rl.report.paper_figures import BLUE, GREY, ORANGE

COLOURS = LinearSegmentedColormap.from_list("uncertainty", ["#fafaf7", "#f2b78c", ORANGE])
SIDE = 2.5
"""Side of a map in inches."""


def draw_maps(datasets: Mapping[str, Sequence[EnergyMap]]) -> Figure:
    """One row of maps for each dataset; `datasets` has the maps by dataset name."""
    columns = max(map(len, datasets.values()))
    figure = Figure(figsize=(0.9 + (SIDE + 0.3) * columns, (SIDE + 1.0) * len(datasets)), layout="constrained")
    rows = figure.subfigures(len(datasets), 1, squeeze=False)[:, 0]
    for row, (name, maps) in zip(rows, datasets.items(), strict=True):
        row.suptitle(name, fontsize=12, x=0.02, ha="left")
        panels = row.subplots(1, columns, squeeze=False)[0]
        for axes in panels[len(maps) :]:
            axes.set_axis_off()
        _draw(row, panels, maps)
    return figure


def draw_map(energy_map: EnergyMap) -> Figure:
    """One map as a figure of its own."""
    figure = Figure(figsize=(SIDE + 1.2, SIDE + 0.8), layout="constrained")
    _draw(figure, [figure.subplots()], [energy_map])
    return figure


def _draw(figure: Figure | SubFigure, panels: Sequence[Axes], maps: Sequence[EnergyMap]) -> None:
    mesh: Any = None
    for axes, m in zip(panels, maps, strict=False):
        is_room = not m.up  # the maps of Unlock have no axis labels
        mesh = axes.pcolormesh(m.x, m.y, m.uncertainty, cmap=COLOURS, vmin=0, vmax=1, shading="nearest")
        if is_room:
            mesh.set(edgecolor="white", linewidth=1)
        else:
            mesh.set_rasterized(True)
        j, i = np.nonzero(m.steps)
        if len(i):
            largest = (0.5 * 72 * SIDE / len(m.x)) ** 2
            share = np.sqrt(m.steps[j, i] / m.steps.max())
            axes.scatter(m.x[i], m.y[j], largest * np.maximum(share, 0.1), color=BLUE, alpha=0.75, linewidth=0)
        for name, places in m.marks.items():
            for x, y in places:
                axes.annotate(name, (x - 0.42, y - 0.42), ha="left", va="top", fontsize=7, color="black")
        axes.set_title(m.title, fontsize=10, pad=16)
        axes.annotate(
            summary(m), (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom", fontsize=8, color=GREY
        )
        axes.set(xlabel=m.across, ylabel=m.up)
        for side in axes.spines.values():
            side.set_visible(False)
        if is_room:
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.invert_yaxis()
    figure.colorbar(mesh, ax=list(panels), label="(E + 1) / 2", shrink=0.8, ticks=[0, 0.5, 1]).outline.set_visible(
        False
    )


def summary(energy_map: EnergyMap) -> str:
    """The mean uncertainty at points with logged steps and at those without.

    >>> summary(EnergyMap("", "", "", *np.zeros((2, 2)), np.array([[0.0, 0.9]]), np.array([[3, 0]]), {}))
    'where logged 0.00, elsewhere 0.90'
    """
    means = {"where logged": energy_map.where_logged, "elsewhere": energy_map.elsewhere}
    return ", ".join(f"{where} {value:.2f}" for where, value in means.items() if value is not None)
