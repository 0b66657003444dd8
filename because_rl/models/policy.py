"""What methods share whose policy is a network: what it sees, the law of actions it puts out, and the agent.

An imitated law is likelihood, not regression, since logged behaviour has several minds (`models.behaviour`): over
the rows of `codes` for discrete actions, a mixture of Gaussians and coins for continuous ones. It is drawn from by

    argmax_k (logit_k + Gumbel noise)      mean + spread * normal      1[logit + logistic noise > 0]

whose value is exact and whose gradient is that of the softmax or sigmoid in their place (straight-through), so a
loss on what follows an action reaches the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import (
    LEAST_SPREAD,
    MOST_SPREAD,
    ActionMixture,
    action_statistics,
    component_log_densities,
)
from because_rl.models.behaviour_policy import ActionStatistics as Described
from because_rl.models.prepared_data import Statistics
from because_rl.rng import stream
from because_rl.training.method import Agent

EDGE = 1e-6
"""Uniform noise stays this far from 0 and 1."""


class PolicyInput(eqx.Module):
    """What networks see of one row: the standardised state and the goal in the same units."""

    mean: Array
    scale: Array

    def __init__(self, factors: FactorSpec, stats: Statistics):
        wanted = sorted(factors.goal, key=lambda goal: goal.start)
        columns = [np.arange(factors.state_size)[factors[goal.factor].slice] for goal in wanted]
        of = np.concatenate([np.arange(factors.state_size), *columns])
        self.mean, self.scale = stats.mean[of], stats.scale[of]

    @property
    def size(self) -> int:
        return len(self.mean)

    def __call__(self, state: Float[Array, " state"], goal: Float[Array, " goal"]) -> Array:
        return (jnp.concatenate([state, goal]) - self.mean) / self.scale


class ActionDistribution(Protocol):
    """A law of actions, read off a network's `outputs` for one row."""

    @property
    def outputs(self) -> int: ...

    @property
    def noise(self) -> int:
        """How many uniform numbers a draw takes."""
        ...

    def cost(self, out: Array, action: Array) -> Float[Array, ""]:
        """-log of the law at a logged action."""
        ...

    def draw(self, out: Array, noise: Array) -> Float[Array, " action"]:
        """Action columns, differentiable in `out`."""
        ...

    def act(self, out: Array, noise: Array | None) -> Array:
        """The action as worlds take it: drawn, or without noise the likeliest."""
        ...


class Categorical(eqx.Module):
    """Over the rows of `codes`."""

    codes: Float[Array, "actions columns"]

    @property
    def outputs(self) -> int:
        return len(self.codes)

    @property
    def noise(self) -> int:
        return len(self.codes)

    def cost(self, out: Array, action: Array) -> Array:
        return -jax.nn.log_softmax(out)[((self.codes - action[None]) ** 2).sum(1).argmin()]

    def draw(self, out: Array, noise: Array) -> Array:
        return sample_one_hot(out, noise) @ self.codes

    def act(self, out: Array, noise: Array | None) -> Array:
        return (out if noise is None else out + gumbel(noise)).argmax()


class Mixture(eqx.Module):
    """Over the columns of a box (the range of the data), as `models.behaviour` has it."""

    actions: Described
    components: int = eqx.field(static=True, default=4)

    @property
    def outputs(self) -> int:
        return self.components * (1 + 2 * len(self.actions.mean))

    @property
    def noise(self) -> int:
        return self.components + len(self.actions.mean)

    def law(self, out: Array) -> ActionMixture:
        out = out.reshape(self.components, -1)
        mean, spread = jnp.split(out[:, 1:], 2, axis=1)
        # Components that start alike would stay alike: they begin at different spreads.
        first = jnp.linspace(-1.0, 1.0, self.components)[:, None]
        spread = LEAST_SPREAD + (MOST_SPREAD - LEAST_SPREAD) * jax.nn.sigmoid(spread + first)
        return ActionMixture(jax.nn.log_softmax(out[:, 0]), mean, spread)

    def cost(self, out: Array, action: Array) -> Array:
        return -jax.nn.logsumexp(component_log_densities(self.actions, self.law(out), action)[0])

    def draw(self, out: Array, noise: Array) -> Array:
        law, (which, inside) = self.law(out), jnp.split(jnp.clip(noise, EDGE, 1.0 - EDGE), [self.components])
        k = sample_one_hot(law.log_weight, which)
        mean, spread = k @ law.mean, jnp.exp(k @ law.log_spread)
        return self._columns(mean + spread * jax.scipy.special.ndtri(inside), coin(mean, inside))

    def act(self, out: Array, noise: Array | None) -> Array:
        if noise is not None:
            return self.draw(out, noise)
        law = self.law(out)
        mean = law.mean[law.log_weight.argmax()]
        return self._columns(mean, (mean > 0).astype(mean.dtype))

    def _columns(self, gaussian: Array, heads: Array) -> Array:
        a = self.actions
        columns = jnp.where(a.coin > 0, a.low + (a.high - a.low) * heads, a.mean + a.scale * gaussian)
        return jnp.clip(columns, a.low, a.high)


