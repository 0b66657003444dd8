"""GNN (Schlichtkrull et al., ESWC 2018): a relational graph convolution as the world model.

Every factor of state and action is a node, every two nodes are joined, and the relation r of an edge is the pair of
its ends' kinds. With h_i^0 the encoded factor i, N_j^r its neighbours in relation r and c_j^r their number,

    h_j^{l+1} = silu(W_0 h_j^l + sum_r 1/c_j^r sum_{i in N_j^r} W_r h_i^l + b),    W_r = sum_b a_{rb} V_b    (basis)
    L         = -sum_j E log p(s'_j | h_j^L)

where the likelihood is that of the factor's type, as in all methods here.

Adaptations. The original classifies nodes and scores links of a knowledge graph; the BECAUSE paper uses the
convolution as a dynamics model, without saying more. Here

- nodes get what the other models get: encoders and heads by kind, with the same small, decayed deviations of each
  member (of `pick` and `open`, both switches, only one opens doors). Without them (`own=False`) the prediction is
  strictly equivariant under permutations of factors of one kind;
- edges between factors of one kind carry features of the pair (their difference, or whether they share a cell) into
  the first layer, and factors on slots are also joined slot by slot in the head;
- binary factors that the goal is about learn from the same background rows, and as many networks vote on them.

There is no causal mask, so the behaviour policy and the value see the whole state; and no uncertainty, in the original
or here, so plans pay no penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models import nodes
from because_rl.models.bilinear import EVENT_NETWORKS, DenseHead, Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.nets import SharedMLP, normal, silu
from because_rl.models.objective import Weights, background, jackknife
from because_rl.models.prepared_data import Statistics, Summary, prepare
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import PlanningConfig, fit_proposals, full_mask
from because_rl.training.method import Agent
from because_rl.training.run import Seeds, as_run
from because_rl.training.stage import Batch, Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class GNNConfig(PlanningConfig):
    pessimism: float | None = 0.0
    layers: int = 3
    bases: int = 8
    """V_b of a layer"""
    own: bool = True
    """whether factors of one kind may differ"""
    deviation: float = 1e-3
    """weight of these differences' squares"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""


class GNN(PlanningMethod):
    name = "gnn"

    def __init__(self, config: GNNConfig | None = None):
        self.config = config or GNNConfig()

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        c, run, prepared = self.config, as_run(seeds), prepare(data)
        world = run.fit(gnn_stage(c, prepared.layout, prepared.stats), prepared.train, ())
        proposals = fit_proposals(c, prepared, run, full_mask(data.factors))
        return self.make_agent(prepared, run, {"world": world}, proposals)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        return {"world": GraphModel(summary.layout, self.config, summary.stats, key)}


def gnn_stage(c: GNNConfig, layout: Layout, stats: Statistics) -> Stage:
    return Stage(
        "world",
        lambda key, fixed: GraphModel(layout, c, stats, key),
        partial(gnn_loss, Weights(deviation=c.deviation, background=c.background), stats),
        c.world_steps,
        c.batch,
        c.rate,
    )


