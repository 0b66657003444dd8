"""CDL (Wang et al., ICML 2022): causal dynamics learning for task-independent state abstraction.

Each target j has a feature of every possible parent i, and is predicted from their elementwise maximum over a set S:

    h_j(S) = max_{i in S} relu(g_ij(x_i)),    p_j(s'_j | x_S) = the likelihood of its type, a function of h_j(S).

One set of networks is fitted with all parents, with one of them left out at random, and with the current parents:

    L = -sum_j E [log p_j(s'_j | x) + log p_j(s'_j | x without x_i) + log p_j(s'_j | x_PA(j))],    i ~ uniform
    I_ij   <- (1 - tau) I_ij + tau E_held-out [log p_j(s'_j | x) - log p_j(s'_j | x without x_i)]
    PA(j)  =  {i: I_ij >= threshold}

so that I_ij is a running estimate of the conditional mutual information of x_i and s'_j given all the rest. As in the
original, predictions reach two steps: the state that is expected next, with the action that was logged there, must
predict the one after it. Plans use p_j(s'_j | x_PA(j)), and the state abstraction is the set of factors from which the
graph has a path to the goal.

`variant="regularised"` is the learned mask that the CDL paper compares itself with, whose two numbers are all that the
BECAUSE paper's table has on CDL: edges are drawn by Gumbel-sigmoid from log-odds theta_ij, which begin at `initial`,

    L = -E sum_j log p_j(s'_j | x_S),  i in S with probability sigmoid(theta_ij),  + sparsity sum_ij sigmoid(theta_ij)

and PA(j) = {i: theta_ij > 0}. On Unlock and Crash it is what trials chose, and tables call it CDL (regularised).

Why information solves nothing on Unlock: leaving one input out measures what it adds to *all* others. In scripted
behaviour each of the agent's cell, `open` and `has_key` can be read off the other inputs (who opens stands at a door
with the key in hand), so each adds nothing, and all three are dropped although together they decide the door. No
threshold helps, as the information is 0 and not small.

Adaptations: offline, so one fit instead of a collecting agent, and the shared planner with the goal's own reward
instead of a learned one; g_ij is a network for each kind, then a layer for each pair of kinds with small, decayed
deviations of each (i, j), so that factors of one kind share what they can; the relation of two factors of one kind
(`nodes.pairs`) is a feature of both, present when both are parents; heads by kind, slot by slot where a kind has slots,
several networks that vote on events, and background rows for them, as in the other models. A factor is always its own
parent. One row of held-out data counts at most `most` nats, since near-deterministic factors have extreme likelihoods,
and rows in which a binary factor switches have the weight that they have in training. There is no uncertainty, so
plans pay no penalty.
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
from because_rl.models.bilinear import EVENT_NETWORKS, DenseHead, Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.likelihood import join, log_likelihood, negative_log_likelihood, split
from because_rl.models.nets import SharedMLP, normal, silu, uniform
from because_rl.models.objective import Weights, background, jackknife
from because_rl.models.policy import sample_bernoulli
from because_rl.models.prepared_data import Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, fit_proposals
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions

HELD_OUT_ROWS = 2048
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
    """rate of the running average I"""
    most: float = 3.0
    """largest information of one row, in nats"""
    second_step: float = 1.0
    """weight of the likelihood of the state after the next one"""
    initial: float = 1.0
    """mask coefficient that every edge begins with: I_ij, or theta_ij"""
    sparsity: float = 1e-3
    mask_rate: float = 0.01
    """learning rate of theta"""
    deviation: float = 1e-3
    """weight of the squared deviations of single factors from the networks of their kind"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""

    @property
    def least(self) -> float:
        """mask coefficient of an edge that is kept"""
        return self.threshold if self.variant == "information" else 0.0


