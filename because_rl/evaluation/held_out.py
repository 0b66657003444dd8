"""Accuracy of a world model by factor and its uncertainty, both on the held-out episodes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.models.layout import Layout
from because_rl.models.likelihood import correct
from because_rl.models.mixing import mix
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


class Imagined(NamedTuple):
    """What a planner would see of logged steps, and of steps whose parts come from several logged ones."""

    uncertainty: dict[str, float]
    """`held_out` and `mixed`: the mean penalty over seeds and rows. The second should be larger: the planner relies on
    it to stay within what the data support"""
    events: list[dict[str, Any]]
    """one row per binary factor that switches in the held-out steps (see `event_row`)"""


def imagined_steps(agent: PlannerAgent, data: Transitions, seed: int = 0) -> Imagined:
    """The penalty and the events that the model imagines, on held-out steps and on steps mixed from them."""
    held = _held_out_batch(data)
    x = jnp.concatenate([held["state"], held["action"]], axis=1)
    k1, k2 = jax.random.split(jax.random.key(child_seed(seed, "held out") % 2**31))
    rows, size = {"held_out": x, "mixed": mix(Layout(data.factors), x, k1, k2)}, data.factors.state_size

    def row(p: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        (expected, penalty), (imagined, _) = (
            read(p, x[:size], x[size:]) for read in (agent.learned.expect, agent.learned.imagine)
        )
        return expected, imagined, penalty

    by_seed = jax.jit(jax.vmap(jax.vmap(row, (None, 0)), (0, None)))
    after, planned, penalty = zip(*(by_seed(agent.parameters, part) for part in rows.values()), strict=True)
    now, then = np.asarray(held["state"]) > 0.5, np.asarray(held["next_state"]) > 0.5
    before, events = np.asarray(rows["mixed"]) > 0.5, []
    for factor in data.factors.state:
        column = factor.start
        switched = now[:, column] != then[:, column]
        if factor.type == "binary" and factor.width == 1 and switched.any():
            held_out, mixed = (
                np.abs(np.asarray(next_, float)[..., column] - was[None, :, column])
                for next_, was in zip(after, (now, before), strict=True)
            )
            sceptical = np.abs(np.asarray(planned[0], float)[..., column] - now[None, :, column])
            events.append({"factor": factor.name} | event_row(held_out, switched, mixed, sceptical))
    uncertainty = {name: float(np.asarray(part).mean()) for name, part in zip(rows, penalty, strict=True)}
    return Imagined(uncertainty, events)


def event_row(chance: np.ndarray, switched: np.ndarray, mixed: np.ndarray, planned: np.ndarray) -> dict[str, Any]:
    """How well the switches of a binary factor are foreseen, from their chances (seeds, rows).

    `recall`: share of the switches that are given a chance above one half; `precision`: share of the steps with such a
    chance in which it switches, None if there are none; `foreseen`: sum of the chances, as a multiple of the switches,
    1 if calibrated; `mixed`: mean chance on mixed steps; `planned`: recall by `planned`, the chances as a planner reads
    them (seeds, rows). All are means over seeds.

    >>> chance, switched = np.array([[0.9, 0.8, 0.3, 0.0]]), np.array([True, False, True, False])
    >>> event_row(chance, switched, np.array([[0.5]]), chance / 2)
    {'rows': 4, 'switches': 2, 'recall': 0.5, 'precision': 0.5, 'foreseen': 1.0, 'mixed': 0.5, 'planned': 0.0}
    """
    expected = chance > 0.5
    hits = (expected & switched[None]).sum(1)
    made = expected.sum(1)
    return {
        "rows": len(switched),
        "switches": int(switched.sum()),
        "recall": float(hits.mean() / switched.sum()),
        "precision": float((hits[made > 0] / made[made > 0]).mean()) if made.any() else None,
        "foreseen": float(chance.sum(1).mean() / switched.sum()),
        "mixed": float(mixed.mean()),
        "planned": float(((planned > 0.5) & switched[None]).sum(1).mean() / switched.sum()),
    }


def _held_out_batch(data: Transitions) -> dict[str, Any]:
    return {name: values[:MOST_ROWS] for name, values in data.batch(data.held_out).items()}
