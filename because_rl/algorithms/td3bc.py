"""TD3+BC (Fujimoto and Gu 2021): model-free; an actor that climbs its critics and stays near the data.

With twin critics Q_1, Q_2 and target networks Q', pi',

    y    = r + gamma (1 - terminated) min_i Q'_i(s', clip(pi'(s') + noise))
    L_Q  = sum_i E (Q_i(s, a) - y)^2
    L_pi = -lambda E Q_1(s, pi(s)) + E |pi(s) - a|^2,    lambda = alpha / E |Q_1(s, pi(s))|

The actor and the target networks move at every `delay`-th step: target <- (1 - tau) target + tau net. All networks see
the goal beside the state, and nothing is learned of what follows success.

Discrete actions need no noise and no sampling: the actor is categorical, the critics value every row of `codes`
at once, E_{a ~ pi'} min_i Q'_i(s', a) stands in y, and

    L_pi = -lambda E sum_a pi(a|s) min_i Q_i(s, a) - E log pi(a_data|s).

Unlike the original, critics and actor descend in the same step, each with the other as it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import MLP, normal
from because_rl.models.policy import ActorMethod, Choose, PolicyInput, check_actions
from because_rl.models.prepared_data import Statistics, Summary, summarise
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


class TD3BC(ActorMethod):
    name = "td3bc"

    def __init__(self, config: TD3BCConfig | None = None):
        self.config = config or TD3BCConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        run, train = as_run(seeds), ~data.held_out
        summary = summarise(data, train)
        policy_input, actions = PolicyInput(data.factors, summary.stats), make_actions(data.factors, summary.stats)
        nets = run.fit(td3bc_stage(self.config, policy_input, actions), data.batch(train), ())
        return self.make_agent(data, summary, run, nets.actor)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> MLP:
        policy_input = PolicyInput(summary.factors, summary.stats)
        return make_actions(summary.factors, summary.stats).make_networks(self.config, policy_input.size, key)[0]

    def policy(self, summary: Summary) -> tuple[Choose, int]:
        policy_input = PolicyInput(summary.factors, summary.stats)
        actions = make_actions(summary.factors, summary.stats)

        def choose(actor: MLP, state: Array, goal: Array, noise: Array) -> Array:
            return actions.choose(actor, policy_input(state, goal))

        return choose, 0


class Nets(NamedTuple):
    actor: Any
    critics: Any
    """with a leading axis of two, as their targets"""
    target_actor: Any
    target_critics: Any


def td3bc_stage(c: TD3BCConfig, policy_input: PolicyInput, actions: Actions) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        actor, critics = actions.make_networks(c, policy_input.size, key)
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

    def loss(nets: Nets, fixed: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        return td3bc_loss(c, policy_input, actions, nets, batch, key)

    return Stage("td3bc", init, loss, c.steps, c.batch, rule=rule, after=update_targets)


def td3bc_loss(
    c: TD3BCConfig,
    policy_input: PolicyInput,
    actions: Actions,
    nets: Nets,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L_Q + L_pi; no gradient of L_pi reaches the critics, and none reaches the target networks."""
    x = jax.vmap(policy_input)(batch["state"], batch["goal"])
    next_x = jax.vmap(policy_input)(batch["next_state"], batch["goal"])
    noise = c.noise * normal(key, (len(x), actions.noise_size))
    next_value = jax.vmap(actions.target_value, (None, 0, 0))(nets, next_x, jnp.clip(noise, -c.clip, c.clip))
    y = jax.lax.stop_gradient(batch["reward"] + c.discount * (1.0 - batch["terminated"]) * next_value)
    logged_value = jax.vmap(actions.logged_value, (None, 0, 0))(nets.critics, x, batch["action"])
    critic = ((logged_value - y[:, None]) ** 2).mean(0).sum()

    frozen = jax.lax.stop_gradient(nets.critics)
    value, distance = jax.vmap(actions.actor_terms, (None, None, 0, 0))(nets.actor, frozen, x, batch["action"])
    weight = c.alpha / jnp.maximum(jax.lax.stop_gradient(jnp.abs(value).mean()), 1e-6)
    actor = distance.mean() - weight * value.mean()
    return critic + actor, {"critic": critic, "value": value.mean(), "distance": distance.mean()}


