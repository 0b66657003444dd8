"""The figures of the paper's experiments, in the colour-blind safe palette of Okabe and Ito; every line has its own
marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from because_rl.discovery.mask import CausalMask
from because_rl.graph import Graph

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#4A5568"
STYLES = {
    "because": ("BECAUSE", BLUE, "o", "-"),
    "mopo": ("MOPO", ORANGE, "s", "--"),
    "counterfactual": ("counterfactual", BLUE, "o", "-"),
    "random": ("random", ORANGE, "s", "--"),
}
"""name -> label, colour, marker and line style"""
Rows = Sequence[Mapping[str, Any]]


def draw_knob(rows: Rows, x: str, label: str) -> Figure:
    """Success against the column `x`, one panel per dataset and split, with 95% intervals; `label` is the x axis's."""
    data = list(dict.fromkeys((row["world"], row["policy"]) for row in rows))
    splits = sorted({row["split"] for row in rows})
    cells = [(world, policy, split) for split in splits for world, policy in data]
    shape = (len(splits), len(data)) if len(data) > 1 else (1, len(splits))
    figure = Figure(figsize=(1.2 + 2.9 * shape[1], 0.9 + 2.4 * shape[0]), layout="constrained")
    panels = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    ticks = sorted({row[x] for row in rows})
    smallest = min((tick for tick in ticks if tick > 0), default=1.0)
    for axes, (world, policy, split) in zip(panels.flat, cells, strict=True):
        panel = [row for row in rows if (row["world"], row["policy"], row["split"]) == (world, policy, split)]
        for k, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            line = sorted((row for row in panel if row["method"] == method), key=lambda row: row[x])
            _line(axes, method, [row[x] for row in line], line, "success", k)
        axes.set(ylim=(-0.04, 1.04), yticks=[0, 0.25, 0.5, 0.75, 1.0])
        if ticks[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=smallest, linscale=0.5)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(f"{world.capitalize()} {policy}".strip() + f", split {split}", fontsize=11)
    for axes in panels[-1]:
        axes.set_xlabel(label)
    for row_of_panels in panels:
        row_of_panels[0].set_ylabel("success")
    _legend(figure, panels[0][0])
    return figure


def draw_curves(rows: Rows) -> Figure:
    """Loss of the energy model against steps, one panel per dataset; bands are 95% intervals."""
    data = list(dict.fromkeys((row["world"], row["policy"]) for row in rows))
    figure = Figure(figsize=(1.4 + 3.2 * len(data), 3.2), layout="constrained")
    panels = figure.subplots(1, len(data), sharey=True, squeeze=False)[0]
    for axes, (world, policy) in zip(panels, data, strict=True):
        for kind in dict.fromkeys(row["negatives"] for row in rows):
            line = [r for r in rows if (r["world"], r["policy"], r["negatives"]) == (world, policy, kind)]
            name, colour, _, dash = STYLES[kind]
            steps = [row["step"] for row in line]
            axes.fill_between(
                steps, *([row[end] for row in line] for end in ("low95", "high95")), color=colour, alpha=0.2
            )
            axes.plot(
                steps, [row["loss"] for row in line], dash, color=colour, label=f"{name} negatives", linewidth=1.8
            )
        axes.set(title=f"{world.capitalize()} {policy}", xlabel="gradient steps")
        _tidy(axes)
    panels[0].set_ylabel("E(positives) − E(negatives)")
    _legend(figure, panels[0])
    return figure


