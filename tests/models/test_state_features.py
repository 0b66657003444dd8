"""What policies see: the features of world models, with one encoder for all factors on the same slots."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from because_rl.factors import FactorSpec, pack
from because_rl.models.prepared_data import summarise
from because_rl.models.state_features import FeatureNetwork, StateFeatures
from because_rl.rng import stream
from because_rl.transitions import Transitions
from tests.algorithms.builders import untrained
from tests.support import small


def test_the_row_of_a_world_with_bodies():
    """Columns, differences of the two bodies, and the goal's difference from its factor, in their own units."""
    data = small("lift")
    stats = summarise(data).stats
    features = StateFeatures(data.factors, stats)
    state, goal = data.state[0], data.goal[0]
    mean, scale = np.asarray(stats.mean)[:6], np.asarray(stats.scale)[:6]
    difference = (state[0:2] - state[2:4]) / np.asarray(stats.difference)
    target = [(goal[0] - mean[4]) / scale[4], (goal[0] - state[4]) / scale[4]]
    expected = np.concatenate([(state - mean) / scale, difference, np.arcsinh(10 * difference) / 3, target])
    np.testing.assert_allclose(features(state, goal), expected, rtol=1e-4, atol=1e-6)
    assert features.size == len(expected)
    gate = np.repeat([1.0, 0.0, 1.0, 1.0], [2, 2, 1, 1]).astype(np.float32)
    gated = np.asarray(features(state, goal, gate))
    np.testing.assert_array_equal(gated[[2, 3, 6, 7, 8, 9]], 0)  # a masked body and its differences say nothing
    np.testing.assert_allclose(gated[[0, 1, 4, 5]], expected[[0, 1, 4, 5]], rtol=1e-4)


def test_factors_on_the_same_slots_share_their_encoder():
    data = small("unlock")
    stats = summarise(data).stats
    features = StateFeatures(data.factors, stats._replace(moves=jnp.asarray([1.0, 0.0, 0.0, 0.0])))
    assert features.groups[0].pairs == ((0, 1), (0, 2))  # from the factor that moves to each other
    net = untrained(lambda key: FeatureNetwork(features, (8, 3), key))
    slots = eqx.tree_at(lambda s: s.attention, net.slots[0], jax.tree.map(jnp.zeros_like, net.slots[0].attention))
    rows = jnp.eye(4)[jnp.asarray([0, 1, 2, 3])]  # agent, key, door, goal
    context = jnp.zeros(features.size - 4 * 4)
    encode = jax.jit(lambda rows, context: slots(rows, context))
    np.testing.assert_allclose(encode(rows, context), encode(rows[jnp.asarray([0, 2, 1, 3])], context), rtol=1e-5)
    moved = encode(rows[jnp.asarray([3, 1, 2, 0])], context)
    assert np.abs(np.asarray(moved) - np.asarray(encode(rows, context))).max() > 1e-3
    assert net(features(data.state[0], data.goal[0])).shape == (3,)


def test_outcomes_of_the_step_before_say_nothing():
    """A policy learns from rows whose next state holds the reward, and acts where it is not known yet."""
    factors = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 1, "continuous")))
    factors, rng = factors.with_outcomes("reward", has_ends=False), stream(0, "outcomes")
    state, action, after = rng.normal(size=(64, 2)), rng.uniform(-1, 1, (64, 1)), rng.normal(size=(64, 2))
    data = Transitions.from_arrays(state, action, after, np.arange(64) // 2, factors=factors)
    features, goal = StateFeatures(data.factors, summarise(data).stats), np.zeros(factors.goal_size)
    rows = [features(jnp.asarray([0.5, reward]), goal) for reward in (0.0, 3.0)]
    np.testing.assert_array_equal(*rows)
    assert (rows[0] != features(jnp.asarray([0.6, 0.0]), goal)).any()
