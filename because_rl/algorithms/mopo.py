"""MOPO (Yu et al., NeurIPS 2020): model-based offline policy optimisation.

An ensemble of probabilistic models without a causal mask, each trained on a bootstrap of the episodes; those that
predict held-out rows best are kept (the elites). The reward is lowered by lambda u(s, a), where u is

- `disagreement`: the spread of the members' predictions of the next state, or
- `max_sigma`: max_i |sigma_i(s, a)|, the norm of the standard deviations that a member predicts, the largest of all
  members; the paper's own. Of a discrete column sigma^2 = p (1 - p).

Adaptations: goals are reached by the same planner, proposals and terminal value as every model-based method here
(MOPO trains a SAC policy in the model, and draws a member for each step where plans take the mean of the elites);
factors, encoders by kind, likelihoods by type and background rows of events are shared too, and the elites vote on
events. u is measured in units of its mean on held-out data, and clipped at 50 of them, so that lambda means the same as
elsewhere (`ensemble.as_penalty`).

`mopo-plain` is the literal counterpart: each member is one network from all columns to all outputs, trained by the
likelihood alone, with `max_sigma` and without a vote. It shares data, planner and proposals with the others, no more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates, soft_clip
from because_rl.models.ensemble import as_penalty, combine_members, draw_bootstrap, make_bootstraps
from because_rl.models.layout import Layout
from because_rl.models.likelihood import log_likelihood
from because_rl.models.nets import MLP
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.prepared_data import LEAST, PreparedData, Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage, over_rows
from because_rl.transitions import Transitions

HELD_OUT_ROWS = 2000
"""Held-out rows by which elites are chosen and the penalty is scaled, at most."""


@dataclass(frozen=True)
class MOPOConfig(PlanningConfig):
    members: int = 7
    elites: int = 5
    """members that are kept, by their likelihood of held-out rows"""
    penalty: Literal["disagreement", "max_sigma"] = "disagreement"
    plain: bool = False
    """one flat network for each member, and nothing of what the models here share"""
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class MOPO(PlanningMethod):
    name = "mopo"

    def __init__(self, config: MOPOConfig | None = None):
        self.config = config or MOPOConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared, mask = self.config, as_run(seeds), prepare(data), full_mask(data.factors)
        gates = broadcast_over_seeds(make_gates(prepared.layout, mask), len(run.seeds))

        # The ensemble, each member on its own bootstrap, of which the best are kept
        bootstraps = make_bootstraps(data, c.members, run.seeds)
        batch = {**prepared.train, "bootstrap": bootstraps.episode}
        members = run.fit(ensemble_stage(c, prepared), batch, Fixed(gates, bootstraps.counts))
        parameters = {"ensemble": choose_elites(c, prepared, members, gates), "gates": gates}

        # Plans pay for uncertainty, in units of that on held-out rows
        parameters["mean_uncertainty"] = mean_uncertainty(c, prepared, parameters)
        proposals = fit_proposals(c, prepared, run, mask)
        return self.make_agent(prepared, run, parameters, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        c, layout = self.config, summary.layout
        keys = jax.random.split(key, min(c.elites, c.members))
        return {
            "ensemble": jax.vmap(partial(make_member, c, layout))(keys),
            "gates": make_gates(layout, full_mask(summary.factors)),
            "mean_uncertainty": jnp.zeros(()),
        }

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The elites' joint prediction, and u in units of its mean on held-out rows."""
        outputs, u = ensemble_prediction(self.config, layout, stats, p, state, action)
        return outputs, as_penalty(u, p["mean_uncertainty"])


# The ensemble ------------------------------------------------------------------------------------------------
class Fixed(NamedTuple):
    gates: Gates
    counts: Float[Array, "episodes members"]
    """`Bootstraps.counts`"""


def make_member(c: MOPOConfig, layout: Layout, key: PRNGKeyArray) -> BilinearModel | FlatModel:
    return FlatModel(layout, key, c.hidden) if c.plain else BilinearModel(layout, key, hidden=c.hidden, events=1)


def ensemble_stage(c: MOPOConfig, prepared: PreparedData) -> Stage:
    return Stage(
        "ensemble",
        lambda key, fixed: jax.vmap(partial(make_member, c, prepared.layout))(jax.random.split(key, c.members)),
        partial(ensemble_loss, c, prepared.stats),
        c.world_steps,
        c.batch,
        c.rate,
        settings={"members": c.members, "hidden": c.hidden, "plain": c.plain, "weights": asdict(c.weights)},
    )


