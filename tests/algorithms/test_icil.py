"""ICIL: phi forgets the environment, the policy still imitates, and each network descends its own loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms import icil
from because_rl.algorithms.icil import ICILConfig, LangevinConfig
from because_rl.algorithms.registry import make_method
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.nets import MLP
from because_rl.models.policy import PolicyInput
from because_rl.models.prepared_data import summarise
from because_rl.rng import stream
from because_rl.training.run import Run
from tests.algorithms.builders import (
    actions_by_cells,
    actions_on_first_rows,
    confounded,
    layout_and_statistics,
    untrained,
)
from tests.support import LENGTH, largest, logged, of_seed, small

BRIEF = {"langevin.training": 40, "langevin.steps": 5, "langevin.buffer": 64, "langevin.chains": 16}


def variance_between_environments(agent, data, side, k):
    """The share of phi's variance that is between the environments, for seed number k."""
    features, net = icil.state_features(agent.summary), of_seed(agent.actors.nets.phi, k)
    phi = np.asarray(jax.jit(jax.vmap(lambda state: icil.encode(net, features(state, jnp.zeros(0)))))(data.state))
    difference = phi[side > 0].mean(0) - phi[side < 0].mean(0)
    return (difference**2).sum() / 4 / phi.var(0).sum()


@pytest.mark.slow
def test_phi_forgets_the_environment_and_the_policy_still_imitates():
    data, side = confounded()
    settings = BRIEF | {"greedy": True, "hidden": 16, "batch": 64, "steps": 500, "rate": 5e-3, "classifier_rate": 2e-2}
    agent = make_method("icil", settings | {"fooling": 1.0}).fit(data, Run([0]))
    assert variance_between_environments(agent, data, side, 0) < 0.04  # .075 with fooling=0, .30 of the state
    actions, expected = actions_on_first_rows(agent, data), 0.5 * np.tanh(2 * data.state[:200, 0])
    assert abs(actions[0, :, 0] - expected).mean() < 0.08


