"""CCIL (de Haan, Jayaraman and Levine 2019, "Causal Confusion in Imitation Learning"): imitate from the causes alone.

Which state factors cause the action is a graph G in {0, 1}^factors. One network is the policy of all graphs, since its
input is G beside the state that G masks. As in BECAUSE's table, G is learned jointly with the policy:

    G_j ~ Bernoulli(p_j),   p_j = sigmoid(theta_j),   theta_j = logit(.95) at first
    L   = -E_G E log pi(a | s * G, G, g) + weight * sum_j p_j

with one G per row, drawn by the Gumbel-sigmoid trick (its value is 0 or 1, its gradient that of the sigmoid). The
agent acts by the likelier graph, G_j = 1[p_j > 1/2].

Adaptations. *Offline*: the original trains on evenly drawn graphs and then finds G by asking the expert or by acting
in the world, and neither is possible here; instead G is learned from the likelihood of the data. So a factor is dropped
if, given the others, it tells less about the action than its price, in nats per row. A proxy of the action that tells
more than the cause is kept, and nothing in the likelihood could show that it is not the cause. *Goal-conditioned*: the
policy sees the goal, which is never masked. *Vector states*: G is over named factors, which are the disentangled
variables that the original gets from a VAE. The policy has the features and encoders of world models
(`models.state_features`), in which a masked factor is replaced by its mean (0 if it is discrete) and its differences
from others by 0. *Continuous actions*: the original's are discrete; continuous ones have a mixture distribution
(`policy.Mixture`), the same as the planners' proposals, since Gaussian regression would answer data with two modes with
their mean, and samples persist as in the data. *Rates*: theta has a rate of its own. At the table's 1e-4 it could not
cross from .95 to 1/2 (2.9 in theta) in less than 29,000 steps of Adam. *Bounds*: p stays within [.05, .95]. Outside,
where every row draws the same, no gradient would bring it back, and chance decides early which factors go there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.nets import uniform
from because_rl.models.policy import (
    ActionDistribution,
    ActorMethod,
    Choose,
    Imitator,
    Outputs,
    action_distribution,
    imitate,
    make_imitator,
    sample_bernoulli,
    untrained_imitator,
)
from because_rl.models.prepared_data import Summary, summarise
from because_rl.models.state_features import FeatureNetwork, StateFeatures
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class CCILConfig:
    steps: int = 20_000
    batch: int = 256
    hidden: int = 256
    rate: float = 1e-3
    mask_rate: float = 1e-2
    keep: float = 0.95
    """p at first"""
    weight: float = 1e-3
    """of the expected number of factors kept"""
    greedy: bool | None = None
    """take the likeliest action instead of a sample; None: if actions are discrete"""


class CCIL(ActorMethod):
    name = "ccil"

    def __init__(self, config: CCILConfig | None = None):
        self.config = config or CCILConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        run, train = as_run(seeds), ~data.held_out
        summary = summarise(data, train)
        nets = run.fit(self._stage(summary), data.batch(train), ())
        imitator = make_imitator(*self._distribution(summary), self.config.greedy, nets, data)
        return self.make_agent(data, summary, run, imitator)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> Imitator:
        return untrained_imitator(self._stage(summary).init(key, ()))

    def policy(self, summary: Summary) -> tuple[Choose, int]:
        return imitate(*self._distribution(summary), self.config.greedy)

    def _distribution(self, summary: Summary) -> tuple[ActionDistribution, Outputs]:
        features = StateFeatures(summary.factors, summary.stats)

        def outputs(nets: Nets, state: Array, goal: Array) -> Array:
            likelier_graph = (nets.theta > 0).astype(jnp.float32)
            return policy_outputs(features, nets.policy, state, goal, likelier_graph)

        return action_distribution(summary.factors, summary.actions), outputs

    def _stage(self, summary: Summary) -> Stage:
        distribution = action_distribution(summary.factors, summary.actions)
        return ccil_stage(self.config, StateFeatures(summary.factors, summary.stats), distribution)


class Nets(NamedTuple):
    policy: Any
    theta: Any
    """(factors,) log-odds"""


def policy_outputs(
    features: StateFeatures, policy: FeatureNetwork, state: Array, goal: Array, graph: Float[Array, " factors"]
) -> Array:
    """The policy of a graph for one row: it sees the masked state, the goal and the graph."""
    factor_of_column = features.layout.factor_of_column[: len(state)]
    return policy(features(state, goal, graph[factor_of_column]), graph)


def ccil_stage(c: CCILConfig, features: StateFeatures, distribution: ActionDistribution) -> Stage:
    first_theta, factors = float(np.log(c.keep / (1.0 - c.keep))), len(features.layout.factors.state)

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        sizes = (c.hidden, c.hidden, distribution.output_size)
        return Nets(FeatureNetwork(features, sizes, key, last=0.1, more=factors), jnp.full(factors, first_theta))

    def clip_theta(nets: Nets, step: Array) -> Nets:
        return nets._replace(theta=jnp.clip(nets.theta, -first_theta, first_theta))

    rates: dict[str, Any] = {"policy": optax.cosine_decay_schedule(c.rate, c.steps), "theta": c.mask_rate}
    rule = optax.partition({name: optax.adam(rate) for name, rate in rates.items()}, Nets("policy", "theta"))
    loss = partial(ccil_loss, c.weight, features, distribution)
    return Stage("ccil", init, loss, c.steps, c.batch, rule=rule, after=clip_theta)


def ccil_loss(
    weight: float,
    features: StateFeatures,
    distribution: ActionDistribution,
    nets: Nets,
    fixed: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L, with one graph drawn for each row."""

    def row(state: Array, goal: Array, action: Array, noise: Array) -> Array:
        graph = sample_bernoulli(nets.theta, noise)
        return distribution.nll(policy_outputs(features, nets.policy, state, goal, graph), action)

    noise = uniform(key, (len(batch["state"]), len(nets.theta)))
    imitation = jax.vmap(row)(batch["state"], batch["goal"], batch["action"], noise).mean()
    kept = jax.nn.sigmoid(nets.theta).sum()
    return imitation + weight * kept, {"imitation": imitation, "kept": kept}