def draw_mismatch(groups: Sequence[Any]) -> Figure:
    """Distribution functions of the episodic model loss, for successful and for failed episodes.

    One row of panels per method, one column per policy and split. A group has a method, policy and split, and the
    losses of the episodes that `succeeded` and of those that `failed`.
    """
    methods = list(dict.fromkeys(g.method for g in groups))
    columns = list(dict.fromkeys((g.policy, g.split) for g in groups))
    figure = Figure(figsize=(1.2 + 2.6 * len(columns), 0.9 + 2.3 * len(methods)), layout="constrained")
    panels = figure.subplots(len(methods), len(columns), sharey=True, squeeze=False)
    for g in groups:
        axes = panels[methods.index(g.method)][columns.index((g.policy, g.split))]
        for name, losses, colour, dash in (("succeeded", g.succeeded, BLUE, "-"), ("failed", g.failed, ORANGE, "--")):
            if len(losses):
                x = np.sort(losses)
                y = np.arange(1, len(x) + 1) / len(x)
                axes.step(
                    np.append(x[0], x), np.append(0, y), dash, where="post", color=colour, label=name, linewidth=1.8
                )
        floor = max(min([*g.succeeded, *g.failed]), 1e-5)
        axes.set_xscale("symlog", linthresh=floor) if floor < 1e-2 else None
        counts = f"n = {len(g.succeeded)} and {len(g.failed)}"
        axes.annotate(counts, (0.97, 0.04), xycoords="axes fraction", ha="right", fontsize=8, color=GREY)
        _tidy(axes)
    for axes, (policy, split) in zip(panels[0], columns, strict=True):
        axes.set_title(f"{policy}, split {split}", fontsize=11)
    for row, method in zip(panels, methods, strict=True):
        row[0].set_ylabel(f"{method}\nshare of episodes below")
    for axes in panels[-1]:
        axes.set_xlabel("episodic model loss")
    _legend(figure, *panels.flat)
    return figure


