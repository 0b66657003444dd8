"""One stage of training: many seeds as one program, and what no gradient moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.training.stage import Stage, fit
from tests.training.line import fixed, line_data, line_stage


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_chunks_of_one_length_are_one_program(seeds):
    def init(key, fixed):
        return {"w": jax.random.normal(key, (3,)), "b": jnp.full((1,), 0.5)}  # the type of b is weak

    traced, after = [], []

    def loss(model, fixed, batch, key):
        traced.append(key)
        return ((batch["x"] @ model["w"] + model["b"] - batch["y"]) ** 2).mean(), {}

    stage = Stage("chunks", init, loss, steps=40, batch=8)
    data = {"x": jnp.ones((20, 3)), "y": jnp.ones(20)}
    fit(stage, data, jnp.zeros(len(seeds)), seeds, chunk=10, report=lambda *progress: after.append(len(traced)))
    assert len(after) == 4
    assert len(set(after)) == 1


def test_seeds_trained_together_equal_single_runs():
    data, stage, seeds = line_data(), line_stage(), [5, 8]
    together = fit(stage, data, fixed(2), seeds, chunk=10)
    for k, seed in enumerate(seeds):
        alone = fit(stage, data, fixed(2)[k : k + 1], [seed], chunk=10)
        for a, b in zip(jax.tree.leaves(together.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(a[k], b[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(together.params.w[0], together.params.w[1], atol=1e-4)


def test_after_hook_moves_what_no_gradient_moves():
    """Against plain NumPy: slow_t = 0.9 slow_{t-1} + 0.1 w_t."""
    models = []
    fit(
        line_stage(20), line_data(), fixed(2), [0, 1], chunk=1, report=lambda stage, p, metrics: models.append(p.params)
    )
    slow = np.asarray(models[0].slow)
    for model in models[1:]:
        slow = 0.9 * slow + 0.1 * np.asarray(model.w)
        np.testing.assert_allclose(model.slow, slow, rtol=1e-5)
    assert float(models[-1].clock[0]) == 20
