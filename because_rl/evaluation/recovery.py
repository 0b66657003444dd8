"""How well factors that were read from pictures agree with the true ones, which no learner sees.

On steps of the logging behaviour in new scenes: one half matches factors and their columns with the true ones, the
other half counts. A factor is right in a frame if all its columns are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import SPLITS, make_batch, world_class
from because_rl.envs.unlock.pictures import draw
from because_rl.evaluation.one_step import OTHER_SEED
from because_rl.factors import FactorSpec
from because_rl.graph import Graph, score
from because_rl.training.method import Agent
from because_rl.vision.agent import PictureAgent

EPISODES = 200
"""New scenes of each split."""
ROLLOUTS = (1, 8)
"""Steps that the model predicts one after the other."""


class Match(NamedTuple):
    """What corresponds to a true factor."""

    factor: str
    columns: np.ndarray
    """of the state that was read, in the order of the true factor's columns"""


def match_factors(read: np.ndarray, spec: FactorSpec, true: np.ndarray, true_spec: FactorSpec) -> dict[str, Match]:
    """True factor -> what was read, one to one, so that most frames agree; factors of another width match nothing.

    `read` (n, columns of `spec`) and `true` (n, columns of `true_spec`) hold 0 and 1.
    """
    agreement = np.zeros((len(true_spec.state), len(spec.state)))
    columns: dict[tuple[int, int], np.ndarray] = {}
    for i, wanted in enumerate(true_spec.state):
        for j, factor in enumerate(spec.state):
            if factor.width != wanted.width:
                continue
            a, b = true[:, wanted.slice], read[:, factor.slice]
            both = a.T @ b + (1 - a).T @ (1 - b)
            columns[i, j] = factor.start + linear_sum_assignment(-both)[1]
            agreement[i, j] = (a == read[:, columns[i, j]]).all(1).mean()
    pairs = zip(*linear_sum_assignment(-agreement), strict=True)
    return {true_spec.state[i].name: Match(spec.state[j].name, columns[i, j]) for i, j in pairs if (i, j) in columns}


def accuracy(matches: Mapping[str, Match], read: np.ndarray, true: np.ndarray, spec: FactorSpec) -> dict[str, float]:
    """The share of frames in which each true factor is right, and in which all are; `spec` is that of the truth."""
    right = {}
    for factor in spec.state:
        match = matches.get(factor.name)
        own = true[:, factor.slice]
        right[factor.name] = np.zeros(len(true), bool) if match is None else (read[:, match.columns] == own).all(1)
    return {name: float(ok.mean()) for name, ok in right.items()} | {
        "all": float(np.all(list(right.values()), axis=0).mean())
    }


def edge_score(graph: Graph, matches: Mapping[str, Match], truth: Graph) -> dict[str, Any]:
    """F1 and the wrong edges of a graph between factors that were read, after their names are matched."""
    names = {match.factor: name for name, match in matches.items()}

    def renamed(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(node, node) for node in nodes)

    parents = {names.get(target, target): renamed(graph.parents(target)) for target in graph.targets}
    result = score(Graph.from_parents(renamed(graph.inputs), parents), truth)
    return {"f1": result.f1, "missed": [list(e) for e in result.missed], "false": [list(e) for e in result.false]}


def factor_recovery(
    agent: PictureAgent, recipe: Recipe, graph: Graph | None = None, episodes: int = EPISODES
) -> dict[str, Any]:
    """By split: accuracy of the factors that are read, and of rollouts of the model; the edge score of the graph."""
    world = world_class(recipe.world)
    truth = world.make_factors(recipe.spurious)
    rolled = {split: _new_episodes(recipe, split, 2 * episodes) for split in SPLITS}
    frames = {split: _states(parts[:episodes]) for split, parts in rolled.items()}
    known = np.concatenate(list(frames.values()))
    matches = match_factors(agent.encoder.read(draw(known)), agent.factors, known, truth)
    result: dict[str, Any] = {"matches": {name: match.factor for name, match in matches.items()}, "splits": {}}
    for split, parts in rolled.items():
        new = parts[episodes:]
        states = _states(new)
        result["splits"][split] = {
            "frames": len(states),
            "read": accuracy(matches, agent.encoder.read(draw(states)), states, truth),
            "rollouts": {str(n): rollout_accuracy(agent, matches, new, n, truth) for n in ROLLOUTS},
        }
    if graph is not None:
        result["edges"] = edge_score(graph, matches, world.make_true_graph(recipe.spurious))
    return result


def rollout_accuracy(
    agent: PictureAgent, matches: Mapping[str, Match], episodes: list[dict[str, np.ndarray]], n: int, spec: FactorSpec
) -> dict[str, float]:
    """Of the factors after n steps, each predicted from the last prediction, from every frame that n steps follow."""
    starts = [(e, t) for e, episode in enumerate(episodes) for t in range(len(episode["action"]) - n + 1)]
    first = np.stack([episodes[e]["state"][t] for e, t in starts])
    last = np.stack([episodes[e]["state"][t + n] for e, t in starts])
    model: Agent = agent.select(agent.seeds[0])
    state = agent.encoder.read(draw(first))
    for step in range(n):
        taken = np.array([episodes[e]["action"][t + step] for e, t in starts])
        state = model.predict(state, taken).next_state
    return accuracy(matches, np.round(state), last, spec)


def _new_episodes(recipe: Recipe, split: str, episodes: int) -> list[dict[str, np.ndarray]]:
    """In scenes that are in no dataset and in no evaluation."""
    other = replace(recipe, seed=recipe.seed + OTHER_SEED, visual=False)
    return rollout(other, range(episodes), make_batch(recipe.world, split, recipe.spurious))


def _states(episodes: list[dict[str, np.ndarray]]) -> np.ndarray:
    return np.concatenate([episode["state"] for episode in episodes])