class Actions(Protocol):
    """What differs between continuous and discrete actions; `x` is the policy's input of one row."""

    noise_size: int

    def make_networks(self, c: TD3BCConfig, inputs: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        """Actor and critics; `inputs`: the size of x."""
        ...

    def logged_value(self, critics: MLP, x: Array, action: Array) -> Float[Array, " critics"]:
        """Q_i(s, a) of a logged action."""
        ...

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Float[Array, ""]:
        """The value of a next state by the target networks, as it stands in y."""
        ...

    def actor_terms(
        self, actor: MLP, critics: MLP, x: Array, action: Array
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The two terms of L_pi: the value of the actor's action, and its distance from the logged one."""
        ...

    def choose(self, actor: MLP, x: Array) -> Array:
        """The action to take."""
        ...


def make_actions(factors: FactorSpec, stats: Statistics) -> Actions:
    check_actions(factors)
    if factors.codes is not None:
        return Discrete(np.asarray(factors.codes))
    size = factors.state_size
    return Continuous(stats.low[size:], stats.high[size:])


class Continuous:
    """Actions of a box (the range of the data), which networks see as u = (a - middle) / half in [-1, 1]."""

    def __init__(self, low: Float[Array, " action"], high: Float[Array, " action"]):
        self.middle, self.half = (high + low) / 2, jnp.maximum((high - low) / 2, 1e-6)
        self.noise_size = len(low)

    def make_networks(self, c: TD3BCConfig, inputs: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        size, h = len(self.middle), c.hidden
        return _actor_and_critics((inputs, h, h, size), (inputs + size, h, h, 1), key)

    def logged_value(self, critics: MLP, x: Array, action: Array) -> Array:
        return self._values(critics, x, (action - self.middle) / self.half)

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Array:
        u = jnp.clip(jnp.tanh(nets.target_actor(x)) + noise, -1.0, 1.0)
        return self._values(nets.target_critics, x, u).min()

    def actor_terms(self, actor: MLP, critics: MLP, x: Array, action: Array) -> tuple[Array, Array]:
        u = jnp.tanh(actor(x))
        return self._values(critics, x, u)[0], ((u - (action - self.middle) / self.half) ** 2).mean()

    def choose(self, actor: MLP, x: Array) -> Array:
        return self.middle + self.half * jnp.tanh(actor(x))

    def _values(self, critics: MLP, x: Array, u: Array) -> Float[Array, " critics"]:
        return jax.vmap(lambda critic: critic(jnp.concatenate([x, u]))[0])(critics)


class Discrete:
    """Actions that are rows of `codes`: actor and critics have one output for each."""

    noise_size = 0

    def __init__(self, codes: np.ndarray):
        self.codes = jnp.asarray(codes, jnp.float32)

    def make_networks(self, c: TD3BCConfig, inputs: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        sizes = (inputs, c.hidden, c.hidden, len(self.codes))
        return _actor_and_critics(sizes, sizes, key)

    def logged_value(self, critics: MLP, x: Array, action: Array) -> Array:
        return self._values(critics, x)[:, self._number(action)]

    def target_value(self, nets: Nets, x: Array, noise: Array) -> Array:
        return jax.nn.softmax(nets.target_actor(x)) @ self._values(nets.target_critics, x).min(0)

    def actor_terms(self, actor: MLP, critics: MLP, x: Array, action: Array) -> tuple[Array, Array]:
        log_pi = jax.nn.log_softmax(actor(x))
        return jnp.exp(log_pi) @ self._values(critics, x).min(0), -log_pi[self._number(action)]

    def choose(self, actor: MLP, x: Array) -> Array:
        return actor(x).argmax()

    def _values(self, critics: MLP, x: Array) -> Float[Array, "critics actions"]:
        return jax.vmap(lambda critic: critic(x))(critics)

    def _number(self, action: Array) -> Array:
        return ((self.codes - action[None]) ** 2).sum(1).argmin()


def _actor_and_critics(actor: tuple[int, ...], critic: tuple[int, ...], key: PRNGKeyArray) -> tuple[MLP, MLP]:
    k1, k2 = jax.random.split(key)
    return MLP(actor, k1, last=0.1), jax.vmap(lambda k: MLP(critic, k))(jax.random.split(k2))
