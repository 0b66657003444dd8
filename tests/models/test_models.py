"""The causal world model and what stands beside it: masks cut exactly, nothing collapses, families share."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.behaviour_policy import (
    BehaviourPolicy,
    behaviour_loss,
    draw_action,
    persistence,
)
from because_rl.models.bilinear import BilinearModel, make_gates
from because_rl.models.energy import EnergyModel, EnergyWeights, energy_loss, family_features, predict_mu
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode, join, negative_log_likelihood, split
from because_rl.models.mixing import mix
from because_rl.models.nets import silu
from because_rl.models.objective import Weights, effective_rank, evaluate, jackknife, world_model_loss
from because_rl.models.prepared_data import action_statistics, statistics
from because_rl.models.value import Value, value_loss, value_of_goal
from because_rl.models.whitening import whitenings
from because_rl.training.stage import Stage, fit, skeleton

# Two bodies on a line, each with a push; a light per body that goes on, for good, when it comes near the post.
SPEC = FactorSpec(
    pack(
        ("post", 1, "continuous", "place"),
        ("left", 1, "continuous", "place"),
        ("right", 1, "continuous", "place"),
        ("light1", 1, "binary", "light"),
        ("light2", 1, "binary", "light"),
        ("mode", 3, "categorical"),
    ),
    pack(("push1", 1, "continuous", "push"), ("push2", 1, "continuous", "push")),
    (GoalFactor("on", 0, 1, "binary", "light", factor="light1", relation="at_least"),),
)
EDGES = {
    "post": ("post",),
    "left": ("left", "push1"),
    "right": ("right", "push2"),
    "light1": ("light1", "left", "post"),
    "light2": ("light2", "right", "post"),
    "mode": ("mode",),
}
GRAPH = np.array([[i in EDGES[j] for j in SPEC.targets] for i in SPEC.inputs], np.float32)
LAYOUT = Layout(SPEC)

# Cells: a token that moves along five cells and a set of stones that it picks up where it stands.
CELLS = FactorSpec(
    pack(("token", 5, "categorical", "cells"), ("stones", 5, "binary", "cells")),
    pack(("move", 2, "categorical", "move"), ("take", 2, "categorical", "take")),
    codes=((1, 0, 1, 0), (0, 1, 1, 0), (1, 0, 0, 1)),
)


def line_world(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    place, push = rng.uniform(-1, 1, (n, 3)), rng.uniform(-1, 1, (n, 2))
    light = (rng.random((n, 2)) < 0.2).astype(float)
    mode = np.eye(3)[rng.integers(0, 3, n)]
    state = np.hstack([place, light, mode])
    near = np.abs(place[:, 1:] - place[:, :1]) < 0.3
    after = np.hstack([place[:, :1], place[:, 1:] + 0.2 * push, np.maximum(light, near), np.roll(mode, 1, axis=1)])
    return {k: jnp.asarray(v, jnp.float32) for k, v in {"state": state, "action": push, "next_state": after}.items()}


def cell_world(n=2000, seed=0, cells=(0, 1, 2)):
    """Stones only ever lie in `cells`."""
    rng = np.random.default_rng(seed)
    token, act = rng.integers(0, 5, n), rng.integers(0, 3, n)
    stones = np.zeros((n, 5))
    stones[:, list(cells)] = rng.random((n, len(cells))) < 0.5
    after, moved = stones.copy(), np.clip(token + np.array([-1, 1, 0])[act], 0, 4)
    after[np.flatnonzero(act == 2), token[act == 2]] = 0
    state, following = np.hstack([np.eye(5)[token], stones]), np.hstack([np.eye(5)[moved], after])
    return {
        k: jnp.asarray(v, jnp.float32)
        for k, v in {"state": state, "action": np.array(CELLS.codes)[act], "next_state": following}.items()
    }


def train(layout, data, graph, steps=600, seeds=(0,), **sizes):
    stats = statistics(layout, *(np.asarray(data[k]) for k in ("state", "action", "next_state")))
    data = {"episode": jnp.asarray(np.arange(len(data["state"])) // 10, jnp.float32)} | dict(data)
    gates = jax.tree.map(lambda a: jnp.stack([a] * len(seeds)), make_gates(layout, graph))
    stage = Stage(
        "world",
        lambda key, fixed: BilinearModel(layout, key, **({"hidden": 32, "events": 2} | sizes)),
        partial(world_model_loss, Weights(background=0.0), stats),
        steps,
        64,
        3e-3,
    )
    progress = fit(stage, data, gates, seeds, chunk=steps)
    params = jax.tree.map(lambda a: a[0], progress.params)
    return stats, make_gates(layout, graph), eqx.combine(params, skeleton(stage, gates))


@pytest.fixture(scope="module")
def trained():
    return train(LAYOUT, line_world(), GRAPH)


def jitted_evaluate(trained, data):
    stats, gates, model = trained
    return jax.jit(lambda data: evaluate(stats, model, gates, data)["right"])(data)


def make(layout, data, graph, seed=0):
    stats = statistics(layout, *(np.asarray(data[k]) for k in ("state", "action", "next_state")))
    return stats, make_gates(layout, graph), eqx.filter_jit(BilinearModel)(layout, jax.random.key(seed), hidden=16)


# The mask ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("spec", "data"), [(SPEC, line_world), (CELLS, cell_world)])
def test_a_non_parent_has_no_path_to_its_target(spec, data):
    layout, rng = Layout(spec), np.random.default_rng(0)
    graph = (rng.random((len(spec.inputs), len(spec.targets))) < 0.5).astype(np.float32)
    stats, gates, model = make(layout, data(100), graph)
    model = jax.tree.map(lambda a: a + np.float32(0.3) * rng.standard_normal(a.shape, np.float32), model)
    x = jnp.concatenate([data(5)["state"], data(5)["action"]], axis=1)[0]

    def outputs(x):
        each = model(stats, gates, x)
        parts = [jnp.concatenate([o.value.reshape(len(o.value), -1), o.spread, o.phi], axis=1) for o in each]
        return {j: part[n] for f, part in zip(layout.families, parts, strict=True) for n, j in enumerate(f.members)}

    slopes = jax.jit(jax.jacobian(outputs))(x)
    for j in range(len(spec.targets)):
        for i in range(len(spec.inputs)):
            slope = np.abs(np.asarray(slopes[j][:, layout.columns[i]])).max()
            if graph[i, j]:
                assert slope > 0, (spec.inputs[i], spec.targets[j])
            else:
                assert slope == 0, (spec.inputs[i], spec.targets[j])


def test_soft_weights_scale_the_inputs():
    stats, _, model = make(LAYOUT, line_world(100), GRAPH)
    row = jnp.concatenate([line_world(5)["state"], line_world(5)["action"]], axis=1)[0]

    @partial(jax.jit, static_argnums=(0, 1))
    def slope(place, member, gates):
        return jax.jacobian(lambda x: model(stats, gates, x)[place].value[member])(row)

    def push_slope(weight):
        graph = GRAPH.copy()
        graph[SPEC.inputs.index("push1"), 1] = weight
        place = next(n for n, f in enumerate(LAYOUT.families) if 1 in f.members)
        member = LAYOUT.families[place].members.index(1)
        return slope(place, member, make_gates(LAYOUT, graph))[0, 8]

    assert 0 < abs(push_slope(0.25)) < abs(push_slope(1.0))


def test_gates_are_open_from_half_of_the_batches_on():
    weights = np.zeros((len(LAYOUT.inputs), len(LAYOUT.factors.targets)), np.float32)
    weights[:4, 0] = 1.0, 0.5, 0.2, 0.0
    gates = np.asarray(make_gates(LAYOUT, weights).weight)
    assert [float(gates[0, LAYOUT.columns[i]].max()) for i in range(4)] == pytest.approx([1.0, 1.0, 0.4, 0.0])
    assert (gates[1:] == 0).all()


def test_a_family_is_one_network_under_relabelling():
    """At the start the members' own deviations are 0, so light2 of a world is light1 of its mirror image."""
    data = line_world(100)
    stats, gates, model = make(LAYOUT, data, GRAPH)
    stats = stats._replace(mean=jnp.zeros_like(stats.mean), difference=jnp.ones_like(stats.difference))
    x = jnp.concatenate([data["state"], data["action"]], axis=1)[0]
    mirror = x[jnp.array([0, 2, 1, 4, 3, 5, 6, 7, 9, 8])]
    lights = next(n for n, f in enumerate(LAYOUT.families) if f.kind == "light")
    here, there = jax.jit(jax.vmap(lambda x: model(stats, gates, x)[lights].value))(jnp.stack([x, mirror]))
    np.testing.assert_allclose(here[0], there[1], rtol=1e-5)
    np.testing.assert_allclose(here[1], there[0], rtol=1e-5)
    assert np.abs(here[0] - here[1]).max() > 1e-4


