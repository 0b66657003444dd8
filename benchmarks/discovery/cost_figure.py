"""What a mask costs, as a picture: seconds against rows, both on log axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#b7791f", "#718096")


def draw_cost(rows: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """One line per test (and run, where there are several); grey is what linear growth would look like."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name = row["test"] if row["run"] == "only" else f"{row['test']} ({row['run']})"
        scaled = "" if row["mask_seconds"] == round(row["wall_seconds"], 1) else ", scaled from a few pairs"
        lines.setdefault(name + scaled, []).append((row["n"], row["mask_seconds"]))
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        axes.plot(*zip(*sorted(points), strict=True), marker="o", color=colour, label=name, linewidth=1.6, markersize=5)
    first = sorted(next(iter(lines.values())))
    if len(first) > 1:
        (start, seconds), (end, _) = first[0], first[-1]
        guide = [seconds, seconds * end / start]
        axes.plot([start, end], guide, color="#a0aec0", linestyle="--", linewidth=1.2, label="linear in n")
    axes.set(xscale="log", yscale="log", xlabel="transitions n", ylabel="seconds for the whole mask")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:,g}"))
    axes.grid(True, which="major", color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(title or "Cost of a mask on data of Lift's shape (285 pairs, 70 columns)", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