class CDL(PlanningMethod):
    name = "cdl"

    def __init__(self, config: CDLConfig | None = None):
        self.config = config or CDLConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared = self.config, as_run(seeds), prepare(data)
        rows = np.flatnonzero(data.held_out)
        held_out = data.batch(rows[np.linspace(0, len(rows) - 1, min(len(rows), HELD_OUT_ROWS)).astype(int)])
        batch = {**prepared.train, **following_rows(data, ~data.held_out)}
        learner = run.fit(cdl_stage(c, prepared.layout, prepared.stats, held_out), batch, ())
        graphs = jax.vmap(lambda mask: graph_from_mask(mask, c.least))(learner.mask)

        # The behaviour policy and the value see the factors with a path to the goal in the graph of their seed.
        proposals = fit_proposals(c, prepared, run, np.asarray(graphs))
        parameters = {"world": learner.model, "mask": graphs}
        diagnostics = {"edges": np.asarray(graphs.sum((1, 2)))}
        return self.make_agent(prepared, run, parameters, proposals, diagnostics)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        shape = len(summary.layout.inputs), len(summary.factors.state)
        return {"world": ParentsModel(summary.layout, self.config, summary.stats, key), "mask": jnp.ones(shape)}


def following_rows(data: Transitions, keep: np.ndarray) -> Batch:
    """For each row that is kept, the next action and the state after the next one.

    `follows` is 0 where the episode ends, or the next row does not start from the state that this one led to.
    """
    following = np.minimum(np.arange(len(data)) + 1, len(data) - 1)
    follows = (data.episode[following] == data.episode) & (following > np.arange(len(data)))
    follows &= np.isclose(data.state[following], data.next_state, atol=1e-5).all(1)
    arrays = {"action_2": data.action[following], "state_2": data.next_state[following], "follows": follows}
    return {name: jnp.asarray(values[keep], jnp.float32) for name, values in arrays.items()}


class Learner(NamedTuple):
    model: Any
    mask: Any
    """(inputs, targets) I or theta"""


def graph_from_mask(mask: Float[Array, "inputs targets"], least: float) -> Float[Array, "inputs targets"]:
    """The graph, 1 for an edge: those of at least `least`, and from every factor to itself."""
    return jnp.maximum(
        (jax.lax.stop_gradient(mask) >= least).astype(jnp.float32), jnp.eye(mask.shape[0], mask.shape[1])
    )


def cdl_stage(c: CDLConfig, layout: Layout, stats: Statistics, held_out: Batch) -> Stage:
    def init(key: PRNGKeyArray, fixed: Any) -> Learner:
        shape = len(layout.inputs), len(layout.factors.state)
        return Learner(ParentsModel(layout, c, stats, key), jnp.full(shape, c.initial, jnp.float32))

    # Filled up to one length, so that one program serves all datasets
    count = len(held_out["state"])
    filled = {name: jnp.pad(a, [(0, HELD_OUT_ROWS - count)] + [(0, 0)] * (a.ndim - 1)) for name, a in held_out.items()}
    loss = partial(cdl_loss, c, stats, {**filled, "count": jnp.float32(count)})
    stage = Stage("world", init, loss, c.world_steps, c.batch, c.rate)
    mask_rule = optax.sgd(c.tau) if c.variant == "information" else optax.adam(c.mask_rate)
    rule = optax.partition({"model": stage.optimiser(), "mask": mask_rule}, Learner("model", "mask"))
    return replace(stage, rule=rule)


