"""Which part of a method limits its success? Each part is replaced by the truth, one at a time.

    learned          the method as it is
    true mask        trained with the edges of the world
    true <part>      its model, with the next values of some factors from the equations of the world
    all true         its planner, proposals and terminal value in the true model, which lacks the hidden causes only
    oracle planner   the simulator as the model, hidden causes included, with a larger budget

All rungs act in the same development scenes. Trained agents and finished rungs are kept, so a ladder that was stopped
continues. Lift has no equations to take a part from: its ladder has the mask and the oracle planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from because_rl.algorithms.because import Because
from because_rl.algorithms.registry import load_agent, make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import Task, world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.oracle_planner import make_oracle
from because_rl.evaluation.rollout import roll, summarise
from because_rl.experiments.tuning.development import develop, scenes
from because_rl.graph import Graph
from because_rl.io import read_json, write_json
from because_rl.planning.agent import PlannerAgent, PlanningMethod
from because_rl.provenance import provenance
from because_rl.rng import child_seed
from because_rl.runs.train import load_for_training
from because_rl.training.method import Agent
from benchmarks.ladder.truth import TRUTH, WithTruth

Report = Callable[[int, int], None]
DEVELOPMENT_SEEDS = range(500, 600)


def ladder(
    task: str,
    seed: int,
    keep: Path,
    method: str = "because",
    seeds: int = 1,
    episodes: int = 100,
    settings: Mapping[str, str] | None = None,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Success with each part replaced by the truth.

    Args:
        task: such as "crash-O-expert".
        seed: of the dataset, one for development.
        keep: a folder for datasets, agents and finished rungs.
        method: one that learns a world model.
        seeds: of training, as one program.
        episodes: development scenes.
        settings: of the method.
        report: called with (rungs finished, rungs in all).

    Returns:
        A row for each rung.
    """
    wanted = Task.parse(task)
    if seed not in DEVELOPMENT_SEEDS:
        raise BecauseError(f"Got dataset seed {seed}.", need="500 to 599.", fix="leave other seeds to evaluation.")
    learner = make_method(method, dict(settings or {}), wanted.world)
    if not isinstance(learner, PlanningMethod):
        raise BecauseError(f"{method} has no world model.", need="a method that plans.", fix="try because.")
    names = rungs(wanted.world, isinstance(learner, Because))
    folder = keep / "-".join(
        [task, str(seed), method, str(seeds), str(episodes), *map("=".join, (settings or {}).items())]
    )
    for done, name in enumerate(names):
        report(done, len(names))
        file = folder / f"{name}.json"
        if not file.exists():
            result = climb(name, wanted, seed, learner, seeds, episodes, keep, folder)
            write_json(file, {"rung": name, **result, "provenance": provenance()})
    report(len(names), len(names))
    details = dict(task=task, dataset_seed=seed, method=method, seeds=seeds, episodes=episodes, settings=settings or {})
    return {"rows": [read_json(folder / f"{name}.json") for name in names], "provenance": provenance(**details)}


def rungs(world: str, masked: bool) -> list[str]:
    """The names of the rungs, from the learned model to the oracle planner."""
    parts = TRUTH[world].parts if world in TRUTH else {}
    names = ["learned", *(["true mask"] if masked else []), *(f"true {part}" for part in parts)]
    return [*names, *(["all true"] if parts else []), "oracle planner"]


def climb(
    rung: str, task: Task, seed: int, learner: PlanningMethod, seeds: int, episodes: int, keep: Path, folder: Path
) -> dict[str, Any]:
    """Success on one rung, by `summarise`."""
    if rung == "oracle planner":
        oracle = make_oracle(task.world, child_seed(0, "ladder"))
        try:
            places = scenes(task.world, episodes, task.split)
            return summarise(roll(task.world, task.split, places, oracle.act, begin=oracle.begin))
        finally:
            oracle.close()
    agent = _agent(rung == "true mask", task, seed, learner, seeds, keep, folder)
    if rung not in ("learned", "true mask"):
        parts = TRUTH[task.world].parts
        known = [name for part, names in parts.items() if rung in (f"true {part}", "all true") for name in names]
        assert isinstance(agent, PlannerAgent)
        agent = WithTruth(learner, TRUTH[task.world], known).agent(agent)
    return develop(agent, task.world, episodes, split=task.split)


def _agent(masked: bool, task: Task, seed: int, learner: PlanningMethod, seeds: int, keep: Path, folder: Path) -> Agent:
    """The learned agent, or with `masked` the one that was given the true edges; trained if it is not kept."""
    file = folder / ("agent-true-mask" if masked else "agent")
    if not file.exists():
        recipe = Recipe.parse(task.dataset, seed=seed)
        collect(recipe, keep)
        data = load_for_training(recipe.id, keep)
        truth: Graph = world_class(task.world).make_true_graph(recipe.spurious)
        agent = (
            learner.fit(data, seeds, mask=truth)
            if masked and isinstance(learner, Because)
            else learner.fit(data, seeds)
        )
        agent.save(file)
    return load_agent(file)
