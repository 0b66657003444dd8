"""TD3+BC (Fujimoto and Gu 2021): model-free; an actor that climbs its critics and stays near the data.

With twin critics Q_1, Q_2 and target networks Q', pi',

    y    = r + gamma (1 - terminated) min_i Q'_i(s', clip(pi'(s') + noise))
    L_Q  = sum_i E (Q_i(s, a) - y)^2
    L_pi = -lambda E Q_1(s, pi(s)) + E |pi(s) - a|^2,    lambda = alpha / E |Q_1(s, pi(s))|

The actor and the target networks move at every `delay`-th step: target <- (1 - tau) target + tau net. All networks see
the goal beside the state, by the features and encoders of `models.state_features`, and nothing is learned of what
follows success.

Goals that ask for binary factors to be switched on are relabelled, as the planners' terminal value does it
(`models.value`): in half of the rows of a batch the critics, and the actor's own term, see another subset of these
factors in place of the logged one, and r and terminated follow from s' and that goal. So each trajectory teaches all of
these goals, also those that none asked for. The actor's distance from the data is that under the logged goal.

Discrete actions need no noise and no sampling: the actor is categorical, the critics value every row of `codes`
at once, E_{a ~ pi'} min_i Q'_i(s', a) stands in y, and

    L_pi = -lambda E sum_a pi(a|s) min_i Q_i(s, a) - E log pi(a_data|s).

Logged rewards that say more than whether the goal is reached are brought to a standard deviation of one, and to a mean
of zero where no episode ends early; where one does, a constant in each step would change which policy is best.

Unlike the original, critics and actor descend in the same step, each with the other as it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import normal, uniform
from because_rl.models.policy import ActorMethod, Choose, check_actions
from because_rl.models.prepared_data import LEAST, Statistics, Summary, summarise
from because_rl.models.state_features import FeatureNetwork, StateFeatures
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class TD3BCConfig:
    steps: int = 20_000
    batch: int = 256
    hidden: int = 256
    critic_rate: float = 3e-4
    actor_rate: float = 3e-4
    discount: float = 0.99
    tau: float = 0.005
    """rate at which target networks follow"""
    noise: float = 0.2
    """on the target actor's actions, as a share of half the action range"""
    clip: float = 0.5
    """of that noise"""
    alpha: float = 2.5
    """weight of the critics beside the data"""
    delay: int = 2
    relabel: float = 0.5
    """share of the rows whose goal is drawn anew"""


class TD3BC(ActorMethod):
    name = "td3bc"

    def __init__(self, config: TD3BCConfig | None = None):
        self.config = config or TD3BCConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        run, train = as_run(seeds), ~data.held_out
        summary = summarise(data, train)
        batch, relabel = data.batch(train), self.config.relabel
        if not np.array_equal(data.reward, data.terminated):
            # Rewards that say more than whether the goal is reached cannot be given for another goal.
            batch["reward"] = jnp.asarray(standardise_rewards(data.reward[train], bool(data.terminated.any())))
            relabel = 0.0
        nets = run.fit(td3bc_stage(self.config, *_prepare(summary), relabel), batch, ())
        return self.make_agent(data, summary, run, nets.actor)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> FeatureNetwork:
        features, actions = _prepare(summary)
        return actions.make_networks(self.config, features, key)[0]

    def policy(self, summary: Summary) -> tuple[Choose, int]:
        features, actions = _prepare(summary)

        def choose(actor: FeatureNetwork, state: Array, goal: Array, noise: Array) -> Array:
            return actions.choose(actor, features(state, goal))

        return choose, 0


def _prepare(summary: Summary) -> tuple[StateFeatures, Actions]:
    return StateFeatures(summary.factors, summary.stats), make_actions(summary.factors, summary.stats)


def standardise_rewards(rewards: np.ndarray, episodes_end: bool) -> np.ndarray:
    """Rewards with a standard deviation of one, and with a mean of zero unless some episode ends before its time.

    Where all are the same, as where each step survived counts, they have a size of one.
    """
    spread, size = float(rewards.std()), float(np.abs(rewards).max())
    centre = 0.0 if episodes_end else rewards.mean()
    return (rewards - centre) / (spread if spread > LEAST * size else max(size, LEAST))


class Nets(NamedTuple):
    actor: Any
    critics: Any
    """with a leading axis of two, as their targets"""
    target_actor: Any
    target_critics: Any