def ensemble_loss(
    c: MOPOConfig, stats: Statistics, members: Any, fixed: Fixed, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """The sum over members, each on the rows of the batch that are in its bootstrap."""
    loss = flat_loss if c.plain else partial(world_model_loss, c.weights)

    def member_loss(member: Any, count: Array, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        k1, k2 = jax.random.split(key)
        return loss(stats, member, fixed.gates, draw_bootstrap(batch, count, k1), k2)

    counts = fixed.counts[batch["bootstrap"].astype(jnp.int32)].T
    total, terms = jax.vmap(member_loss)(members, counts, jax.random.split(key, len(counts)))
    return total.sum(), {name: value.mean() for name, value in terms.items()}


def choose_elites(c: MOPOConfig, prepared: PreparedData, members: Any, gates: Gates) -> Any:
    """The members of each seed that give held-out rows the highest likelihood."""
    held = prepared.transitions.batch(prepared.transitions.held_out)
    rows = (held[name][:HELD_OUT_ROWS] for name in ("state", "action", "next_state"))
    likelihood = over_rows("elites", partial(members_log_likelihood, prepared.layout, prepared.stats))
    scores = likelihood((members, gates), *rows).mean(1)
    best = jnp.argsort(-scores, axis=1)[:, : c.elites]
    return jax.tree.map(lambda a: jax.vmap(lambda seed, chosen: seed[chosen])(a, best), members)


def members_log_likelihood(
    layout: Layout, stats: Statistics, models: tuple[Any, Gates], state: Array, action: Array, next_state: Array
) -> Float[Array, " members"]:
    """log p(s' | s, a) of each member; `models`: the members of a seed, and their gates."""
    members, gates = models
    each = jax.vmap(lambda member: member(stats, gates, jnp.concatenate([state, action])))(members)
    score = partial(log_likelihood, layout, stats, weighted=False)
    return jax.vmap(score, (0, None, None))(each, state, next_state).sum(1)


# Its uncertainty ---------------------------------------------------------------------------------------------
def mean_uncertainty(c: MOPOConfig, prepared: PreparedData, parameters: dict[str, Any]) -> Array:
    """(seeds,) the mean of u over held-out rows."""
    held = prepared.transitions.batch(prepared.transitions.held_out)
    predict = over_rows("uncertainty", partial(ensemble_prediction, c, prepared.layout, prepared.stats))
    _, u = predict(parameters, held["state"][:HELD_OUT_ROWS], held["action"][:HELD_OUT_ROWS])
    return jnp.maximum(u.mean(1), LEAST)


def ensemble_prediction(
    c: MOPOConfig, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The joint prediction of the members, and u."""
    x = jnp.concatenate([state, action])
    each = jax.vmap(lambda member: member(stats, p["gates"], x))(p["ensemble"])
    return combine_members(layout, each, vote=not c.plain), uncertainty(layout, c.penalty, each)


def uncertainty(layout: Layout, penalty: str, each: list[Outputs]) -> Array:
    """u(s, a), of continuous factors in units of the usual change, of discrete ones in probability.

    `each`: for each family its outputs, with a leading axis of members. Disagreement is a mean over targets.
    """
    sigma, disagreement = [], []
    for family, out in zip(layout.families, each, strict=True):
        members = len(out.value)
        if family.is_continuous:
            sigma.append(jnp.exp(out.spread).reshape(members, -1))
            disagreement.append(out.value.std(0).mean(1))
            continue
        chance = jax.nn.softmax(out.value, axis=-1) if family.type == "categorical" else jax.nn.sigmoid(out.value)
        sigma.append(jnp.sqrt(chance * (1.0 - chance)).reshape(members, -1))
        distance = jnp.abs(chance - chance.mean(0, keepdims=True)).sum(-1).mean(0) / 2
        disagreement.append(distance.reshape(len(family.members), -1).mean(1))
    if penalty == "max_sigma":
        return jnp.linalg.norm(jnp.concatenate(sigma, axis=1), axis=1).max()
    return jnp.concatenate(disagreement).mean()


# Without what the models here share --------------------------------------------------------------------------
class FlatModel(eqx.Module):
    """One network from all columns of a row [s, a] to all outputs; it is called as `BilinearModel` is."""

    layout: Layout = eqx.field(static=True)
    net: MLP

    def __init__(self, layout: Layout, key: PRNGKeyArray, hidden: int):
        self.layout = layout
        columns = sum(len(f.members) * self._columns(f) for f in layout.families)
        self.net = MLP((layout.size, hidden, hidden, hidden, hidden, columns), key, last=0.1)

    @staticmethod
    def _columns(family: Any) -> int:
        """Outputs of each member of a family."""
        return 2 * family.width if family.is_continuous else family.width + family.optional

    def __call__(self, stats: Statistics, gates: Gates, x: Float[Array, " columns"]) -> list[Outputs]:
        """`gates` are not used."""
        y, outputs, used = self.net((x - stats.mean) / stats.scale), [], 0
        for family in self.layout.families:
            members, columns = len(family.members), self._columns(family)
            part = y[used : used + members * columns].reshape(members, columns)
            used, nothing = used + part.size, jnp.zeros((members, 0))
            if family.is_continuous:
                value, spread = jnp.split(part, 2, axis=1)
                outputs.append(Outputs(nothing, value, soft_clip(spread)))
            else:
                one_network = family.type == "binary" and not family.slots
                outputs.append(Outputs(nothing, part[:, None] if one_network else part, nothing))
        return outputs


def flat_loss(
    stats: Statistics, model: FlatModel, gates: Gates, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """-log T(s' | s, a), and nothing else."""

    def row(state: Array, action: Array, next_state: Array) -> Array:
        outputs = model(stats, gates, jnp.concatenate([state, action]))
        return -log_likelihood(model.layout, stats, outputs, state, next_state, weighted=False).sum()

    nll = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean()
    return nll, {"nll": nll}
