"""Objective mismatch (`table-mismatch`, `fig-mismatch`): the model's loss in episodes that succeed and that fail.

If a model's loss is informative about control, it is lower where the agent succeeds. The paper has 5,000 episodes of
each of Unlock's datasets; here these are ten seeds in 500 scenes, for each split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from because_rl.envs.tasks import SPLITS
from because_rl.experiments.formatting import markdown_table, method_name, p_value
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import (
    Experiment,
    Product,
    add_measure,
    measures_only,
    merge_jobs,
    trainings,
)
from because_rl.experiments.paper.numbers import paper_numbers
from because_rl.experiments.paper.scale import Scale
from because_rl.report.paper_figures import draw_mismatch
from because_rl.statistics import mann_whitney, wasserstein

METHODS = ("mopo", "because")


def _jobs(scale: Scale) -> list[Job]:
    worlds = tuple(world for world in scale.grid.worlds if world == "unlock")
    trained = trainings(scale, METHODS, worlds=worlds, policies=scale.mismatch_policies)
    modules, scenes = ["because_rl.evaluation.mismatch"], scale.mismatch_scenes
    measured = (add_measure(trained, "mismatch", modules, split=split, scenes=scenes) for split in SPLITS)
    return measures_only(merge_jobs(*measured))


class Group(NamedTuple):
    """The episodes of one method on one dataset and split."""

    method: str
    policy: str
    split: str
    succeeded: np.ndarray
    """episodic model loss of the episodes that succeeded, (n,)"""
    failed: np.ndarray
    """of those that failed, (m,)"""

    @property
    def result(self) -> dict[str, Any]:
        """Mann and Whitney's U with the p-value of 'successful episodes have the lower loss', and the Wasserstein-1
        distance between the two groups."""
        row: dict[str, Any] = {"method": self.method, "data": self.policy, "split": self.split}
        row |= {"succeeded": len(self.succeeded), "failed": len(self.failed)}
        for name, losses in (("loss_succeeded", self.succeeded), ("loss_failed", self.failed)):
            row[name] = float(losses.mean()) if len(losses) else None
        row |= {"u": None, "p": None, "w1": None}
        if len(self.succeeded) and len(self.failed):
            u, p = mann_whitney(self.succeeded, self.failed, "less")
            row |= {"u": u, "p": p, "w1": wasserstein(self.succeeded, self.failed)}
        return row


def _groups(scale: Scale, cells: Mapping[str, Any]) -> list[Group]:
    """In the order of the table."""
    cells_of: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        cells_of.setdefault((cell["label"], cell["recipe"]["behaviour"], cell["split"]), []).append(cell)
    groups = []
    for (method, policy, split), group in cells_of.items():
        loss = np.array([value for cell in group for row in cell["loss"] for value in row])
        solved = np.array([mark == "1" for cell in group for row in cell["outcomes"] for mark in row])
        groups.append(Group(method, policy, split, loss[solved], loss[~solved]))
    rank = {policy: n for n, policy in enumerate(scale.mismatch_policies)}
    return sorted(groups, key=lambda g: (g.split, rank[g.policy], METHODS.index(g.method)))


def _table(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    rows = [group.result for group in _groups(scale, cells)]
    shown = [
        {"data": f"unlock-{row['data']}", "split": row["split"], "method": method_name(row["method"])}
        | {"succeeded": row["succeeded"], "failed": row["failed"]}
        | {"loss, succeeded": _four_digits(row["loss_succeeded"]), "loss, failed": _four_digits(row["loss_failed"])}
        | {"U": "-" if row["u"] is None else f"{row['u']:.0f}", "p": p_value(row["p"]), "W1": _four_digits(row["w1"])}
        for row in rows
    ]
    theirs = [
        {
            "data": f"unlock-{policy}",
            "method": method_name(method),
            "p": by_policy[policy]["p"],
            "W1 (x 1e-4)": "-" if by_policy[policy]["w1_times_1e4"] is None else by_policy[policy]["w1_times_1e4"],
        }
        for policy in ("expert", "medium", "random")
        for method, by_policy in paper_numbers()["mismatch"].items()
    ]
    text = (
        "Episodic model loss (mean over the steps of an episode, `evaluation/mismatch.py`) where the agent succeeded "
        "and where it failed. p: one-sided Mann-Whitney U test that it is lower where the agent succeeded; W1: "
        f"Wasserstein-1 distance of the two. '-' where one of the two is empty.\n\n{markdown_table(shown)}\n\n"
        "## The paper\n\nIts loss is a different one, so W1 cannot be compared with ours. "
        f"{paper_numbers()['credit']}\n\n{markdown_table(theirs)}"
    )
    return Product(rows, text)


def _figure(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    groups = _groups(scale, cells)
    rows = [
        {
            "method": g.method,
            "data": g.policy,
            "split": g.split,
            "succeeded": int(solved),
            "loss": float(f"{value:.6g}"),
        }
        for g in groups
        for solved, losses in ((True, g.succeeded), (False, g.failed))
        for value in losses
    ]
    shown = [g._replace(method=method_name(g.method)) for g in groups]
    text = (
        "Distribution of the episodic model loss, successful and failed episodes; the tests are in table-mismatch.md."
    )
    return Product(rows, text, draw_mismatch(shown) if groups else None)


def _four_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


TABLE_MISMATCH = Experiment("Does the model's loss tell success from failure?", _jobs, _table)
FIG_MISMATCH = Experiment("Model loss of successful and failed episodes in Unlock", _jobs, _figure)
