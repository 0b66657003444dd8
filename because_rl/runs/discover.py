"""Discover the causal graph of a dataset: the graph, its pictures, and its score if the true graph is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import home_folder
from because_rl.discovery.discover import discover
from because_rl.discovery.export import to_dot, to_graphml, to_node_link
from because_rl.discovery.mask import CausalMask
from because_rl.discovery.regimes.find import parse_regimes
from because_rl.discovery.regimes.masks import discover_regimes
from because_rl.discovery.rest import check_rest
from because_rl.graph import Graph, score
from because_rl.io import remove_folder, remove_leftovers, write_json, write_text
from because_rl.provenance import provenance
from because_rl.report.graph_figure import draw_mask, draw_p_values, save
from because_rl.runs.pictures import load_encoded
from because_rl.transitions import Chunks

UNFINISHED = "unfinished"
REGIMES = "regimes.json"


def discover_dataset(
    dataset: str,
    root: Path | None,
    factors: Path | None,
    folder: Path | None,
    report: Callable[[int, int], None],
    roles: Mapping[str, Any] | None = None,
    regimes: int | str = 1,
    rest: Chunks | None = None,
    report_rest: Callable[[int, int], None] = lambda done, total: None,
    **settings: Any,
) -> dict[str, Any]:
    """Discover, then write ``graph.{json,svg,png,dot,graphml,node-link.json}`` and ``p-values.{svg,png}`` to `folder`.

    With other regimes than 1, ``regimes.json`` says which there are, and if there are several, the graph of regime K
    is in ``regime-K/``. Until then ``unfinished/`` holds the evidence on finished targets: called again after a stop,
    it continues.

    Args:
        dataset: an id under `root`, or the path of any Minari dataset or log that `load` takes.
        root: where datasets live; None: BECAUSE_HOME or ~/.because-rl.
        factors: the file of a factor spec, for a dataset that has none.
        folder: None: under the root, by dataset.
        report: called with (targets finished, targets in all); each mask has all targets.
        roles: keyword arguments of `load` that say what the columns of a log are.
        regimes: their number, or 'auto'; 1: none are looked for.
        rest: the other episodes, where the dataset is a sample; None: those that `load` leaves.
        report_rest: called with (chunks of the rest checked, chunks in total).
        settings: keyword arguments of `discover`.

    Returns:
        What graph.json holds, but for the provenance, and the folder; with several regimes what regimes.json holds,
        and under "graphs" the graph of each.
    """
    number = parse_regimes(regimes)
    data, _ = load_encoded(dataset, root, factors, **(roles or {}))
    data = data if rest is None else replace(data, rest=rest)
    name = data.name
    folder = folder or home_folder(root) / "graphs" / name
    remove_leftovers(folder)
    keep = folder / UNFINISHED
    true_graph = data.metadata.get("because", {}).get("true_graph")
    truth = None if true_graph is None else Graph.from_dict(true_graph)
    notes = data.metadata.get("notes")
    if number == 1:
        mask = discover(data, progress=report, keep=keep, **settings)
        if data.rest is not None:
            mask = check_rest(mask, data, report_rest)
        result = write_graph(mask, truth, name, folder, notes)
    else:
        several = discover_regimes(data, number or "auto", progress=report, keep=keep, **settings)
        split = len(several.masks) > 1
        graphs = [
            write_graph(
                mask,
                truth,
                f"{name}, regime {k}" if split else name,
                folder / f"regime-{k}" if split else folder,
                notes,
            )
            for k, mask in enumerate(several.masks, 1)
        ]
        summary = {"dataset": name} | several.to_dict()
        write_json(folder / REGIMES, summary | {"provenance": provenance(regimes=regimes, **several.masks[0].settings)})
        result = {**summary, "folder": str(folder), "graphs": graphs} if split else {**graphs[0], "regimes": 1}
    remove_folder(keep)
    return result


def write_graph(
    mask: CausalMask, truth: Graph | None, name: str, folder: Path, notes: list[str] | None
) -> dict[str, Any]:
    """Write a graph in all formats with its pictures, ``graph.json`` last, since it says that all is there."""
    result = {"dataset": name, "folder": str(folder)} | mask.to_dict()
    if notes:
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
    write_json(
        folder / "graph.json",
        {k: v for k, v in result.items() if k != "folder"} | {"provenance": provenance(**mask.settings)},
    )
    return result
