"""ICIL (Bica, Jarrett and van der Schaar 2021): invariant causal imitation learning, from what environments share.

phi(s) is to hold the causes of the action, the same in every environment e; eta_e(s) holds the rest, with networks of
its own for each e. T, a network, and the classifier c are their opponents.

    imitation     -E log pi(a | phi(s), g)
    fooling       -E mean_k log c(phi(s))_k - log K, where the classifier c of K environments descends -E log c(phi)_e
    dynamics      E |psi(f(phi(s), a), h_e(eta_e(s), a)) - s'|^2: the two parts together predict the next state
    information   E T(phi, eta) - log E exp T(phi, eta of another row), a bound of I(phi; eta) that T climbs (MINE)
    energy        E U(psi(f(phi(s), b), h_e(eta_e(s), b))) of the imagined next state, b ~ pi(. | phi(s), g)

phi, eta, pi, f, h and psi descend the weighted sum of the five. The last keeps the policy near the data: U is fitted
first, by E U(s') - E U(x) + E U(s')^2 + E U(x)^2 with its gradient clipped at norm .1, and then stays as it is. The
negatives x are chains from a buffer, each moved by Langevin dynamics, x <- x - move dU/dx + spread * normal, and put
back. The policy acts on phi(s) alone, so no environment need be known at test time.

Two differences from the reference code are on purpose. *Its chains climb U*, x <- x + move dU/dx + noise. Samples of
exp(-U), which the fit by contrast needs as negatives, come from chains that descend. Climbing ones only visit states
whose energy is high already, so a region of low energy far from the data would never be corrected. *It fits U on s.*
Where success ends an episode, the state after it is never an s: U would be high in every state that attains the goal,
and the policy would be kept from the last step. In the original's tasks episodes do not end so, and s and s' have the
same distribution.

In the reference code the gradients of the imagined state and of the information are cut, so neither term has an effect.
Here b is sampled so that it can be differentiated (`policy`): the energy's gradient runs through the imagined state and
b into pi and phi, and not into the dynamics, which could else lower it by imagining wrongly. phi and eta descend the
information with T held constant; they are squashed by tanh, or they would escape T by growing.

Adaptations. *Environments*, which the original is given, are clusters of episodes by their mean state and mean change:
where the hidden confounder has put an episode, the rest of it follows. *Fooling*: the original raises the entropy
of c, whose gradient vanishes where c is sure; the cross-entropy to even odds has the same optimum and does not. *Goal*:
the policy sees it, phi does not. *Vector states*: phi sees them by the features and encoders of world models
(`models.state_features`); eta, the dynamics and U have standardised columns, of discrete factors too, with the
original's squared error. *Continuous actions*: the mixture distribution of `policy`, the same that planners draw
proposals from, in place of the original's softmax, drawn with the persistence of the data. *One descent*: all networks
move in the same step, each with the others as they were before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.cluster.vq import kmeans2

from because_rl.errors import BecauseError
from because_rl.models.latent import information_bound
from because_rl.models.nets import MLP, normal, uniform
from because_rl.models.policy import (
    ActionDistribution,
    ActorMethod,
    Choose,
    Imitator,
    Outputs,
    PolicyInput,
    action_distribution,
    imitate,
    make_imitator,
    untrained_imitator,
)
from because_rl.models.prepared_data import Statistics, Summary, summarise
from because_rl.models.state_features import FeatureNetwork, StateFeatures
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

ENERGY_CLIP = 0.1
"""Largest norm of the gradient in the energy's fit."""
CLASSIFIER_LOGIT = 2.0
"""Largest logit of the classifier: a surer one would make phi oscillate."""


@dataclass(frozen=True)
class LangevinConfig:
    training: int = 1000
    """steps of the energy's own fit"""
    rate: float = 0.01
    """of its fit"""
    steps: int = 60
    """Langevin steps of a chain at every step of the fit"""
    move: float = 0.01
    """step size of the chains"""
    spread: float = 0.01
    """of their noise"""
    buffer: int = 1000
    """chains in all"""
    chains: int = 64
    """of the buffer, moved in turn at every step of the fit"""
    fresh: float = 0.05
    """probability that a chain begins anew, uniformly in the range of the data"""