def td3bc_stage(c: TD3BCConfig, features: StateFeatures, actions: Actions, relabel: float = 0.0) -> Stage:
    """`relabel`: the share of rows whose goal is drawn anew."""

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        actor, critics = actions.make_networks(c, features, key)
        return Nets(actor, critics, actor, critics)

    def is_actor_step(step: Array) -> Array:
        return step % c.delay == 0

    def update_targets(nets: Nets, step: Array) -> Nets:
        rate = c.tau * is_actor_step(step).astype(jnp.float32)
        actor, critics = jax.tree.map(
            lambda target, net: target + rate * (net - target),
            (nets.target_actor, nets.target_critics),
            (nets.actor, nets.critics),
        )
        return nets._replace(target_actor=actor, target_critics=critics)

    rule = optax.partition(
        {
            "actor": optax.conditionally_mask(optax.adam(c.actor_rate), is_actor_step),
            "critics": optax.adam(c.critic_rate),
            "target": optax.set_to_zero(),
        },
        Nets("actor", "critics", "target", "target"),
    )

    loss = partial(td3bc_loss, c, features, actions, relabel)
    return Stage("td3bc", init, loss, c.steps, c.batch, rule=rule, after=update_targets)


def switched_on(factors: FactorSpec) -> np.ndarray:
    """The columns of the goal that ask for binary factors to be switched on."""
    goals = (w for w in factors.goal if w.relation == "at_least" and factors[w.factor].type == "binary")
    return np.concatenate([np.zeros(0, int), *(np.arange(w.start, w.stop) for w in goals)])


def relabel_goals(factors: FactorSpec, share: float, batch: Batch, key: PRNGKeyArray) -> Batch:
    """A batch in which a `share` of the rows asks for another subset of what the goal's binary factors can be asked.

    A subset holds one of their columns for certain and each other with even odds.
    """
    columns, rows = switched_on(factors), len(batch["goal"])
    if not len(columns) or share == 0.0:
        return batch
    draws = uniform(key, (rows, len(columns) + 2))
    wanted = draws[:, 2:] < 0.5
    certain = jnp.floor(draws[:, 1] * len(columns)).astype(jnp.int32)
    wanted = wanted | (jnp.arange(len(columns))[None] == certain[:, None])
    other = batch["goal"].at[:, columns].set(wanted.astype(jnp.float32))
    is_other = draws[:, :1] < share
    reached = factors.reached(batch["next_state"], other).astype(jnp.float32)
    changed = {"goal": jnp.where(is_other, other, batch["goal"])}
    changed |= {name: jnp.where(is_other[:, 0], reached, batch[name]) for name in ("reward", "terminated")}
    return {**batch, **changed}