def action_distribution(factors: FactorSpec, action: np.ndarray) -> ActionDistribution:
    """The law for this kind of actions; `action` are the logged ones."""
    check_actions(factors)
    if factors.codes is not None:
        return Categorical(jnp.asarray(factors.codes, jnp.float32))
    return Mixture(action_statistics(action))


def check_actions(factors: FactorSpec) -> None:
    for factor in factors.action if factors.codes is None else ():
        if factor.type != "continuous":
            raise BecauseError(
                f"Action factor {factor.name!r} is {factor.type}, and the factor spec has no 'codes'.",
                need="continuous action factors, or 'codes' with a row for each discrete action.",
                fix="add 'codes' to the factor spec; see docs/factors.md.",
            )


def gumbel(noise: Array) -> Array:
    """Of uniform noise."""
    return -jnp.log(-jnp.log(jnp.clip(noise, EDGE, 1.0 - EDGE)))


def sample_one_hot(logits: Float[Array, " n"], noise: Float[Array, " n"]) -> Float[Array, " n"]:
    """One-hot, drawn from the softmax of `logits`."""
    soft = jax.nn.softmax(logits + gumbel(noise))
    return _straight(jax.nn.one_hot(soft.argmax(), len(soft)), soft)


def coin(logits: Array, noise: Array) -> Array:
    """0 or 1 each, drawn from the sigmoid of `logits`: Gumbel-sigmoid."""
    noise = jnp.clip(noise, EDGE, 1.0 - EDGE)
    soft = jax.nn.sigmoid(logits + jnp.log(noise) - jnp.log1p(-noise))
    return _straight((soft > 0.5).astype(soft.dtype), soft)


def _straight(value: Array, soft: Array) -> Array:
    """`value`, with the gradient of `soft`."""
    return value + (soft - jax.lax.stop_gradient(soft))


class ActorAgent(Agent):
    """Does what its actor says."""

    def __init__(
        self, seeds: tuple[int, ...], actors: Any, choose: Callable[[Any, Array, Array, Array], Array], noise: int = 0
    ):
        """`choose`: (actor of one seed, state, goal, `noise` uniform numbers) -> action."""
        self.seeds, self._actors, self._noise = seeds, actors, noise
        self._act = jax.jit(jax.vmap(jax.vmap(choose, (None, 0, 0, 0))))
        self.begin(0, 0)

    def begin(self, worlds: int, seed: int) -> None:
        self._streams = [stream(seed, "act", mine) for mine in self.seeds]

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        noise = np.stack([rng.random((state.shape[1], self._noise), np.float32) for rng in self._streams])
        return np.asarray(
            self._act(self._actors, jnp.asarray(state, jnp.float32), jnp.asarray(goal, jnp.float32), jnp.asarray(noise))
        )


def make_imitator(
    seeds: tuple[int, ...],
    nets: Any,
    law: ActionDistribution,
    policy: Callable[[Any, Array, Array], Array],
    greedy: bool | None,
) -> ActorAgent:
    """Acts by the law that `policy` (nets, state, goal) puts out.

    `greedy` does what is likeliest. None: of discrete actions that; continuous ones are drawn, as the heaviest
    component of a mixture may be one that mostly waits.
    """
    likeliest = isinstance(law, Categorical) if greedy is None else greedy

    def choose(nets: Any, state: Array, goal: Array, noise: Array) -> Array:
        return law.act(policy(nets, state, goal), None if likeliest else noise)

    return ActorAgent(seeds, nets, choose, noise=law.noise)
