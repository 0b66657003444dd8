"""TD3+BC (Fujimoto and Gu 2021): model-free; an actor that climbs its critics and stays near the data.

With twin critics Q_1, Q_2 and slow copies Q', pi' of all networks,

    y    = r + gamma (1 - terminated) min_i Q'_i(s', clip(pi'(s') + noise))
    L_Q  = sum_i E (Q_i(s, a) - y)^2
    L_pi = -lambda E Q_1(s, pi(s)) + E |pi(s) - a|^2,    lambda = alpha / E |Q_1(s, pi(s))|

The actor and the slow copies move at every `delay`-th step: slow <- (1 - tau) slow + tau net. All networks see
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
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP, normal
from because_rl.models.policy import ActorAgent, PolicyInput, check_actions
from because_rl.models.prepared_data import Statistics, statistics
from because_rl.training.method import Agent, Method
from because_rl.training.run import Run
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
    """how far the slow copies follow"""
    noise: float = 0.2
    """on the target's actions, as a share of half the action range"""
    clip: float = 0.5
    """of that noise"""
    alpha: float = 2.5
    """how much the critics count beside the data"""
    delay: int = 2


class Nets(NamedTuple):
    actor: Any
    critics: Any
    """with a leading axis of two, as their slow copies"""
    slow_actor: Any
    slow_critics: Any


