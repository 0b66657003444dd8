"""MOPO (Yu et al., NeurIPS 2020): model-based offline policy optimisation.

An ensemble of K probabilistic models without a causal mask; the reward is lowered by lambda u(s, a), where u is

- `disagreement`: how far the members' predictions of the next state lie apart, or
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
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates
from because_rl.models.column_statistics import Statistics, statistics
from because_rl.models.layout import Layout
from because_rl.models.objective import Weights, world_model_loss
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, make_planner_agent
from because_rl.training.method import Agent, Method
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class MOPOConfig(PlanningConfig):
    members: int = 5
    penalty: Literal["disagreement", "max_sigma"] = "disagreement"
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class Ensemble(eqx.Module):
    members: BilinearModel
    """with a leading axis of members"""

    def __init__(self, layout: Layout, key: PRNGKeyArray, size: int, hidden: int):
        self.members = jax.vmap(lambda k: BilinearModel(layout, k, hidden=hidden, events=1))(
            jax.random.split(key, size)
        )


def ensemble_loss(
    weights: Weights, stats: Statistics, model: Ensemble, gates: Gates, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    """Each member on its own draw from the batch (a bootstrap)."""
    rows, members = len(batch["state"]), len(jax.tree.leaves(model.members)[0])

    def member(one: BilinearModel, key: Array) -> tuple[Array, dict[str, Array]]:
        k1, k2 = jax.random.split(key)
        some = jax.random.randint(k1, (rows,), 0, rows)
        return world_model_loss(weights, stats, one, gates, {k: v[some] for k, v in batch.items()}, k2)

    total, terms = jax.vmap(member)(model.members, jax.random.split(key, members))
    return total.sum(), {name: value.mean() for name, value in terms.items()}


class MOPO(Method):
    name = "mopo"

    def __init__(self, config: MOPOConfig):
        self.config = config

    def fit(self, data: Transitions, run: Run) -> Agent:
        c, seeds = self.config, len(run.seeds)
        layout = Layout(data.factors)
        train = data.batch(~data.held_out)
        stats = statistics(layout, data.state, data.action, data.next_state)
        everything = np.ones((len(data.factors.inputs), len(data.factors.targets)), np.float32)
        gates = broadcast_over_seeds(make_gates(layout, everything), seeds)

        ensemble = run.fit(
            Stage(
                "ensemble",
                lambda key, fixed: Ensemble(layout, key, c.members, c.hidden),
                partial(ensemble_loss, c.weights, stats),
                c.world_steps,
                c.batch,
                c.rate,
            ),
            train,
            gates,
        )
        parameters = {"ensemble": ensemble, "gates": gates, "usual": jnp.ones(seeds)}
        held = data.batch(data.held_out)
        doubt = jax.vmap(lambda p, s, a: consult(c.penalty, layout, stats, p, s, a)[1], (None, 0, 0))
        usual = jax.jit(jax.vmap(doubt, (0, None, None)))(parameters, held["state"], held["action"])
        parameters["usual"] = jnp.maximum(usual.mean(1), 1e-6)
        return make_planner_agent(data, run, c, layout, stats, everything, parameters, partial(predict, c.penalty))


def consult(
    penalty: str, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """The mean prediction of the members, and u."""
    x = jnp.concatenate([state, action])
    each = jax.vmap(lambda m: m(stats, p["gates"], x))(p["ensemble"].members)
    return [_average(out) for out in each], uncertainty(layout, penalty, each)


def predict(
    penalty: str, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    outputs, u = consult(penalty, layout, stats, p, state, action)
    return outputs, u / (u + p["usual"])


def _average(out: Outputs) -> Outputs:
    """The mean prediction of the members (of logits where these are logits)."""
    return Outputs(out.phi.mean(0), out.value.mean(0), out.spread.mean(0))


def uncertainty(layout: Layout, kind: str, each: list[Outputs]) -> Array:
    """u(s, a), the mean over targets, in units of the usual change (continuous) or of probability (discrete)."""
    parts = []
    for family, out in zip(layout.families, each, strict=True):
        if family.type == "continuous":
            if kind == "max_sigma":
                parts.append(jnp.exp(out.spread).max(0).mean(1))
            else:
                parts.append(out.value.std(0).mean(1))
        else:
            chance = jax.nn.softmax(out.value, axis=-1) if family.type == "categorical" else jax.nn.sigmoid(out.value)
            apart = jnp.abs(chance - chance.mean(0, keepdims=True)).sum(-1).mean(0) / 2
            parts.append(apart.reshape(len(family.members), -1).mean(1))
    return jnp.concatenate(parts).mean()
