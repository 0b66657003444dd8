"""Energy maps: pale where the model is sure, orange where it is not, and a blue dot where steps were logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from because_rl.evaluation.energy_map import EnergyMap
from because_rl.report.paper_figures import BLUE, GREY, ORANGE

COLOURS = LinearSegmentedColormap.from_list("unsure", ["#fafaf7", "#f2b78c", ORANGE])
SIDE = 2.5
"""Inches of a map."""


def draw_maps(found: Mapping[str, Sequence[EnergyMap]]) -> Figure:
    """A row for each dataset."""
    widest = max(map(len, found.values()))
    figure = Figure(figsize=(0.9 + (SIDE + 0.3) * widest, (SIDE + 1.0) * len(found)), layout="constrained")
    rows = figure.subfigures(len(found), 1, squeeze=False)[:, 0]
    for part, (name, maps) in zip(rows, found.items(), strict=True):
        part.suptitle(name, fontsize=12, x=0.02, ha="left")
        panels = part.subplots(1, widest, squeeze=False)[0]
        for axes in panels[len(maps) :]:
            axes.set_axis_off()
        _draw(part, panels, maps)
    return figure


def draw_map(told: EnergyMap) -> Figure:
    figure = Figure(figsize=(SIDE + 1.2, SIDE + 0.8), layout="constrained")
    _draw(figure, [figure.subplots()], [told])
    return figure


def _draw(figure: Figure | SubFigure, panels: Sequence[Axes], maps: Sequence[EnergyMap]) -> None:
    mesh: Any = None
    for axes, told in zip(panels, maps, strict=False):
        room = not told.up
        mesh = axes.pcolormesh(told.x, told.y, told.uncertainty, cmap=COLOURS, vmin=0, vmax=1, shading="nearest")
        if room:
            mesh.set(edgecolor="white", linewidth=1)
        else:
            mesh.set_rasterized(True)
        j, i = np.nonzero(told.steps)
        if len(i):
            largest = (0.5 * 72 * SIDE / len(told.x)) ** 2
            share = np.sqrt(told.steps[j, i] / told.steps.max())
            axes.scatter(told.x[i], told.y[j], largest * np.maximum(share, 0.1), color=BLUE, alpha=0.75, linewidth=0)
        for name, places in told.marks.items():
            for x, y in places:
                axes.annotate(name, (x - 0.42, y - 0.42), ha="left", va="top", fontsize=7, color="black")
        axes.set_title(told.title, fontsize=10, pad=16)
        axes.annotate(
            summary(told), (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom", fontsize=8, color=GREY
        )
        axes.set(xlabel=told.across, ylabel=told.up)
        for side in axes.spines.values():
            side.set_visible(False)
        if room:
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.invert_yaxis()
    figure.colorbar(mesh, ax=list(panels), label="(E + 1) / 2", shrink=0.8, ticks=[0, 0.5, 1]).outline.set_visible(
        False
    )


def summary(told: EnergyMap) -> str:
    """
    >>> summary(EnergyMap("", "", "", *np.zeros((2, 2)), np.array([[0.0, 0.9]]), np.array([[3, 0]]), {}))
    'where logged 0.00, elsewhere 0.90'
    """
    words = {"where logged": told.where_logged, "elsewhere": told.elsewhere}
    return ", ".join(f"{where} {value:.2f}" for where, value in words.items() if value is not None)
