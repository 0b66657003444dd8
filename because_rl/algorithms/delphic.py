"""Delphic offline RL (Pace et al. 2024, "... under Nonidentifiable Hidden Confounding"): uncertainty from confounders.

A *world* w explains the logged episodes by a hidden z, one per episode, that moves both actions and outcomes:

    z ~ N(0, 1),   a ~ pi_w(. | s, g, z),   s' ~ T_w(. | s, a, z),   encoder nu_w(z | episode),

    L_w = E_{z ~ nu_w} [ -log T_w(s' | s, a, z) - log pi_w(a | s, g, z) ] + kl * KL(nu_w | N(0, 1)).

All worlds explain the same data, yet they answer differently what (s, a) would lead to if a were *chosen*, for then z
comes from its prior and not from its posterior given a. With M models, each on a bootstrap, in each of K worlds and
m = E_z E T_wi(. | s, a, z) for the expectation of model i of world w, the total variance has two parts,

    epistemic(s, a) = E_w Var_i m        which more data would reduce,
    delphic(s, a)   = Var_w E_i m - E_w Var_i m / M, at least 0:   which no data would.

The reward is lowered by lambda u, u = delphic + weight * epistemic.

What keeps worlds different. The transitions do not say which of them is true, so there must be several, but worlds that
are free to choose tend to choose alike. Hence world w may use a share of z only, z_w = rho_w z + sqrt(1 - rho_w^2)
noise, where rho goes evenly from 0 (nothing is hidden, and all that goes along with an action is its effect) to 1:
this stands for the original's bound on the strength of confounding. Each fits the transitions, one by one, as well as
any; a small rho does not explain how those of an episode go together. Without confounding all worlds agree.

Adaptations. *Value*: the original takes variances of Q and trains CQL; all methods here that have a model plan in it,
so u is about what the planner relies on, the next state (continuous factors in units of their usual change, discrete
ones in probability), and step by step. CQL's own pessimism has `epistemic` in its place. *Prior*: T is linear in z
around its value at z = 0, so that E_z T needs no draws (of log-odds it is the median). *Moments*: at the table's KL
weight posteriors drift away from the prior, so z is standardised over the batch; then 0 is the mean over episodes.
*Encoder*: it sees means and spreads of an episode's states, actions and changes. *Penalty*: u is measured in units of
its mean on held-out data, and clipped at 50 of them (`ensemble.as_penalty`). The table's weight of the penalty, 1e-4 or
5e-5, has the unit of the original's Q, which sums rewards, and not of a goal that is worth 1. On our scale it would be
no penalty, so lambda is set by held-out data as in all methods here. *Goal-conditioned*: pi_w sees the goal. *Vector
states*: T_w has the factors, encoders by kind and likelihoods that all models have, and pi_w the action distribution of
all imitators (`policy`). *Bootstraps* are of whole episodes, one for each model, and the worlds vote on events.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates
from because_rl.models.ensemble import as_penalty, combine_members, draw_bootstrap, make_bootstraps
from because_rl.models.layout import Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.nets import MLP, normal
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.policy import ActionDistribution, PolicyInput, action_distribution
from because_rl.models.prepared_data import LEAST, PreparedData, Statistics, Summary, action_statistics, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage, over_rows
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
    """weight of the epistemic variance beside the delphic one"""
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class Delphic(PlanningMethod):
    name = "delphic"

    def __init__(self, config: DelphicConfig | None = None):
        self.config = config or DelphicConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared, train = self.config, as_run(seeds), prepare(data), ~data.held_out
        mask = full_mask(data.factors)
        layout, stats = prepared.layout, prepared.stats
        gates = broadcast_over_seeds(make_gates(layout, mask), len(run.seeds))

        # The worlds, which explain the same data by more or less confounding
        distribution = action_distribution(data.factors, action_statistics(data.action[train]))
        summary = episode_summaries(data, stats)[train]
        bootstraps = make_bootstraps(data, c.worlds * c.members, run.seeds)
        batch = {**prepared.train, "summary": jnp.asarray(summary), "bootstrap": bootstraps.episode}
        stage = worlds_stage(c, layout, stats, PolicyInput(data.factors, stats), distribution, summary.shape[1])
        worlds = run.fit(stage, batch, Fixed(gates, bootstraps.counts))

        # Plans pay for what the worlds disagree about
        parameters = {"models": worlds.model, "gates": gates}
        parameters["mean_uncertainty"] = mean_uncertainty(c, prepared, parameters)
        proposals = fit_proposals(c, prepared, run, mask)
        return self.make_agent(prepared, run, parameters, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        layout, c = summary.layout, self.config
        keys = jax.random.split(key, c.worlds * c.members)
        return {
            "models": jax.vmap(lambda k: BilinearModel(layout, k, hidden=c.hidden, events=1))(keys),
            "gates": make_gates(layout, full_mask(summary.factors)),
            "mean_uncertainty": jnp.zeros(()),
        }

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The joint prediction of all worlds, and u in units of its mean on held-out rows."""
        outputs, u = ensemble_prediction(self.config, layout, stats, p, state, action)
        return outputs, as_penalty(u, p["mean_uncertainty"])


