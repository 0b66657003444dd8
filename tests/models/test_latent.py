"""Latent blocks: the evidence bound, the samples and MINE against plain NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.models import latent
from because_rl.rng import stream
from tests.algorithms.builders import layout_and_statistics, room, untrained


@pytest.fixture(scope="module")
def two_blocks():
    """Data, statistics, and two blocks of which the first holds hand and bird, the second weather and plane."""
    data = room(4)
    layout, stats = layout_and_statistics(data)
    model = untrained(lambda key: latent.Blocks(layout, key, 8, ((1, 0), (0, 1)), (1, 0), 0.1))
    logits = jnp.asarray([[20.0, 0.0, 20.0, 0.0], [0.0, 20.0, 0.0, 20.0]])
    model = eqx.tree_at(lambda m: m.log_noise, model, jnp.full((2, 4), np.log(0.1)))
    return data, stats, with_logits(model, logits)


def with_logits(model, logits):
    return eqx.tree_at(lambda m: m.assignment_logits, model, logits)


def test_kl_is_that_of_two_gaussians(two_blocks):
    data, stats, model = two_blocks
    batch = data.batch(data.step > 0)  # no first states

    def compute(model):
        assignment = latent.sample_assignments(model, len(batch["state"]), jax.random.key(1))

        def by_block(state, action, assignment):
            return model.predict_by_block(stats, assignment, jnp.concatenate([state, action]), None)[0]

        outputs = jax.vmap(by_block)(batch["state"], batch["action"], assignment)
        return latent.evidence_bound(stats, model, assignment, batch, 0.1), outputs

    bound, outputs = jax.jit(compute)(model)
    mean, v = (
        np.asarray(outputs.value)[..., 0],
        np.exp(2 * np.asarray(outputs.spread))[..., 0],
    )  # (rows, blocks, factors)
    change = np.asarray((batch["next_state"] - batch["state"]) / stats.change[None])[:, None]
    q, p = 0.1**2, 0.1**2 + v
    kl = np.log(np.sqrt(p / q)) + (q + (change - mean) ** 2) / (2 * p) - 0.5
    inside = np.asarray([[1, 0, 1, 0], [0, 1, 0, 1]])
    np.testing.assert_allclose(bound.kl, (kl.mean(0) * inside).sum(1), rtol=1e-3)
    np.testing.assert_allclose(bound.reconstruction, 4 * 0.5, rtol=1e-3)  # noise as large as the decoder's, 4 columns
    assert np.isfinite(bound.assignment_nll)


def test_assignments_are_sampled_by_a_power_and_have_gradients(two_blocks):
    probability = np.asarray([[0.2, 0.5, 0.9, 0.0001], [0.8, 0.5, 0.1, 0.9999]])
    model = with_logits(two_blocks[2], jnp.log(jnp.asarray(probability)))

    def sample(model, power):
        def first(model):
            return latent.sample_assignments(model, 10, jax.random.key(0), power)[:, 0, 0].mean()

        samples = latent.sample_assignments(model, 4000, jax.random.key(0), power)
        return samples, jax.grad(first)(model).assignment_logits

    compiled = jax.jit(sample)
    for power in (1.0, 4.0):
        samples, slope = compiled(model, power)
        np.testing.assert_allclose(samples.sum(1), 1.0, atol=1e-5)
        np.testing.assert_allclose(samples.mean(0), probability**power / (probability**power).sum(0), atol=0.03)
        np.testing.assert_allclose(slope[0, 0], 0.2 * 0.8, rtol=1e-3)


def test_information_bound_against_numpy():
    rng = stream(0, "mine")
    x, y = rng.normal(size=(2, 50, 3)).astype(np.float32)

    def network(row):
        return row[:1] * row[3:4] + 0.5 * row[2:3]

    value = latent.information_bound(network, jnp.asarray(x), jnp.asarray(y))
    joint, shuffled = (x[:, 0] * part[:, 0] + 0.5 * x[:, 2] for part in (y, np.roll(y, 1, 0)))
    np.testing.assert_allclose(value, joint.mean() - np.log(np.exp(shuffled).mean()), rtol=1e-5)


def test_each_seed_has_the_mask_of_its_own_blocks():
    layout, _ = layout_and_statistics(room(1))
    masks = latent.masks_from_assignment(layout, np.asarray([[0.9, 0.1, 0.2, 0.4], [0.6, 0.1, 0.7, 0.3]]))
    np.testing.assert_array_equal(masks[:, :, 0], [[1, 0, 0, 0, 1], [1, 0, 1, 0, 1]])  # to the hand
    for mask in masks:
        np.testing.assert_array_equal(np.diag(mask), 1)
