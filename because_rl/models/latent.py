"""Latent blocks, for models that separate what actions move, what is rewarded, and the rest.

The latent of a block b has as many columns as the state, in units of a column's usual change (a discrete column's own
unit). States here are named factors that are observed, not pixels, so encoder and decoder work factor by factor. Each
factor j lies in one block, c_j, and in which is learned:

    c_j ~ w_j,    q(z_bj | s) = N(s_j, noise_bj^2) if b = c_j, else nothing,    p(s_j | z) = N(sum_b z_bj, precision^2)

with probabilities w_j that sum to 1 over blocks. What a block means follows from the inputs of its prior,

    p(z'_bj | z, a) = N(m_bj, noise_bj^2 + v_bj)

where m_bj and v_bj are functions of z in the blocks visible to b, of z_bj, and of a in blocks that actions drive. They
are computed by the network and the likelihoods that all models here have, with closed gates on inputs that are not
visible. A discrete factor has the mean and variance of its distribution. So the terms of the evidence bound, and the
likelihood of the priors, which planners use,

    reconstruction_bj = noise_bj^2 / (2 precision^2)
    KL_bj = log(1 + v / noise^2) / 2 + (noise^2 + (s'_j - m_bj)^2) / (2 (noise^2 + v)) - 1/2
    nll_bj = -log p_b(s'_j | s, a)

are known for every block in which a factor could lie, and the loss has their means under w_j. The first state of an
episode, which nothing predicts, has log(1 + Var(s_j) / noise^2) / 2 for a KL. The blocks of the *other* factors are
sampled, row by row, with the gradient of w (straight-through), so no network can make up for a small probability.
Planners take the likeliest blocks.
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
from because_rl.models.objective import jackknife
from because_rl.models.prepared_data import Statistics
from because_rl.training.stage import Batch, Stage

HALF = 0.5
ASSIGNMENT_DELAY = 0.2
"""Assignments stay as they are for this share of the steps, until the networks predict something."""


class Blocks(eqx.Module):
    """Call it on one row [s, a], as `BilinearModel`; use `jax.vmap` for many."""

    layout: Layout = eqx.field(static=True)
    visible: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    """(blocks, blocks) 1 where the second is an input of the first's prior"""
    action_driven: tuple[float, ...] = eqx.field(static=True)
    """1 for blocks whose prior has the action as an input"""
    networks: BilinearModel
    """with a leading axis of blocks"""
    assignment_logits: Float[Array, "blocks factors"]
    """log w, up to a constant"""
    log_noise: Float[Array, "blocks factors"]

    def __init__(
        self,
        layout: Layout,
        key: PRNGKeyArray,
        hidden: int,
        visible: Sequence[Sequence[int]],
        action_driven: Sequence[int],
        noise: float,
    ):
        """`noise`: of the encoder at first. `visible`, `action_driven`: as the attributes."""
        blocks = len(action_driven)
        keys, shape = jax.random.split(key, blocks), (blocks, len(layout.factors.state))
        self.layout, self.action_driven = layout, tuple(map(float, action_driven))
        self.visible = tuple(tuple(map(float, row)) for row in visible)
        self.networks = jax.vmap(lambda k: BilinearModel(layout, k, hidden=hidden))(keys)
        self.assignment_logits, self.log_noise = jnp.zeros(shape), jnp.full(shape, float(np.log(noise)))

    def predict_by_block(
        self, stats: Statistics, assignment: Float[Array, "blocks factors"], x: Array, families: tuple[int, ...] | None
    ) -> list[Outputs]:
        """The prediction of all factors (or of `families`) by every block; arrays have a leading axis of blocks.

        `assignment`: 1 in the block c_j of each factor, which decides what priors see.
        """
        gates = self.gates(assignment)
        return jax.vmap(lambda network, gates: network(stats, gates, x, families))(self.networks, gates)

    def gates(self, assignment: Float[Array, "blocks factors"]) -> Gates:
        """What each block's networks see, with a leading axis of blocks."""
        layout, targets = self.layout, len(self.layout.factors.state)
        order = make_gates(layout, np.ones((len(layout.inputs), targets), np.float32)).order
        state_gates = jnp.asarray(self.visible) @ assignment
        action_shape = (len(state_gates), len(layout.inputs) - targets)
        action_gates = jnp.broadcast_to(jnp.asarray(self.action_driven)[:, None], action_shape)
        input_gates = jnp.concatenate([state_gates, action_gates], axis=1)
        weight = jnp.maximum(input_gates[:, None], jnp.eye(targets, len(layout.inputs))[None])
        return Gates(weight[:, :, layout.factor_of_column], jnp.broadcast_to(order, (len(weight), *order.shape)))

    def log_odds_of_data(self, stats: Statistics, mask: None, x: Float[Array, " columns"]) -> list[Array]:
        """As `BilinearModel.log_odds_of_data`, of each factor by its likeliest block."""
        assignment = self.likeliest_blocks()
        by_block = jax.vmap(lambda network, gates: network.log_odds_of_data(stats, gates, x))
        members = [np.array(self.layout.families[n].members) for n in self.layout.events]
        each = zip(by_block(self.networks, self.gates(assignment)), members, strict=True)
        return [(assignment[:, m] * log_odds).sum(0) for log_odds, m in each]

    def likeliest_blocks(self) -> Float[Array, "blocks factors"]:
        """1 in the likeliest block of each factor."""
        return jax.nn.one_hot(self.assignment_logits.argmax(0), len(self.action_driven), axis=0)

    def __call__(
        self, stats: Statistics, mask: None, x: Float[Array, " columns"], families: tuple[int, ...] | None = None
    ) -> list[Outputs]:
        """The prediction of each factor by its likeliest block; `mask` is not used."""
        assignment = self.likeliest_blocks()
        numbers = range(len(self.layout.families)) if families is None else families
        out = []
        for n, by_block in zip(numbers, self.predict_by_block(stats, assignment, x, families), strict=True):
            chosen = assignment[:, np.array(self.layout.families[n].members)]
            out.append(jax.tree.map(lambda a, chosen=chosen: jnp.einsum("bm,bm...->m...", chosen, a), by_block))
        return out


