"""Features with mean 0 and covariance 1: they can neither shrink nor grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LEAST_PIVOT = 3e-6
"""As a share of the mean variance, a third of the ridge. Where features are copies of each other, as those of a
continuous factor with two values, rounding of the sums may take away more than the ridge."""


class Whitening(NamedTuple):
    """mu = map (raw - mean), member by member."""

    mean: Float[Array, "members width"]
    map: Float[Array, "members width width"]

    def __call__(self, features: Float[Array, "members width"]) -> Array:
        return jnp.einsum("mkl,ml->mk", self.map, features - self.mean)


def whitenings(features: Sequence[Float[Array, "rows members width"]]) -> list[Whitening]:
    """For each family the map after which its features have mean 0 and covariance 1 over the rows, member by member."""
    means = [f.mean(0) for f in features]
    covariances = []
    for f, mean in zip(features, means, strict=True):
        centred, width = f - mean[None], f.shape[2]
        # In full precision: where a GPU rounds products to 11 bits the root of a narrow covariance may not exist.
        covariance = jnp.einsum("bmk,bml->mkl", centred, centred, precision="highest") / len(f)
        ridge = 1e-5 * jnp.trace(covariance, axis1=1, axis2=2)[:, None, None] / width + 1e-8
        covariances.append(covariance + ridge * jnp.eye(width)[None])
    return [Whitening(mean, root) for mean, root in zip(means, inverse_roots(covariances), strict=True)]


def inverse_roots(covariances: Sequence[Float[Array, "members width width"]]) -> list[Array]:
    """L^-1 of each covariance L L^T, by Gaussian elimination of all of them at once.

    LAPACK is not called for it: on two cores, two of its triangular solves of batches that run concurrently wait for
    each other's threads for ever, as they did in the training of ten seeds of five worlds each.
    """
    widths = [c.shape[1] for c in covariances]
    most = max(widths)
    padding = [jnp.diag(jnp.arange(most) >= width).astype(jnp.float32) for width in widths]
    padded = [
        jnp.pad(c, ((0, 0), (0, most - width), (0, most - width))) + fill[None]
        for c, width, fill in zip(covariances, widths, padding, strict=True)
    ]
    matrices = jnp.concatenate(padded)
    means = [jnp.trace(c, axis1=1, axis2=2) / width for c, width in zip(covariances, widths, strict=True)]
    least = LEAST_PIVOT * jnp.concatenate(means)

    def eliminate(rows: Array, k: Array) -> tuple[Array, None]:
        """Column k below the diagonal, from [covariance, identity] side by side."""
        pivot = jnp.maximum(rows[:, k, k], least)
        factor = jnp.where(jnp.arange(most) > k, rows[:, :, k] / pivot[:, None], 0.0)
        return rows - factor[:, :, None] * rows[:, k][:, None], None

    identity = jnp.broadcast_to(jnp.eye(most), matrices.shape)
    rows, _ = jax.lax.scan(eliminate, jnp.concatenate([matrices, identity], axis=2), jnp.arange(most))
    pivots = jnp.maximum(jnp.diagonal(rows[:, :, :most], axis1=1, axis2=2), least[:, None])
    maps = jnp.split(rows[:, :, most:] / jnp.sqrt(pivots)[:, :, None], np.cumsum([len(c) for c in covariances])[:-1])
    return [m[:, :width, :width] for m, width in zip(maps, widths, strict=True)]
