"""Denoised MDP (Wang et al., ICML 2022, "Learning World Models Better Than the World Itself"): act on what you control.

The state is explained by two latent chains, of which the action drives one:

    x' ~ p(x' | x, a),    y' ~ p(y' | y),    s ~ p(s | x, y),    r ~ N(r_x(x') + r_y(y'), 1)

    L = E_q [-log p(s' | x', y') - log p(r | x', y')] + kl * (KL(q(x') | p(x' | x, a)) + ease * KL(q(y') | p(y' | y)))

As ease < 1, what can be in either chain is cheaper in y: x is left with what actions move. The agent acts on x, which
loses nothing: where r = r_x + r_y, no action changes what y earns. (The original has a third chain z, which x and y
drive and no reward depends on; its sizes in the BECAUSE paper's table are 0.)

Adaptations. *Vector states*: chains, encoder and decoder are those of `models.latent`: x and y have the state's own
columns (the 33, 110 and 22 of the table), and what is learned of the encoder is in which chain each factor lies, and
with how much noise. States are Markov and fully observed, so transitions stand for sequences, and the width of the
priors' networks for the belief of a recurrent network. Free nats are left out. *Likelihood*: planners use the priors,
so the loss also has the likelihood of each chain's own prediction of its factors of s', as in all models here; without
it noisy outcomes of actions, too, would be cheaper in y. Hence kl is .1, where the original has 1. *Goal as reward*:
r_x and r_y also see the goal; rewards are standardised. *Acting*: the planner that all models share imagines states: it
encodes each at its mean, steps both priors, and decodes their means. Of these only what is in x depends on the action.
The behaviour policy and the value of `proposals` see no factor that lies mostly in y, unless the goal is about it.
*Offline*: one fit instead of a collecting agent. There is no uncertainty, so plans pay no penalty. *Rate*: the
assignment of factors to chains has a rate of its own, and all else that of all models: the table's 1e-4 on Lift and
Crash, which it has for BECAUSE too, goes with 100,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models import nodes
from because_rl.models.latent import (
    Blocks,
    assignment_probabilities,
    evidence_bound,
    masks_from_assignment,
    sample_assignments,
    sample_latents,
    with_assignment_rate,
)
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP
from because_rl.models.objective import Weights, background
from because_rl.models.prepared_data import LEAST, Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, fit_proposals
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

X, Y = range(2)


@dataclass(frozen=True)
class BlocksConfig(PlanningConfig):
    pessimism: float | None = 0.0
    kl: float = 0.1
    precision: float = 0.1
    """of the decoder, in units of a factor's usual change"""
    share_rate: float = 0.01
    """learning rate of the assignment of factors to blocks"""
    deviation: float = 1e-3
    """weight of the squared deviations of single factors from the networks of their kind"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""


@dataclass(frozen=True)
class DenoisedMDPConfig(BlocksConfig):
    ease: float = 0.25
    """cost of a nat in y, as a share of its cost in x"""
    reward: float = 1.0
    """weight of the reward's likelihood"""


class DenoisedMDP(PlanningMethod):
    name = "denoised-mdp"

    def __init__(self, config: DenoisedMDPConfig | None = None):
        self.config = config or DenoisedMDPConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared = self.config, as_run(seeds), prepare(data)
        rewards = mean_and_std(data.reward[~data.held_out])
        world = run.fit(denoised_stage(c, prepared.layout, prepared.stats, rewards), prepared.train, ()).world
        in_x = np.asarray(jax.vmap(assignment_probabilities)(world))[:, X]
        proposals = fit_proposals(c, prepared, run, masks_from_assignment(prepared.layout, in_x))
        diagnostics = {"factors in x": in_x.sum(1)}
        return self.make_agent(prepared, run, {"world": world}, proposals, diagnostics)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        return {"world": make_blocks(self.config, summary.layout, key)}


def mean_and_std(*arrays: np.ndarray) -> Array:
    """The mean and the standard deviation of each array, one after the other."""
    return jnp.asarray([value for a in arrays for value in (a.mean(), a.std() + LEAST)], jnp.float32)


class Nets(NamedTuple):
    world: Any
    reward: Any
    """r_x and r_y"""


def make_blocks(c: DenoisedMDPConfig, layout: Layout, key: PRNGKeyArray) -> Blocks:
    return Blocks(layout, key, c.hidden, visible=((1, 0), (0, 1)), action_driven=(1, 0), noise=c.precision)


def denoised_stage(c: DenoisedMDPConfig, layout: Layout, stats: Statistics, reward_statistics: Array) -> Stage:
    """`reward_statistics`: mean and standard deviation of the data's rewards."""

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        k1, k2, k3 = jax.random.split(key, 3)
        sizes = layout.factors.state_size + layout.factors.goal_size, c.hidden, 1
        return Nets(make_blocks(c, layout, k1), [MLP(sizes, k, last=0.1) for k in (k2, k3)])

    stage = Stage("world", init, partial(denoised_loss, c, stats, reward_statistics), c.world_steps, c.batch, c.rate)
    return with_assignment_rate(stage, c.share_rate)


def denoised_loss(
    c: DenoisedMDPConfig,
    stats: Statistics,
    reward_statistics: Float[Array, " 2"],
    nets: Nets,
    fixed: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L, with the likelihoods that planners use and those of rows far from the data (`objective.background`)."""
    k1, k2, k3 = jax.random.split(key, 3)
    assignment = sample_assignments(nets.world, len(batch["state"]), k1)
    bound = evidence_bound(stats, nets.world, assignment, batch, c.precision)
    kl = bound.kl[X] + c.ease * bound.kl[Y]

    z = sample_latents(stats, nets.world, assignment, batch["next_state"], k2)
    predicted = [
        jax.vmap(net)(jnp.concatenate([z[n], batch["goal"]], axis=1))[:, 0] for n, net in enumerate(nets.reward)
    ]
    mean, std = reward_statistics
    reward = 0.5 * (((batch["reward"] - mean) / std - sum(predicted)) ** 2).mean()

    far = background(Weights(background=c.background), stats, nets.world, None, batch, k3)
    prediction = bound.network_nll + c.background * far + c.deviation * nodes.deviation(nets.world)
    total = prediction + bound.assignment_nll + bound.reconstruction + c.kl * kl + c.reward * reward
    metrics = {"nll": bound.network_nll, "kl_x": bound.kl[X], "kl_y": bound.kl[Y], "reward": reward}
    return total, metrics | {"background": far, "in_x": assignment_probabilities(nets.world)[X].sum()}
