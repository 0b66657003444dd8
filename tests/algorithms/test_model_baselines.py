"""GNN and CDL: the one treats alike what is alike, the other finds who causes whom."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import cdl, gnn
from because_rl.algorithms.cdl import CDLConfig, ParentsModel
from because_rl.algorithms.gnn import GNNConfig, GraphModel
from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models import nodes
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode, negative_log_likelihood
from because_rl.models.objective import Weights
from because_rl.models.prepared_data import statistics
from because_rl.planning.proposals import goal_ancestors
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.training.stage import Stage
from because_rl.transitions import Transitions
from tests.support import quick

LENGTH = 10


def logged(factors, state, action, after, goal=None):
    n = len(state)
    goal = np.ones((n, factors.goal_size)) if goal is None else goal
    floats = [np.asarray(a, np.float32) for a in (state, action, after, goal, np.zeros(n))]
    episode, step = np.divmod(np.arange(n), LENGTH)
    return Transitions(factors, *floats, np.zeros(n, bool), episode, step, LENGTH)


def facts(data):
    layout = Layout(data.factors)
    return layout, statistics(layout, data.state, data.action, data.next_state)


def of_seed(tree, k):
    return jax.tree.map(lambda a: a[k], tree)


def drawn(layout, stats, make, config):
    """A model with random numbers in all its arrays (to draw them as training does takes seconds to compile)."""
    shapes = eqx.filter_eval_shape(lambda key: make(layout, config, stats, key), jax.random.key(0))
    rng = stream(0, "drawn")

    def fill(leaf):
        is_array = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32) if is_array else leaf

    return jax.tree.map(fill, shapes)


def guesses(model, stats, data):
    """The next states that a model of one seed thinks likeliest."""

    def row(s, a):
        return decode(model.layout, stats, model(stats, None, jnp.concatenate([s, a])), s, hard=False).state

    return np.asarray(quick(jax.vmap(row))(jnp.asarray(data.state), jnp.asarray(data.action)))


# GNN -------------------------------------------------------------------------------------------------
def flock(n=1500, seed=0):
    """Three bodies drawn to each other, and all of them blown by one wind."""
    rng = stream(seed, "flock")
    x, wind = rng.normal(size=(n, 3)), rng.normal(size=(n, 1))
    pull = np.tanh(2 * (x[:, None] - x[:, :, None])).sum(2)  # of body j by all others
    after = x + 0.3 * np.sin(2 * wind) + 0.4 * pull + 0.02 * rng.normal(size=(n, 3))
    bodies = pack(*((f"body{i}", 1, "continuous", "body") for i in range(3)))
    return logged(FactorSpec(bodies, pack(("wind", 1, "continuous")), ()), x, wind, after)


@pytest.mark.slow
def test_gnn_fits_a_relational_system_and_is_equivariant():
    data = flock()
    layout, stats = facts(data)
    config = GNNConfig(hidden=32, layers=1, own=False)
    loss = partial(gnn.gnn_loss, Weights(), stats)
    stage = Stage("world", lambda key, fixed: GraphModel(layout, config, stats, key), loss, 500, 64, 3e-3)
    model = of_seed(Run([0]).fit(stage, data.batch(~data.held_out), ()), 0)
    held = Transitions(**{k: v[data.held_out] if isinstance(v, np.ndarray) else v for k, v in vars(data).items()})
    found = guesses(model, stats, held)
    moved, missed = held.next_state - held.state, held.next_state - found
    assert (missed.var(0) / moved.var(0) < 0.05).all()

    order = [2, 0, 1]
    turned = Transitions(**(vars(held) | {"state": held.state[:, order]}))
    same = statistics_of_a_flock(stats)
    np.testing.assert_allclose(
        guesses(model, same, turned), guesses(model, same, held)[:, order], atol=1e-5
    )  # permuting bodies permutes the answer


def statistics_of_a_flock(stats):
    """The same numbers for all bodies: in the data they differ by chance."""
    alike = {name: getattr(stats, name).at[:3].set(getattr(stats, name)[:3].mean()) for name in ("mean", "scale")}
    return stats._replace(**alike, **{k: jnp.full(3, getattr(stats, k).mean()) for k in ("change", "apart")})


def test_gnn_passes_messages_by_the_relation_of_kinds():
    relation = nodes.relations(Layout(world(discrete=False).factors))
    ego, car, _marker, flag, push, gripper = range(6)
    assert relation[ego, car] == relation[car, ego] != relation[ego, ego]
    assert relation[ego, flag] == relation[car, flag] != relation[flag, ego]
    assert relation[push, ego] != relation[gripper, ego]
    layer = gnn.Convolution(int(relation.max()) + 1, 2, 3, jax.random.key(0))
    h = np.asarray(stream(0, "nodes").normal(size=(6, 3)), np.float32)
    wanted = h @ np.asarray(layer.loop).T
    for j in range(6):
        for i in range(6):
            if i != j:
                weight = np.tensordot(layer.share[relation[i, j]], layer.basis, 1)
                wanted[j] += weight @ h[i] / (relation[:, j] == relation[i, j]).sum()
    found = layer(relation, jnp.asarray(h), jnp.zeros((6, 3)))
    np.testing.assert_allclose(found, jax.nn.silu(jnp.asarray(wanted)), rtol=1e-4, atol=1e-5)


# CDL -------------------------------------------------------------------------------------------------
PARENTS = {"x": {"x", "push"}, "y": {"x", "y"}, "copy": {"copy"}}


def chain(episodes=400, seed=0):
    """push -> x -> y; a copy of x shows what x is and does nothing."""
    rng, n = stream(seed, "chain"), episodes * LENGTH
    x, y, push = rng.normal(size=(3, n))
    copy = x + 0.3 * rng.normal(size=n)
    noise = 0.2 * rng.normal(size=(3, n))
    after = np.stack([x + push + noise[0], y + np.sin(2 * x) + noise[1], 0.5 * copy + noise[2]], 1)
    state = pack(*((name, 1, "continuous", "number") for name in ("x", "y", "copy")))
    goal = (GoalFactor("high", 0, 1, "continuous", factor="y", relation="at_least"),)
    factors = FactorSpec(state, pack(("push", 1, "continuous")), goal)
    return logged(factors, np.stack([x, y, copy], 1), push[:, None], after)


def parents(data, graph):
    names = np.array(data.factors.inputs)
    return {target: set(names[graph[:, j] > 0].tolist()) for j, target in enumerate(data.factors.targets)}


SMALL = {"hidden": 32, "features": 16, "batch": 64, "rate": 3e-3}


@pytest.mark.slow
def test_cdl_recovers_a_known_graph():
    data = chain()
    layout, stats = facts(data)
    config = CDLConfig(**SMALL, tau=0.1, world_steps=800)
    stage = cdl.cdl_stage(config, layout, stats, data.batch(data.held_out))
    found = Run([0, 1]).fit(stage, data.batch(~data.held_out), ()).mask
    for k in range(2):
        graph = np.asarray(cdl.kept(found[k], config.least))
        assert parents(data, graph) == PARENTS
        np.testing.assert_array_equal(goal_ancestors(layout, graph), [1, 1, 0])  # the copy leads nowhere


@pytest.mark.slow
def test_cdl_with_a_learned_mask_recovers_it_too():
    data = chain()
    layout, stats = facts(data)
    config = CDLConfig(**SMALL, variant="regularised", world_steps=800, mask_rate=0.02, sparsity=0.003)
    stage = cdl.cdl_stage(config, layout, stats, data.batch(data.held_out))
    theta = Run([0]).fit(stage, data.batch(~data.held_out), ()).mask[0]
    assert parents(data, np.asarray(cdl.kept(theta, config.least))) == PARENTS


def test_information_is_a_difference_of_log_likelihoods():
    data = world(discrete=False, episodes=4)
    layout, stats = facts(data)
    model = drawn(layout, stats, ParentsModel, CDLConfig(hidden=8, features=8))
    batch = data.batch(data.step >= 0)
    masks = np.ones((2, 6, 4), np.float32)
    masks[1, 0] = 0

    def outputs(mask):
        x = jnp.concatenate([batch["state"], batch["action"]], axis=1)
        return jax.vmap(lambda row: model(stats, mask, row))(x)

    found = np.asarray(quick(partial(cdl.information, stats, 50.0, model))(batch, jnp.asarray(0)))
    body, marker, flag = quick(jax.vmap(outputs))(jnp.asarray(masks))  # each with leading axes (full or masked, rows)
    change = (data.next_state - data.state)[:, 4] / np.asarray(stats.change)[4]
    z, spread = np.asarray(marker.value)[:, :, 0, 0], np.asarray(marker.spread)[:, :, 0, 0]
    gaussian = -0.5 * ((change - z) / np.exp(spread)) ** 2 - spread
    np.testing.assert_allclose(found[2], (gaussian[0] - gaussian[1]).mean(), rtol=1e-3, atol=1e-5)
    z = np.asarray(flag.value)[:, :, 0, 0, 0]
    bernoulli = data.next_state[:, 5] * z - np.log1p(np.exp(z))
    np.testing.assert_allclose(found[3], (bernoulli[0] - bernoulli[1]).mean(), rtol=1e-3, atol=1e-5)
    assert np.abs(found[2:]).min() > 1e-4
    assert body.value.shape == (2, 40, 2, 2)


@pytest.mark.parametrize("discrete", [True, False])
def test_cdl_has_no_path_from_what_is_left_out(discrete):
    data = world(discrete, episodes=2)
    layout, stats = facts(data)
    model = drawn(layout, stats, ParentsModel, CDLConfig(hidden=8, features=8))
    mask = np.maximum(stream(0, "mask").random((len(layout.inputs), len(data.factors.state))) < 0.5, 0)
    mask = np.maximum(mask, np.eye(*mask.shape)).astype(np.float32)

    def of_targets(x):
        size = data.factors.state_size
        outputs = model(stats, jnp.asarray(mask), x)
        now, then = x[:size], jax.lax.stop_gradient(jnp.asarray(data.next_state[0]))
        return negative_log_likelihood(layout, stats, outputs, now, then)

    x = jnp.asarray(np.concatenate([data.state[0], data.action[0]]))
    slope = np.abs(quick(jax.jacrev(of_targets))(x))
    felt = np.stack([slope[:, columns].max(1) for columns in layout.columns])
    assert (felt[mask == 0] == 0).all()
    assert (felt[mask > 0] > 0).mean() > 0.7  # a maximum need not let all of them through


# Both ------------------------------------------------------------------------------------------------
def world(discrete, episodes=12):
    """Random rows with the kinds of factors that worlds have."""
    rng, n = stream(0, "world"), episodes * LENGTH
    if discrete:
        factors = FactorSpec(
            pack(
                ("agent", 4, "categorical", "cells"),
                ("key", 4, "categorical", "cells", True),
                ("door", 4, "binary", "cells"),
                ("cue", 3, "categorical"),
            ),
            pack(("move", 2, "categorical", "move", True), ("pick", 2, "categorical")),
            (GoalFactor("left", 0, 4, "binary", "cells", factor="door"),),
            codes=((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
        )
        state = np.hstack([np.eye(4)[rng.integers(0, 4, n)], np.eye(5)[rng.integers(0, 5, n)][:, :4]])
        state = np.hstack([state, rng.integers(0, 2, (n, 4)), np.eye(3)[rng.integers(0, 3, n)]])
        action = factors.encode_action(rng.integers(0, 3, n))
        return logged(factors, state, action, state[::-1], rng.integers(0, 2, (n, 4)))
    factors = FactorSpec(
        pack(
            ("ego", 2, "continuous", "body"),
            ("car", 2, "continuous", "body"),
            ("marker", 1, "continuous"),
            ("flag", 1, "binary"),
        ),
        pack(("push", 2, "continuous"), ("gripper", 1, "continuous")),
        (GoalFactor("hit", 0, 1, "binary", factor="flag", relation="at_least"),),
    )
    state = np.hstack([rng.normal(size=(n, 5)), rng.integers(0, 2, (n, 1))])
    action = np.hstack([np.tanh(state[:, :2]), rng.choice([-1.0, 1.0], (n, 1))]) + 0.1 * rng.normal(size=(n, 3))
    return logged(factors, state, action, state + 0.1 * (state < 1))


def test_the_papers_tables():
    for name, hidden, layers in (("lift", 256, 3), ("unlock", 64, 1), ("crash", 128, 3)):
        c = make_method("gnn", world=name, tuned=False).config
        assert (c.hidden, c.layers) == (hidden, layers)
        c = make_method("cdl", world=name, tuned=False).config
        assert (c.hidden, c.initial, c.sparsity) == (hidden, 1.0, 0.001)
        assert c.behaviour_hidden == (256 if name == "lift" else 128)
