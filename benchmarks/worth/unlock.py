"""Logs of Unlock, and ten policies of graded quality whose worth is simulated.

Each policy draws a uniformly random action in a share of the steps and otherwise walks a shortest path: to the key and
then to the door, or, in three of them, to the door at once, where it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.algorithms.registry import make_method
from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import make_batch
from because_rl.envs.unlock.behaviour import UnlockBehaviour
from because_rl.envs.unlock.env import CELLS, CODES, COLUMN, DOWN, LEFT, OPEN, PICK, RIGHT, ROW, UP, Unlock, distance
from because_rl.evaluation.worth.estimate import WorldModel
from because_rl.evaluation.worth.features import FeatureModel
from because_rl.evaluation.worth.log import LoggedEpisodes, Policy
from because_rl.evaluation.worth.model import imagined_worth, replayed_worth
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed, stream
from because_rl.transitions import Transitions
from benchmarks.worth.case import Case

ACTIONS = 6
SOLVING, DOOR_FIRST = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8), (0.2, 0.5, 0.8)
"""Shares of random actions."""
SETTINGS = {"world_steps": 1500, "energy_steps": 200, "check_steps": 0, "batches": 0}
"""of BECAUSE: its model alone is used"""
SIMULATED = 5_000
"""Episodes that the truth of a policy is simulated in: its standard error is at most .007."""


def probabilities(state: Any, share: Any, door_first: Any, xp: Any = np) -> Any:
    """(n, 6) for states (n, 110 or more) in which one door at most is shut; `xp`: NumPy or its JAX counterpart."""
    agent, key = state[:, :CELLS].argmax(1), state[:, CELLS : 2 * CELLS].argmax(1)
    doors, has_key = state[:, 2 * CELLS : 3 * CELLS] > 0.5, state[:, 3 * CELLS + 1] > 0.5
    far = xp.asarray(distance(np.arange(CELLS)[:, None], np.arange(CELLS)[None]))[agent]
    door = xp.where(doors, far, CELLS).argmin(1)
    to_door = has_key | door_first
    target = xp.where(to_door, door, key)
    row, column, each = xp.asarray(ROW), xp.asarray(COLUMN), xp.eye(ACTIONS)
    down, right = row[target] - row[agent], column[target] - column[agent]
    vertical = (abs(down) / xp.maximum(abs(down) + abs(right), 1))[:, None]
    walk = vertical * each[xp.where(down > 0, DOWN, UP)] + (1 - vertical) * each[xp.where(right > 0, RIGHT, LEFT)]
    planned = xp.where((agent == target)[:, None], each[xp.where(to_door, OPEN, PICK)], walk)
    return share / ACTIONS + (1 - share) * planned


def named_policies() -> dict[str, tuple[float, bool]]:
    """Name -> share of random actions, whether it goes to the door first."""
    solving = {f"solves, {share:.0%} random": (share, False) for share in SOLVING}
    return solving | {f"door first, {share:.0%} random": (share, True) for share in DOOR_FIRST}


def simulate(share: float, door_first: bool, seed: int = 0, episodes: int = SIMULATED) -> float:
    """The share of episodes in which a policy opens the door."""
    batch, rng = make_batch("unlock", "I", 1), stream(seed, "worth", "unlock", str(share), int(door_first))
    observation = batch.reset([child_seed(seed, "worth", "truth", k) for k in range(episodes)])
    while not batch.done:
        chance = probabilities(observation.state, share, door_first).cumsum(1)
        action = (rng.random(episodes)[:, None] > chance).sum(1).clip(max=ACTIONS - 1)
        observation = batch.step(action).observation
    return float(batch.terminated.mean())


def simulate_behaviour(seed: int = 0, episodes: int = SIMULATED) -> float:
    """The same of the logged behaviour, which a hidden cause sends to the door first in some episodes."""
    batch, behaviour = make_batch("unlock", "I", 1), UnlockBehaviour("medium")
    seeds = [child_seed(seed, "worth", "truth", k) for k in range(episodes)]
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    while not batch.done:
        observation = batch.step(behaviour.act(observation)).observation
    return float(batch.terminated.mean())


class UnlockSource:
    """Logs of the medium behaviour, and a world model of BECAUSE for each."""

    def __init__(self, episodes: int):
        self.episodes = episodes
        self.truth = {"behaviour": simulate_behaviour()}
        self.truth |= {name: simulate(*settings) for name, settings in named_policies().items()}

    def draw(self, seed: int) -> Case:
        episodes = rollout(Recipe.parse("unlock-medium", self.episodes, seed=seed), range(self.episodes))

        def joined(read: Callable[[dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
            return np.concatenate([read(episode) for episode in episodes])

        data = Transitions.from_arrays(
            joined(lambda e: e["state"][:-1]),
            joined(lambda e: e["action"]),
            joined(lambda e: e["state"][1:]),
            np.repeat(np.arange(len(episodes)), [len(e["action"]) for e in episodes]),
            factors=Unlock.make_factors(1),
            goal=joined(lambda e: e["goal"][:-1]),
        )
        agent = make_method("because", SETTINGS, world="unlock").fit(data, seeds=1)
        assert isinstance(agent, PlannerAgent)
        log, codes = LoggedEpisodes.from_transitions(data), jnp.asarray(CODES, jnp.float32)
        error = abs(replayed_worth(agent, data, log.horizon, 1.0) - float(log.returns.mean()))
        policies, models = [], {}
        for name, settings in named_policies().items():
            policies.append(Policy(name, *(probabilities(part, *settings) for part in (data.state, data.next_state))))
            draw = jax.tree_util.Partial(_draw, codes, *(jnp.asarray(setting) for setting in settings))
            models[name] = WorldModel(*imagined_worth(agent, data, draw, log.horizon, 1.0), error)
        return Case(log, FeatureModel(log), policies, models)


def _draw(codes: Array, share: Array, door_first: Array, state: Array, goal: Array, noise: Array) -> Array:
    chance = jnp.cumsum(probabilities(state[None], share, door_first, jnp)[0])[:-1]
    return codes[(jax.scipy.stats.norm.cdf(noise[0]) > chance).sum()]
