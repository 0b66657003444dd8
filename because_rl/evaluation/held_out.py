"""How good a world model is on the episodes that were held out, factor by factor, and whether it knows its limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.energy import mix
from because_rl.models.layout import Layout
from because_rl.models.objective import evaluate
from because_rl.models.prepared_data import statistics
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import child_seed
from because_rl.transitions import Transitions

MOST_ROWS = 20_000
"""More tell no more."""
LEAST_CHANGE = 1e-6


def held_out_accuracy(agent: PlannerAgent, data: Transitions) -> list[dict[str, Any]]:
    """One row per state factor.

    Discrete factors: the share of steps foretold right. Continuous ones: how much of the change is foretold,

        1 - E |s'_j - model|^2 / Var(s'_j - s_j),

    in the columns' own units. `unchanged` is the same figure for a model that says 'nothing changes'.
    """
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    held = _held(data)
    figures = jax.jit(jax.vmap(partial(evaluate, stats), in_axes=(0, 0, None)))(
        agent.parameters["world"], agent.parameters["gates"], held
    )
    right = np.asarray(figures["right"], float)  # (seeds, targets)
    now, then = np.asarray(held["state"], float), np.asarray(held["next_state"], float)
    rows = []
    for j, factor in enumerate(data.factors.state):
        change = (then - now)[:, factor.slice]
        per_seed, unchanged = right[:, j], float((change == 0).all(1).mean())
        if factor.type == "continuous":
            # `evaluate` counts in units of the changes in all the data
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
                "measure": "change foretold (R²)" if factor.type == "continuous" else "foretold right",
                "value": float(per_seed.mean()) if known else None,
                "per_seed": [float(v) for v in per_seed] if known else [],
                "unchanged": float(unchanged) if known else None,
                "rows": len(now),
            }
        )
    return rows


def held_out_uncertainty(agent: PlannerAgent, data: Transitions, seed: int = 0) -> dict[str, float]:
    """Mean (E + 1) / 2 over seeds, of held-out steps and of steps put together from different ones.

    The second should be larger: that is how a planner tells what the data support.
    """
    held = _held(data)
    x = jnp.concatenate([held["state"], held["action"]], axis=1)
    k1, k2 = jax.random.split(jax.random.key(child_seed(seed, "held out") % 2**31))
    mixed = mix(Layout(data.factors), x, k1, k2)
    size = data.factors.state_size
    every = jax.jit(
        jax.vmap(jax.vmap(lambda p, row: agent.learned.imagine(p, row[:size], row[size:])[1], (None, 0)), (0, None))
    )
    told = {"held_out": x, "mixed": mixed}
    return {name: float(np.asarray(every(agent.parameters, rows)).mean()) for name, rows in told.items()}


def _held(data: Transitions) -> dict[str, Any]:
    return {name: values[:MOST_ROWS] for name, values in data.batch(data.held_out).items()}