@dataclass(frozen=True)
class ICILConfig:
    steps: int = 20_000
    batch: int = 256
    hidden: int = 256
    rate: float = 1e-3
    classifier_rate: float = 3e-3
    """faster than phi, which would else run past even odds to the other side"""
    mine_rate: float = 1e-4
    environments: int = 2
    fooling: float = 0.1
    dynamics: float = 1.0
    information: float = 1.0
    energy: float = 1.0
    langevin: LangevinConfig = field(default_factory=LangevinConfig)
    greedy: bool | None = None
    """take the likeliest action instead of a sample; None: if actions are discrete"""


class ICIL(ActorMethod):
    name = "icil"

    def __init__(self, config: ICILConfig | None = None):
        self.config = config or ICILConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, train, size = self.config, as_run(seeds), ~data.held_out, data.factors.state_size
        summary = summarise(data, train)
        stats, policy_input, batch = summary.stats, PolicyInput(data.factors, summary.stats), data.batch(train)

        # The energy of next states, which then stays as it is
        mean, scale = policy_input.mean[:size], policy_input.scale[:size]
        low, high = ((bound[:size] - mean) / scale for bound in (stats.low, stats.high))
        energy = run.fit(energy_stage(c, policy_input, low, high), batch, ())

        # Environments, and then all networks against their opponents
        batch["environment"] = jnp.asarray(cluster_episodes(data, train, stats, c.environments), jnp.float32)
        nets = run.fit(icil_stage(c, summary), batch, energy.net)
        actor = Actor(nets.phi, nets.policy)
        imitator = make_imitator(*self._distribution(summary), c.greedy, actor, data)
        return self.make_agent(data, summary, run, imitator)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> Imitator:
        nets = icil_stage(self.config, summary).init(key, ())
        return untrained_imitator(Actor(nets.phi, nets.policy))

    def policy(self, summary: Summary) -> tuple[Choose, int]:
        return imitate(*self._distribution(summary), self.config.greedy)

    def _distribution(self, summary: Summary) -> tuple[ActionDistribution, Outputs]:
        policy_input, features = PolicyInput(summary.factors, summary.stats), state_features(summary)
        size = summary.factors.state_size

        def outputs(actor: Actor, state: Array, goal: Array) -> Array:
            phi = encode(actor.phi, features(state, jnp.zeros(0)))
            return actor.policy(jnp.concatenate([phi, policy_input(state, goal)[size:]]))

        return action_distribution(summary.factors, summary.actions), outputs


def state_features(summary: Summary) -> StateFeatures:
    """What phi sees: the state, and no goal."""
    return StateFeatures(replace(summary.factors, goal=()), summary.stats)


class Actor(NamedTuple):
    """The networks that act."""

    phi: Any
    policy: Any


def cluster_episodes(data: Transitions, train: np.ndarray, stats: Statistics, count: int) -> np.ndarray:
    """The environment of each training row, in 0 .. `count` - 1.

    Episodes are clustered by k-means on their mean state and mean change, from the quantiles of their first principal
    component. `train`: (rows,) bool.
    """
    size = data.state.shape[1]
    scale = np.asarray(stats.scale[:size])
    episodes, episode_of_row = np.unique(data.episode[train], return_inverse=True)
    if not 2 <= count <= len(episodes):
        raise BecauseError(
            f"Got environments={count} for {len(episodes)} episodes.",
            need="at least 2, and no more than episodes.",
            fix="give environments a value that fits, or collect more episodes.",
        )
    rows = np.hstack(
        [data.state[train] / scale, data.factors.change(data.state, data.next_state)[train] / np.asarray(stats.change)]
    )
    means = np.zeros((len(episodes), 2 * size))
    np.add.at(means, episode_of_row, rows)
    means /= np.bincount(episode_of_row)[:, None]
    means -= means.mean(0)
    component = means @ np.linalg.svd(means, full_matrices=False)[2][0]
    quantiles = np.array_split(np.argsort(component, kind="stable"), count)
    _, label = kmeans2(means, np.stack([means[part].mean(0) for part in quantiles]), minit="matrix")
    return label[episode_of_row]


