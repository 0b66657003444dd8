"""IFactor (Liu et al., NeurIPS 2023, "Learning World Models with Identifiable Factorization"): four blocks of latents.

Whether the action moves it (a) and whether the reward depends on it (r), now or later, sorts all that is hidden in the
state into four blocks: `ar` both, `r` and `a` only the one, `o` neither. An edge from one block to another would change
what its ends are, which leaves these priors, each with no more inputs than it names:

    ar:  p(. | ar, r, action)    r:  p(. | r)    a:  p(. | ar, r, a, o, action)    o:  p(. | r, o)

(the action drives ar and a), with s ~ p(s | all blocks) and r ~ p(r | ar, r). The evidence bound alone need not keep
the blocks separate; terms of mutual information are to. With R the discounted reward-to-go,

    L = E_q [-log p(s' | z') - log p(r | z'_ar, z'_r)] + kl * sum_b ease_b KL(q(z'_b) | p(z'_b | z, a))
        - rewarded * (I(z'_ar, z'_r; R | z_ar, z_r, a) - I(z'_a, z'_o; R | z_ar, z_r, a))
        - moved    * (I(z'_ar, z'_a; a | z)            - I(z'_r, z'_o; a | z))

where each I is MINE's bound, E T - log E exp T' over shuffled rows, with a network T of its own that climbs it. The
condition of I is an input of T on one side, so the information in the condition alone counts too, in both terms of a
difference alike.

The ease of a block is 1, or a little less where less is at stake, so that what could be anywhere ends up in o. It is
only a little less, for a rare event that the reward depends on is worth few nats, and its causes must lie where its
prior can see them. For the same reason all factors begin in ar, and leave it: the prior of a sees everything, so it
learns first, and what it has drawn in the other blocks no longer see. And for the same reason priors see the others
where they most likely lie, by the fourth power of their probabilities: by the probabilities themselves ar would miss
one of many factors in nearly every row, and a none, so that all would leave. The agent acts on ar and r: unlike in
Denoised MDP, also on what it cannot move, for rewards may depend on both.

Adaptations. *Vector states*: blocks, encoder and decoder are those of `models.latent`: a block has the state's own
columns, and what is learned of the encoder is in which block each factor lies, and with how much noise. The
"disentangled prior output size" of the BECAUSE paper's table, 19, 7 and 10, is the number of factors of state and
action, and priors here put out one distribution for each factor of the state. States are Markov and fully observed, so
transitions stand for sequences. *Likelihood*: as in `denoised_mdp`, the loss also has the likelihood of each block's
own prediction of its factors of s', and kl is .1; the reward weighs 3, for what it does not hold in ar and r is cheaper
elsewhere. *Goal as reward*: the reward's network and the networks T of R also see the goal; rewards and R are
standardised. *Acting*: the planner that all models share imagines states: it encodes each at its mean, steps all
priors, and decodes their means. The behaviour policy and the value of `proposals` see the factors that lie mostly in ar
and r, and those that the goal is about. *Offline*: one fit instead of a collecting agent. There is
no uncertainty, so plans pay no penalty. *Rates*: as in `denoised_mdp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.algorithms.denoised_mdp import BlocksConfig, mean_and_std
from because_rl.models import nodes
from because_rl.models.latent import (
    Blocks,
    assignment_probabilities,
    evidence_bound,
    information_bound,
    masks_from_assignment,
    sample_assignments,
    sample_latents,
    with_assignment_rate,
)
from because_rl.models.layout import Layout
from because_rl.models.nets import MLP
from because_rl.models.objective import Weights, background
from because_rl.models.prepared_data import Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import fit_proposals
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

AR, R, A, REST = range(4)
VISIBLE = {AR: (AR, R), R: (R,), A: (AR, R, A, REST), REST: (R, REST)}
"""block -> the blocks that its prior sees"""
ACTION_DRIVEN = (AR, A)


@dataclass(frozen=True)
class IFactorConfig(BlocksConfig):
    ease: tuple[float, ...] = (1.0, 0.9, 0.9, 0.8)
    """cost of a nat in ar, r, a and o"""
    start: float = 2.0
    """log-odds by which factors begin in ar rather than in another block"""
    view: float = 4.0
    """the power of their probabilities by which the other factors are assigned to blocks in the inputs of priors"""
    rewarded: float = 0.1
    """weight of the information on the reward-to-go"""
    moved: float = 0.1
    """weight of the information on the action"""
    reward: float = 3.0
    """weight of the reward's likelihood: it keeps in ar and r what would be cheaper elsewhere"""


class IFactor(PlanningMethod):
    name = "ifactor"

    def __init__(self, config: IFactorConfig | None = None):
        self.config = config or IFactorConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared, train = self.config, as_run(seeds), prepare(data), ~data.held_out
        to_go = reward_to_go(data, c.discount)[train]
        rewards = mean_and_std(data.reward[train], to_go)
        batch = {**prepared.train, "reward_to_go": jnp.asarray(to_go)}
        world = run.fit(ifactor_stage(c, prepared.layout, prepared.stats, rewards), batch, ()).world
        probability = np.asarray(jax.vmap(assignment_probabilities)(world))
        in_ar_or_r = probability[:, AR] + probability[:, R]
        proposals = fit_proposals(c, prepared, run, masks_from_assignment(prepared.layout, in_ar_or_r))
        diagnostics = {"factors in ar and r": in_ar_or_r.sum(1)}
        return self.make_agent(prepared, run, {"world": world}, proposals, diagnostics)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        return {"world": make_blocks(self.config, summary.layout, key)}