def draw_graphs(worlds: Sequence[tuple[str, CausalMask, Graph]]) -> Figure:
    """Edge matrices (causes down, effects across) of each (world, discovered mask, true graph), side by side."""
    heights = [1.6 + 0.2 * len(mask.inputs) for _, mask, _ in worlds]
    widest = max(len(mask.targets) for _, mask, _ in worlds)
    figure = Figure(figsize=(3.0 + 0.42 * widest, sum(heights)), layout="constrained")
    panels = figure.subplots(len(worlds), 2, squeeze=False, height_ratios=heights)
    for (left, right), (world, mask, truth) in zip(panels, worlds, strict=True):
        true, kept = truth.matrix, mask.matrix
        rare = np.array([[(i, j) in truth.rare for j in mask.targets] for i in mask.inputs])
        _matrix(left, mask, [(true & ~rare, BLUE), (rare, "#9CC9E6")])
        _matrix(right, mask, [(true & kept, BLUE), (kept & ~true, PINK), (true & ~kept, ORANGE)])
        right.set_yticklabels([])
        left.set_title(f"{world}: true", fontsize=11)
        right.set_title(f"{world}: discovered", fontsize=11)
        left.set_ylabel("cause at t")
    for axes in panels[-1]:
        axes.set_xlabel("effect at t + 1")
    shown = {"edge": BLUE, "true edge that acts rarely": "#9CC9E6", "false edge": PINK, "missed edge": ORANGE}
    handles = [Patch(color=colour, label=name) for name, colour in shown.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _matrix(axes: Axes, mask: CausalMask, layers: Sequence[tuple[np.ndarray, str]]) -> None:
    rows, columns = len(mask.inputs), len(mask.targets)
    for where, colour in layers:
        i, j = np.nonzero(where)
        axes.bar(j, np.full(len(j), 0.86), 0.86, bottom=i - 0.43, color=colour)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_xticks(range(columns), mask.targets, rotation=90, fontsize=7)
    axes.set_yticks(range(rows), mask.inputs, fontsize=7)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color="#e2e8f0", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.set_axisbelow(True)


def draw_pictures(scenes: Sequence[tuple[str, str, np.ndarray]]) -> Figure:
    """Pictures of (world, split, RGB array): one column per world, one row per split."""
    worlds = list(dict.fromkeys(world for world, _, _ in scenes))
    splits = list(dict.fromkeys(split for _, split, _ in scenes))
    shape = {world: picture.shape for world, _, picture in scenes}
    widths = [shape[world][1] / shape[world][0] for world in worlds]
    figure = Figure(figsize=(0.5 + 2.6 * sum(widths), 0.4 + 2.6 * len(splits)), layout="constrained")
    panels = figure.subplots(len(splits), len(worlds), squeeze=False, width_ratios=widths)
    for world, split, picture in scenes:
        axes = panels[splits.index(split)][worlds.index(world)]
        axes.imshow(picture, interpolation="antialiased")
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_color("#cbd5e0")
        if split == splits[0]:
            axes.set_title(world.capitalize(), fontsize=12)
        if world == worlds[0]:
            axes.set_ylabel({"I": "I: in distribution", "O": "O: out of distribution"}.get(split, split), fontsize=11)
    return figure


SPLIT_STYLES = {"I": ("split I", BLUE, "o"), "O": ("split O", ORANGE, "s")}
"""split -> label, colour and marker"""


def draw_attribution(rows: Rows, splits: Sequence[str]) -> Figure:
    """A ladder from BECAUSE down to the paper, and below it what each single switch changes; one column per world.

    Rows have a world, a kind ('ours', 'switch' or 'ladder'), a name, `settings` (None where the switch changes nothing
    there), and `success_I`, `change_I` and so on with the ends `_low95` and `_high95` of their intervals.
    """
    worlds = list(dict.fromkeys(row["world"] for row in rows if row["datasets"]))
    parts = [("success", ("ours", "ladder"), "success, %"), ("change", ("switch",), "change from BECAUSE, points")]
    names = [list(dict.fromkeys(r["name"] for r in rows if r["kind"] in kinds)) for _, kinds, _ in parts]
    heights = [len(part) + 1 for part in names]
    figure = Figure(figsize=(3.6 + 2.7 * len(worlds), 1.4 + 0.24 * sum(heights)), layout="constrained")
    panels = figure.subplots(2, len(worlds), sharex="row", sharey="row", squeeze=False, height_ratios=heights)
    for axes_row, (value, kinds, label), places in zip(panels, parts, names, strict=True):
        for axes, world in zip(axes_row, worlds, strict=True):
            own_rows = [r for r in rows if r["world"] == world and r["kind"] in kinds]
            shown = [row for row in own_rows if row["settings"] is not None]
            for row in (row for row in own_rows if row["settings"] is None):
                axes.annotate("no effect here", (1, places.index(row["name"])), va="center", fontsize=7, color=GREY)
            for k, split in enumerate(splits):
                points = [row for row in shown if row[f"{value}_{split}"] is not None]
                shift = 0.16 * (2 * k - len(splits) + 1)
                y = [places.index(row["name"]) + shift for row in points]
                _split_points(axes, split, y, points, f"{value}_{split}", joined=value == "success")
            axes.set(yticks=range(len(places)), ylim=(len(places) - 0.4, -0.6), xlabel=label)
            axes.set_yticks(range(len(places)), places, fontsize=9)
            if value == "success":
                axes.set(title=world.capitalize(), xlim=(-4, 104), xticks=[0, 25, 50, 75, 100])
            else:
                axes.axvline(0, color=GREY, linewidth=1)
            _tidy(axes)
    panels[0][0].set_ylabel("one after the other, from ours to the paper")
    panels[1][0].set_ylabel("one at a time")
    _legend(figure, panels[0][0])
    return figure


# Parts -------------------------------------------------------------------------------------------------


def _split_points(axes: Axes, split: str, y: Sequence[float], rows: Rows, value: str, joined: bool) -> None:
    name, colour, marker = SPLIT_STYLES.get(split, (f"split {split}", GREY, "^"))
    middle = np.array([100 * row[value] for row in rows])
    ends = np.array([[100 * row[f"{value}_{end}95"] for row in rows] for end in ("low", "high")])
    if joined:  # shares
        ends = ends.clip(0, 100)
    axes.errorbar(
        *(middle, y),
        xerr=np.abs(ends - middle),
        marker=marker,
        linestyle="-" if joined else "none",
        color=colour,
        label=name,
        linewidth=1.2,
        elinewidth=1.0,
        markersize=5,
    )


def _line(axes: Axes, kind: str, x: Sequence[float], rows: Rows, y: str, index: int) -> None:
    name, colour, marker, dash = STYLES.get(kind, (kind, GREY, "^", ":"))
    middle = [row[y] for row in rows]
    errors = [[max(0.0, row[y] - row["low95"]) for row in rows], [max(0.0, row["high95"] - row[y]) for row in rows]]
    bars = axes.errorbar(
        *(x, middle, errors),
        marker=marker,
        linestyle=dash,
        color=colour,
        label=name,
        capsize=3,
        linewidth=1.8,
        markersize=5,
    )
    for bar in bars[2]:
        bar.set(alpha=0.6, linewidth=3.5 - 1.5 * index)  # wide bars stay visible under narrow ones
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, *axes: Axes) -> None:
    """One legend for all panels, above them."""
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=10)
