"""CDL (Wang et al., ICML 2022): causal dynamics learning for task-independent state abstraction.

Each target j has a feature of every possible parent i, of which it sees the elementwise maximum over a set S:

    h_j(S) = max_{i in S} relu(g_ij(x_i)),    p_j(s'_j | x_S) = the likelihood of its type, read from h_j(S).

One set of networks is fitted with all parents, with one of them left out at random, and with those found so far:

    L = -sum_j E [log p_j(s'_j | x) + log p_j(s'_j | x without x_i) + log p_j(s'_j | x_PA(j))],    i ~ uniform
    I_ij   <- (1 - tau) I_ij + tau E_held-out [log p_j(s'_j | x) - log p_j(s'_j | x without x_i)]
    PA(j)  =  {i: I_ij >= threshold}

so that I_ij runs after the conditional mutual information of x_i and s'_j given all the rest. What plans is
p_j(s'_j | x_PA(j)), and the state abstraction is what the graph joins to the goal.

`variant="regularised"` is the method's rival with a learned mask, whose two numbers are all that the BECAUSE paper's
table has on CDL: edges are drawn by Gumbel-sigmoid from log-odds theta_ij, which begin at `initial`,

    L = -E sum_j log p_j(s'_j | x_S),  i in S with probability sigmoid(theta_ij),  + sparsity sum_ij sigmoid(theta_ij)

and PA(j) = {i: theta_ij > 0}.

Adaptations: offline, so one fit instead of a collecting agent, and the shared planner with the goal's own reward
instead of a learned one; g_ij is a network for each kind, then a layer for each pair of kinds with small, decayed
deviations of each (i, j), so that factors of one kind share what they can; how two factors of one kind lie to each
other counts as a feature of both, there when both are; heads by kind, slot by slot where a kind has slots, and
background rows for binary factors, as in the other models. A factor is always its own parent.
One row of held-out data counts at most `most` nats, since near-deterministic factors have wild likelihoods. There is
no uncertainty, so that plans pay no penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models import nodes
from because_rl.models.bilinear import DenseHead, Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.likelihood import negative_log_likelihood, per_target, split
from because_rl.models.nets import normal, silu, uniform
from because_rl.models.objective import Weights, background
from because_rl.models.policy import coin
from because_rl.models.prepared_data import Statistics, prepare
from because_rl.planning.agent import PlannerAgent, make_planner_agent
from because_rl.planning.proposals import PlanningConfig, fit_proposals
from because_rl.training.method import Method
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

HELD = 2048
"""Held-out rows that information is measured on, at most."""


@dataclass(frozen=True)
class CDLConfig(PlanningConfig):
    pessimism: float | None = 0.0
    variant: Literal["information", "regularised"] = "information"
    features: int = 64
    """width of h"""
    threshold: float = 0.02
    """nats of information that make an edge"""
    tau: float = 0.05
    """how fast the running average follows"""
    most: float = 3.0
    initial: float = 1.0
    """mask coefficient that every edge begins with: I_ij, or theta_ij"""
    sparsity: float = 1e-3
    mask_rate: float = 0.01
    """learning rate of theta"""
    deviation: float = 1e-3
    """weight of the squares of what sets factors of one kind apart"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""

    @property
    def least(self) -> float:
        """mask coefficient of an edge that is kept"""
        return self.threshold if self.variant == "information" else 0.0


class Features(NamedTuple):
    """Of one row, before any mask."""

    parent: Float[Array, "inputs targets n"]
    """g, before relu"""
    pairs: list[nodes.Pairs]
    """with features (pairs, targets, n), after relu"""
    x: Float[Array, " columns"]


