"""Success on visual Unlock (the paper's third research question), and how well its factors are read from pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from because_rl.experiments.formatting import markdown_table
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import Experiment, Product, add_measure, merge_jobs, trainings
from because_rl.experiments.paper.scale import Scale
from because_rl.experiments.paper.success import FOCUS, OVERALL, read_scores, success_product

RIVALS = ("icil", "ifactor")
"""In the paper's table."""
BEYOND = ("mopo", "td3bc", "denoised-mdp")
SCENES = 100
"""New scenes of each split in which factors are compared."""
RECOVERY_MODULES = ("because_rl.evaluation.recovery", "because_rl.vision.agent")


def _jobs(scale: Scale) -> list[Job]:
    """Dataset by dataset, so that what is there of a table that was stopped can be compared."""
    if "unlock" not in scale.grid.worlds:
        return []
    jobs = []
    for draw in scale.visual_draws:
        axes = {"worlds": ("unlock-visual",), "dataset_seeds": (draw,), "own_data": None, "seeds": scale.visual_seeds}
        focus = trainings(scale, (FOCUS,), **axes)
        jobs += merge_jobs(focus, add_measure(focus, "recovery", RECOVERY_MODULES, scenes=SCENES))
        jobs += trainings(scale, (*RIVALS, *BEYOND), **axes)
    return jobs


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    scores = read_scores(cells)
    for by_task in scores.values():
        for overall in OVERALL:  # of one world
            by_task.pop(overall, None)
    success = success_product("visual", scores, RIVALS)
    measured = [cell for cell in cells.values() if cell.get("measure") == "recovery"]
    factors = [row for cell in measured for row in _recovery_rows(cell)]
    text = [
        "Observations are pictures of 64 x 64 pixels. All methods have the same encoder of three convolutions with 128 "
        "channels, trained once per dataset without labels, and learn from the factors that it reads; which factor the "
        "goal is about is read from the logged ends. Each seed is a dataset of its own.",
        success.text,
        "## Factors read from pictures",
        "In scenes that no dataset holds: the share of frames in which a factor is right (all: every factor), after "
        "factors and columns are matched with the true ones in other scenes; the same of the model's prediction of "
        "that many steps; and F1 of the edges. Means over datasets, with the least.",
        markdown_table(_summary(factors)),
    ]
    return Product(success.rows, "\n\n".join(text), tables={"factors": factors})


def _recovery_rows(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per split."""
    recovery, rows = cell["recovery"], []
    for split, result in recovery["splits"].items():
        row = {"dataset": cell["dataset"], "behaviour": cell["recipe"]["behaviour"], "split": split}
        row |= {"frames": result["frames"]} | {f"read_{name}": value for name, value in result["read"].items()}
        row |= {f"rollout_{n}_{name}": v for n, right in result["rollouts"].items() for name, v in right.items()}
        rows.append(row | {"edge_f1": recovery["edges"]["f1"]})
    return rows


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {"read_all": "all read", "rollout_1_all": "1 step", "rollout_8_all": "8 steps", "edge_f1": "edge F1"}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["behaviour"], row["split"]), []).append(row)
    return [
        {"data": behaviour, "split": split, "datasets": len(members)}
        | {title: _mean_and_least(row[name] for row in members) for name, title in names.items()}
        for (behaviour, split), members in groups.items()
    ]


def _mean_and_least(values: Iterable[float]) -> str:
    array = np.array(list(values))
    return f"{array.mean():.3f} ({array.min():.3f})"


TABLE_VISUAL = Experiment("Success on visual Unlock", _jobs, _make)
