"""Worlds with numbered states and actions whose truth is exact: one of ours, drawn at random, and ICU-Sepsis.

ICU-Sepsis (Choudhary et al. 2024) is a package of the index; only its table of dynamics is read, from the file
``icu_sepsis/envs/assets/dynamics.npz`` of its wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from because_rl.evaluation.worth.log import LoggedEpisodes
from because_rl.evaluation.worth.table import TableModel
from because_rl.io import read_npz
from because_rl.rng import stream


@dataclass(frozen=True)
class TabularWorld:
    """S states, A actions; an episode ends in a state that is an end, or after H steps."""

    chance: np.ndarray
    """(S, A, S)"""
    reward: np.ndarray
    """(S,) of coming to a state"""
    first: np.ndarray
    """(S,) probabilities"""
    end: np.ndarray
    """(S,) bool"""
    behaviour: np.ndarray
    """(S, A)"""
    horizon: int

    def value(self, policy: np.ndarray) -> float:
        """The exact expected return of an episode, by dynamic programming."""
        after = np.einsum("sa,sat->st", policy, self.chance)
        value = np.zeros(len(self.first))
        for _ in range(self.horizon):
            value = after @ (self.reward + np.where(self.end, 0.0, value))
        return float(self.first @ value)

    def greedy(self, sign: float) -> np.ndarray:
        """(S, A) the best policy by value iteration, or with sign -1 the worst; one for all steps."""
        value = np.zeros(len(self.first))
        for _ in range(self.horizon):
            q = self.chance @ (self.reward + np.where(self.end, 0.0, value))
            value = sign * (sign * q).max(1)
        return np.eye(q.shape[1])[(sign * q).argmax(1)]

    @cached_property
    def policies(self) -> dict[str, np.ndarray]:
        """Ten of graded quality: the behaviour, and its mixtures with the best, the worst and chance."""
        others = {"best": self.greedy(1.0), "worst": self.greedy(-1.0)}
        others["chance"] = np.full_like(self.behaviour, 1 / self.behaviour.shape[1])
        shares = {"best": (0.25, 0.5, 0.75, 1.0), "worst": (0.25, 0.5, 0.75), "chance": (0.5, 1.0)}
        mixed = {
            f"{share:.0%} {name}": share * other + (1 - share) * self.behaviour
            for name, other in others.items()
            for share in shares[name]
        }
        return {"behaviour": self.behaviour, **mixed}

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return self.chance.cumsum(2)

    def draw_log(self, episodes: int, rng: np.random.Generator) -> TableModel:
        """A log of the behaviour, and its states as numbers."""
        state = rng.choice(len(self.first), episodes, p=self.first)
        live, rows, by_step = np.ones(episodes, bool), self.behaviour.cumsum(1), []
        for t in range(self.horizon):
            action = (rng.random(episodes)[:, None] > rows[state]).sum(1).clip(max=rows.shape[1] - 1)
            after = (rng.random(episodes)[:, None] > self._cumulative[state, action]).sum(1)
            after = after.clip(max=len(self.first) - 1)
            number = np.flatnonzero(live)
            by_step.append(np.stack([number, np.full(len(number), t), state[live], action[live], after[live]]))
            live &= ~self.end[after]
            state = after
        table = np.concatenate(by_step, 1)
        episode, step, now, action, after = table[:, np.lexsort((table[1], table[0]))]
        log = LoggedEpisodes(
            now[:, None].astype(np.float32),
            after[:, None].astype(np.float32),
            np.zeros((len(now), 0), np.float32),
            action,
            rows.shape[1],
            self.reward[after].astype(np.float32),
            1.0 - self.end[after].astype(np.float32),
            episode,
            step,
            self.horizon,
        )
        return TableModel(log, now, after, len(self.first))


def random_world(seed: int = 0, states: int = 20, actions: int = 3, horizon: int = 8) -> TabularWorld:
    """Few likely successors of each state and action; the last state is a success, the one before it a failure."""
    rng = stream(seed, "worth", "random world")
    chance = rng.dirichlet(np.full(states, 0.2), (states, actions))
    end = np.arange(states) >= states - 2
    reward = (np.arange(states) == states - 1).astype(float)
    first = np.where(end, 0.0, 1.0) / (states - 2)
    return TabularWorld(chance, reward, first, end, rng.dirichlet(np.full(actions, 2.0), states), horizon)


def icu_sepsis(dynamics: Path, horizon: int = 20) -> TabularWorld:
    """Treatments of sepsis, 716 states and 25 actions; the behaviour is the clinicians' policy of the package."""
    tables = read_npz(dynamics)
    chance, behaviour = tables["tx_mat"], tables["expert_policy"]
    states = len(chance)
    end, alive = np.arange(states) >= states - 3, np.arange(states) == states - 2
    behaviour = np.where(behaviour.sum(1, keepdims=True) > 0, behaviour, 1 / behaviour.shape[1])
    return TabularWorld(
        chance, alive.astype(float), tables["d_0"], end, behaviour / behaviour.sum(1, keepdims=True), horizon
    )
