"""Discovery on a dataset: the graph, its pictures, its score when the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from because_rl.datasets.load import load
from because_rl.datasets.paths import home_folder
from because_rl.discovery.discover import discover
from because_rl.discovery.export import to_dot, to_graphml
from because_rl.graph import Graph, score
from because_rl.io import write_json, write_text
from because_rl.provenance import provenance
from because_rl.report.graph_figure import draw_mask, draw_p_values, save


def discover_dataset(
    dataset: str,
    root: Path | None,
    factors: Path | None,
    folder: Path | None,
    report: Callable[[int, int], None],
    **knobs: Any,
) -> dict[str, Any]:
    """Discover, then write ``graph.{json,svg,png,dot,graphml}`` and ``p-values.{svg,png}`` into `folder`."""
    data = load(dataset, root, factors)
    found = discover(data.factors, data.state, data.action, data.next_state, data.episode, progress=report, **knobs)
    mask, name = found.mask, data.name
    folder = folder or home_folder(root) / "graphs" / name
    told = data.metadata.get("because", {}).get("true_graph")
    truth = None if told is None else Graph.from_dict(told)
    result = {"dataset": name, "folder": str(folder)} | mask.to_dict()
    for edge, low, high in zip(result["edges"], found.low.T.reshape(-1), found.high.T.reshape(-1), strict=True):
        edge["weight_ci95"] = [float(low), float(high)]
    if truth is not None:
        result["score"] = score(mask.graph, truth).to_dict()
        result["score_without_rare"] = score(mask.graph, truth, count_rare=False).to_dict()
    write_json(
        folder / "graph.json",
        {k: v for k, v in result.items() if k != "folder"} | {"provenance": provenance(**mask.settings)},
    )
    write_text(folder / "graph.dot", to_dot(mask))
    write_text(folder / "graph.graphml", to_graphml(mask))
    for suffix in ("svg", "png"):
        save(draw_mask(mask, truth, name), folder / f"graph.{suffix}")
        save(draw_p_values(mask, name), folder / f"p-values.{suffix}")
    return result
