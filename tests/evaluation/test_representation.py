"""The rank of mu, measured beside a fit."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.evaluation.representation import agent_diagnostics
from because_rl.models.bilinear import BilinearModel
from because_rl.models.layout import Layout
from tests.support import small

pytestmark = pytest.mark.slow


def test_the_least_rank_of_mu_shows_a_collapse():
    data = small("crash", episodes=30)
    layout = Layout(data.factors)
    world = eqx.filter_jit(jax.vmap(lambda key: BilinearModel(layout, key, hidden=8)))(
        jax.random.split(jax.random.key(0), 2)
    )

    def least_rank(world):
        agent = SimpleNamespace(parameters={"world": world}, diagnostics={"pessimism": np.ones(2)})
        numbers = agent_diagnostics(agent, data)
        assert set(numbers) == {"least rank of mu", "pessimism"}
        return numbers["least rank of mu"]

    assert least_rank(world).shape == (2,)
    assert (least_rank(world) > 0.5).all()
    collapsed = eqx.tree_at(lambda w: w.mu[0], world, jax.tree.map(jnp.zeros_like, world.mu[0]))
    assert (least_rank(collapsed) < 0.1).all()


def test_methods_without_mu_report_their_own_numbers_alone():
    agent = SimpleNamespace(parameters={"model": None}, diagnostics={"edges": np.ones(1)})
    assert set(agent_diagnostics(agent, None)) == {"edges"}