def cdl_loss(
    c: CDLConfig, stats: Statistics, held_out: Batch, learner: Learner, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """L of the variant, and a term whose descent updates the mask."""
    model, mask = learner
    layout, rows = model.layout, len(batch["state"])
    k1, k2, k3, k4 = jax.random.split(key, 4)
    inputs, targets = mask.shape
    graph, itself = graph_from_mask(mask, c.least), jnp.eye(inputs, targets)

    noise = uniform(k1, (rows, inputs, targets))
    if c.variant == "information":
        left_out = (noise != noise.min(1, keepdims=True)).astype(jnp.float32)  # for each target one input less
        all_parents = jnp.ones((inputs, targets))
        masks = jax.vmap(lambda m: jnp.stack([all_parents, jnp.maximum(m, itself), graph]))(left_out)
        i = _uniform_numbers(inputs, k2, 1)[0]
        sample = _uniform_numbers(held_out["count"], k3, rows)
        held_out_batch = {name: held_out[name][sample] for name in ("state", "action", "next_state")}
        frozen = jax.lax.stop_gradient(model)
        measured = jax.lax.stop_gradient(information(stats, c.most, frozen, held_out_batch, i))
        mask_loss = 0.5 * ((mask[i] - measured) ** 2).sum()  # descended at rate tau: the running average
    else:
        drawn = sample_bernoulli(jnp.broadcast_to(mask, noise.shape), noise)
        masks = jnp.maximum(drawn, itself[None])[:, None]
        mask_loss = c.sparsity * jax.nn.sigmoid(mask).sum()

    def nll(row: Batch, masks: Float[Array, "n inputs targets"], counts: Array) -> Array:
        features = model.features(stats, jnp.concatenate([row["state"], row["action"]]))

        def by_mask(mask: Array) -> Array:
            outputs = model.predict(stats, features, mask)
            first = negative_log_likelihood(layout, stats, outputs, row["state"], row["next_state"], counts).sum()
            if not c.second_step:
                return first
            imagined = expected_state(layout, stats, outputs, row["state"])
            outputs = model(stats, mask, jnp.concatenate([imagined, row["action_2"]]))
            second = negative_log_likelihood(layout, stats, outputs, imagined, row["state_2"], counts, weighted=False)
            return first + c.second_step * row["follows"] * second.sum()

        return jax.vmap(by_mask)(masks)

    names = ("state", "action", "next_state", "action_2", "state_2", "follows")
    counts = jackknife(batch["episode"], EVENT_NETWORKS)
    nlls = jax.vmap(nll)({name: batch[name] for name in names}, masks, counts).mean(0)
    far = background(Weights(background=c.background), stats, model, graph, batch, k4)
    deviation = nodes.deviation(model) + (model.own**2).sum()
    total = nlls.sum() + mask_loss + c.background * far + c.deviation * deviation
    return total, {"nll": nlls[-1], "background": far, "edges": graph.sum()}


def expected_state(layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array) -> Float[Array, " state"]:
    """The next state in expectation: discrete factors as probabilities, of events by the mean vote."""
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        if family.is_continuous:
            parts.append(split(layout, family, state) + out.value * split(layout, family, stats.change))
        elif family.type == "categorical":
            parts.append(jax.nn.softmax(out.value, axis=1)[:, : family.width])
        else:
            parts.append(jax.nn.sigmoid(out.value.mean(1) if out.value.ndim == 3 else out.value))
    return join(layout, parts)


def _uniform_numbers(count: float | Array, key: PRNGKeyArray, draws: int) -> Array:
    """`draws` whole numbers below `count`."""
    return jnp.minimum(uniform(key, (draws,)) * count, count - 1).astype(jnp.int32)


def information(
    stats: Statistics, most: float, model: ParentsModel, batch: Batch, left_out: Array
) -> Float[Array, " targets"]:
    """E [log p(s'_j | x) - log p(s'_j | x without x_i)] over the batch, of input i = `left_out`."""
    layout = model.layout
    all_parents = jnp.ones((len(layout.inputs), len(layout.factors.state)))
    without = all_parents * (jnp.arange(len(all_parents)) != left_out)[:, None].astype(jnp.float32)

    def row(state: Array, action: Array, next_state: Array) -> Array:
        features = model.features(stats, jnp.concatenate([state, action]))
        each = jax.vmap(lambda m: log_likelihood(layout, stats, model.predict(stats, features, m), state, next_state))
        full, masked = each(jnp.stack([all_parents, without]))
        return jnp.clip(full - masked, -most, most)

    return jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean(0)


# The networks ------------------------------------------------------------------------------------------------
class Features(NamedTuple):
    """Features of one row, before any mask."""

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
    """by relation, what a factor in a slot adds to the features of that slot"""
    heads: list[DenseHead | nodes.NodeSlotHead]
    support: list[SharedMLP]

    def __init__(self, layout: Layout, config: CDLConfig, stats: Statistics, key: PRNGKeyArray):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        kinds, n = int(nodes.relations(layout).max()) + 1, config.features
        self.layout, edges = layout, (len(layout.inputs), len(layout.factors.state))
        self.encoder = nodes.Encoder(layout, (config.hidden, n), k1)
        self.common = normal(k2, (kinds, n, n)) * (2.0 / n) ** 0.5
        self.own, self.bias = jnp.zeros((*edges, n, n)), jnp.zeros((*edges, n))
        shapes = nodes.pair_feature_shapes(layout, stats)
        self.pairs = [
            normal(k, (count, edges[1], n, width)) / width**0.5
            for (count, width), k in zip(shapes, jax.random.split(k3, len(shapes) + 1), strict=False)
        ]
        self.slot = normal(k4, (kinds, n))
        self.heads = nodes.make_heads(layout, n, config.hidden, k5)
        self.support = nodes.make_support(layout, n, config.hidden, jax.random.fold_in(k5, 1))

    def __call__(
        self, stats: Statistics, mask: Array, x: Array, families: Sequence[int] | None = None
    ) -> list[Outputs]:
        return self.predict(stats, self.features(stats, x), mask, families)

    def features(self, stats: Statistics, x: Float[Array, " columns"]) -> Features:
        relation = nodes.relations(self.layout)[:, : len(self.layout.factors.state)]
        encoded = silu(self.encoder(stats, x))
        parent = jnp.einsum("ijmn,in->ijm", self.common[relation] + self.own, encoded) + self.bias
        pairs = [
            p._replace(features=jax.nn.relu(jnp.einsum("pjnm,pm->pjn", w, p.features)))
            for w, p in zip(self.pairs, nodes.pairs(self.layout, stats, x), strict=True)
        ]
        return Features(parent, pairs, x)

    def masked_features(self, features: Features, mask: Array) -> tuple[Array, Array]:
        """What the inputs in `mask` add to h: pairs of them, (targets, n), and each of them, (inputs, targets, n)."""
        pairs = [p.features * (mask[p.first] * mask[p.second])[:, :, None] for p in features.pairs]
        of_pairs = jnp.concatenate([jnp.zeros((1, *features.parent.shape[1:])), *pairs]).max(0)
        return of_pairs, jax.nn.relu(features.parent) * mask[:, :, None]

    def log_odds_of_data(self, stats: Statistics, mask: Array, x: Float[Array, " columns"]) -> list[Array]:
        """As `BilinearModel.log_odds_of_data`."""
        of_pairs, of_parents = self.masked_features(self.features(stats, x), mask)
        return nodes.log_odds_of_data(self.layout, self.support, jnp.maximum(of_pairs, of_parents.max(0)))

    def predict(
        self, stats: Statistics, features: Features, mask: Array, families: Sequence[int] | None = None
    ) -> list[Outputs]:
        """The outputs of `families` (None: of all) from the inputs in `mask`.

        relu and the mask leave 0 of an input that is left out, which does not change a maximum.
        """
        layout, relation = self.layout, nodes.relations(self.layout)
        of_pairs, of_parents = self.masked_features(features, mask)

        def slot_features(family: Family) -> Array:
            mates, members = np.array(layout.slot_kinds[family.kind]), np.array(family.members)
            others = np.setdiff1d(np.arange(len(mask)), mates)
            filled = jnp.stack([features.x[layout.columns[i]] for i in mates])
            shift = filled[:, None, :, None] * self.slot[relation[np.ix_(mates, members)]][:, :, None]
            on_slots = jax.nn.relu(features.parent[np.ix_(mates, members)][:, :, None] + shift)
            on_slots = (on_slots * mask[np.ix_(mates, members)][:, :, None, None]).max(0)
            elsewhere = jnp.maximum(of_pairs[members], of_parents[np.ix_(others, members)].max(0))
            return jnp.maximum(on_slots, elsewhere[:, None])

        h = jnp.maximum(of_pairs, of_parents.max(0))
        return nodes.apply_heads(self.heads, families, stats, self.encoder.embed, h, slot_features)
