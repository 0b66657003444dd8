"""TD3+BC: its equations against plain NumPy, and better than the behaviour on lines one can see through."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.presets import TD3BC_PAPER, WORLD_SETTINGS
from because_rl.algorithms.registry import configure, make_method
from because_rl.algorithms.td3bc import Nets, PolicyInput, TD3BCConfig, make_actions, td3bc_stage
from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec, GoalFactor, pack
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import statistics
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.training.stage import fit
from because_rl.transitions import Transitions

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


# The behaviours here are evenly random: to stay near them is to stay put, so the critics must count for more.
LEARN = {"alpha": 10.0, "hidden": 32, "batch": 128, "steps": 1500, "critic_rate": 3e-3, "actor_rate": 1e-3, "tau": 0.02}


@pytest.mark.parametrize("world", [Steps(), Slide()], ids=["discrete", "continuous"])
def test_the_policy_beats_the_behaviour(world):
    data, behaviour = logged(world, 1200)
    agent = make_method("td3bc", LEARN).fit(data, Run([0, 1]))
    agent.begin(100, 0)
    for k in range(2):

        def act(state, goal, t, k=k):
            both = agent.act(np.stack([state] * 2), np.stack([goal] * 2), HORIZON - t)
            assert np.issubdtype(both.dtype, np.floating if world.factors.codes is None else np.integer)
            return both[k]

        _, success = rollout(world, stream(5, "fresh"), 100, act)
        assert behaviour < 0.5
        assert success.mean() > 0.8
    assert agent._act._cache_size() == 1  # one program for all steps


def forward(weights, biases, x):
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        z = x @ w.T + b
        x = z / (1 + np.exp(-z))
    return x @ weights[-1].T + biases[-1]


def pieces(world, **settings):
    data, _ = logged(world, 30)
    config = TD3BCConfig(**{"hidden": 8, "steps": 6, "batch": 32, "noise": 0.0, "tau": 0.1} | settings)
    stats = statistics(Layout(data.factors), data.state, data.action, data.next_state)
    view, actions = PolicyInput(data.factors, stats), make_actions(data.factors, stats)
    return data, config, view, actions, td3bc_stage(config, view, actions)


@pytest.mark.parametrize("world", [Steps(), Slide()], ids=["discrete", "continuous"])
def test_the_losses_are_the_papers(world):
    data, config, view, actions, stage = pieces(world)
    k1, k2 = jax.random.split(jax.random.key(1))
    (actor, critics), (slow_actor, slow_critics) = (actions.nets(config, view.size, k) for k in (k1, k2))
    nets = Nets(actor, critics, slow_actor, slow_critics)
    batch = data.batch(np.ones(len(data), bool))
    assert batch["terminated"].sum() > 3
    losses = jax.jit(lambda nets: stage.loss(nets, (), batch, jax.random.key(2)))
    loss, metrics = losses(nets)

    def net(module, x, k=None):
        pick = [np.asarray(a, np.float64)[k] if k is not None else np.asarray(a, np.float64) for a in module.weights]
        bias = [np.asarray(a, np.float64)[k] if k is not None else np.asarray(a, np.float64) for a in module.biases]
        return forward(pick, bias, x)

    def see(state):
        return (np.hstack([state, data.goal]) - np.asarray(view.mean)) / np.asarray(view.scale)

    x, x1 = see(data.state), see(data.next_state)
    if world.factors.codes is None:
        u = (data.action - np.asarray(actions.middle)) / np.asarray(actions.half)

        def q(module, x, u):
            return np.stack([net(module, np.hstack([x, u]), k)[:, 0] for k in range(2)])

        ahead = q(slow_critics, x1, np.tanh(net(slow_actor, x1))).min(0)
        taken = q(critics, x, u)
        value = q(critics, x, np.tanh(net(actor, x)))[0]
        distance = ((np.tanh(net(actor, x)) - u) ** 2).mean(1)
    else:

        def softmax(z):
            e = np.exp(z - z.max(1, keepdims=True))
            return e / e.sum(1, keepdims=True)

        def each(module, x):
            return np.stack([net(module, x, k) for k in range(2)])

        chosen, rows = data.action.argmax(1), np.arange(len(data))
        ahead = (softmax(net(slow_actor, x1)) * each(slow_critics, x1).min(0)).sum(1)
        taken = each(critics, x)[:, rows, chosen]
        value = (softmax(net(actor, x)) * each(critics, x).min(0)).sum(1)
        distance = -np.log(softmax(net(actor, x))[rows, chosen])
    y = data.reward + 0.99 * np.where(data.terminated, 0.0, ahead)
    critic = ((taken - y) ** 2).mean(1).sum()
    np.testing.assert_allclose(metrics["critic"], critic, rtol=1e-4)
    np.testing.assert_allclose(metrics["distance"], distance.mean(), rtol=1e-4)
    np.testing.assert_allclose(
        loss, critic + distance.mean() - config.alpha * value.mean() / abs(value).mean(), rtol=1e-4
    )

    gradient = jax.jit(jax.grad(lambda nets: losses(nets)[0]))(nets)
    assert all(float(abs(leaf).max()) == 0 for leaf in jax.tree.leaves((gradient.slow_actor, gradient.slow_critics)))
    without = jax.jit(jax.grad(lambda critics: losses(nets._replace(critics=critics))[1]["critic"]))(critics)
    for a, b in zip(jax.tree.leaves(gradient.critics), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)  # the actor's loss does not move the critics


def test_the_actor_waits_and_the_slow_copies_follow():
    data, _, _, _, stage = pieces(Slide(), delay=3)
    seen = []
    fit(stage, data.batch(~data.held_out), (), [0], chunk=1, report=lambda stage, p, metrics: seen.append(p.params))

    def flat(part):
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(part)])

    for t in range(1, 6):
        before, now, due = seen[t - 1], seen[t], t % 3 == 0
        assert (flat(before.actor) != flat(now.actor)).any() == due
        assert (flat(before.critics) != flat(now.critics)).any()
        for slow, quick in (("slow_actor", "actor"), ("slow_critics", "critics")):
            wanted = flat(getattr(before, slow))
            if due:
                wanted = 0.9 * wanted + 0.1 * flat(getattr(now, quick))
            np.testing.assert_allclose(flat(getattr(now, slow)), wanted, atol=1e-6)


def test_goals_are_seen_in_the_units_of_what_they_are_about():
    _, _, view, _, _ = pieces(Slide())
    seen = view(jnp.asarray([0.3]), jnp.asarray([0.3]))
    assert float(seen[0]) == float(seen[1])


def test_the_papers_table():
    for world, hidden, critic, actor, tau, alpha in (
        ("lift", 256, 3e-4, 3e-4, 0.005, 1.0),
        ("unlock", 64, 3e-3, 1e-3, 0.001, 2.5),
        ("crash", 128, 3e-4, 1e-4, 0.0001, 2.5),
    ):
        c = configure(TD3BCConfig(), TD3BC_PAPER[world])
        assert make_method("td3bc", world=world, tuned=False).config == replace(
            c, alpha=WORLD_SETTINGS["td3bc"][world]["alpha"]
        )
        assert (c.hidden, c.critic_rate, c.actor_rate, c.tau, c.alpha) == (hidden, critic, actor, tau, alpha)
        assert (c.discount, c.noise) == (0.99, 0.2)


def test_discrete_actions_need_codes():
    data, *_ = pieces(Slide())
    factors = FactorSpec(data.factors.state, (Factor("push", 0, 1, "binary"),))
    with pytest.raises(BecauseError, match=r"'push' is binary.*codes"):
        make_actions(factors, statistics(Layout(data.factors), data.state, data.action, data.next_state))
