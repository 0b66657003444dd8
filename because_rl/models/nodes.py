"""Factors as nodes, for models that treat every factor alike: encoded by kind, related pair by pair, read by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import ZOOM, DenseHead, Outputs
from because_rl.models.layout import Family, Layout
from because_rl.models.nets import SharedMLP, normal
from because_rl.models.prepared_data import Statistics

PLACES = 32
"""Width of a slot's embedding."""


def groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The inputs that look alike."""
    found: dict[tuple, list[int]] = {}
    for i, f in enumerate(layout.inputs):
        found.setdefault((i < len(layout.factors.state), f.kind, f.type, f.width, f.optional), []).append(i)
    return tuple(tuple(members) for members in found.values())


def relations(layout: Layout) -> np.ndarray:
    """(inputs, inputs) the relation from one to the other: their groups, and whether they are the same."""
    group = np.zeros(len(layout.inputs), int)
    for n, members in enumerate(groups(layout)):
        group[list(members)] = n
    pair = 2 * (group[:, None] * len(group) + group[None]) + np.eye(len(group), dtype=int)
    return np.unique(pair, return_inverse=True)[1].reshape(pair.shape)


class Encoder(eqx.Module):
    """Factors as vectors: one network for each group, and an embedding for the slots of each kind."""

    layout: Layout = eqx.field(static=True)
    embed: dict[str, Array]
    nets: list[SharedMLP]

    def __init__(self, layout: Layout, sizes: Sequence[int], key: PRNGKeyArray):
        """`sizes`: of the networks' layers after the first."""
        self.layout, kinds = layout, layout.slot_kinds
        keys = iter(jax.random.split(key, len(kinds) + len(layout.inputs)))
        self.embed = {
            kind: normal(next(keys), (layout.inputs[of[0]].width, PLACES)) / PLACES**0.5 * 2.0
            for kind, of in kinds.items()
        }
        self.nets = [
            SharedMLP(
                (layout.inputs[of[0]].width if of[0] in layout.plain else 1 + PLACES, *sizes), len(of), next(keys)
            )
            for of in groups(layout)
        ]

    def __call__(self, stats: Statistics, x: Float[Array, " columns"]) -> Float[Array, "inputs n"]:
        standard = (x - stats.mean) / stats.scale
        parts = [standard[columns] for columns in self.layout.columns]
        for kind, of in self.layout.slot_kinds.items():
            for i in of:
                parts[i] = jnp.concatenate([parts[i].sum(keepdims=True), parts[i] @ self.embed[kind]])
        members = groups(self.layout)
        made = [net(jnp.stack([parts[i] for i in of])) for net, of in zip(self.nets, members, strict=True)]
        return jnp.concatenate(made)[np.argsort(np.concatenate(members))]


class Pairs(NamedTuple):
    """How state factors of one kind lie to each other."""

    first: np.ndarray
    second: np.ndarray
    features: Float[Array, "pairs n"]
    back: float
    """times the features: how the second lies to the first"""


def pairs(layout: Layout, stats: Statistics, x: Float[Array, " columns"]) -> list[Pairs]:
    """By kind: the differences of continuous factors, and whether factors on the same slots meet."""
    found: dict[tuple[str, int], list[tuple[int, int, Array]]] = {}
    start = 0
    for i, k in layout.pairs:
        width = layout.inputs[i].width
        apart = (x[layout.columns[i]] - x[layout.columns[k]]) / stats.difference[start : start + width]
        features = jnp.concatenate([apart, jnp.arcsinh(ZOOM * apart) / 3.0])
        found.setdefault((layout.inputs[i].kind, width), []).append((i, k, features))
        start += width
    for i, k in layout.meetings:
        meet = (x[layout.columns[i]] * x[layout.columns[k]]).sum(keepdims=True)
        found.setdefault((layout.inputs[i].kind, 0), []).append((i, k, meet))
    out = []
    for (_, width), of in found.items():
        first, second, told = zip(*of, strict=True)
        out.append(Pairs(np.array(first), np.array(second), jnp.stack(told), -1.0 if width else 1.0))
    return out


# What comes next -------------------------------------------------------------------------------------------
class SlotReader(eqx.Module):
    """A family on slots: logit_c = local(what is known of slot c) + mu_c . move(what is known of the factor)."""

    family: Family = eqx.field(static=True)
    local: SharedMLP
    move: SharedMLP

    def __init__(self, family: Family, inputs: int, hidden: int, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.family = family
        self.local = SharedMLP((inputs, hidden // 2, 1), len(family.members), k1, last=0.1)
        self.move = SharedMLP((inputs, hidden, PLACES), len(family.members), k2)

    def __call__(self, h: Float[Array, "members n"], there: Float[Array, "members slots n"], mu: Array, moves: Array):
        phi = self.move(h)
        logits = 4.0 * jax.vmap(self.local, 1, 1)(there)[..., 0] + moves[:, None] * (phi @ mu.T)
        absent = jnp.zeros((len(h), int(self.family.optional)))
        return Outputs(phi, jnp.concatenate([logits, absent], axis=1), jnp.zeros((len(h), 0)))


def readers(layout: Layout, inputs: int, hidden: int, key: PRNGKeyArray) -> list[DenseHead | SlotReader]:
    keys = jax.random.split(key, len(layout.families))
    return [
        SlotReader(f, inputs, hidden, k) if f.slots else DenseHead(f, inputs, hidden, hidden // 2, k)
        for f, k in zip(layout.families, keys, strict=True)
    ]


def read(
    heads: Sequence[DenseHead | SlotReader],
    wanted: Sequence[int] | None,
    stats: Statistics,
    embed: dict[str, Array],
    h: Float[Array, "targets n"],
    there: Callable[[Family], Array],
) -> list[Outputs]:
    """The outputs of all families, or of those wanted; `there`: of each member and slot what is known."""
    out = []
    for head in heads if wanted is None else [heads[n] for n in wanted]:
        family, who = head.family, np.array(head.family.members)
        if isinstance(head, SlotReader):
            out.append(head(h[who], there(family), embed[family.kind], stats.moves[who]))
        else:
            found = head(h[who])
            out.append(found._replace(value=found.value[:, None]) if family.type == "binary" else found)
    return out


def predict(
    layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    """Of a model of nodes without doubts of its own."""
    return p["world"](stats, p.get("mask"), jnp.concatenate([state, action])), jnp.zeros(())


def deviation(model: Any) -> Array:
    """The sum of squares of all that sets members of a group apart."""
    nets = jax.tree.leaves(model, is_leaf=is_shared)
    return sum((net.deviation() for net in nets if is_shared(net)), jnp.zeros(()))


def is_shared(node: Any) -> bool:
    return isinstance(node, SharedMLP)
