"""How the energy model learns from counterfactual and from random negatives (`fig-ebm`).

Without the negatives of unseen (s, a), which are ours: only what the paper compares differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import SPLITS
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.study import Experiment, Product, Scale, also, success_rows, trainings
from because_rl.experiments.paper.text import percent, table
from because_rl.report.paper_figures import draw_curves
from because_rl.statistics import mean

NEGATIVES = ("counterfactual", "random")
NEARLY = 0.9


def _jobs(scale: Scale) -> list[Job]:
    """A curve has as many points as the stage has chunks, so these runs have chunks of their own."""
    if not (own := scale.methods(("because",))):
        return []
    rows = {
        kind: {"method": "because", **own["because"], "energy.negatives": kind, "energy.support": False}
        for kind in NEGATIVES
    }
    found = []
    for world in scale.grid.worlds:
        config: Any = make_method("because", own["because"], world).config
        chunk = max(1, config.energy_steps // scale.energy_points)
        found += trainings(
            scale, rows, worlds=(world,), policies=scale.knob_policies, splits=scale.knob_splits, chunk=chunk
        )
    return also(found, "curve", stage="energy")


def steps_to_nearly(steps: np.ndarray, loss: np.ndarray) -> float | None:
    """The first step from which on a loss has made 90% of its way from 0, where an energy model that knows nothing
    stands, to its lowest; between two points, on the line. None where it has learned nothing.

    >>> steps_to_nearly(np.array([10, 20, 30]), np.array([-0.5, -0.8, -1.0]))
    25.0
    """
    if loss.min() >= 0:
        return None
    steps, loss = np.append(0, steps), np.append(0.0, loss)
    goal = NEARLY * loss.min()
    at = int(np.argmax(loss <= goal))
    before, after = loss[at - 1], loss[at]
    return float(steps[at - 1] + (steps[at] - steps[at - 1]) * (before - goal) / (before - after))


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    data, shown = [], []
    success = {(row.label, row.recipe["world"], row.recipe["behaviour"], row.split): row for row in success_rows(cells)}
    for cell in (cell for cell in cells.values() if cell.get("measure") == "curve"):
        where = {"world": cell["recipe"]["world"], "policy": cell["recipe"]["behaviour"], "negatives": cell["label"]}
        steps = np.array([point["step"] for point in cell["curve"]])
        loss = np.array([point["loss"] for point in cell["curve"]], float)
        for step, values in zip(steps, loss, strict=True):
            told = mean(values)
            data.append(where | {"step": int(step), "loss": told.value, "low95": told.low, "high95": told.high})
        speeds = [steps_to_nearly(steps, one) for one in loss.T]
        row = {
            "data": f"{where['world']}-{where['policy']}",
            "negatives": cell["label"],
            "last loss": f"{loss[-1].mean():.3f}",
        }
        row |= {"steps to 90%": _around(speeds)}
        for split in SPLITS:
            found = success.get((cell["label"], where["world"], where["policy"], split))
            row[f"success {split}"] = percent(None if found is None else found.success)
        shown.append(row)
    text = (
        "Loss of the energy model, E(positives) - E(negatives), against gradient steps. Each kind is judged on its "
        "own negatives, and random ones are easier to tell: so the steps to 90% of the way say how fast it learns, "
        f"and only the success of the planner which kind serves it better.\n\n{table(shown)}"
    )
    return Product(data, text, draw_curves(data) if data else None)


def _around(values: Sequence[float | None]) -> str:
    if None in values:
        return "-"
    told = mean(values)
    return f"{told.value:.0f} ± {(told.high - told.low) / 2:.0f}"


FIG_EBM = Experiment("Training of the energy model with counterfactual and with random negatives", _jobs, _make)
