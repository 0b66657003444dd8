"""Constraints in plans: no amount of reward buys a violation.

Plans are ranked first by how often they are expected to break a constraint, and only among equals by their return. A
step counts for each constraint k with

    max(P_k - RISK, 0) (1 + e_k)

where P_k is the probability that the step breaks it and e_k by how much it is expected to, in deviations of the data.
So a step that keeps a limit with probability 1 - RISK or more costs nothing, and where a violation cannot be avoided
plans are preferred that are back sooner, and meanwhile not as far beyond.

P_k is pessimistic. Of continuous factors it is that of a Gaussian around the prediction, whose deviation is the model's
own, multiplied by what the errors on held-out rows exceed it (`calibration.error_scale`). Of an event on which several
networks vote, the one counts that believes most in a violation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.constraints import Constraint
from because_rl.factor import Factor
from because_rl.factors import FactorSpec
from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import ActionStatistics, Statistics

RISK = 0.05
"""Probability of a violation in one step that plans may take."""
LEAST_DEVIATION = 1e-6
"""of a prediction, in deviations of the data"""


def predicted_deviation(
    layout: Layout, stats: Statistics, outputs: list[Outputs], scale: Float[Array, " state"]
) -> Float[Array, " state"]:
    """The standard deviation of each continuous column of the next state by the model, times `scale`; 0 of others."""
    deviation = jnp.zeros(layout.factors.state_size)
    for family, out in zip(layout.families, outputs, strict=True):
        if family.is_continuous:
            columns = layout.family_columns(family)
            deviation = deviation.at[columns].set(jnp.exp(out.spread) * stats.change[columns] * scale[columns])
    return deviation


def violation(
    layout: Layout,
    stats: Statistics,
    scale: Float[Array, " state"],
    outputs: list[Outputs],
    after: Float[Array, " state"],
    action: Float[Array, " action"],
) -> Float[Array, ""]:
    """How much a step counts as a violation, over all constraints; `after` is the state predicted by `outputs`."""
    spec, total = layout.factors, jnp.zeros(())
    deviation = predicted_deviation(layout, stats, outputs, scale)
    for constraint in spec.constraints:
        factor = spec[constraint.factor]
        if factor not in spec.state:
            unit = stats.scale[spec.state_size :][factor.slice]
            risk, excess = _risk(constraint, factor, action[factor.slice], jnp.zeros(factor.width), unit)
        elif factor.is_continuous:
            there = after[factor.slice], deviation[factor.slice]
            risk, excess = _risk(constraint, factor, *there, stats.scale[factor.slice])
        else:
            risk, excess = _chance_of_forbidden(constraint, layout, factor, outputs), 0.0
        total = total + jnp.maximum(risk - RISK, 0.0) * (1.0 + excess)
    return total


def _risk(
    constraint: Constraint, factor: Factor, mean: Array, deviation: Array, unit: Array
) -> tuple[Array, Array | float]:
    """The probability that columns with this mean and deviation break a constraint, and by how many units."""
    if not factor.is_continuous:
        forbidden = jnp.asarray(constraint.forbidden(factor), jnp.float32)
        on = (mean > 0.5).astype(jnp.float32)
        if factor.type == "categorical":
            return (on * forbidden).max(), 0.0
        return (on * forbidden[1] + (1 - on) * forbidden[0]).max(), 0.0
    beyond = (mean - constraint.limit) * (1.0 if constraint.bound == "<=" else -1.0)
    chance = jax.scipy.stats.norm.cdf(beyond / jnp.maximum(deviation, LEAST_DEVIATION * unit))
    return 1.0 - (1.0 - chance).prod(), (jnp.maximum(beyond, 0.0) / unit).max()


def _chance_of_forbidden(constraint: Constraint, layout: Layout, factor: Factor, outputs: list[Outputs]) -> Array:
    """The probability of a level, or of a value of a binary factor, that breaks a constraint."""
    forbidden = constraint.forbidden(factor)
    place = layout.factors.state.index(factor)
    ((family, out),) = [(f, o) for f, o in zip(layout.families, outputs, strict=True) if place in f.members]
    value = out.value[family.members.index(place)]
    if family.type == "categorical":
        levels = jax.nn.softmax(value)[: factor.width]
        return (levels * jnp.asarray(forbidden, jnp.float32)).sum()
    if forbidden.all():
        return jnp.ones(())
    if not forbidden.any():
        return jnp.zeros(())
    votes = jnp.atleast_2d(value)  # (networks, width)
    chance = jax.nn.sigmoid(votes.max(0)) if forbidden[1] else jax.nn.sigmoid(-votes.min(0))
    return 1.0 - (1.0 - chance).prod()


def action_box(spec: FactorSpec, actions: ActionStatistics) -> tuple[np.ndarray, np.ndarray]:
    """The least and greatest action, as logged and as constraints on continuous action factors allow."""
    low, high = (np.array(bound, np.float32) for bound in (actions.low, actions.high))
    for constraint in spec.constraints:
        factor = spec[constraint.factor]
        if factor in spec.action and factor.type == "continuous":
            limit = np.minimum if constraint.bound == "<=" else np.maximum
            low[factor.slice], high[factor.slice] = (limit(b[factor.slice], constraint.limit) for b in (low, high))
    return low, high


def preference(scores: Float[Array, " n"], violations: Float[Array, " n"]) -> Float[Array, " n"]:
    """Numbers that rank candidates first by the least violation, then by the greatest score."""
    order = jnp.lexsort((-scores, violations))
    return jnp.zeros(len(scores)).at[order].set(-jnp.arange(len(scores), dtype=jnp.float32))
