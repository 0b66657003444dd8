"""TD3+BC: its equations against plain NumPy, and better than the behaviour where the best action is known."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.presets import TD3BC_PAPER, WORLD_SETTINGS
from because_rl.algorithms.registry import configure, make_method
from because_rl.algorithms.td3bc import (
    Nets,
    TD3BCConfig,
    make_actions,
    relabel_goals,
    standardise_rewards,
    td3bc_stage,
)
from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec, GoalFactor, pack
from because_rl.models.state_features import StateFeatures
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.training.stage import fit
from because_rl.transitions import Transitions
from tests.algorithms.builders import layout_and_statistics, untrained
from tests.support import largest

CELLS, HORIZON = 7, 6


class Steps:
    """A walk on seven cells; the actions are left, stay, right."""

    factors = FactorSpec(
        pack(("cell", CELLS, "categorical")),
        pack(("move", 3, "categorical")),
        (GoalFactor("there", 0, CELLS, "categorical", factor="cell"),),
        codes=tuple(tuple(row) for row in np.eye(3).tolist()),
    )

    def begin(self, rng, n):
        start, goal = rng.integers(0, CELLS, (2, n))
        goal = np.where(goal == start, (goal + 3) % CELLS, goal)
        return np.eye(CELLS)[start], np.eye(CELLS)[goal]

    def behave(self, rng, n):
        return rng.integers(0, 3, n)

    def step(self, state, action):
        return np.eye(CELLS)[np.clip(state.argmax(1) + action - 1, 0, CELLS - 1)]


class Slide:
    """A point on [-1, 1] that is pushed by up to 0.4; the goal is a place."""

    factors = FactorSpec(
        pack(("x", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("there", 0, 1, "continuous", factor="x", tolerance=0.25),),
    )

    def begin(self, rng, n):
        start = rng.uniform(-1, 1, (n, 1))
        goal = rng.uniform(-1, 1, (n, 1))
        return start, np.where(abs(start - goal) < 0.5, -np.sign(start) * 0.8, goal)

    def behave(self, rng, n):
        return rng.uniform(-0.4, 0.4, (n, 1))

    def step(self, state, action):
        return np.clip(state + np.clip(action, -0.4, 0.4), -1, 1)


def rollout(world, rng, n, act):
    """All n episodes to the horizon; rows after success are marked by `alive`."""
    state, goal = world.begin(rng, n)
    alive, rows = np.ones(n, bool), []
    for t in range(HORIZON):
        action = act(state, goal, t)
        after = world.step(state, action)
        reached = np.asarray(world.factors.reached(after, goal)) & alive
        rows.append((state, world.factors.encode_action(action), after, goal, reached, alive, np.full(n, t)))
        alive, state = alive & ~reached, after
    return [np.stack(part, 1) for part in zip(*rows, strict=True)], ~alive


def logged(world, n, seed=0):
    rng = stream(seed, "line")
    rows, success = rollout(world, rng, n, lambda state, goal, t: world.behave(rng, n))
    state, action, after, goal, reached, alive, step = (part.reshape(-1, *part.shape[2:]) for part in rows)
    episode = np.repeat(np.arange(n), HORIZON)
    floats = [part[alive].astype(np.float32) for part in (state, action, after, goal, reached)]
    data = Transitions(world.factors, *floats, reached[alive], episode[alive], step[alive], HORIZON)
    return data, success.mean()


# The behaviours here are uniformly random: to stay near them is to stay put, so the critics must count for more.
# With a discount of .99 a detour of a step would cost 1%, less than the critics' errors.
LEARN = {"alpha": 10.0, "hidden": 32, "batch": 128, "steps": 1500, "critic_rate": 3e-3, "actor_rate": 1e-3, "tau": 0.02}
LEARN |= {"discount": 0.9}


@pytest.mark.long
@pytest.mark.parametrize("world", [Steps(), Slide()], ids=["discrete", "continuous"])
def test_the_policy_beats_the_behaviour(world):
    data, behaviour = logged(world, 1200)
    agent = make_method("td3bc", LEARN).fit(data, Run([0, 1]))
    controller = agent.start(100)
    for k in range(2):

        def act(state, goal, t, k=k):
            both = controller.act(np.stack([state] * 2), np.stack([goal] * 2), HORIZON - t)
            assert np.issubdtype(both.dtype, np.floating if world.factors.codes is None else np.integer)
            return both[k]

        _, success = rollout(world, stream(5, "fresh"), 100, act)
        assert behaviour < 0.5
        assert success.mean() > 0.9
    assert agent._act._cache_size() == 1  # one program for all steps


def pieces(world, **settings):
    data, _ = logged(world, 30)
    config = TD3BCConfig(**{"hidden": 8, "steps": 6, "batch": 32, "noise": 0.0, "tau": 0.1} | settings)
    _, stats = layout_and_statistics(data)
    features, actions = StateFeatures(data.factors, stats), make_actions(data.factors, stats)
    return data, config, features, actions, td3bc_stage(config, features, actions)


def forward(net, x, k=None):
    """The MLP of a network without slots in NumPy; `k`: which of several."""
    weights, biases = ([np.asarray(a, np.float64) for a in part] for part in (net.mlp.weights, net.mlp.biases))
    if k is not None:
        weights, biases = [w[k] for w in weights], [b[k] for b in biases]
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        z = x @ w.T + b
        x = z / (1 + np.exp(-z))
    return x @ weights[-1].T + biases[-1]


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def expected_terms(data, features, actions, nets):
    """The paper's terms in NumPy, (rows,) each: of y, L_Q (two of it), L_pi's value and its distance."""
    x, next_x = (np.asarray(jax.vmap(features)(rows, data.goal)) for rows in (data.state, data.next_state))
    if data.factors.codes is None:
        u = (data.action - np.asarray(actions.middle)) / np.asarray(actions.half)

        def q(critics, x, u):
            return np.stack([forward(critics, np.hstack([x, u]), k)[:, 0] for k in range(2)])

        next_value = q(nets.target_critics, next_x, np.tanh(forward(nets.target_actor, next_x))).min(0)
        pi = np.tanh(forward(nets.actor, x))
        return next_value, q(nets.critics, x, u), q(nets.critics, x, pi)[0], ((pi - u) ** 2).mean(1)

    def each(critics, x):
        return np.stack([forward(critics, x, k) for k in range(2)])

    chosen, rows = data.action.argmax(1), np.arange(len(data))
    next_value = (softmax(forward(nets.target_actor, next_x)) * each(nets.target_critics, next_x).min(0)).sum(1)
    q, pi = each(nets.critics, x), softmax(forward(nets.actor, x))
    return next_value, q[:, rows, chosen], (pi * q.min(0)).sum(1), -np.log(pi[rows, chosen])


@pytest.mark.parametrize("world", [Steps(), Slide()], ids=["discrete", "continuous"])
def test_the_losses_are_those_of_the_paper(world):
    data, config, features, actions, stage = pieces(world)

    def make(key):
        networks = [actions.make_networks(config, features, key) for _ in range(2)]
        return Nets(*networks[0], *networks[1])

    nets = untrained(make)
    batch = data.batch(np.ones(len(data), bool))
    assert batch["terminated"].sum() > 3

    def compute(nets):
        def loss(nets):
            return stage.loss(nets, (), batch, jax.random.key(2))

        def critic_loss(critics):
            return loss(nets._replace(critics=critics))[1]["critic"]

        return jax.value_and_grad(loss, has_aux=True)(nets), jax.grad(critic_loss)(nets.critics)

    ((loss, metrics), gradient), critic_gradient = jax.jit(compute)(nets)
    next_value, logged_value, value, distance = expected_terms(data, features, actions, nets)
    y = data.reward + 0.99 * np.where(data.terminated, 0.0, next_value)
    critic = ((logged_value - y) ** 2).mean(1).sum()
    np.testing.assert_allclose(metrics["critic"], critic, rtol=1e-4)
    np.testing.assert_allclose(metrics["distance"], distance.mean(), rtol=1e-4)
    actor = distance.mean() - config.alpha * value.mean() / abs(value).mean()
    np.testing.assert_allclose(loss, critic + actor, rtol=1e-4)
    assert largest((gradient.target_actor, gradient.target_critics)) == 0
    for a, b in zip(jax.tree.leaves(gradient.critics), jax.tree.leaves(critic_gradient), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)  # the actor's loss does not move the critics


@pytest.mark.slow
def test_the_actor_is_delayed_and_targets_follow():
    data, _, _, _, stage = pieces(Slide(), delay=3)
    history = []
    fit(stage, data.batch(~data.held_out), (), [0], chunk=1, report=lambda stage, p, metrics: history.append(p.params))

    def flat(part):
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(part)])

    for t in range(1, 6):
        before, now, is_actor_step = history[t - 1], history[t], t % 3 == 0
        assert (flat(before.actor) != flat(now.actor)).any() == is_actor_step
        assert (flat(before.critics) != flat(now.critics)).any()
        for name in ("actor", "critics"):
            expected = flat(getattr(before, f"target_{name}"))
            if is_actor_step:
                expected = 0.9 * expected + 0.1 * flat(getattr(now, name))
            np.testing.assert_allclose(flat(getattr(now, f"target_{name}")), expected, atol=1e-6)


def test_relabelled_goals_ask_for_other_subsets_and_rewards_follow():
    """Of two switches that the log asks for one at a time, critics also learn of both together."""
    switches = pack(("first", 1, "binary"), ("second", 1, "binary"))
    goals = tuple(
        GoalFactor(f"{f.name} on", f.start, f.stop, "binary", factor=f.name, relation="at_least") for f in switches
    )
    factors = FactorSpec(switches, pack(("push", 1, "continuous")), goals)
    rng = stream(0, "switches")
    state = jnp.asarray(rng.integers(0, 2, (4000, 2)), jnp.float32)
    logged_goal = jnp.tile(jnp.asarray([[1.0, 0.0]]), (4000, 1))
    reward = jnp.full(4000, 7.0)
    batch = {"goal": logged_goal, "next_state": state, "reward": reward, "terminated": reward}
    out = jax.jit(partial(relabel_goals, factors, 0.5))(batch, jax.random.key(0))
    drawn = np.asarray(out["reward"]) != 7
    assert 0.45 < drawn.mean() < 0.55
    np.testing.assert_array_equal(out["goal"][~drawn], logged_goal[~drawn])
    subsets, counts = np.unique(np.asarray(out["goal"])[drawn], axis=0, return_counts=True)
    assert subsets.tolist() == [[0, 1], [1, 0], [1, 1]]
    np.testing.assert_allclose(counts / drawn.sum(), [0.25, 0.25, 0.5], atol=0.05)
    reached = (np.asarray(out["goal"]) <= np.asarray(state)).all(1)
    for name in ("reward", "terminated"):
        np.testing.assert_array_equal(np.asarray(out[name])[drawn], reached[drawn])
    assert relabel_goals(Slide.factors, 0.5, batch, jax.random.key(0)) is batch  # no switches: nothing is relabelled


def test_the_papers_table():
    for world, hidden, critic, actor, tau, alpha in (
        ("lift", 256, 3e-4, 3e-4, 0.005, 1.0),
        ("unlock", 64, 3e-3, 1e-3, 0.001, 2.5),
        ("crash", 128, 3e-4, 1e-4, 0.0001, 2.5),
    ):
        c = configure(TD3BCConfig(), TD3BC_PAPER[world])
        assert make_method("td3bc", world=world, tuned=False).config == replace(
            c, alpha=WORLD_SETTINGS["td3bc"][world]["alpha"], steps=100_000
        )
        assert (c.hidden, c.critic_rate, c.actor_rate, c.tau, c.alpha) == (hidden, critic, actor, tau, alpha)
        assert (c.discount, c.noise) == (0.99, 0.2)


def test_discrete_actions_need_codes():
    data, *_ = pieces(Slide())
    factors = FactorSpec(data.factors.state, (Factor("push", 0, 1, "binary"),))
    with pytest.raises(BecauseError, match=r"'push' is binary.*codes"):
        make_actions(factors, layout_and_statistics(data)[1])


def test_the_unit_of_logged_rewards_changes_nothing():
    """Nor does a constant, if no episode ends early; where one does, each step that it lasts counts."""
    factors, rng = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 1, "continuous"))), stream(0, "rewards")
    state, action, after = rng.normal(size=(64, 1)), rng.uniform(-1, 1, (64, 1)), rng.normal(size=(64, 1))
    reward, last = -(after[:, 0] ** 2), np.arange(64) % 8 == 7
    logged = Transitions.from_arrays(state, action, after, np.arange(64) // 8, factors=factors, reward=reward)

    def learned(reward, ends):
        data = replace(logged, reward=reward, terminated=ends)
        agent = make_method("td3bc", {"steps": 40, "hidden": 8, "critic_rate": 0.01, "actor_rate": 0.01}).fit(data, 1)
        return agent.start(64).act(data.state[None], data.goal[None], 1)

    for ends, constant_matters in ((last & False, False), (last, True)):
        plain = learned(reward, ends)
        np.testing.assert_allclose(learned(50 * reward, ends), plain, atol=1e-3)
        assert (np.abs(learned(reward + 30, ends) - plain).max() > 1e-3) == constant_matters


def test_rewards_that_are_all_the_same_have_a_size_of_one():
    np.testing.assert_allclose(standardise_rewards(np.full(8, 3.0, np.float32), episodes_end=True), 1.0)
