"""Delphic: its uncertainty grows with confounding, and the variance among models of one world does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import delphic
from because_rl.algorithms.delphic import DelphicConfig
from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import make_gates
from because_rl.models.ensemble import make_bootstraps
from because_rl.models.policy import PolicyInput, action_distribution
from because_rl.models.prepared_data import action_statistics
from because_rl.planning.proposals import broadcast_over_seeds, full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import layout_and_statistics, line, untrained
from tests.support import LENGTH, logged

EFFECT = 0.5


def windy(strength, episodes=400):
    """One of two hidden winds blows through each episode, and whoever pushes feels it."""
    rng, n = stream(0, "hidden"), episodes * LENGTH
    wind = strength * np.repeat(rng.choice([-1.0, 1.0], episodes), LENGTH)
    x, push, noise = rng.normal(size=(3, n)) * np.array([[1.0], [0.5], [0.2]])
    return line(x, push + wind, x + EFFECT * (push + wind) + wind + noise)


def fitted_variances(strength):
    """(seeds,) delphic and epistemic variance, in squared units of x; (seeds, worlds) the effect of a push."""
    c = DelphicConfig(hidden=16, batch=128, world_steps=300, rate=5e-3, worlds=2, latent=2)
    data = windy(strength)
    layout, stats = layout_and_statistics(data)
    gates = broadcast_over_seeds(make_gates(layout, full_mask(data.factors)), 1)
    distribution, summary = (
        action_distribution(data.factors, action_statistics(data.action)),
        delphic.episode_summaries(data, stats),
    )
    policy_input = PolicyInput(data.factors, stats)
    stage = delphic.worlds_stage(c, layout, stats, policy_input, distribution, summary.shape[1])
    bootstraps = make_bootstraps(data, c.worlds * c.members, [0])
    rows = {"summary": jnp.asarray(summary[~data.held_out]), "bootstrap": bootstraps.episode}
    fixed = delphic.Fixed(gates, bootstraps.counts)
    models = Run([0], chunk=100).fit(stage, data.batch(~data.held_out) | rows, fixed).model

    def predict(models, gates, push):
        x = jnp.stack([jnp.zeros(()), push])
        expected = delphic.expectations(layout, stats, gates, models, x)[1] * stats.change[None]
        return expected[:, 0], jnp.stack(delphic.variances(expected, c.worlds, c.members))

    pushes = jax.jit(jax.vmap(jax.vmap(predict, (None, None, 0)), (0, 0, None)))
    expected, variance = (np.asarray(a) for a in pushes(models, gates, jnp.linspace(-0.8, 0.8, 9)))
    effect = (expected[:, -1] - expected[:, 0]) / 1.6
    return *variance.mean(1).T, effect.reshape(1, c.worlds, c.members).mean(2)


@pytest.mark.slow
def test_confounding_raises_the_delphic_variance_alone():
    none, much = fitted_variances(0.0), fitted_variances(0.5)
    assert (none[0] < 1e-3).all()
    assert (much[0] > 6 * none[0]).all()
    assert (much[0] > 0.01).all()
    assert (much[1] < 2e-3).all()
    assert (much[1] < 0.1 * much[0]).all()
    # Where nothing is hidden all worlds know the effect; else only the one that may suppose a wind.
    np.testing.assert_allclose(none[2], EFFECT, atol=0.06)
    np.testing.assert_allclose(much[2][:, 0], EFFECT + 0.5 * np.tanh(1.6) / 0.8, atol=0.1)  # E[wind | push]
    np.testing.assert_allclose(much[2][:, -1], EFFECT, atol=0.1)


@pytest.mark.long
def test_delphic_variance_grows_with_the_strength_of_confounding():
    none, little, much = (fitted_variances(strength)[0] for strength in (0.0, 0.25, 0.5))
    assert (little > 3 * none).all()
    assert (much > 2 * little).all()


def test_variance_between_worlds_is_what_members_do_not_explain():
    rng = stream(0, "variances")
    world, member = rng.normal(size=(400, 1, 50)), 0.5 * rng.normal(size=(400, 3, 50))
    both = delphic.variances(jnp.asarray((world + member).reshape(1200, 50), jnp.float32), 400, 3)
    np.testing.assert_allclose(both, [1.0, 0.25], rtol=0.03)
    alike = delphic.variances(jnp.asarray(member.reshape(1200, 50), jnp.float32), 400, 3)
    assert float(alike[0]) < 0.01
    assert delphic.variances(jnp.ones((2, 3)), 1, 2) == (0.0, 0.0)


def test_summaries_are_means_and_spreads_of_episodes():
    data = windy(1.0, 20)
    _, stats = layout_and_statistics(data)
    summary = delphic.episode_summaries(data, stats)
    assert summary.shape == (len(data), 2 * 3)
    fifth = data.episode == 5
    push = (data.action[fifth, 0] - float(stats.mean[1])) / float(stats.scale[1])
    np.testing.assert_allclose(summary[fifth][:, [1, 4]], np.tile([push.mean(), push.std()], (LENGTH, 1)), rtol=1e-4)


def doors(n=100):
    """Two things on the same three cells, at random."""
    cells = pack(("agent", 3, "categorical", "cells"), ("door", 3, "binary", "cells"))
    goal, move = (GoalFactor("open", 0, 3, "binary", factor="door"),), pack(("move", 2, "categorical"))
    factors, rng = FactorSpec(cells, move, goal, codes=((1.0, 0.0), (0.0, 1.0))), stream(0, "doors")
    state = np.hstack([np.eye(3)[rng.integers(0, 3, n)], rng.integers(0, 2, (n, 3))])
    return logged(factors, state, np.eye(2)[rng.integers(0, 2, n)], state, rng.integers(0, 2, (n, 3)))


def test_z_moves_every_kind_of_factor_around_its_mean():
    data = doors()
    layout, stats = layout_and_statistics(data)
    gates, distribution = (
        make_gates(layout, full_mask(data.factors)),
        action_distribution(data.factors, action_statistics(data.action)),
    )
    c = DelphicConfig(hidden=8, latent=2)
    world = untrained(lambda key: delphic.World(layout, key, c, 6, 10, distribution))
    x = jnp.concatenate([jnp.asarray(data.state[0]), jnp.asarray(data.action[0])])
    summary = jnp.asarray(stream(0, "z").normal(size=(64, 6)), jnp.float32)

    def compute(key):
        z = jnp.asarray([[0.0, 0.0], [1.0, -2.0], [-1.0, 2.0]])
        values = jax.vmap(lambda z: [out.value for out in world(stats, gates, x, z)])(z)
        return values, world.encode(summary, key)

    values, (z, kl) = jax.jit(compute)(jax.random.key(0))
    for at_zero, one, other in values:
        assert (np.abs(one - at_zero).max(-1) > 1e-4).all()
        np.testing.assert_allclose((one + other) / 2, at_zero, atol=1e-5)
    np.testing.assert_allclose(z.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(z.var(0), 1.0, atol=1e-3)
    assert float(kl) > 0


def test_the_papers_table():
    for world, kl in (("lift", 1e-4), ("unlock", 1e-4), ("crash", 5e-5)):
        c = make_method("delphic", world=world, tuned=False).config
        assert (c.worlds, c.kl, c.pessimism) == (5, kl, None)  # lambda is set by held-out data
