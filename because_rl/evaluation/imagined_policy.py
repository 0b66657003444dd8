"""What a policy does in its own world model: is it like the data, and does it keep its constraints?

The policy acts from the first states of held-out episodes, each seed in its own model. Continuous factors are drawn
with the deviation that the model predicts, binary ones with their probabilities.

A step is *unlike the data* where its penalty, which is the energy for BECAUSE, exceeds the `QUANTILE` of the penalties
of held-out rows. Of logged behaviour that share is 1 - `QUANTILE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.calibration import read_rows
from because_rl.rng import stream
from because_rl.training.method import encode_actions
from because_rl.transitions import Transitions

QUANTILE = 0.95
EPISODES, STEPS = 16, 20
"""imagined at most, for each seed"""
MOST_ROWS = 2000
"""Held-out rows for the quantile."""


def imagined_policy(
    agent: PlannerAgent, data: Transitions, seed: int = 0, report: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Act in the model; `report` is called with (steps done, steps in all).

    Returns:
        `steps`, imagined over all seeds and episodes; `unlike_data`, the share of them whose penalty exceeds the
        `quantile` of those of held-out rows; `violations`, by constraint the share of steps that break it.
    """
    factors, seeds = agent.factors, len(agent.seeds)
    held = np.flatnonzero(data.held_out)
    rows = held[:MOST_ROWS]
    logged = read_rows(agent.learned.imagine, agent.parameters, data.state[rows], data.action[rows])[1]
    limit = np.quantile(logged, QUANTILE, axis=1)[:, None]  # (seeds, 1)

    first = held[data.step[held] == 0][:EPISODES]
    state, goal = (np.repeat(part[None, first], seeds, axis=0) for part in (data.state, data.goal))
    assert agent.learned.forecast is not None
    forecast = jax.jit(jax.vmap(jax.vmap(agent.learned.forecast, (None, 0, 0))))
    controller, rng = agent.start(len(first), seed), stream(seed, "imagined policy")
    horizon = min(agent.horizon, STEPS)
    alive, count, unlike, broken = np.ones(state.shape[:2], bool), 0, 0, np.zeros(len(factors.constraints))
    for step in range(horizon):
        report(step, horizon)
        if not alive.any():
            break
        planned = controller.act(state, goal, agent.horizon if factors.maximises_reward else agent.horizon - step)
        flat = planned.reshape(alive.size, *planned.shape[2:])
        action = encode_actions(factors, flat, alive.size).reshape(*alive.shape, -1)
        expected, deviation, penalty = map(np.asarray, forecast(agent.parameters, state, action))
        state = _drawn(factors, expected, deviation, rng)
        count += int(alive.sum())
        unlike += int((penalty > limit)[alive].sum())
        broken += factors.violated(state, action)[alive].sum(0)
        alive &= ~_over(factors, state, goal)
    report(horizon, horizon)
    shares = broken / max(count, 1)
    return {
        "steps": count,
        "quantile": QUANTILE,
        "unlike_data": unlike / max(count, 1),
        "violations": {str(c): float(share) for c, share in zip(factors.constraints, shares, strict=True)},
    }


def logged_violations(data: Transitions) -> dict[str, dict[str, float]]:
    """By constraint, the share of logged `steps` that break it, and of `episodes` with such a step."""
    broken = data.factors.violated(data.next_state, data.action)
    return {
        str(constraint): {
            "steps": float(column.mean()),
            "episodes": float((np.bincount(data.episode, column) > 0).mean()),
        }
        for constraint, column in zip(data.factors.constraints, broken.T, strict=True)
    }


def _drawn(factors: FactorSpec, expected: np.ndarray, deviation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A next state: continuous factors from a Gaussian, binary ones by their probabilities."""
    drawn = (expected + deviation * rng.normal(size=expected.shape)).astype(np.float32)
    for factor in factors.state:
        if factor.type == "binary":
            chance = expected[..., factor.slice]
            drawn[..., factor.slice] = rng.random(chance.shape) < chance
    return drawn


def _over(factors: FactorSpec, state: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Whether the episodes end in these states: at their goal, or by an end that is predicted."""
    over = np.zeros(state.shape[:-1], bool)
    if factors.goal and not factors.holds_goal:
        over |= np.asarray(factors.reached(state, goal))
    for factor in factors.outcomes:
        if factor.role == "end":
            over |= state[..., factor.start] > 0.5
    return over
