"""The behaviour policy of the data, cloned with its own spread: what a planner draws its proposals from.

    pi(a | s, g) = sum_k w_k(s, g) prod_columns N(a; mean_k(s, g), spread_k(s, g))

A mixture, because logged behaviour is one: the average of an expert and of noise is neither of the two. Columns that
only ever took two values get a Bernoulli in place of the Gaussian, the levels of a categorical factor beside other
factors a categorical distribution. Of numbered actions each is a component that is
exactly its row of `codes`, so that the mixture is a categorical distribution. State factors that cannot matter for the
goal (no path to it in the mask) are gated out.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import MLP
from because_rl.models.prepared_data import ActionStatistics, Statistics
from because_rl.training.stage import Batch

LEAST_SPREAD, MOST_SPREAD = -4.0, 0.5
LEAST_CHANCE = 1e-6
"""Of noise as a probability, whose double logarithm must be finite."""
OTHER_CODE = -1e9
"""Log-density of a code at the action of another; finite, so that differences of such have no NaN."""


class ActionMixture(NamedTuple):
    """The distribution of actions in one state, for one goal: (components,) and (components, columns)."""

    log_weight: Array
    mean: Array
    """in units of the actions' standard deviation; log-odds of Bernoulli columns, log-probabilities of levels; codes as
    they are"""
    log_spread: Array | None
    """None: the components are codes"""


class BehaviourPolicy(eqx.Module):
    net: MLP
    components: int = eqx.field(static=True)
    codes: tuple[tuple[float, ...], ...] | None = eqx.field(static=True)
    levels: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """first column of each categorical factor, and the one behind its last; none where there are codes"""

    def __init__(self, factors: FactorSpec, key: PRNGKeyArray, *, hidden: int = 128, components: int = 4):
        self.codes = factors.codes
        self.levels = tuple((f.start, f.stop) for f in factors.action if f.type == "categorical" and self.codes is None)
        self.components = components if self.codes is None else len(self.codes)
        size = self.components * (1 + 2 * factors.action_size if self.codes is None else 1)
        self.net = MLP((factors.state_size + factors.goal_size, hidden, hidden, size), key, last=0.1)

    def __call__(self, stats: Statistics, gate: Array, state: Array, goal: Array) -> ActionMixture:
        size = len(state)
        inputs = (state - stats.mean[:size]) / stats.scale[:size] * gate
        out = self.net(jnp.concatenate([inputs, goal])).reshape(self.components, -1)
        if self.codes is not None:
            return ActionMixture(jax.nn.log_softmax(out[:, 0]), jnp.asarray(self.codes, jnp.float32), None)
        mean, spread = jnp.split(out[:, 1:], 2, axis=1)
        for start, stop in self.levels:
            mean = mean.at[:, start:stop].set(jax.nn.log_softmax(mean[:, start:stop], axis=1))
        # Components that start alike would stay alike: they begin at different spreads.
        first = jnp.linspace(-1.0, 1.0, self.components)[:, None] if self.components > 1 else jnp.zeros((1, 1))
        spread = LEAST_SPREAD + (MOST_SPREAD - LEAST_SPREAD) * jax.nn.sigmoid(spread + first)
        return ActionMixture(jax.nn.log_softmax(out[:, 0]), mean, spread)


def component_log_densities(actions: ActionStatistics, mixture: ActionMixture, action: Array) -> tuple[Array, Array]:
    """(components,) log of weight and density at an action; (components, columns) its standardised residuals."""
    if mixture.log_spread is None:
        taken = jnp.arange(len(mixture.mean)) == nearest_code(mixture.mean, action)
        return mixture.log_weight + jnp.where(taken, 0.0, OTHER_CODE), jnp.zeros_like(mixture.mean)
    z = (((action - actions.mean) / actions.scale)[None] - mixture.mean) * jnp.exp(-mixture.log_spread)
    wanted = (action > 0.5 * (actions.low + actions.high)).astype(jnp.float32)
    coin = mixture.mean * wanted[None] - jax.nn.softplus(mixture.mean)
    each = jnp.where(actions.coin[None] > 0, coin, -0.5 * z**2 - mixture.log_spread)
    each = jnp.where(actions.coin[None] > 1, mixture.mean * action[None], each)
    return mixture.log_weight + each.sum(1), z


def nearest_code(codes: Float[Array, "codes columns"], action: Float[Array, "*rows columns"]) -> Int[Array, "*rows"]:
    """The number of each action given as columns."""
    return jnp.square(action[..., None, :] - codes.reshape((1,) * (action.ndim - 1) + codes.shape)).sum(-1).argmin(-1)


def behaviour_loss(
    stats: Statistics, actions: ActionStatistics, model: BehaviourPolicy, gate: Array, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """-log pi(a | s, g) of the logged actions."""

    def row(state: Array, goal: Array, action: Array) -> Array:
        return -jax.nn.logsumexp(component_log_densities(actions, model(stats, gate, state, goal), action)[0])

    return jax.vmap(row)(batch["state"], batch["goal"], batch["action"]).mean(), {}


def draw_action(
    stats: Statistics,
    actions: ActionStatistics,
    model: BehaviourPolicy,
    gate: Array,
    state: Array,
    goal: Array,
    noise: Float[Array, " one_and_action"],
) -> Float[Array, " action"]:
    """An action from standard normal noise, whose first column chooses the component; codes need no other."""
    mixture = model(stats, gate, state, goal)
    chance = jnp.cumsum(jnp.exp(mixture.log_weight))[:-1]
    k = (jax.scipy.stats.norm.cdf(noise[0]) > chance).sum()
    if mixture.log_spread is None:
        return mixture.mean[k]
    mean, spread, noise = mixture.mean[k], mixture.log_spread[k], noise[1:]
    gaussian = actions.mean + actions.scale * (mean + jnp.exp(spread) * noise)
    coin = jnp.where(jax.scipy.stats.norm.cdf(noise) < jax.nn.sigmoid(mean), actions.high, actions.low)
    columns = jnp.where(actions.coin > 0, coin, gaussian)
    chance = jnp.clip(jax.scipy.stats.norm.cdf(noise), LEAST_CHANCE, 1 - LEAST_CHANCE)
    for start, stop in model.levels:  # the largest of log-probabilities with Gumbel noise
        level = (mean - jnp.log(-jnp.log(chance)))[start:stop].argmax()
        columns = columns.at[start:stop].set(jax.nn.one_hot(level, stop - start))
    return columns


class Persistence(NamedTuple):
    """Temporal persistence of the behaviour noise in the data, both in [0, 1]."""

    noise: Array
    """lag-1 correlation of the noise inside a component, over the Gaussian columns"""
    component: Array
    """probability that a component is kept for another step rather than drawn anew"""


def persistence(
    stats: Statistics, actions: ActionStatistics, model: BehaviourPolicy, gate: Array, batch: Batch, follows: Array
) -> Persistence:
    """Persistence over the rows of a batch in logged order; `follows` is 1 where the next row continues the episode."""
    mixtures = jax.vmap(partial(model, stats, gate))(batch["state"], batch["goal"])
    return mixture_persistence(actions, mixtures, batch["action"], follows)


def mixture_persistence(
    actions: ActionStatistics, mixture: ActionMixture, action: Float[Array, "rows columns"], follows: Array
) -> Persistence:
    """Persistence of the noise with which `action` was drawn from `mixture`, rows in logged order, as `persistence`.

    The component's persistence is the kappa under which each action is likeliest given the one before it,

        sum_k (kappa r_k + (1 - kappa) w'_k) pi_k(a'),    r: posterior of the last action's component.
    """
    logs, z = jax.vmap(partial(component_log_densities, actions))(mixture, action)
    posterior, follows = jax.nn.softmax(logs, axis=1), follows[:-1]

    def likelihood(kappa: Array) -> Array:
        chance = kappa * posterior[:-1] + (1 - kappa) * jnp.exp(mixture.log_weight[1:])
        return (follows * jax.nn.logsumexp((logs - mixture.log_weight)[1:], axis=1, b=chance)).sum()

    tried = jnp.linspace(0.0, 0.98, 50)
    kept = tried[jax.lax.map(likelihood, tried).argmax()]
    gaussian = (1.0 - jnp.minimum(actions.coin, 1.0))[None, None]
    together = (follows[:, None] * posterior[:-1] * posterior[1:])[:, :, None] * gaussian
    both, own = (together * z[:-1] * z[1:]).sum(), (together * z[:-1] ** 2).sum()
    return Persistence(jnp.clip(both / jnp.maximum(own, 1e-6), 0.0, 0.95), kept)
