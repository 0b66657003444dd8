"""CCIL and ICIL: what they are to ignore they ignore, and the policy still does what the data do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import icil
from because_rl.algorithms.icil import ICILConfig, LangevinConfig
from because_rl.algorithms.registry import make_method
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.behaviour_policy import action_statistics, behaviour_loss
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP
from because_rl.models.policy import Categorical, Mixture, PolicyInput, action_distribution, coin, sample_one_hot
from because_rl.models.prepared_data import statistics
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.training.stage import start
from because_rl.transitions import Transitions
from tests.support import LENGTH, largest, logged, of_seed, quick, small


def confounded(episodes=300, seed=0):
    """The action follows the cause; a marker shows which of two environments the episode is in; a nuisance, nothing."""
    rng, n = stream(seed, "confounded"), episodes * LENGTH
    side = np.repeat(rng.choice([-1.0, 1.0], episodes), LENGTH)
    cause, nuisance = rng.normal(size=(2, n))
    marker = side + 0.3 * rng.normal(size=n)
    action = np.clip(0.5 * np.tanh(2 * cause) + 0.1 * rng.normal(size=n), -1, 1)
    state = np.stack([cause, marker, nuisance], 1)
    after = np.stack([cause + action, marker + 0.1 * side, nuisance], 1)
    factors = FactorSpec(
        pack(("cause", 1, "continuous"), ("marker", 1, "continuous"), ("nuisance", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("there", 0, 1, "continuous", factor="cause"),),
    )
    return logged(factors, state, action[:, None], after, np.zeros((n, 1))), side


def acted(agent, data, rows=200):
    agent.begin(rows, 0)
    seen = [np.stack([part[:rows]] * len(agent.seeds)) for part in (data.state, data.goal)]
    return agent.act(*seen, LENGTH)


# CCIL ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_ccil_drops_what_does_not_matter():
    data, _ = confounded()
    settings = {
        "hidden": 32,
        "batch": 128,
        "steps": 1000,
        "rate": 3e-3,
        "greedy": True,
        "mask_rate": 0.02,
        "weight": 0.03,
    }
    agent = make_method("ccil", settings).fit(data, Run([0, 1]))
    cause, marker, nuisance = np.asarray(jax.nn.sigmoid(agent._actors.theta)).T
    assert (cause > 0.9).all()
    assert (marker < 0.5).all()
    assert (nuisance < 0.5).all()
    wanted = 0.5 * np.tanh(2 * data.state[:200, 0])
    assert abs(acted(agent, data)[:, :, 0] - wanted).max() < 0.2
    other = Transitions(**(vars(data) | {"state": data.state * [1, -1, 5] + np.float32([0, 3, -2])}))
    np.testing.assert_array_equal(acted(agent, data), acted(agent, other))  # what is dropped has no effect at all


# ICIL ------------------------------------------------------------------------------------------------
BRIEF = {"langevin.training": 40, "langevin.steps": 5, "langevin.buffer": 64, "langevin.chains": 16}


def told_of(agent, data, side, k=0):
    """The share of phi's variance that is between the environments."""
    keep = ~data.held_out
    stats = statistics(Layout(data.factors), data.state[keep], data.action[keep], data.next_state[keep])
    x = jax.vmap(PolicyInput(data.factors, stats))(jnp.asarray(data.state), jnp.asarray(data.goal))[:, :3]
    phi = np.asarray(jax.vmap(partial(icil.encode, of_seed(agent._actors.phi, k)))(x))
    apart = phi[side > 0].mean(0) - phi[side < 0].mean(0)
    return (apart**2).sum() / 4 / phi.var(0).sum()


@pytest.mark.slow
def test_icils_phi_forgets_the_environment_and_the_policy_still_fits():
    data, side = confounded()
    settings = BRIEF | {"greedy": True, "hidden": 32, "batch": 128, "steps": 800, "rate": 3e-3, "classifier_rate": 1e-2}
    agent = make_method("icil", settings | {"fooling": 1.0}).fit(data, Run([0, 1]))
    assert np.mean([told_of(agent, data, side, k) for k in range(2)]) < 0.08  # .126 with fooling=0, .30 of the state
    wanted = 0.5 * np.tanh(2 * data.state[:200, 0])
    assert (abs(acted(agent, data)[:, :, 0] - wanted).mean(1) < 0.08).all()


