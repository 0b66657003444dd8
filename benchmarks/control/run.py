"""Is the policy of `because fit` better than what made the log? Gymnasium's classic control, as it comes, with rewards.

    log      episodes of a mediocre operator, in an NPZ file with rewards, ends and no goal
    fit      as a user would: `because fit LOG --factors FACTORS`, with its default settings
    act      the policy and the operator in the real environment, from the same first states

The policy is better where its mean return, over seeds and episodes, is above the operator's with p < .05 (one-sided,
paired by first states; the seeds of training are averaged first, so that an episode counts once).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from scipy import stats

from because_rl.algorithms.registry import load_agent
from because_rl.datasets.load import load
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.io import read_json, write_arrays, write_json
from because_rl.provenance import provenance
from because_rl.rng import child_seed, stream
from because_rl.runs.fit import fit
from because_rl.runs.train import train
from because_rl.training.method import Agent
from because_rl.training.play import play
from benchmarks.control import industrial
from benchmarks.third_party.peer import d3rlpy_policy

INDUSTRIAL = "industrial"
"""A fifth problem, which needs a package (`industrial`)."""
TD3BC = {"hidden": 64, "steps": 10_000}
MOST_STEPS = 1000
"""No episode of these environments is longer."""


@dataclass(frozen=True)
class Problem:
    """An environment, and an operator who is not good at it."""

    id: str
    episodes: int
    """in the log"""
    factors: FactorSpec
    operator: Callable[[np.ndarray], Any]
    """observation -> the action that he means to take"""
    slips: float
    """share of steps with a random action instead"""


def _continuous(*names: str) -> tuple:
    return pack(*((name, 1, "continuous") for name in names))


def _one_hot(name: str, count: int) -> tuple:
    return pack((name, count, "categorical" if count > 1 else "binary"))


def swing_up(observed: np.ndarray) -> np.ndarray:
    """Pumps energy into the pendulum, and brakes where it stands up."""
    cos, sin, speed = observed
    if cos > 0.9:
        return np.clip(np.array([-8.0 * np.arctan2(sin, cos) - 2.0 * speed]), -2, 2)
    return np.array([1.5 * np.sign(speed)])


PROBLEMS: dict[str, Problem] = {
    "pendulum": Problem(
        "Pendulum-v1", 60, FactorSpec(_continuous("cos", "sin", "speed"), _continuous("torque")), swing_up, 0.5
    ),
    "cartpole": Problem(
        "CartPole-v1",
        150,
        FactorSpec(_continuous("position", "velocity", "angle", "rotation"), _one_hot("push", 2)),
        lambda s: int(s[2] + 0.3 * s[3] > 0),
        0.7,
    ),
    "acrobot": Problem(
        "Acrobot-v1",
        40,
        FactorSpec(_continuous("cos1", "sin1", "cos2", "sin2", "speed1", "speed2"), _one_hot("torque", 3)),
        lambda s: 2 if s[4] < 0 else 0,
        0.6,
    ),
    "mountaincar": Problem(
        "MountainCarContinuous-v0",
        40,
        FactorSpec(_continuous("position", "velocity"), _continuous("push")),
        lambda s: np.array([0.8 * np.sign(s[1] + 1e-9)], np.float32),
        0.5,
    ),
}


def control(
    keep: Path,
    problems: Sequence[str] = (),
    log_seeds: Sequence[int] = (0,),
    seeds: int = 3,
    episodes: int = 50,
    settings: Mapping[str, str] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    td3bc: bool = False,
    d3rlpy: Path | None = None,
) -> dict[str, Any]:
    """Fit logs and compare the policies with the operators.

    Args:
        keep: a folder for logs, fits and results; what is there is not made again.
        problems: of `PROBLEMS`, or `INDUSTRIAL`; empty: all of `PROBLEMS`.
        log_seeds: of the logs and of first states, one row each.
        seeds: of training, as one program.
        episodes: in the real environment, for the operator and each seed.
        settings: of BECAUSE, beside those of `because fit`.
        report: called with (rows finished, rows in all).
        td3bc: whether TD3+BC learns from the same logs too.
        d3rlpy: the Python of an environment with d3rlpy, whose TD3+BC (or discrete CQL) learns from them too.

    Returns:
        A row for each problem and log, as `compare` gives it; those of other methods under their names.
    """
    if unknown := set(problems) - {*PROBLEMS, INDUSTRIAL}:
        raise BecauseError(
            f"There is no problem {min(unknown)!r}.",
            need=f"one of {', '.join(PROBLEMS)}, {INDUSTRIAL}.",
            fix="correct it.",
        )
    pairs = [(name, seed) for name in problems or PROBLEMS for seed in log_seeds]
    chosen = "-".join(map("=".join, (settings or {}).items())) or "default"
    rows = []
    for done, (name, seed) in enumerate(pairs):
        report(done, len(pairs))
        folder = keep / f"{name}-{seed}"
        file = folder / f"{chosen}-{seeds}-{episodes}.json"
        if not file.exists():
            write_json(file, _row(name, seed, folder, chosen, seeds, episodes, settings) | {"provenance": provenance()})
        others = {}
        for other in (*(["td3bc"] if td3bc else []), *(["d3rlpy"] if d3rlpy else [])):
            beside = folder / f"{other}-{seeds}-{episodes}.json"
            if not beside.exists():
                write_json(
                    beside, _other_row(name, seed, folder, seeds, episodes, d3rlpy if other == "d3rlpy" else None)
                )
            others[other] = read_json(beside)
        rows.append(read_json(file) | others)
    report(len(pairs), len(pairs))
    return {"rows": rows, "provenance": provenance(settings=dict(settings or {}), seeds=seeds, episodes=episodes)}


def find_problem(name: str) -> Problem:
    """One of `PROBLEMS`, or `INDUSTRIAL`, which is registered with Gymnasium first."""
    if name != INDUSTRIAL:
        return PROBLEMS[name]
    industrial.register()
    return Problem(industrial.ID, 100, industrial.FACTORS, industrial.steer_to_quarter, 0.5)


def _row(
    name: str, seed: int, folder: Path, chosen: str, seeds: int, episodes: int, settings: Mapping[str, str] | None
) -> dict[str, Any]:
    problem, log = find_problem(name), folder / "log.npz"
    if not log.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_arrays(log, make_log(problem, stream(seed, "control", name)))
    start = time.monotonic()
    result = fit(log, problem.factors, folder / chosen, None, range(seeds), settings, resume=True)
    fitted = time.monotonic()
    first = first_states(seed, episodes)
    operator = operator_returns(name, seed, first)
    policy = returns_of_agent(problem, load_agent(folder / chosen), first)
    return {
        "problem": name,
        "seed": seed,
        **compare(policy, operator),
        "episodes": result["episodes"],
        "transitions": result["transitions"],
        "log_return": result["log_return"],
        "graph": result["graph"],
        "fit_seconds": round(fitted - start, 1),
        "act_seconds": round(time.monotonic() - fitted, 1),
    }


def first_states(seed: int, episodes: int) -> list[int]:
    return [child_seed(seed, "first state", k) % 2**31 for k in range(episodes)]


def operator_returns(name: str, seed: int, first: Sequence[int]) -> np.ndarray:
    problem, rng = find_problem(name), stream(seed, "control", name, "operator")
    env = gymnasium.make(problem.id)
    return np.array(
        [play(lambda _: lambda state, _: act(problem, state, rng), env, 1, s, MOST_STEPS).returns[0] for s in first]
    )


def _other_row(name: str, seed: int, folder: Path, seeds: int, episodes: int, python: Path | None) -> dict[str, Any]:
    """TD3+BC on the same log: ours, or with `python` that of d3rlpy."""
    problem, log, start = find_problem(name), folder / "log.npz", time.monotonic()
    first = first_states(seed, episodes)
    if python is None:
        own, factors = folder / f"td3bc-{seeds}", load(log, factors=problem.factors).factors
        train("td3bc", log, own, own / "run", range(seeds), TD3BC, resume=True, factors=factors)
        policy, more = returns_of_agent(problem, load_agent(own), first), {}
    else:
        env, returns = gymnasium.make(problem.id), []
        for one in range(seeds):
            with d3rlpy_policy(python, log, one) as peer:

                def choose(state: np.ndarray, step: int, ask: Callable = peer.act) -> Any:
                    action = ask(state[None])[0]
                    return int(action) if action.ndim == 0 else action

                returns.append([play(lambda _: choose, env, 1, s, MOST_STEPS).returns[0] for s in first])
                more = {"peer": peer.trained}
        policy = np.array(returns)
    row = compare(policy, operator_returns(name, seed, first))
    return row | more | {"seconds": round(time.monotonic() - start, 1), "provenance": provenance()}


def act(problem: Problem, state: np.ndarray, rng: np.random.Generator) -> Any:
    """The operator's action, or a slip."""
    intended = problem.operator(state)
    if rng.uniform() >= problem.slips:
        return intended
    if isinstance(intended, int):
        return int(rng.integers(problem.factors.action_size))
    space: Any = gymnasium.make(problem.id).action_space
    return rng.uniform(space.low, space.high).astype(np.float32)