# The energy of next states ------------------------------------------------------------------------------------
class Energy(NamedTuple):
    net: Any
    buffer: Any
    """(buffer, state) the chains; the first are those moved last"""
    salt: Any
    """a whole number, so that seeds have different Langevin noise"""


def energy_stage(config: ICILConfig, policy_input: PolicyInput, low: Array, high: Array) -> Stage:
    """U, fitted on logged next states against Langevin chains; `low`, `high`: range of the standardised state."""
    c, h, size = config.langevin, config.hidden, len(low)

    def init(key: PRNGKeyArray, fixed: Any) -> Energy:
        k1, k2, k3 = jax.random.split(key, 3)
        salt = jnp.floor(jax.random.uniform(k3) * 2.0**24)
        return Energy(MLP((size, h, h, 1), k1, last=0.1), uniform_states(low, high, k2, c.buffer), salt)

    descent = optax.chain(optax.clip_by_global_norm(ENERGY_CLIP), optax.adam(c.rate))
    rules = {"net": descent, "fixed": optax.set_to_zero()}
    rule = optax.partition(rules, Energy("net", "fixed", "fixed"))
    loss, after = partial(energy_loss, c, policy_input), partial(move_chains, c, low, high)
    return Stage("energy", init, loss, c.training, config.batch, rule=rule, after=after)


def uniform_states(low: Array, high: Array, key: PRNGKeyArray, rows: int) -> Array:
    return low[None] + (high - low)[None] * uniform(key, (rows, len(low)))


def energy_loss(
    c: LangevinConfig, policy_input: PolicyInput, model: Energy, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    size = batch["next_state"].shape[1]
    x = jax.vmap(policy_input)(batch["next_state"], batch["goal"])[:, :size]
    chains = jax.lax.stop_gradient(model.buffer[: c.chains])
    positive, negative = (jax.vmap(model.net)(rows) for rows in (x, chains))
    difference = positive.mean() - negative.mean()
    return difference + (positive**2).mean() + (negative**2).mean(), {"energy_difference": difference}


def move_chains(c: LangevinConfig, low: Array, high: Array, model: Energy, step: Array) -> Energy:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), model.salt.astype(jnp.int32)), step)
    k1, k2, key = jax.random.split(key, 3)
    buffer = jnp.roll(model.buffer, c.chains, axis=0)
    restart = uniform(k1, (c.chains, 1)) < c.fresh
    slope = jax.vmap(jax.grad(lambda x: model.net(x)[0]))

    def langevin_step(x: Array, k: PRNGKeyArray) -> tuple[Array, None]:
        return x - c.move * slope(x) + c.spread * normal(k, x.shape), None

    start = jnp.where(restart, uniform_states(low, high, k2, c.chains), buffer[: c.chains])
    moved, _ = jax.lax.scan(langevin_step, start, jax.random.split(key, c.steps))
    return model._replace(buffer=buffer.at[: c.chains].set(moved))


# The policy, its representation and their opponents -----------------------------------------------------------
class Nets(NamedTuple):
    phi: Any
    eta: Any
    """with a leading axis of environments, as `next_eta`"""
    next_phi: Any
    """f"""
    next_eta: Any
    """h"""
    psi: Any
    policy: Any
    classifier: Any
    information: Any
    """T"""


def encode(net: Any, x: Array) -> Array:
    return jnp.tanh(net(x))


def encode_in_environment(nets: Any, environment: Float[Array, " environments"], x: Array) -> Array:
    """The encoding by the networks of a row's own environment (one-hot)."""
    return environment @ jax.vmap(lambda net: encode(net, x))(nets)


def imagine(nets: Nets, phi: Array, eta: Array, environment: Array, action: Array) -> Float[Array, " state"]:
    """The next state in standardised columns."""
    next_phi = encode(nets.next_phi, jnp.concatenate([phi, action]))
    next_eta = encode_in_environment(nets.next_eta, environment, jnp.concatenate([eta, action]))
    return nets.psi(jnp.concatenate([next_phi, next_eta]))