# Likelihoods and learning -----------------------------------------------------------------------------------
def test_split_and_join_are_inverse():
    state = jnp.arange(float(SPEC.state_size))
    np.testing.assert_array_equal(join(LAYOUT, [split(LAYOUT, f, state) for f in LAYOUT.families]), state)


def test_likelihood_is_a_likelihood():
    """Of a categorical factor the probabilities of all levels sum to 1."""
    data = cell_world(50)
    layout = Layout(CELLS)
    stats, gates, model = make(layout, data, np.ones((4, 2), np.float32))
    state, action, after = (data[k][0] for k in ("state", "action", "next_state"))

    @jax.jit
    def likelihoods():
        outputs = model(stats, gates, jnp.concatenate([state, action]))
        nexts = jnp.concatenate([jnp.eye(5), jnp.tile(after[5:], (5, 1))], axis=1)
        return jnp.exp(-jax.vmap(lambda s: negative_log_likelihood(layout, stats, outputs, state, s)[0])(nexts))

    assert likelihoods().sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_learns_the_line_world(trained):
    right = dict(zip(SPEC.targets, jitted_evaluate(trained, line_world(500, seed=1)), strict=True))
    assert right["left"] < 0.02
    assert right["right"] < 0.02
    assert right["light1"] > 0.95
    assert right["light2"] > 0.95
    assert right["mode"] == 1


