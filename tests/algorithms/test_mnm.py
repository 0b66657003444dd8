"""MnM: the log-ratio finds transitions that the model cannot have right, and each network moves by its own loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import mnm
from because_rl.algorithms.mnm import MnMConfig
from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, pack
from because_rl.models.bilinear import Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import statistics
from because_rl.planning.proposals import broadcast_over_seeds, full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import layout_and_statistics, line, untrained
from tests.support import largest


def two_ways(n=3000):
    """Left of 0 a push moves the point; right of 0 it jumps by 1 to either side, which no Gaussian can predict."""
    rng = stream(0, "two ways")
    x, push = rng.uniform(-1, 1, (2, n))
    return line(x, push, x + np.where(x > 0, rng.choice([-1.0, 1.0], n), 0.5 * push) + 0.1 * rng.normal(size=n))


@pytest.mark.slow
def test_the_penalty_falls_on_transitions_the_model_has_wrong():
    data, config = two_ways(), MnMConfig(hidden=16, batch=128, world_steps=300, rate=5e-3, discriminator_rate=5e-3)
    layout, stats = layout_and_statistics(data)
    gates = broadcast_over_seeds(make_gates(layout, full_mask(data.factors)), 2)
    nets = Run([0, 1], chunk=100).fit(mnm.mnm_stage(config, layout, stats), data.batch(~data.held_out), gates)
    parameters = {"model": nets.model, "discriminator": nets.discriminator, "gates": gates}
    held = data.batch(data.held_out)

    def predict(p, state, action):
        outputs, penalty = mnm.MnM(config).predict(layout, stats, p, state, action)
        change = outputs[0].value[0] * stats.change
        return change[0], p["discriminator"](layout, stats, state, action, state + change), penalty

    rows = jax.jit(jax.vmap(jax.vmap(predict, (None, 0, 0)), (0, None, None)))
    change, ratio, penalty = (np.asarray(a) for a in rows(parameters, held["state"], held["action"]))
    x, push = data.state[data.held_out, 0], data.action[data.held_out, 0]
    left, right = x < -0.1, x > 0.1
    np.testing.assert_allclose(change[:, left], np.tile(0.5 * push[left], (2, 1)), atol=0.2)
    assert (np.abs(ratio[:, left]).mean(1) < 0.3).all()
    assert (penalty[:, left].mean(1) < 0.1).all()
    assert (ratio[:, right].mean(1) < -4).all()
    assert (penalty[:, right].mean(1) > 0.8).all()


def test_penalty_is_the_log_ratio_between_failure_and_success():
    ratio = jnp.asarray([3.0, 0.0, np.log(0.1), np.log(0.01), -50.0])
    np.testing.assert_allclose(mnm.penalty(0.01, ratio), [0.0, 0.0, 0.5, 1.0, 1.0], atol=1e-6)


def test_samples_follow_the_likelihoods():
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
    sample = jax.vmap(partial(mnm.sample_next_state, layout, stats, outputs, state))
    samples = np.asarray(jax.jit(sample)(noise))
    change = (samples[:, :2] - np.asarray(state)[:2]) / np.asarray(stats.change)[:2]
    np.testing.assert_allclose(change.mean(0), x[0], atol=0.07)
    np.testing.assert_allclose(change.std(0), np.exp(spread[0]), rtol=0.05)
    np.testing.assert_allclose(samples[:, 2:5].mean(0), jax.nn.softmax(key[0])[:3], atol=0.03)
    np.testing.assert_allclose(samples[:, 5].mean(), jax.nn.sigmoid(flag.mean()), atol=0.03)
    assert set(np.unique(samples[:, 2:])) == {0.0, 1.0}
    assert set(np.unique(samples[:, 2:5].sum(1))) == {0.0, 1.0}  # the key may be nowhere


@pytest.mark.slow
def test_each_term_moves_its_own_network_alone():
    data = two_ways(100)
    layout, stats = layout_and_statistics(data)
    gates = make_gates(layout, full_mask(data.factors))
    stage = mnm.mnm_stage(MnMConfig(hidden=8, batch=32), layout, stats)
    nets, batch = untrained(lambda key: stage.init(key, gates)), data.batch(data.episode < 4)
    slopes = jax.jit(jax.jacrev(lambda nets: stage.loss(nets, gates, batch, jax.random.key(2))[1]))(nets)
    for name in ("realism", "hope"):
        assert largest(slopes[name].model) > 1e-5
        assert largest(slopes[name]._replace(model=0.0)) == 0.0
    for name in ("discriminator", "value"):
        assert largest(getattr(slopes[name], name)) > 1e-5
        assert largest(slopes[name]._replace(**{name: 0.0})) == 0.0


def test_the_papers_table():
    for world, hidden, rate in (("lift", 256, 1e-4), ("unlock", 64, 1e-3), ("crash", 128, 1e-4)):
        c = make_method("mnm", world=world, tuned=False).config
        assert (c.hidden, c.discriminator_rate, c.discriminator_clip) == (hidden, rate, 0.25)