def episode_summaries(data: Transitions, stats: Statistics) -> np.ndarray:
    """(rows, ...) mean and spread of standardised states, actions and changes over each row's episode."""
    rows = (np.hstack([data.state, data.action]) - np.asarray(stats.mean)) / np.asarray(stats.scale)
    rows = np.hstack([rows, data.factors.change(data.state, data.next_state) / np.asarray(stats.change)]).astype(
        np.float64
    )
    _, episode_of_row = np.unique(data.episode, return_inverse=True)
    count = np.bincount(episode_of_row)[:, None]

    def episode_mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(count), values.shape[1]))
        np.add.at(total, episode_of_row, values)
        return total / count

    mean = episode_mean(rows)
    spread = np.sqrt(episode_mean((rows - mean[episode_of_row]) ** 2))
    return np.hstack([mean, spread])[episode_of_row].astype(np.float32)


# The worlds --------------------------------------------------------------------------------------------------
class Fixed(NamedTuple):
    gates: Gates
    counts: Float[Array, "episodes models"]
    """`Bootstraps.counts`"""


class World(eqx.Module):
    """One model of one world."""

    model: BilinearModel
    """T at z = 0"""
    shift: list[Array]
    """for each family, (p, columns, latent): what z adds to its outputs, times phi"""
    encoder: MLP
    behaviour: MLP

    def __init__(
        self,
        layout: Layout,
        key: PRNGKeyArray,
        c: DelphicConfig,
        summary_size: int,
        policy_size: int,
        distribution: ActionDistribution,
    ):
        """`summary_size`: columns of an episode's summary. `policy_size`: of the input of pi, beside z."""
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.model = BilinearModel(layout, k1, hidden=c.hidden, events=1)
        self.shift = []
        for k, family, core in zip(
            jax.random.split(k2, len(layout.families)), layout.families, self.model.core, strict=True
        ):
            columns = family.width + (family.optional and family.type == "categorical")
            self.shift.append(0.1 * normal(k, (len(core), columns, c.latent)) / len(core) ** 0.5)
        self.encoder = MLP((summary_size, c.hidden, 2 * c.latent), k3)
        sizes = (policy_size + c.latent, c.hidden, c.hidden, distribution.output_size)
        self.behaviour = MLP(sizes, k4, last=0.1)

    def __call__(self, stats: Statistics, gates: Gates, x: Array, z: Float[Array, " latent"]) -> list[Outputs]:
        """T(. | s, a, z) for one row x = [s, a]."""
        shifted = []
        for out, shift in zip(self.model(stats, gates, x), self.shift, strict=True):
            change = jnp.einsum("mp,pcl,l->mc", out.phi, shift, z)
            shifted.append(out._replace(value=out.value + (change[:, None] if out.value.ndim == 3 else change)))
        return shifted

    def encode(self, summary: Float[Array, "rows summary"], key: PRNGKeyArray) -> tuple[Array, Array]:
        """A z for each row, with mean 0 and variance 1 over the rows, and the mean KL from the prior."""
        mean, spread = jnp.split(jax.vmap(self.encoder)(summary), 2, axis=1)
        spread = jnp.clip(spread, -5.0, 1.0)
        kl = 0.5 * (mean**2 + jnp.exp(2 * spread) - 1.0 - 2 * spread).sum(1).mean()
        z = mean + jnp.exp(spread) * normal(key, mean.shape)
        return (z - z.mean(0)[None]) * jax.lax.rsqrt(z.var(0) + LEAST)[None], kl


def worlds_stage(
    c: DelphicConfig,
    layout: Layout,
    stats: Statistics,
    policy_input: PolicyInput,
    distribution: ActionDistribution,
    summary_size: int,
) -> Stage:
    """`summary_size`: columns of `episode_summaries`."""

    def init(key: PRNGKeyArray, fixed: Any) -> World:
        keys = jax.random.split(key, c.worlds * c.members)
        return jax.vmap(lambda k: World(layout, k, c, summary_size, policy_input.size, distribution))(keys)

    loss = partial(worlds_loss, c, stats, policy_input, distribution)
    settings = {name: getattr(c, name) for name in ("worlds", "members", "latent", "hidden", "kl")}
    settings |= {"weights": asdict(c.weights)}
    return Stage("worlds", init, loss, c.world_steps, c.batch, c.rate, settings=settings)


