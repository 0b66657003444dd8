"""The bilinear model of the paper: T(s' | s, a) from the score phi(s, a)^T (M * C) mu(s').

phi has one block phi^(i) for each input factor, mu one block mu^(j) for each target. The core C holds a matrix C_ij for
each pair, and the mask multiplies the core, not the inputs:

    score_j(s'_j) = psi_j . mu^(j)(s'_j),    psi_j = b_j + sum_i M_ij phi^(i)(s, a)^T C_ij        (equation 3)

phi^(i)(s, a) is a network of the i-th element of z, and of the relations of factor i to others of its kind (their
differences, whether they meet in a slot), which are not gated. z = [s, a] + L [s, a] is a linear map of the raw
columns that starts at the identity, so that factors which the log has mixed can be separated; discrete columns are not
mixed. Were phi^(i) free to read all of (s, a), phi^(j) = E[mu^(j) | s, a] with M = 1 on the diagonal alone would
be a solution in every world, and the mask would say nothing.

A score is no probability: phi^T M mu may be negative, and does not sum to one over s'. So, by the type of factor j,

- discrete: T_j = softmax of the score over the candidates s'_j, or a logit for each column (mu(1) = 1, mu(0) = 0). A
  softmax also says what a sum of probabilities cannot: phi^(agent) of where and phi^(move) of whither add up to the
  score -|c - (x + step)|^2 of cell c, up to what does not depend on c.
- continuous: a Gaussian, T_j ~ exp(-|mu(s'_j) - psi_j|^2 / 2 sigma_j^2), the likelihood of the paper's appendix, with
  mu(s'_j) = (s'_j - s_j) / its deviation. A learned mu would shrink, as in equation 6.

With `gates` the mask acts as in `bilinear` instead: psi_j is made of the row that target j may see, for the core whole.

Factors on the same slots (cells of a grid) have one core for all slots: phi^(i) of slot c says whether factor i is in
it, and with which others. mu(c) is a constant, and the slot's embedding for a factor that was ever seen to move.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import ZOOM, Outputs, soft_clip, standardise
from because_rl.models.layout import Family, Layout
from because_rl.models.likelihood import split
from because_rl.models.nets import MLP, SharedMLP, normal, silu
from because_rl.models.prepared_data import Statistics

LEVELS = 16
"""Width of mu of a categorical factor without slots."""
SHARP = 10.0
"""Factor on the scores of slots, which have many candidates."""


def input_groups(layout: Layout) -> list[tuple[int, ...]]:
    """The inputs that share a network for phi: those of one kind, type and width, in the state or in the action."""
    groups: dict[tuple, list[int]] = {}
    for i, f in enumerate(layout.inputs):
        groups.setdefault((i < len(layout.factors.state), f.kind, f.type, f.width, f.period), []).append(i)
    return [tuple(members) for members in groups.values()]


def mixable(layout: Layout) -> np.ndarray:
    """(columns, columns) 1 where L may take the second column into the first: continuous columns of other factors."""
    real = np.array([layout.inputs[i].type == "continuous" for i in layout.factor_of_column])
    other = layout.factor_of_column[:, None] != layout.factor_of_column[None]
    return (real[:, None] & real[None] & other).astype(np.float32)


class ScoreModel(eqx.Module):
    layout: Layout = eqx.field(static=True)
    mix: Array
    """L, (columns, columns), of standardised columns"""
    embed: dict[str, Array]
    """kind -> mu of its slots"""
    levels: list[Array | None]
    """for each family of categorical targets without slots, mu of its levels"""
    nets: list[SharedMLP]
    """phi of each group of inputs"""
    core: list[Array]
    """for each family of targets, (members, inputs, phi, width of mu)"""
    bias: list[Array]
    local: list[Array | None]
    """for each family on slots, (members, inputs of its kind, features of a slot): the core that all slots share"""

    def __init__(self, layout: Layout, key: PRNGKeyArray, *, hidden: int = 128, phi: int = 32, places: int = 32):
        groups = input_groups(layout)
        keys = iter(jax.random.split(key, len(groups) + 2 * len(layout.families) + len(layout.slot_kinds)))
        self.layout, self.mix = layout, jnp.zeros((layout.size, layout.size))
        self.embed = {
            kind: normal(next(keys), (layout.inputs[factors[0]].width, places)) / places**0.5 * 2.0
            for kind, factors in layout.slot_kinds.items()
        }
        self.nets = []
        for members in groups:
            sizes = (_element_size(layout, members[0], places), hidden, hidden, phi)
            self.nets.append(SharedMLP(sizes, len(members), next(keys)))
        self.core, self.bias, self.levels, self.local = [], [], [], []
        for family in layout.families:
            width, count = score_width(family, places), len(family.members)
            self.core.append(normal(next(keys), (count, len(layout.inputs), phi, width)) * (0.3 / phi**0.5))
            self.bias.append(jnp.zeros((count, width)))
            table = family.type == "categorical" and not family.slots
            levels = normal(next(keys), (family.width + family.optional, LEVELS)) / LEVELS**0.5
            self.levels.append(levels if table else None)
            mates = len(layout.slot_kinds[family.kind]) if family.slots else 0
            self.local.append(jnp.zeros((count, mates, mates)) if family.slots else None)

    def phi(
        self, stats: Statistics, x: Float[Array, " columns"], gate: Float[Array, " columns"] | None = None
    ) -> Float[Array, "inputs phi"]:
        """phi(s, a), one block for each input factor, of one row x = [s, a]. `gate`: the share of a column it sees."""
        layout, gate = self.layout, jnp.ones(self.layout.size) if gate is None else gate
        standard, cosine = (part * gate for part in standardise(layout, stats, x))
        z = standard + (self.mix * mixable(layout)) @ standard
        blocks: dict[int, Array] = {}
        for members, net in zip(input_groups(layout), self.nets, strict=True):
            rows = jnp.stack([self._element(stats, x, z, cosine, gate, i) for i in members])
            for i, block in zip(members, silu(net(rows)), strict=True):
                blocks[i] = block
        return jnp.stack([blocks[i] for i in range(len(layout.inputs))])

    def _element(self, stats: Statistics, x: Array, z: Array, cosine: Array, gate: Array, i: int) -> Array:
        """What phi^(i) sees: element i, and how factor i lies to others of its kind."""
        layout, own = self.layout, self.layout.columns[i]
        parts, kind = [z[own]], _slot_kind(layout, i)
        if kind is not None:
            visible = x * gate
            meets = [(visible[own] * visible[layout.columns[k]]).sum() for k in layout.slot_kinds[kind] if k != i]
            parts = [visible[own] @ self.embed[kind], jnp.stack([visible[own].sum(), *meets])]
        if layout.inputs[i].period is not None:
            parts.append(cosine[own])
        start = 0
        for a, b in layout.pairs:
            width = layout.inputs[a].width
            if i in (a, b):
                away = x[layout.columns[b if i == a else a]] - x[own]
                away = away / stats.difference[start : start + width]
                open_pair = gate[layout.columns[a]] * gate[layout.columns[b]]
                parts += [away * open_pair, jnp.arcsinh(ZOOM * away) * open_pair / 3.0]
            start += width
        return jnp.concatenate(parts)

    def __call__(
        self,
        stats: Statistics,
        mask: Float[Array, "inputs targets"],
        x: Float[Array, " columns"],
        gates: Float[Array, "targets columns"] | None = None,
    ) -> list[Outputs]:
        """The scores of all candidates by family, for one row; `Outputs.phi` is psi.

        `mask` multiplies the core; `gates`: how much of each column the features of each target see, None: all.
        """
        layout, out = self.layout, []
        phi = self.phi(stats, x) if gates is None else None
        parts = zip(layout.families, self.core, self.bias, self.levels, self.local, strict=True)
        for family, core, bias, levels, local in parts:
            gate, slot_core = mask[:, np.array(family.members)], local
            core = core * _in_one_slot(layout, family, core)
            if gates is None:
                psi = bias + jnp.einsum("im,ip,mipq->mq", gate, phi, core)
            else:
                own_gates = gates[np.array(family.members)]
                own_phi = jax.vmap(lambda row_gate: self.phi(stats, x, row_gate))(own_gates)
                psi = bias + jnp.einsum("im,mip,mipq->mq", gate, own_phi, core)
                slot_core = None if local is None else local * _slot_gates(layout, family, own_gates)
            spread = jnp.zeros((len(family.members), 0))
            if family.is_continuous:
                value, spread = jnp.split(psi, 2, axis=1)
                spread = soft_clip(spread)
            elif slot_core is not None:
                value = self._slots(family, stats, gate, psi, slot_core, x)
            elif levels is not None:
                value = psi @ levels.T
            else:
                value = psi[:, None]  # one network of events
            out.append(Outputs(psi, value, spread))
        return out

    def _slots(self, family: Family, stats: Statistics, gate: Array, psi: Array, local: Array, x: Array) -> Array:
        """The scores of all slots (and of none), of the members of a family."""
        mates, embed = self.layout.slot_kinds[family.kind], self.embed[family.kind]
        slots = jnp.stack([x[self.layout.columns[i]] for i in mates])  # (mates, slots)
        # phi^(i) in a slot: whether factor i is there, and whether it is there together with each other one.
        together = slots[:, None] * jnp.where(jnp.eye(len(mates))[:, :, None] > 0, 1.0, slots[None])
        moves = stats.moves[np.array(family.members)][:, None]
        value = SHARP * (moves * (psi[:, 1:] @ embed.T) + psi[:, :1])
        value += SHARP * jnp.einsum("im,mik,iks->ms", gate[np.array(mates)], local, together)
        if family.optional:
            value = jnp.concatenate([value, jnp.zeros((len(family.members), 1))], axis=1)
        return value

    def mu(self, stats: Statistics, state: Float[Array, " state"]) -> list[Array]:
        """mu(s') by family, (members, width), of one next state; discrete factors may be probabilities."""
        standard, cosine = standardise(self.layout, stats, state)
        out = []
        for family, levels in zip(self.layout.families, self.levels, strict=True):
            part = split(self.layout, family, state)
            if family.is_continuous:
                columns = self.layout.family_columns(family)
                part = jnp.hstack([standard[columns], *([cosine[columns]] if family.period is not None else [])])
            elif family.slots:
                part = jnp.hstack([part @ self.embed[family.kind], part.sum(1, keepdims=True)])
            elif levels is not None:
                part = part @ levels[: family.width]
            out.append(part)
        return out

    def norms(self) -> tuple[Array, Array]:
        """Squared Frobenius norms of phi and mu, which bound the squared spectral norms."""
        layers = [m for m in jax.tree.leaves(self.nets, is_leaf=lambda m: isinstance(m, MLP)) if isinstance(m, MLP)]
        phi = sum(((w**2).sum() for net in layers for w in net.weights), (self.mix**2).sum())
        mu = [*self.embed.values(), *(table for table in self.levels if table is not None)]
        return phi, sum(((table**2).sum() for table in mu), jnp.zeros(()))


def _slot_kind(layout: Layout, i: int) -> str | None:
    return next((kind for kind, members in layout.slot_kinds.items() if i in members), None)


def _element_size(layout: Layout, i: int, places: int) -> int:
    kind, factor = _slot_kind(layout, i), layout.inputs[i]
    size = factor.width if kind is None else places + len(layout.slot_kinds[kind])
    size += factor.width * (factor.period is not None)
    return size + sum(2 * factor.width for pair in layout.pairs if i in pair)


def _in_one_slot(layout: Layout, family: Family, core: Array) -> np.ndarray:
    """(1, inputs, 1, width of mu) 0 where phi of a whole factor on slots would count in every slot of a target."""
    out = np.ones((1, core.shape[1], 1, core.shape[3]), np.float32)
    if family.slots:
        out[:, list(layout.slot_kinds[family.kind]), :, 0] = 0
    return out


def _slot_gates(layout: Layout, family: Family, gates: Float[Array, "members columns"]) -> Array:
    """(members, mates, mates): how much of a mate in a slot, or of its meeting with another one, each member sees."""
    mates = gates[:, np.array([layout.columns[i].start for i in layout.slot_kinds[family.kind]])]
    alone = jnp.eye(mates.shape[1])[None] > 0
    return mates[:, :, None] * jnp.where(alone, 1.0, mates[:, None])


def score_width(family: Family, places: int) -> int:
    """Width of psi and mu of each member."""
    if family.is_continuous:
        return 2 * family.width  # means and spreads
    if family.slots:
        return 1 + places
    return LEVELS if family.type == "categorical" else family.width
