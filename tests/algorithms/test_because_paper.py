"""The paper's algorithm on worlds whose core, mask and hidden causes are known."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.because_paper import (
    BecausePaperConfig,
    average_mask,
    estimate_masks,
    features_stage,
)
from because_rl.discovery.discover import discover
from because_rl.factors import FactorSpec, pack
from because_rl.models.bilinear_score import ScoreModel
from because_rl.models.layout import Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.prepared_data import prepare
from because_rl.planning.proposals import full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import layout_and_statistics, untrained
from tests.support import small


def transitions(factors, state, action, after, length=10):
    return Transitions.from_arrays(state, action, after, np.arange(len(state)) // length, factors=factors)


def ones(data):
    return jnp.asarray(full_mask(data.factors))


def test_probabilities_of_all_next_states_sum_to_one():
    data = small("unlock")
    layout, stats = layout_and_statistics(data)
    model = untrained(lambda key: ScoreModel(layout, key, hidden=8, phi=4, places=4))
    agent, key, cue = np.eye(4), np.vstack([np.eye(4), np.zeros(4)]), np.eye(3)
    doors = np.array(list(product((0, 1), repeat=4)))
    every = np.array([np.concatenate(parts) for parts in product(agent, key, doors, cue)], np.float32)
    state, action = jnp.asarray(data.state[0]), jnp.asarray(data.action[0])

    def log_chance(after):
        outputs = model(stats, ones(data), jnp.concatenate([state, action]))
        return -negative_log_likelihood(layout, stats, outputs, state, after, weighted=False).sum()

    nll = -jax.jit(jax.vmap(log_chance))(jnp.asarray(every))
    assert float(jnp.exp(-nll).sum()) == pytest.approx(1, abs=1e-4)
    assert float(jnp.exp(-nll).max()) < 0.9


CORE = np.array([[2.0, 0.0, 0.0], [-1.8, 2.0, 0.0], [0.0, 0.0, 2.2], [0.0, -1.6, 1.8]])
"""(inputs, targets) of `switches`; the last input is an action"""


def switches(n, seed=0):
    """Three lamps, each lit with log-odds that are a sum of its parents' entries of CORE, less a half of them."""
    rng = stream(seed, "switches")
    factors = FactorSpec(pack(("a", 1, "binary"), ("b", 1, "binary"), ("c", 1, "binary")), pack(("press", 1, "binary")))
    x = rng.integers(0, 2, (n, 4)).astype(float)
    after = rng.random((n, 3)) < 1 / (1 + np.exp(-(x - 0.5) @ CORE))
    return transitions(factors, x[:, :3], x[:, 3:], after.astype(float))


def core_of(model, stats, mask):
    """(inputs, targets): what each binary input adds to the score of each target, in one seed."""
    low, high = (model.phi(stats, jnp.full(model.layout.size, value)) for value in (0.0, 1.0))
    entries = [jnp.einsum("ip,mipq->im", high - low, core) for core in model.core]
    return np.asarray(mask * jnp.concatenate(entries, axis=1))


def first_round(data, mask, **settings):
    """The features of one round under a mask, in one seed, and what they were fitted with."""
    config = BecausePaperConfig(alternations=2, every=1, **settings)
    prepared, run = prepare(data), Run([0])
    return config, prepared, run, run.fit(features_stage(config, prepared, 1), prepared.train, (None, mask[None]))


@pytest.mark.parametrize(
    ("n", "steps", "within"), [(3000, 150, 0.4), pytest.param(50_000, 8000, 0.05, marks=pytest.mark.long)]
)
def test_a_bilinear_world_gives_back_its_core_and_mask(n, steps, within):
    data = switches(n)
    mask = average_mask(BecausePaperConfig(threshold=2e-3), data, Layout(data.factors))
    np.testing.assert_array_equal(mask > 0, CORE != 0)
    sizes = {"hidden": 8, "phi": 4, "world_steps": steps, "batch": 512, "rate": 1e-2, "norm": 1e-6}
    _, prepared, _, model = first_round(data, jnp.asarray(mask, jnp.float32), **sizes)
    core = core_of(jax.tree.map(lambda a: a[0], model), prepared.stats, mask)
    np.testing.assert_allclose(core, CORE, atol=within)


MIXING = np.array([[1.0, 0.6, 0.0], [0.0, 1.0, 0.6], [0.6, 0.0, 1.0]])


def mixed(n=2000, seed=0):
    """Three positions, each pushed by one force; the log has sums of forces. A push saturates."""
    rng = stream(seed, "mixed")
    positions = pack(*((f"x{j}", 1, "continuous") for j in range(3)))
    factors = FactorSpec(positions, pack(*((f"f{j}", 1, "continuous") for j in range(3))))
    x, force = rng.normal(size=(n, 3)), 2.0 * rng.normal(size=(n, 3))
    after = x + np.tanh(1.5 * force) + 0.05 * rng.normal(size=(n, 3))
    return transitions(factors, x, force @ MIXING.T, after)


def f1(mask, truth):
    kept = mask >= 0.5
    return 2 * (kept & truth).sum() / (kept.sum() + truth.sum())


@pytest.mark.slow
@pytest.mark.parametrize(("n", "steps"), [(700, 400), pytest.param(2000, 2000, marks=pytest.mark.long)])
def test_features_take_mixed_factors_apart_before_they_are_tested(n, steps):
    data, truth = mixed(n), np.vstack([np.eye(3), np.eye(3)]) > 0
    sizes = {"hidden": 16, "phi": 8, "world_steps": steps, "rate": 5e-3, "norm": 1e-3}
    config, prepared, run, model = first_round(data, ones(data), **sizes)
    mask = np.asarray(estimate_masks(config, data, run, prepared.stats, model, 1))[0]
    assert f1(np.ones_like(mask), truth) == pytest.approx(0.5)  # M_0
    assert f1(mask, truth) > 0.9
    if n == 2000:
        assert f1(average_mask(config, data, Layout(data.factors)), truth) < 0.9  # of the factors as they were logged


def two_seasons(episodes=400, seed=0):
    """A hidden season drives both what is done and what happens; the action itself does nothing."""
    rng = stream(seed, "seasons")
    factors = FactorSpec(pack(("level", 1, "continuous")), pack(("valve", 1, "continuous")))
    season = (np.arange(episodes * 10) >= episodes * 5)[:, None].astype(float)
    level, noise = rng.normal(size=(2, episodes * 10, 1))
    valve = season + 0.5 * rng.normal(size=(episodes * 10, 1))
    return transitions(factors, level, valve, 0.5 * level + season + 0.5 * noise)


def test_m_bar_over_batches_drops_what_a_hidden_season_made():
    data, config = two_seasons(), BecausePaperConfig(test="fisherz", batches=2)
    whole = discover(data, test="fisherz", threshold=config.threshold, batches=0)
    assert whole.matrix.tolist() == [[True], [True]]  # valve -> level, which is false
    np.testing.assert_allclose(average_mask(config, data, Layout(data.factors)), [[1], [0]], atol=0.01)
