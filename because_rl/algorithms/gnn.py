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
- edges between factors of one kind carry how the two lie to each other (their difference, or whether they share a
  cell) into the first layer, and factors on slots are also joined slot by slot in the head;
- binary factors that the goal is about learn from the same background rows.

There is no causal mask, so that the data's action law and value see the whole state; and no uncertainty, in the
original or here, so that plans pay no penalty.
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

from because_rl.models.bilinear import DenseHead, Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.nets import SharedMLP, normal, silu
from because_rl.models.nodes import (
    Encoder,
    SlotReader,
    deviation,
    is_shared,
    pairs,
    predict,
    read,
    readers,
    relations,
)
from because_rl.models.objective import Weights, background
from because_rl.models.prepared_data import Statistics, prepare
from because_rl.planning.agent import PlannerAgent, make_planner_agent
from because_rl.planning.proposals import PlanningConfig, fit_proposals, full_mask
from because_rl.training.method import Method
from because_rl.training.run import Run
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


class Convolution(eqx.Module):
    """One layer."""

    basis: Float[Array, "bases n n"]
    share: Float[Array, "relations bases"]
    """a"""
    loop: Float[Array, "n n"]
    """W_0"""
    bias: Float[Array, " n"]

    def __init__(self, relations: int, bases: int, size: int, key: PRNGKeyArray):
        k1, k2, k3 = jax.random.split(key, 3)
        self.basis = normal(k1, (bases, size, size)) / size**0.5
        self.share = normal(k2, (relations, bases)) / bases**0.5
        self.loop = normal(k3, (size, size)) / size**0.5
        self.bias = jnp.zeros(size)

    def __call__(self, relation: np.ndarray, h: Float[Array, "nodes n"], edges: Array) -> Array:
        mean = self.share[relation] * jnp.asarray(_one_of_many(relation))[:, :, None]
        mixed = jnp.einsum("ijb,in->jbn", mean, h)
        return silu(jnp.einsum("jbn,bmn->jm", mixed, self.basis) + h @ self.loop.T + self.bias[None] + edges)


def _one_of_many(relation: np.ndarray) -> np.ndarray:
    """(nodes, nodes) 1 / c of the edge from i to j; nothing from a node to itself."""
    same = (relation[:, None] == relation[None]).sum(0)
    return np.where(np.eye(len(relation), dtype=bool), 0.0, 1.0 / same).astype(np.float32)


class GraphModel(eqx.Module):
    """Call it on one row [s, a]; use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    own: bool = eqx.field(static=True)
    encoder: Encoder
    edges: list[SharedMLP]
    """by kind, of all ordered pairs"""
    layers: list[Convolution]
    slot: Float[Array, "relations n"]
    """what a factor in a slot tells the head of another about that slot"""
    heads: list[DenseHead | SlotReader]

    def __init__(self, layout: Layout, config: GNNConfig, stats: Statistics, key: PRNGKeyArray):
        n, size = int(relations(layout).max()) + 1, config.hidden
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.layout, self.own = layout, config.own
        self.encoder = Encoder(layout, (size,), k1)
        near = jax.eval_shape(lambda x: [p.features for p in pairs(layout, stats, x)], jnp.zeros(layout.size))
        keys = jax.random.split(k2, max(len(near), 1))
        self.edges = [SharedMLP((f.shape[1], size), 2 * f.shape[0], k) for f, k in zip(near, keys, strict=False)]
        self.layers = [Convolution(n, config.bases, size, k) for k in jax.random.split(k3, config.layers)]
        self.slot = normal(k4, (n, size))
        self.heads = readers(layout, size, size, k5)

    def __call__(self, stats: Statistics, mask: None, x: Array, families: Sequence[int] | None = None) -> list[Outputs]:
        """The outputs of all families, or of those asked for; there is no `mask`."""
        model = self if self.own else _alike(self)
        layout, relation = self.layout, relations(self.layout)
        h = silu(model.encoder(stats, x))
        along = jnp.zeros(h.shape)
        for net, p in zip(model.edges, pairs(layout, stats, x), strict=True):
            told = silu(net(jnp.concatenate([p.features, p.back * p.features])))
            into = np.concatenate([p.second, p.first])
            along = along.at[into].add(told / jnp.asarray(np.bincount(into)[into, None], jnp.float32))
        for n, layer in enumerate(model.layers):
            h = layer(relation, h, along if n == 0 else jnp.zeros(h.shape))

        def there(family: Family) -> Array:
            mates, who = np.array(layout.slot_kinds[family.kind]), np.array(family.members)
            filled = jnp.stack([x[layout.columns[i]] for i in mates])
            told = jnp.einsum("is,ijn->jsn", filled, model.slot[relation[np.ix_(mates, who)]])
            return silu(told + h[who][:, None])

        return read(model.heads, families, stats, model.encoder.embed, h, there)


def _alike(model: GraphModel) -> GraphModel:
    def common(node: Any) -> Any:
        return (
            eqx.tree_at(lambda net: net.own, node, jax.tree.map(jnp.zeros_like, node.own)) if is_shared(node) else node
        )

    return jax.tree.map(common, model, is_leaf=is_shared)


def gnn_loss(
    weights: Weights, stats: Statistics, model: GraphModel, fixed: Any, batch: Batch, key: Array
) -> tuple[Array, dict[str, Array]]:
    def row(state: Array, action: Array, next_state: Array) -> Array:
        outputs = model(stats, None, jnp.concatenate([state, action]))
        return negative_log_likelihood(model.layout, stats, outputs, state, next_state)

    nll = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"]).mean(0).sum()
    far = background(weights, stats, model, None, batch, key)
    return nll + weights.deviation * deviation(model) + weights.background * far, {"nll": nll, "background": far}


def gnn_stage(c: GNNConfig, layout: Layout, stats: Statistics) -> Stage:
    return Stage(
        "world",
        lambda key, fixed: GraphModel(layout, c, stats, key),
        partial(gnn_loss, Weights(deviation=c.deviation, background=c.background), stats),
        c.world_steps,
        c.batch,
        c.rate,
    )


class GNN(Method):
    name = "gnn"

    def __init__(self, config: GNNConfig | None = None):
        self.config = config or GNNConfig()

    def fit(self, data: Transitions, run: Run) -> PlannerAgent:
        c, prepared = self.config, prepare(data)
        world = run.fit(gnn_stage(c, prepared.layout, prepared.stats), prepared.train, ())
        proposals = fit_proposals(c, prepared, run, full_mask(data.factors))
        return make_planner_agent(c, prepared, run, predict, {"world": world}, proposals)
