"""Factors as nodes of a graph, for models that treat all factors of a kind alike: encoders, pairs and heads by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import ZOOM, DenseHead, Outputs, apply_event_heads, make_event_heads
from because_rl.models.layout import Family, Layout
from because_rl.models.nets import SharedMLP, normal
from because_rl.models.prepared_data import Statistics

SLOT_EMBEDDING = 32
"""Width of a slot's embedding."""


def groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The inputs that share an encoder: all state factors, or all action factors, of one kind, type and width."""
    members: dict[tuple, list[int]] = {}
    for i, f in enumerate(layout.inputs):
        members.setdefault((i < len(layout.factors.state), f.kind, f.type, f.width, f.optional), []).append(i)
    return tuple(map(tuple, members.values()))


def relations(layout: Layout) -> np.ndarray:
    """(inputs, inputs) numbers of relations: one for each pair of groups, and one for each group's loops."""
    group = np.zeros(len(layout.inputs), int)
    for n, members in enumerate(groups(layout)):
        group[list(members)] = n
    pair = 2 * (group[:, None] * len(group) + group[None]) + np.eye(len(group), dtype=int)
    return np.unique(pair, return_inverse=True)[1].reshape(pair.shape)


class Encoder(eqx.Module):
    """Factors as vectors: one network for each group, and an embedding of the slots of each kind."""

    layout: Layout = eqx.field(static=True)
    embed: dict[str, Array]
    """kind -> (slots, SLOT_EMBEDDING)"""
    nets: list[SharedMLP]

    def __init__(self, layout: Layout, sizes: Sequence[int], key: PRNGKeyArray):
        """`sizes`: of the networks' layers after the first."""
        self.layout, kinds = layout, layout.slot_kinds
        keys = iter(jax.random.split(key, len(kinds) + len(layout.inputs)))
        self.embed = {
            kind: normal(next(keys), (layout.inputs[members[0]].width, SLOT_EMBEDDING)) / SLOT_EMBEDDING**0.5 * 2.0
            for kind, members in kinds.items()
        }
        self.nets = []
        for members in groups(layout):
            width = layout.inputs[members[0]].width if members[0] in layout.plain else 1 + SLOT_EMBEDDING
            self.nets.append(SharedMLP((width, *sizes), len(members), next(keys)))

    def __call__(self, stats: Statistics, x: Float[Array, " columns"]) -> Float[Array, "inputs n"]:
        standard = (x - stats.mean) / stats.scale
        parts = [standard[columns] for columns in self.layout.columns]
        for kind, members in self.layout.slot_kinds.items():
            for i in members:
                parts[i] = jnp.concatenate([parts[i].sum(keepdims=True), parts[i] @ self.embed[kind]])
        all_groups = groups(self.layout)
        encoded = [
            net(jnp.stack([parts[i] for i in members])) for net, members in zip(self.nets, all_groups, strict=True)
        ]
        return jnp.concatenate(encoded)[np.argsort(np.concatenate(all_groups))]


class Pairs(NamedTuple):
    """Pairs of state factors of one kind, with features of how the two relate."""

    first: np.ndarray
    second: np.ndarray
    features: Float[Array, "pairs n"]
    reverse_sign: float
    """the features of (second, first) are those of (first, second) times this: -1 for differences, else 1"""


def pairs(layout: Layout, stats: Statistics, x: Float[Array, " columns"]) -> list[Pairs]:
    """By kind: the differences of continuous factors, and whether two factors on the same slots share a slot."""
    by_kind: dict[tuple[str, int], list[tuple[int, int, Array]]] = {}
    start = 0
    for i, k in layout.pairs:
        width = layout.inputs[i].width
        difference = (x[layout.columns[i]] - x[layout.columns[k]]) / stats.difference[start : start + width]
        features = jnp.concatenate([difference, jnp.arcsinh(ZOOM * difference) / 3.0])
        by_kind.setdefault((layout.inputs[i].kind, width), []).append((i, k, features))
        start += width
    for i, k in layout.meetings:
        meet = (x[layout.columns[i]] * x[layout.columns[k]]).sum(keepdims=True)
        by_kind.setdefault((layout.inputs[i].kind, 0), []).append((i, k, meet))
    out = []
    for (_, width), members in by_kind.items():
        first, second, rows = zip(*members, strict=True)
        out.append(Pairs(np.array(first), np.array(second), jnp.stack(rows), -1.0 if width else 1.0))
    return out


