"""The causal world model: features phi_j(s, a) that see the parents of target j only, and a readout of s'_j from them.

For each target j the row x = [s, a] is gated by the edge weights M-bar before anything else touches it, so a
non-parent has no path to the target: d next_j / d x_i is exactly 0 where M_ij = 0. Then one network per family
(`layout`) makes phi_j. Predictions are a readout of phi_j by the likelihood of the factor's type:

- continuous: a Gaussian around s_j plus a decoded change;
- categorical: a softmax over levels, whose logits are inner products with mu(level);
- binary: a logit per column, from several networks of which planning takes the least likely event.

Purely additive features cannot say 'moves by (dx, dy) from here', so phi_j mixes its parents. And the paper's
equation 6, |mu(s') K_mu^-1 - C^T phi(s, a)|^2, collapses as it stands: everything shrinks, or mu grows without
bound. Here the likelihood holds phi, and mu is whitened (mean 0, covariance 1), so that K_mu is the identity and
mu can neither shrink nor grow. The bilinear form phi^T C mu of the paper is not what predicts: C^T phi(s, a) is fitted
to mu(s') beside the likelihood (`objective`), and the energy model reads it as the expected mu (`energy.predict_mu`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.layout import Family, Layout
from because_rl.models.nets import MLP, SharedMLP, normal, silu
from because_rl.models.prepared_data import Statistics
from because_rl.models.whitening import Whitening, whitenings

EVENT_NETWORKS = 4
"""Networks that vote on an event."""
ZOOM = 10.0
"""Differences are also seen through asinh(ZOOM d): what matters of a distance is often whether it is small."""


class Gates(NamedTuple):
    """The mask as networks use it: what each column of a row is multiplied by, for each target."""

    weight: Float[Array, "targets columns"]
    """in [0, 1]"""
    order: Array
    """(targets, columns): the relabelling of `Layout.relabelling`"""


def make_gates(layout: Layout, weights: np.ndarray) -> Gates:
    """Gates from the mask M-bar, (inputs, targets) in [0, 1]: 1 for an edge that at least half of the batches keep,
    twice the weight for a weaker one, 0 for an edge that none keeps.

    A batch has fewer rows than the data and misses some edges for that alone. And a gate of .5 on each of two factors
    whose product matters would leave a quarter of the product.
    """
    gates = np.minimum(1.0, 2.0 * layout.gates(weights))
    return Gates(jnp.asarray(gates), jnp.asarray(layout.relabelling(weights)))


class Outputs(NamedTuple):
    """What the model says of one family, for one row."""

    phi: Float[Array, "members p"]
    value: Array
    """continuous: (members, width) changes in units of their spread; else logits (members[, events], width)"""
    spread: Array
    """continuous: (members, width) log standard deviation in the same units; else empty"""


class Views(NamedTuple):
    """Views of a row, standardised and gated; with a leading axis of targets, or of one target."""

    plain: Array
    """the columns that are on no slots"""
    difference: Array
    """differences of factors of one kind, in units of their spread and not gated"""
    pair_gate: Array
    """product of the gates of the two factors of each difference"""
    gated: Array
    """all columns"""


def views(layout: Layout, stats: Statistics, gates: Gates, x: Float[Array, " columns"]) -> Views:
    """What each target may see of a row x = [s, a].

    Columns are picked by matrix products: gathering them takes a CPU several times as long.
    """
    weight = jnp.take_along_axis(gates.weight, gates.order, axis=1)
    pick = jax.nn.one_hot(gates.order, layout.size)  # (targets, columns, columns)
    plain, (first, second) = layout.plain_columns, layout.pair_columns
    standard, cosine = standardise(layout, stats, x)
    out = Views(
        _product(standard, pick[:, plain] * weight[:, plain, None]),
        _product(x, pick[:, first] - pick[:, second]) / stats.difference[None],
        weight[:, first] * weight[:, second],
        standard[gates.order] * weight,
    )
    if not len(layout.angle_columns):
        return out
    more = _product(cosine, (pick * weight[:, :, None])[:, layout.angle_columns])
    return out._replace(plain=jnp.hstack([out.plain, more]), gated=jnp.hstack([out.gated, more]))


def standardise(layout: Layout, stats: Statistics, x: Float[Array, " columns"]) -> tuple[Array, Array]:
    """The columns of a row, or the first of them: standardised, those of angles as sines; and the cosines of angles.

    Both have the shape of `x`; cosines are 0 where there is no angle.
    """
    size = len(x)
    standard = (x - stats.mean[:size]) / stats.scale[:size]
    turns = layout.turns[:size]
    if not turns.any():
        return standard, jnp.zeros(size)
    angle, is_angle = x * (2 * np.pi / np.where(turns > 0, turns, 1.0)), turns > 0
    root = 2.0**0.5  # for a variance of 1 where angles are spread evenly
    return jnp.where(is_angle, root * jnp.sin(angle), standard), jnp.where(is_angle, root * jnp.cos(angle), 0.0)


def _product(x: Float[Array, " columns"], maps: Float[Array, "targets n columns"]) -> Float[Array, "targets n"]:
    targets, n, columns = maps.shape
    return jnp.dot(x, maps.reshape(targets * n, columns).T, precision="highest").reshape(targets, n)


def dense(layout: Layout, view: Views, embed: dict[str, Array]) -> Array:
    """The features of one target's view that do not depend on a slot: columns, differences, meetings, places."""
    gated = view.gated
    parts = [view.plain, view.difference * view.pair_gate, jnp.arcsinh(ZOOM * view.difference) * view.pair_gate / 3.0]
    for i, k in layout.meetings:
        parts.append((gated[layout.columns[i]] * gated[layout.columns[k]]).sum(keepdims=True))
    for kind, members in layout.slot_kinds.items():
        for j in members:
            here = gated[layout.columns[j]]
            parts += [here.sum(keepdims=True), here @ embed[kind]]
    return jnp.concatenate(parts)


