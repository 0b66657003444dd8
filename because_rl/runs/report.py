"""The page of a run: from its folder, its dataset and, if given, the results of the oracle planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.load import load
from because_rl.datasets.paths import current_id
from because_rl.factors import FactorSpec
from because_rl.graph import Graph
from because_rl.io import read_arrays, read_json
from because_rl.report.run_page import write_page
from because_rl.runs.folder import read_metrics, read_run
from because_rl.statistics import wilson


def report_run(folder: Path, output: Path, root: Path | None = None, oracle: Path | None = None) -> dict[str, Any]:
    """Write the page of the run in `folder` to `output`.

    `root`: where its dataset lives. `oracle`: the file that ``because oracle -o FILE`` wrote. Returns the page's path
    and the rows of its success table (policy, split, success, low95, high95).
    """
    run = read_run(folder)
    factors = FactorSpec.from_dict(run["factors"])
    data = load(current_id(run["dataset"]), root, factors)
    graph = None
    if (folder / "mask.npz").exists():
        weights = read_arrays(folder / "mask.npz")["weights"]
        kept = [(factors.inputs[i], factors.targets[j]) for i, j in np.argwhere(weights > 0)]
        graph = Graph(factors.inputs, factors.targets, frozenset(kept))
    rate, shown = data.success_rate, ("split", "success", "low95", "high95")
    low, high = wilson(rate, data.episodes)
    rows = [{"policy": "behaviour", "split": "I", "success": rate, "low95": float(low), "high95": float(high)}]
    for file in sorted(folder.glob("evaluation-*.json")):
        evaluation = read_json(file)
        rows.append({"policy": run["method"]} | {key: evaluation[key] for key in shown})
    if oracle is not None:
        rows += [
            {"policy": "oracle planner"} | {key: row[key] for key in shown}
            for row in read_json(oracle)["rows"]
            if row["world"] == run["world"]
        ]
    seeds = len(run["seeds"])
    title = f"{run['method']} on {run['dataset']}, {seeds} seed{'s' if seeds > 1 else ''}"
    settings = json.dumps({"config": run["config"], "provenance": run["provenance"]}, indent=1)
    page = write_page(output, title, graph, read_metrics(folder), rows, settings)
    return {"page": str(page), "success": rows}
