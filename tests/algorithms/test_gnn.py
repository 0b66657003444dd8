"""GNN: it fits a relational system, and treats factors of one kind alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import gnn
from because_rl.algorithms.gnn import GNNConfig, gnn_stage
from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, pack
from because_rl.models import nodes
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import layout_and_statistics, untrained
from tests.support import logged, of_seed, small

FLOCK = GNNConfig(hidden=32, layers=1, own=False, world_steps=500, batch=64, rate=3e-3)


def flock(n=1500, seed=0):
    """Three bodies drawn to each other, and all of them blown by one wind."""
    rng = stream(seed, "flock")
    x, wind = rng.normal(size=(n, 3)), rng.normal(size=(n, 1))
    pull = np.tanh(2 * (x[:, None] - x[:, :, None])).sum(2)  # of body j by all others
    after = x + 0.3 * np.sin(2 * wind) + 0.4 * pull + 0.02 * rng.normal(size=(n, 3))
    bodies = pack(*((f"body{i}", 1, "continuous", "body") for i in range(3)))
    return logged(FactorSpec(bodies, pack(("wind", 1, "continuous")), ()), x, wind, after, np.ones((n, 0)))


def likeliest(model, stats, state, action):
    """(rows, state) the likeliest next states."""

    def row(s, a):
        return decode(model.layout, stats, model(stats, None, jnp.concatenate([s, a])), s, hard=False).state

    return np.asarray(jax.jit(jax.vmap(row))(jnp.asarray(state), jnp.asarray(action)))


@pytest.mark.slow
def test_it_fits_a_relational_system():
    data = flock()
    layout, stats = layout_and_statistics(data)
    model = of_seed(Run([0]).fit(gnn_stage(FLOCK, layout, stats), data.batch(~data.held_out), ()), 0)
    state, action, after = (part[data.held_out] for part in (data.state, data.action, data.next_state))
    error = after - likeliest(model, stats, state, action)
    assert (error.var(0) / (after - state).var(0) < 0.05).all()


def test_permuting_bodies_permutes_the_prediction():
    data = flock(50)
    layout, stats = layout_and_statistics(data)
    # The same statistics for all bodies: in the data they differ by chance.
    alike = {name: getattr(stats, name).at[:3].set(getattr(stats, name)[:3].mean()) for name in ("mean", "scale")}
    alike |= {name: jnp.full(3, getattr(stats, name).mean()) for name in ("change", "difference")}
    stats = stats._replace(**alike)
    order = [2, 0, 1]
    for own in (False, True):
        config = GNNConfig(hidden=32, layers=1, own=own)
        model = untrained(lambda key, config=config: gnn.GraphModel(layout, config, stats, key))
        expected = likeliest(model, stats, data.state, data.action)[:, order]
        permuted = likeliest(model, stats, data.state[:, order], data.action)
        assert np.allclose(permuted, expected, atol=1e-5) != own


def test_messages_depend_on_the_relation_of_kinds():
    relation = nodes.relations(Layout(small("crash").factors))
    ego, car, _marker, flag, push, gripper = range(6)
    assert relation[ego, car] == relation[car, ego] != relation[ego, ego]
    assert relation[ego, flag] == relation[car, flag] != relation[flag, ego]
    assert relation[push, ego] != relation[gripper, ego]
    layer = untrained(lambda key: gnn.Convolution(int(relation.max()) + 1, 2, 3, key))
    h = np.asarray(stream(0, "nodes").normal(size=(6, 3)), np.float32)
    expected = h @ np.asarray(layer.loop).T + np.asarray(layer.bias)
    for j in range(6):
        for i in range(6):
            if i != j:
                weight = np.tensordot(layer.coefficients[relation[i, j]], layer.basis, 1)
                expected[j] += weight @ h[i] / (relation[:, j] == relation[i, j]).sum()
    out = layer(relation, jnp.asarray(h), jnp.zeros((6, 3)))
    np.testing.assert_allclose(out, jax.nn.silu(jnp.asarray(expected)), rtol=1e-4, atol=1e-5)


def test_the_papers_table():
    for name, hidden, layers in (("lift", 256, 3), ("unlock", 64, 1), ("crash", 128, 3)):
        c = make_method("gnn", world=name, tuned=False).config
        assert (c.hidden, c.layers) == (hidden, layers)
        assert c.behaviour_hidden == (256 if name == "lift" else 128)
