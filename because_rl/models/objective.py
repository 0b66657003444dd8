"""The losses of the causal world model (equations 5 and 6 of the paper, in the form that does not collapse)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from because_rl.models.bilinear import BilinearModel, DenseHead, Wiring
from because_rl.models.likelihood import correct, decode, negative_log_likelihood, split
from because_rl.models.nets import MLP, SharedMLP
from because_rl.models.statistics import Statistics
from because_rl.models.training import Batch


@dataclass(frozen=True)
class Weights:
    """Of the terms beside the likelihood."""

    spectral: float = 0.02
    """of the contrastive form of equation 6"""
    white: float = 1.0
    """keeps E[mu mu^T] near the identity: mu cannot collapse"""
    phi: float = 1e-4
    """lambda_phi and lambda_mu of the paper: spectral norms of phi's and mu's layers"""
    mu: float = 1e-4
    deviation: float = 1e-3
    """of a member from its family"""
    background: float = 1.0
    """of the belief that events do not happen far from the data"""
    margin: float = 0.25
    """how far beyond the data's range, as a share of it, that background reaches"""


def world_model_loss(
    weights: Weights, stats: Statistics, model: BilinearModel, wiring: Wiring, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    layout = model.layout
    x = jnp.concatenate([batch["state"], batch["action"]], axis=1)
    outputs = jax.vmap(lambda row: model(stats, wiring, row))(x)
    nll = jax.vmap(lambda out, s, t: negative_log_likelihood(layout, stats, out, s, t))(
        outputs, batch["state"], batch["next_state"]
    ).mean(0)
    mu = jax.vmap(lambda s: model.represent(stats, s))(batch["next_state"])
    spectral, white = jnp.zeros(()), jnp.zeros(())
    for out, features, core in zip(outputs, mu, model.core, strict=True):
        ratio = jnp.einsum("bmp,pk,cmk->mbc", out.phi, core, features)  # of row b's (s, a) with row c's s'
        b = ratio.shape[1]
        own = jnp.trace(ratio, axis1=1, axis2=2) / b
        spectral += (
            ((ratio**2).sum((1, 2)) - (jnp.diagonal(ratio, axis1=1, axis2=2) ** 2).sum(1)) / (b * (b - 1)) - 2 * own
        ).sum()
        moment = jnp.einsum("bmk,bml->mkl", features, features) / b
        white += ((moment - jnp.eye(moment.shape[1])[None]) ** 2).mean((1, 2)).sum()
    terms = {
        "nll": nll.sum(),
        "spectral": spectral,
        "white": white,
        "deviation": sum((net.deviation() for net in _shared(model)), jnp.zeros(())),
        "norm_phi": sum((spectral_norms(head) for head in model.heads), jnp.zeros(())),
        "norm_mu": sum((spectral_norms(net) for net in model.mu), jnp.zeros(())),
        "background": _background(weights, stats, model, wiring, batch, key),
    }
    total = (
        terms["nll"]
        + weights.spectral * terms["spectral"]
        + weights.white * terms["white"]
        + weights.deviation * terms["deviation"]
        + weights.phi * terms["norm_phi"]
        + weights.mu * terms["norm_mu"]
        + weights.background * terms["background"]
    )
    return total, terms


def _shared(model: BilinearModel) -> list[SharedMLP]:
    heads = [head for head in model.heads if isinstance(head, DenseHead)]
    return [net for head in heads for net in (head.trunk, head.read)] + list(model.mu)


def spectral_norms(module: object) -> Array:
    """Squared Frobenius norms of the layers, which bound their squared spectral norms."""
    nets = [m for m in jax.tree.leaves(module, is_leaf=lambda m: isinstance(m, MLP)) if isinstance(m, MLP)]
    return sum(((w**2).sum() for net in nets for w in net.weights), jnp.zeros(()))


def _background(
    weights: Weights, stats: Statistics, model: BilinearModel, wiring: Wiring, batch: Batch, key: Array
) -> Array:
    """Events are rare, sharp, and seen in few places; a planner looks for the places where they are imagined.

    So binary factors without slots are also trained on rows drawn evenly from a box around the data, columns
    independent of each other: there, they keep their value. Half of the rows keep all but some columns of a real
    row, and so lie closer to the data.
    """
    layout = model.layout
    events = [f for f in layout.families if f.type == "binary" and not f.slots]
    if not events or not weights.background:
        return jnp.zeros(())
    real = jnp.concatenate([batch["state"], batch["action"]], axis=1)
    k1, k2, k3 = jax.random.split(key, 3)
    reach = weights.margin * (stats.high - stats.low)
    box = jax.random.uniform(k1, real.shape) * (stats.high - stats.low + 2 * reach)[None] + (stats.low - reach)[None]
    discrete = jnp.concatenate([jnp.full(f.width, f.type != "continuous") for f in layout.inputs])
    box = jnp.where(discrete[None], real, box)  # a wrong one-hot would be told at once, and teach nothing
    keep = jax.random.uniform(k2, real.shape) < 0.5 * jax.random.bernoulli(k3, 0.5, (len(real), 1))
    x = jnp.where(keep, real, box)
    outputs = jax.vmap(lambda row: model(stats, wiring, row))(x)
    total = jnp.zeros(())
    for family, out in zip(layout.families, outputs, strict=True):
        if family in events:
            now = jax.vmap(lambda s, f=family: split(layout, f, s))(x[:, : layout.factors.state_size])
            loss = jax.nn.softplus(out.value) - out.value * now[:, :, None]
            total += loss.mean((0, 2)).sum()
    return total


def evaluate(stats: Statistics, model: BilinearModel, wiring: Wiring, batch: Batch) -> dict[str, Array]:
    """Held-out figures: per target likelihood, and accuracy (discrete) or squared error (continuous)."""
    layout = model.layout

    def row(state: Array, action: Array, next_state: Array) -> tuple[Array, Array]:
        outputs = model(stats, wiring, jnp.concatenate([state, action]))
        guess = decode(layout, stats, outputs, state, hard=True, least=False).state
        return (
            negative_log_likelihood(layout, stats, outputs, state, next_state),
            correct(layout, stats, guess, state, next_state),
        )

    nll, right = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"])
    return {"nll": nll.mean(0), "right": right.mean(0)}


def effective_rank(stats: Statistics, model: BilinearModel, states: Array) -> Array:
    """exp of the entropy of the spectrum of E[mu mu^T], as a share of mu's width: 1 is no collapse at all."""
    parts = jax.vmap(lambda s: model.represent(stats, s))(states)
    mu = jnp.concatenate([part.reshape(len(states), -1) for part in parts], axis=1)
    values = jnp.maximum(jnp.linalg.eigvalsh(mu.T @ mu / len(states)), 1e-12)
    share = values / values.sum()
    return jnp.exp(-(share * jnp.log(share)).sum()) / mu.shape[1]
