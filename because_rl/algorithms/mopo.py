"""MOPO (Yu et al., NeurIPS 2020): model-based offline policy optimisation.

An ensemble of K probabilistic models without a causal mask; the reward is lowered by lambda u(s, a), where u is

- `disagreement`: the spread of the members' predictions of the next state, or
- `max_sigma`: the largest predicted standard deviation among the members (continuous factors; discrete ones
  always count by disagreement).

Adaptations: goals are reached by the same planner, proposals and terminal value as every model-based method here
(MOPO trains a SAC policy in the model); factors, encoders by kind and likelihoods by type are shared too. u is
scaled by its mean on held-out data and squashed into [0, 1], u / (u + mean u), so that lambda means the same as
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.prepared_data import PreparedData, Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class MOPOConfig(PlanningConfig):
    members: int = 5
    penalty: Literal["disagreement", "max_sigma"] = "disagreement"
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class MOPO(PlanningMethod):
    name = "mopo"

    def __init__(self, config: MOPOConfig | None = None):
        self.config = config or MOPOConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared, mask = self.config, as_run(seeds), prepare(data), full_mask(data.factors)
        gates = broadcast_over_seeds(make_gates(prepared.layout, mask), len(run.seeds))
        ensemble = run.fit(ensemble_stage(c, prepared), prepared.train, gates)
        parameters = {"ensemble": ensemble, "gates": gates}
        parameters["mean_uncertainty"] = mean_uncertainty(c, prepared, parameters)
        proposals = fit_proposals(c, prepared, run, mask)
        return self.make_agent(prepared, run, parameters, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        layout, c = summary.layout, self.config
        gates = make_gates(layout, full_mask(summary.factors))
        return {
            "ensemble": Ensemble(layout, key, c.members, c.hidden),
            "gates": gates,
            "mean_uncertainty": jnp.zeros(()),
        }

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The ensemble's mean prediction, and u / (u + mean u)."""
        outputs, u = ensemble_prediction(self.config.penalty, layout, stats, p, state, action)
        return outputs, u / (u + p["mean_uncertainty"])


class Ensemble(eqx.Module):
    members: BilinearModel
    """with a leading axis of members"""

    def __init__(self, layout: Layout, key: PRNGKeyArray, size: int, hidden: int):
        self.members = jax.vmap(lambda k: BilinearModel(layout, k, hidden=hidden, events=1))(
            jax.random.split(key, size)
        )


def ensemble_stage(c: MOPOConfig, prepared: PreparedData) -> Stage:
    return Stage(
        "ensemble",
        lambda key, fixed: Ensemble(prepared.layout, key, c.members, c.hidden),
        partial(ensemble_loss, c.weights, prepared.stats),
        c.world_steps,
        c.batch,
        c.rate,
    )


def ensemble_loss(
    weights: Weights, stats: Statistics, model: Ensemble, gates: Gates, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    """Each member on its own draw from the batch (a bootstrap)."""
    rows, members = len(batch["state"]), len(jax.tree.leaves(model.members)[0])

    def member_loss(member: BilinearModel, key: Array) -> tuple[Array, dict[str, Array]]:
        k1, k2 = jax.random.split(key)
        drawn = jax.random.randint(k1, (rows,), 0, rows)
        return world_model_loss(weights, stats, member, gates, {k: v[drawn] for k, v in batch.items()}, k2)

    total, terms = jax.vmap(member_loss)(model.members, jax.random.split(key, members))
    return total.sum(), {name: value.mean() for name, value in terms.items()}


def mean_uncertainty(c: MOPOConfig, prepared: PreparedData, parameters: dict[str, Any]) -> Array:
    """(seeds,) the mean of u over the held-out rows."""
    held = prepared.transitions.batch(prepared.transitions.held_out)
    layout, stats = prepared.layout, prepared.stats
    u = jax.vmap(lambda p, s, a: ensemble_prediction(c.penalty, layout, stats, p, s, a)[1], (None, 0, 0))
    each = jax.jit(jax.vmap(u, (0, None, None)))(parameters, held["state"], held["action"])
    return jnp.maximum(each.mean(1), 1e-6)


def ensemble_prediction(
    penalty: str, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The mean prediction of the members (of logits where these are logits), and u."""
    x = jnp.concatenate([state, action])
    each = jax.vmap(lambda m: m(stats, p["gates"], x))(p["ensemble"].members)
    return [jax.tree.map(lambda a: a.mean(0), out) for out in each], uncertainty(layout, penalty, each)


def uncertainty(layout: Layout, penalty: str, each: list[Outputs]) -> Array:
    """u(s, a), the mean over targets, in units of the usual change (continuous) or of probability (discrete).

    `each`: for each family its outputs, with a leading axis of members.
    """
    parts = []
    for family, out in zip(layout.families, each, strict=True):
        if family.is_continuous:
            if penalty == "max_sigma":
                parts.append(jnp.exp(out.spread).max(0).mean(1))
            else:
                parts.append(out.value.std(0).mean(1))
        else:
            chance = jax.nn.softmax(out.value, axis=-1) if family.type == "categorical" else jax.nn.sigmoid(out.value)
            disagreement = jnp.abs(chance - chance.mean(0, keepdims=True)).sum(-1).mean(0) / 2
            parts.append(disagreement.reshape(len(family.members), -1).mean(1))
    return jnp.concatenate(parts).mean()