def take_rows(rows: Array, members: tuple[int, ...]) -> Array:
    """Rows by their numbers; a slice where they are neighbours, since gathering is slow on a GPU."""
    first, last = members[0], members[-1]
    return rows[first : last + 1] if members == tuple(range(first, last + 1)) else rows[np.array(members)]


def dense_size(layout: Layout, width: int) -> int:
    pairs = 2 * sum(layout.inputs[i].width for i, _ in layout.pairs)
    places = sum((1 + width) * len(members) for members in layout.slot_kinds.values())
    return len(layout.context_columns) + pairs + len(layout.meetings) + places


class DenseHead(eqx.Module):
    """A family without slots."""

    family: Family = eqx.field(static=True)
    trunk: SharedMLP
    read: SharedMLP

    def __init__(self, family: Family, inputs: int, hidden: int, phi: int, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.family = family
        out = family.width * (2 if family.is_continuous else 1) + family.optional
        self.trunk = SharedMLP((inputs, hidden, hidden, phi), len(family.members), k1)
        self.read = SharedMLP((phi, out), len(family.members), k2, last=0.1)

    def __call__(self, features: Float[Array, "members n"]) -> Outputs:
        phi = silu(self.trunk(features))
        out = self.read(phi)
        if self.family.is_continuous:
            value, spread = jnp.split(out, 2, axis=1)
            return Outputs(phi, value, soft_clip(spread))
        return Outputs(phi, out, jnp.zeros((len(self.family.members), 0)))


def make_event_heads(
    family: Family, inputs: int, hidden: int, phi: int, key: PRNGKeyArray, networks: int = EVENT_NETWORKS
) -> DenseHead:
    """Several networks for a binary family without slots, on a leading axis; half as wide as one alone would be."""
    width = hidden if networks == 1 else hidden // 2
    return jax.vmap(lambda k: DenseHead(family, inputs, width, phi, k))(jax.random.split(key, networks))


def apply_event_heads(heads: DenseHead, features: Float[Array, "members n"]) -> Outputs:
    """The logits of all networks, (members, networks, width)."""
    phi, value, spread = jax.vmap(lambda head: head(features))(heads)
    return Outputs(phi.mean(0), jnp.moveaxis(value, 0, 1), spread[0])


def soft_clip(log_std: Array) -> Array:
    """Smoothly into [-6, 1]."""
    return 1.0 - jax.nn.softplus(1.0 - (-6.0 + jax.nn.softplus(log_std + 6.0)))


class SlotHead(eqx.Module):
    """A family on slots: logit_c = local(what is in slot c, context) + mu_c . phi(own place, context).

    The first part is the same function in every slot, so what is learned in one cell holds in all. The second
    lets a thing move to other slots, and is there only for factors that were ever seen to: places are where
    confounders hide.
    """

    family: Family = eqx.field(static=True)
    mates: tuple[int, ...] = eqx.field(static=True)
    slot: Array
    context: MLP
    local: MLP
    move: MLP

    def __init__(self, family: Family, mates: tuple[int, ...], plain: int, places: int, hidden: int, key: PRNGKeyArray):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.family, self.mates = family, mates
        members, small = len(family.members), hidden // 2
        self.slot = normal(k1, (small, len(mates)))
        self.context = MLP((plain + members, small), k2)  # once a row, not once a slot
        self.local = MLP((small, small, 1), k3, last=0.1)
        self.move = MLP((places + plain + members, hidden, hidden, places), k4)

    def __call__(
        self, layout: Layout, stats: Statistics, gates: Gates, x: Float[Array, " columns"], view: Views, embed: Array
    ) -> Outputs:
        """`x` is one row, `view` what each target may see of it."""
        slots = jnp.stack([x[layout.columns[i]] for i in self.mates], axis=1)
        first = np.array([layout.columns[i].start for i in self.mates])

        def member(j: int, who: Array) -> tuple[Array, Array]:
            row, gate = view.gated[j], gates.weight[j, first]
            context = jnp.concatenate([row[layout.context_columns], who])
            shift = self.context(context)
            local = over_slots(lambda slot: self.local(silu((slot * gate) @ self.slot.T + shift))[0], slots)
            phi = self.move(jnp.concatenate([row[layout.columns[j]] @ embed, context]))
            return phi, 4.0 * local + stats.moves[j] * (phi @ embed.T)

        eye = jnp.eye(len(self.family.members))
        each = [member(j, eye[n]) for n, j in enumerate(self.family.members)]  # each its own columns
        phi, logits = (jnp.stack(parts) for parts in zip(*each, strict=True))
        if self.family.optional:
            logits = jnp.concatenate([logits, jnp.zeros((len(self.family.members), 1))], axis=1)
        return Outputs(phi, logits, jnp.zeros((len(self.family.members), 0)))


def over_slots(f: Callable[[Array], Array], slots: Float[Array, "slots mates"]) -> Float[Array, " slots"]:
    """f of each slot, whose row says which of its mates are in it.

    There are 2^mates things that a slot can hold. Where that is less than there are slots, f is evaluated for each of
    them, and each slot takes the value of what it holds; the mean, where a row holds probabilities.
    """
    count, mates = slots.shape
    if 2**mates >= count:
        return jax.vmap(f)(slots)
    held = jnp.asarray(list(product((0.0, 1.0), repeat=mates)))
    share = jnp.where(held[None] > 0, slots[:, None], 1.0 - slots[:, None]).prod(2)
    return jnp.dot(share, jax.vmap(f)(held), precision="highest")


class BilinearModel(eqx.Module):
    """All families. Call it on one row [s, a]; use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    embed: dict[str, Array]
    """kind -> (slots, places): E, which is also mu of a slot"""
    heads: list[DenseHead | SlotHead]
    """binary families without slots have a leading axis of `events` networks, half as wide where there are several"""
    mu: list[SharedMLP]
    core: list[Array]
    support: list[SharedMLP]
    """for each of `Layout.events`: is a row like the data?"""
    events: int = eqx.field(static=True)
    places: int = eqx.field(static=True)

    def __init__(
        self,
        layout: Layout,
        key: PRNGKeyArray,
        *,
        hidden: int = 128,
        phi: int = 64,
        places: int = 32,
        events: int = EVENT_NETWORKS,
    ):
        keys = iter(jax.random.split(key, 4 * len(layout.families) + len(layout.slot_kinds)))
        self.layout, self.events, self.places = layout, events, places
        self.embed = {
            kind: normal(next(keys), (layout.inputs[factors[0]].width, places)) / places**0.5 * 2.0
            for kind, factors in layout.slot_kinds.items()
        }
        inputs, plain = dense_size(layout, places), len(layout.context_columns)
        event_hidden = hidden if events == 1 else hidden // 2  # of networks that vote
        self.heads, self.mu, self.core, self.support = [], [], [], []
        for n, family in enumerate(layout.families):
            if family.slots:
                mates = layout.slot_kinds[family.kind]
                self.heads.append(SlotHead(family, mates, plain, places, hidden, next(keys)))
            elif family.type == "binary":
                self.heads.append(make_event_heads(family, inputs, hidden, phi, next(keys), events))
            else:
                self.heads.append(DenseHead(family, inputs, hidden, phi, next(keys)))
            if n in layout.events:
                sizes, support_key = (inputs, event_hidden, event_hidden, 1), jax.random.fold_in(key, n)
                self.support.append(SharedMLP(sizes, len(family.members), support_key, last=0.1))
            width = mu_width(family)
            columns = family.width * (1 if family.period is None else 2)  # sines and cosines of angles
            self.mu.append(SharedMLP((columns, 64, width), len(family.members), next(keys)))
            self.core.append(normal(next(keys), (places if family.slots else phi, width)) / 8.0)

    def __call__(
        self, stats: Statistics, gates: Gates, x: Float[Array, " columns"], families: tuple[int, ...] | None = None
    ) -> list[Outputs]:
        """The outputs of all families, or of those asked for."""
        layout = self.layout
        all_views = views(layout, stats, gates, x)
        out = []
        for n in range(len(layout.families)) if families is None else families:
            family, head = layout.families[n], self.heads[n]
            if isinstance(head, SlotHead):
                out.append(head(layout, stats, gates, x, all_views, self.embed[family.kind]))
                continue
            features = self.features(all_views, n)
            out.append(apply_event_heads(head, features) if family.type == "binary" else head(features))
        return out

    def features(self, all_views: Views, family: int) -> Float[Array, "members n"]:
        """The dense features of a family's members, from the `views` of all targets."""
        members = self.layout.families[family].members
        family_views = Views(*(take_rows(part, members) for part in all_views))
        return jax.vmap(lambda view: dense(self.layout, view, self.embed))(family_views)

    def penalised(self) -> list[Any]:
        """What training keeps small by its norm.

        Not the networks of events: a boundary is sharp only where weights are large, and of a rare event the gain in
        likelihood is smaller than the cost of such weights.
        """
        return [h for h, f in zip(self.heads, self.layout.families, strict=True) if f.type != "binary" or f.slots]

    def log_odds_of_data(self, stats: Statistics, gates: Gates, x: Float[Array, " columns"]) -> list[Array]:
        """For each of `Layout.events`, (members,): the log-odds that the row is from the data and not one of
        `objective.unlogged_rows`, by what the members may see of it."""
        all_views = views(self.layout, stats, gates, x)
        events = zip(self.layout.events, self.support, strict=True)
        return [net(jax.lax.stop_gradient(self.features(all_views, n)))[:, 0] for n, net in events]

    def represent(self, stats: Statistics, state: Float[Array, " state"]) -> list[Array]:
        """mu of each family's members before whitening, (members, width), for one next state."""
        standard, cosine = standardise(self.layout, stats, state)
        out = []
        for family, mu in zip(self.layout.families, self.mu, strict=True):
            columns = self.layout.family_columns(family)
            row = standard[columns]
            out.append(mu(row if family.period is None else jnp.hstack([row, cosine[columns]])))
        return out


def whiten_mu(worlds: BilinearModel, stats: Statistics, states: Float[Array, "rows state"]) -> list[Whitening]:
    """For each family the whitening of mu over (at most 4,000 of) the states; `worlds` has a leading axis of seeds."""
    rows = states[:: whitening_stride(len(states))]
    return jax.jit(jax.vmap(lambda model: whitenings(jax.vmap(partial(model.represent, stats))(rows))))(worlds)


def whitening_stride(rows: int) -> int:
    """Every how many rows `whiten_mu` takes one."""
    return max(1, rows // 4000)


def mu_width(family: Family) -> int:
    """As many features as a factor can fill beside the constant: with two levels one."""
    if family.is_continuous:
        return min(2 * family.width, 16)
    return min(family.width - (family.type == "categorical" and not family.optional), 16)
