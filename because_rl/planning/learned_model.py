"""What planners see of a learned world model: pure functions of the parameters of one seed and one row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import Statistics, Summary, blank_outcomes
from because_rl.planning.limits import predicted_deviation, violation
from because_rl.planning.proposals import behaviour_policy, outcome, terminal_value

Predict = Callable[[Layout, Statistics, Any, Array, Array], tuple[list[Outputs], Array]]
"""A fitted model: (layout, statistics, parameters of one seed, state, action) -> outputs, penalty in [0, 1]."""


class LearnedModel(NamedTuple):
    """A learned model as planners use it: pure functions of (parameters of one seed, one row)."""

    imagine: Callable[[Any, Array, Array], tuple[Array, Array]]
    """state, action -> next state with binary factors as probabilities, of events the most sceptical ones; penalty in
    [0, 1]"""
    expect: Callable[[Any, Array, Array], tuple[Array, Array]]
    """the same, with calibrated probabilities of events"""
    successor: Callable[[Any, Array, Array], tuple[Array, Array, Array]]
    """state, action -> the likeliest next state, its log-probability, penalty"""
    behaviour_policy: Callable[[Any, Array, Array, Array], Array]
    """state, goal, noise -> action"""
    terminal_value: Callable[[Any, Array, Array], Array]
    """state, goal -> value"""
    outcome: Callable[[Any, Array], tuple[Array, Array]] | None = None
    """imagined state -> reward in units of the logged returns, probability of an end; None where a goal counts"""
    forecast: Any = None
    """state, action -> what `expect` returns, and between the two the standard deviation of each column of the next
    state, 0 of discrete factors"""
    violation: Callable[[Any, Array, Array], Array] | None = None
    """state, action -> how much the step counts as a violation (`planning.limits`); None without constraints"""


def _predict_with_static(
    predict: Predict, static: Any, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    return predict(layout, stats, {**p, **eqx.combine({name: p[name] for name in static}, static)}, state, action)


def _imagine(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array]:
    state = blank_outcomes(layout.factors, stats, state)
    outputs, penalty = predict(layout, stats, p, state, action)
    return decode(layout, stats, outputs, state, hard=False).state, penalty


def _expect(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array]:
    state = blank_outcomes(layout.factors, stats, state)
    outputs, penalty = predict(layout, stats, p, state, action)
    guess = decode(layout, stats, outputs, state, p.get("event_shift"), hard=False, cautious=False)
    return guess.state, penalty


def _successor(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array, Array]:
    state = blank_outcomes(layout.factors, stats, state)
    outputs, penalty = predict(layout, stats, p, state, action)
    guess = decode(layout, stats, outputs, state, hard=True)
    return guess.state, guess.log_p, penalty


def _forecast(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array, Array]:
    state = blank_outcomes(layout.factors, stats, state)
    outputs, penalty = predict(layout, stats, p, state, action)
    guess = decode(layout, stats, outputs, state, p.get("event_shift"), hard=False, cautious=False)
    scale = p.get("error_scale", jnp.ones(len(state)))
    return guess.state, predicted_deviation(layout, stats, outputs, scale), penalty


def _violation(predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array) -> Array:
    state = blank_outcomes(layout.factors, stats, state)
    outputs, _ = predict(layout, stats, p, state, action)
    after = decode(layout, stats, outputs, state, hard=False).state
    return violation(layout, stats, p["error_scale"], outputs, after, action)


def split_learned(predict: Predict, summary: Summary, parameters: Any) -> tuple[Any, LearnedModel]:
    """The arrays among the parameters, and the functions of them that planners use.

    An Equinox model may hold functions as leaves.
    """
    arrays, static = eqx.partition(dict(parameters), lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
    if jax.tree.leaves(static):
        predict = partial(_predict_with_static, predict, static)
    return arrays, LearnedModel(
        partial(_imagine, predict, summary.layout, summary.stats),
        partial(_expect, predict, summary.layout, summary.stats),
        partial(_successor, predict, summary.layout, summary.stats),
        behaviour_policy(summary),
        terminal_value(summary),
        outcome(summary),
        partial(_forecast, predict, summary.layout, summary.stats),
        partial(_violation, predict, summary.layout, summary.stats) if summary.factors.constraints else None,
    )