def gnn_loss(
    weights: Weights, stats: Statistics, model: GraphModel, fixed: Any, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    """L, the squared deviations of members and the likelihood of background rows."""

    def row(state: Array, action: Array, next_state: Array, counts: Array) -> Array:
        outputs = model(stats, None, jnp.concatenate([state, action]))
        return negative_log_likelihood(model.layout, stats, outputs, state, next_state, counts)

    counts = jackknife(batch["episode"], EVENT_NETWORKS)
    nll = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"], counts).mean(0).sum()
    far = background(weights, stats, model, None, batch, key)
    total = nll + weights.deviation * nodes.deviation(model) + weights.background * far
    return total, {"nll": nll, "background": far}


class GraphModel(eqx.Module):
    """Call it on one row [s, a]; use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    own: bool = eqx.field(static=True)
    encoder: nodes.Encoder
    edges: list[SharedMLP]
    """by kind, of all ordered pairs"""
    layers: list[Convolution]
    slot: Float[Array, "relations n"]
    """by relation, what a factor in a slot adds to another's features of that slot"""
    heads: list[DenseHead | nodes.NodeSlotHead]
    support: list[SharedMLP]

    def __init__(self, layout: Layout, config: GNNConfig, stats: Statistics, key: PRNGKeyArray):
        n, size = int(nodes.relations(layout).max()) + 1, config.hidden
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.layout, self.own = layout, config.own
        self.encoder = nodes.Encoder(layout, (size,), k1)
        shapes = nodes.pair_feature_shapes(layout, stats)
        keys = jax.random.split(k2, max(len(shapes), 1))
        self.edges = [SharedMLP((width, size), 2 * count, k) for (count, width), k in zip(shapes, keys, strict=False)]
        self.layers = [Convolution(n, config.bases, size, k) for k in jax.random.split(k3, config.layers)]
        self.slot = normal(k4, (n, size))
        self.heads = nodes.make_heads(layout, size, size, k5)
        self.support = nodes.make_support(layout, size, size, jax.random.fold_in(k5, 1))

    def __call__(self, stats: Statistics, mask: None, x: Array, families: Sequence[int] | None = None) -> list[Outputs]:
        """The outputs of `families` (None: of all); `mask` is not used."""
        model = self if self.own else _without_deviations(self)
        layout, relation, h = self.layout, nodes.relations(self.layout), model.node_features(stats, x)

        def slot_features(family: Family) -> Array:
            mates, members = np.array(layout.slot_kinds[family.kind]), np.array(family.members)
            filled = jnp.stack([x[layout.columns[i]] for i in mates])
            shift = jnp.einsum("is,ijn->jsn", filled, model.slot[relation[np.ix_(mates, members)]])
            return silu(shift + h[members][:, None])

        return nodes.apply_heads(model.heads, families, stats, model.encoder.embed, h, slot_features)

    def node_features(self, stats: Statistics, x: Float[Array, " columns"]) -> Float[Array, "nodes n"]:
        """h^L."""
        layout, relation = self.layout, nodes.relations(self.layout)
        h = silu(self.encoder(stats, x))
        from_pairs = jnp.zeros(h.shape)
        for net, p in zip(self.edges, nodes.pairs(layout, stats, x), strict=True):
            messages = silu(net(jnp.concatenate([p.features, p.reverse_sign * p.features])))
            into = np.concatenate([p.second, p.first])
            from_pairs = from_pairs.at[into].add(messages / jnp.asarray(np.bincount(into)[into, None], jnp.float32))
        for n, layer in enumerate(self.layers):
            h = layer(relation, h, from_pairs if n == 0 else jnp.zeros(h.shape))
        return h

    def log_odds_of_data(self, stats: Statistics, mask: None, x: Float[Array, " columns"]) -> list[Array]:
        """As `BilinearModel.log_odds_of_data`."""
        return nodes.log_odds_of_data(self.layout, self.support, self.node_features(stats, x))


def _without_deviations(model: GraphModel) -> GraphModel:
    def common(node: Any) -> Any:
        if not nodes.is_shared(node):
            return node
        return eqx.tree_at(lambda net: net.own, node, jax.tree.map(jnp.zeros_like, node.own))

    return jax.tree.map(common, model, is_leaf=nodes.is_shared)


class Convolution(eqx.Module):
    """One layer: h^l -> h^{l+1}."""

    basis: Float[Array, "bases n n"]
    """V"""
    coefficients: Float[Array, "relations bases"]
    """a"""
    loop: Float[Array, "n n"]
    """W_0"""
    bias: Float[Array, " n"]

    def __init__(self, relations: int, bases: int, size: int, key: PRNGKeyArray):
        k1, k2, k3 = jax.random.split(key, 3)
        self.basis = normal(k1, (bases, size, size)) / size**0.5
        self.coefficients = normal(k2, (relations, bases)) / bases**0.5
        self.loop = normal(k3, (size, size)) / size**0.5
        self.bias = jnp.zeros(size)

    def __call__(self, relation: np.ndarray, h: Float[Array, "nodes n"], from_pairs: Float[Array, "nodes n"]) -> Array:
        """`relation`: `nodes.relations`. `from_pairs`: what the features of pairs add to each node."""
        weight = self.coefficients[relation] * jnp.asarray(_inverse_counts(relation))[:, :, None]
        mixed = jnp.einsum("ijb,in->jbn", weight, h)
        return silu(jnp.einsum("jbn,bmn->jm", mixed, self.basis) + h @ self.loop.T + self.bias[None] + from_pairs)


def _inverse_counts(relation: np.ndarray) -> np.ndarray:
    """(nodes, nodes) 1 / c of the edge from i to j; 0 from a node to itself."""
    same = (relation[:, None] == relation[None]).sum(0)
    return np.where(np.eye(len(relation), dtype=bool), 0.0, 1.0 / same).astype(np.float32)
