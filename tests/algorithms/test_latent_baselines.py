"""Denoised MDP and IFactor: each signal ends up in the chain or block where it belongs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import denoised_mdp, ifactor
from because_rl.algorithms.denoised_mdp import DenoisedMDPConfig
from because_rl.algorithms.ifactor import IFactorConfig
from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import world_class
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models import latent
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import statistics
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.support import LENGTH, logged, quick

SIGNALS = ("hand", "weather", "bird", "plane")
"""The action moves hand and bird; the reward depends on hand and weather."""


def room(episodes=150):
    """A hand draws the curtain and scares a bird, the weather is as it is, and a plane flies by."""
    rng, n = stream(0, "room"), episodes * LENGTH
    state, noise, push = rng.normal(size=(n, 4)), rng.normal(size=(n, 4)), rng.normal(size=(n, 1))
    after = 0.6 * state + push * [1, 0, -1, 0] + noise * [0.3, 0.5, 0.3, 0.5]
    numbers = pack(*((name, 1, "continuous", "number") for name in SIGNALS))
    goal = (GoalFactor("light", 0, 1, "continuous", factor="hand", relation="at_least"),)
    data = logged(FactorSpec(numbers, pack(("push", 1, "continuous")), goal), state, push, after, np.zeros((n, 1)))
    return Transitions(**(vars(data) | {"reward": data.next_state[:, :2].sum(1)}))


FIT = {"hidden": 8, "batch": 64, "world_steps": 400, "rate": 5e-3, "share_rate": 0.03}


@pytest.fixture(autouse=True, scope="module")
def quickly():
    """Nearly all of the time goes into compiling programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def shares(module, config):
    """(blocks, signals)"""
    data = room()
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    later = ifactor.to_come(data, config.discount)
    usual = jnp.asarray([f(a) for a in (data.reward, later) for f in (np.mean, np.std)], jnp.float32)
    keep = ~data.held_out
    batch = data.batch(keep) | {"to_come": jnp.asarray(later[keep])}
    stage = module.denoised_stage if module is denoised_mdp else module.ifactor_stage
    nets = Run([0], chunk=200).fit(stage(config, layout, stats, usual), batch, ())
    return np.asarray(jax.vmap(latent.share)(nets.world))[0]


@pytest.mark.slow
def test_denoised_mdp_keeps_in_x_what_actions_move_and_in_y_the_rest():
    x, y = shares(denoised_mdp, DenoisedMDPConfig(**FIT))
    np.testing.assert_allclose(x, [1, 0, 1, 0], atol=0.1)
    np.testing.assert_allclose(y, [0, 1, 0, 1], atol=0.1)


@pytest.mark.slow
def test_ifactor_tells_four_blocks_apart():
    found = shares(ifactor, IFactorConfig(**FIT | {"world_steps": 1200}))  # to leave ar takes time
    assert found.argmax(0).tolist() == [ifactor.AR, ifactor.R, ifactor.A, ifactor.REST]
    assert (found.max(0) > 0.8).all()


def small_blocks(places):
    """Two blocks, x and y, with factors where `places` says."""
    data = room(4)
    layout = Layout(data.factors)
    stats = statistics(layout, data.state, data.action, data.next_state)
    model = latent.Blocks(layout, jax.random.key(0), 8, ((1, 0), (0, 1)), (1, 0), 0.1)
    shares = jnp.asarray([[20.0 * (p == b) for p in places] for b in range(2)])
    return data, stats, with_shares(model, shares)


def with_shares(model, shares):
    return eqx.tree_at(lambda m: m.shares, model, shares)


