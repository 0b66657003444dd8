"""The success of a run's agent in new scenes: at the end of training, and at its best during training.

The paper reports the best of each trial. Success chosen this way is too optimistic, since the scenes that choose are
the scenes that count. Everything else in this package reports the end of training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.evaluation.policy_films import keep_episodes
from because_rl.evaluation.rollout import Outcome, evaluate, evaluate_together, outcome_strings, summarise
from because_rl.io import remove_leftovers, write_json
from because_rl.provenance import provenance
from because_rl.runs.folder import read_run
from because_rl.runs.processes import Tick, cores, run_in_processes, worth_processes
from because_rl.runs.train import load_agent
from because_rl.statistics import t_interval
from because_rl.training.method import Agent
from because_rl.training.side_by_side import Team


def evaluate_run(
    folder: Path,
    splits: str = "O",
    episodes: int = 100,
    spurious: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, Any]]:
    """Evaluate a finished run in its world and keep the result in its folder as ``evaluation-<split>.json``.

    Args:
        folder: of the run.
        splits: "I", "O" or "IO"; both may run at once, in two processes.
        episodes: per seed and split.
        spurious: the spurious level of the world; None: that of the data.
        report: called with (steps done, steps in all).

    Returns:
        For each split, the result of `evaluate_agent` after the last round and of `final_and_best`.
    """
    record = read_run(folder)
    if record["world"] is None:
        raise BecauseError(
            f"Dataset {record['dataset']} was not collected in one of our worlds.",
            need="a simulator to evaluate in.",
            fix="take the agent with load_agent and run it in your own world.",
        )
    if not splits or len(set(splits)) != len(splits) or set(splits) - {"I", "O"}:
        raise BecauseError(f"Got split {splits!r}.", need="I, O or both: IO.", fix="pass --split IO.")
    remove_leftovers(Path(folder))
    begin, steps = time.monotonic(), 0
    total = record["rounds"] * len(splits) * world_class(record["world"]).horizon

    def tick() -> None:
        nonlocal steps
        steps += 1
        report(steps, total)

    report(0, total)
    options = episodes, record["spurious"] if spurious is None else spurious
    if _in_processes(record["world"], splits):
        parts = run_in_processes(_evaluate, [(folder, split, *options) for split in splits], tick)
        rounds = {split: results for part in parts for split, results in part.items()}
    else:
        rounds = _evaluate(folder, splits, *options, tick)
    report(total, total)
    seconds = round(time.monotonic() - begin, 2)
    evaluations = {}
    for split in splits:
        evaluation = rounds[split][-1] | final_and_best(rounds[split]) | {"seconds": seconds}
        write_json(Path(folder) / f"evaluation-{split}.json", evaluation | {"provenance": provenance()})
        evaluations[split] = {"run": str(folder)} | evaluation
    return evaluations


def _in_processes(world: str, splits: str) -> bool:
    """Whether each split gets a process. With discrete actions, planning takes less time than starting a process."""
    return world_class(world).make_factors(1).codes is None and worth_processes(len(splits))


def _evaluate(folder: Path, splits: str, episodes: int, spurious: int, tick: Tick) -> dict[str, list[dict[str, Any]]]:
    """Split -> the evaluation after each round."""
    record, processes = read_run(folder), cores()
    results: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    for number in range(1, record["rounds"] + 1):
        agent = load_agent(folder, number)
        for split in splits:
            results[split].append(evaluate_agent(agent, record, split, episodes, spurious, processes, tick, keep=True))
    return results


def evaluate_agent(
    agent: Agent,
    record: Mapping[str, Any],
    split: str,
    episodes: int,
    spurious: int,
    processes: int = 1,
    tick: Callable[[], None] = lambda: None,
    keep: bool = False,
) -> dict[str, Any]:
    """Success of an agent in the world of its run; `record` is what `read_run` returns.

    The result holds the summary over seeds and, as "outcomes", a string of 0 and 1 per seed: the scenes that it solved.
    With `keep` it also holds the actions of a solved episode and of a failed one ("episodes_kept"), to be filmed.
    """
    outcome = evaluate(agent, record["world"], split, episodes, spurious, processes=processes, tick=tick)
    kept = {"episodes_kept": keep_episodes(outcome)} if keep else {}
    return _result(outcome, record, split, spurious) | kept


def evaluate_agents(
    agents: Sequence[Agent],
    records: Sequence[Mapping[str, Any]],
    split: str,
    episodes: int,
    spurious: int,
    processes: int,
    team: Team,
    draws: Sequence[int],
) -> list[dict[str, Any]]:
    """`evaluate_agent` for several agents of one world, which act side by side, each in its own draw of scenes."""
    world = records[0]["world"]
    outcomes = evaluate_together(agents, world, split, episodes, spurious, processes=processes, team=team, draws=draws)
    return [_result(outcome, record, split, spurious) for outcome, record in zip(outcomes, records, strict=True)]


def _result(outcome: Outcome, record: Mapping[str, Any], split: str, spurious: int) -> dict[str, Any]:
    result = {key: record[key] for key in ("method", "dataset", "world")} | {"split": split, "spurious": spurious}
    return result | summarise(outcome) | {"outcomes": outcome_strings(outcome.success)}


def final_and_best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Success after each round (mean over seeds), after the last, and after the best round of each seed.

    `rounds`: the evaluations after each round, with "success" and "per_seed".
    """
    per_seed = np.array([result["per_seed"] for result in rounds])  # (rounds, seeds)
    return {
        "rounds": [result["success"] for result in rounds],
        "final": _summary(per_seed[-1]),
        "best": _summary(per_seed.max(0)) | {"round": (per_seed.argmax(0) + 1).tolist()},
    }


def _summary(per_seed: np.ndarray) -> dict[str, Any]:
    low, high = t_interval(per_seed)
    mean, values = float(per_seed.mean()), per_seed.tolist()
    return {"success": mean, "low95": max(low, 0.0), "high95": min(high, 1.0), "per_seed": values}
