"""The page of one run: its causal graph, its learning curves, its success beside the behaviour and the oracle."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from because_rl.graph import Graph
from because_rl.io import write_text
from because_rl.report.graph_figure import draw_graph, save
from because_rl.report.markup import Html, document, table, tag

BLUE, GREY, GREEN = "#2b6cb0", "#a0aec0", "#2f855a"


def draw_curves(metrics: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss against steps, one panel per stage and one line per seed; `metrics` are the rows of metrics.jsonl."""
    stages = list(dict.fromkeys(row["stage"] for row in metrics))
    figure = Figure(figsize=(3.2 * len(stages), 2.8), layout="constrained")
    for n, stage in enumerate(stages):
        axes = figure.add_subplot(1, len(stages), n + 1)
        rows = [row for row in metrics if row["stage"] == stage]
        losses = np.array([row["loss"] for row in rows], float)
        axes.plot([row["step"] for row in rows], losses, color=BLUE, alpha=0.5, linewidth=1.2, marker=".")
        axes.set(title=stage, xlabel="steps")
        if n == 0:
            axes.set_ylabel("loss")
        axes.grid(True, color="#e2e8f0", linewidth=0.8)
    return figure


def draw_success(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """One bar per policy and split with its 95% interval; rows have policy, split, success, low95 and high95."""
    splits = list(dict.fromkeys(row["split"] for row in rows))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        colour = {"behaviour": GREY, "oracle planner": GREEN}.get(name, BLUE)
        by_split = {row["split"]: row for row in rows if row["policy"] == name}
        places = [n + (k - (len(names) - 1) / 2) * width for n, split in enumerate(splits) if split in by_split]
        shown = [by_split[split] for split in splits if split in by_split]
        heights = [row["success"] for row in shown]
        errors = [
            [max(0.0, s["success"] - s["low95"]) for s in shown],
            [max(0.0, s["high95"] - s["success"]) for s in shown],
        ]
        axes.bar(places, heights, width * 0.9, yerr=errors, color=colour, label=name, capsize=3)
        for x, height in zip(places, heights, strict=True):
            axes.annotate(f"{height:.2f}", (x, 0.03), ha="center", color="white", fontsize=9)
    axes.set(ylim=(0, 1.05), ylabel="success", xticks=range(len(splits)), xticklabels=[f"split {s}" for s in splits])
    axes.legend(frameon=False, fontsize=9, ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def write_page(
    folder: Path,
    title: str,
    graph: Graph | None,
    metrics: Sequence[Mapping[str, Any]],
    success: Sequence[Mapping[str, Any]],
    provenance: str,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """Write ``index.html``, a page without other files, and its figures as SVG and PNG into `folder`.

    `metrics` are the rows of metrics.jsonl, `success` rows for `draw_success`, `provenance` is shown as it is, and
    `tables` has rows by the title of their table. Returns the path of the page.
    """
    pictures: dict[str, tuple[Figure, str]] = {}
    if success:
        pictures["success"] = (
            draw_success(success),
            "Success. The oracle is the same planner with the simulator as its model.",
        )
    if graph is not None:
        pictures["graph"] = draw_graph(graph, title), "Causal graph: the edges that the world model may use."
    if metrics:
        pictures["curves"] = draw_curves(metrics), "Learning curves, one line per seed."
    parts = []
    for name, (figure, caption) in pictures.items():
        for suffix in ("svg", "png"):
            save(figure, folder / f"{name}.{suffix}")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg")
        svg = buffer.getvalue()
        parts.append(tag("figure", Html(svg[svg.index("<svg") :]), tag("figcaption", caption), class_="drawn"))
    titled = [
        part
        for name, rows in (tables or {}).items()
        if rows
        for part in (tag("h2", name), table(name, tuple(rows[0]), [tuple(row.values()) for row in rows]))
    ]
    rates = [
        [row["policy"], row["split"], f"{row['success']:.3f}", f"[{row['low95']:.3f}, {row['high95']:.3f}]"]
        for row in success
    ]
    first = table("Success", ("policy", "split", "success", "95%"), rates) if rates else None
    source = tag("pre", provenance, tabindex=0)
    page = document(title, tag("h1", title), first, *titled, *parts, tag("h2", "Provenance"), source)
    write_text(folder / "index.html", page)
    return folder / "index.html"
