"""Returns on RDDL problems: policies learned from a log, in the true model, beside the behaviour that made the log.

    because    as a user would: `because fit` with its default settings, which learns the graph and the reward
    mopo       ours, with the same steps, width, planner and proposals, and no graph
    td3bc      ours
    d3rlpy     its TD3+BC, or its discrete CQL where actions are numbered; with `--d3rlpy PYTHON`
    planner    the true model, and random sequences of actions: no policy of a log can be expected to beat it by much

In logs of the confounded behaviour policies see the cue too; when they act, it means as little as before. A policy is
better than the behaviour where its mean return over episodes (means over training seeds) is above that of the log's
episodes with p < .05 (Welch, one-sided), and worse likewise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from because_rl.algorithms.mopo import MOPOConfig
from because_rl.algorithms.registry import load_agent
from because_rl.datasets.load import load
from because_rl.errors import BecauseError
from because_rl.io import read_json, write_arrays, write_json
from because_rl.provenance import provenance
from because_rl.reading import read_arrays
from because_rl.rng import stream
from because_rl.runs.fit import SETTINGS, fit
from because_rl.runs.train import train
from because_rl.training.method import Agent
from benchmarks.third_party.graphs import Report, cached_log
from benchmarks.third_party.logs import BEHAVIOURS, ROWS, Policy, make_factors, planner, play, returns
from benchmarks.third_party.peer import d3rlpy_policy
from benchmarks.third_party.rddl import PROBLEMS, Problem, load_problem

METHODS = ("planner", "because", "mopo", "td3bc")
PEER = "d3rlpy"
SHARED = {name: value for name, value in SETTINGS.items() if name.split(".")[0] in {f.name for f in fields(MOPOConfig)}}
TD3BC = {"hidden": 64, "steps": 10_000}
PLANNER = {"candidates": 100, "ahead": 10}


def compare_returns(
    keep: Path,
    problems: Sequence[str] = (),
    behaviours: Sequence[str] = (),
    seeds: Sequence[int] = (500,),
    methods: Sequence[str] = (),
    training_seeds: int = 3,
    episodes: int = 20,
    rows: int = ROWS,
    d3rlpy: Path | None = None,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Returns of every method on every log.

    Args:
        keep: a folder for logs, fits and results; what is there is not made again.
        problems: of `PROBLEMS`, or others of the repository; empty: all of `PROBLEMS`.
        behaviours: of the logs; empty: all of `BEHAVIOURS`.
        seeds: of the logs; 500 to 599 are for development.
        methods: of `METHODS`; empty: all.
        training_seeds: of each method.
        episodes: in the true model for each of these.
        rows: of each log.
        d3rlpy: the Python of an environment with d3rlpy; None: it is left out.
        report: called with (policies compared, policies in all).

    Returns:
        A row for each log and method, and how often each method is better, equal or worse than the behaviour.
    """
    if unknown := set(methods) - set(METHODS):
        raise BecauseError(
            f"There is no method {min(unknown)!r}.", need=f"one of {', '.join(METHODS)}.", fix="correct it."
        )
    chosen = [*(methods or METHODS), *([PEER] if d3rlpy else [])]
    logs = [(name, by, seed) for name in problems or PROBLEMS for by in behaviours or BEHAVIOURS for seed in seeds]
    jobs, out = [(*log, method) for log in logs for method in chosen], []
    for done, (name, by, seed, method) in enumerate(jobs):
        report(done, len(jobs))
        folder = keep / f"{name}-{rows}" / f"{by}-{seed}"
        file = folder / f"return-{method}-{training_seeds}-{episodes}.json"
        if not file.exists():
            problem = load_problem(name)
            log = cached_log(problem, by, seed, rows, keep)
            row = {"problem": name, "behaviour": by, "seed": seed, "method": method}
            row |= _evaluate(problem, by, seed, method, log, training_seeds, episodes, d3rlpy)
            write_json(file, row | {"provenance": provenance()})
        out.append(read_json(file))
    report(len(jobs), len(jobs))
    verdicts = {
        method: {v: sum(r["verdict"] == v for r in out if r["method"] == method) for v in ("better", "equal", "worse")}
        for method in chosen
    }
    settings = {"training_seeds": training_seeds, "episodes": episodes, "rows": rows}
    return {"rows": out, "verdicts": verdicts, "provenance": provenance(seeds=list(seeds), **settings)}