@pytest.mark.parametrize(("name", "settings"), [("ccil", {}), pytest.param("icil", BRIEF, marks=pytest.mark.slow)])
def test_what_was_seen_of_discrete_actions_is_cloned(name, settings):
    """Two cells decide the action: greedy by default, so nothing may be wrong on rows that were trained on."""
    data, cell = small("unlock", 40), np.arange(4)
    agent, key = data.state[:, :4] @ cell, data.state[:, 4:8] @ cell
    number = np.where(data.state[:, 4:8].any(1), (agent + key) % 3, 2).astype(int)
    data = Transitions(**(vars(data) | {"action": data.factors.encode_action(number).astype(np.float32)}))
    settings = settings | {"hidden": 32, "batch": 64, "steps": 400, "rate": 5e-3}
    clone = make_method(name, settings).fit(data, Run([0, 1]))
    seen = ~data.held_out[:200]
    np.testing.assert_array_equal(acted(clone, data)[:, seen], np.stack([number[:200][seen]] * 2))


def test_environments_are_the_clusters_of_episodes():
    data, side = confounded(40)
    keep = ~data.held_out
    stats = statistics(Layout(data.factors), data.state, data.action, data.next_state)
    found = icil.environments(data, keep, stats, 2)
    assert abs(np.corrcoef(found, side[keep])[0, 1]) > 0.99
    with pytest.raises(BecauseError, match="environments=1 for 36 episodes"):
        icil.environments(data, keep, stats, 1)


def pieces(data, **settings):
    """The stage's loss on some rows, with networks and an energy that are drawn, not trained."""
    config = ICILConfig(hidden=8, batch=32, **settings)
    stats = statistics(Layout(data.factors), data.state, data.action, data.next_state)
    view, law, sizes = PolicyInput(data.factors, stats), action_distribution(data.factors, data.action), data.factors
    stage = icil.icil_stage(config, view, stats, law, sizes.state_size, sizes.action_size)
    energy = MLP((sizes.state_size, 8, 1), jax.random.key(1))
    nets = of_seed(start(stage, (), [0]).params, 0)
    batch = data.batch(data.episode < 4)
    batch["environment"] = jnp.asarray(np.arange(len(batch["state"])) % 2, jnp.float32)
    return lambda nets: stage.loss(nets, energy, batch, jax.random.key(2)), nets


def test_each_player_descends_its_own_loss_and_the_energy_reaches_the_policy():
    loss, nets = pieces(small("lift"))
    slopes = quick(jax.jacrev(lambda nets: loss(nets)[1]))(nets)
    assert largest(slopes["energy"].policy) > 1e-4  # through the imagined state
    assert largest(slopes["energy"].phi) > 1e-5
    assert largest(slopes["energy"]._replace(policy=0.0, phi=0.0)) == 0.0  # nobody may lower it by imagining wrongly
    assert largest(slopes["fooling"]._replace(phi=0.0)) == 0.0
    assert largest(slopes["fooling"].phi) > 1e-5
    assert largest(slopes["classifier"]._replace(classifier=0.0)) == 0.0
    assert largest(slopes["classifier"].classifier) > 1e-3
    assert largest(slopes["information"].mine) == 0.0
    for part in (slopes["dynamics"].phi, slopes["dynamics"].eta, slopes["dynamics"].forth_eta, slopes["dynamics"].psi):
        assert largest(part) > 1e-5
    assert largest(slopes["imitation"]._replace(policy=0.0, phi=0.0)) == 0.0


def test_mine_against_numpy():
    rng = stream(0, "mine")
    phi, eta = rng.normal(size=(2, 50, 3)).astype(np.float32)

    def witness(row):
        return row[:1] * row[3:4] + 0.5 * row[2:3]

    value = icil.information(witness, jnp.asarray(phi), jnp.asarray(eta))
    together, apart = (phi[:, 0] * part[:, 0] + 0.5 * phi[:, 2] for part in (eta, np.roll(eta, 1, 0)))
    np.testing.assert_allclose(value, together.mean() - np.log(np.exp(apart).mean()), rtol=1e-5)


def test_the_energy_is_low_where_data_are_and_its_chains_move():
    data, _ = confounded(40)
    stats = statistics(Layout(data.factors), data.state, data.action, data.next_state)
    view = PolicyInput(data.factors, stats)
    langevin = LangevinConfig(training=150, steps=20, chains=32, buffer=96)
    stage = icil.energy_stage(ICILConfig(hidden=16, langevin=langevin), view, jnp.full(3, -3.0), jnp.full(3, 3.0))
    rows = data.batch(~data.held_out)
    run = Run([0, 1], chunk=50)
    model = run.fit(stage, rows, ())
    assert model.buffer.shape == (2, 96, 3)
    assert (model.buffer[0] != model.buffer[1]).all()  # each seed has noise of its own
    x = jax.vmap(view)(rows["next_state"], rows["goal"])[:, :3]
    anywhere = jnp.asarray(stream(1, "anywhere").uniform(-3, 3, (500, 3)), jnp.float32)
    for k in range(2):
        height = jax.vmap(of_seed(model.net, k))
        assert float(height(x).mean()) < float(height(anywhere).mean()) - 0.1