@pytest.mark.slow
def test_mu_does_not_collapse(trained):
    stats, _, model = trained
    fit_states, states = (line_world(500, seed=seed)["next_state"] for seed in (2, 3))

    @eqx.filter_jit
    def rank(model):
        white = whitenings(jax.vmap(lambda s: model.represent(stats, s))(fit_states))
        return effective_rank(stats, model, white, states)

    assert rank(model).shape == (len(SPEC.targets),)
    assert rank(model).min() > 0.8
    flat = eqx.tree_at(lambda m: m.mu[0], model, jax.tree.map(jnp.zeros_like, model.mu[0]))
    collapsed = np.asarray(rank(flat))
    members = list(LAYOUT.families[0].members)
    assert (collapsed[members] < 0.1).all()  # the measure sees a collapse
    assert (np.delete(collapsed, members) > 0.8).all()


@pytest.mark.long
def test_what_is_learned_in_one_slot_holds_in_all():
    """Stones never lay in cells 3 and 4; the model knows that they can be taken there too."""
    layout = Layout(CELLS)
    stats, gates, model = train(layout, cell_world(), np.ones((4, 2), np.float32), steps=800)
    unseen = cell_world(400, seed=3, cells=(3, 4))
    taken = np.flatnonzero((unseen["state"] != unseen["next_state"])[:, 5:].any(1))
    right = jitted_evaluate((stats, gates, model), {k: v[taken] for k, v in unseen.items()})
    assert len(taken) > 20
    assert right[1] > 0.95
    assert stats.moves.tolist() == [1.0, 0.0]


@pytest.mark.slow
def test_cautious_decoding_believes_the_most_sceptical_network(trained):
    stats, gates, model = trained
    data = line_world(200, seed=4)

    def light(cautious):
        def row(state, action):
            outputs = model(stats, gates, jnp.concatenate([state, action]))
            return decode(LAYOUT, stats, outputs, state, hard=False, cautious=cautious).state[3]

        return jax.jit(jax.vmap(row))(data["state"], data["action"])

    assert (light(True) <= light(False) + 1e-6).all()
    assert (light(True) < light(False) - 1e-4).any()