def worlds_loss(
    c: DelphicConfig,
    stats: Statistics,
    policy_input: PolicyInput,
    distribution: ActionDistribution,
    worlds: World,
    fixed: Fixed,
    batch: Batch,
    key: PRNGKeyArray,
) -> tuple[Array, dict[str, Array]]:
    """The sum of L_w; `worlds` have a leading axis of worlds times members, each with its own bootstrap."""
    gates = fixed.gates

    def world_loss(world: World, rho: Array, count: Array, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        k1, k2, k3, k4 = jax.random.split(key, 4)
        bootstrap = draw_bootstrap(batch, count, k1)
        z, kl = world.encode(bootstrap["summary"], k2)
        z = rho * z + jnp.sqrt(1.0 - rho**2) * normal(k3, z.shape)
        x = jnp.concatenate([bootstrap["state"], bootstrap["action"]], axis=1)

        def row(x: Array, z: Array, state: Array, goal: Array, action: Array, next_state: Array) -> tuple[Array, Array]:
            outputs = world(stats, gates, x, z)
            nll = negative_log_likelihood(world.model.layout, stats, outputs, state, next_state).sum()
            policy_out = world.behaviour(jnp.concatenate([policy_input(state, goal), z]))
            return nll, distribution.nll(policy_out, action)

        names = ("state", "goal", "action", "next_state")
        nll, behaviour = (part.mean() for part in jax.vmap(row)(x, z, *(bootstrap[name] for name in names)))
        # The regularisers of all models, with the likelihood at z in place of the one at 0.
        plain, terms = world_model_loss(c.weights, stats, world.model, gates, bootstrap, k4)
        total = plain - terms["nll"] + nll + behaviour + c.kl * kl
        return total, {"nll": nll, "behaviour": behaviour, "kl": kl, "background": terms["background"]}

    rho = jnp.repeat(jnp.linspace(0.0, 1.0, c.worlds), c.members)
    counts = fixed.counts[batch["bootstrap"].astype(jnp.int32)].T
    total, terms = jax.vmap(world_loss)(worlds, rho, counts, jax.random.split(key, len(rho)))
    return total.sum(), {name: value.mean() for name, value in terms.items()}


# Their uncertainty -------------------------------------------------------------------------------------------
def mean_uncertainty(c: DelphicConfig, prepared: PreparedData, parameters: dict[str, Any]) -> Array:
    """(seeds,) the mean of u over the held-out rows."""
    held = prepared.transitions.batch(prepared.transitions.held_out)
    predict = over_rows("uncertainty", partial(ensemble_prediction, c, prepared.layout, prepared.stats))
    _, u = predict(parameters, held["state"], held["action"])
    return jnp.maximum(u.mean(1), LEAST)


def ensemble_prediction(
    c: DelphicConfig, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The joint prediction of all worlds, and u."""
    each, expected = expectations(layout, stats, p["gates"], p["models"], jnp.concatenate([state, action]))
    delphic, epistemic = variances(expected, c.worlds, c.members)
    by_world = [jax.tree.map(lambda a: a.reshape(c.worlds, c.members, *a.shape[1:]).mean(1), out) for out in each]
    return combine_members(layout, by_world), delphic + c.epistemic * epistemic


def expectations(
    layout: Layout, stats: Statistics, gates: Gates, models: BilinearModel, x: Array
) -> tuple[list[Outputs], Float[Array, "models columns"]]:
    """The outputs of all models at z = 0, and m: their expectations of the targets' columns."""
    each = jax.vmap(lambda model: model(stats, gates, x))(models)
    expected = []
    for family, out in zip(layout.families, each, strict=True):
        value = out.value
        if not family.is_continuous:
            value = jax.nn.softmax(value, axis=-1) if family.type == "categorical" else jax.nn.sigmoid(value)
        expected.append(value.reshape(len(value), -1))
    return each, jnp.concatenate(expected, axis=1)


def variances(expected: Float[Array, "models columns"], worlds: int, members: int) -> tuple[Array, Array]:
    """The delphic and the epistemic variance, means over columns; models are sorted by world."""
    expected = expected.reshape(worlds, members, -1)
    epistemic = expected.var(1, ddof=1).mean() if members > 1 else jnp.zeros(())
    between = expected.mean(1).var(0, ddof=1).mean() if worlds > 1 else jnp.zeros(())
    return jnp.maximum(between - epistemic / members, 0.0), epistemic
