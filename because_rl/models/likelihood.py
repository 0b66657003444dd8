"""How likely a next state is, and what the next state will be, by the type of each factor. All for one row."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.prepared_data import Statistics

HALF = 0.5


def split(layout: Layout, family: Family, state: Float[Array, " state"]) -> Float[Array, "members width"]:
    return state[layout.family_columns(family)]


def join(layout: Layout, parts: list[Array]) -> Float[Array, " state"]:
    """The inverse of `split` over all families."""
    columns = np.concatenate([layout.family_columns(f).reshape(-1) for f in layout.families])
    return jnp.concatenate([part.reshape(-1) for part in parts])[np.argsort(columns)]


def per_target(layout: Layout, parts: list[Array]) -> Float[Array, " targets"]:
    """Values of each family's members, in the order of the targets."""
    order = np.concatenate([np.array(f.members) for f in layout.families])
    return jnp.concatenate(parts)[np.argsort(order)]


def negative_log_likelihood(
    layout: Layout,
    stats: Statistics,
    outputs: list[Outputs],
    state: Array,
    next_state: Array,
    counts: Float[Array, " events"] | None = None,
    *,
    weighted: bool = True,
) -> Float[Array, " targets"]:
    """-log T(s'_j | s, a) of each target; of binary factors the mean over their networks, weighted by `counts`.

    Gaussians are scaled by their own variance to the power 1/2 (beta-NLL): rows that are hard to predict keep
    pulling at the mean.

    If `weighted`, as in training, a row in which a binary factor switches counts w times for it (`Statistics.rarity` is
    log w), and the logit of a switch is log w higher, so that outputs remain calibrated.
    """
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        now, then = split(layout, family, state), split(layout, family, next_state)
        if family.is_continuous:
            error = family.difference(then, now) / split(layout, family, stats.change) - out.value
            nll = HALF * (error * jnp.exp(-out.spread)) ** 2 + out.spread
            parts.append((nll * jnp.exp(jax.lax.stop_gradient(out.spread))).sum(1))
        elif family.type == "categorical":
            parts.append(-(jax.nn.log_softmax(out.value, axis=1) * _with_absent(family, then)).sum(1))
        elif family.slots:
            parts.append(_cross_entropy(out.value, then).sum(1))
        else:
            rarity = split(layout, family, stats.rarity) if weighted else jnp.zeros_like(now)
            logits = out.value + ((1.0 - 2.0 * now) * rarity)[:, None]
            each = jax.vmap(_cross_entropy, in_axes=(1, None), out_axes=1)(logits, then)
            each = each * jnp.exp(jnp.abs(then - now) * rarity)[:, None]
            parts.append((each if counts is None else each * counts[None, :, None]).mean(1).sum(1))
    return per_target(layout, parts)


def log_likelihood(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, next_state: Array, *, weighted: bool = True
) -> Float[Array, " targets"]:
    """log T(s'_j | s, a) in nats, in which Gaussians are not scaled by their spread: it can compare models.

    `weighted`: as in `negative_log_likelihood`.
    """
    shared = negative_log_likelihood(layout, stats, outputs, state, next_state, weighted=weighted)
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        nll = shared[np.array(family.members)]
        if family.is_continuous:
            change = family.difference(split(layout, family, next_state), split(layout, family, state))
            error = change / split(layout, family, stats.change) - out.value
            nll = (HALF * (error * jnp.exp(-out.spread)) ** 2 + out.spread).sum(1)
        parts.append(-nll)
    return per_target(layout, parts)


def _with_absent(family: Family, values: Array) -> Array:
    if not family.optional:
        return values
    return jnp.concatenate([values, 1.0 - values.sum(1, keepdims=True)], axis=1)


def _cross_entropy(logits: Array, wanted: Array) -> Array:
    return jax.nn.softplus(logits) - logits * wanted


class Guess(NamedTuple):
    """The likeliest next state and its log-probability (of the discrete factors)."""

    state: Float[Array, " state"]
    log_p: Float[Array, ""]


def decode(
    layout: Layout,
    stats: Statistics,
    outputs: list[Outputs],
    state: Array,
    event_shift: Float[Array, " state"] | None = None,
    *,
    hard: bool,
    cautious: bool = True,
) -> Guess:
    """What comes next: means of continuous factors, the likeliest level of categorical ones.

    Binary factors stay probabilities unless `hard`. Several networks vote on an event: their mean counts, but
    where the goal hangs on it a `cautious` planner believes the one that believes in it least. `event_shift` is added
    to the log-odds of a switch (`planning.calibration.event_shifts`).

    A planner looks for the rows in which events are likeliest, and so finds those in which they are overrated: plans
    on calibrated odds fail more often than plans on sceptical ones.
    """
    parts, log_p = [], jnp.zeros(())
    for family, out, bearing in zip(layout.families, outputs, layout.goal_bearing, strict=True):
        now = split(layout, family, state)
        if family.is_continuous:
            there = now + out.value * split(layout, family, stats.change)
            parts.append(into_logged_range(layout, family, stats, there))
        elif family.type == "categorical":
            logs = jax.nn.log_softmax(out.value, axis=1)
            parts.append(jax.nn.one_hot(logs.argmax(1), logs.shape[1])[:, : family.width])
            log_p = log_p + logs.max(1).sum()
        else:
            value = out.value if family.slots else (out.value.min(1) if bearing and cautious else out.value.mean(1))
            if event_shift is not None:
                value = value + (1.0 - 2.0 * now) * split(layout, family, event_shift)
            if hard:
                parts.append((value > 0).astype(value.dtype))
                log_p = log_p - jax.nn.softplus(-jnp.abs(value)).sum()
            else:
                parts.append(jax.nn.sigmoid(value))
    return Guess(join(layout, parts), log_p)


def into_logged_range(
    layout: Layout, family: Family, stats: Statistics, value: Float[Array, "members width"]
) -> Float[Array, "members width"]:
    """Angles turned into [0, a full turn) or [-half a turn, half a turn), whichever the data keep to; others as given.

    Where the logged angles count full turns, they are left as they are too.
    """
    if family.period is None:
        return value
    low, high = split(layout, family, stats.low), split(layout, family, stats.high)
    turn, slack = family.period, 1e-3 * family.period
    start = jnp.where((low > -slack) & (high > turn / 2 + slack), 0.0, -turn / 2)
    keeps = (low > start - slack) & (high < start + turn + slack)
    return jnp.where(keeps, start + (value - start) % turn, value)


def correct(
    layout: Layout, stats: Statistics, guess: Array, state: Array, next_state: Array
) -> Float[Array, " targets"]:
    """1 where a discrete factor was predicted right; for continuous ones the squared error of the change."""
    parts = []
    for family in layout.families:
        there, then = split(layout, family, guess), split(layout, family, next_state)
        if family.is_continuous:
            parts.append(((family.difference(there, then) / split(layout, family, stats.change)) ** 2).mean(1))
        else:
            parts.append(((there > HALF) == (then > HALF)).all(1).astype(jnp.float32))
    return per_target(layout, parts)
