"""Accuracy of a world model by factor and its uncertainty, both on the held-out episodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.energy import mix
from because_rl.models.layout import Layout
from because_rl.models.likelihood import correct
from because_rl.models.objective import evaluate
from because_rl.models.prepared_data import Statistics, statistics
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed
from because_rl.transitions import Transitions

MOST_ROWS = 20_000
"""Held-out rows to use; more hardly change the figures."""
LEAST_CHANGE = 1e-6
"""Variance of the scaled change below which a factor counts as constant."""


def held_out_accuracy(agent: PlannerAgent, data: Transitions) -> list[dict[str, Any]]:
    """One row per state factor: factor, type, measure, value (mean over seeds), per_seed, unchanged, rows.

    The value of a discrete factor is the share of steps predicted correctly; that of a continuous one is the explained
    share of the variance of its change,

        1 - E |s'_j - model|^2 / Var(s'_j - s_j),

    in the columns' own units, or None for a factor that never changes. `unchanged` is the value of a model that always
    predicts no change.
    """
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    held = _held_out_batch(data)
    right = _mean_correct(agent, layout, stats, held)
    now, then = np.asarray(held["state"], float), np.asarray(held["next_state"], float)
    rows = []
    for j, factor in enumerate(data.factors.state):
        change = factor.difference(then[:, factor.slice], now[:, factor.slice])
        per_seed, unchanged = right[:, j], float((change == 0).all(1).mean())
        if factor.is_continuous:
            # `evaluate` gives squared errors in units of the changes in all the data
            change = change / np.asarray(stats.change, float)[factor.slice]
            spread = change.var(0).mean()
            moves = spread > LEAST_CHANGE
            per_seed = 1 - per_seed / spread if moves else np.full(len(right), np.nan)
            unchanged = 1 - (change**2).mean() / spread if moves else np.nan
        known = bool(np.isfinite(per_seed).all())
        rows.append(
            {
                "factor": factor.name,
                "type": factor.type,
                "measure": "change predicted (R²)" if factor.is_continuous else "predicted correctly",
                "value": float(per_seed.mean()) if known else None,
                "per_seed": [float(v) for v in per_seed] if known else [],
                "unchanged": float(unchanged) if known else None,
                "rows": len(now),
            }
        )
    return rows


def _mean_correct(agent: PlannerAgent, layout: Layout, stats: Statistics, held: dict[str, Any]) -> np.ndarray:
    """(seeds, targets) mean of `models.likelihood.correct`: of BECAUSE's model itself, or of what a planner sees."""
    if {"world", "gates"} <= set(agent.parameters):
        by_seed = jax.jit(jax.vmap(partial(evaluate, stats), in_axes=(0, 0, None)))
        return np.asarray(by_seed(agent.parameters["world"], agent.parameters["gates"], held)["right"], float)

    def row(parameters: Any, state: jax.Array, action: jax.Array, next_state: jax.Array) -> jax.Array:
        guess = agent.learned.successor(parameters, state, action)[0]
        return correct(layout, stats, guess, state, next_state)

    rows = jax.jit(jax.vmap(jax.vmap(row, (None, 0, 0, 0)), (0, None, None, None)))
    right = rows(agent.parameters, *(held[name] for name in ("state", "action", "next_state")))
    return np.asarray(right, float).mean(1)


def held_out_uncertainty(agent: PlannerAgent, data: Transitions, seed: int = 0) -> dict[str, float]:
    """Mean (E + 1) / 2 over seeds and rows: `held_out` for held-out steps, `mixed` for steps combined from several.

    `mixed` should be larger: the planner relies on it to stay within what the data support.
    """
    held = _held_out_batch(data)
    x = jnp.concatenate([held["state"], held["action"]], axis=1)
    k1, k2 = jax.random.split(jax.random.key(child_seed(seed, "held out") % 2**31))
    mixed = mix(Layout(data.factors), x, k1, k2)
    size = data.factors.state_size
    uncertainty = jax.jit(
        jax.vmap(jax.vmap(lambda p, row: agent.learned.imagine(p, row[:size], row[size:])[1], (None, 0)), (0, None))
    )
    batches = {"held_out": x, "mixed": mixed}
    return {name: float(np.asarray(uncertainty(agent.parameters, rows)).mean()) for name, rows in batches.items()}


def _held_out_batch(data: Transitions) -> dict[str, Any]:
    return {name: values[:MOST_ROWS] for name, values in data.batch(data.held_out).items()}