def test_a_chain_sees_its_own_factors_and_x_alone_the_action():
    data, stats, model = small_blocks([0, 1, 0, 1])
    row = jnp.concatenate([jnp.asarray(data.state[0]), jnp.asarray(data.action[0])])
    slope = np.asarray(quick(jax.jacrev(lambda x: model(stats, None, x)[0].value))(row))[:, 0]
    felt = np.abs(slope) > 0
    hand, weather, bird, plane = felt
    np.testing.assert_array_equal(hand, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(bird, hand)
    np.testing.assert_array_equal(weather, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(plane, weather)


def test_the_divergence_is_that_of_two_gaussians():
    data, stats, model = small_blocks([0, 1, 0, 1])
    batch = data.batch(data.step > 0)  # no first states
    rows = len(batch["state"])
    place = latent.places(model, rows, jax.random.key(1))
    found = quick(lambda model: latent.bound(stats, model, place, batch, 0.1))(model)

    def outputs(s, a, p):
        return model.each(stats, p, jnp.concatenate([s, a]), None)[0]

    told = quick(jax.vmap(outputs))(batch["state"], batch["action"], place)
    mean, v = np.asarray(told.value)[..., 0], np.exp(2 * np.asarray(told.spread))[..., 0]  # (rows, blocks, factors)
    change = np.asarray((batch["next_state"] - batch["state"]) / stats.change[None])[:, None]
    q, p = 0.1**2, 0.1**2 + v
    kl = np.log(np.sqrt(p / q)) + (q + (change - mean) ** 2) / (2 * p) - 0.5
    inside = np.asarray([[1, 0, 1, 0], [0, 1, 0, 1]])
    np.testing.assert_allclose(found.kl, (kl.mean(0) * inside).sum(1), rtol=1e-3)
    np.testing.assert_allclose(found.reconstruction, 4 * 0.5, rtol=1e-3)  # noise as large as the decoder's, 4 columns
    assert np.isfinite(found.surprise)


@pytest.mark.parametrize("power", [1, 4])
def test_places_are_drawn_by_a_power_of_the_shares_and_have_their_gradient(power):
    _, _, model = small_blocks([0, 1, 0, 1])
    share = np.asarray([[0.2, 0.5, 0.9, 0.0001], [0.8, 0.5, 0.1, 0.9999]])
    model = with_shares(model, jnp.log(jnp.asarray(share)))
    drawn = latent.places(model, 4000, jax.random.key(0), power)
    np.testing.assert_allclose(drawn.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(drawn.mean(0), share**power / (share**power).sum(0), atol=0.03)
    slope = jax.grad(lambda m: latent.places(m, 10, jax.random.key(0), power)[:, 0, 0].mean())(model).shares
    np.testing.assert_allclose(slope[0, 0], 0.2 * 0.8, rtol=1e-3)


def test_rewards_to_come():
    data = room(2)
    reward = np.zeros(len(data), np.float32)
    reward[[3, 5, 12]] = 1.0
    found = ifactor.to_come(Transitions(**(vars(data) | {"reward": reward})), 0.5)
    np.testing.assert_allclose(found[:7], [0.125 + 0.5**5, 0.25 + 0.5**4, 0.5 + 0.125, 1.25, 0.5, 1, 0])
    np.testing.assert_allclose(found[[9, 10, 12, 13]], [0, 0.25, 1, 0])


def test_the_action_law_sees_what_some_seed_carries():
    layout = Layout(room(1).factors)
    mask = latent.in_some_seed(layout, np.asarray([[0.9, 0.1, 0.2, 0.4], [0.6, 0.1, 0.7, 0.3]]))
    np.testing.assert_array_equal(mask[:, 0], [1, 0, 1, 0, 1])  # from each signal, and the push, to the hand
    np.testing.assert_array_equal(np.diag(mask), 1)


def test_the_papers_tables():
    for world, hidden, columns, factors in (("lift", 256, 33, 19), ("unlock", 64, 110, 7), ("crash", 128, 22, 10)):
        for name in ("denoised-mdp", "ifactor"):
            assert make_method(name, world=world, tuned=False).config.hidden == hidden
        spec = world_class(world).make_factors(1)
        assert spec.state_size == columns  # of x, and of y
        assert len(spec.inputs) == factors  # the size of IFactor's disentangled prior
