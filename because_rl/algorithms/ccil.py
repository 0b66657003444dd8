"""CCIL (de Haan, Jayaraman and Levine 2019, "Causal Confusion in Imitation Learning"): imitate from the causes alone.

Which state factors cause the action is a graph G in {0, 1}^factors. One network plays the policies of all graphs,
since it sees G beside the state that G masks. As BECAUSE's table has it, G is learned jointly with the policy:

    G_j ~ Bernoulli(p_j),   p_j = sigmoid(theta_j),   theta_j = logit(.95) at first
    L   = -E_G E log pi(a | s * G, G, g) + weight * sum_j p_j

with one G per row, drawn by the Gumbel-sigmoid trick (its value is 0 or 1, its gradient that of the sigmoid). The
agent acts by the likelier graph, G_j = 1[p_j > 1/2].

Adaptations. *Offline*: the original trains on evenly drawn graphs and then finds G by asking the expert or by acting
in the world, and neither can be had; here G must earn its likelihood on the data. So a factor is dropped that adds
nothing to what the others tell about the action; one that is merely correlated with it, if nothing replaces it, is
not. *Goal-conditioned*: the policy sees the goal, which is never masked. *Vector states*: G is over named factors,
which are the disentangled variables that the original gets from a VAE; a masked factor shows its mean (0 if it is
discrete). *Continuous actions*: the original's are discrete; these have a mixture law (`actor.Mixture`), the same
that the planners' proposals use, since Gaussian regression would answer two-minded data with the mean of the two.
*Rates*: theta has a rate of its own. At the table's 1e-4 it could not cross from .95 to 1/2 (2.9 in theta) in less
than 29,000 steps of Adam. *Bounds*: p stays within [.05, .95]. Outside, where every row draws the same, no gradient
would bring it back, and chance decides early which factors go there.
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

from because_rl.models.layout import Layout
from because_rl.models.nets import MLP, uniform
from because_rl.models.policy import ActionDistribution, PolicyInput, action_distribution, coin, make_imitator
from because_rl.models.prepared_data import statistics
from because_rl.training.method import Agent, Method
from because_rl.training.run import Run
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
    """do the likeliest action rather than draw one; None: if actions are discrete"""


class Nets(NamedTuple):
    policy: Any
    theta: Any
    """(factors,) log-odds"""


class Masking(NamedTuple):
    """What the policy of a graph sees of one row: the masked state, the goal and the graph."""

    view: PolicyInput
    factor: np.ndarray
    """(state columns,) which factor each belongs to"""

    @property
    def size(self) -> int:
        return self.view.size + int(self.factor.max()) + 1

    def __call__(self, state: Array, goal: Array, graph: Float[Array, " factors"]) -> Array:
        x, g = jnp.split(self.view(state, goal), [len(state)])
        return jnp.concatenate([x * graph[self.factor], g, graph])


def ccil_loss(
    weight: float, masking: Masking, law: ActionDistribution, nets: Nets, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    def row(state: Array, goal: Array, action: Array, noise: Array) -> Array:
        return law.cost(nets.policy(masking(state, goal, coin(nets.theta, noise))), action)

    noise = uniform(key, (len(batch["state"]), len(nets.theta)))
    imitation = jax.vmap(row)(batch["state"], batch["goal"], batch["action"], noise).mean()
    kept = jax.nn.sigmoid(nets.theta).sum()
    return imitation + weight * kept, {"imitation": imitation, "kept": kept}


def ccil_stage(config: CCILConfig, masking: Masking, law: ActionDistribution, factors: int) -> Stage:
    h, first = config.hidden, float(np.log(config.keep / (1.0 - config.keep)))
    sizes = (masking.size, h, h, law.outputs)

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        return Nets(MLP(sizes, key, last=0.1), jnp.full(factors, first))

    rates: dict[str, Any] = {
        "policy": optax.cosine_decay_schedule(config.rate, config.steps),
        "theta": config.mask_rate,
    }
    rule = optax.partition({name: optax.adam(rate) for name, rate in rates.items()}, Nets("policy", "theta"))
    loss = partial(ccil_loss, config.weight, masking, law)

    def bound(nets: Nets, step: Array) -> Nets:
        return nets._replace(theta=jnp.clip(nets.theta, -first, first))

    return Stage("ccil", init, loss, config.steps, config.batch, rule=rule, after=bound)


class CCIL(Method):
    name = "ccil"

    def __init__(self, config: CCILConfig | None = None):
        self.config = config or CCILConfig()

    def fit(self, data: Transitions, run: Run) -> Agent:
        keep, factors, layout = ~data.held_out, data.factors, Layout(data.factors)
        stats = statistics(layout, data.state[keep], data.action[keep], data.next_state[keep])
        masking = Masking(PolicyInput(factors, stats), layout.factor_of_column[: factors.state_size])
        law = action_distribution(factors, data.action[keep])
        nets = run.fit(ccil_stage(self.config, masking, law, len(factors.state)), data.batch(keep), ())

        def policy(nets: Nets, state: Array, goal: Array) -> Array:
            return nets.policy(masking(state, goal, (nets.theta > 0).astype(jnp.float32)))

        return make_imitator(run.seeds, nets, law, policy, self.config.greedy)
