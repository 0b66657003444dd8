"""Latent blocks, for models that tell apart what actions move, what is rewarded, and the rest.

A block b has a latent like the state: as many columns, in the units of its usual change (a discrete column's own unit).
States here are named factors that everybody sees, not pixels, so encoder and decoder go factor by factor. A factor j
lies in one block, c_j, and what is to be found is in which:

    c_j ~ w_j,    q(z_bj | s) = N(s_j, noise_bj^2) if b = c_j, else nothing,    p(s_j | z) = N(sum_b z_bj, precision^2)

with shares w_j that sum to 1. What a block is comes from what its prior may see,

    p(z'_bj | z, a) = N(m_bj, noise_bj^2 + v_bj),    m, v of z in the blocks it sees, of z_bj, and of a or not

by the network and with the likelihoods that all models here have, whose inputs are shut where they are not seen. A
discrete factor has the mean and variance of its law. So the evidence bound, and what planners will ask of the priors,

    reconstruction_bj = noise_bj^2 / (2 precision^2)
    KL_bj = log(1 + v / noise^2) / 2 + (noise^2 + (s'_j - m_bj)^2) / (2 (noise^2 + v)) - 1/2
    surprise_bj = -log p_b(s'_j | s, a)

are known for each block that a factor could lie in, and cost what w_j makes of them; the first state of an episode,
which nothing foretells, has log(1 + Var(s_j) / noise^2) / 2 for a KL. Where the *others* lie is drawn, row by row, with
the gradient of w (straight-through), so no network can make up for a small share. Planners take the likeliest blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates, Outputs, make_gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import negative_log_likelihood, per_target, split
from because_rl.models.nets import normal, uniform
from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import Batch, Stage

HALF = 0.5
WAIT = 0.2
"""Shares stand still for this part of the steps, until the networks have something to say."""


class Blocks(eqx.Module):
    """Call it on one row [s, a], as `BilinearModel`; use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    sees: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    """(blocks, blocks) 1 where the prior of the first sees the second"""
    driven: tuple[float, ...] = eqx.field(static=True)
    """1 for blocks whose prior sees the action"""
    networks: BilinearModel
    """with a leading axis of blocks"""
    shares: Float[Array, "blocks factors"]
    """log w, up to a constant"""
    noise: Float[Array, "blocks factors"]
    """its logarithm"""

    def __init__(
        self,
        layout: Layout,
        key: PRNGKeyArray,
        hidden: int,
        sees: Sequence[Sequence[int]],
        driven: Sequence[int],
        noise: float,
    ):
        keys, shape = jax.random.split(key, len(driven)), (len(driven), len(layout.factors.state))
        self.layout, self.driven = layout, tuple(map(float, driven))
        self.sees = tuple(tuple(map(float, row)) for row in sees)
        self.networks = jax.vmap(lambda k: BilinearModel(layout, k, hidden=hidden))(keys)
        self.shares, self.noise = jnp.zeros(shape), jnp.full(shape, float(np.log(noise)))

    def each(
        self, stats: Statistics, place: Float[Array, "blocks factors"], x: Array, families: tuple[int, ...] | None
    ) -> list[Outputs]:
        """What every block foretells of all factors; arrays have a leading axis of blocks. `place`: 1 in each c_j."""
        layout, targets = self.layout, len(self.layout.factors.state)
        plain = make_gates(layout, np.ones((len(layout.inputs), targets), np.float32))
        seen = jnp.asarray(self.sees) @ place
        push = jnp.broadcast_to(jnp.asarray(self.driven)[:, None], (len(seen), len(layout.inputs) - targets))
        inputs = jnp.concatenate([seen, push], axis=1)
        itself = jnp.eye(targets, len(layout.inputs))

        def one(network: BilinearModel, inputs: Array) -> list[Outputs]:
            gates = jnp.maximum(inputs[None], itself)[:, layout.factor_of_column]
            return network(stats, Gates(gates, plain.order), x, families)

        return jax.vmap(one)(self.networks, inputs)

    def __call__(
        self, stats: Statistics, mask: None, x: Float[Array, " columns"], families: tuple[int, ...] | None = None
    ) -> list[Outputs]:
        """What the likeliest block of each factor foretells of it; there is no `mask`."""
        place = jax.nn.one_hot(self.shares.argmax(0), len(self.driven), axis=0)
        wanted = range(len(self.layout.families)) if families is None else families
        out = []
        for n, told in zip(wanted, self.each(stats, place, x, families), strict=True):
            mine = place[:, np.array(self.layout.families[n].members)]
            out.append(jax.tree.map(lambda a, mine=mine: jnp.einsum("bm,bm...->m...", mine, a), told))
        return out


def share(model: Blocks) -> Float[Array, "blocks factors"]:
    """w"""
    return jax.nn.softmax(model.shares, axis=0)


def places(model: Blocks, rows: int, key: PRNGKeyArray, power: float = 1.0) -> Float[Array, "rows blocks factors"]:
    """Draws of c: 1 in the block where a factor lies, with the gradient of w; a higher `power` of w: rather in the
    likeliest."""
    w, some = share(model), uniform(key, (rows, 1, model.shares.shape[1]))
    odds = jax.nn.softmax(power * model.shares, axis=0)
    above = jnp.cumsum(odds, axis=0)[None]
    hard = ((some < above) & (some >= above - odds[None])).astype(w.dtype)
    return jax.lax.stop_gradient(hard - w[None]) + w[None]


class Bound(NamedTuple):
    """Means over a batch."""

    nll: Float[Array, ""]
    """moves the networks"""
    surprise: Float[Array, ""]
    """the same, as a function of the shares"""
    reconstruction: Float[Array, ""]
    kl: Float[Array, " blocks"]


