"""The worth of a policy inside the learned world model: episodes imagined from the logged first states.

At every step the policy acts on what the model has imagined. Plain: the model's calibrated expectation, in which events
happen with their probabilities. Pessimistic: its most sceptical networks, and every step pays lambda times its
uncertainty, as in plans. Continuous factors move by their means. What these say has no confidence interval: nothing in
them knows where the model is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.goal import attained, ended
from because_rl.planning.learned_model import LearnedModel
from because_rl.rng import child_seed
from because_rl.training.stage import hoist
from because_rl.transitions import Transitions

MOST_EPISODES = 500
"""First states to begin from, at most."""

Draw = Callable[[Array, Array, Array], Array]
"""(state, goal, standard normal noise (1 + action columns,)) -> action columns; best a `jax.tree_util.Partial`, since
policies that differ in its arrays alone share a compiled program"""


class Imagined(NamedTuple):
    """Mean returns over episodes and seeds."""

    plain: float
    pessimistic: float


def imagined_worth(
    agent: PlannerAgent, data: Transitions, draw: Draw, horizon: int, discount: float, seed: int = 0
) -> Imagined:
    """Act by `draw` in the agent's model for `horizon` steps."""
    means = [
        _mean_return(agent, data, draw, None, horizon, discount, cautious=cautious, seed=seed)
        for cautious in (False, True)
    ]
    return Imagined(*means)


def replayed_worth(agent: PlannerAgent, data: Transitions, horizon: int, discount: float, seed: int = 0) -> float:
    """What the model makes of the behaviour, whose worth is known: its logged actions, one after the other.

    An episode that was cut off counts as far as it was logged; one that ended but goes on in the model, to the horizon.
    """
    first = np.flatnonzero(data.step == 0)[:MOST_EPISODES]
    last = np.append(np.flatnonzero(data.step == 0)[1:], len(data))[: len(first)] - 1
    rows = np.minimum(first[:, None] + np.arange(horizon), last[:, None])
    counts = (first[:, None] + np.arange(horizon) <= last[:, None]) | data.terminated[last][:, None]
    logged = jnp.asarray(data.action[rows], jnp.float32), jnp.asarray(counts, jnp.float32)
    return _mean_return(agent, data, None, logged, horizon, discount, cautious=False, seed=seed)


def _mean_return(
    agent: PlannerAgent,
    data: Transitions,
    draw: Draw | None,
    logged: tuple[Array, Array] | None,
    horizon: int,
    discount: float,
    *,
    cautious: bool,
    seed: int,
) -> float:
    first = np.flatnonzero(data.step == 0)[:MOST_EPISODES]
    worlds = *(jnp.asarray(part[first], jnp.float32) for part in (data.state, data.goal)), logged
    keys = jax.random.split(jax.random.key(child_seed(seed, "imagined worth") % 2**31), len(first))
    arrays, functions = hoist(agent.learned)
    seeds = agent.parameters, jnp.asarray(agent.pessimism, jnp.float32)
    given = arrays, seeds, draw, worlds, keys
    return float(
        _returns(given, functions, agent.factors, horizon=horizon, discount=discount, cautious=cautious).mean()
    )


@eqx.filter_jit
def _returns(
    given: tuple[Any, ...], functions: Any, factors: FactorSpec, *, horizon: int, discount: float, cautious: bool
) -> Float[Array, "seeds episodes"]:
    arrays, seeds, draw, worlds, keys = given
    learned: LearnedModel = eqx.combine(arrays, functions)
    read = learned.imagine if cautious else learned.expect
    mask = np.zeros(factors.state_size, bool)
    for factor in factors.state:
        mask[factor.slice] = factor.type == "binary"
    binary = jnp.asarray(mask)

    def episode(p: Any, price: Array, world: tuple[Array, Array, Any], key: Array) -> Array:
        state, goal, logged = world
        unit = jnp.ones(()) if learned.outcome is None else p["returns"].unit

        def step(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], Array]:
            state, alive = carry
            one, two = jax.random.split(jax.random.fold_in(key, t))
            if logged is None:
                action = draw(state, goal, jax.random.normal(one, (1 + factors.action_size,)))
            else:
                action, alive = logged[0][t], alive * logged[1][t]
            after, penalty = read(p, state, action)
            drawn = (jax.random.uniform(two, after.shape) < after).astype(after.dtype)
            after = jnp.where(binary, drawn, after)
            if learned.outcome is None:
                reward, end = attained(factors, after, goal), ended(factors, after, goal)
            else:
                reward, end = learned.outcome(p, after)
                end = 1.0 - (1.0 - end) * (1.0 - ended(factors, after, goal))
            paid = reward - (price * penalty if cautious else 0.0)
            return (after, alive * (1.0 - end)), discount ** t.astype(jnp.float32) * alive * paid * unit

        start = state, jnp.ones(())
        return jax.lax.scan(step, start, jnp.arange(horizon, dtype=jnp.int32))[1].sum()

    def one_seed(seed: tuple[Any, Array]) -> Float[Array, " episodes"]:
        return jax.vmap(partial(episode, *seed))(worlds, keys)

    return jax.lax.map(one_seed, seeds)