def pair_feature_shapes(layout: Layout, stats: Statistics) -> list[tuple[int, int]]:
    """By kind: how many pairs there are, and how many features each has."""
    shapes = jax.eval_shape(lambda x: [p.features for p in pairs(layout, stats, x)], jnp.zeros(layout.size))
    return [features.shape for features in shapes]


# Heads ----------------------------------------------------------------------------------------------------
class NodeSlotHead(eqx.Module):
    """A family on slots: logit_c = local(features of slot c) + mu_c . move(features of the node)."""

    family: Family = eqx.field(static=True)
    local: SharedMLP
    move: SharedMLP

    def __init__(self, family: Family, inputs: int, hidden: int, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.family = family
        self.local = SharedMLP((inputs, hidden // 2, 1), len(family.members), k1, last=0.1)
        self.move = SharedMLP((inputs, hidden, SLOT_EMBEDDING), len(family.members), k2)

    def __call__(
        self, h: Float[Array, "members n"], slot_features: Float[Array, "members slots n"], mu: Array, moves: Array
    ) -> Outputs:
        """`mu`: (slots, SLOT_EMBEDDING). `moves`: (members,) `Statistics.moves`."""
        phi = self.move(h)
        logits = 4.0 * jax.vmap(self.local, 1, 1)(slot_features)[..., 0] + moves[:, None] * (phi @ mu.T)
        absent = jnp.zeros((len(h), int(self.family.optional)))
        return Outputs(phi, jnp.concatenate([logits, absent], axis=1), jnp.zeros((len(h), 0)))


def make_heads(layout: Layout, inputs: int, hidden: int, key: PRNGKeyArray) -> list[DenseHead | NodeSlotHead]:
    """A head for each family, of binary ones without slots several that vote; `inputs`: the width of node features."""

    def head(family: Family, key: PRNGKeyArray) -> DenseHead | NodeSlotHead:
        if family.slots:
            return NodeSlotHead(family, inputs, hidden, key)
        make = make_event_heads if family.type == "binary" else DenseHead
        return make(family, inputs, hidden, hidden // 2, key)

    return [head(f, k) for f, k in zip(layout.families, jax.random.split(key, len(layout.families)), strict=True)]


def make_support(layout: Layout, inputs: int, hidden: int, key: PRNGKeyArray) -> list[SharedMLP]:
    """For each of `Layout.events` a network that says whether a row is like the data (`objective.background`)."""
    sizes, families = (inputs, hidden // 2, hidden // 2, 1), [layout.families[n] for n in layout.events]
    keys = jax.random.split(key, len(families) + 1)
    return [SharedMLP(sizes, len(f.members), k, last=0.1) for f, k in zip(families, keys, strict=False)]


def log_odds_of_data(layout: Layout, support: Sequence[SharedMLP], h: Float[Array, "targets n"]) -> list[Array]:
    """For each of `Layout.events`, (members,): the log-odds that a row is from the data, by its nodes' features."""
    members = [np.array(layout.families[n].members) for n in layout.events]
    return [net(jax.lax.stop_gradient(h[m]))[:, 0] for net, m in zip(support, members, strict=True)]


def apply_heads(
    heads: Sequence[DenseHead | NodeSlotHead],
    families: Sequence[int] | None,
    stats: Statistics,
    embed: dict[str, Array],
    h: Float[Array, "targets n"],
    slot_features: Callable[[Family], Array],
) -> list[Outputs]:
    """The outputs of `families` (None: of all) from the features `h` of their nodes.

    `slot_features`: a family on slots -> (members, slots, n).
    """
    out = []
    for head in heads if families is None else [heads[n] for n in families]:
        family, members = head.family, np.array(head.family.members)
        if isinstance(head, NodeSlotHead):
            out.append(head(h[members], slot_features(family), embed[family.kind], stats.moves[members]))
        else:
            out.append(apply_event_heads(head, h[members]) if family.type == "binary" else head(h[members]))
    return out


def deviation(model: Any) -> Array:
    """The sum of squares of the deviations of single members in all shared networks of a model."""
    nets = jax.tree.leaves(model, is_leaf=is_shared)
    return sum((net.deviation() for net in nets if is_shared(net)), jnp.zeros(()))


def is_shared(node: Any) -> bool:
    return isinstance(node, SharedMLP)