def make_log(problem: Problem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Flat arrays with one row per step."""
    env = gymnasium.make(problem.id)
    rows: dict[str, list] = {
        name: [] for name in ("observations", "actions", "next_observations", "rewards", "terminations", "truncations")
    }
    for _ in range(problem.episodes):
        state, over = env.reset(seed=int(rng.integers(2**31)))[0], False
        while not over:
            action = act(problem, state, rng)
            after, reward, terminated, truncated, _ = env.step(action)
            for array, value in zip(rows.values(), (state, action, after, reward, terminated, truncated), strict=True):
                array.append(value)
            state, over = after, terminated or truncated
    return {name: np.asarray(values) for name, values in rows.items()}


def returns_of_agent(problem: Problem, agent: Agent, first: Sequence[int]) -> np.ndarray:
    """(seeds, episodes) returns; all episodes of all seeds are stepped together."""
    count = len(agent.seeds), len(first)
    envs = [[gymnasium.make(problem.id) for _ in first] for _ in agent.seeds]
    state = np.array([[env.reset(seed=s)[0] for env, s in zip(row, first, strict=True)] for row in envs])
    total, live = np.zeros(count), np.ones(count, bool)
    controller, goal = agent.start(len(first)), np.zeros((*count, 0), np.float32)
    pad = ((0, 0), (0, 0), (0, agent.factors.state_size - state.shape[2]))
    while live.any():
        actions = controller.act(np.pad(state, pad), goal, agent.horizon)
        for k, n in np.argwhere(live):
            action = actions[k, n]
            action = int(action) if action.ndim == 0 else action
            state[k, n], reward, terminated, truncated, _ = envs[k][n].step(action)
            total[k, n] += float(reward)
            live[k, n] = not (terminated or truncated)
    return total


def compare(policy: np.ndarray, operator: np.ndarray) -> dict[str, Any]:
    """Means, the difference with its 95% interval, and the one-sided p that the policy is no better.

    `policy`: (seeds, episodes); `operator`: (episodes,).
    """
    difference = policy.mean(0) - operator
    half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / len(difference) ** 0.5
    test = stats.ttest_1samp(difference, 0.0, alternative="greater")
    return {
        "policy": float(policy.mean()),
        "per_seed": policy.mean(1).tolist(),
        "operator": float(operator.mean()),
        "difference": float(difference.mean()),
        "difference_ci95": [float(difference.mean() - half), float(difference.mean() + half)],
        "p": float(test.pvalue),
        "better": bool(test.pvalue < 0.05),
    }