# The laws of actions ---------------------------------------------------------------------------------
def test_draws_follow_their_law():
    u = jnp.asarray(stream(0, "draws").random((4000, 3)), jnp.float32)
    logits = jnp.asarray([0.5, -1.0, 0.0])
    ones, coins = quick(lambda u: (jax.vmap(partial(sample_one_hot, logits))(u), coin(logits[None], u)))(u)
    np.testing.assert_allclose(ones.mean(0), jax.nn.softmax(logits), atol=0.03)
    np.testing.assert_allclose(coins.mean(0), jax.nn.sigmoid(logits), atol=0.03)
    assert (quick(jax.grad(lambda z: coin(z, u[0]).sum()))(logits) > 0).all()


def test_the_mixture_is_the_behaviours():
    rng = stream(0, "mixture")
    action = np.stack([rng.normal(size=64), rng.choice([-1.0, 1.0], 64)], 1).astype(np.float32)
    law, every = Mixture(action_statistics(action)), jnp.asarray(action)
    out = jnp.asarray(rng.normal(size=law.outputs), jnp.float32)

    def both(out):
        batch = {name: every for name in ("state", "goal", "action")}
        nll, _ = behaviour_loss(None, law.actions, lambda *_: law.law(out), None, batch, None)
        return nll, jax.vmap(partial(law.cost, out))(every).mean()

    np.testing.assert_allclose(*quick(both)(out), rtol=1e-5)
    # One component, whose Gaussian is narrow and whose coin is not quite fair.
    sharp = np.asarray(out).reshape(4, 5).copy()
    sharp[2] = [30.0, 0.4, 0.7, -30.0, 0.0]
    drawn = quick(lambda u: jax.vmap(partial(law.draw, jnp.asarray(sharp.ravel())))(u))
    some = np.asarray(drawn(jnp.asarray(rng.random((2000, law.noise)), jnp.float32)))
    assert set(np.unique(some[:, 1])) == {-1.0, 1.0}
    np.testing.assert_allclose((some[:, 1] > 0).mean(), 1 / (1 + np.exp(-0.7)), atol=0.03)
    likeliest = quick(lambda out: law.act(out, None))(jnp.asarray(sharp.ravel()))
    np.testing.assert_allclose(likeliest, [action[:, 0].mean() + 0.4 * action[:, 0].std(), 1.0], rtol=1e-4)
    np.testing.assert_allclose(some[:, 0].mean(), likeliest[0], atol=0.01)
    assert np.isfinite(drawn(jnp.zeros((1, law.noise)))).all()


def test_the_categorical_acts_by_number_and_draws_codes():
    law = Categorical(jnp.asarray([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    out, u = jnp.asarray([0.0, 3.0, 1.0]), jnp.asarray([0.5, 0.01, 0.9])
    assert int(law.act(out, None)) == 1
    np.testing.assert_allclose(law.cost(out, jnp.asarray([1.0, 1.0])), -jax.nn.log_softmax(out)[2], rtol=1e-6)
    np.testing.assert_allclose(law.draw(out, u), law.codes[law.act(out, u)])
    assert (quick(jax.grad(lambda out: law.draw(out, u).sum()))(out) != 0).all()


# Worlds and tables -----------------------------------------------------------------------------------
def test_the_papers_tables():
    for world, hidden, weight, rate in (
        ("lift", 256, 1e-4, 1e-4),
        ("unlock", 64, 1e-3, 1e-3),
        ("crash", 128, 1e-4, 1e-4),
    ):
        c = make_method("ccil", world=world, tuned=False).config
        assert (c.hidden, c.weight, c.rate, c.keep) == (hidden, weight, rate, 0.95)
        c = make_method("icil", world=world, tuned=False).config
        assert (c.hidden, c.mine_rate) == (hidden, 1e-4)
        e = c.langevin
        assert (e.rate, e.buffer, e.training, e.steps, e.spread) == (0.01, 1000, 1000, 60, 0.01)
