"""What methods with a policy network share: its inputs, the action distribution it puts out, and the agent.

Logged actions are imitated by maximum likelihood and not by regression, since logged behaviour is a mixture
(`models.behaviour_policy`): discrete actions have a categorical distribution over the rows of `codes`, continuous ones
a mixture whose components are Gaussian or Bernoulli in each column. A sample is

    argmax_k (logit_k + Gumbel noise)      mean + spread * normal      1[logit + logistic noise > 0]

Its value is exact, and its gradient is that of the softmax or sigmoid in its place (straight-through), so that a loss
on what follows an action reaches the policy.

An agent that samples draws a mixture's component for several steps at once, and its noise as a series, as the planners'
proposals do and as the data were (`behaviour_policy.persistence`): a component drawn anew at every step would turn a
behaviour that hesitates, or swerves to one side, into one that trembles.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import ndtr, ndtri

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import (
    LEAST_SPREAD,
    MOST_SPREAD,
    ActionMixture,
    Persistence,
    component_log_densities,
    mixture_persistence,
)
from because_rl.models.prepared_data import ActionStatistics, Statistics, Summary
from because_rl.rng import stream
from because_rl.training.method import Agent, Controller, Method, describe_data
from because_rl.training.run import Run, flatten, unflatten, untrained_of_seeds
from because_rl.training.stage import Batch
from because_rl.transitions import Transitions

UNIFORM_CLIP = 1e-6
"""Uniform noise is clipped to [UNIFORM_CLIP, 1 - UNIFORM_CLIP], where its logarithms and quantiles are finite."""


class PolicyInput(eqx.Module):
    """The input of a policy network for one row: the standardised state, then the goal in the same units."""

    mean: Array
    scale: Array

    def __init__(self, factors: FactorSpec, stats: Statistics):
        goals = sorted(factors.goal, key=lambda goal: goal.start)
        goal_columns = [np.arange(factors.state_size)[factors[goal.factor].slice] for goal in goals]
        columns = np.concatenate([np.arange(factors.state_size), *goal_columns])
        self.mean, self.scale = stats.mean[columns], stats.scale[columns]

    @property
    def size(self) -> int:
        return len(self.mean)

    def __call__(self, state: Float[Array, " state"], goal: Float[Array, " goal"]) -> Float[Array, " size"]:
        return (jnp.concatenate([state, goal]) - self.mean) / self.scale


class ActionDistribution(Protocol):
    """A distribution of actions, given by the outputs `out` of a policy network for one row."""

    @property
    def output_size(self) -> int:
        """How many outputs of the network describe the distribution."""
        ...

    @property
    def noise_size(self) -> int:
        """How many uniform numbers a sample takes."""
        ...

    def nll(self, out: Array, action: Array) -> Float[Array, ""]:
        """Negative log-likelihood of a logged action (as columns)."""
        ...

    def sample(self, out: Array, noise: Array) -> Float[Array, " action"]:
        """Action columns from uniform noise, differentiable in `out`."""
        ...

    def act(self, out: Array, noise: Array | None) -> Array:
        """The action as environments take it: a sample, or the likeliest action where `noise` is None."""
        ...


class Categorical(eqx.Module):
    """A categorical distribution over the rows of `codes`."""

    codes: Float[Array, "actions columns"]

    @property
    def output_size(self) -> int:
        return len(self.codes)

    @property
    def noise_size(self) -> int:
        return len(self.codes)

    def nll(self, out: Array, action: Array) -> Array:
        return -jax.nn.log_softmax(out)[((self.codes - action[None]) ** 2).sum(1).argmin()]

    def sample(self, out: Array, noise: Array) -> Array:
        return sample_one_hot(out, noise) @ self.codes

    def act(self, out: Array, noise: Array | None) -> Array:
        return (out if noise is None else out + gumbel(noise)).argmax()


class Mixture(eqx.Module):
    """The mixture of `models.behaviour_policy` over continuous columns; samples stay in the range of the data."""

    actions: ActionStatistics
    components: int = eqx.field(static=True, default=4)

    @property
    def output_size(self) -> int:
        return self.components * (1 + 2 * len(self.actions.mean))

    @property
    def noise_size(self) -> int:
        return self.components + len(self.actions.mean)

    def mixture(self, out: Array) -> ActionMixture:
        out = out.reshape(self.components, -1)
        mean, spread = jnp.split(out[:, 1:], 2, axis=1)
        # Components that start alike would stay alike: they begin at different spreads.
        first = jnp.linspace(-1.0, 1.0, self.components)[:, None]
        spread = LEAST_SPREAD + (MOST_SPREAD - LEAST_SPREAD) * jax.nn.sigmoid(spread + first)
        return ActionMixture(jax.nn.log_softmax(out[:, 0]), mean, spread)

    def nll(self, out: Array, action: Array) -> Array:
        return -jax.nn.logsumexp(component_log_densities(self.actions, self.mixture(out), action)[0])

    def sample(self, out: Array, noise: Array) -> Array:
        mixture, noise = self.mixture(out), jnp.clip(noise, UNIFORM_CLIP, 1.0 - UNIFORM_CLIP)
        assert mixture.log_spread is not None
        component_noise, column_noise = jnp.split(noise, [self.components])
        component = sample_one_hot(mixture.log_weight, component_noise)
        mean, spread = component @ mixture.mean, jnp.exp(component @ mixture.log_spread)
        gaussian = mean + spread * jax.scipy.special.ndtri(column_noise)
        return self._columns(gaussian, sample_bernoulli(mean, column_noise))

    def act(self, out: Array, noise: Array | None) -> Array:
        if noise is not None:
            return self.sample(out, noise)
        mixture = self.mixture(out)
        mean = mixture.mean[mixture.log_weight.argmax()]
        return self._columns(mean, (mean > 0).astype(mean.dtype))

    def _columns(self, gaussian: Array, bernoulli: Array) -> Array:
        a = self.actions
        columns = jnp.where(a.coin > 0, a.low + (a.high - a.low) * bernoulli, a.mean + a.scale * gaussian)
        return jnp.clip(columns, a.low, a.high)


def action_distribution(factors: FactorSpec, actions: ActionStatistics) -> ActionDistribution:
    """The distribution for this kind of actions; continuous ones have the range and scale of the logged `actions`."""
    check_actions(factors)
    if factors.codes is not None:
        return Categorical(jnp.asarray(factors.codes, jnp.float32))
    return Mixture(actions)


def check_actions(factors: FactorSpec) -> None:
    """Refuse discrete action factors in a spec without `codes`."""
    for factor in factors.action if factors.codes is None else ():
        if not factor.is_continuous:
            raise BecauseError(
                f"Action factor {factor.name!r} is {factor.type}, and the factor spec has no 'codes'.",
                need="continuous action factors, or 'codes' with a row for each discrete action.",
                fix="add 'codes' to the factor spec; see docs/factors.md.",
            )


def gumbel(noise: Array) -> Array:
    """Standard Gumbel noise from uniform noise."""
    return -jnp.log(-jnp.log(jnp.clip(noise, UNIFORM_CLIP, 1.0 - UNIFORM_CLIP)))


def sample_one_hot(logits: Float[Array, " n"], noise: Float[Array, " n"]) -> Float[Array, " n"]:
    """A one-hot sample from the softmax of `logits`, from uniform noise, with the gradient of the softmax."""
    soft = jax.nn.softmax(logits + gumbel(noise))
    return _straight_through(jax.nn.one_hot(soft.argmax(), len(soft)), soft)


def sample_bernoulli(logits: Array, noise: Array) -> Array:
    """Samples in {0, 1} with probabilities sigmoid(`logits`), from uniform noise of the same shape (Gumbel-sigmoid)."""
    noise = jnp.clip(noise, UNIFORM_CLIP, 1.0 - UNIFORM_CLIP)
    soft = jax.nn.sigmoid(logits + jnp.log(noise) - jnp.log1p(-noise))
    return _straight_through((soft > 0.5).astype(soft.dtype), soft)


def _straight_through(value: Array, soft: Array) -> Array:
    """`value`, with the gradient of `soft`."""
    return value + (soft - jax.lax.stop_gradient(soft))


Choose = Callable[[Any, Array, Array, Array], Array]
"""(networks of one seed, state, goal, uniform noise) -> action"""


class ActorMethod(Method):
    """A method whose agent acts by a network."""

    @abstractmethod
    def untrained(self, summary: Summary, key: PRNGKeyArray) -> Any:
        """The networks that act, of one seed and before training: a saved agent has their structure."""

    @abstractmethod
    def policy(self, summary: Summary) -> tuple[Choose, int]:
        """How they act, and how many uniform numbers that takes."""

    def make_agent(self, data: Transitions, summary: Summary, run: Run, actors: Any) -> ActorAgent:
        """The agent that acts by fitted networks, which have a leading axis of seeds."""
        agent = ActorAgent(self, summary, run.seeds, actors)
        agent.trained_on = describe_data(data)
        return agent

    def restore(
        self, factors: FactorSpec, horizon: int, seeds: tuple[int, ...], arrays: Mapping[str, np.ndarray]
    ) -> ActorAgent:
        summary = Summary.restore(factors, horizon, arrays)
        template = untrained_of_seeds(partial(self.untrained, summary), len(seeds))
        return ActorAgent(self, summary, seeds, unflatten(template, arrays, "agent"))


class ActorAgent(Agent):
    """Acts by a network, one for each seed."""

    def __init__(self, method: ActorMethod, summary: Summary, seeds: tuple[int, ...], actors: Any):
        """`actors`: the networks, with a leading axis of seeds."""
        super().__init__(method, seeds, summary.factors, summary.horizon)
        self.summary, self.actors = summary, actors
        choose, self.noise = method.policy(summary)
        self._act = jax.jit(jax.vmap(jax.vmap(choose, (None, 0, 0, 0))))

    def start(self, worlds: int, seed: int = 0) -> ActorController:
        return ActorController(self, seed)

    def arrays(self) -> dict[str, np.ndarray]:
        return flatten(self.actors) | self.summary.arrays()

    def _one_seed(self, k: int) -> ActorAgent:
        assert isinstance(self.method, ActorMethod)
        actors = jax.tree.map(lambda leaf: leaf[k : k + 1], self.actors)
        return ActorAgent(self.method, self.summary, self.seeds[k : k + 1], actors)


class ActorController(Controller):
    def __init__(self, agent: ActorAgent, seed: int):
        self._agent, self._streams = agent, [stream(seed, "act", agent_seed) for agent_seed in agent.seeds]
        self._noise: np.ndarray | None = None

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        agent = self._agent
        uniform = np.stack([rng.random((state.shape[1], agent.noise + 1), np.float32) for rng in self._streams])
        noise = uniform[..., :-1]
        if self._noise is not None and isinstance(agent.actors, Imitator) and agent.factors.codes is None:
            noise = persist(agent.actors.persistence, agent.factors.action_size, self._noise, uniform)
        self._noise = noise
        rows = (jnp.asarray(part, jnp.float32) for part in (state, goal, noise))
        return np.asarray(agent._act(agent.actors, *rows))


# Imitation --------------------------------------------------------------------------------------------------
Outputs = Callable[[Any, Array, Array], Array]
"""(networks of one seed, state, goal) -> the parameters of an action distribution"""


class Imitator(NamedTuple):
    """What an agent that acts by a distribution keeps of each seed."""

    nets: Any
    persistence: Persistence


def imitate(distribution: ActionDistribution, outputs: Outputs, greedy: bool | None) -> tuple[Choose, int]:
    """Acting by `distribution`, whose parameters are `outputs`; for `ActorMethod.policy`, with an `Imitator`.

    `greedy` takes the likeliest action. None: the likeliest where actions are discrete, a sample where they are
    continuous, as the heaviest component of a mixture may be one that mostly waits.
    """
    likeliest = isinstance(distribution, Categorical) if greedy is None else greedy

    def choose(actor: Imitator, state: Array, goal: Array, noise: Array) -> Array:
        return distribution.act(outputs(actor.nets, state, goal), None if likeliest else noise)

    return choose, distribution.noise_size


def make_imitator(
    distribution: ActionDistribution, outputs: Outputs, greedy: bool | None, nets: Any, data: Transitions
) -> Imitator:
    """Fitted networks, which have a leading axis of seeds, with the persistence of the behaviour noise in the data."""
    if greedy or not isinstance(distribution, Mixture):
        seeds = len(jax.tree.leaves(nets)[0])
        return Imitator(nets, Persistence(jnp.zeros(seeds), jnp.zeros(seeds)))
    train = ~data.held_out
    episode = data.episode[train]
    follows = jnp.asarray(np.append(episode[1:] == episode[:-1], False), jnp.float32)

    def measure(nets: Any, batch: Batch) -> Persistence:
        def mixture(state: Array, goal: Array) -> ActionMixture:
            return distribution.mixture(outputs(nets, state, goal))

        mixtures = jax.vmap(mixture)(batch["state"], batch["goal"])
        return mixture_persistence(distribution.actions, mixtures, batch["action"], follows)

    return Imitator(nets, jax.jit(jax.vmap(measure, (0, None)))(nets, data.batch(train)))


def untrained_imitator(nets: Any) -> Imitator:
    """The structure of what `make_imitator` returns, of one seed."""
    return Imitator(nets, Persistence(jnp.zeros(()), jnp.zeros(())))


def persist(
    persistence: Persistence,
    columns: int,
    last: Float[np.ndarray, "seeds worlds noise"],
    uniform: Float[np.ndarray, "seeds worlds noise_and_one"],
) -> np.ndarray:
    """The noise of a mixture's sample that follows the noise of the `last` step.

    The noise that chooses the component is kept with probability `persistence.component`, and that of the `columns` of
    the action, as normal quantiles, is a series with lag-1 correlation `persistence.noise`.
    """
    keep, memory = (np.asarray(part, np.float32)[:, None, None] for part in reversed(persistence))
    fresh, chance = uniform[..., :-1], uniform[..., -1:]
    component = np.where(chance < keep, last[..., :-columns], fresh[..., :-columns])
    before, new = (ndtri(np.clip(part[..., -columns:], UNIFORM_CLIP, 1 - UNIFORM_CLIP)) for part in (last, fresh))
    series = ndtr(memory * before + np.sqrt(1 - memory**2) * new)
    return np.concatenate([component, series.astype(np.float32)], axis=-1)
