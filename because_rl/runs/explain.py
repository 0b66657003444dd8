"""Explain the choice of a fitted agent in one logged step, and write it as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from because_rl.algorithms.registry import load_agent
from because_rl.errors import BecauseError
from because_rl.evaluation.explain import Report, Situation, explain_choice
from because_rl.models.behaviour_policy import nearest_code
from because_rl.planning.agent import PlannerAgent
from because_rl.report.explain_page import write_explanation
from because_rl.runs.fit import FIT
from because_rl.runs.train import load_run_data
from because_rl.transitions import Transitions
from because_rl.vision.agent import without_encoder

MOST_OTHERS = 20_000
"""Other logged steps from which values are drawn; more hardly change anything."""


def explain(
    folder: Path,
    row: int,
    root: Path | None = None,
    steps: int = 10,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Explain what the agent of a fit, or of a run, chooses in the state of one row of its log.

    Args:
        folder: of `because fit` or `because train`.
        row: of the log, counted from 0 through all its episodes.
        root: where the dataset of a run is looked up.
        steps: how far futures are imagined.
        report: called before every question that is put to the planner.

    Returns:
        The explanation (`evaluation.explain`), with the row, its episode and step, and the path of the page.
    """
    folder = Path(folder)
    # An encoder is left out: the data are what it has read.
    agent, fitted = without_encoder(load_agent(folder)), (folder / FIT).is_file()
    data = load_run_data(folder / "run", folder) if fitted else load_run_data(folder, root)
    if not isinstance(agent, PlannerAgent):
        raise BecauseError(
            f"The agent in {folder} does not plan: it is of {agent.method.name}.",
            need="a method that plans in a learned model.",
            fix="fit 'because', say.",
        )
    if not 0 <= row < len(data):
        raise BecauseError(f"There is no row {row}.", need=f"0 to {len(data) - 1}.", fix="count from 0.")
    first = int(np.searchsorted(data.episode, data.episode[row]))
    left = agent.horizon if agent.factors.maximises_reward else max(agent.horizon - (row - first), 1)
    situation = Situation(data.state[row], data.goal[row], left)
    others = data.state[np.linspace(0, len(data) - 1, min(len(data), MOST_OTHERS)).astype(int)]
    result: dict[str, Any] = {"row": row, "episode": int(data.episode[row]), "step": row - first}
    result |= explain_choice(agent, situation, others, _logged_action(data, row), steps=steps, report=report)
    result["page"] = str(write_explanation(folder / "report", result, folder.resolve().name))
    return result


def _logged_action(data: Transitions, row: int) -> np.ndarray:
    action, codes = data.action[row], data.factors.codes
    return action if codes is None else np.asarray(nearest_code(jnp.asarray(codes, jnp.float32), jnp.asarray(action)))


def future_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The futures of an explanation, a row each."""
    return [
        {
            "first action": in_one_line(future["action"]),
            "chosen by": future["name"],
            "mean uncertainty": f"{future['uncertainty']:.2f}",
            **({"reward": f"{future['reward']:.4g}"} if "reward" in future else {}),
            "then": future["end"],
        }
        for future in result["futures"]
    ]


def reason_rows(result: Mapping[str, Any], most: int = 8) -> list[dict[str, str]]:
    """What the choice depends on clearly, most first: factors of the state, then edges."""
    inputs = [
        {
            "changed": row["factor"],
            "how": f"to {row['value']}, say",
            "choice changes": f"{row['change']:.2f}",
            "then it would be": in_one_line(row["action"]),
        }
        for row in result["inputs"]
        if row["clear"]
    ]
    edges = [
        {
            "changed": f"{row['from']} -> {row['to']}",
            "how": "edge cut",
            "choice changes": f"{row['change']:.2f}",
            "then it would be": "",
        }
        for row in result["edges"]
        if row["clear"]
    ]
    return inputs[:most] + edges[:most]


def in_one_line(action: Mapping[str, str]) -> str:
    """The action in words.

    >>> in_one_line({"move": "level 2", "pick": "no"})
    'move level 2, pick no'
    """
    return ", ".join(f"{name} {value}" for name, value in action.items())