def icil_loss(
    c: ICILConfig,
    features: StateFeatures,
    policy_input: PolicyInput,
    distribution: ActionDistribution,
    nets: Nets,
    energy: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """The weighted sum of the five terms, and the losses of their opponents; `energy`: the fitted network U."""
    stop_gradient, size, stats = jax.lax.stop_gradient, batch["state"].shape[1], features.stats
    environment = jax.nn.one_hot(batch["environment"].astype(jnp.int32), c.environments)
    x, goal = jnp.split(jax.vmap(policy_input)(batch["state"], batch["goal"]), [size], axis=1)
    next_x = jax.vmap(policy_input)(batch["next_state"], batch["goal"])[:, :size]

    def imagine_batch(nets: Nets, phi: Array, eta: Array, action: Array) -> Array:
        standard = (action - stats.mean[None, size:]) / stats.scale[None, size:]
        return jax.vmap(partial(imagine, nets))(phi, eta, environment, standard)

    def classify(classifier: Any, phi: Array) -> Array:
        return jax.nn.log_softmax(CLASSIFIER_LOGIT * jnp.tanh(jax.vmap(classifier)(phi)), axis=1)

    phi = jax.vmap(lambda state: encode(nets.phi, features(state, jnp.zeros(0))))(batch["state"])
    eta = jax.vmap(partial(encode_in_environment, nets.eta))(environment, x)
    out = jax.vmap(nets.policy)(jnp.concatenate([phi, goal], axis=1))
    sampled = jax.vmap(distribution.sample)(out, uniform(key, (len(out), distribution.noise_size)))
    # The energy may not be lowered by imagining wrongly: its gradient reaches the policy through the action alone.
    imagined = imagine_batch(stop_gradient(nets), stop_gradient(phi), stop_gradient(eta), sampled)
    terms = {
        "fooling": -classify(stop_gradient(nets.classifier), phi).mean() - float(np.log(c.environments)),
        "dynamics": ((imagine_batch(nets, phi, eta, batch["action"]) - next_x) ** 2).mean(),
        "information": jnp.maximum(information_bound(stop_gradient(nets.information), phi, eta), 0.0),
        "energy": jax.vmap(energy)(imagined).mean(),
    }
    imitation = jax.vmap(distribution.nll)(out, batch["action"]).mean()
    total = sum((getattr(c, name) * term for name, term in terms.items()), imitation)

    # The opponents' losses: their gradients reach nothing but themselves.
    classifier = -(classify(nets.classifier, stop_gradient(phi)) * environment).sum(1).mean()
    information = -information_bound(nets.information, stop_gradient(phi), stop_gradient(eta))
    return total + classifier + information, terms | {"imitation": imitation, "classifier": classifier}


def icil_stage(c: ICILConfig, summary: Summary) -> Stage:
    policy_input, features = PolicyInput(summary.factors, summary.stats), state_features(summary)
    distribution = action_distribution(summary.factors, summary.actions)
    h, state_size, action_size = c.hidden, summary.factors.state_size, summary.factors.action_size

    def init(key: PRNGKeyArray, energy: Any) -> Nets:
        keys = jax.random.split(key, 8)

        def per_environment(sizes: tuple[int, ...], key: PRNGKeyArray) -> MLP:
            return jax.vmap(lambda k: MLP(sizes, k))(jax.random.split(key, c.environments))

        goal_size = policy_input.size - state_size
        return Nets(
            phi=FeatureNetwork(features, (h, h), keys[0]),
            eta=per_environment((state_size, h, h), keys[1]),
            next_phi=MLP((h + action_size, h, h), keys[2]),
            next_eta=per_environment((h + action_size, h, h), keys[3]),
            psi=MLP((2 * h, h, state_size), keys[4]),
            policy=MLP((h + goal_size, h, h, distribution.output_size), keys[5], last=0.1),
            classifier=MLP((h, h, c.environments), keys[6], last=0.1),
            information=MLP((2 * h, h, h, 1), keys[7], last=0.1),
        )

    rates: dict[str, Any] = {"main": optax.cosine_decay_schedule(c.rate, c.steps)}
    rates |= {"classifier": c.classifier_rate, "information": c.mine_rate}
    labels = Nets("main", "main", "main", "main", "main", "main", "classifier", "information")
    rule = optax.partition({name: optax.adam(rate) for name, rate in rates.items()}, labels)
    loss = partial(icil_loss, c, features, policy_input, distribution)
    return Stage("icil", init, loss, c.steps, c.batch, rule=rule)
