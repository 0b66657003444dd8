"""MnM and Delphic: each doubts what its paper says should be doubted, and little else."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import delphic, mnm
from because_rl.algorithms.delphic import DelphicConfig
from because_rl.algorithms.mnm import MnM, MnMConfig
from because_rl.algorithms.registry import configure, make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.policy import PolicyInput, action_distribution
from because_rl.models.prepared_data import statistics
from because_rl.planning.proposals import broadcast_over_seeds
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.training.stage import skeleton, start
from tests.support import LENGTH, largest, logged, of_seed, quick

LINE = FactorSpec(
    pack(("x", 1, "continuous")),
    pack(("push", 1, "continuous")),
    (GoalFactor("there", 0, 1, "continuous", factor="x"),),
)


def line(x, push, after):
    return logged(LINE, x[:, None], push[:, None], after[:, None], np.zeros((len(x), 1)))


def doors(n=100):
    """Two things on the same three cells, at random."""
    cells = pack(("agent", 3, "categorical", "cells"), ("door", 3, "binary", "cells"))
    goal, move = (GoalFactor("open", 0, 3, "binary", factor="door"),), pack(("move", 2, "categorical"))
    factors, rng = FactorSpec(cells, move, goal, codes=((1.0, 0.0), (0.0, 1.0))), stream(0, "doors")
    state = np.hstack([np.eye(3)[rng.integers(0, 3, n)], rng.integers(0, 2, (n, 3))])
    return logged(factors, state, np.eye(2)[rng.integers(0, 2, n)], state, rng.integers(0, 2, (n, 3)))


def prepared(data, seeds=2):
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    everything = np.ones((len(data.factors.inputs), len(data.factors.targets)), np.float32)
    return layout, stats, broadcast_over_seeds(make_gates(layout, everything), seeds)


# What is fitted here is small, and all tests of a method fit it alike: so they share a compiled program.
FIT = {"hidden": 16, "batch": 128, "world_steps": 300, "rate": 5e-3}
DELPHIC = DelphicConfig(**FIT, worlds=2, latent=2)
MNM = MnMConfig(**FIT, discriminator_rate=5e-3)
CHUNK = 100
PLANNED = {"behaviour_steps": 1, "value_steps": 1, "planner.population": 16, "planner.horizon": 3}


# Delphic ---------------------------------------------------------------------------------------------
EFFECT = 0.5


def hidden(strength, episodes=200):
    """One of two hidden winds blows through each episode, and whoever pushes feels it."""
    rng, n = stream(0, "hidden"), episodes * LENGTH
    wind = strength * np.repeat(rng.choice([-1.0, 1.0], episodes), LENGTH)
    x, push, noise = rng.normal(size=(3, n)) * np.array([[1.0], [0.5], [0.2]])
    return line(x, push + wind, x + EFFECT * (push + wind) + wind + noise)


def asked(strength):
    """(seeds,) delphic and epistemic variance, in squared units of x; (seeds, worlds) the effect of a push."""
    data = hidden(strength)
    layout, stats, gates = prepared(data)
    c = DELPHIC
    law, seen = action_distribution(data.factors, data.action), delphic.summaries(data, stats)
    stage = delphic.worlds_stage(c, layout, stats, PolicyInput(data.factors, stats), law, seen.shape[1])
    batch = data.batch(np.ones(len(data), bool)) | {"summary": jnp.asarray(seen)}
    models = Run([0, 1], chunk=CHUNK).fit(stage, batch, gates).model
    pushes = jnp.linspace(-0.8, 0.8, 9)

    def answer(models, gates, push):
        x = jnp.stack([jnp.zeros(()), push])
        expected = delphic.expectations(layout, stats, gates, models, x)[1] * stats.change[None]
        return expected[:, 0], jnp.stack(delphic.variances(expected, c.worlds, c.members))

    every = quick(jax.vmap(jax.vmap(answer, (None, None, 0)), (0, 0, None)))
    expected, doubt = (np.asarray(a) for a in every(models, gates, pushes))
    effect = (expected[:, -1] - expected[:, 0]) / 1.6
    return *doubt.mean(1).T, effect.reshape(2, c.worlds, c.members).mean(2)


@pytest.mark.slow
def test_delphic_doubt_grows_with_confounding_and_the_ensembles_does_not():
    none, some, much = (asked(strength) for strength in (0.0, 0.25, 0.5))
    assert (none[0] < 1e-3).all()
    assert (some[0] > 3 * none[0]).all()
    assert (much[0] > 2 * some[0]).all()
    assert (much[0] > 0.01).all()
    assert (much[1] < 2e-3).all()
    assert (much[1] < 0.1 * much[0]).all()
    # Where nothing is hidden all worlds know the effect; else only the one that may suppose a wind.
    np.testing.assert_allclose(none[2], EFFECT, atol=0.06)
    np.testing.assert_allclose(much[2][:, 0], EFFECT + 0.5 * np.tanh(1.6) / 0.8, atol=0.1)  # E[wind | push]
    np.testing.assert_allclose(much[2][:, -1], EFFECT, atol=0.1)


def test_variance_between_worlds_is_what_the_members_do_not_explain():
    rng = stream(0, "variances")
    world, member = rng.normal(size=(400, 1, 50)), 0.5 * rng.normal(size=(400, 3, 50))
    found = delphic.variances(jnp.asarray((world + member).reshape(1200, 50), jnp.float32), 400, 3)
    np.testing.assert_allclose(found, [1.0, 0.25], rtol=0.03)
    alike = delphic.variances(jnp.asarray(member.reshape(1200, 50), jnp.float32), 400, 3)
    assert float(alike[0]) < 0.01
    assert delphic.variances(jnp.ones((2, 3)), 1, 2) == (0.0, 0.0)


def test_summaries_tell_of_the_whole_episode():
    data = hidden(1.0, 20)
    _, stats, _ = prepared(data)
    seen = delphic.summaries(data, stats)
    assert seen.shape == (len(data), 2 * 3)
    fifth = data.episode == 5
    push = (data.action[fifth, 0] - float(stats.mean[1])) / float(stats.scale[1])
    np.testing.assert_allclose(seen[fifth][:, [1, 4]], np.tile([push.mean(), push.std()], (LENGTH, 1)), rtol=1e-4)


def test_z_moves_what_it_may():
    """By nothing on average over the prior, and in every kind of factor."""
    data = doors()
    layout, stats, gates = prepared(data, 1)
    law = action_distribution(data.factors, data.action)
    x = jnp.concatenate([jnp.asarray(data.state[0]), jnp.asarray(data.action[0])])
    seen = jnp.asarray(stream(0, "z").normal(size=(64, 6)), jnp.float32)

    def ask(key):
        world = delphic.World(layout, key, DelphicConfig(hidden=8, latent=2), 6, 10, law)
        z = jnp.asarray([[0.0, 0.0], [1.0, -2.0], [-1.0, 2.0]])
        moved = jax.vmap(lambda z: [out.value for out in world(stats, of_seed(gates, 0), x, z)])(z)
        return moved, world.encode(seen, key)

    moved, (z, kl) = quick(ask)(jax.random.key(0))
    for still, one, other in moved:
        assert (np.abs(one - still).max(-1) > 1e-4).all()
        np.testing.assert_allclose((one + other) / 2, still, atol=1e-5)
    np.testing.assert_allclose(z.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(z.var(0), 1.0, atol=1e-3)
    assert float(kl) > 0


# MnM -------------------------------------------------------------------------------------------------
def two_ways(n=3000):
    """Left of 0 a push moves what it pushes; right of 0 it jumps by 1 to either side, which no Gaussian can tell."""
    rng = stream(0, "two ways")
    x, push = rng.uniform(-1, 1, (2, n))
    return line(x, push, x + np.where(x > 0, rng.choice([-1.0, 1.0], n), 0.5 * push) + 0.1 * rng.normal(size=n))


@pytest.mark.slow
def test_the_log_ratio_finds_the_wrong_transitions_and_the_penalty_follows():
    data = two_ways()
    layout, stats, _ = prepared(data)
    agent = MnM(configure(MNM, PLANNED)).fit(data, Run([0, 1], chunk=CHUNK))
    assert ((agent.pessimism > 0) & (agent.pessimism <= 1)).all()
    held = data.batch(data.held_out)

    def ask(p, state, action):
        guess, _, penalty = agent.learned.successor(p, state, action)
        ratio = p["discriminator"](layout, stats, state, action, guess)
        return guess[0] - state[0], ratio, penalty, agent.learned.imagine(p, state, action)[1]

    every = quick(jax.vmap(jax.vmap(ask, (None, 0, 0)), (0, None, None)))
    move, ratio, penalty, same = (np.asarray(a) for a in every(agent.parameters, held["state"], held["action"]))
    np.testing.assert_array_equal(penalty, same)
    x, push = data.state[data.held_out, 0], data.action[data.held_out, 0]
    left, right = x < -0.1, x > 0.1
    np.testing.assert_allclose(move[:, left], np.tile(0.5 * push[left], (2, 1)), atol=0.2)
    assert (np.abs(ratio[:, left]).mean(1) < 0.3).all()
    assert (penalty[:, left].mean(1) < 0.1).all()
    assert (ratio[:, right].mean(1) < -4).all()
    assert (penalty[:, right].mean(1) > 0.8).all()


def test_the_penalty_is_the_log_ratio_between_the_rewards_of_failure_and_success():
    ratio = jnp.asarray([3.0, 0.0, np.log(0.1), np.log(0.01), -50.0])
    np.testing.assert_allclose(mnm.penalty(0.01, ratio), [0.0, 0.0, 0.5, 1.0, 1.0], atol=1e-6)


def test_draws_follow_the_likelihoods():
    factors = FactorSpec(
        pack(("x", 2, "continuous"), ("key", 3, "categorical", "key", True), ("flag", 1, "binary")),
        pack(("push", 1, "continuous")),
    )
    layout, rng = Layout(factors), stream(0, "draws")
    x, key, flag = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, 2), (1, 4), (1, 5, 1)))
    spread, none = jnp.asarray([[-1.0, 0.5]]), jnp.zeros((1, 0))
    outputs = [Outputs(none, x, spread), Outputs(none, key, none), Outputs(none, flag, none)]
    stats = statistics(layout, rng.normal(size=(9, 6)), np.ones((9, 1)), rng.normal(size=(9, 6)))
    state, noise = jnp.arange(6.0), jnp.asarray(rng.random((5000, mnm.noise_size(layout))), jnp.float32)
    drawn = quick(lambda noise: jax.vmap(partial(mnm.draw, layout, stats, outputs, state))(noise))(noise)
    moved = (drawn[:, :2] - state[None, :2]) / stats.change[None, :2]
    np.testing.assert_allclose(moved.mean(0), x[0], atol=0.07)
    np.testing.assert_allclose(moved.std(0), np.exp(spread[0]), rtol=0.05)
    np.testing.assert_allclose(drawn[:, 2:5].mean(0), jax.nn.softmax(key[0])[:3], atol=0.03)
    np.testing.assert_allclose(drawn[:, 5].mean(), jax.nn.sigmoid(flag.mean()), atol=0.03)
    assert set(np.unique(drawn[:, 2:])) == {0.0, 1.0}
    assert set(np.unique(drawn[:, 2:5].sum(1))) == {0.0, 1.0}  # the key may be nowhere


def test_all_climb_the_bound_and_nobody_bends_its_judge():
    data = two_ways(100)
    layout, stats, gates = prepared(data, 1)
    stage = mnm.mnm_stage(MnMConfig(hidden=8, batch=32), layout, stats)
    nets, batch = of_seed(start(stage, gates, [0]).params, 0), data.batch(data.episode < 4)
    rest = skeleton(stage, gates)

    def terms(nets):
        return stage.loss(eqx.combine(nets, rest), of_seed(gates, 0), batch, jax.random.key(2))[1]

    slopes = quick(jax.jacrev(terms))(nets)
    for name in ("realism", "hope"):
        assert largest(slopes[name].model) > 1e-5
        assert largest(slopes[name]._replace(model=0.0)) == 0.0
    for name in ("discriminator", "value"):
        assert largest(getattr(slopes[name], name)) > 1e-5
        assert largest(slopes[name]._replace(**{name: 0.0})) == 0.0


def test_the_papers_table():
    for world, hidden, rate, weight in (
        ("lift", 256, 1e-4, 1e-4),
        ("unlock", 64, 1e-3, 1e-4),
        ("crash", 128, 1e-4, 5e-5),
    ):
        c = make_method("mnm", world=world, tuned=False).config
        assert (c.hidden, c.discriminator_rate, c.discriminator_clip) == (hidden, rate, 0.25)
        c = make_method("delphic", world=world, tuned=False).config
        assert (c.worlds, c.pessimism, c.kl) == (5, weight, weight)
