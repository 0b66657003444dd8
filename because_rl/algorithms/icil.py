"""ICIL (Bica, Jarrett and van der Schaar 2021): invariant causal imitation learning, from what all environments share.

phi(s) is to hold the causes of the action, alike in every environment e; eta_e(s) the rest, each e with its own.

    imitation     -E log pi(a | phi(s), g)
    fooling       -E mean_k log c(phi(s))_k - log K, where the classifier c of K environments descends -E log c(phi)_e
    dynamics      E |psi(f(phi(s), a), h_e(eta_e(s), a)) - s'|^2: together the parts tell what comes next
    information   E T(phi, eta) - log E exp T(phi, eta of another row), a bound of I(phi; eta) that T climbs (MINE)
    energy        E U(psi(f(phi(s), b), h_e(eta_e(s), b))) of the imagined next state, b ~ pi(. | phi(s), g)

phi, eta, pi, f, h and psi descend the weighted sum of the five. The last keeps the policy where data are: U is
fitted first, by E U(s') - E U(x) + E U(s')^2 + E U(x)^2, and then stays. The negatives x are chains from a buffer,
each moved by Langevin dynamics, x <- x - move dU/dx + spread * normal, and put back. The policy acts on phi(s) alone,
so no environment need be known at test time.

In the reference code the gradients of the imagined state and of the information are cut, so neither does anything.
Here b is drawn so that it can be differentiated (`actor`): the energy's gradient runs through the imagined state and b
into pi and phi, and not into the dynamics, which could else lower it by imagining wrongly. phi and eta descend the
information with T held still; they are squashed by tanh, or they would escape T by growing.

Adaptations. *Environments*, which the original is given, are clusters of episodes by their mean state and mean change:
wherever the hidden confounder has put an episode, the rest of it follows. *Fooling*: the original raises the entropy
of c, whose gradient dies where c is sure; the cross-entropy to even odds has the same optimum and does not. *Goal*: the
policy sees it, phi does not. *Vector states*: standardised columns, of discrete factors too, with the original's
squared error. *Continuous actions*: the mixture law of `actor`, the same that planners draw proposals from, in place of
the original's softmax. *One descent*: all players move in the same step, each with the others as they were before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.cluster.vq import kmeans2

from because_rl.errors import BecauseError
from because_rl.models.latent import information
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP, normal, uniform
from because_rl.models.policy import ActionDistribution, PolicyInput, action_distribution, make_imitator
from because_rl.models.prepared_data import Statistics, statistics
from because_rl.training.method import Agent, Method
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

SURE = 2.0
"""Largest logit of the classifier: one that could be surer would throw phi from side to side."""


@dataclass(frozen=True)
class LangevinConfig:
    training: int = 1000
    """steps of the energy's own fit"""
    rate: float = 0.01
    """of its fit"""
    steps: int = 60
    """K"""
    move: float = 0.01
    """rate of the chains' descent"""
    spread: float = 0.01
    """of their noise"""
    buffer: int = 1000
    chains: int = 64
    """of the buffer, moved in turn at every step of the fit"""
    fresh: float = 0.05
    """chance that a chain begins anew, anywhere in the range of the data"""


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
    """do the likeliest action rather than draw one; None: if actions are discrete"""


class Energy(NamedTuple):
    net: Any
    buffer: Any
    """(buffer, state) the chains; the first are those moved last"""
    salt: Any
    """a whole number that sets this seed's Langevin noise apart"""


class Nets(NamedTuple):
    phi: Any
    eta: Any
    """with a leading axis of environments, as `forth_eta`"""
    forth_phi: Any
    forth_eta: Any
    psi: Any
    policy: Any
    classifier: Any
    mine: Any


