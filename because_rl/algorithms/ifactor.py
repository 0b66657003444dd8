"""IFactor (Liu et al., NeurIPS 2023, "Learning World Models with Identifiable Factorization"): four blocks of latents.

Whether the action moves it (a) and whether the reward depends on it (r), now or later, sorts all that is hidden in the
state. What an edge would make of its ends leaves these priors, each of which sees no more than it names:

    ar:  p(. | ar, r, action)    r:  p(. | r)    a:  p(. | ar, r, a, o, action)    o:  p(. | r, o)

(`ar` both, `r` and `a` only the one, `o` neither; ar and a are driven by the action), with s ~ p(s | all blocks) and
r ~ p(r | ar, r). The bound alone need not keep blocks apart; mutual information is to. With R the discounted
rewards from here on,

    L = E_q [-log p(s' | z') - log p(r | z'_ar, z'_r)] + kl * sum_b ease_b KL(q(z'_b) | p(z'_b | z, a))
        - rewarded * (I(z'_ar, z'_r; R | z_ar, z_r, a) - I(z'_a, z'_o; R | z_ar, z_r, a))
        - moved    * (I(z'_ar, z'_a; a | z)            - I(z'_r, z'_o; a | z))

where each I is MINE's bound, E T - log E exp T' over shuffled rows, with a network T of its own that climbs it. What is
given stands on one side of it, so what it alone tells counts too, in both terms of a difference alike. The ease of a
block is 1, or a little less where less is at stake, so that what could be anywhere ends up in o: no more than a little,
for a rare event that the reward hangs on is worth few nats, and its causes must lie where it can see them. For the same
reason all factors begin in ar, and leave it: the prior of a sees everything, so it learns first, and what it has drawn
in the other blocks no longer see. And for the same reason priors are shown the others where they most likely lie, by
the fourth power of their shares: by the shares themselves ar would miss one of many factors in nearly every row, and a
none, so that all would leave. The agent acts on ar and r: unlike in Denoised MDP, also on what it cannot move, for
rewards may depend on both.

Adaptations. *Vector states*: blocks, encoder and decoder are those of `models.latent`: a block has the state's own
columns, and what is learned of the encoder is in which block each factor lies, and how noisily. The "disentangled prior
output size" of the BECAUSE paper's table, 19, 7 and 10, is the number of factors of state and action, and priors here
put out one law for each factor of the state. States are Markov and seen whole, so transitions stand for sequences.
*Likelihood*: as in `denoised_mdp`, the loss also has what each block by itself foretells of its share of s', and kl is
.1; the reward weighs 3, for what it does not hold in ar and r is cheaper elsewhere. *Goal as reward*: the reward's
network and the witnesses of R also see the goal; rewards and R are standardised. *Acting*: the planner that all models
share imagines states, by encoding each at its mean, stepping all priors, and decoding their means; the action law and
the value of `proposals` see the factors of which ar and r have most in some seed, and those that the goal is about.
*Offline*: one fit instead of a collecting agent. There is no uncertainty, so that plans pay no penalty. *Rates*: as in
`denoised_mdp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.algorithms.denoised_mdp import BlocksConfig
from because_rl.models import nodes
from because_rl.models.latent import Blocks, bound, draw, in_some_seed, information, places, share, share_stage
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP
from because_rl.models.objective import Weights, background
from because_rl.models.prepared_data import LEAST, Statistics, prepare
from because_rl.planning.agent import PlannerAgent, make_planner_agent
from because_rl.planning.proposals import fit_proposals
from because_rl.training.method import Method
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

AR, R, A, REST = range(4)
SEES = {AR: (AR, R), R: (R,), A: (AR, R, A, REST), REST: (R, REST)}
DRIVEN = (AR, A)


@dataclass(frozen=True)
class IFactorConfig(BlocksConfig):
    ease: tuple[float, ...] = (1.0, 0.9, 0.9, 0.8)
    """what a nat costs in ar, r, a and o"""
    start: float = 2.0
    """log-odds by which factors begin in ar rather than in another block"""
    view: float = 4.0
    """the power of their shares by which priors are shown where the other factors lie"""
    rewarded: float = 0.1
    """weight of what blocks tell of the rewards to come"""
    moved: float = 0.1
    """weight of what blocks tell of the action"""
    reward: float = 3.0
    """weight of the reward's likelihood: what keeps in ar and r what would be cheaper elsewhere"""


class Nets(NamedTuple):
    world: Any
    reward: Any
    witnesses: Any
    """by name: of R in ar and r, in a and o; of the action in ar and a, in r and o"""


