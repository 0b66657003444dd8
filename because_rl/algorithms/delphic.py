"""Delphic offline RL (Pace et al. 2024, "... under Nonidentifiable Hidden Confounding"): doubt what only a hidden
cause could tell apart.

A *world* w explains the logged episodes by a hidden z, one per episode, that moves both actions and outcomes:

    z ~ N(0, 1),   a ~ pi_w(. | s, g, z),   s' ~ T_w(. | s, a, z),   encoder nu_w(z | episode),

    L_w = E_{z ~ nu_w} [ -log T_w(s' | s, a, z) - log pi_w(a | s, g, z) ] + kl * KL(nu_w | N(0, 1)).

All worlds explain the same data, yet they answer differently what (s, a) would lead to if a were *chosen*, for then z
comes from its prior and not from what a tells about it. With M models, each on a bootstrap, in each of K worlds and
m = E_z E T_wi(. | s, a, z) for what model i of world w expects, total variance falls into

    epistemic(s, a) = E_w Var_i m        what more data would settle,
    delphic(s, a)   = Var_w E_i m - E_w Var_i m / M, at least 0:   what no data would.

The reward is lowered by lambda u / (u + mean u on held-out data), u = delphic + weight * epistemic.

What keeps worlds apart. Which of them is true the transitions do not say, so there must be several, but worlds that
are free to choose tend to choose alike. Hence world w may use a share of z only, z_w = rho_w z + sqrt(1 - rho_w^2)
noise, where rho goes evenly from 0 (nothing is hidden, and all that goes along with an action is its effect) to 1:
this stands for the original's bound on the strength of confounding. Each fits the transitions, one by one, as well as
any; a small rho does not tell how those of an episode go together. Without confounding all worlds say the same.

Adaptations. *Value*: the original takes variances of Q and trains CQL; all methods here that have a model plan in it,
so u is about what the planner believes, the next state (continuous factors in units of their usual change, discrete
ones in probability), and step by step. CQL's own pessimism has `epistemic` in its place. *Prior*: T is linear in z
around its value at z = 0, so that E_z T needs no draws (of log-odds it is the median). *Moments*: at the table's KL
weight posteriors wander off the prior, so z is standardised over the batch; then 0 is the mean over episodes.
*Encoder*: it sees means and spreads of an episode's states, actions and changes. *Goal-conditioned*: pi_w sees the
goal. *Vector states*: T_w has the factors, encoders by kind and likelihoods that all models have, and pi_w the action
law of all imitators (`actor`). The table's weight of the penalty is kept, though its unit is not told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.nets import MLP, normal
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.policy import ActionDistribution, PolicyInput, action_distribution
from because_rl.models.prepared_data import LEAST, Statistics, prepare
from because_rl.planning.agent import PlannerAgent, make_planner_agent
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask
from because_rl.training.method import Method
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class DelphicConfig(PlanningConfig):
    worlds: int = 5
    members: int = 2
    """models in each world"""
    latent: int = 4
    """columns of z"""
    kl: float = 1e-4
    epistemic: float = 1.0
    """weight of the ensembles' own doubt beside the delphic one"""
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class World(eqx.Module):
    """One model of one world."""

    model: BilinearModel
    """T at z = 0"""
    shift: list[Array]
    """of each family, (p, columns, latent): what z adds to its outputs, times phi"""
    encoder: MLP
    behaviour: MLP

    def __init__(
        self, layout: Layout, key: PRNGKeyArray, c: DelphicConfig, summary: int, seen: int, law: ActionDistribution
    ):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.model = BilinearModel(layout, k1, hidden=c.hidden, events=1)
        self.shift = []
        for k, family, core in zip(
            jax.random.split(k2, len(layout.families)), layout.families, self.model.core, strict=True
        ):
            columns = family.width + (family.optional and family.type == "categorical")
            self.shift.append(0.1 * normal(k, (len(core), columns, c.latent)) / len(core) ** 0.5)
        self.encoder = MLP((summary, c.hidden, 2 * c.latent), k3)
        self.behaviour = MLP((seen + c.latent, c.hidden, c.hidden, law.outputs), k4, last=0.1)

    def __call__(self, stats: Statistics, gates: Gates, x: Array, z: Float[Array, " latent"]) -> list[Outputs]:
        moved = []
        for out, shift in zip(self.model(stats, gates, x), self.shift, strict=True):
            by = jnp.einsum("mp,pcl,l->mc", out.phi, shift, z)
            moved.append(out._replace(value=out.value + (by[:, None] if out.value.ndim == 3 else by)))
        return moved

    def encode(self, summary: Float[Array, "rows summary"], key: PRNGKeyArray) -> tuple[Array, Array]:
        """A z for each row, with mean 0 and variance 1 over the rows, and the mean KL from the prior."""
        mean, spread = jnp.split(jax.vmap(self.encoder)(summary), 2, axis=1)
        spread = jnp.clip(spread, -5.0, 1.0)
        kl = 0.5 * (mean**2 + jnp.exp(2 * spread) - 1.0 - 2 * spread).sum(1).mean()
        z = mean + jnp.exp(spread) * normal(key, mean.shape)
        return (z - z.mean(0)[None]) * jax.lax.rsqrt(z.var(0) + LEAST)[None], kl