def assignment_probabilities(model: Blocks) -> Float[Array, "blocks factors"]:
    """w: the probability that a factor lies in a block."""
    return jax.nn.softmax(model.assignment_logits, axis=0)


def sample_assignments(
    model: Blocks, rows: int, key: PRNGKeyArray, power: float = 1.0
) -> Float[Array, "rows blocks factors"]:
    """Samples of c, 1 in the block in which a factor lies, with the gradient of w.

    They are drawn from w to the `power`, normalised: with a higher power the likeliest block is drawn more often.
    """
    w, noise = assignment_probabilities(model), uniform(key, (rows, 1, model.assignment_logits.shape[1]))
    probability = jax.nn.softmax(power * model.assignment_logits, axis=0)
    upper = jnp.cumsum(probability, axis=0)[None]
    hard = ((noise < upper) & (noise >= upper - probability[None])).astype(w.dtype)
    return jax.lax.stop_gradient(hard - w[None]) + w[None]


class EvidenceBound(NamedTuple):
    """The terms of the loss, as means over a batch."""

    network_nll: Float[Array, ""]
    """the likelihood as a function of the networks; it does not move the assignment"""
    assignment_nll: Float[Array, ""]
    """the likelihood as a function of the assignment; it does not move the networks"""
    reconstruction: Float[Array, ""]
    kl: Float[Array, " blocks"]


def evidence_bound(
    stats: Statistics,
    model: Blocks,
    assignment: Float[Array, "rows blocks factors"],
    batch: Batch,
    precision: float,
) -> EvidenceBound:
    """The terms of the module's docstring; `assignment`: samples of c, `precision`: the decoder's, in usual changes."""
    layout, w, noise = model.layout, assignment_probabilities(model), jnp.exp(2 * model.log_noise)

    def row(
        assignment: Array, state: Array, action: Array, next_state: Array, counts: Array
    ) -> tuple[Array, Array, Array]:
        def block(outputs: list[Outputs], noise: Array) -> tuple[Array, Array, Array]:
            network_nll = negative_log_likelihood(layout, stats, outputs, state, next_state, counts)
            assignment_nll, kl = [], []
            residuals, variances = moments(layout, stats, jax.lax.stop_gradient(outputs), state, next_state)
            for family, residual, v in zip(layout.families, residuals, variances, strict=True):
                members = np.array(family.members)
                n = noise[members][:, None]
                kl.append(HALF * (jnp.log1p(v / n) + (n + residual**2) / (n + v) - 1.0).sum(1))
                # The likelihood that networks learn from weighs rows by their spread, so it cannot compare blocks.
                # Nor is a block better that predicts more exactly than the decoder's precision.
                wide = v + precision**2
                gaussian = HALF * (residual**2 / wide + jnp.log(wide)).sum(1)
                continuous = family.is_continuous
                assignment_nll.append(gaussian if continuous else jax.lax.stop_gradient(network_nll)[members])
            return network_nll, per_target(layout, assignment_nll), per_target(layout, kl)

        return jax.vmap(block)(model.predict_by_block(stats, assignment, jnp.concatenate([state, action]), None), noise)

    counts = jackknife(batch["episode"], model.networks.events)
    terms = jax.vmap(row)(assignment, batch["state"], batch["action"], batch["next_state"], counts)
    network_nll, assignment_nll, kl = (a.mean(0) for a in terms)
    widths = jnp.asarray([f.width for f in layout.factors.state], jnp.float32)[None]
    centred = batch["state"] - batch["state"].mean(0)[None]
    variance = (in_usual_changes(layout, stats, centred) ** 2).mean(0)
    factor = layout.factor_of_column[: len(variance)]
    first_kl = (w[:, factor] * HALF * jnp.log1p(variance[None] / noise[:, factor])).sum(1)
    return EvidenceBound(
        (jax.lax.stop_gradient(w) * network_nll).sum(),
        (w * assignment_nll).sum(),
        (w * noise * widths).sum() / (2 * precision**2),
        (w * kl).sum(1) + (batch["step"] == 0).mean() * first_kl,
    )


