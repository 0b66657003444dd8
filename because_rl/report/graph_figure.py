"""Causal graphs as figures (inputs on the left, next state on the right), and p-values as a heat map."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

from because_rl.discovery.mask import CausalMask
from because_rl.errors import BecauseError
from because_rl.graph import Graph
from because_rl.io import write_bytes

STATE, ACTION, RARE = "#2b6cb0", "#c05621", "#a0aec0"
COLOURS = {"established": "#2f855a", "forced": "#4a5568", "undetermined": "#b7791f"}
MISSED, FALSE = "#c53030", "#d53f8c"


def draw_graph(graph: Graph, title: str = "") -> Figure:
    """Edges from state factors are blue, from action factors orange; rare edges are grey and dashed."""
    figure, axes, left, right = _canvas(graph.inputs, graph.targets)
    for source, target in sorted(graph.edges):
        rare, is_state = (source, target) in graph.rare, source in graph.targets
        colour = RARE if rare else STATE if is_state else ACTION
        _arrow(axes, left[source], right[target], colour, line="--" if rare else "-")
    count = f"{len(graph.edges)} of {graph.matrix.size} edges" + (f", {len(graph.rare)} rare" if graph.rare else "")
    axes.set_title(f"{title}: {count}" if title else count, fontsize=11)
    return figure


def draw_mask(mask: CausalMask, truth: Graph | None = None, title: str = "") -> Figure:
    """Line width shows the weight, colour the verdict; given the true graph, missed edges are red, false ones pink.

    Undetermined edges are dashed; thin and dotted are those that are left out nevertheless.
    """
    figure, axes, left, right = _canvas(mask.inputs, mask.targets)
    shown: dict[str, tuple[str, str]] = {}
    for i, source in enumerate(mask.inputs):
        for j, target in enumerate(mask.targets):
            status, kept = str(mask.status[i, j]), bool(mask.matrix[i, j])
            wrong = truth is not None and kept != ((source, target) in truth.edges)
            if not (kept or wrong or status == "undetermined"):
                continue
            label = status if kept else f"{status}, left out"
            if wrong:
                label = "false edge" if kept else "missed edge"
            colour = (FALSE if kept else MISSED) if wrong else COLOURS[status]
            line = ":" if not (kept or wrong) else "--" if status == "undetermined" or not kept else "-"
            shown.setdefault(label, (colour, line))
            width = float(mask.weight[i, j]) if kept else 0.3 if wrong else 0.0
            _arrow(axes, left[source], right[target], colour, width, line)
    handles = [Line2D([], [], color=colour, ls=line, label=label) for label, (colour, line) in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    axes.set_title(title or f"{int(mask.matrix.sum())} of {mask.matrix.size} edges kept", fontsize=11)
    return figure


def draw_p_values(mask: CausalMask, title: str = "") -> Figure:
    """-log10 p of every (input, target) pair, capped at 12; kept edges are framed."""
    figure = Figure(figsize=(1.8 + 0.45 * len(mask.targets), 1.2 + 0.34 * len(mask.inputs)), layout="constrained")
    axes = figure.add_subplot()
    strength = -np.log10(np.clip(mask.p, 1e-12, 1.0))
    image = axes.imshow(strength, cmap="Blues", vmin=0, vmax=12, aspect="auto")
    for i, j in np.argwhere(mask.matrix):
        axes.plot(*_frame(j, i), color="#1a202c", linewidth=1.2)
    axes.set_xticks(range(len(mask.targets)), [f"{name}′" for name in mask.targets], rotation=60, ha="right")
    axes.set_yticks(range(len(mask.inputs)), mask.inputs)
    axes.set_title(title or "p-values; frames mark kept edges", fontsize=11)
    figure.colorbar(image, label="−log₁₀ p (12 and above)")
    return figure


def _frame(x: int, y: int, half: float = 0.46) -> tuple[list[float], list[float]]:
    return [x - half, x + half, x + half, x - half, x - half], [y - half, y - half, y + half, y + half, y - half]


def _canvas(
    inputs: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[Figure, Axes, dict[str, float], dict[str, float]]:
    """A figure with the names on both sides, its axes, and the height of each name on the left and on the right."""
    rows = max(len(inputs), len(targets))
    figure = Figure(figsize=(6.4, 0.8 + 0.36 * rows), layout="constrained")
    axes = figure.add_subplot()
    left, right = (dict(zip(names, _heights(len(names), rows), strict=True)) for names in (inputs, targets))
    for name, y in left.items():
        axes.text(-0.03, y, name, ha="right", va="center", color=STATE if name in targets else ACTION, fontsize=10)
    for name, y in right.items():
        axes.text(1.03, y, f"{name}′", ha="left", va="center", color=STATE, fontsize=10)
    axes.set(xlim=(-0.45, 1.4), ylim=(-0.7, rows - 0.3))
    axes.axis("off")
    return figure, axes, left, right


def _heights(count: int, rows: int) -> np.ndarray:
    return np.linspace(rows - 1, 0, count) if count > 1 else np.array([(rows - 1) / 2])


def _arrow(axes: Axes, start: float, end: float, colour: str, width: float = 1.0, line: str = "-") -> None:
    arrow = FancyArrowPatch(
        (0.0, start),
        (1.0, end),
        arrowstyle="-|>",
        mutation_scale=9,
        linewidth=0.4 + 1.3 * width,
        linestyle=line,
        color=colour,
        alpha=0.8,
        connectionstyle="arc3,rad=0.02",
        shrinkA=3,
        shrinkB=3,
    )
    axes.add_patch(arrow)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as SVG or PNG, by the suffix of `path`; the same figure gives the same bytes."""
    write_bytes(path, render(figure, path))


def render(figure: Figure, path: Path) -> bytes:
    """The bytes that `save` writes to `path`."""
    buffer = io.BytesIO()
    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$" in text.get_text():  # a name, and no formula
            text.set_parse_math(False)
    with rc_context({"svg.hashsalt": "because-rl", "svg.fonttype": "none"}):
        if path.suffix == ".svg":
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
        elif path.suffix == ".png":
            figure.set_dpi(160)
            FigureCanvasAgg(figure).print_png(buffer)
        else:
            raise BecauseError(f"Got the file name {path}.", need="one ending in .svg or .png.", fix="rename it.")
    return buffer.getvalue()