class ParentsModel(eqx.Module):
    """Call it on one row [s, a] and a mask (inputs, targets); use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    encoder: nodes.Encoder
    common: Float[Array, "relations n n"]
    own: Float[Array, "inputs targets n n"]
    bias: Float[Array, "inputs targets n"]
    pairs: list[Array]
    """by kind (pairs, targets, n, m)"""
    slot: Float[Array, "relations n"]
    heads: list[DenseHead | nodes.SlotReader]

    def __init__(self, layout: Layout, config: CDLConfig, stats: Statistics, key: PRNGKeyArray):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        kinds, n = int(nodes.relations(layout).max()) + 1, config.features
        self.layout, edges = layout, (len(layout.inputs), len(layout.factors.state))
        self.encoder = nodes.Encoder(layout, (config.hidden, n), k1)
        self.common = normal(k2, (kinds, n, n)) * (2.0 / n) ** 0.5
        self.own, self.bias = jnp.zeros((*edges, n, n)), jnp.zeros((*edges, n))
        near = jax.eval_shape(lambda x: [p.features for p in nodes.pairs(layout, stats, x)], jnp.zeros(layout.size))
        self.pairs = [
            normal(k, (f.shape[0], edges[1], n, f.shape[1])) / f.shape[1] ** 0.5
            for f, k in zip(near, jax.random.split(k3, len(near) + 1), strict=False)
        ]
        self.slot = normal(k4, (kinds, n))
        self.heads = nodes.readers(layout, n, config.hidden, k5)

    def __call__(
        self, stats: Statistics, mask: Array, x: Array, families: Sequence[int] | None = None
    ) -> list[Outputs]:
        return self.predict(stats, self.features(stats, x), mask, families)

    def features(self, stats: Statistics, x: Float[Array, " columns"]) -> Features:
        relation = nodes.relations(self.layout)[:, : len(self.layout.factors.state)]
        e = silu(self.encoder(stats, x))
        parent = jnp.einsum("ijmn,in->ijm", self.common[relation] + self.own, e) + self.bias
        near = [
            p._replace(features=jax.nn.relu(jnp.einsum("pjnm,pm->pjn", w, p.features)))
            for w, p in zip(self.pairs, nodes.pairs(self.layout, stats, x), strict=True)
        ]
        return Features(parent, near, x)

    def predict(
        self, stats: Statistics, seen: Features, mask: Array, families: Sequence[int] | None = None
    ) -> list[Outputs]:
        """relu and the mask leave 0 of what is out, which no maximum takes."""
        layout, relation = self.layout, nodes.relations(self.layout)
        near = [p.features * (mask[p.first] * mask[p.second])[:, :, None] for p in seen.pairs]
        both = jnp.concatenate([jnp.zeros((1, *seen.parent.shape[1:])), *near]).max(0)
        each = jax.nn.relu(seen.parent) * mask[:, :, None]

        def there(family: Family) -> Array:
            mates, who = np.array(layout.slot_kinds[family.kind]), np.array(family.members)
            others = np.setdiff1d(np.arange(len(mask)), mates)
            filled = jnp.stack([seen.x[layout.columns[i]] for i in mates])
            told = filled[:, None, :, None] * self.slot[relation[np.ix_(mates, who)]][:, :, None]
            here = jax.nn.relu(seen.parent[np.ix_(mates, who)][:, :, None] + told)
            here = (here * mask[np.ix_(mates, who)][:, :, None, None]).max(0)
            rest = jnp.maximum(both[who], each[np.ix_(others, who)].max(0))
            return jnp.maximum(here, rest[:, None])

        return nodes.read(self.heads, families, stats, self.encoder.embed, jnp.maximum(both, each.max(0)), there)


class Learner(NamedTuple):
    model: Any
    mask: Any
    """(inputs, targets) I or theta"""


def kept(mask: Float[Array, "inputs targets"], least: float) -> Array:
    """The graph: edges above `least`, and of every factor to itself."""
    return jnp.maximum(
        (jax.lax.stop_gradient(mask) >= least).astype(jnp.float32), jnp.eye(mask.shape[0], mask.shape[1])
    )


def log_likelihood(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, next_state: Array
) -> Float[Array, " targets"]:
    """log p(s'_j | ...) in nats: the shared likelihood scales Gaussians by their spread, which information may not."""
    shared = negative_log_likelihood(layout, stats, outputs, state, next_state)
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        nll = shared[np.array(family.members)]
        if family.type == "continuous":
            change = split(layout, family, next_state) - split(layout, family, state)
            error = change / split(layout, family, stats.change) - out.value
            nll = (0.5 * (error * jnp.exp(-out.spread)) ** 2 + out.spread).sum(1)
        parts.append(-nll)
    return per_target(layout, parts)


def information(
    stats: Statistics, most: float, model: ParentsModel, batch: Batch, left_out: Array
) -> Float[Array, " targets"]:
    """E [log p(s'_j | x) - log p(s'_j | x without x_i)] over the batch, of input i = `left_out`."""
    layout = model.layout
    every = jnp.ones((len(layout.inputs), len(layout.factors.state)))
    without = every * (jnp.arange(len(every)) != left_out)[:, None].astype(jnp.float32)

    def row(state: Array, action: Array, next_state: Array) -> Array:
        seen = model.features(stats, jnp.concatenate([state, action]))
        each = jax.vmap(lambda m: log_likelihood(layout, stats, model.predict(stats, seen, m), state, next_state))
        full, masked = each(jnp.stack([every, without]))
        return jnp.clip(full - masked, -most, most)

    return jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean(0)


def _any_of(count: int, key: PRNGKeyArray, draws: int) -> Array:
    return jnp.minimum(uniform(key, (draws,)) * count, count - 1).astype(jnp.int32)


def cdl_loss(
    c: CDLConfig, stats: Statistics, held: Batch, learner: Learner, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    model, mask = learner
    layout, rows = model.layout, len(batch["state"])
    k1, k2, k3, k4 = jax.random.split(key, 4)
    inputs, targets = mask.shape
    graph, itself = kept(mask, c.least), jnp.eye(inputs, targets)

    def nll(state: Array, action: Array, next_state: Array, masks: Float[Array, "n inputs targets"]) -> Array:
        seen = model.features(stats, jnp.concatenate([state, action]))
        outputs = jax.vmap(lambda m: model.predict(stats, seen, m))(masks)
        return jax.vmap(lambda out: negative_log_likelihood(layout, stats, out, state, next_state).sum())(outputs)

    some = uniform(k1, (rows, inputs, targets))
    if c.variant == "information":
        without = (some != some.min(1, keepdims=True)).astype(jnp.float32)  # for each target one input less
        everything = jnp.ones((inputs, targets))
        masks = jax.vmap(lambda m: jnp.stack([everything, jnp.maximum(m, itself), graph]))(without)
        i = _any_of(inputs, k2, 1)[0]
        rows_held = _any_of(len(held["state"]), k3, rows)
        fresh = {name: held[name][rows_held] for name in ("state", "action", "next_state")}
        found = jax.lax.stop_gradient(information(stats, c.most, jax.lax.stop_gradient(model), fresh, i))
        about = 0.5 * ((mask[i] - found) ** 2).sum()  # descended at rate tau: the running average
    else:
        masks = jnp.maximum(coin(jnp.broadcast_to(mask, some.shape), some), itself[None])[:, None]
        about = c.sparsity * jax.nn.sigmoid(mask).sum()
    costs = jax.vmap(nll)(batch["state"], batch["action"], batch["next_state"], masks).mean(0)
    far = background(Weights(background=c.background), stats, model, graph, batch, k4)
    apart = nodes.deviation(model) + (model.own**2).sum()
    total = costs.sum() + about + c.background * far + c.deviation * apart
    return total, {"nll": costs[-1], "background": far, "edges": graph.sum()}


def cdl_stage(c: CDLConfig, layout: Layout, stats: Statistics, held: Batch) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Learner:
        shape = len(layout.inputs), len(layout.factors.state)
        return Learner(ParentsModel(layout, c, stats, key), jnp.full(shape, c.initial, jnp.float32))

    stage = Stage("world", init, partial(cdl_loss, c, stats, held), c.world_steps, c.batch, c.rate)
    follow = optax.sgd(c.tau) if c.variant == "information" else optax.adam(c.mask_rate)
    return replace(stage, rule=optax.partition({"model": stage.optimiser(), "mask": follow}, Learner("model", "mask")))


class CDL(Method):
    name = "cdl"

    def __init__(self, config: CDLConfig | None = None):
        self.config = config or CDLConfig()

    def fit(self, data: Transitions, run: Run) -> PlannerAgent:
        c, prepared = self.config, prepare(data)
        rows = np.flatnonzero(data.held_out)
        held = data.batch(rows[np.linspace(0, len(rows) - 1, min(len(rows), HELD)).astype(int)])
        learner = run.fit(cdl_stage(c, prepared.layout, prepared.stats, held), prepared.train, ())
        graphs = jax.vmap(lambda mask: kept(mask, c.least))(learner.mask)
        # The behaviour policy and the value see what the graph of at least one seed joins to the goal.
        proposals = fit_proposals(c, prepared, run, np.asarray(graphs.mean(0)))
        parameters = {"world": learner.model, "mask": graphs}
        edges = {"edges": np.asarray(graphs.sum((1, 2)))}
        return make_planner_agent(c, prepared, run, nodes.predict, parameters, proposals, edges)