# Energy, behaviour, value -----------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize("negatives", ["counterfactual", "langevin"])
def test_energy_is_lower_on_data_than_on_mixtures(trained, negatives):
    stats, gates, world = trained
    data = line_world(1000)
    data["action"] = data["action"].at[:, 0].set(jnp.sign(data["state"][:, 1]))  # so that support can be learned
    maps = jax.jit(lambda s: whitenings(jax.vmap(partial(world.represent, stats))(s)))(data["next_state"])
    fixed = jax.tree.map(lambda a: a[None], (world, maps, gates, gates))
    stage = Stage(
        "energy",
        lambda key, fixed: EnergyModel(LAYOUT, key, hidden=32),
        partial(energy_loss, EnergyWeights(negatives=negatives), stats),
        300,
        64,
        3e-3,
    )
    progress = fit(stage, data, fixed, [0], chunk=300)
    model = eqx.combine(jax.tree.map(lambda a: a[0], progress.params), skeleton(stage, fixed))

    def energy(x):
        energies = model(family_features(world, stats, gates, x), predict_mu(world, world(stats, gates, x)))
        place = next(n for n, f in enumerate(LAYOUT.families) if 1 in f.members)
        return energies[place][LAYOUT.families[place].members.index(1)]

    real = jnp.concatenate([data["state"], data["action"]], axis=1)
    wrong = real.at[:, 8].set(-real[:, 8])
    energies = jax.jit(jax.vmap(energy))
    assert energies(wrong).mean() > energies(real).mean() + 0.3
    assert jnp.abs(energies(wrong)).max() <= 1


@pytest.mark.long
def test_each_event_network_never_learns_from_some_episodes():
    data = line_world(200)
    stats = statistics(LAYOUT, *(np.asarray(data[k]) for k in ("state", "action", "next_state")))
    gates = make_gates(LAYOUT, np.ones((len(LAYOUT.inputs), len(SPEC.state))))
    model = eqx.filter_jit(BilinearModel)(LAYOUT, jax.random.key(0), hidden=8, events=4)
    lights = next(n for n, f in enumerate(LAYOUT.families) if f.type == "binary" and not f.slots)

    @eqx.filter_jit
    def slope(model, batch, jackknife):
        weights = Weights(background=0.0, representation=0.0, phi=0.0, mu=0.0, jackknife=jackknife)
        loss = partial(world_model_loss, weights, stats)
        return eqx.filter_grad(lambda m: loss(m, gates, batch, jax.random.key(1))[0])(model)

    def moved(episode, jackknife=True):
        """(networks,) how much the rows of this episode pull at each."""
        gradient = slope(model, data | {"episode": jnp.full(200, float(episode))}, jackknife)
        return np.abs(np.asarray(gradient.heads[lights].read.common.weights[0])).reshape(4, -1).sum(1)

    assert [np.flatnonzero(moved(episode) == 0).tolist() for episode in (0, 1, 6, 11)] == [[0], [1], [2], [3]]
    assert (moved(0, jackknife=False) > 0).all()
    assert (jackknife(jnp.arange(8.0), 4).mean(1) == 1).all()


def test_mixtures_take_whole_factors_of_other_rows():
    x = jnp.broadcast_to(jnp.arange(50.0)[:, None], (50, LAYOUT.size))
    mixed = np.asarray(mix(LAYOUT, x, jax.random.key(0), jax.random.key(1)))
    assert (mixed[:, 5:8] == mixed[:, 5:6]).all()  # the three columns of mode stay together
    assert (mixed != np.asarray(x)).mean() > 0.2
    assert (mixed == np.asarray(x)).mean() > 0.2


