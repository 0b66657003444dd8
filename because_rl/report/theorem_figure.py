"""Panels of measured power laws beside the slope of a bound (`because paper theorem`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from because_rl.report.paper_figures import BLUE, GREEN, GREY, ORANGE, PINK
from because_rl.statistics import t_interval

STYLES = {
    "because": ("mask by tests", BLUE, "o", "-"),
    "true mask": ("true mask", GREEN, "^", "-."),
    "dense": ("no mask", ORANGE, "s", "--"),
    "normalised": ("by tests, rows normalised", GREY, "v", ":"),
    "greedy": ("true mask, no bonus", GREEN, "v", ":"),
    "worst": ("worst contrast, by tests", PINK, "D", "-"),
}
"""line -> label, colour, marker and line style"""


class Line(NamedTuple):
    name: str
    x: Sequence[float]
    values: Sequence[np.ndarray]
    """for each x one number per repetition"""


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    guide: float | None = None
    """the theorem's exponent"""


def draw_panels(panels: Sequence[Panel], columns: int = 3) -> Figure:
    """Means with 95% intervals over repetitions, on logarithmic axes; the grey line has the theorem's slope."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.7 * columns, 0.8 + 2.7 * rows), layout="constrained")
    handles = {}
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        for name, x, values in panel.lines:
            label, colour, marker, dash = STYLES[name]
            means = np.array([np.mean(v) for v in values])
            ends = np.array([t_interval(v) for v in values])
            low = np.maximum(ends[:, 0], means / 30)
            axes.fill_between(np.array(x), low, ends[:, 1], color=colour, alpha=0.18, linewidth=0)
            (handles[label],) = axes.plot(x, means, dash, marker=marker, color=colour, linewidth=1.6, markersize=4)
        smallest = min((x for line in panel.lines for x in line.x if x > 0), default=1.0)
        with_zero = any(0 in line.x for line in panel.lines)
        axes.set_xscale("symlog", linthresh=smallest, linscale=0.4) if with_zero else axes.set_xscale("log")
        axes.set(yscale="log", title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.title.set_fontsize(10.5)
        if panel.guide is not None and panel.lines:
            at = np.array([x for x in panel.lines[0].x if x > 0], float)
            top = max(np.mean(line.values[0 if panel.guide <= 0 else -1]) for line in panel.lines)
            start = at[0 if panel.guide <= 0 else -1]
            (handles["slope of the theorem"],) = axes.plot(
                at, 1.6 * top * (at / start) ** panel.guide, color="black", linewidth=0.9
            )
        _set_ticks(axes, sorted({x for line in panel.lines for x in line.x}))
        axes.grid(True, color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=10)
    return figure


def _set_ticks(axes: Axes, x: Sequence[float]) -> None:
    """Plain numbers: decades where the values span many, and else the values themselves."""
    exponents = [k for k in range(-9, 10) if x and 0 < x[0] <= 10.0**k <= x[-1]]
    if len(exponents) > 3:
        axes.set_xticks([10.0**k for k in exponents], [f"{10**k:g}" if k < 4 else f"1e{k}" for k in exponents])
    else:
        axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 50 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
