"""The quality of a trained method where settings may be chosen: on development scenes and on held-out data.

Development scenes come from a random stream of their own, so no dataset and no evaluation contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from because_rl.evaluation.one_step import Steps, one_step_error
from because_rl.evaluation.rollout import outcome_strings, roll_together, summarise
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed
from because_rl.training.method import Agent
from because_rl.training.side_by_side import Team
from because_rl.transitions import Transitions

DATASET_SEEDS = range(500, 600)
"""Seeds of the datasets on which settings may be chosen; no table shows results of them."""
MAX_ROWS = 20_000
"""Held-out rows used; the error hardly changes with more."""


def scenes(world: str, episodes: int, split: str = "I") -> list[int]:
    """The seeds of a world's development scenes.

    >>> scenes("unlock", 3) == scenes("unlock", 9)[:3]
    True
    """
    return [child_seed(0, "dev", world, split, k) for k in range(episodes)]


def develop(
    agent: Agent, world: str, episodes: int, spurious: int = 1, processes: int = 1, split: str = "I"
) -> dict[str, Any]:
    """Success of an agent on the development scenes, the same ones for every method.

    Returns the summary of `evaluation.rollout.summarise` and `outcomes`: per seed, '1' or '0' for each scene.
    """
    return develop_together([agent], world, episodes, spurious, processes, split)[0]


def develop_together(
    agents: Sequence[Agent],
    world: str,
    episodes: int,
    spurious: int = 1,
    processes: int = 1,
    split: str = "I",
    team: Team | None = None,
) -> list[dict[str, Any]]:
    """`develop` for several agents, which act side by side."""
    places, seed = scenes(world, episodes, split), child_seed(0, "dev act", world)
    same = [places] * len(agents)
    outcomes = roll_together(agents, world, split, same, seed, spurious, processes=processes, team=team)
    return [summarise(outcome) | {"outcomes": outcome_strings(outcome.success)} for outcome in outcomes]


def held_out(agent: Agent, data: Transitions) -> dict[str, Any] | None:
    """The model's one-step error on the held-out episodes of its dataset; None where the agent has no model."""
    if not isinstance(agent, PlannerAgent):
        return None
    rows = np.flatnonzero(data.held_out)[:MAX_ROWS]
    return one_step_error(agent, Steps(data.state[rows], data.action[rows], data.next_state[rows]))
