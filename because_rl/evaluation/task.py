"""Success of an agent in one of the 18 tasks."""

from __future__ import annotations

from dataclasses import dataclass

from because_rl.envs.tasks import Task, world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.rollout import evaluate as roll_out
from because_rl.evaluation.rollout import outcome_strings, summarise
from because_rl.training.method import Agent


@dataclass(frozen=True)
class Evaluation:
    """Success in a task, with a 95% interval over seeds."""

    task: str
    success: float
    """mean over seeds of the share of solved scenes"""
    low95: float
    high95: float
    per_seed: tuple[float, ...]
    episodes: int
    """scenes, the same for every seed and every method"""
    steps: float | None
    """mean steps to success; None without one"""
    outcomes: tuple[str, ...]
    """per seed, '1' or '0' for each scene"""

    def __str__(self) -> str:
        seeds = f"{len(self.per_seed)} seed{'s' * (len(self.per_seed) != 1)}"
        return (
            f"{self.task}: {self.success:.1%} [{self.low95:.1%}, {self.high95:.1%}], {seeds} x {self.episodes} scenes"
        )


def evaluate(
    agent: Agent, task: str, episodes: int = 100, *, spurious: int | None = None, processes: int = 1
) -> Evaluation:
    """Let an agent act in new scenes of a task, which no dataset holds and which are the same for every method.

    Args:
        agent: one that was fitted or loaded; all its seeds act.
        task: such as "unlock-O-medium"; what counts is the world and the split.
        episodes: scenes per seed.
        spurious: the spurious level of the world; None: that of the data that the agent was trained on.
        processes: that share the simulation of slow worlds.
    """
    wanted = Task.parse(task)
    level = agent.trained_on.get("recipe", {}).get("spurious", 1) if spurious is None else spurious
    factors = world_class(wanted.world).make_factors(level)
    if factors.to_dict() != agent.factors.to_dict():
        raise BecauseError(
            f"The agent's factors are not those of {wanted.world} with spurious level {level}.",
            need="an agent that was trained on data of this world.",
            fix=f"train one on {wanted.dataset}, or choose another task.",
        )
    outcome = roll_out(agent, wanted.world, wanted.split, episodes, level, processes=processes)
    summary = summarise(outcome)
    return Evaluation(
        wanted.name,
        summary["success"],
        summary["low95"],
        summary["high95"],
        tuple(summary["per_seed"]),
        episodes,
        summary["steps"],
        tuple(outcome_strings(outcome.success)),
    )
