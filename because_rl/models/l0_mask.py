"""The mask as a sparse maximum likelihood: equation 4 of the paper, for models that are not linear.

    max_M  log p(D; phi, mu, M) - lambda |M|_0

|M|_0 has no gradient. Each edge therefore has a hard-concrete gate (Louizos, Welling and Kingma 2018),

    z = clip(1.2 sigmoid((log u - log(1 - u) + alpha) / beta) - 0.1, 0, 1),    u uniform in (0, 1), beta = 2/3,

which is exactly 0 or 1 with a chance of its own, and the expected number of open gates is a smooth function of alpha:
P(z > 0) = sigmoid(alpha + beta log 11). World model and gates are fitted together; an edge is kept that pays for
itself, that is, whose inputs save more than lambda nats a row. A factor's own last value is always open.

Assumptions: independent rows, no hidden causes: of what only stands for a cause and the cause, it keeps what predicts.
It gives no p-values.
"""

from __future__ import annotations

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from because_rl.models.bilinear import BilinearModel, Gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import negative_log_likelihood
from because_rl.models.nets import uniform
from because_rl.models.prepared_data import PreparedData, Statistics
from because_rl.training.stage import Batch, Stage

BETA, LOW, HIGH = 2 / 3, -0.1, 1.1
BEGIN = 2.0
"""alpha at first: nearly open."""
SPEED = 20.0
"""How much faster than weights alpha moves: at their rate it would not arrive."""


class L0Learner(eqx.Module):
    world: BilinearModel
    alpha: Float[Array, "inputs targets"]
    """divided by SPEED"""


def l0_stage(prepared: PreparedData, penalty: float, hidden: int, steps: int, batch: int, rate: float) -> Stage:
    layout = prepared.layout
    shape = len(layout.inputs), len(layout.factors.state)

    def init(key: PRNGKeyArray, fixed: object) -> L0Learner:
        return L0Learner(BilinearModel(layout, key, hidden=hidden, events=1), jnp.full(shape, BEGIN / SPEED))

    loss = partial(l0_loss, penalty, prepared.stats)
    return Stage("l0", init, loss, steps, batch, rate, settings={"hidden": hidden, "penalty": penalty})


def l0_loss(
    penalty: float, stats: Statistics, learner: L0Learner, fixed: object, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """-log p(D; phi, mu, M) + lambda E |M|_0, with other gates in every row."""
    world, alpha = learner.world, SPEED * learner.alpha
    rows, layout = len(batch["state"]), learner.world.layout
    noise = uniform(key, (rows, *alpha.shape))
    odds = jnp.log(noise + 1e-6) - jnp.log(1.0 - noise + 1e-6)
    gate = opened(jax.nn.sigmoid((odds + alpha[None]) / BETA))

    def row(state: Array, action: Array, next_state: Array, gate: Array) -> Array:
        outputs = world(stats, columns_of(layout, gate), jnp.concatenate([state, action]))
        return negative_log_likelihood(layout, stats, outputs, state, next_state).sum()

    nll = jax.vmap(row)(batch["state"], batch["action"], batch["next_state"], gate).mean()
    edges = (
        jax.nn.sigmoid(alpha - BETA * math.log(-LOW / HIGH)) * (1.0 - jnp.eye(alpha.shape[0], alpha.shape[1]))
    ).sum()
    return nll + penalty * edges, {"nll": nll, "edges": edges}


def opened(share: Float[Array, "rows inputs targets"]) -> Float[Array, "rows inputs targets"]:
    """Stretched and cut to [0, 1]; 1 from each factor to itself."""
    own = jnp.eye(share.shape[1], share.shape[2])[None]
    return jnp.maximum(jnp.clip(share * (HIGH - LOW) + LOW, 0.0, 1.0), own)


def columns_of(layout: Layout, gate: Float[Array, "inputs targets"]) -> Gates:
    """Gates of columns from those of factors, with nothing relabelled."""
    owner = jax.nn.one_hot(layout.factor_of_column, len(layout.inputs))
    size, targets = layout.size, gate.shape[1]
    return Gates(gate.T @ owner.T, jnp.broadcast_to(jnp.arange(size), (targets, size)))


def l0_mask(alpha: Float[Array, "seeds inputs targets"]) -> np.ndarray:
    """(inputs, targets) the share of seeds that keep an edge: those whose gate, without noise, is over a half."""
    gate = opened(jax.nn.sigmoid(SPEED * alpha / BETA))
    return np.asarray((gate > 0.5).mean(0), np.float32)
