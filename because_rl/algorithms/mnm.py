"""MnM (Eysenbach, Khazatsky, Levine and Salakhutdinov 2022, "Mismatched No More"): model and policy climb one bound.

The log of the expected return is at least what the policy pi earns in *any* model q of the true dynamics p, if it is
paid the augmented reward

    r~(s, a, s') = (1 - gamma) log max(r, floor) + log p(s'|s, a) / q(s'|s, a).

Rewards of goals are 0 or 1, so their log needs the floor. A discriminator C of logged from imagined transitions has
the log-ratio as its log-odds, d(s, a, s') = log C / (1 - C). pi goes where r~ is large: to the goal, through
transitions that look real. q climbs the same bound: it imagines next states that pass for real and have a high value,

    L_C = -E_data log C(s, a, s') - E_q log(1 - C(s, a, s'))
    L_q = nll + joint * E_{s' ~ q} [ -d(s, a, s') - gamma log max(V(s', g), floor) ].

*Policy*. All methods that have a model plan in it, by the same planner, in place of the original's actor-critic. As
log max(r, floor) / |log floor| = r - 1 for r in {0, 1}, the augmented reward in units of |log floor| is r less

    penalty = min(1, max(0, -d(s, a, s')) / |log floor|)    in [0, 1],

up to constants and the weight lambda between the two, which the bound would have at 1 / (1 - gamma) and which here is
set as for all methods (`PlanningConfig.pessimism`). Three things are lost by that. Transitions that look *too* real
(d > 0) earn nothing: offline, it cannot be found out whether they deserve it. A log-ratio below log floor is as bad as
the floor. And the planner takes d of the likeliest next state, where the bound has its mean over q.

*Offline*: C and q see the logged (s, a) only; the original also collects, with the policy that its errors attract. So
off the data d is an extrapolation. The likelihood anchors q, since a GAN alone would not fit a few thousand
transitions; `joint` = 1 without the likelihood would be the original. *Goal-conditioned*: V is the goal-conditioned
value of `models.value`, fitted beside q on the data; it is the expected return itself, so its log needs no Jensen's
inequality. *Vector states*: q has the factors, encoders by kind and likelihoods that all models have; its samples can
be differentiated (`policy`). C sees the row as they do, and the change. *One descent*: q, C and V move in the same
step, each with the others as they were before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, dense, dense_size, make_gates, views
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode, into_logged_range, join, split
from because_rl.models.nets import MLP, normal, uniform
from because_rl.models.objective import Weights, world_model_loss
from because_rl.models.policy import UNIFORM_CLIP, sample_bernoulli, sample_one_hot
from because_rl.models.prepared_data import Statistics, Summary, prepare
from because_rl.models.value import Value, value_loss, value_of_goal
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, broadcast_over_seeds, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

SLOT_EMBEDDING = 16
"""Width of a slot's embedding in the discriminator."""


@dataclass(frozen=True)
class MnMConfig(PlanningConfig):
    joint: float = 0.1
    """of the bound beside the likelihood, in the model's loss"""
    floor: float = 0.01
    """least reward"""
    discriminator_rate: float = 1e-3
    discriminator_clip: float = 0.25
    """norm to which its gradient is clipped"""
    weights: Weights = field(default_factory=lambda: Weights(representation=0.0))