def environments(data: Transitions, keep: np.ndarray, stats: Statistics, count: int) -> np.ndarray:
    """The environment of each kept row: k-means of its episodes, from quantiles of their leading direction."""
    size = data.state.shape[1]
    scale = np.asarray(stats.scale[:size])
    each, of = np.unique(data.episode[keep], return_inverse=True)
    if not 2 <= count <= len(each):
        raise BecauseError(
            f"Got environments={count} for {len(each)} episodes.",
            need="at least 2, and no more than episodes.",
            fix="give environments a value that fits, or collect more episodes.",
        )
    rows = np.hstack([data.state[keep] / scale, (data.next_state - data.state)[keep] / np.asarray(stats.change)])
    means = np.zeros((len(each), 2 * size))
    np.add.at(means, of, rows)
    means /= np.bincount(of)[:, None]
    means -= means.mean(0)
    along = means @ np.linalg.svd(means, full_matrices=False)[2][0]
    parts = np.array_split(np.argsort(along, kind="stable"), count)
    _, label = kmeans2(means, np.stack([means[part].mean(0) for part in parts]), minit="matrix")
    return label[of]


def energy_stage(config: ICILConfig, view: PolicyInput, low: Array, high: Array) -> Stage:
    """`low` and `high`: the range of the standardised state."""
    c, h, size = config.langevin, config.hidden, len(low)

    def anywhere(key: PRNGKeyArray, rows: int) -> Array:
        return low[None] + (high - low)[None] * uniform(key, (rows, size))

    def init(key: PRNGKeyArray, fixed: Any) -> Energy:
        k1, k2, k3 = jax.random.split(key, 3)
        salt = jnp.floor(jax.random.uniform(k3) * 2.0**24)
        return Energy(MLP((size, h, h, 1), k1, last=0.1), anywhere(k2, c.buffer), salt)

    def loss(model: Energy, fixed: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        x = jax.vmap(view)(batch["next_state"], batch["goal"])[:, :size]
        chains = jax.lax.stop_gradient(model.buffer[: c.chains])
        positive, negative = (jax.vmap(model.net)(rows) for rows in (x, chains))
        apart = positive.mean() - negative.mean()
        return apart + (positive**2).mean() + (negative**2).mean(), {"apart": apart}

    def wander(model: Energy, step: Array) -> Energy:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), model.salt.astype(jnp.int32)), step)
        k1, k2, key = jax.random.split(key, 3)
        buffer = jnp.roll(model.buffer, c.chains, axis=0)
        anew = uniform(k1, (c.chains, 1)) < c.fresh
        slope = jax.vmap(jax.grad(lambda x: model.net(x)[0]))

        def move(x: Array, k: PRNGKeyArray) -> tuple[Array, None]:
            return x - c.move * slope(x) + c.spread * normal(k, x.shape), None

        start = jnp.where(anew, anywhere(k2, c.chains), buffer[: c.chains])
        moved, _ = jax.lax.scan(move, start, jax.random.split(key, c.steps))
        return model._replace(buffer=buffer.at[: c.chains].set(moved))

    rule = optax.partition({"net": optax.adam(c.rate), "still": optax.set_to_zero()}, Energy("net", "still", "still"))
    return Stage("energy", init, loss, c.training, config.batch, rule=rule, after=wander)


def encode(net: Any, x: Array) -> Array:
    return jnp.tanh(net(x))


def own(nets: Any, environment: Float[Array, " environments"], x: Array) -> Array:
    """What the networks of a row's own environment make of it."""
    return environment @ jax.vmap(lambda net: encode(net, x))(nets)


def imagine(nets: Nets, phi: Array, eta: Array, environment: Array, action: Array) -> Float[Array, " state"]:
    """The next state in standardised columns."""
    then = encode(nets.forth_phi, jnp.concatenate([phi, action]))
    rest = own(nets.forth_eta, environment, jnp.concatenate([eta, action]))
    return nets.psi(jnp.concatenate([then, rest]))


