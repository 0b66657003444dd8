"""Would the inputs that a mask leaves out improve the world model that was fitted under it?

Discovery asks this of its own regressions (`discovery.regression.sufficiency`); here it is asked of the model that
plans. Two corrections are added to what the fitted model predicts of every target, and trained side by side on the
training rows: one sees the inputs in the mask, the other all that may be causes. On the held-out episodes,

    loss_j = (e_j - o_j) / (e_j + FLOOR),

with e_j the mean error under the mask and o_j that with all inputs: half the squared error in units of the usual change
of a continuous factor, the cross entropy of a discrete one. Both have been trained as long, so that a gain is due to
the inputs and not to the training. Errors of continuous factors are centred in each episode: a hidden cause
that is constant there shifts them, and what merely goes along with it would seem to improve the prediction.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats as distributions

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, dense_size, views
from because_rl.models.layout import Layout
from because_rl.models.likelihood import join, negative_log_likelihood, split
from because_rl.models.nets import SharedMLP
from because_rl.models.prepared_data import PreparedData, Statistics
from because_rl.training.stage import Batch, Stage, over_rows

LEVEL = 0.01
"""p-value below which a loss is more than chance, shared by all targets."""
LEAST_LOSS = 0.1
"""Loss that counts."""
FLOOR = 0.01
"""Error below which a target is as good as known: an R² of .98, or the right level with probability .99."""
MOST_ROWS = 20_000
"""Held-out rows to use."""


class Fitted(NamedTuple):
    """What the corrections start from."""

    world: BilinearModel
    gates: Gates
    """of the mask"""
    both: Gates
    """with a leading axis of 2: of the mask, and of all inputs"""


def fitted(world: BilinearModel, gates: Gates, all_inputs: Gates) -> Fitted:
    """Of arrays with a leading axis of seeds."""
    return Fitted(world, gates, jax.tree.map(lambda a, b: jnp.stack([a, b], axis=1), gates, all_inputs))


class Corrections(eqx.Module):
    """For each family a network that sees the inputs in the mask and one that sees all, on a leading axis of 2."""

    nets: list[SharedMLP]

    def __init__(self, world: BilinearModel, key: PRNGKeyArray, hidden: int):
        layout, inputs = world.layout, dense_size(world.layout, world.places)
        self.nets = []
        for n, family in enumerate(layout.families):
            sizes = (inputs, hidden, hidden, family.width + family.optional)
            keys = jax.random.split(jax.random.fold_in(key, n), 2)
            self.nets.append(jax.vmap(lambda k, f=family, s=sizes: SharedMLP(s, len(f.members), k, last=0.1))(keys))

    def __call__(self, stats: Statistics, fitted: Fitted, x: Float[Array, " columns"]) -> list[list[Outputs]]:
        """What the corrected models predict: under the mask, and with all inputs."""
        world = fitted.world

        def correct(nets: list[SharedMLP], gates: Gates) -> list[Array]:
            all_views = views(world.layout, stats, gates, x)
            return [net(world.features(all_views, n)) for n, net in enumerate(nets)]

        base, both = world(stats, fitted.gates, x), jax.vmap(correct)(self.nets, fitted.both)
        return [[_add(out, more[arm]) for out, more in zip(base, both, strict=True)] for arm in (0, 1)]


def _add(out: Outputs, correction: Float[Array, "members width"]) -> Outputs:
    """The outputs with a correction of their means or logits; of events, in every network."""
    more = correction[:, None] if out.value.ndim == 3 else correction
    return out._replace(value=out.value + more)


def correction_stage(name: str, prepared: PreparedData, hidden: int, steps: int, batch: int, rate: float) -> Stage:
    return Stage(
        name,
        lambda key, fixed: Corrections(fixed.world, key, hidden),
        partial(correction_loss, prepared.stats),
        steps,
        batch,
        rate,
        settings={"hidden": hidden},
    )


def correction_loss(
    stats: Statistics, model: Corrections, fitted: Fitted, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    layout = fitted.world.layout

    def row(state: Array, action: Array, next_state: Array) -> Array:
        both = model(stats, fitted, jnp.concatenate([state, action]))
        return jnp.stack([negative_log_likelihood(layout, stats, out, state, next_state).sum() for out in both])

    masked, unmasked = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean(0)
    return masked + unmasked, {"masked": masked, "unmasked": unmasked}


def held_out_losses(
    prepared: PreparedData, corrections: Corrections, fitted: Fitted
) -> dict[str, dict[str, float | bool]]:
    """target -> loss, p-value of no loss, and whether the mask suffices; of models with a leading axis of seeds."""
    data, layout, stats = prepared.transitions, prepared.layout, prepared.stats
    held = {name: values[:MOST_ROWS] for name, values in data.batch(data.held_out).items()}

    rows = (held[name] for name in ("state", "action", "next_state"))
    both = over_rows("check of the mask", partial(_both_errors, layout, stats))((corrections, fitted), *rows)
    change, entropy = (np.asarray(part, float) for part in both)  # seeds, rows, 2, ...
    first = np.flatnonzero(np.diff(np.asarray(held["episode"]), prepend=-1))
    result = {}
    for j, factor in enumerate(data.factors.state):
        if factor.is_continuous:
            errors = _centred(change[..., factor.slice], first) ** 2 / 2
            masked, unmasked = errors.sum(-1).mean(0).T
        else:
            masked, unmasked = entropy[..., j].mean(0).T
        result[factor.name] = compare(masked, unmasked, first, len(data.factors.state))
    return result


def compare(masked: np.ndarray, unmasked: np.ndarray, first: np.ndarray, targets: int = 1) -> dict[str, float | bool]:
    """The loss of a mask from the errors (rows,) with it and without; `first` are the first rows of episodes.

    >>> rng = np.random.default_rng(0)
    >>> first, noise = np.arange(0, 400, 10), rng.exponential(size=400)
    >>> compare(1.5 * noise, noise, first)["suffices"], compare(noise, noise[::-1], first)["suffices"]
    (False, True)
    """
    excess = np.add.reduceat(masked - unmasked, first)
    spread = excess.std(ddof=1) / np.sqrt(len(excess)) if len(excess) > 1 else 0.0
    p = float(distributions.t.sf(excess.mean() / spread, len(excess) - 1)) if spread > 0 else 1.0
    p = min(1.0, p * targets)
    loss = float((masked.mean() - unmasked.mean()) / (masked.mean() + FLOOR))
    return {"loss": loss, "p": p, "suffices": p >= LEVEL or loss < LEAST_LOSS}


def _both_errors(
    layout: Layout,
    stats: Statistics,
    models: tuple[Corrections, Fitted],
    state: Array,
    action: Array,
    next_state: Array,
) -> tuple[Array, Array]:
    """`_errors` under the mask and with all inputs."""
    corrections, start = models
    both = corrections(stats, start, jnp.concatenate([state, action]))
    each = [_errors(layout, stats, outputs, state, next_state) for outputs in both]
    return jnp.stack([change for change, _ in each]), jnp.stack([entropy for _, entropy in each])


def _errors(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, next_state: Array
) -> tuple[Float[Array, " state"], Float[Array, " targets"]]:
    """Errors of the change in units of the usual one (0 for discrete columns), and the cross entropy of each target."""
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        now, then = split(layout, family, state), split(layout, family, next_state)
        change = family.difference(then, now) / split(layout, family, stats.change)
        parts.append(change - out.value if family.is_continuous else jnp.zeros_like(now))
    return join(layout, parts), negative_log_likelihood(layout, stats, outputs, state, next_state, weighted=False)


def _centred(errors: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(seeds, rows, ...) less the mean of each episode; rows that are no episodes stay as they are."""
    if len(first) == errors.shape[1]:
        return errors
    lengths = np.diff(np.append(first, errors.shape[1]))
    means = np.add.reduceat(errors, first, axis=1) / lengths.reshape(-1, *[1] * (errors.ndim - 2))
    return errors - np.repeat(means, lengths, axis=1)
