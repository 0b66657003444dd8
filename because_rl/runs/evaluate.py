"""The success of a run's agent in worlds that it has not seen: as it came out, and at its best during training.

The paper reports the best of each trial. So chosen, success is too good: the scenes that choose are those that count.
Everything else here reports what came out at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.rollout import evaluate, summarise
from because_rl.io import write_json
from because_rl.provenance import provenance
from because_rl.runs.processes import Tick, cores, run_in_processes, worth_processes
from because_rl.runs.train import load_agent, read_run
from because_rl.statistics import t_interval
from because_rl.training.method import Agent


def evaluate_run(
    folder: Path,
    root: Path | None = None,
    splits: str = "O",
    episodes: int = 100,
    spurious: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, Any]]:
    """Split -> success of a run's agent in its world, kept in ``evaluation-<split>.json``; splits side by side."""
    known = read_run(folder)
    if known["world"] is None:
        raise BecauseError(
            f"Dataset {known['dataset']} was not collected in one of our worlds.",
            need="a simulator to evaluate in.",
            fix="take the agent with load_agent and run it in your own world.",
        )
    if not splits or len(set(splits)) != len(splits) or set(splits) - {"I", "O"}:
        raise BecauseError(f"Got split {splits!r}.", need="I, O or both: IO.", fix="pass --split IO.")
    level = known["spurious"] if spurious is None else spurious
    rounds, clock, ticks = known["rounds"], time.monotonic(), 0
    total = rounds * len(splits) * world_class(known["world"]).horizon

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        report(ticks, total)

    report(0, total)
    rest = root, episodes, level
    if _apart(known["world"], splits):
        each = run_in_processes(_evaluate, [(folder, split, *rest) for split in splits], tick)
        found = {split: answer for part in each for split, answer in part.items()}
    else:
        found = _evaluate(folder, splits, *rest, tick)
    report(total, total)
    spent = round(time.monotonic() - clock, 2)
    results = {}
    for split in splits:
        results[split] = {"run": str(folder)} | found[split][-1] | final_and_best(found[split]) | {"seconds": spent}
        kept = {name: value for name, value in results[split].items() if name != "run"}
        write_json(Path(folder) / f"evaluation-{split}.json", kept | {"provenance": provenance()})
    return results


def _apart(world: str, splits: str) -> bool:
    """Whether each split gets a process. Where actions are discrete, all plans take less time than one to start."""
    return world_class(world).make_factors(1).codes is None and worth_processes(len(splits))


def _evaluate(
    folder: Path, splits: str, root: Path | None, episodes: int, spurious: int, tick: Tick
) -> dict[str, list[dict[str, Any]]]:
    """Split -> the evaluation after each round."""
    known, processes = read_run(folder), cores()
    found: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    for number in range(1, known["rounds"] + 1):
        agent = Watched(load_agent(folder, root, number), tick)
        for split in splits:
            found[split].append(evaluate_agent(agent, known, split, episodes, spurious, processes))
    return found


class Watched(Agent):
    """An agent that tells of each step."""

    def __init__(self, agent: Agent, tick: Tick):
        self.agent, self.tick, self.seeds = agent, tick, agent.seeds

    def begin(self, worlds: int, seed: int) -> None:
        self.agent.begin(worlds, seed)

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        action = self.agent.act(state, goal, steps_left)
        self.tick()
        return action


def evaluate_agent(
    agent: Agent, known: Mapping[str, Any], split: str, episodes: int, spurious: int, processes: int = 1
) -> dict[str, Any]:
    """Success of the agent of the run that `known` describes; `outcomes` tells of each seed which scenes it solved."""
    outcome = evaluate(agent, known["world"], split, episodes, spurious, processes=processes)
    result = {key: known[key] for key in ("method", "dataset", "world")} | {"split": split, "spurious": spurious}
    each = ["".join("01"[int(solved)] for solved in row) for row in outcome.success]
    return result | summarise(outcome) | {"outcomes": each}


def final_and_best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the evaluations after each round of training: the last, and each seed's best."""
    each = np.array([result["per_seed"] for result in rounds])
    return {
        "rounds": [result["success"] for result in rounds],
        "final": _summary(each[-1]),
        "best": _summary(each.max(0)) | {"round": (each.argmax(0) + 1).tolist()},
    }


def _summary(per_seed: np.ndarray) -> dict[str, Any]:
    low, high = t_interval(per_seed)
    mean, each = float(per_seed.mean()), per_seed.tolist()
    return {"success": mean, "low95": max(low, 0.0), "high95": min(high, 1.0), "per_seed": each}