def icil_loss(
    c: ICILConfig,
    view: PolicyInput,
    stats: Statistics,
    law: ActionDistribution,
    nets: Nets,
    energy: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """`energy`: the fitted network."""
    still, size = jax.lax.stop_gradient, batch["state"].shape[1]
    environment = jax.nn.one_hot(batch["environment"].astype(jnp.int32), c.environments)
    x, goal = jnp.split(jax.vmap(view)(batch["state"], batch["goal"]), [size], axis=1)
    after = jax.vmap(view)(batch["next_state"], batch["goal"])[:, :size]

    def follow(nets: Nets, phi: Array, eta: Array, action: Array) -> Array:
        columns = (action - stats.mean[None, size:]) / stats.scale[None, size:]
        return jax.vmap(partial(imagine, nets))(phi, eta, environment, columns)

    def classify(classifier: Any, phi: Array) -> Array:
        return jax.nn.log_softmax(SURE * jnp.tanh(jax.vmap(classifier)(phi)), axis=1)

    phi = jax.vmap(partial(encode, nets.phi))(x)
    eta = jax.vmap(partial(own, nets.eta))(environment, x)
    out = jax.vmap(nets.policy)(jnp.concatenate([phi, goal], axis=1))
    drawn = jax.vmap(law.draw)(out, uniform(key, (len(out), law.noise)))
    terms = {
        "fooling": -classify(still(nets.classifier), phi).mean() - float(np.log(c.environments)),
        "dynamics": ((follow(nets, phi, eta, batch["action"]) - after) ** 2).mean(),
        "information": jnp.maximum(information(still(nets.mine), phi, eta), 0.0),
        "energy": jax.vmap(energy)(follow(still(nets), still(phi), still(eta), drawn)).mean(),
    }
    imitation = jax.vmap(law.cost)(out, batch["action"]).mean()
    total = sum((getattr(c, name) * term for name, term in terms.items()), imitation)

    # The opponents' losses: no gradient of theirs reaches anything but themselves.
    classifier = -(classify(nets.classifier, still(phi)) * environment).sum(1).mean()
    mine = -information(nets.mine, still(phi), still(eta))
    return total + classifier + mine, terms | {"imitation": imitation, "classifier": classifier}


def icil_stage(
    config: ICILConfig, view: PolicyInput, stats: Statistics, law: ActionDistribution, state: int, action: int
) -> Stage:
    """`state` and `action`: how many columns they have."""
    h, count = config.hidden, config.environments

    def init(key: PRNGKeyArray, energy: Any) -> Nets:
        keys = jax.random.split(key, 8)

        def each(sizes: tuple[int, ...], key: PRNGKeyArray) -> MLP:
            return jax.vmap(lambda k: MLP(sizes, k))(jax.random.split(key, count))

        return Nets(
            phi=MLP((state, h, h), keys[0]),
            eta=each((state, h, h), keys[1]),
            forth_phi=MLP((h + action, h, h), keys[2]),
            forth_eta=each((h + action, h, h), keys[3]),
            psi=MLP((2 * h, h, state), keys[4]),
            policy=MLP((h + view.size - state, h, h, law.outputs), keys[5], last=0.1),
            classifier=MLP((h, h, count), keys[6], last=0.1),
            mine=MLP((2 * h, h, h, 1), keys[7], last=0.1),
        )

    rates: dict[str, Any] = {"main": optax.cosine_decay_schedule(config.rate, config.steps)}
    rates |= {"classifier": config.classifier_rate, "mine": config.mine_rate}
    labels = Nets("main", "main", "main", "main", "main", "main", "classifier", "mine")
    rule = optax.partition({name: optax.adam(rate) for name, rate in rates.items()}, labels)
    return Stage("icil", init, partial(icil_loss, config, view, stats, law), config.steps, config.batch, rule=rule)


class ICIL(Method):
    name = "icil"

    def __init__(self, config: ICILConfig | None = None):
        self.config = config or ICILConfig()

    def fit(self, data: Transitions, run: Run) -> Agent:
        keep, factors, size = ~data.held_out, data.factors, data.factors.state_size
        stats = statistics(Layout(factors), data.state[keep], data.action[keep], data.next_state[keep])
        view, law = PolicyInput(factors, stats), action_distribution(factors, data.action[keep])
        low, high = ((edge[:size] - view.mean[:size]) / view.scale[:size] for edge in (stats.low, stats.high))
        batch = data.batch(keep)
        energy = run.fit(energy_stage(self.config, view, low, high), batch, ())

        batch["environment"] = jnp.asarray(environments(data, keep, stats, self.config.environments), jnp.float32)
        stage = icil_stage(self.config, view, stats, law, size, factors.action_size)
        nets = run.fit(stage, batch, energy.net)

        def policy(nets: Nets, state: Array, goal: Array) -> Array:
            x, g = jnp.split(view(state, goal), [size])
            return nets.policy(jnp.concatenate([encode(nets.phi, x), g]))

        return make_imitator(run.seeds, nets, law, policy, self.config.greedy)