def proxied(episodes, seed, relations):
    """The action follows the cause; a proxy shows it, and the environment of the episode, -1 or 1.

    How strongly it shows the action differs between environments (`relations`). Given the cause it tells .35 nats on
    average at (1.5, .5), so cloning reads it, and with the cause it is distributed otherwise in each environment.
    Only its rank among the rows of one environment and cause would be invariant. Also returns the action that the
    cause asks for.
    """
    rng, n = stream(seed, "environments"), episodes * LENGTH
    side = np.repeat(rng.choice([-1.0, 1.0], episodes), LENGTH)
    cause, noise, blur, nuisance = rng.normal(size=(4, n))
    intended = 0.5 * np.sin(cause)
    action = intended + 0.2 * noise
    proxy = np.where(side > 0, *relations) * action + 0.2 * blur + side
    state = np.stack([cause, proxy, nuisance], 1)
    factors = FactorSpec(
        pack(("cause", 1, "continuous"), ("proxy", 1, "continuous"), ("nuisance", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("there", 0, 1, "continuous", factor="cause"),),
    )
    return logged(factors, state, action[:, None], state, np.zeros((n, 1))), intended


@pytest.mark.long
def test_a_proxy_that_flips_fools_the_policy_only_without_invariance():
    """Two environments, in which the proxy rises with the action 1.5 and .5 times; then it falls in both."""
    (data, _), (flipped, intended) = proxied(300, 0, (1.5, 0.5)), proxied(60, 1, (-1.0, -1.0))
    settings = BRIEF | {"greedy": True, "hidden": 16, "batch": 128, "steps": 2500, "rate": 2e-3}

    def errors(fooling, information):
        chosen = settings | {"fooling": fooling, "information": information, "energy": 0.0}
        actions = actions_on_first_rows(make_method("icil", chosen).fit(data, Run([0, 1])), flipped, len(intended))
        return abs(actions[..., 0] - intended).mean(1)

    cloned, invariant = errors(0.0, 0.0), errors(10.0, 1.0)
    assert (cloned > 0.16).all()
    assert (invariant < 0.7 * cloned).all()


@pytest.mark.long
def test_it_clones_discrete_actions_of_training_rows():
    """By default it takes the likeliest action, so it should be right on every row that it was trained on."""
    data, number = actions_by_cells()
    settings = BRIEF | {"hidden": 32, "batch": 64, "steps": 400, "rate": 5e-3}
    agent = make_method("icil", settings).fit(data, Run([0, 1]))
    train = ~data.held_out[:200]
    actions = actions_on_first_rows(agent, data)
    np.testing.assert_array_equal(actions[:, train], np.stack([number[:200][train]] * 2))


def test_environments_are_the_clusters_of_episodes():
    data, side = confounded(40)
    train, (_, stats) = ~data.held_out, layout_and_statistics(data)
    environment = icil.cluster_episodes(data, train, stats, 2)
    assert abs(np.corrcoef(environment, side[train])[0, 1]) > 0.99
    with pytest.raises(BecauseError, match="environments=1 for 36 episodes"):
        icil.cluster_episodes(data, train, stats, 1)


@pytest.mark.slow
def test_each_network_descends_its_own_loss():
    data, config = small("lift"), ICILConfig(hidden=8, batch=32)
    stage = icil.icil_stage(config, summarise(data))
    energy = untrained(lambda key: MLP((data.factors.state_size, 8, 1), key))
    nets = untrained(lambda key: stage.init(key, energy))
    batch = data.batch(data.episode < 4)
    batch["environment"] = jnp.asarray(np.arange(len(batch["state"])) % 2, jnp.float32)
    slopes = jax.jit(jax.jacrev(lambda nets: stage.loss(nets, energy, batch, jax.random.key(2))[1]))(nets)
    assert largest(slopes["energy"].policy) > 1e-4  # through the imagined state
    assert largest(slopes["energy"].phi) > 1e-5
    assert largest(slopes["energy"]._replace(policy=0.0, phi=0.0)) == 0.0  # it cannot fall by imagining wrongly
    assert largest(slopes["fooling"]._replace(phi=0.0)) == 0.0
    assert largest(slopes["fooling"].phi) > 1e-5
    assert largest(slopes["classifier"]._replace(classifier=0.0)) == 0.0
    assert largest(slopes["classifier"].classifier) > 1e-3
    assert largest(slopes["information"].information) == 0.0
    for part in (slopes["dynamics"].phi, slopes["dynamics"].eta, slopes["dynamics"].next_eta, slopes["dynamics"].psi):
        assert largest(part) > 1e-5
    assert largest(slopes["imitation"]._replace(policy=0.0, phi=0.0)) == 0.0


@pytest.mark.slow
def test_energy_is_low_near_data_and_chains_differ_by_seed():
    data, _ = confounded(40)
    _, stats = layout_and_statistics(data)
    policy_input = PolicyInput(data.factors, stats)
    config = ICILConfig(hidden=16, langevin=LangevinConfig(training=150, steps=20, chains=32, buffer=96))
    stage = icil.energy_stage(config, policy_input, jnp.full(3, -3.0), jnp.full(3, 3.0))
    rows = data.batch(~data.held_out)
    model = Run([0, 1], chunk=50).fit(stage, rows, ())
    assert model.buffer.shape == (2, 96, 3)
    assert (model.buffer[0] != model.buffer[1]).all()
    x = jax.vmap(policy_input)(rows["next_state"], rows["goal"])[:, :3]
    uniform = jnp.asarray(stream(1, "anywhere").uniform(-3, 3, (500, 3)), jnp.float32)
    for k in range(2):
        energy = jax.vmap(of_seed(model.net, k))
        assert float(energy(x).mean()) < float(energy(uniform).mean()) - 0.1


def test_the_papers_table():
    for world, hidden in (("lift", 256), ("unlock", 64), ("crash", 128)):
        c = make_method("icil", world=world, tuned=False).config
        assert (c.hidden, c.mine_rate) == (hidden, 1e-4)
        e = c.langevin
        assert (e.rate, e.buffer, e.training, e.steps, e.spread) == (0.01, 1000, 1000, 60, 0.01)
