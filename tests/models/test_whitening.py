"""Features after whitening, and how the maps are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.models.whitening import inverse_roots, whitenings


def test_whitening():
    mix = jnp.array([[1.0, 2, 0], [0, 1, 0], [0, 0.5, 0.3]])
    features = [1.0 + jax.random.normal(jax.random.key(0), (400, 2, 3)) @ mix]
    features.append(features[0][:, :1, :2] ** 3)
    for f, whitening in zip(features, whitenings(features), strict=True):
        white = jax.vmap(whitening)(f)
        moment = jnp.einsum("bmk,bml->mkl", white, white) / 400
        np.testing.assert_allclose(white.mean(0), np.zeros(f.shape[1:]), atol=1e-4)
        np.testing.assert_allclose(moment, np.stack([np.eye(f.shape[2])] * f.shape[1]), atol=0.02)


def test_inverse_roots_are_those_of_cholesky():
    rng = np.random.default_rng(0)
    covariances = [np.stack([np.cov(rng.normal(size=(width, 40))) for _ in range(3)]) for width in (5, 2)]
    for covariance, root in zip(covariances, inverse_roots([jnp.float32(c) for c in covariances]), strict=True):
        np.testing.assert_allclose(root, np.linalg.inv(np.linalg.cholesky(covariance)), atol=1e-4)


def test_no_program_with_whitening_calls_lapack():
    """Its batched triangular solves, run concurrently on two cores, wait for each other for ever."""

    def loss(features):
        return sum((whitening(features[0]) ** 4).sum() for whitening in whitenings([features]))

    program = jax.jit(jax.grad(loss)).lower(jnp.ones((8, 2, 3))).as_text()
    assert "lapack" not in program
    assert "custom_call" not in program


def test_features_that_copy_each_other_are_whitened_too():
    """Those of a continuous factor with two values; rounding left their second pivot below 0."""
    rng = np.random.default_rng(17)
    shift = rng.normal(size=2)
    rare = (rng.random(6500) < 0.006)[:, None, None].astype(np.float32)
    copies = np.array([0.5, 0.36]) * rng.choice([-1, 1], 2) * (rare - 0.006) / 0.077 + shift
    whitening = jax.jit(lambda f: whitenings([f])[0])(jnp.asarray(copies, jnp.float32))
    white = jax.vmap(whitening)(jnp.asarray(copies, jnp.float32))
    assert white[:, 0, 0].std() == pytest.approx(1.0, abs=0.02)
    assert jnp.isfinite(white).all()
