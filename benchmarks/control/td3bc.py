"""Our TD3+BC beside that of d3rlpy: one Minari dataset, the same settings, mean returns in the real environment.

    dataset    episodes of the operator of `run.PROBLEMS`, as a Minari dataset, which both sides read
    act        all policies from the same first states

Both standardise rewards, have two layers of the same width with the same activation, batch, rates, discount, tau,
noise, alpha and delay, and take as many gradient steps. What differs: ours moves actor and critics in the same step,
takes the features of `models.state_features`, and holds out every tenth episode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from scipy import stats

from because_rl.algorithms.registry import make_method
from because_rl.algorithms.td3bc import TD3BCConfig
from because_rl.datasets.load import load
from because_rl.datasets.user_dataset import prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance
from because_rl.rng import stream
from because_rl.training.play import play
from benchmarks.control.run import (
    MOST_STEPS,
    Problem,
    find_problem,
    first_states,
    make_log,
    operator_returns,
    returns_of_agent,
)
from benchmarks.third_party.peer import d3rlpy_policy

PROBLEM = "pendulum"


def td3bc_beside_d3rlpy(
    keep: Path,
    python: Path,
    seeds: int = 3,
    episodes: int = 20,
    steps: int = 10_000,
    hidden: int = 64,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Returns of both, and of the operator.

    Args:
        keep: a folder for the datasets and the returns of each training, from which a later call continues.
        python: the Python of an environment with d3rlpy and Minari.
        seeds: of training.
        episodes: in the real environment, for each seed.
        steps: gradient steps of both.
        hidden: width of their networks.
        report: called with (trainings finished, trainings in all).

    Returns:
        A row for each learner, and the difference of ours from d3rlpy's.
    """
    problem, config = find_problem(PROBLEM), TD3BCConfig(steps=steps, hidden=hidden)
    first = first_states(0, episodes)
    folder, operator = make_dataset(keep, problem), operator_returns(PROBLEM, 0, first)
    report(0, 1 + seeds)
    file = keep / f"because_rl-{steps}-{hidden}-{seeds}-{episodes}.json"
    if not file.exists():
        write_json(file, _train_ours(problem, folder, config, seeds, first))
    ours = read_json(file)
    peers = []
    for seed in range(seeds):
        report(1 + seed, 1 + seeds)
        file = keep / f"d3rlpy-{steps}-{hidden}-{seed}-{episodes}.json"
        if not file.exists():
            with d3rlpy_policy(python, folder, seed, steps, config) as peer:
                write_json(file, {"returns": _play(problem, peer.act, first), **peer.trained})
        peers.append(read_json(file))
    report(1 + seeds, 1 + seeds)
    rows = [
        {"learner": "operator", "return": float(operator.mean()), "per_seed": []},
        _row("because_rl", np.array(ours["returns"]), ours["seconds"]),
        _row("d3rlpy", np.array([one["returns"] for one in peers]), sum(one["seconds"] for one in peers)),
    ]
    rows[1]["difference"], rows[1]["p"] = compare_seeds(rows[1]["per_seed"], rows[2]["per_seed"])
    more = {"config": asdict(config), "versions": peers[0]["versions"]}
    return {"problem": problem.id, "rows": rows, **more, "provenance": provenance(seeds=seeds, episodes=episodes)}


def _train_ours(
    problem: Problem, folder: Path, config: TD3BCConfig, seeds: int, first: Sequence[int]
) -> dict[str, Any]:
    begin = time.monotonic()
    agent = make_method("td3bc", asdict(config)).fit(load(folder), seeds)
    seconds = time.monotonic() - begin
    return {"returns": returns_of_agent(problem, agent, first).tolist(), "seconds": seconds}


def make_dataset(keep: Path, problem: Problem) -> Path:
    """The folder of the operator's episodes as a Minari dataset."""
    folder = keep / f"{PROBLEM}-v1"
    if not folder.exists():
        write_dataset(prepare_log(read_log(make_log(problem, stream(0, "control", PROBLEM))), problem.factors), folder)
    return folder


def compare_seeds(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The difference of mean returns, and the two-sided p of Welch's test over training seeds."""
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    return float(np.mean(ours) - np.mean(theirs)), float(test.pvalue)


def _row(learner: str, returns: np.ndarray, seconds: float) -> dict[str, Any]:
    """`returns`: (seeds, episodes)."""
    per_seed = returns.mean(1).tolist()
    return {"learner": learner, "return": float(returns.mean()), "per_seed": per_seed, "seconds": round(seconds, 1)}


def _play(problem: Problem, act: Callable[[np.ndarray], np.ndarray], first: Sequence[int]) -> list[float]:
    def choose(state: np.ndarray, step: int) -> np.ndarray:
        return act(state[None])[0]

    env = gymnasium.make(problem.id)
    return [play(lambda _: choose, env, 1, seed, MOST_STEPS).returns[0] for seed in first]
