"""CDL: it recovers a known graph, and inputs that are left out have no path to a target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import cdl
from because_rl.algorithms.cdl import CDLConfig, ParentsModel
from because_rl.algorithms.registry import make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.planning.proposals import goal_ancestors
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import layout_and_statistics, line, untrained
from tests.support import LENGTH, logged, small

PARENTS = {"x": {"x", "push"}, "y": {"x", "y"}, "copy": {"copy"}}


def chain(episodes=400, seed=0):
    """push -> x -> y; a copy of x shows what x is and has no effect."""
    rng, n = stream(seed, "chain"), episodes * LENGTH
    x, y, push = rng.normal(size=(3, n))
    copy = x + 0.3 * rng.normal(size=n)
    noise = 0.2 * rng.normal(size=(3, n))
    after = np.stack([x + push + noise[0], y + np.sin(2 * x) + noise[1], 0.5 * copy + noise[2]], 1)
    state = pack(*((name, 1, "continuous", "number") for name in ("x", "y", "copy")))
    goal = (GoalFactor("high", 0, 1, "continuous", factor="y", relation="at_least"),)
    factors = FactorSpec(state, pack(("push", 1, "continuous")), goal)
    return logged(factors, np.stack([x, y, copy], 1), push[:, None], after, np.ones((n, 1)))


def fitted_graphs(data, config, seeds):
    stage = cdl.cdl_stage(config, *layout_and_statistics(data), data.batch(data.held_out))
    train = ~data.held_out
    mask = Run(seeds).fit(stage, data.batch(train) | cdl.following_rows(data, train), ()).mask
    return [np.asarray(cdl.graph_from_mask(seed_mask, config.least)) for seed_mask in mask]


def parents(data, graph):
    names = np.array(data.factors.inputs)
    return {target: set(names[graph[:, j] > 0].tolist()) for j, target in enumerate(data.factors.targets)}


SMALL = {"hidden": 32, "features": 16, "batch": 64, "rate": 3e-3, "second_step": 0.0}  # rows of a chain do not follow


@pytest.mark.slow
def test_information_recovers_a_known_graph():
    data = chain()
    (graph,) = fitted_graphs(data, CDLConfig(**SMALL, tau=0.15, world_steps=500), [0])
    assert parents(data, graph) == PARENTS
    layout, _ = layout_and_statistics(data)
    np.testing.assert_array_equal(goal_ancestors(layout, graph), [1, 1, 0])  # the copy leads nowhere


@pytest.mark.long
def test_a_learned_mask_recovers_a_known_graph():
    data = chain()
    config = CDLConfig(**SMALL, variant="regularised", world_steps=800, mask_rate=0.02, sparsity=0.003)
    (graph,) = fitted_graphs(data, config, [0])
    assert parents(data, graph) == PARENTS


def test_information_is_a_difference_of_log_likelihoods():
    data = small("crash", episodes=4)
    data.next_state[:, :5] += 0.1 * stream(0, "changes").normal(size=(len(data), 5))  # changes with a spread
    layout, stats = layout_and_statistics(data)
    model = untrained(lambda key: ParentsModel(layout, CDLConfig(hidden=8, features=8), stats, key))
    batch = data.batch(data.step >= 0)
    masks = np.ones((2, 6, 4), np.float32)
    masks[1, 0] = 0

    def compute(masks, left_out):
        x = jnp.concatenate([batch["state"], batch["action"]], axis=1)
        outputs = jax.vmap(lambda mask: jax.vmap(lambda row: model(stats, mask, row))(x))(masks)
        return cdl.information(stats, 50.0, model, batch, left_out), outputs

    information, outputs = jax.jit(compute)(jnp.asarray(masks), jnp.asarray(0))
    body, marker, flag = outputs  # each with leading axes (full or masked, rows)
    change = (data.next_state - data.state)[:, 4] / np.asarray(stats.change)[4]
    z, spread = np.asarray(marker.value)[:, :, 0, 0], np.asarray(marker.spread)[:, :, 0, 0]
    gaussian = -0.5 * ((change - z) / np.exp(spread)) ** 2 - spread
    np.testing.assert_allclose(information[2], (gaussian[0] - gaussian[1]).mean(), rtol=1e-3, atol=1e-5)
    z = np.asarray(flag.value)[:, :, 0, :, 0]  # of four networks that vote
    bernoulli = (data.next_state[:, 5:] * z - np.log1p(np.exp(z))).mean(2)
    np.testing.assert_allclose(information[3], (bernoulli[0] - bernoulli[1]).mean(), rtol=1e-3, atol=1e-5)
    assert np.abs(information[2:]).min() > 1e-4
    assert body.value.shape == (2, 40, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unlock", "crash"])
def test_inputs_left_out_have_no_path_to_a_target(kind):
    data = small(kind, episodes=2)
    layout, stats = layout_and_statistics(data)
    model = untrained(lambda key: ParentsModel(layout, CDLConfig(hidden=8, features=8), stats, key))
    mask = stream(0, "mask").random((len(layout.inputs), len(data.factors.state))) < 0.5
    mask = np.maximum(mask, np.eye(*mask.shape)).astype(np.float32)

    def nll(x):
        state, next_state = x[: data.factors.state_size], jnp.asarray(data.next_state[0])
        return negative_log_likelihood(layout, stats, model(stats, jnp.asarray(mask), x), state, next_state)

    x = jnp.asarray(np.concatenate([data.state[0], data.action[0]]))
    slope = np.abs(jax.jit(jax.jacrev(nll))(x))
    effect = np.stack([slope[:, columns].max(1) for columns in layout.columns])
    assert (effect[mask == 0] == 0).all()
    assert (effect[mask > 0] > 0).mean() > 0.7  # a maximum need not let all of them through


def test_the_papers_table():
    for name, hidden in (("lift", 256), ("unlock", 64), ("crash", 128)):
        c = make_method("cdl", world=name, tuned=False).config
        assert (c.hidden, c.initial, c.sparsity) == (hidden, 1.0, 0.001)
        assert c.behaviour_hidden == (256 if name == "lift" else 128)


def walk(n=30):
    """A walker that an action moves: rows of an episode follow each other."""
    push = stream(0, "walk").normal(size=(n, 1))
    x = np.cumsum(np.vstack([np.zeros((1, 1)), push]), axis=0)
    return line(x[:-1, 0], push[:, 0], x[1:, 0])


def test_rows_follow_in_one_episode_from_where_the_last_one_ended():
    data = walk()
    data.state[15] += 1
    rows = cdl.following_rows(data, np.arange(30) != 3)
    expected = np.ones(30)
    expected[[9, 14, 19, 29]] = 0
    np.testing.assert_array_equal(rows["follows"], np.delete(expected, 3))
    np.testing.assert_array_equal(rows["action_2"][3], data.action[5])
    np.testing.assert_array_equal(rows["state_2"][3], data.next_state[5])


def test_second_step_starts_from_the_expected_state():
    data = walk()
    layout, stats = layout_and_statistics(data)
    model = untrained(lambda key: ParentsModel(layout, CDLConfig(hidden=8, features=8), stats, key))
    batch = data.batch(data.step >= 0) | cdl.following_rows(data, data.step >= 0)

    def step(state, action):
        (out,) = model_rows(jnp.stack([jnp.asarray(state), jnp.asarray(action)], 1))
        return state + np.asarray(out.value)[:, 0, 0] * float(stats.change[0]), np.asarray(out.spread)[:, 0, 0]

    def nll(after, mean, spread):
        error = (after - mean) / float(stats.change[0]) / np.exp(spread)
        return (error**2 / 2 + spread) * np.exp(spread)

    model_rows = jax.jit(jax.vmap(lambda x: model(stats, jnp.ones((2, 1)), x)))
    imagined, spread = step(data.state[:, 0], data.action[:, 0])
    first = nll(data.next_state[:, 0], imagined, spread)
    second = nll(np.asarray(batch["state_2"])[:, 0], *step(imagined, np.asarray(batch["action_2"])[:, 0]))
    config = CDLConfig(variant="regularised", second_step=2.0)
    learner = cdl.Learner(model, jnp.full((2, 1), 9.0))
    _, metrics = jax.jit(lambda batch: cdl.cdl_loss(config, stats, {}, learner, (), batch, jax.random.key(0)))(batch)
    np.testing.assert_allclose(metrics["nll"], (first + 2 * np.asarray(batch["follows"]) * second).mean(), rtol=1e-3)