class MnM(PlanningMethod):
    name = "mnm"

    def __init__(self, config: MnMConfig | None = None):
        self.config = config or MnMConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared, mask = self.config, as_run(seeds), prepare(data), full_mask(data.factors)
        gates = broadcast_over_seeds(make_gates(prepared.layout, mask), len(run.seeds))
        nets = run.fit(mnm_stage(c, prepared.layout, prepared.stats), prepared.train, gates)
        proposals = fit_proposals(c, prepared, run, mask)
        parameters = {"model": nets.model, "discriminator": nets.discriminator, "gates": gates}
        return self.make_agent(prepared, run, parameters, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        layout, hidden = summary.layout, self.config.hidden
        return {
            "model": BilinearModel(layout, key, hidden=hidden),
            "discriminator": Discriminator(layout, key, hidden),
            "gates": make_gates(layout, full_mask(summary.factors)),
        }

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The model's outputs, and the penalty of the likeliest next state."""
        outputs = p["model"](stats, p["gates"], jnp.concatenate([state, action]))
        likeliest = decode(layout, stats, outputs, state, hard=True).state
        return outputs, penalty(self.config.floor, p["discriminator"](layout, stats, state, action, likeliest))


class Nets(NamedTuple):
    model: Any
    discriminator: Any
    value: Any


def mnm_stage(c: MnMConfig, layout: Layout, stats: Statistics) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Nets:
        k1, k2, k3 = jax.random.split(key, 3)
        model = BilinearModel(layout, k1, hidden=c.hidden)
        return Nets(model, Discriminator(layout, k2, c.hidden), Value(layout.factors, k3, hidden=c.hidden))

    stage = Stage("mnm", init, partial(mnm_loss, c, layout, stats), c.world_steps, c.batch, c.rate)
    clipped = optax.chain(optax.clip_by_global_norm(c.discriminator_clip), optax.adam(c.discriminator_rate))
    rules = {"others": stage.optimiser(), "discriminator": optax.flatten(clipped)}
    return replace(stage, rule=optax.partition(rules, Nets("others", "discriminator", "others")))


def mnm_loss(
    c: MnMConfig, layout: Layout, stats: Statistics, nets: Nets, gates: Gates, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """L_q + L_C + the loss of V, each of which moves its own network alone."""
    stop_gradient, factors = jax.lax.stop_gradient, layout.factors
    k1, k2, k3 = jax.random.split(key, 3)
    fit, terms = world_model_loss(c.weights, stats, nets.model, gates, batch, k1)

    def imagine(state: Array, action: Array, noise: Array) -> Array:
        outputs = nets.model(stats, gates, jnp.concatenate([state, action]))
        return sample_next_state(layout, stats, outputs, state, noise)

    def log_ratio(discriminator: Discriminator, next_state: Array) -> Array:
        return jax.vmap(partial(discriminator, layout, stats))(batch["state"], batch["action"], next_state)

    noise = uniform(k2, (len(batch["state"]), noise_size(layout)))
    imagined = jax.vmap(imagine)(batch["state"], batch["action"], noise)

    # The bound, as the model climbs it.
    ungated = jnp.ones(factors.state_size)
    value_of = partial(value_of_goal, factors, stats, stop_gradient(nets.value), ungated)
    next_value = jax.vmap(value_of)(imagined, batch["goal"])
    realism = log_ratio(stop_gradient(nets.discriminator), imagined).mean()
    hope = c.discount * jnp.log(jnp.maximum(next_value, c.floor)).mean()

    # The discriminator and the value: their gradients do not reach the model.
    real = log_ratio(nets.discriminator, batch["next_state"])
    fake = log_ratio(nets.discriminator, stop_gradient(imagined))
    discriminator = jax.nn.softplus(-real).mean() + jax.nn.softplus(fake).mean()
    value, _ = value_loss(factors, stats, c.discount, c.expectile, nets.value, ungated, batch, k3)
    metrics = {"nll": terms["nll"], "realism": realism, "hope": hope, "discriminator": discriminator, "value": value}
    return fit - c.joint * (realism + hope) + discriminator + value, metrics


def noise_size(layout: Layout) -> int:
    """How many uniform numbers `sample_next_state` takes."""
    return sum(len(f.members) * (f.width + (f.optional and f.type == "categorical")) for f in layout.families)


def sample_next_state(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, noise: Float[Array, " noise"]
) -> Float[Array, " state"]:
    """A next state of the model, differentiable in its outputs."""
    parts, used = [], 0
    for family, out in zip(layout.families, outputs, strict=True):
        value = out.value.mean(1) if out.value.ndim == 3 else out.value  # the mean vote on an event
        u = noise[used : used + value.size].reshape(value.shape)
        used += value.size
        if family.is_continuous:
            gaussian = jax.scipy.special.ndtri(jnp.clip(u, UNIFORM_CLIP, 1.0 - UNIFORM_CLIP))
            change = (value + jnp.exp(out.spread) * gaussian) * split(layout, family, stats.change)
            parts.append(into_logged_range(layout, family, stats, split(layout, family, state) + change))
        elif family.type == "categorical":
            parts.append(jax.vmap(sample_one_hot)(value, u)[:, : family.width])
        else:
            parts.append(sample_bernoulli(value, u))
    return join(layout, parts)


class Discriminator(eqx.Module):
    """d(s, a, s'): the log-odds that a transition was logged rather than imagined."""

    embed: dict[str, Array]
    net: MLP

    def __init__(self, layout: Layout, key: PRNGKeyArray, hidden: int):
        k1, k2 = jax.random.split(key)
        keys = jax.random.split(k2, max(1, len(layout.slot_kinds)))
        self.embed = {
            kind: normal(k, (layout.inputs[factors[0]].width, SLOT_EMBEDDING)) / SLOT_EMBEDDING**0.5
            for k, (kind, factors) in zip(keys, layout.slot_kinds.items(), strict=False)
        }
        size = dense_size(layout, SLOT_EMBEDDING) + layout.factors.state_size
        self.net = MLP((size, hidden, hidden, 1), k1, last=0.1)

    def __call__(self, layout: Layout, stats: Statistics, state: Array, action: Array, next_state: Array) -> Array:
        ungated = Gates(jnp.ones((1, layout.size)), jnp.arange(layout.size)[None])
        all_views = views(layout, stats, ungated, jnp.concatenate([state, action]))
        row = dense(layout, jax.tree.map(lambda part: part[0], all_views), self.embed)
        continuous = np.zeros(len(state), bool)
        for factor in layout.factors.state:
            continuous[factor.slice] = factor.is_continuous
        # A discrete column that never changed in the data has no spread to measure its changes by.
        change = layout.factors.change(state, next_state) / jnp.where(continuous, stats.change, 1.0)
        return self.net(jnp.concatenate([row, change]))[0]


def penalty(floor: float, log_ratio: Array) -> Array:
    """0 where a transition looks real, 1 where it is no better than the least reward."""
    return jnp.clip(log_ratio / log(floor), 0.0, 1.0)
