"""Training of the energy model with counterfactual and with random negatives (`fig-ebm`).

The negatives of unseen (s, a), which are ours, are switched off: the runs differ only in what the paper compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import SPLITS
from because_rl.experiments.formatting import markdown_table, percent
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import Experiment, Product, add_measure, success_rows, trainings
from because_rl.experiments.paper.scale import Scale
from because_rl.report.paper_figures import draw_curves
from because_rl.statistics import mean

NEGATIVES = ("counterfactual", "random")
CONVERGED = 0.9
"""Share of the way to the lowest loss."""


def _jobs(scale: Scale) -> list[Job]:
    """A curve has one point for each chunk of the stage, so these runs have chunks of their own."""
    if not (own := scale.methods(("because",))):
        return []
    rows = {
        kind: {"method": "because", **own["because"], "energy.negatives": kind, "energy.support": False}
        for kind in NEGATIVES
    }
    jobs = []
    for world in scale.grid.worlds:
        config: Any = make_method("because", own["because"], world).config
        chunk = max(1, config.energy_steps // scale.energy_points)
        jobs += trainings(
            scale, rows, worlds=(world,), policies=scale.knob_policies, splits=scale.knob_splits, chunk=chunk
        )
    return add_measure(jobs, "curve", stage="energy")


def steps_to_converge(steps: np.ndarray, loss: np.ndarray) -> float | None:
    """Steps after which the loss has covered 90% of the way from 0 (an untrained energy model) to its lowest value.

    Interpolates linearly between the points of the curve, `steps` (n,) and `loss` (n,). None where the loss never
    falls below 0.

    >>> steps_to_converge(np.array([10, 20, 30]), np.array([-0.5, -0.8, -1.0]))
    25.0
    """
    if loss.min() >= 0:
        return None
    steps, loss = np.append(0, steps), np.append(0.0, loss)
    target = CONVERGED * loss.min()
    at = int(np.argmax(loss <= target))
    before, after = loss[at - 1], loss[at]
    return float(steps[at - 1] + (steps[at] - steps[at - 1]) * (before - target) / (before - after))


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    data, shown = [], []
    success = {(row.label, row.recipe["world"], row.recipe["behaviour"], row.split): row for row in success_rows(cells)}
    for cell in (cell for cell in cells.values() if cell.get("measure") == "curve"):
        where = {"world": cell["recipe"]["world"], "policy": cell["recipe"]["behaviour"], "negatives": cell["label"]}
        steps = np.array([point["step"] for point in cell["curve"]])
        loss = np.array([point["loss"] for point in cell["curve"]], float)
        for step, values in zip(steps, loss, strict=True):
            over_seeds = mean(values)
            interval = {"low95": over_seeds.low, "high95": over_seeds.high}
            data.append(where | {"step": int(step), "loss": over_seeds.value, **interval})
        speeds = [steps_to_converge(steps, of_seed) for of_seed in loss.T]
        row = {
            "data": f"{where['world']}-{where['policy']}",
            "negatives": cell["label"],
            "last loss": f"{loss[-1].mean():.3f}",
        }
        row |= {"steps to 90%": _mean_and_half_width(speeds)}
        for split in SPLITS:
            of_split = success.get((cell["label"], where["world"], where["policy"], split))
            row[f"success {split}"] = percent(None if of_split is None else of_split.success)
        shown.append(row)
    text = (
        "Loss of the energy model, E(positives) - E(negatives), against gradient steps. Each kind is evaluated on its "
        "own negatives, and random ones are easier to recognise: so the steps to 90% of the way show how fast it "
        "learns, and only the success of the planner shows which kind serves it better.\n\n"
        f"{markdown_table(shown)}"
    )
    return Product(data, text, draw_curves(data) if data else None)


def _mean_and_half_width(values: Sequence[float | None]) -> str:
    if None in values:
        return "-"
    estimate = mean(values)
    return f"{estimate.value:.0f} ± {(estimate.high - estimate.low) / 2:.0f}"


FIG_EBM = Experiment("Training of the energy model with counterfactual and with random negatives", _jobs, _make)
