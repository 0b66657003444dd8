"""The data's action law, cloned with its own spread: what a planner draws its proposals from.

Continuous columns get a Gaussian whose mean and standard deviation depend on state and goal; columns that only
ever took two values get a coin. Inputs that cannot matter for the goal (no path to it in the mask) are gated out.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.nets import MLP
from because_rl.models.statistics import Statistics
from because_rl.models.training import Batch

LEAST_SPREAD, MOST_SPREAD = -4.0, 0.5


class Actions(NamedTuple):
    """What the data's actions look like, (columns,) each."""

    mean: Array
    scale: Array
    coin: Array
    """1 where a column only ever took two values, -> `low` and `high`"""
    low: Array
    high: Array


def describe(action: np.ndarray) -> Actions:
    low, high = action.min(0), action.max(0)
    coin = np.array([len(np.unique(column)) == 2 for column in action.T])
    scale = np.where(coin, 1.0, np.maximum(action.std(0), 1e-3))
    return Actions(*(jnp.asarray(a, jnp.float32) for a in (action.mean(0), scale, coin, low, high)))


class Behaviour(eqx.Module):
    net: MLP

    def __init__(self, factors: FactorSpec, key: PRNGKeyArray, *, hidden: int = 128):
        sizes = (factors.state_size + factors.goal_size, hidden, hidden, 2 * factors.action_size)
        self.net = MLP(sizes, key, last=0.1)

    def __call__(self, stats: Statistics, gate: Array, state: Array, goal: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation in units of the actions' spread; for coins the mean is a logit."""
        size = len(state)
        seen = (state - stats.mean[:size]) / stats.scale[:size] * gate
        mean, spread = jnp.split(self.net(jnp.concatenate([seen, goal])), 2)
        return mean, LEAST_SPREAD + (MOST_SPREAD - LEAST_SPREAD) * jax.nn.sigmoid(spread)


def behaviour_loss(
    stats: Statistics, actions: Actions, model: Behaviour, gate: Array, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """-log of the law at the logged action."""

    def row(state: Array, goal: Array, action: Array) -> Array:
        mean, spread = model(stats, gate, state, goal)
        z = ((action - actions.mean) / actions.scale - mean) * jnp.exp(-spread)
        gaussian = 0.5 * z**2 + spread
        wanted = (action > 0.5 * (actions.low + actions.high)).astype(jnp.float32)
        coin = jax.nn.softplus(mean) - mean * wanted
        return jnp.where(actions.coin > 0, coin, gaussian).sum()

    return jax.vmap(row)(batch["state"], batch["goal"], batch["action"]).mean(), {}


def draw(
    stats: Statistics,
    actions: Actions,
    model: Behaviour,
    gate: Array,
    state: Array,
    goal: Array,
    noise: Float[Array, " action"],
) -> Float[Array, " action"]:
    """An action of the law, from standard normal noise."""
    mean, spread = model(stats, gate, state, goal)
    gaussian = actions.mean + actions.scale * (mean + jnp.exp(spread) * noise)
    coin = jnp.where(jax.scipy.stats.norm.cdf(noise) < jax.nn.sigmoid(mean), actions.high, actions.low)
    return jnp.where(actions.coin > 0, coin, gaussian)


def persistence(
    stats: Statistics, actions: Actions, model: Behaviour, gate: Array, batch: Batch, follows: Array
) -> Float[Array, ""]:
    """The lag-1 correlation of the law's noise in the data, over its Gaussian columns: how long a whim lasts.

    `follows` is 1 where the next row continues the episode.
    """
    mean, spread = jax.vmap(lambda s, g: model(stats, gate, s, g))(batch["state"], batch["goal"])
    z = ((batch["action"] - actions.mean[None]) / actions.scale[None] - mean) * jnp.exp(-spread)
    weight = follows[:-1, None] * (1.0 - actions.coin)[None]
    both = (weight * z[:-1] * z[1:]).sum()
    return jnp.clip(both / jnp.maximum((weight * z[:-1] ** 2).sum(), 1e-6), 0.0, 0.95)
