"""A causal graph as a picture: causes on the left, next state on the right."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from because_rl.errors import BecauseError
from because_rl.graph import Graph
from because_rl.io import write_bytes

STATE, ACTION, RARE = "#2b6cb0", "#c05621", "#a0aec0"


def draw(graph: Graph, title: str = "", weight: np.ndarray | None = None) -> Figure:
    """Edges out of state factors are blue, out of actions orange, rare ones grey and dashed.

    `weight` (inputs x targets) in [0, 1] sets the width of each edge.
    """
    rows = max(len(graph.inputs), len(graph.targets))
    figure = Figure(figsize=(6.4, 0.6 + 0.36 * rows), layout="constrained")
    axes = figure.add_subplot()
    left = _places(len(graph.inputs), rows)
    right = _places(len(graph.targets), rows)
    widths = np.ones(graph.matrix.shape) if weight is None else weight
    for i, source in enumerate(graph.inputs):
        is_state = source in graph.targets
        for j, target in enumerate(graph.targets):
            if (source, target) not in graph.edges:
                continue
            rare = (source, target) in graph.rare
            arrow = FancyArrowPatch(
                (0.0, left[i]),
                (1.0, right[j]),
                arrowstyle="-|>",
                mutation_scale=9,
                linewidth=0.4 + 1.3 * float(widths[i, j]),
                linestyle="--" if rare else "-",
                color=RARE if rare else (STATE if is_state else ACTION),
                alpha=0.9 if source == target or not is_state else 0.65,
                connectionstyle="arc3,rad=0.02",
                shrinkA=3,
                shrinkB=3,
            )
            axes.add_patch(arrow)
        axes.text(-0.03, left[i], source, ha="right", va="center", color=STATE if is_state else ACTION, fontsize=10)
    for j, target in enumerate(graph.targets):
        axes.text(1.03, right[j], f"{target}′", ha="left", va="center", color=STATE, fontsize=10)
    axes.set(xlim=(-0.45, 1.4), ylim=(-0.7, rows - 0.3))
    axes.axis("off")
    count = f"{len(graph.edges)} of {graph.matrix.size} edges" + (f", {len(graph.rare)} rare" if graph.rare else "")
    axes.set_title(f"{title}: {count}" if title else count, fontsize=11)
    return figure


def _places(count: int, rows: int) -> np.ndarray:
    """Heights of `count` names, top to bottom, centred among `rows`."""
    return np.linspace(rows - 1, 0, count) if count > 1 else np.array([(rows - 1) / 2])


def save(figure: Figure, path: Path) -> None:
    """As SVG or PNG, by the suffix; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "because-rl", "svg.fonttype": "none"}):
        if path.suffix == ".svg":
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
        elif path.suffix == ".png":
            figure.set_dpi(160)
            FigureCanvasAgg(figure).print_png(buffer)
        else:
            raise BecauseError(f"Got the file name {path}.", need="one ending in .svg or .png.", fix="rename it.")
    write_bytes(path, buffer.getvalue())
