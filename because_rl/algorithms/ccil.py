"""CCIL (de Haan, Jayaraman and Levine 2019, "Causal Confusion in Imitation Learning"): imitate from the causes alone.

Which state factors cause the action is a graph G in {0, 1}^factors. One network is the policy of all graphs, since its
input is G beside the state that G masks. As in BECAUSE's table, G is learned jointly with the policy:

    G_j ~ Bernoulli(p_j),   p_j = sigmoid(theta_j),   theta_j = logit(.95) at first
    L   = -E_G E log pi(a | s * G, G, g) + weight * sum_j p_j

with one G per row, drawn by the Gumbel-sigmoid trick (its value is 0 or 1, its gradient that of the sigmoid). The
agent acts by the likelier graph, G_j = 1[p_j > 1/2].

Adaptations. *Offline*: the original trains on evenly drawn graphs and then finds G by asking the expert or by acting
in the world, and neither is possible here; instead G is learned from the likelihood of the data. So a factor is dropped
if it adds nothing to what the others say about the action; one that is merely correlated with the action, and that
nothing replaces, is not. *Goal-conditioned*: the policy sees the goal, which is never masked. *Vector states*: G is
over named factors, which are the disentangled variables that the original gets from a VAE; a masked factor is replaced
by its mean (0 if it is discrete). *Continuous actions*: the original's are discrete; continuous ones have a mixture
distribution (`policy.Mixture`), the same as the planners' proposals, since Gaussian regression would answer data with
two modes with their mean. *Rates*: theta has a rate of its own. At the table's 1e-4 it could not cross from .95 to 1/2
(2.9 in theta) in less than 29,000 steps of Adam. *Bounds*: p stays within [.05, .95]. Outside, where every row draws
the same, no gradient would bring it back, and chance decides early which factors go there.
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

from because_rl.models.nets import MLP, uniform
from because_rl.models.policy import (
    ActionDistribution,
    ActorMethod,
    Choose,
    PolicyInput,
    action_distribution,
    imitate,
    sample_bernoulli,
)
from because_rl.models.prepared_data import Summary, summarise
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
        return self.make_agent(data, summary, run, nets)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> Nets:
        return self._stage(summary).init(key, ())

    def policy(self, summary: Summary) -> tuple[Choose, int]:
        masked_input = make_masked_input(summary)

        def outputs(nets: Nets, state: Array, goal: Array) -> Array:
            likelier_graph = (nets.theta > 0).astype(jnp.float32)
            return nets.policy(masked_input(state, goal, likelier_graph))

        return imitate(action_distribution(summary.factors, summary.actions), outputs, self.config.greedy)

    def _stage(self, summary: Summary) -> Stage:
        distribution = action_distribution(summary.factors, summary.actions)
        return ccil_stage(self.config, make_masked_input(summary), distribution)


class Nets(NamedTuple):
    policy: Any
    theta: Any
    """(factors,) log-odds"""


class MaskedInput(NamedTuple):
    """The input of the policy of a graph for one row: the masked state, the goal and the graph."""

    policy_input: PolicyInput
    factor: np.ndarray
    """(state columns,) which factor each belongs to"""

    @property
    def factors(self) -> int:
        return int(self.factor.max()) + 1

    @property
    def size(self) -> int:
        return self.policy_input.size + self.factors

    def __call__(self, state: Array, goal: Array, graph: Float[Array, " factors"]) -> Array:
        x, g = jnp.split(self.policy_input(state, goal), [len(state)])
        return jnp.concatenate([x * graph[self.factor], g, graph])


def make_masked_input(summary: Summary) -> MaskedInput:
    columns = summary.layout.factor_of_column[: summary.factors.state_size]
    return MaskedInput(PolicyInput(summary.factors, summary.stats), columns)


def ccil_stage(c: CCILConfig, masked_input: MaskedInput, distribution: ActionDistribution) -> Stage:
    first_theta = float(np.log(c.keep / (1.0 - c.keep)))
    sizes = (masked_input.size, c.hidden, c.hidden, distribution.output_size)

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        return Nets(MLP(sizes, key, last=0.1), jnp.full(masked_input.factors, first_theta))

    def clip_theta(nets: Nets, step: Array) -> Nets:
        return nets._replace(theta=jnp.clip(nets.theta, -first_theta, first_theta))

    rates: dict[str, Any] = {"policy": optax.cosine_decay_schedule(c.rate, c.steps), "theta": c.mask_rate}
    rule = optax.partition({name: optax.adam(rate) for name, rate in rates.items()}, Nets("policy", "theta"))
    loss = partial(ccil_loss, c.weight, masked_input, distribution)
    return Stage("ccil", init, loss, c.steps, c.batch, rule=rule, after=clip_theta)


def ccil_loss(
    weight: float,
    masked_input: MaskedInput,
    distribution: ActionDistribution,
    nets: Nets,
    fixed: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L, with one graph drawn for each row."""

    def row(state: Array, goal: Array, action: Array, noise: Array) -> Array:
        graph = sample_bernoulli(nets.theta, noise)
        return distribution.nll(nets.policy(masked_input(state, goal, graph)), action)

    noise = uniform(key, (len(batch["state"]), len(nets.theta)))
    imitation = jax.vmap(row)(batch["state"], batch["goal"], batch["action"], noise).mean()
    kept = jax.nn.sigmoid(nets.theta).sum()
    return imitation + weight * kept, {"imitation": imitation, "kept": kept}
