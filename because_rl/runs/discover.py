"""Discover the causal graph of a dataset: the graph, its pictures, and its score if the true graph is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from because_rl.datasets.load import load
from because_rl.datasets.paths import home_folder
from because_rl.discovery.discover import discover
from because_rl.discovery.export import to_dot, to_graphml, to_node_link
from because_rl.graph import Graph, score
from because_rl.io import remove_folder, remove_leftovers, write_json, write_text
from because_rl.provenance import provenance
from because_rl.report.graph_figure import draw_mask, draw_p_values, save

UNFINISHED = "unfinished"


def discover_dataset(
    dataset: str,
    root: Path | None,
    factors: Path | None,
    folder: Path | None,
    report: Callable[[int, int], None],
    roles: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Discover, then write ``graph.{json,svg,png,dot,graphml,node-link.json}`` and ``p-values.{svg,png}`` to `folder`.

    Until then ``unfinished/`` in it holds the evidence on finished targets: called again after a stop, it continues.

    Args:
        dataset: an id under `root`, or the path of any Minari dataset or log that `load` takes.
        root: where datasets live; None: BECAUSE_HOME or ~/.because-rl.
        factors: the file of a factor spec, for a dataset that has none.
        folder: None: under the root, by dataset.
        report: called with (targets finished, targets in all); each mask has all targets.
        roles: keyword arguments of `load` that say what the columns of a log are.
        settings: keyword arguments of `discover`.

    Returns:
        What graph.json holds, but for the provenance, and the folder.
    """
    data = load(dataset, root, factors, **(roles or {}))
    name = data.name
    folder = folder or home_folder(root) / "graphs" / name
    remove_leftovers(folder)
    mask = discover(data, progress=report, keep=folder / UNFINISHED, **settings)
    true_graph = data.metadata.get("because", {}).get("true_graph")
    truth = None if true_graph is None else Graph.from_dict(true_graph)
    result = {"dataset": name, "folder": str(folder)} | mask.to_dict()
    if notes := data.metadata.get("notes"):
        result["notes"] = notes
    if truth is not None:
        result["score"] = score(mask.graph, truth).to_dict()
        result["score_without_rare"] = score(mask.graph, truth, count_rare=False).to_dict()
    write_text(folder / "graph.dot", to_dot(mask))
    write_text(folder / "graph.graphml", to_graphml(mask))
    write_text(folder / "graph.node-link.json", to_node_link(mask))
    for suffix in ("svg", "png"):
        save(draw_mask(mask, truth, name), folder / f"graph.{suffix}")
        save(draw_p_values(mask, name), folder / f"p-values.{suffix}")
    # Last, since it says that all is there.
    write_json(
        folder / "graph.json",
        {k: v for k, v in result.items() if k != "folder"} | {"provenance": provenance(**mask.settings)},
    )
    remove_folder(folder / UNFINISHED)
    return result
