"""Denoised MDP: each signal ends up in the chain where it belongs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.denoised_mdp import DenoisedMDPConfig, denoised_stage, mean_and_std
from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import world_class
from because_rl.models.latent import assignment_probabilities
from because_rl.training.run import Run
from tests.algorithms.builders import harbour, layout_and_statistics, room, untrained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "moved"),
    [
        (room, [1, 0, 1, 0]),  # hand, weather, bird, plane
        pytest.param(harbour, [1, 0, 1, 0, 0], marks=pytest.mark.long),  # for which no weight was set
    ],
)
def test_x_holds_what_actions_move_and_y_the_rest(make, moved):
    data = make()
    config = DenoisedMDPConfig(hidden=8, batch=64, world_steps=400, rate=5e-3, share_rate=0.03)
    stage = denoised_stage(config, *layout_and_statistics(data), mean_and_std(data.reward))
    world = Run([0], chunk=200).fit(stage, data.batch(~data.held_out), ()).world
    x, y = np.asarray(jax.vmap(assignment_probabilities)(world))[0]
    np.testing.assert_allclose(x, moved, atol=0.1)
    np.testing.assert_allclose(y, 1 - np.array(moved), atol=0.1)


def test_chains_see_their_own_factors_and_x_the_action():
    data = room(4)
    layout, stats = layout_and_statistics(data)
    stage = denoised_stage(DenoisedMDPConfig(hidden=8), layout, stats, mean_and_std(data.reward))
    world = untrained(lambda key: stage.init(key, ())).world
    logits = jnp.asarray([[20.0, 0.0, 20.0, 0.0], [0.0, 20.0, 0.0, 20.0]])
    world = eqx.tree_at(lambda blocks: blocks.assignment_logits, world, logits)
    row = jnp.concatenate([jnp.asarray(data.state[0]), jnp.asarray(data.action[0])])
    slope = np.asarray(jax.jit(jax.jacrev(lambda row: world(stats, None, row)[0].value))(row))[:, 0]
    hand, weather, bird, plane = np.abs(slope) > 0
    np.testing.assert_array_equal(hand, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(bird, hand)
    np.testing.assert_array_equal(weather, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(plane, weather)


def test_the_papers_table():
    for world, hidden, columns in (("lift", 256, 33), ("unlock", 64, 110), ("crash", 128, 22)):
        assert make_method("denoised-mdp", world=world, tuned=False).config.hidden == hidden
        assert world_class(world).make_factors(1).state_size == columns  # of x, and of y
