"""Made-up systems whose graph changes: three regimes at unknown times, noise that is not normal or not constant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph
from because_rl.rng import stream
from because_rl.transitions import Transitions
from benchmarks.discovery.synthetic import NOISE, PULL, step_sparse

NOISES = ("non-gaussian", "heteroscedastic")
SHORTEST, ENDS = 25, 0.03
"""Rows for which a regime lasts at least, and the probability that it ends in each later row."""
SHARED = 0.5
"""Share of targets whose causes are the same in all regimes."""


@dataclass(frozen=True)
class RegimeLog:
    """Rows, the regime of each, and the graph of each regime."""

    data: Transitions
    regime: np.ndarray
    """(n,)"""
    graphs: tuple[Graph, ...]


def draw_log(
    noise: str, seed: int, states: int = 10, actions: int = 2, regimes: int = 3, episodes: int = 60, length: int = 100
) -> RegimeLog:
    """s' = .6 s + sum of the effects of its causes (`step_sparse`, nonlinear) + noise, with causes that change.

    Each factor has one or two others as causes, and each action drives two factors. Half of the factors have the same
    causes in all regimes, the others causes of their own in each. An episode starts in any regime; each lasts 25 rows
    and then ends with probability .03 per row.

    Args:
        noise: 'non-gaussian': Laplace, t with 5 degrees of freedom and exponential noise in turn, of standard deviation
            .3; 'heteroscedastic': normal, whose size follows the causes: .3 (.4 + 1.2 |tanh(4 x effect)|).
        seed: of graphs and rows.
        states: state factors.
        actions: action factors, uniform in [-1, 1].
        regimes: number of regimes.
        episodes: number of episodes.
        length: rows of each.
    """
    rng = stream(seed, "regimes", noise, states, actions, regimes, episodes, length)
    weights = _weights(rng, states, actions, regimes)
    label = np.stack([_regimes_of_episode(rng, regimes, length) for _ in range(episodes)])
    state, log = rng.standard_normal((episodes, states)), []
    for t in range(length):
        action = rng.uniform(-1, 1, (episodes, actions))
        each = np.stack([step_sparse(w, False, state, action) for w in weights])
        mean = each[label[:, t], np.arange(episodes)]
        effect = mean - step_sparse(np.zeros_like(weights[0]), False, state, action)
        after = mean + _draw_noise(rng, noise, effect)
        log.append((state, action, after))
        state = after
    before, taken, then = (np.stack(a, axis=1).reshape(episodes * length, -1) for a in zip(*log, strict=True))
    names = [f"s{j}" for j in range(states)], [f"a{k}" for k in range(actions)]
    columns = [pack(*((name, 1, "continuous") for name in group)) for group in names]
    data = Transitions.from_arrays(
        before,
        taken,
        then,
        np.repeat(np.arange(episodes), length),
        factors=FactorSpec(columns[0], columns[1]),
        name=f"regimes-{noise}-{seed}",
    )
    inputs = (*names[0], *names[1])
    graphs = tuple(
        Graph.from_parents(
            inputs, {f"s{j}": [name for i, name in enumerate(inputs) if i == j or w[i, j]] for j in range(states)}
        )
        for w in weights
    )
    return RegimeLog(data, label.reshape(-1), graphs)


def _weights(rng: np.random.Generator, states: int, actions: int, regimes: int) -> np.ndarray:
    """(regimes, states + actions, states)"""
    shared = rng.permutation(states) < round(SHARED * states)
    weights = np.zeros((regimes, states + actions, states))
    for k in range(regimes):
        for j in range(states):
            others = np.delete(np.arange(states), j)
            causes = rng.choice(others, min(int(rng.integers(1, 3)), len(others)), replace=False)
            weights[k, causes, j] = PULL
        for a in range(actions):
            weights[k, states + a, rng.choice(states, min(2, states), replace=False)] = PULL
        weights[k] *= rng.choice((-1.0, 1.0), weights[k].shape)
        weights[k][:, shared] = weights[0][:, shared]
    return weights


def _regimes_of_episode(rng: np.random.Generator, regimes: int, length: int) -> np.ndarray:
    now, since = int(rng.integers(regimes)), int(rng.integers(SHORTEST))
    out = []
    for _ in range(length):
        if since >= SHORTEST and regimes > 1 and rng.random() < ENDS:
            now, since = (now + int(rng.integers(1, regimes))) % regimes, 0
        out.append(now)
        since += 1
    return np.array(out)


def _draw_noise(rng: np.random.Generator, noise: str, effect: np.ndarray) -> np.ndarray:
    """Noise of the shape of `effect` (episodes, states)."""
    if noise == "heteroscedastic":
        return NOISE * (0.4 + 1.2 * np.abs(np.tanh(4 * effect))) * rng.standard_normal(effect.shape)
    kinds = [
        rng.laplace(size=effect.shape) / np.sqrt(2),
        rng.standard_t(5, effect.shape) / np.sqrt(5 / 3),
        rng.exponential(size=effect.shape) - 1,
    ]
    return NOISE * np.choose(np.arange(effect.shape[1]) % 3, kinds)