class Actions(Protocol):
    """What differs between continuous and discrete actions; all of it for one row `x` of the view."""

    noise_size: int

    def nets(self, config: TD3BCConfig, view: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        """Actor and critics."""
        ...

    def taken(self, critics: MLP, x: Array, action: Array) -> Float[Array, " critics"]:
        """Both critics' value of a logged action."""
        ...

    def ahead(self, nets: Nets, x: Array, noise: Array) -> Float[Array, ""]:
        """What the slow copies expect from here on."""
        ...

    def climb(self, actor: MLP, critics: MLP, x: Array, action: Array) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The value of what the actor does, and its distance from the logged action."""
        ...

    def choose(self, actor: MLP, x: Array) -> Array:
        """The action to take."""
        ...


class Continuous:
    """Actions of a box (the range of the data), which networks see as u = (a - middle) / half in [-1, 1]."""

    def __init__(self, low: Float[Array, " action"], high: Float[Array, " action"]):
        self.middle, self.half = (high + low) / 2, jnp.maximum((high - low) / 2, 1e-6)
        self.noise_size = len(low)

    def nets(self, config: TD3BCConfig, view: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        size, h = len(self.middle), config.hidden
        return _nets((view, h, h, size), (view + size, h, h, 1), key)

    def taken(self, critics: MLP, x: Array, action: Array) -> Array:
        return self._values(critics, x, (action - self.middle) / self.half)

    def ahead(self, nets: Nets, x: Array, noise: Array) -> Array:
        u = jnp.clip(jnp.tanh(nets.slow_actor(x)) + noise, -1.0, 1.0)
        return self._values(nets.slow_critics, x, u).min()

    def climb(self, actor: MLP, critics: MLP, x: Array, action: Array) -> tuple[Array, Array]:
        u = jnp.tanh(actor(x))
        return self._values(critics, x, u)[0], ((u - (action - self.middle) / self.half) ** 2).mean()

    def choose(self, actor: MLP, x: Array) -> Array:
        return self.middle + self.half * jnp.tanh(actor(x))

    def _values(self, critics: MLP, x: Array, u: Array) -> Array:
        return jax.vmap(lambda critic: critic(jnp.concatenate([x, u]))[0])(critics)


class Discrete:
    """Actions that are rows of `codes`: actor and critics have one output for each."""

    noise_size = 0

    def __init__(self, codes: np.ndarray):
        self.codes = jnp.asarray(codes, jnp.float32)

    def nets(self, config: TD3BCConfig, view: int, key: PRNGKeyArray) -> tuple[MLP, MLP]:
        sizes = (view, config.hidden, config.hidden, len(self.codes))
        return _nets(sizes, sizes, key)

    def taken(self, critics: MLP, x: Array, action: Array) -> Array:
        return self._values(critics, x)[:, self._number(action)]

    def ahead(self, nets: Nets, x: Array, noise: Array) -> Array:
        return jax.nn.softmax(nets.slow_actor(x)) @ self._values(nets.slow_critics, x).min(0)

    def climb(self, actor: MLP, critics: MLP, x: Array, action: Array) -> tuple[Array, Array]:
        logs = jax.nn.log_softmax(actor(x))
        return jnp.exp(logs) @ self._values(critics, x).min(0), -logs[self._number(action)]

    def choose(self, actor: MLP, x: Array) -> Array:
        return actor(x).argmax()

    def _values(self, critics: MLP, x: Array) -> Float[Array, "critics actions"]:
        return jax.vmap(lambda critic: critic(x))(critics)

    def _number(self, action: Array) -> Array:
        return ((self.codes - action[None]) ** 2).sum(1).argmin()


def _nets(actor: tuple[int, ...], critic: tuple[int, ...], key: PRNGKeyArray) -> tuple[MLP, MLP]:
    k1, k2 = jax.random.split(key)
    return MLP(actor, k1, last=0.1), jax.vmap(lambda k: MLP(critic, k))(jax.random.split(k2))


def td3bc_stage(config: TD3BCConfig, view: PolicyInput, actions: Actions) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        actor, critics = actions.nets(config, view.size, key)
        return Nets(actor, critics, actor, critics)

    def loss(nets: Nets, fixed: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        x = jax.vmap(view)(batch["state"], batch["goal"])
        noise = config.noise * normal(key, (len(x), actions.noise_size))
        ahead = jax.vmap(actions.ahead, (None, 0, 0))(
            nets, jax.vmap(view)(batch["next_state"], batch["goal"]), jnp.clip(noise, -config.clip, config.clip)
        )
        y = jax.lax.stop_gradient(batch["reward"] + config.discount * (1.0 - batch["terminated"]) * ahead)
        taken = jax.vmap(actions.taken, (None, 0, 0))(nets.critics, x, batch["action"])
        critic = ((taken - y[:, None]) ** 2).mean(0).sum()

        frozen = jax.lax.stop_gradient(nets.critics)
        value, distance = jax.vmap(actions.climb, (None, None, 0, 0))(nets.actor, frozen, x, batch["action"])
        weight = config.alpha / jnp.maximum(jax.lax.stop_gradient(jnp.abs(value).mean()), 1e-6)
        actor = distance.mean() - weight * value.mean()
        return critic + actor, {"critic": critic, "value": value.mean(), "distance": distance.mean()}

    def due(step: Array) -> Array:
        return step % config.delay == 0

    def follow(nets: Nets, step: Array) -> Nets:
        rate = config.tau * due(step).astype(jnp.float32)
        actor, critics = jax.tree.map(
            lambda slow, net: slow + rate * (net - slow),
            (nets.slow_actor, nets.slow_critics),
            (nets.actor, nets.critics),
        )
        return nets._replace(slow_actor=actor, slow_critics=critics)

    rule = optax.partition(
        {
            "actor": optax.conditionally_mask(optax.adam(config.actor_rate), due),
            "critics": optax.adam(config.critic_rate),
            "slow": optax.set_to_zero(),
        },
        Nets("actor", "critics", "slow", "slow"),
    )
    return Stage("td3bc", init, loss, config.steps, config.batch, rule=rule, after=follow)


class TD3BC(Method):
    name = "td3bc"

    def __init__(self, config: TD3BCConfig | None = None):
        self.config = config or TD3BCConfig()

    def fit(self, data: Transitions, run: Run) -> Agent:
        keep, factors = ~data.held_out, data.factors
        stats = statistics(Layout(factors), data.state[keep], data.action[keep], data.next_state[keep])
        view, actions = PolicyInput(factors, stats), make_actions(factors, stats)
        nets = run.fit(td3bc_stage(self.config, view, actions), data.batch(keep), ())

        def choose(actor: MLP, state: Array, goal: Array, noise: Array) -> Array:
            return actions.choose(actor, view(state, goal))

        return ActorAgent(run.seeds, nets.actor, choose)


def make_actions(factors: FactorSpec, stats: Statistics) -> Actions:
    check_actions(factors)
    if factors.codes is not None:
        return Discrete(np.asarray(factors.codes))
    size = factors.state_size
    return Continuous(stats.low[size:], stats.high[size:])