def _evaluate(
    problem: Problem, by: str, seed: int, method: str, log: Path, count: int, episodes: int, d3rlpy: Path | None
) -> dict[str, Any]:
    rng, cue, begin = stream(seed, "third party", problem.name, by, method), by == "confounded", time.monotonic()
    more: dict[str, Any] = {}
    if method == "planner":
        learned = np.array([_returns(problem, planner(problem, rng, **PLANNER), episodes, rng)])
    elif method == PEER:
        assert d3rlpy is not None
        learned, more = _peer_returns(problem, cue, log, d3rlpy, count, episodes, rng)
    else:
        agent = _fit(problem, cue, method, log, count)
        more = {"fit_seconds": round(time.monotonic() - begin, 1)}
        policy = agent_policy(problem, agent, episodes, cue)
        learned = _returns(problem, policy, episodes * count, rng).reshape(count, episodes)
    logged = logged_returns(read_arrays(log))
    return compare_with_log(learned, logged) | more | {"seconds": round(time.monotonic() - begin, 1)}


def compare_with_log(learned: np.ndarray, logged: np.ndarray) -> dict[str, Any]:
    """`learned`: (seeds, episodes); `logged`: (episodes of the log,)."""
    means = learned.mean(0)
    p = {
        side: float(stats.ttest_ind(means, logged, equal_var=False, alternative=side).pvalue)
        for side in ("greater", "less")
    }
    return {
        "return": float(learned.mean()),
        "per_seed": learned.mean(1).tolist(),
        "logged": float(logged.mean()),
        "p_better": p["greater"],
        "p_worse": p["less"],
        "verdict": "better" if p["greater"] < 0.05 else "worse" if p["less"] < 0.05 else "equal",
    }


def logged_returns(log: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of the episodes of a log, from their ends."""
    ends = log["terminations"] | log["truncations"]
    return returns({"episode": np.append(0, np.cumsum(ends)[:-1]), "rewards": log["rewards"]})


def agent_policy(problem: Problem, agent: Agent, episodes: int, cue: bool) -> Policy:
    """All seeds act in `episodes` episodes each, side by side."""
    controller, count = agent.start(episodes), len(agent.seeds)
    goal = np.zeros((count, episodes, 0), np.float32)

    def act(state: np.ndarray, cues: np.ndarray, step: int) -> np.ndarray:
        observed = np.c_[state, cues] if cue else state
        padded = np.pad(observed, ((0, 0), (0, agent.factors.state_size - observed.shape[1])))
        shown = padded.reshape(count, episodes, -1).astype(np.float32)
        action = np.asarray(controller.act(shown, goal, agent.horizon))
        if problem.numbered:
            return problem.codes[action.reshape(-1)]
        return np.clip(action.reshape(len(state), -1), problem.low, problem.high)

    return act


def _returns(problem: Problem, policy: Policy, episodes: int, rng: np.random.Generator) -> np.ndarray:
    return returns(play(problem, policy, episodes, rng))


def _fit(problem: Problem, cue: bool, method: str, log: Path, count: int) -> Agent:
    """The agent of a method, trained once."""
    spec, folder = make_factors(problem, cue), log.parent / f"because-{count}"
    if method == "because":
        fit(log, spec, folder, None, range(count), resume=True)
        return load_agent(folder)
    settings = SHARED if method == "mopo" else TD3BC
    own = log.parent / f"{method}-{count}"
    train(method, log, own, own / "run", range(count), settings, resume=True, factors=load(log, factors=spec).factors)
    return load_agent(own)


def _peer_returns(
    problem: Problem, cue: bool, log: Path, python: Path, count: int, episodes: int, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, Any]]:
    arrays = dict(read_arrays(log))
    if problem.numbered:
        arrays["actions"] = (arrays["actions"] @ np.arange(1, len(problem.actions) + 1)).round().astype(np.int64)
    given = log.with_name("log-numbered.npz")
    write_arrays(given, arrays)
    learned, trained = [], {}
    for seed in range(count):
        with d3rlpy_policy(python, given, seed) as peer:
            trained = peer.trained

            def act(state: np.ndarray, cues: np.ndarray, step: int, ask: Callable = peer.act) -> np.ndarray:
                action = ask(np.c_[state, cues] if cue else state)
                return problem.codes[action] if problem.numbered else np.clip(action, problem.low, problem.high)

            learned.append(_returns(problem, act, episodes, rng))
    return np.array(learned), {"peer": trained}