def in_usual_changes(layout: Layout, stats: Statistics, rows: Float[Array, "rows state"]) -> Array:
    """Differences of states in units of the usual change; those of discrete columns as they are."""
    continuous = np.array([layout.inputs[i].is_continuous for i in layout.factor_of_column[: rows.shape[1]]])
    return rows / jnp.where(continuous, stats.change, 1.0)[None]


def moments(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, next_state: Array
) -> tuple[list[Array], list[Array]]:
    """By family, (members, width) each: s' less its predicted mean, and the predicted variance."""
    residuals, variances = [], []
    for family, out in zip(layout.families, outputs, strict=True):
        then = split(layout, family, next_state)
        if family.is_continuous:
            change = family.difference(then, split(layout, family, state)) / split(layout, family, stats.change)
            residuals.append(change - out.value)
            variances.append(jnp.exp(2 * out.spread))
            continue
        if family.type == "categorical":
            probability = jax.nn.softmax(out.value, axis=1)[:, : family.width]
        else:
            probability = jax.nn.sigmoid(out.value.mean(1) if out.value.ndim == 3 else out.value)
        residuals.append(then - probability)
        variances.append(probability * (1.0 - probability))
    return residuals, variances


def sample_latents(
    stats: Statistics,
    model: Blocks,
    assignment: Float[Array, "rows blocks factors"],
    states: Float[Array, "rows state"],
    key: PRNGKeyArray,
) -> Float[Array, "blocks rows state"]:
    """Samples of q(z | s), as standardised columns."""
    size, layout = states.shape[1], model.layout
    factor = layout.factor_of_column[:size]
    standard = (states - stats.mean[None, :size]) / stats.scale[None, :size]
    unit = 1.0 / (in_usual_changes(layout, stats, jnp.ones((1, size)))[0] * stats.scale[:size])
    draws = normal(key, (len(model.log_noise), *states.shape))
    noise = (jnp.exp(model.log_noise)[:, factor] * unit[None])[:, None] * draws
    return jnp.moveaxis(assignment, 1, 0)[:, :, factor] * (standard[None] + noise)


def information_bound(network: Any, x: Float[Array, "rows n"], y: Float[Array, "rows m"]) -> Float[Array, ""]:
    """MINE's lower bound of I(x; y), E T(x, y) - log E exp T(x, y of another row), where T is `network`.

    Rows of a batch come in random order, so the next row is any other.
    """
    joint, shuffled = (
        jax.vmap(lambda a, b: network(jnp.concatenate([a, b]))[0])(x, part) for part in (y, jnp.roll(y, 1, axis=0))
    )
    return joint.mean() - jax.nn.logsumexp(shuffled) + float(np.log(len(x)))


def with_assignment_rate(stage: Stage, rate: float) -> Stage:
    """The stage with a learning rate of their own for the assignment and its noise, which wait for the networks."""
    begin = int(ASSIGNMENT_DELAY * stage.steps)

    def label(path: Any, leaf: Any) -> str:
        name = jax.tree_util.keystr(path)
        return "assignment" if name.endswith((".assignment_logits", ".log_noise")) else "networks"

    rules = {
        "networks": stage.optimiser(),
        "assignment": optax.adam(lambda count: jnp.where(count < begin, 0.0, rate)),
    }
    return replace(stage, rule=optax.partition(rules, lambda tree: jax.tree_util.tree_map_with_path(label, tree)))


def masks_from_assignment(
    layout: Layout, probability: Float[np.ndarray, "seeds factors"]
) -> Float[np.ndarray, "seeds inputs targets"]:
    """The mask of each seed for the behaviour policy and the value.

    `probability`: that a factor lies in the blocks the agent acts on. Edges lead from the factors for which it is above
    1/2, from all action factors, and from every factor to itself.
    """
    seeds, factors = probability.shape
    masks = np.ones((seeds, len(layout.inputs), factors), np.float32)
    masks[:, :factors] = (probability > HALF)[:, :, None]
    return np.maximum(masks, np.eye(*masks.shape[1:], dtype=np.float32))