def ifactor_loss(
    c: IFactorConfig, stats: Statistics, usual: Array, nets: Nets, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """`usual`: mean and spread of the data's rewards, then of what is still to come."""
    still = jax.lax.stop_gradient
    k1, k2, k3, k4, k5 = jax.random.split(key, 5)
    place = places(nets.world, len(batch["state"]), k1)
    found = bound(stats, nets.world, places(nets.world, len(place), k5, c.view), batch, c.precision)
    kl = jnp.asarray(c.ease) * found.kl
    z = draw(stats, nets.world, place, batch["next_state"], k2)
    before = still(draw(stats, nets.world, place, batch["state"], k3))
    earned = jax.vmap(nets.reward)(jnp.concatenate([z[AR] + z[R], batch["goal"]], axis=1))[:, 0]
    reward = 0.5 * (((batch["reward"] - usual[0]) / usual[1] - earned) ** 2).mean()

    to_come = ((batch["to_come"] - usual[2]) / usual[3])[:, None]
    size = batch["state"].shape[1]
    action = (batch["action"] - stats.mean[None, size:]) / stats.scale[None, size:]
    of_reward = to_come, jnp.concatenate([before[AR] + before[R], action, batch["goal"]], axis=1)
    of_action = action, before.sum(0)
    asked = {
        "reward_told": (z[AR] + z[R], *of_reward),
        "reward_leak": (z[A] + z[REST], *of_reward),
        "action_told": (z[AR] + z[A], *of_action),
        "action_leak": (z[R] + z[REST], *of_action),
    }
    known, climbed = {}, jnp.zeros(())
    for name, (latent, about, given) in asked.items():
        known[name] = information(still(nets.witnesses[name]), jnp.concatenate([latent, given], axis=1), about)
        climbed += information(nets.witnesses[name], jnp.concatenate([still(latent), given], axis=1), about)
    apart = c.rewarded * (known["reward_told"] - known["reward_leak"])
    apart += c.moved * (known["action_told"] - known["action_leak"])

    far = background(Weights(background=c.background), stats, nets.world, None, batch, k4)
    told = found.nll + c.background * far + c.deviation * nodes.deviation(nets.world)
    total = told + found.surprise + found.reconstruction + c.kl * kl.sum() + c.reward * reward - apart - climbed
    return total, {"nll": found.nll, "kl": found.kl.sum(), "reward": reward, "background": far} | known


def ifactor_stage(c: IFactorConfig, layout: Layout, stats: Statistics, usual: Array) -> Stage:
    sees = [[int(b in SEES[a]) for b in range(4)] for a in range(4)]
    driven = [int(b in DRIVEN) for b in range(4)]

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        k1, k2, *ks = jax.random.split(key, 6)
        s, a, g = layout.factors.state_size, layout.factors.action_size, layout.factors.goal_size
        sizes = {"reward_told": 2 * s + a + g + 1, "reward_leak": 2 * s + a + g + 1}
        sizes |= {"action_told": 2 * s + a, "action_leak": 2 * s + a}
        witnesses = {
            name: MLP((size, c.hidden, 1), k, last=0.1) for k, (name, size) in zip(ks, sizes.items(), strict=True)
        }
        world = Blocks(layout, k1, c.hidden, sees, driven, c.precision)
        world = eqx.tree_at(lambda blocks: blocks.shares, world, world.shares.at[AR].set(c.start))
        return Nets(world, MLP((s + g, c.hidden, 1), k2, last=0.1), witnesses)

    stage = Stage("world", init, partial(ifactor_loss, c, stats, usual), c.world_steps, c.batch, c.rate)
    return share_stage(stage, c.share_rate)


def to_come(data: Transitions, discount: float) -> np.ndarray:
    """(rows,) discounted rewards of the rest of each row's episode, its own among them."""
    out, later = np.zeros(len(data), np.float32), 0.0
    for row in range(len(data) - 1, -1, -1):
        last = row + 1 == len(data) or data.episode[row + 1] != data.episode[row]
        out[row] = later = float(data.reward[row]) + (0.0 if last else discount * later)
    return out


class IFactor(Method):
    name = "ifactor"

    def __init__(self, config: IFactorConfig | None = None):
        self.config = config or IFactorConfig()

    def fit(self, data: Transitions, run: Run) -> PlannerAgent:
        c, prepared, keep = self.config, prepare(data), ~data.held_out
        later = to_come(data, c.discount)[keep]
        usual = jnp.asarray([f(a) for a in (data.reward[keep], later) for f in (np.mean, spread)], jnp.float32)
        batch = {**prepared.train, "to_come": jnp.asarray(later)}
        world = run.fit(ifactor_stage(c, prepared.layout, prepared.stats, usual), batch, ()).world
        shares = np.asarray(jax.vmap(share)(world))
        relevant = shares[:, AR] + shares[:, R]
        proposals = fit_proposals(c, prepared, run, in_some_seed(prepared.layout, relevant))
        counts = {"factors in ar and r": relevant.sum(1)}
        return make_planner_agent(c, prepared, run, nodes.predict, {"world": world}, proposals, counts)


def spread(values: np.ndarray) -> float:
    return float(values.std() + LEAST)