def world_loss(
    c: DelphicConfig,
    stats: Statistics,
    view: PolicyInput,
    law: ActionDistribution,
    worlds: World,
    gates: Gates,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """`worlds` have a leading axis of worlds times members; each learns from its own draw from the batch."""
    rows = len(batch["state"])

    def one(world: World, rho: Array, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        k1, k2, k3, k4 = jax.random.split(key, 4)
        some = jax.random.randint(k1, (rows,), 0, rows)
        mine = {name: values[some] for name, values in batch.items()}
        z, kl = world.encode(mine["summary"], k2)
        z = rho * z + jnp.sqrt(1.0 - rho**2) * normal(k3, z.shape)
        x = jnp.concatenate([mine["state"], mine["action"]], axis=1)

        def row(x: Array, z: Array, state: Array, goal: Array, action: Array, after: Array) -> tuple[Array, Array]:
            told = negative_log_likelihood(world.model.layout, stats, world(stats, gates, x, z), state, after).sum()
            return told, law.cost(world.behaviour(jnp.concatenate([view(state, goal), z])), action)

        names = ("state", "goal", "action", "next_state")
        nll, cost = (part.mean() for part in jax.vmap(row)(x, z, *(mine[name] for name in names)))
        # All that keeps models plain, with the likelihood at z in place of the one at 0.
        plain, terms = world_model_loss(c.weights, stats, world.model, gates, mine, k4)
        total = plain - terms["nll"] + nll + cost + c.kl * kl
        return total, {"nll": nll, "behaviour": cost, "kl": kl, "background": terms["background"]}

    rho = jnp.repeat(jnp.linspace(0.0, 1.0, c.worlds), c.members)
    total, terms = jax.vmap(one)(worlds, rho, jax.random.split(key, len(rho)))
    return total.sum(), {name: value.mean() for name, value in terms.items()}


def worlds_stage(
    c: DelphicConfig, layout: Layout, stats: Statistics, view: PolicyInput, law: ActionDistribution, summary: int
) -> Stage:
    """`summary`: how many columns it has."""

    def init(key: PRNGKeyArray, fixed: Any) -> World:
        keys = jax.random.split(key, c.worlds * c.members)
        return jax.vmap(lambda k: World(layout, k, c, summary, view.size, law))(keys)

    return Stage("worlds", init, partial(world_loss, c, stats, view, law), c.world_steps, c.batch, c.rate)


def summaries(data: Transitions, stats: Statistics) -> np.ndarray:
    """(rows, ...) mean and spread of standardised states, actions and changes over each row's episode."""
    rows = (np.hstack([data.state, data.action]) - np.asarray(stats.mean)) / np.asarray(stats.scale)
    rows = np.hstack([rows, (data.next_state - data.state) / np.asarray(stats.change)]).astype(np.float64)
    _, of = np.unique(data.episode, return_inverse=True)
    count = np.bincount(of)[:, None]

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(count), values.shape[1]))
        np.add.at(total, of, values)
        return total / count

    centre = mean(rows)
    spread = np.sqrt(mean((rows - centre[of]) ** 2))
    return np.hstack([centre, spread])[of].astype(np.float32)


class Delphic(Method):
    name = "delphic"

    def __init__(self, config: DelphicConfig | None = None):
        self.config = config or DelphicConfig()

    def fit(self, data: Transitions, run: Run) -> PlannerAgent:
        c, prepared, mask, keep = self.config, prepare(data), full_mask(data.factors), ~data.held_out
        layout, stats, seeds = prepared.layout, prepared.stats, len(run.seeds)
        view, law = PolicyInput(data.factors, stats), action_distribution(data.factors, data.action[keep])
        gates = broadcast_over_seeds(make_gates(layout, mask), seeds)
        summary = summaries(data, stats)[keep]
        batch = {**prepared.train, "summary": jnp.asarray(summary)}
        worlds = run.fit(worlds_stage(c, layout, stats, view, law, summary.shape[1]), batch, gates)

        parameters = {"models": worlds.model, "gates": gates, "usual": jnp.ones(seeds)}
        held = data.batch(data.held_out)
        doubt = jax.vmap(lambda p, s, a: consult(c, layout, stats, p, s, a)[1], (None, 0, 0))
        usual = jax.jit(jax.vmap(doubt, (0, None, None)))(parameters, held["state"], held["action"])
        parameters["usual"] = jnp.maximum(usual.mean(1), LEAST)
        proposals = fit_proposals(c, prepared, run, mask)
        return make_planner_agent(c, prepared, run, partial(predict, c), parameters, proposals)


def expectations(layout: Layout, stats: Statistics, gates: Gates, models: BilinearModel, x: Array) -> tuple[Any, Any]:
    """The outputs of all models at z = 0, and (models, columns of the targets) what they expect."""
    each = jax.vmap(lambda model: model(stats, gates, x))(models)
    found = []
    for family, out in zip(layout.families, each, strict=True):
        value = out.value
        if family.type != "continuous":
            value = jax.nn.softmax(value, axis=-1) if family.type == "categorical" else jax.nn.sigmoid(value)
        found.append(value.reshape(len(value), -1))
    return each, jnp.concatenate(found, axis=1)


def variances(expected: Array, worlds: int, members: int) -> tuple[Array, Array]:
    """Delphic and epistemic, the mean over columns; `expected`: (worlds times members, columns)."""
    expected = expected.reshape(worlds, members, -1)
    epistemic = expected.var(1, ddof=1).mean() if members > 1 else jnp.zeros(())
    between = expected.mean(1).var(0, ddof=1).mean() if worlds > 1 else jnp.zeros(())
    return jnp.maximum(between - epistemic / members, 0.0), epistemic


def consult(
    c: DelphicConfig, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The mean prediction of all worlds, and u."""
    each, expected = expectations(layout, stats, p["gates"], p["models"], jnp.concatenate([state, action]))
    delphic, epistemic = variances(expected, c.worlds, c.members)
    return [jax.tree.map(lambda a: a.mean(0), out) for out in each], delphic + c.epistemic * epistemic


def predict(
    c: DelphicConfig, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    outputs, u = consult(c, layout, stats, p, state, action)
    return outputs, u / (u + p["usual"])