def reward_to_go(data: Transitions, discount: float) -> np.ndarray:
    """(rows,) R: the discounted rewards of each row and of the rows after it in its episode."""
    out, following = np.zeros(len(data), np.float32), 0.0
    for row in range(len(data) - 1, -1, -1):
        last = row + 1 == len(data) or data.episode[row + 1] != data.episode[row]
        out[row] = following = float(data.reward[row]) + (0.0 if last else discount * following)
    return out


class Nets(NamedTuple):
    world: Any
    reward: Any
    information: Any
    """the networks T, by the names of `ifactor_loss`"""


def make_blocks(c: IFactorConfig, layout: Layout, key: PRNGKeyArray) -> Blocks:
    visible = [[int(b in VISIBLE[a]) for b in range(4)] for a in range(4)]
    action_driven = [int(b in ACTION_DRIVEN) for b in range(4)]
    blocks = Blocks(layout, key, c.hidden, visible, action_driven, c.precision)
    return eqx.tree_at(lambda b: b.assignment_logits, blocks, blocks.assignment_logits.at[AR].set(c.start))


def ifactor_stage(c: IFactorConfig, layout: Layout, stats: Statistics, reward_statistics: Array) -> Stage:
    """`reward_statistics`: mean and standard deviation of the data's rewards, then of their rewards-to-go."""

    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        k1, k2, *ks = jax.random.split(key, 6)
        s, a, g = layout.factors.state_size, layout.factors.action_size, layout.factors.goal_size
        sizes = {"reward_relevant": 2 * s + a + g + 1, "reward_irrelevant": 2 * s + a + g + 1}
        sizes |= {"action_relevant": 2 * s + a, "action_irrelevant": 2 * s + a}
        information = {
            name: MLP((size, c.hidden, 1), k, last=0.1) for k, (name, size) in zip(ks, sizes.items(), strict=True)
        }
        return Nets(make_blocks(c, layout, k1), MLP((s + g, c.hidden, 1), k2, last=0.1), information)

    stage = Stage("world", init, partial(ifactor_loss, c, stats, reward_statistics), c.world_steps, c.batch, c.rate)
    return with_assignment_rate(stage, c.share_rate)


def ifactor_loss(
    c: IFactorConfig,
    stats: Statistics,
    reward_statistics: Float[Array, " 4"],
    nets: Nets,
    fixed: Any,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """L, with the likelihoods that planners use and those of rows far from the data (`objective.background`).

    The four I are named 'reward_relevant' (of ar and r), 'reward_irrelevant' (of a and o), 'action_relevant' (of ar
    and a) and 'action_irrelevant' (of r and o).
    """
    stop_gradient = jax.lax.stop_gradient
    k1, k2, k3, k4, k5 = jax.random.split(key, 5)
    assignment = sample_assignments(nets.world, len(batch["state"]), k1)
    prior_inputs = sample_assignments(nets.world, len(assignment), k5, c.view)
    bound = evidence_bound(stats, nets.world, prior_inputs, batch, c.precision)
    kl = jnp.asarray(c.ease) * bound.kl

    next_z = sample_latents(stats, nets.world, assignment, batch["next_state"], k2)
    z = stop_gradient(sample_latents(stats, nets.world, assignment, batch["state"], k3))
    predicted = jax.vmap(nets.reward)(jnp.concatenate([next_z[AR] + next_z[R], batch["goal"]], axis=1))[:, 0]
    mean, std, to_go_mean, to_go_std = reward_statistics
    reward = 0.5 * (((batch["reward"] - mean) / std - predicted) ** 2).mean()

    to_go = ((batch["reward_to_go"] - to_go_mean) / to_go_std)[:, None]
    size = batch["state"].shape[1]
    action = (batch["action"] - stats.mean[None, size:]) / stats.scale[None, size:]
    reward_condition = jnp.concatenate([z[AR] + z[R], action, batch["goal"]], axis=1)
    action_condition = z.sum(0)
    arguments = {  # of each I: latents, what they are informative about, and the condition
        "reward_relevant": (next_z[AR] + next_z[R], to_go, reward_condition),
        "reward_irrelevant": (next_z[A] + next_z[REST], to_go, reward_condition),
        "action_relevant": (next_z[AR] + next_z[A], action, action_condition),
        "action_irrelevant": (next_z[R] + next_z[REST], action, action_condition),
    }
    information, network_gain = {}, jnp.zeros(())
    for name, (latent, about, condition) in arguments.items():
        network, inputs = nets.information[name], jnp.concatenate([latent, condition], axis=1)
        information[name] = information_bound(stop_gradient(network), inputs, about)
        inputs = jnp.concatenate([stop_gradient(latent), condition], axis=1)
        network_gain += information_bound(network, inputs, about)
    separation = c.rewarded * (information["reward_relevant"] - information["reward_irrelevant"])
    separation += c.moved * (information["action_relevant"] - information["action_irrelevant"])

    far = background(Weights(background=c.background), stats, nets.world, None, batch, k4)
    prediction = bound.network_nll + c.background * far + c.deviation * nodes.deviation(nets.world)
    total = prediction + bound.assignment_nll + bound.reconstruction + c.kl * kl.sum() + c.reward * reward
    metrics = {"nll": bound.network_nll, "kl": bound.kl.sum(), "reward": reward, "background": far}
    return total - separation - network_gain, metrics | information