def td3bc_loss(
    c: TD3BCConfig,
    features: StateFeatures,
    actions: Actions,
    relabel: float,
    nets: Nets,
    fixed: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L_Q + L_pi; no gradient of L_pi reaches the critics, and none reaches the target networks."""
    factors, observe = features.layout.factors, jax.vmap(features)
    logged_x = observe(batch["state"], batch["goal"])
    goal_key, key = jax.random.split(key)
    batch = relabel_goals(factors, relabel, batch, goal_key)
    x, next_x = (observe(batch[name], batch["goal"]) for name in ("state", "next_state"))
    noise = c.noise * normal(key, (len(x), actions.noise_size))
    next_value = jax.vmap(actions.target_value, (None, 0, 0))(nets, next_x, jnp.clip(noise, -c.clip, c.clip))
    y = jax.lax.stop_gradient(batch["reward"] + c.discount * (1.0 - batch["terminated"]) * next_value)
    logged_value = jax.vmap(actions.logged_value, (None, 0, 0))(nets.critics, x, batch["action"])
    critic = ((logged_value - y[:, None]) ** 2).mean(0).sum()

    frozen = jax.lax.stop_gradient(nets.critics)
    terms = jax.vmap(actions.actor_terms, (None, None, 0, 0))
    value, distance = terms(nets.actor, frozen, x, batch["action"])
    if relabel and len(switched_on(factors)):
        _, distance = terms(nets.actor, frozen, logged_x, batch["action"])
    weight = c.alpha / jnp.maximum(jax.lax.stop_gradient(jnp.abs(value).mean()), 1e-6)
    actor = distance.mean() - weight * value.mean()
    return critic + actor, {"critic": critic, "value": value.mean(), "distance": distance.mean()}


class Actions(Protocol):
    """What differs between continuous and discrete actions; `x` is a row of the features."""

    noise_size: int

    def make_networks(
        self, c: TD3BCConfig, features: StateFeatures, key: PRNGKeyArray
    ) -> tuple[FeatureNetwork, FeatureNetwork]:
        """Actor and critics."""
        ...

    def logged_value(self, critics: FeatureNetwork, x: Array, action: Array) -> Float[Array, " critics"]:
        """Q_i(s, a) of a logged action."""
        ...

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Float[Array, ""]:
        """The value of a next state by the target networks, as it stands in y."""
        ...

    def actor_terms(
        self, actor: FeatureNetwork, critics: FeatureNetwork, x: Array, action: Array
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The two terms of L_pi: the value of the actor's action, and its distance from the logged one."""
        ...

    def choose(self, actor: FeatureNetwork, x: Array) -> Array:
        """The action to take."""
        ...


def make_actions(factors: FactorSpec, stats: Statistics) -> Actions:
    check_actions(factors)
    if factors.codes is not None:
        return Discrete(jnp.asarray(factors.codes, jnp.float32))
    size = factors.state_size
    return Continuous(stats.low[size:], stats.high[size:])


class Continuous(eqx.Module):
    """Actions of a box (the range of the data), which networks see as u = (a - middle) / half in [-1, 1]."""

    middle: Array
    half: Array
    noise_size: int = eqx.field(static=True)

    def __init__(self, low: Float[Array, " action"], high: Float[Array, " action"]):
        self.middle, self.half = (high + low) / 2, jnp.maximum((high - low) / 2, 1e-6)
        self.noise_size = len(low)

    def make_networks(
        self, c: TD3BCConfig, features: StateFeatures, key: PRNGKeyArray
    ) -> tuple[FeatureNetwork, FeatureNetwork]:
        return _actor_and_critics(c, features, (self.noise_size, 1), self.noise_size, key)

    def logged_value(self, critics: FeatureNetwork, x: Array, action: Array) -> Array:
        return self._values(critics, x, (action - self.middle) / self.half)

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Array:
        u = jnp.clip(jnp.tanh(nets.target_actor(x)) + noise, -1.0, 1.0)
        return self._values(nets.target_critics, x, u).min()

    def actor_terms(
        self, actor: FeatureNetwork, critics: FeatureNetwork, x: Array, action: Array
    ) -> tuple[Array, Array]:
        u = jnp.tanh(actor(x))
        return self._values(critics, x, u)[0], ((u - (action - self.middle) / self.half) ** 2).mean()

    def choose(self, actor: FeatureNetwork, x: Array) -> Array:
        return self.middle + self.half * jnp.tanh(actor(x))

    def _values(self, critics: FeatureNetwork, x: Array, u: Array) -> Float[Array, " critics"]:
        return jax.vmap(lambda critic: critic(x, u)[0])(critics)


class Discrete(eqx.Module):
    """Actions that are rows of `codes`: actor and critics have one output for each."""

    codes: Array
    noise_size: int = eqx.field(static=True, default=0)

    def make_networks(
        self, c: TD3BCConfig, features: StateFeatures, key: PRNGKeyArray
    ) -> tuple[FeatureNetwork, FeatureNetwork]:
        return _actor_and_critics(c, features, (len(self.codes), len(self.codes)), 0, key)

    def logged_value(self, critics: FeatureNetwork, x: Array, action: Array) -> Array:
        return self._values(critics, x)[:, self._number(action)]

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Array:
        return jax.nn.softmax(nets.target_actor(x)) @ self._values(nets.target_critics, x).min(0)

    def actor_terms(
        self, actor: FeatureNetwork, critics: FeatureNetwork, x: Array, action: Array
    ) -> tuple[Array, Array]:
        log_pi = jax.nn.log_softmax(actor(x))
        return jnp.exp(log_pi) @ self._values(critics, x).min(0), -log_pi[self._number(action)]

    def choose(self, actor: FeatureNetwork, x: Array) -> Array:
        return actor(x).argmax()

    def _values(self, critics: FeatureNetwork, x: Array) -> Float[Array, "critics actions"]:
        return jax.vmap(lambda critic: critic(x))(critics)

    def _number(self, action: Array) -> Array:
        return ((self.codes - action[None]) ** 2).sum(1).argmin()


def _actor_and_critics(
    c: TD3BCConfig, features: StateFeatures, outputs: tuple[int, int], actions: int, key: PRNGKeyArray
) -> tuple[FeatureNetwork, FeatureNetwork]:
    """`outputs`: how many the actor has and a critic has. `actions`: how many action columns a critic sees."""
    k1, k2 = jax.random.split(key)

    def critic(key: PRNGKeyArray) -> FeatureNetwork:
        return FeatureNetwork(features, (c.hidden, c.hidden, outputs[1]), key, more=actions)

    actor = FeatureNetwork(features, (c.hidden, c.hidden, outputs[0]), k1, last=0.1)
    return actor, jax.vmap(critic)(jax.random.split(k2))
