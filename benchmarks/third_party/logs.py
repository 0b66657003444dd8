"""Logs of RDDL problems by three behaviours, as a user would have them: states, actions, rewards, ends.

- *random*: every action alike.
- *medium*: a planner with the true model that looks a few steps ahead, and in half of the steps a random action.
- *confounded*: half of the actions follow a logged factor `cue`, which drives nothing and follows only itself; the
  others are the medium behaviour's. A model that takes the cue for a cause of what the actions do is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph
from because_rl.rng import stream
from benchmarks.third_party.rddl import Problem

BEHAVIOURS = ("random", "medium", "confounded")
ROWS = 20_000
CUE = "cue"
SLIPS = 0.5
"""share of random actions of the medium behaviour"""
FOLLOWED = 0.5
"""share of the confounded behaviour's actions that follow the cue"""
KEPT = 0.9
"""share of the cue that remains from step to step"""
CANDIDATES, AHEAD = 24, 6
"""action sequences that the planner with the true model compares at every step, and their length"""

Policy = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""(states, cues, step) -> actions"""


def planner(problem: Problem, rng: np.random.Generator, candidates: int = CANDIDATES, ahead: int = AHEAD) -> Policy:
    """Compares sequences that hold a random first action for half of their length, in the true model."""

    def act(state: np.ndarray, cue: np.ndarray, step: int) -> np.ndarray:
        n, steps = len(state), min(ahead, problem.horizon - step)
        first = problem.random_actions(n * candidates, rng)
        now, total, live = np.repeat(state, candidates, 0), np.zeros(n * candidates), np.ones(n * candidates, bool)
        for k in range(steps):
            action = first if 2 * k < steps else problem.random_actions(n * candidates, rng)
            now, reward, end = problem.step(now, action, problem.noise(n * candidates, rng))
            total += live * reward
            live &= ~end
        best = total.reshape(n, candidates).argmax(1)
        return first.reshape(n, candidates, -1)[np.arange(n), best]

    return act


def behaviour(problem: Problem, name: str, rng: np.random.Generator) -> Policy:
    """One of `BEHAVIOURS`."""
    plan = planner(problem, rng)

    def act(state: np.ndarray, cue: np.ndarray, step: int) -> np.ndarray:
        action = problem.random_actions(len(state), rng)
        if name == "random":
            return action
        action = np.where(rng.uniform(size=(len(state), 1)) < SLIPS, action, plan(state, cue, step))
        if name == "confounded":
            follow = rng.uniform(size=(len(state), 1)) < FOLLOWED
            action = np.where(follow, _following(problem, cue, rng), action)
        return action

    return act


def _following(problem: Problem, cue: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The action that the cue suggests: one of half of the numbered ones, or a point of the box beside which to be."""
    if problem.numbered:
        half = len(problem.codes) // 2
        number = rng.integers(half, size=len(cue)) + half * (cue > 0.5)
        return problem.codes[number]
    middle, reach = (problem.low + problem.high) / 2, (problem.high - problem.low) / 2
    wanted = 0.6 * np.clip(cue, -1, 1)[:, None] + 0.4 * rng.uniform(-1, 1, (len(cue), len(middle)))
    return middle + reach * wanted


def first_cue(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) Boolean where the states are."""
    return (rng.uniform(size=n) < 0.5).astype(float) if problem.boolean_states else rng.normal(size=n)


def next_cue(problem: Problem, cue: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """It follows only itself."""
    drawn = first_cue(problem, len(cue), rng)
    if problem.boolean_states:
        return np.where(rng.uniform(size=len(cue)) < KEPT, cue, drawn)
    return KEPT * cue + (1 - KEPT**2) ** 0.5 * drawn


def play(problem: Problem, policy: Policy, episodes: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """All episodes side by side; flat arrays, rows of an episode adjacent, with the cue as the last state column."""
    state, cue = np.repeat(problem.first[None], episodes, 0), first_cue(problem, episodes, rng)
    live, parts = np.ones(episodes, bool), []
    for step in range(problem.horizon):
        action = policy(state, cue, step)
        after, reward, end = problem.step(state, action, problem.noise(episodes, rng))
        later = next_cue(problem, cue, rng)
        parts.append((np.arange(episodes), np.c_[state, cue], action, np.c_[after, later], reward, end, live.copy()))
        live &= ~end
        state, cue = after, later
    episode, now, action, then, reward, end, kept = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.flatnonzero(kept)[np.argsort(episode[kept], kind="stable")]
    names = ("episode", "observations", "actions", "next_observations", "rewards", "terminations")
    flat = dict(zip(names, (part[order] for part in (episode, now, action, then, reward, end)), strict=True))
    last = np.append(flat["episode"][1:] != flat["episode"][:-1], True)
    return flat | {"truncations": last & ~flat["terminations"]}


def returns(log: dict[str, np.ndarray]) -> np.ndarray:
    """The sum of rewards of each episode."""
    return np.bincount(log["episode"], log["rewards"])


def make_log(problem: Problem, name: str, seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    """About `rows` rows of one behaviour; only the confounded one's log has a cue."""
    rng = stream(seed, "third party", problem.name, name)
    log = play(problem, behaviour(problem, name, rng), -(-rows // problem.horizon), rng)
    if name != "confounded":
        log = log | {part: log[part][:, :-1] for part in ("observations", "next_observations")}
    return log


def make_factors(problem: Problem, cue: bool) -> FactorSpec:
    """A factor for each fluent; numbered actions as the fluents that they set."""
    state_type = "binary" if problem.boolean_states else "continuous"
    action_type = "binary" if problem.boolean_actions else "continuous"
    names = (*problem.states, CUE) if cue else problem.states
    codes = tuple(map(tuple, problem.codes.tolist())) if problem.numbered else None
    return FactorSpec(
        pack(*((name, 1, state_type) for name in names)),
        pack(*((name, 1, action_type) for name in problem.actions)),
        codes=codes,
    )


def with_cue(graph: Graph) -> Graph:
    """The true graph of a log that has a cue."""
    states = len(graph.targets)
    inputs = (*graph.inputs[:states], CUE, *graph.inputs[states:])
    return Graph(inputs, (*graph.targets, CUE), graph.edges | {(CUE, CUE)}, graph.rare)
