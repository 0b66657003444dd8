"""Made-up systems whose true graph is known: sparse dynamics of any size, and a building with a thermostat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from because_rl.factors import FactorSpec, pack
from because_rl.graph import Edge
from because_rl.rng import stream
from benchmarks.discovery.systems import Rows, System

KEEP, NOISE, PULL = 0.6, 0.3, 0.35
"""Share of its value that a state factor keeps in a step, its noise, and the size of each other cause's effect."""
QUARTERS = 96
"""Quarter hours of a day, and so rows of an episode of the thermostat's log."""


def sparse(states: int, actions: int, linear: bool, seed: int = 0, also: Sequence[Edge] = ()) -> System:
    """s'_j = .6 s_j + sum over its other causes c of w_jc f_c(c) + .3 noise, with |w| = .35 and random signs.

    Each factor has one or two other state factors as causes, and each action drives two state factors. f is the
    identity in a linear system, otherwise sin(2 c) for state factors and c^2 - 1/3 for every second action (others:
    the identity). Linear systems are scaled to a spectral radius of at most .9. `seed` draws the graph;
    `also`: edges beside those that it draws.
    """
    rng = stream(seed, "sparse", states, actions)
    weights = np.zeros((states + actions, states))
    for j in range(states):
        others = np.delete(np.arange(states), j)
        weights[rng.choice(others, min(int(rng.integers(1, 3)), len(others)), replace=False), j] = PULL
    for a in range(actions):
        weights[states + a, rng.choice(states, min(2, states), replace=False)] = PULL
    weights *= rng.choice((-1.0, 1.0), weights.shape)
    if linear:
        radius = np.abs(np.linalg.eigvals(KEEP * np.eye(states) + weights[:states])).max()
        weights[:states] *= min(1.0, (0.9 - KEEP) / max(radius - KEEP, 1e-9))
    names = [f"s{j}" for j in range(states)], [f"a{k}" for k in range(actions)]
    inputs = (*names[0], *names[1])
    for source, target in also:
        weights[inputs.index(source), names[0].index(target)] = PULL
    parents = {f"s{j}": tuple(name for i, name in enumerate(inputs) if i == j or weights[i, j]) for j in range(states)}
    state, action = (pack(*((name, 1, "continuous") for name in group)) for group in names)
    return System(FactorSpec(state, action), parents, partial(_log_sparse, weights, linear))


def step_sparse(weights: np.ndarray, linear: bool, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The mean of the next state: (n, states) and (n, actions) -> (n, states)."""
    if linear:
        return KEEP * state + np.hstack([state, action]) @ weights
    square = np.arange(action.shape[1]) % 2 == 1
    effects = np.hstack([np.sin(2 * state), np.where(square, action**2 - 1 / 3, action)])
    return KEEP * state + effects @ weights


def _log_sparse(
    weights: np.ndarray, linear: bool, rng: np.random.Generator, behaviour: str, rows: int, length: int
) -> Rows:
    """All episodes at once. Actions are uniform in [-1, 1]; 'confounded': they follow a state, a constant and noise."""
    count, states = -(-rows // length), weights.shape[1]
    actions = len(weights) - states
    state, hidden = rng.standard_normal((count, states)), 0.5 * rng.standard_normal((count, actions))
    follows = np.arange(actions) % states
    out: tuple[list[np.ndarray], ...] = ([], [], [])
    for _ in range(length):
        action = rng.uniform(-1, 1, (count, actions))
        if behaviour == "confounded":
            action = np.tanh(0.7 * state[:, follows] + hidden + 0.8 * action)
        after = step_sparse(weights, linear, state, action) + NOISE * rng.standard_normal(state.shape)
        for array, values in zip(out, (state, action, after), strict=True):
            array.append(values)
        state = after
    before, taken, then = (np.stack(a, axis=1).reshape(count * length, -1)[:rows] for a in out)
    return before, taken, then, np.repeat(np.arange(count), length)[:rows]


def thermostat() -> System:
    """A log of a building, a row per quarter hour and an episode per day.

    - day_type: 1 on working days, constant in an episode;
    - hour' = hour + 1/4;
    - occupied': redrawn with probability .3, then 1 with probability .9 in office hours of working days, else .1;
    - temperature' = temperature + .1 (outside - temperature) + 2 heating + .3 occupied + .1 noise;
    - outside' = outside + .2 (6 - 5 cos(2 pi hour / 24) - outside) + .4 noise.

    'random': heating is uniform in [0, 1]; 'confounded': it follows what the temperature lacks to 16 degrees (20 when
    occupied) plus a hidden preference of that day.
    """
    factors = FactorSpec(
        pack(
            ("day_type", 1, "binary"),
            ("hour", 1, "continuous"),
            ("occupied", 1, "binary"),
            ("temperature", 1, "continuous"),
            ("outside", 1, "continuous"),
        ),
        pack(("heating", 1, "continuous")),
    )
    parents = {
        "day_type": ("day_type",),
        "hour": ("hour",),
        "occupied": ("occupied", "day_type", "hour"),
        "temperature": ("temperature", "outside", "occupied", "heating"),
        "outside": ("outside", "hour"),
    }
    return System(factors, parents, _log_thermostat)


def step_thermostat(state: np.ndarray, heating: np.ndarray, draws: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The next state (n, 5) of `state` (n, 5): `heating` (n,), `draws` (n, 2) uniform and `noise` (n, 2) normal."""
    day, hour, occupied, temperature, outside = state.T
    chance = np.where((day == 1) & (hour >= 8) & (hour < 18), 0.9, 0.1)
    then = np.where(draws[:, 0] < 0.3, draws[:, 1] < chance, occupied)
    warmer = temperature + 0.1 * (outside - temperature) + 2 * heating + 0.3 * occupied + 0.1 * noise[:, 0]
    weather = outside + 0.2 * (6 - 5 * np.cos(2 * np.pi * hour / 24) - outside) + 0.4 * noise[:, 1]
    return np.column_stack([day, hour + 0.25, then, warmer, weather])


def _log_thermostat(rng: np.random.Generator, behaviour: str, rows: int, length: int) -> Rows:
    length = min(length, QUARTERS)
    count = -(-rows // length)
    day = (rng.random(count) < 5 / 7).astype(float)
    start = np.column_stack([day, np.zeros(count), np.zeros(count), rng.normal(16, 2, count), rng.normal(3, 3, count)])
    hidden, state = 1.5 * rng.standard_normal(count), start
    out: tuple[list[np.ndarray], ...] = ([], [], [])
    for _ in range(length):
        heating = rng.random(count)
        if behaviour == "confounded":
            heating = np.clip(0.4 * (16 + 4 * state[:, 2] + hidden - state[:, 3]) + 0.6 * heating - 0.3, 0, 1)
        after = step_thermostat(state, heating, rng.random((count, 2)), rng.standard_normal((count, 2)))
        for array, values in zip(out, (state, heating[:, None], after), strict=True):
            array.append(values)
        state = after
    before, taken, then = (np.stack(a, axis=1).reshape(count * length, -1)[:rows] for a in out)
    return before, taken, then, np.repeat(np.arange(count), length)[:rows]
