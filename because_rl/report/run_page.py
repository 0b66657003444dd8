"""One run as a page: its causal graph, its learning curves, its success beside the behaviour and the oracle."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from because_rl.graph import Graph
from because_rl.io import write_text
from because_rl.report.graph_figure import draw_graph, save

BLUE, GREY, GREEN = "#2b6cb0", "#a0aec0", "#2f855a"

STYLE = """
:root { color-scheme: light dark; --line: #cbd5e0; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
figure { margin: 1.5rem 0; background: white; border-radius: 8px; padding: .5rem; }
figure svg { width: 100%; height: auto; }
figcaption { color: #4a5568; font-size: .9rem; }
table { border-collapse: collapse; } td, th { border-bottom: 1px solid var(--line); padding: .3rem .8rem; }
td:not(:first-child), th:not(:first-child) { text-align: right; }
pre { overflow-x: auto; font-size: .8rem; }
"""


def draw_curves(metrics: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss against steps, a panel per stage, a line per seed."""
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
    """A bar per policy and split, with 95% intervals where there are any."""
    splits = list(dict.fromkeys(row["split"] for row in rows))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        colour = {"behaviour": GREY, "oracle planner": GREEN}.get(name, BLUE)
        mine = {row["split"]: row for row in rows if row["policy"] == name}
        at = [n + (k - (len(names) - 1) / 2) * width for n, split in enumerate(splits) if split in mine]
        shown = [mine[split] for split in splits if split in mine]
        heights = [row["success"] for row in shown]
        reach = [
            [max(0.0, s["success"] - s["low95"]) for s in shown],
            [max(0.0, s["high95"] - s["success"]) for s in shown],
        ]
        axes.bar(at, heights, width * 0.9, yerr=reach, color=colour, label=name, capsize=3)
        for x, height in zip(at, heights, strict=True):
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
    """``index.html``, which needs nothing else, and the pictures in it as SVG and PNG; `tables` by their titles."""
    pictures: dict[str, tuple[Figure, str]] = {}
    if success:
        pictures["success"] = (
            draw_success(success),
            "Success. The oracle is the same planner with the simulator as its model.",
        )
    if graph is not None:
        pictures["graph"] = draw_graph(graph, title), "What drives what: the edges that the world model may use."
    if metrics:
        pictures["curves"] = draw_curves(metrics), "Learning curves, one line per seed."
    parts = []
    for name, (figure, caption) in pictures.items():
        for suffix in ("svg", "png"):
            save(figure, folder / f"{name}.{suffix}")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        svg = drawn.getvalue()
        parts.append(f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>")
    named = "".join(f"<h2>{html.escape(name)}</h2>{_table(rows)}" for name, rows in (tables or {}).items() if rows)
    table = "".join(
        f"<tr><td>{html.escape(row['policy'])}</td><td>{row['split']}</td><td>{row['success']:.3f}</td>"
        f"<td>[{row['low95']:.3f}, {row['high95']:.3f}]</td></tr>"
        for row in success
    )
    head = "<tr><th>policy</th><th>split</th><th>success</th><th>95%</th></tr>"
    rates = f"<table>{head}{table}</table>" if success else ""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>{rates}{named}{''.join(parts)}"
        f"<h2>Provenance</h2><pre>{html.escape(provenance)}</pre></body></html>"
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Wide ones scroll by themselves, so that the page stays readable on a phone."""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f'<div style="overflow-x: auto"><table><tr>{head}</tr>{body}</table></div>'
