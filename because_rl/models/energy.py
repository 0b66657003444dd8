"""The energy model: how unlike the data is (s, a, s'_j), seen through the causal representation?

    E_j = tanh f(view of j's possible parents, mu(s'_j))  in (-1, 1),
    L_EBM = E[E(positives)] - E[E(negatives)] + lambda_EBM |theta|^2        (equation 8 of the paper)

High energy is high uncertainty. Positives are what happened and what the world model makes of it. Negatives are

- *counterfactual*: the s' of other rows, factor by factor: does s'_j fit (s, a)?
- *support*: parents put together from different rows, with what the model makes of them: do the data hold anything
  like this (s, a)? Column-mixed s' alone cannot tell.
- *random*: standard normal mu, the comparison of the paper's figure;
- *langevin*: mu moved downhill in energy from noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Whitening, dense_size, mu_width, views
from because_rl.models.layout import Layout
from because_rl.models.mixing import mix, shuffles
from because_rl.models.nets import SharedMLP, normal
from because_rl.models.objective import squared_norms
from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import Batch

Negatives = Literal["counterfactual", "random", "langevin"]


@dataclass(frozen=True)
class EnergyWeights:
    negatives: Negatives = "counterfactual"
    support: bool = True
    norm: float = 1e-4
    """lambda_EBM"""
    langevin_steps: int = 10
    langevin_rate: float = 0.1


class EnergyModel(eqx.Module):
    """One network per family, as in the world model."""

    layout: Layout = eqx.field(static=True)
    nets: list[SharedMLP]

    def __init__(self, layout: Layout, key: PRNGKeyArray, *, hidden: int = 128, places: int = 32):
        self.layout = layout
        keys = jax.random.split(key, len(layout.families))
        inputs = dense_size(layout, places)
        self.nets = [
            SharedMLP((inputs + mu_width(f), hidden, hidden, 1), len(f.members), k, last=0.1)
            for f, k in zip(layout.families, keys, strict=True)
        ]

    def __call__(self, features: list[Array], mu: list[Array], families: tuple[int, ...] | None = None) -> list[Array]:
        """Energies of the members of each family (or of `families` alone), for one row.

        `features` are the `family_features` of the row, `mu` the representation of a next state; both by family.
        """
        nets = self.nets if families is None else [self.nets[n] for n in families]
        return [
            jnp.tanh(net(jnp.concatenate([inputs, target], axis=1))[:, 0])
            for net, inputs, target in zip(nets, features, mu, strict=True)
        ]


def family_features(
    world: BilinearModel,
    stats: Statistics,
    gates: Gates,
    x: Float[Array, " columns"],
    families: tuple[int, ...] | None = None,
) -> list[Array]:
    """For each family the dense features of a row x = [s, a] that its members may see, (members, features)."""
    all_views = views(world.layout, stats, gates, x)
    return [world.features(all_views, n) for n in (range(len(world.layout.families)) if families is None else families)]


def predict_mu(world: BilinearModel, outputs: list) -> list[Array]:
    """mu of the next state as the world model expects it: C^T phi."""
    return [out.phi @ core for out, core in zip(outputs, world.core, strict=True)]


def energy_loss(
    weights: EnergyWeights,
    stats: Statistics,
    model: EnergyModel,
    fixed: tuple[BilinearModel, list[Whitening], Gates, Gates],
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """Equation 8 on a batch, and its two means.

    `fixed`: the world model, the whitening of its mu, its gates, and those of what energies see.
    """
    world, whitening, gates, possible = fixed
    x = jnp.concatenate([batch["state"], batch["action"]], axis=1)
    k1, k2, k3 = jax.random.split(key, 3)
    rows = jnp.concatenate([x, mix(world.layout, x, k2, k3)]) if weights.support else x
    n = len(x)
    features = jax.vmap(lambda row: family_features(world, stats, possible, row))(rows)
    expected = jax.vmap(lambda row: predict_mu(world, world(stats, gates, row)))(rows)
    happened = jax.vmap(lambda s: represent_white(world, stats, whitening, s))(batch["next_state"])

    real = [part[:n] for part in features]

    def judge(features: list[Array], mu: list[Array]) -> Array:
        return jnp.concatenate(jax.vmap(model)(features, mu), axis=1)

    negatives = _negative_mu(weights, lambda mu: judge(real, mu), happened, k1)
    # One call for all: what happened, what the model expects (on real, then on mixed rows), and what did not happen.
    energy = judge(
        [jnp.concatenate(parts) for parts in zip(real, features, real, strict=True)],
        [jnp.concatenate(parts) for parts in zip(happened, expected, negatives, strict=True)],
    ).mean(1)
    positive = energy[: 2 * n].mean()
    negative = energy[2 * n :].mean()
    return positive - negative + weights.norm * squared_norms(model), {"positive": positive, "negative": negative}


def represent_white(world: BilinearModel, stats: Statistics, whitening: list[Whitening], state: Array) -> list[Array]:
    """mu of a next state, whitened."""
    return [white(part) for white, part in zip(whitening, world.represent(stats, state), strict=True)]


def _negative_mu(
    weights: EnergyWeights, judge: Callable[[list[Array]], Array], happened: list[Array], key: PRNGKeyArray
) -> list[Array]:
    """mu of next states that did not follow, shaped as `happened`."""
    keys = jax.random.split(key, len(happened))
    if weights.negatives == "counterfactual":
        return [
            jnp.take_along_axis(part, shuffles(k, *part.shape[:2])[:, :, None], axis=0)
            for part, k in zip(happened, keys, strict=True)
        ]
    mu = [normal(k, part.shape) for part, k in zip(happened, keys, strict=True)]
    if weights.negatives == "random":
        return mu
    for n in range(weights.langevin_steps):
        slope = jax.grad(lambda mu: judge(mu).sum())(mu)
        fresh = jax.random.split(jax.random.fold_in(key, n), len(mu))
        mu = [
            m - weights.langevin_rate * g + 0.1 * weights.langevin_rate * normal(k, m.shape)
            for m, g, k in zip(mu, slope, fresh, strict=True)
        ]
    return [jax.lax.stop_gradient(m) for m in mu]
