"""Denoised MDP (Wang et al., ICML 2022, "Learning World Models Better Than the World Itself"): act on what you control.

The state is explained by two chains, of which the action drives one:

    x' ~ p(x' | x, a),    y' ~ p(y' | y),    s ~ p(s | x, y),    r ~ N(r_x(x') + r_y(y'), 1)

    L = E_q [-log p(s' | x', y') - log p(r | x', y')] + kl * (KL(q(x') | p(x' | x, a)) + ease * KL(q(y') | p(y' | y)))

As ease < 1, what can be in either chain is cheaper in y: x is left with what actions move. The agent acts on x, which
loses nothing: where r = r_x + r_y, no action changes what y earns. (The original has a third chain z, which x and y
drive and no reward depends on; its sizes in the BECAUSE paper's table are 0.)

Adaptations. *Vector states*: chains, encoder and decoder are those of `models.latent`: x and y have the state's own
columns (the 33, 110 and 22 of the table), and what is learned of the encoder is in which chain each factor lies, and
how noisily. States are Markov and seen whole, so transitions stand for sequences, and the belief of a recurrent network
for the width of the priors' networks. Free nats are left out. *Likelihood*: planners ask the priors, so the loss also
has what each chain by itself foretells of its share of s', by the likelihoods of all models here; without it noisy
outcomes of actions, too, would be cheaper in y. Hence kl is .1, where the original has 1. *Goal as reward*: r_x and r_y
also see the goal; rewards are standardised. *Acting*: the planner that all models share imagines states, by encoding
each at its mean, stepping both priors, and decoding their means; of these only what is in x answers to the action, and
the action law and the value of `proposals` see no factor that y has most of, in all seeds, unless the goal is about
it. *Offline*: one fit instead of a collecting agent. There is no uncertainty, so that plans pay no penalty. *Rate*:
shares have one of their own, and all else that of all models: the table's 1e-4 on Lift and Crash, which it has for
BECAUSE too, goes with 100,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.models import nodes
from because_rl.models.latent import Blocks, bound, draw, in_some_seed, places, share, share_stage
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP
from because_rl.models.objective import Weights, background
from because_rl.models.prepared_data import LEAST, Statistics, prepare
from because_rl.planning.agent import PlannerAgent, make_planner_agent
from because_rl.planning.proposals import PlanningConfig, fit_proposals
from because_rl.training.method import Method
from because_rl.training.run import Run
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
    deviation: float = 1e-3
    """weight of the squares of what sets factors of one kind apart"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""


@dataclass(frozen=True)
class DenoisedMDPConfig(BlocksConfig):
    ease: float = 0.25
    """what a nat costs in y, of what it costs in x"""
    reward: float = 1.0


class Nets(NamedTuple):
    world: Any
    reward: Any
    """r_x and r_y"""


def denoised_loss(
    c: DenoisedMDPConfig, stats: Statistics, usual: Array, nets: Nets, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """`usual`: mean and spread of the data's rewards."""
    k1, k2, k3 = jax.random.split(key, 3)
    place = places(nets.world, len(batch["state"]), k1)
    found = bound(stats, nets.world, place, batch, c.precision)
    kl = found.kl[X] + c.ease * found.kl[Y]
    z = draw(stats, nets.world, place, batch["next_state"], k2)
    earned = [jax.vmap(net)(jnp.concatenate([z[n], batch["goal"]], axis=1))[:, 0] for n, net in enumerate(nets.reward)]
    reward = 0.5 * (((batch["reward"] - usual[0]) / usual[1] - sum(earned)) ** 2).mean()
    far = background(Weights(background=c.background), stats, nets.world, None, batch, k3)
    told = found.nll + c.background * far + c.deviation * nodes.deviation(nets.world)
    total = told + found.surprise + found.reconstruction + c.kl * kl + c.reward * reward
    metrics = {"nll": found.nll, "kl_x": found.kl[X], "kl_y": found.kl[Y], "reward": reward, "background": far}
    return total, metrics | {"in_x": share(nets.world)[X].sum()}


def denoised_stage(c: DenoisedMDPConfig, layout: Layout, stats: Statistics, usual: Array) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        k1, k2, k3 = jax.random.split(key, 3)
        sizes = layout.factors.state_size + layout.factors.goal_size, c.hidden, 1
        world = Blocks(layout, k1, c.hidden, sees=((1, 0), (0, 1)), driven=(1, 0), noise=c.precision)
        return Nets(world, [MLP(sizes, k, last=0.1) for k in (k2, k3)])

    stage = Stage("world", init, partial(denoised_loss, c, stats, usual), c.world_steps, c.batch, c.rate)
    return share_stage(stage, c.share_rate)


class DenoisedMDP(Method):
    name = "denoised-mdp"

    def __init__(self, config: DenoisedMDPConfig | None = None):
        self.config = config or DenoisedMDPConfig()

    def fit(self, data: Transitions, run: Run) -> PlannerAgent:
        c, prepared, keep = self.config, prepare(data), ~data.held_out
        usual = jnp.asarray([data.reward[keep].mean(), data.reward[keep].std() + LEAST], jnp.float32)
        world = run.fit(denoised_stage(c, prepared.layout, prepared.stats, usual), prepared.train, ()).world
        in_x = np.asarray(jax.vmap(share)(world))[:, X]
        proposals = fit_proposals(c, prepared, run, in_some_seed(prepared.layout, in_x))
        counts = {"factors in x": in_x.sum(1)}
        return make_planner_agent(c, prepared, run, nodes.predict, {"world": world}, proposals, counts)