def bound(stats: Statistics, model: Blocks, place: Array, batch: Batch, precision: float) -> Bound:
    still, layout, w, noise = jax.lax.stop_gradient, model.layout, share(model), jnp.exp(2 * model.noise)

    def row(place: Array, state: Array, action: Array, after: Array) -> tuple[Array, Array, Array]:
        def block(outputs: list[Outputs], noise: Array) -> tuple[Array, Array, Array]:
            told = negative_log_likelihood(layout, stats, outputs, state, after)
            fair, kl = [], []
            missed, variance = moments(layout, stats, still(outputs), state, after)
            for family, off, v in zip(layout.families, missed, variance, strict=True):
                who = np.array(family.members)
                n = noise[who][:, None]
                kl.append(HALF * (jnp.log1p(v / n) + (n + off**2) / (n + v) - 1.0).sum(1))
                # The likelihood that networks learn from weighs rows by their spread, and so is no judge of blocks;
                # nor is one who foretells more exactly than the decoder can tell a better judge.
                wide = v + precision**2
                gauss = HALF * (off**2 / wide + jnp.log(wide)).sum(1)
                fair.append(gauss if family.type == "continuous" else still(told)[who])
            return told, per_target(layout, fair), per_target(layout, kl)

        return jax.vmap(block)(model.each(stats, place, jnp.concatenate([state, action]), None), noise)

    rows = jax.vmap(row)(place, batch["state"], batch["action"], batch["next_state"])
    told, fair, kl = (a.mean(0) for a in rows)
    widths = jnp.asarray([f.width for f in layout.factors.state], jnp.float32)[None]
    spread = (units(layout, stats, batch["state"] - batch["state"].mean(0)[None]) ** 2).mean(0)
    of = layout.factor_of_column[: len(spread)]
    begin = (w[:, of] * HALF * jnp.log1p(spread[None] / noise[:, of])).sum(1)
    return Bound(
        (still(w) * told).sum(),
        (w * fair).sum(),
        (w * noise * widths).sum() / (2 * precision**2),
        (w * kl).sum(1) + (batch["step"] == 0).mean() * begin,
    )


def units(layout: Layout, stats: Statistics, rows: Float[Array, "rows state"]) -> Array:
    """Differences of states in units of the usual change; those of discrete columns as they are."""
    continuous = np.array([layout.inputs[i].type == "continuous" for i in layout.factor_of_column[: rows.shape[1]]])
    return rows / jnp.where(continuous, stats.change, 1.0)[None]


def moments(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, after: Array
) -> tuple[list[Array], list[Array]]:
    """By family, (members, width): how far s' is from what is expected, and the variance that is expected."""
    missed, variance = [], []
    for family, out in zip(layout.families, outputs, strict=True):
        then = split(layout, family, after)
        if family.type == "continuous":
            change = (then - split(layout, family, state)) / split(layout, family, stats.change)
            missed.append(change - out.value)
            variance.append(jnp.exp(2 * out.spread))
            continue
        if family.type == "categorical":
            chance = jax.nn.softmax(out.value, axis=1)[:, : family.width]
        else:
            chance = jax.nn.sigmoid(out.value.mean(1) if out.value.ndim == 3 else out.value)
        missed.append(then - chance)
        variance.append(chance * (1.0 - chance))
    return missed, variance


def draw(stats: Statistics, model: Blocks, place: Array, states: Array, key: PRNGKeyArray) -> Array:
    """(blocks, rows, state) latents of some states, in the units that networks see."""
    size, layout = states.shape[1], model.layout
    of = layout.factor_of_column[:size]
    seen = (states - stats.mean[None, :size]) / stats.scale[None, :size]
    unit = 1.0 / (units(layout, stats, jnp.ones((1, size)))[0] * stats.scale[:size])
    noise = (jnp.exp(model.noise)[:, of] * unit[None])[:, None] * normal(key, (len(model.noise), *states.shape))
    return jnp.moveaxis(place, 1, 0)[:, :, of] * (seen[None] + noise)


def information(witness: Any, one: Float[Array, "rows n"], other: Float[Array, "rows m"]) -> Float[Array, ""]:
    """MINE's bound of the mutual information; rows of a batch come in random order, so the next is any other."""
    together, apart = (
        jax.vmap(lambda a, b: witness(jnp.concatenate([a, b]))[0])(one, part)
        for part in (other, jnp.roll(other, 1, axis=0))
    )
    return together.mean() - jax.nn.logsumexp(apart) + float(np.log(len(one)))


def share_stage(stage: Stage, rate: float) -> Stage:
    """The stage with a rate of their own for the shares, which wait for the networks."""
    begin = int(WAIT * stage.steps)

    def label(path: Any, leaf: Any) -> str:
        return "share" if jax.tree_util.keystr(path).endswith((".shares", ".noise")) else "plain"

    rules = {
        "plain": stage.optimiser(),
        "share": optax.adam(lambda count: jnp.where(count < begin, 0.0, rate)),
    }
    return replace(stage, rule=optax.partition(rules, lambda tree: jax.tree_util.tree_map_with_path(label, tree)))


def in_some_seed(layout: Layout, carried: np.ndarray) -> np.ndarray:
    """(inputs, targets) a mask for the action law and the value: from the factors that, in some seed, the blocks to act
    on carry for the most part; `carried`: (seeds, factors) how much they do."""
    mask = np.ones((len(layout.inputs), len(layout.factors.state)), np.float32)
    mask[: carried.shape[1]] = np.any(carried > HALF, axis=0, keepdims=True).T
    return np.maximum(mask, np.eye(*mask.shape, dtype=np.float32))