@pytest.mark.slow
def test_behaviour_policy_clones_components_spread_bernoulli_and_persistence():
    """Most of the time a follower of the state; in spells of ten steps it does something else altogether."""
    rng = np.random.default_rng(0)
    n = 3000
    state = rng.uniform(-1, 1, (n, SPEC.state_size))
    noise = np.zeros(n)
    for t in range(1, n):
        noise[t] = 0.7 * noise[t - 1] + np.sqrt(1 - 0.49) * rng.normal()
    odd = np.repeat(rng.random(n // 10) < 0.3, 10)
    push = np.where(odd, -2.0, 0.5 * state[:, 1]) + 0.1 * noise
    push = np.column_stack([push, np.where(rng.random(n) < (state[:, 2] > 0), 1.0, -1.0)])
    data = {"state": state, "action": push, "goal": np.ones((n, 1))}
    data = {k: jnp.asarray(v, jnp.float32) for k, v in data.items()}
    stats = statistics(LAYOUT, state, push, state + 0.1)
    actions = action_statistics(push)
    assert actions.coin.tolist() == [0.0, 1.0]
    gate = jnp.ones((1, SPEC.state_size))
    stage = Stage(
        "b", lambda k, f: BehaviourPolicy(SPEC, k, hidden=32), partial(behaviour_loss, stats, actions), 800, 128, 3e-3
    )
    progress = fit(stage, data, gate, [0], chunk=800)
    model = eqx.combine(jax.tree.map(lambda a: a[0], progress.params), skeleton(stage, gate))
    at = jnp.zeros(SPEC.state_size).at[1].set(0.8).at[2].set(0.9)
    noise = jax.random.normal(jax.random.key(0), (500, 3))
    drawn = jax.jit(jax.vmap(lambda z: draw_action(stats, actions, model, gate[0], at, jnp.ones(1), z)))(noise)
    usual = drawn[:, 0] > -1
    assert usual.mean() == pytest.approx(0.7, abs=0.1)
    assert drawn[usual, 0].mean() == pytest.approx(0.4, abs=0.06)
    assert drawn[usual, 0].std() == pytest.approx(0.1, abs=0.04)
    assert drawn[~usual, 0].mean() == pytest.approx(-2.0, abs=0.1)
    assert (drawn[:, 1] == 1).mean() > 0.9
    follows = jnp.ones(n).at[-1].set(0.0)
    lasts = eqx.filter_jit(persistence)(stats, actions, model, gate[0], data, follows)
    assert lasts.noise == pytest.approx(0.7, abs=0.12)
    assert lasts.component == pytest.approx(0.9, abs=0.1)


@pytest.mark.slow
def test_value_grows_towards_the_goal_and_is_zero_at_truncation():
    """On a line of ten cells the right end switches the light on; from the left half nobody ever gets there."""
    spec = FactorSpec(
        pack(("x", 1, "continuous"), ("light", 1, "binary")),
        pack(("a", 1, "continuous")),
        (GoalFactor("on", 0, 1, "binary", factor="light", relation="at_least"),),
    )
    x = np.tile(np.arange(10.0), 60)
    right = x >= 5
    after = np.where(right, x + 1, x)
    data = {
        "state": np.column_stack([x, 0 * x]),
        "action": np.zeros((600, 1)),
        "next_state": np.column_stack([after, after > 9]),
        "goal": np.ones((600, 1)),
        "truncated": ~right,
    }
    data = {k: jnp.asarray(v, jnp.float32) for k, v in data.items()}
    layout = Layout(spec)
    stats = statistics(layout, *(np.asarray(data[k]) for k in ("state", "action", "next_state")))
    gate = jnp.ones((1, 2))
    loss = partial(value_loss, spec, stats, 0.9, 0.7)
    stage = Stage("v", lambda k, f: Value(spec, k, hidden=32), loss, 1500, 128, 3e-3)
    progress = fit(stage, data, gate, [0], chunk=1500)
    model = eqx.combine(jax.tree.map(lambda a: a[0], progress.params), skeleton(stage, gate))

    def value(x, light=0.0, want=1.0):
        return float(value_of_goal(spec, stats, model, gate[0], jnp.array([x, light]), jnp.array([want])))

    assert value(9) > value(7) > value(5) > value(2)
    assert value(7) == pytest.approx(0.9**2, abs=0.05)
    assert value(2) < 0.1
    assert value(2, light=1.0) == pytest.approx(1)
    assert value(2, want=0.0) == pytest.approx(1)


@pytest.mark.slow
def test_silu_and_its_derivatives_are_those_of_jax():
    """It has a derivative of its own, which energies differentiate once more."""
    ours, theirs = silu, jax.nn.silu
    x = jnp.linspace(-30.0, 30.0, 241)
    for _ in range(3):
        np.testing.assert_allclose(jax.vmap(ours)(x), jax.vmap(theirs)(x), atol=4e-6)
        ours, theirs = jax.grad(ours), jax.grad(theirs)
