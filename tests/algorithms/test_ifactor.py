"""IFactor: each signal ends up in the block where it belongs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import ifactor
from because_rl.algorithms.denoised_mdp import mean_and_std
from because_rl.algorithms.ifactor import IFactorConfig, ifactor_stage, reward_to_go
from because_rl.algorithms.registry import make_method
from because_rl.envs.tasks import world_class
from because_rl.models.latent import assignment_probabilities
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import harbour, layout_and_statistics, room


def fitted_blocks(data):
    """(blocks, factors) the probabilities that factors lie in blocks."""
    train = ~data.held_out
    config = IFactorConfig(hidden=8, batch=64, world_steps=700, rate=5e-3, share_rate=0.05)  # to leave ar takes time
    to_go = reward_to_go(data, config.discount)
    stage = ifactor_stage(config, *layout_and_statistics(data), mean_and_std(data.reward, to_go))
    batch = data.batch(train) | {"reward_to_go": jnp.asarray(to_go[train])}
    world = Run([0], chunk=200).fit(stage, batch, ()).world
    return np.asarray(jax.vmap(assignment_probabilities)(world))[0]


@pytest.mark.slow
def test_four_signals_end_up_in_four_blocks():
    probability = fitted_blocks(room())
    blocks = [ifactor.AR, ifactor.R, ifactor.A, ifactor.REST]  # of hand, weather, bird and plane
    assert probability.argmax(0).tolist() == blocks
    assert (probability.max(0) > 0.8).all()


@pytest.mark.long
def test_blocks_of_a_world_for_which_no_weight_was_set():
    """Other sizes and couplings: the tide, which the reward depends on, moves the boat."""
    probability = fitted_blocks(harbour(current=0.4))
    blocks = [ifactor.AR, ifactor.R, ifactor.A, ifactor.REST, ifactor.REST]
    assert probability.argmax(0).tolist() == blocks, probability.round(2)


def test_reward_to_go_ends_with_its_episode():
    data = room(2)
    reward = np.zeros(len(data), np.float32)
    reward[[3, 5, 12]] = 1.0
    to_go = reward_to_go(Transitions(**(vars(data) | {"reward": reward})), 0.5)
    np.testing.assert_allclose(to_go[:7], [0.125 + 0.5**5, 0.25 + 0.5**4, 0.5 + 0.125, 1.25, 0.5, 1, 0])
    np.testing.assert_allclose(to_go[[9, 10, 12, 13]], [0, 0.25, 1, 0])


def test_the_papers_table():
    for world, hidden, factors in (("lift", 256, 19), ("unlock", 64, 7), ("crash", 128, 10)):
        assert make_method("ifactor", world=world, tuned=False).config.hidden == hidden
        assert len(world_class(world).make_factors(1).inputs) == factors  # the size of the disentangled prior
