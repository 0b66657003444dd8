"""Does an exported agent act as the agent does? In many logged states, in a process that cannot import JAX.

Three agents are trained: on a log of CartPole and one of Pendulum, as `python -m benchmarks control` fits them, and on
a development dataset of Unlock. Both sides decide in every state as if an episode began there.

An action is the same if no column differs by more than `TOLERANCE`. Another choice is a tie if both sides find plans of
the same score, or, by value iteration, if the value that it loses is rounding.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.algorithms.registry import load_agent, make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.io import read_json, write_arrays, write_json
from because_rl.planning.agent import PlannerAgent
from because_rl.provenance import provenance
from because_rl.rng import stream
from because_rl.runs.fit import fit
from because_rl.training.method import Agent
from because_rl.transitions import Transitions
from benchmarks.control.run import PROBLEMS, make_log

CASES = ("cartpole", "pendulum", "unlock")
SEEDS = (0, 1, 2)
DATASET_SEED = 500
TOLERANCE = 1e-4
WITHOUT_JAX = textwrap.dedent("""
    import sys
    import time

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"jax", "jaxlib", "because_rl", "onnx", "equinox", "scipy"}:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Refuse())
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    from policy_runner import Policy

    given, policy = np.load(f"{sys.argv[1]}/given.npz"), Policy(f"{sys.argv[1]}/policy.onnx", threads=1)
    goals = [None if goal.size == 0 else goal for goal in given["goal"]]

    def scored(episode, *given):
        action = episode.act(*given)
        return action, episode.memory.get("plan_score", 0.0)

    begin = time.monotonic()
    alone = [scored(policy.start(), state, goal) for state, goal in zip(given["state"], goals)]
    seconds = time.monotonic() - begin
    episode, steps = policy.start(seed=3), range(min(4, len(goals)))
    through = [scored(episode, given["state"][k], goals[0], policy.about["horizon"] - k) for k in steps]
    made = {"alone": alone, "through": through}
    parts = {f"{name}_{part}": [row[n] for row in rows] for name, rows in made.items() for n, part in enumerate("as")}
    np.savez(f"{sys.argv[1]}/made.npz", seconds=seconds, **parts)
""")
"""What the other process runs: it decides in all states of given.npz, and in the first steps of one episode."""


def exported(
    keep: Path,
    cases: Sequence[str] = CASES,
    states: int = 1000,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """A row for each case, as `compare` gives it.

    Args:
        keep: a folder for logs, agents and finished rows, from which a later run resumes.
        cases: of `CASES`.
        states: logged ones, spread over the data.
        report: called with (cases finished, cases in all).
    """
    if unknown := set(cases) - set(CASES):
        raise BecauseError(f"There is no case {min(unknown)!r}.", need=f"one of {', '.join(CASES)}.", fix="correct it.")
    rows = []
    for done, case in enumerate(cases):
        report(done, len(cases))
        file = keep / f"{case}-{states}.json"
        if not file.exists():
            agent, data = trained(case, keep)
            places = np.linspace(0, len(data) - 1, states).astype(int)
            observed = data.state[places, : data.factors.observed_size].astype(np.float32)
            row = {"case": case, **compare(agent, observed, data.goal[places], keep / case)[0]}
            write_json(file, row | {"provenance": provenance()})
        rows.append(read_json(file))
    report(len(cases), len(cases))
    return {"rows": rows, "provenance": provenance(states=states, seeds=list(SEEDS))}


def trained(case: str, keep: Path) -> tuple[Agent, Transitions]:
    """The agent of a case and the data that it learned from."""
    folder = keep / case
    if case == "unlock":
        recipe = Recipe.parse("unlock-medium", seed=DATASET_SEED)
        collect(recipe, keep)
        data = load(recipe.id, root=keep)
        if not (folder / "agent").exists():
            make_method("because", {}, "unlock").fit(data, SEEDS).save(folder / "agent")
        return load_agent(folder / "agent"), data
    problem, log = PROBLEMS[case], folder / "log.npz"
    if not log.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_arrays(log, make_log(problem, stream(0, "control", case)))
    fit(log, problem.factors, folder / "fitted", None, SEEDS, None, resume=True)
    return load_agent(folder / "fitted"), load(log, factors=problem.factors)


def compare(
    agent: Agent, states: np.ndarray, goals: np.ndarray, folder: Path
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The agent beside the file that it writes into `folder`, in these states: figures, and what the file did."""
    assert isinstance(agent, PlannerAgent)
    made = without_jax(agent, states, goals, folder)
    start = time.monotonic()
    ours = [act(agent, agent.start(1), s, g, agent.horizon) for s, g in zip(states, goals, strict=True)]
    seconds = time.monotonic() - start
    actions = np.array([action for action, _ in ours])
    gap = difference(actions, made["alone_a"])
    other = np.flatnonzero(gap > TOLERANCE)
    scores = difference(np.array([score for _, score in ours]), made["alone_s"])
    lost = [lost_value(agent, states[k], goals[k], made["alone_a"][k]) for k in other] if agent.exact else scores[other]
    row = {
        "states": len(states),
        "same": len(states) - len(other),
        "largest_difference": float(np.delete(gap, other).max(initial=0.0)),
        "largest_score_difference": float(scores.max()),
        "most_lost": float(np.max(lost, initial=0.0)),
        "seconds_an_action": round(seconds / len(states), 4),
        "exported_seconds_an_action": round(float(made["seconds"]) / len(states), 4),
    }
    return row, made


def without_jax(agent: Agent, states: np.ndarray, goals: np.ndarray, folder: Path) -> dict[str, np.ndarray]:
    """Of the exported agent, 'alone' in each state and 'through' an episode: actions ('_a') and scores ('_s')."""
    folder.mkdir(parents=True, exist_ok=True)
    agent.export(folder / "policy.onnx")
    write_arrays(folder / "given.npz", {"state": states, "goal": goals})
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    with np.load(folder / "made.npz") as made:
        return dict(made)


def act(agent: PlannerAgent, controller: Any, state: np.ndarray, goal: np.ndarray, steps_left: int) -> tuple[Any, Any]:
    """The action of the agent, and the score of each seed's plan, of which value iteration has none."""
    action = agent.choose(controller, state, goal if goal.size else None, steps_left)
    return action, 0.0 if agent.exact else np.asarray(controller._last_plan.score[:, 0])


def lost_value(agent: PlannerAgent, state: np.ndarray, goal: np.ndarray, choice: int) -> float:
    """How much worse than the best this action is by value iteration, for the seed that likes it most."""
    lost = []
    plans: Any = agent._exact_plans
    for planner in plans._planners:
        place = planner._enter(state[None], goal[None])[0]
        reward, future = planner._reward[place], planner.values[agent.horizon - 1][planner._child[place]]
        future = reward + (1 - reward) * planner.discount * future
        values = planner._chance[place] * future - planner.pessimism * planner._penalty[place]
        lost.append(float(values.max() - values[choice]))
    return min(lost)


def difference(ours: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(states,) the largest difference between the columns of two actions, or between scores; some are -inf."""
    a, b = np.asarray(ours, float), np.asarray(others, float)
    return np.abs(np.subtract(a, b, out=np.zeros_like(a), where=a != b)).reshape(len(a), -1).max(1)
