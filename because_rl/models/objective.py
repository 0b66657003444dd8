"""The losses of the causal world model (equations 5 and 6 of the paper, in the form that does not collapse)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.models.bilinear import BilinearModel, DenseHead, Gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import correct, decode, negative_log_likelihood, per_target, split
from because_rl.models.mixing import mix
from because_rl.models.nets import MLP, SharedMLP, uniform
from because_rl.models.prepared_data import Statistics
from because_rl.models.whitening import Whitening, whitenings
from because_rl.training.stage import Batch


@dataclass(frozen=True)
class Weights:
    """Of the terms beside the likelihood."""

    representation: float = 0.1
    """of equation 6: whitened mu(s') from phi(s, a)"""
    phi: float = 1e-4
    """lambda_phi and lambda_mu of the paper, of squared Frobenius norms (which bound its squared spectral norms)"""
    mu: float = 1e-4
    deviation: float = 1e-3
    """of a member from its family"""
    background: float = 1.0
    """of the belief that events do not happen far from the data"""
    margin: float = 0.25
    """how far beyond the data's range, as a share of it, that background reaches"""
    jackknife: bool = True
    """of the networks that vote on an event, each never sees a share of the episodes"""


def world_model_loss(
    weights: Weights, stats: Statistics, model: BilinearModel, gates: Gates, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    layout = model.layout
    x = jnp.concatenate([batch["state"], batch["action"]], axis=1)
    outputs = jax.vmap(lambda row: model(stats, gates, row))(x)
    counts = jackknife(batch["episode"], model.events if weights.jackknife else 1)
    nll = jax.vmap(lambda out, s, t, c: negative_log_likelihood(layout, stats, out, s, t, c))(
        outputs, batch["state"], batch["next_state"], counts
    ).mean(0)
    mu = jax.vmap(lambda s: model.represent(stats, s))(batch["next_state"])
    representation = jnp.zeros(())
    for out, features, whitening, core in zip(outputs, mu, whitenings(mu), model.core, strict=True):
        white = jax.vmap(whitening.__call__)(features)
        error = white - jnp.einsum("bmp,pk->bmk", out.phi, core)
        # Less its variance: a feature that shrank into the ridge of whitening would otherwise cost nothing.
        representation += (error**2 - white**2).mean((0, 2)).sum()
    terms = {
        "nll": nll.sum(),
        "representation": representation,
        "deviation": sum((net.deviation() for net in _shared(model)), jnp.zeros(())),
        "norm_phi": sum((squared_norms(head) for head in model.penalised()), jnp.zeros(())),
        "norm_mu": sum((squared_norms(net) for net in model.mu), jnp.zeros(())),
        "background": background(weights, stats, model, gates, batch, key),
    }
    total = (
        terms["nll"]
        + weights.representation * terms["representation"]
        + weights.deviation * terms["deviation"]
        + weights.phi * terms["norm_phi"]
        + weights.mu * terms["norm_mu"]
        + weights.background * terms["background"]
    )
    return total, terms


def jackknife(episode: Float[Array, " rows"], networks: int) -> Float[Array, "rows networks"]:
    """How much a row counts for each network: nothing for one of them, by its episode.

    A planner believes the most sceptical network. What is known of one logged event only, at least one of them has
    never seen.
    """
    if networks == 1:
        return jnp.ones((len(episode), 1))
    left_out = jnp.mod(episode, networks)[:, None] == jnp.arange(networks, dtype=episode.dtype)[None]
    return jnp.where(left_out, 0.0, networks / (networks - 1))


def _shared(model: BilinearModel) -> list[SharedMLP]:
    heads = [head for head in model.heads if isinstance(head, DenseHead)]
    return [net for head in heads for net in (head.trunk, head.read)] + list(model.mu) + list(model.support)


def squared_norms(module: object) -> Array:
    """The sum of the squared Frobenius norms of all layers; each bounds the layer's squared spectral norm."""
    nets = [m for m in jax.tree.leaves(module, is_leaf=lambda m: isinstance(m, MLP)) if isinstance(m, MLP)]
    return sum(((w**2).sum() for net in nets for w in net.weights), jnp.zeros(()))


def background(weights: Weights, stats: Statistics, model: Any, gates: Any, batch: Batch, key: Array) -> Array:
    """Events are rare, sharp, and seen in few places; a planner looks for the places where they are imagined.

    So binary factors that the goal is about are also trained on rows that are unlike the data (`unlogged_rows`): there,
    they keep their value. `model` is any that is called like BilinearModel.

    Where such rows and the data overlap, this would teach that half of the events do not happen. A model with
    `log_odds_of_data` therefore also learns to distinguish the two, and a row counts by how much likelier it is among
    the unlogged than in the data.
    """
    layout, events = model.layout, model.layout.events
    if not events or not weights.background:
        return jnp.zeros(())
    real = jnp.concatenate([batch["state"], batch["action"]], axis=1)
    x = unlogged_rows(weights.margin, stats, layout, real, key)
    outputs = jax.vmap(lambda row: model(stats, gates, row, events))(x)
    total, counts = jnp.zeros(()), [jnp.ones(())] * len(events)
    if hasattr(model, "log_odds_of_data"):
        of_data, of_x = (jax.vmap(lambda row: model.log_odds_of_data(stats, gates, row))(rows) for rows in (real, x))
        log_odds = zip(of_data, of_x, strict=True)
        total += sum(((jax.nn.softplus(-a) + jax.nn.softplus(b)).mean(0).sum() for a, b in log_odds), jnp.zeros(()))
        counts = [jax.lax.stop_gradient(jax.nn.relu(1.0 - 2.0 * jax.nn.sigmoid(b))) for b in of_x]
    for n, out, count in zip(events, outputs, counts, strict=True):
        family = layout.families[n]
        now = jax.vmap(lambda s, f=family: split(layout, f, s))(x[:, : layout.factors.state_size])
        value = out.value[:, :, None] if family.slots else out.value  # one network, or several that vote
        error = (jax.nn.softplus(value) - value * now[:, :, None]).mean(2).sum(2)  # (rows, members)
        total += (error * count).mean(0).sum()
    return total


def unlogged_rows(
    margin: float, stats: Statistics, layout: Layout, real: Float[Array, "rows columns"], key: Array
) -> Float[Array, "rows columns"]:
    """Rows [s, a] to hold against those of a batch.

    With continuous columns: drawn evenly from a box around the data, columns independent of each other; half of the
    rows keep some columns of a real row, and so lie closer to the data. Discrete columns are those of the real row,
    since an impossible one-hot would be recognised at once and teach nothing. Where all columns are discrete, factors
    of different rows are put together: an expert that opens whenever it stands at the door with the key has logged
    no step that says that 'open' is needed.
    """
    k1, k2, k3 = jax.random.split(key, 3)
    discrete = np.concatenate([np.full(f.width, not f.is_continuous) for f in layout.inputs])
    if discrete.all():
        return mix(layout, real, k1, k2)
    reach = margin * (stats.high - stats.low)
    box = uniform(k1, real.shape) * (stats.high - stats.low + 2 * reach)[None] + (stats.low - reach)[None]
    box = jnp.where(discrete[None], real, box)
    near = uniform(k3, (len(real), 1)) < 0.5
    keep = (uniform(k2, real.shape) < 0.5) & near
    return jnp.where(keep, real, box)


def evaluate(stats: Statistics, model: BilinearModel, gates: Gates, batch: Batch) -> dict[str, Array]:
    """Held-out figures: per target likelihood, and accuracy (discrete) or squared error (continuous)."""
    layout = model.layout

    def row(state: Array, action: Array, next_state: Array) -> tuple[Array, Array]:
        outputs = model(stats, gates, jnp.concatenate([state, action]))
        guess = decode(layout, stats, outputs, state, hard=True, cautious=False).state
        return (
            negative_log_likelihood(layout, stats, outputs, state, next_state, weighted=False),
            correct(layout, stats, guess, state, next_state),
        )

    nll, right = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"])
    return {"nll": nll.mean(0), "right": right.mean(0)}


def effective_rank(stats: Statistics, model: BilinearModel, whitening: Sequence[Whitening], states: Array) -> Array:
    """(targets,) exp of the entropy of the spectrum of E[mu_j mu_j^T], as a share of mu_j's width: 1 is no collapse.

    `whitening` was made on other states, so mu's variance is 1 in every direction that these share with them; what
    it misses of that on average lowers the rank. Each factor counts for itself, since factors may repeat each other
    (joints and hand) in a representation that has lost nothing.
    """
    parts = []
    for features, white in zip(jax.vmap(lambda s: model.represent(stats, s))(states), whitening, strict=True):
        mu = jax.vmap(lambda row, white=white: white(row))(features)
        mu = mu - mu.mean(0)[None]
        values = jnp.maximum(jnp.linalg.eigvalsh(jnp.einsum("bmk,bml->mkl", mu, mu) / len(mu)), 1e-12)
        share = values / values.sum(1, keepdims=True)
        entropy = -(share * jnp.log(share)).sum(1)
        parts.append(jnp.exp(entropy) / values.shape[1] * jnp.minimum(values.mean(1), 1.0))
    return per_target(model.layout, parts)
