"""A slot autoencoder that reads factors from pictures, to compare with `because_rl.vision`.

Slot attention (Locatello et al., NeurIPS 2020) on the same cells of 8 x 8 pixels, with a first value of each slot that
is learned, so that a slot is the same thing in every picture. Each cell is decoded from every slot; the slots compete
for it by a softmax. Cells that differ from the median of the logged pictures count more, or slots share out wall and
floor among them and leave out what moves. A slot is one factor: a bit for each cell, whether it has most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from because_rl.datasets.pictures import Pictures
from because_rl.factors import FactorSpec, pack
from because_rl.models.nets import MLP, normal
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Stage
from because_rl.vision.network import CELL, Encoder, cells_of, over_cells

SLOTS = 6
"""The four factors of Unlock, the wall and the floor."""
WEIGHT = 20.0
"""Of the error of cells that differ from the median picture; of others it is 1."""
HIDDEN = 64
ITERATIONS = 3
ROUND = 256
"""Pictures read by one program."""


class SlotModel(eqx.Module):
    """Encoder, attention of slots to cells, and decoder of a cell from a slot and the place of the cell."""

    encoder: Encoder
    place: Array
    first: Array
    key: Array
    query: Array
    value: Array
    update: MLP
    decode: MLP

    def __init__(self, rows: int, columns: int, key: PRNGKeyArray, slots: int = SLOTS, hidden: int = HIDDEN):
        keys = jax.random.split(key, 8)
        self.encoder = Encoder(keys[0], hidden)
        self.place = normal(keys[1], (rows, columns, hidden)) * 0.1
        self.first = normal(keys[2], (slots, hidden))
        self.key, self.query, self.value = (normal(k, (hidden, hidden)) / hidden**0.5 for k in keys[3:6])
        self.update = MLP((2 * hidden, hidden, hidden), keys[6], last=0.1)
        self.decode = MLP((hidden, hidden, hidden, CELL * CELL * 3 + 1), keys[7])

    def __call__(self, picture: UInt8[Array, "h w 3"]) -> tuple[Float[Array, "rows columns p"], Array]:
        """The pixels of the cells, in [0, 1], and the share that each slot has of each cell, (slots, rows, columns)."""
        features = _normal_rows((self.encoder(picture) + self.place).reshape(-1, self.place.shape[-1]))
        keys, values, slots = features @ self.key, features @ self.value, self.first
        for _ in range(ITERATIONS):
            scores = keys @ (_normal_rows(slots) @ self.query).T / keys.shape[-1] ** 0.5
            weight = jax.nn.softmax(scores, axis=1) + 1e-6  # slots compete for cells
            mean = (weight / weight.sum(0, keepdims=True)).T @ values
            slots = slots + jax.vmap(self.update)(jnp.concatenate([slots, mean], axis=1))
        decoded = jax.vmap(lambda slot: over_cells(self.decode)(slot[None, None] + self.place))(slots)
        share = jax.nn.softmax(decoded[..., -1], axis=0)
        return (share[..., None] * decoded[..., :-1]).sum(0), share


def _normal_rows(x: Float[Array, "n d"]) -> Array:
    return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-6)


def slot_loss(
    usual: Array, model: SlotModel, fixed: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, dict[str, Array]]:
    """The squared error of pictures, summed over a cell: `batch` has "frames" (n, height, width, 3) uint8.

    `usual`: the median picture, of the same shape as a frame.
    """

    def error(frame: Array) -> Array:
        cells = cells_of(frame).astype(jnp.float32)
        weight = jnp.where((cells != cells_of(usual)).any(-1), WEIGHT, 1.0)
        return (weight * ((model(frame)[0] - cells / 255.0) ** 2).sum(-1)).mean()

    loss = jax.vmap(error)(batch["frames"]).mean()
    return loss, {"reconstruction": loss}


@dataclass(frozen=True)
class SlotReader:
    """Reads the columns of slots from pictures."""

    model: SlotModel
    cells: tuple[np.ndarray, ...]
    """of each slot that is a factor: those that it has in a part of the logged frames, by number"""
    slots: tuple[int, ...]
    factors: FactorSpec

    def read(self, frames: np.ndarray) -> np.ndarray:
        """(n, state columns) float32 of (n, height, width, 3) uint8."""
        bits = owners(self.model, frames)
        return np.concatenate(
            [bits[:, slot][:, cells] for slot, cells in zip(self.slots, self.cells, strict=True)], axis=1
        ).astype(np.float32)


@eqx.filter_jit
def _shares(model: SlotModel, frames: Array) -> Array:
    return jax.vmap(lambda frame: model(frame)[1])(frames)


def owners(model: SlotModel, frames: np.ndarray) -> np.ndarray:
    """(n, slots, cells) bool: whether a slot has the largest share of a cell."""
    parts = []
    for start in range(0, len(frames), ROUND):
        part = frames[start : start + ROUND]
        padded = np.concatenate([part, np.zeros((ROUND - len(part), *part.shape[1:]), np.uint8)])
        parts.append(np.asarray(_shares(model, jnp.asarray(padded))).argmax(1)[: len(part)])
    first = np.concatenate(parts).reshape(len(frames), -1)
    return first[:, None, :] == np.arange(model.first.shape[0])[None, :, None]


def fit_slots(pictures: Pictures, run: Run, steps: int, slots: int = SLOTS, rate: float = 1e-3) -> SlotReader | None:
    """Train on the frames of a log; slots of which no cell ever changes are no factors. None if no slot is one."""
    keep = ~pictures.held_out
    height, width = pictures.frames.shape[1:3]
    usual = jnp.asarray(np.median(pictures.frames, axis=0), jnp.float32)
    make = partial(_make, height // CELL, width // CELL, slots)
    stage = Stage("slots", make, partial(slot_loss, usual), steps, 16, rate)
    model = jax.tree.map(lambda a: a[0], run.fit(stage, {"frames": pictures.frames[pictures.before[keep]]}, ()))
    bits = owners(model, pictures.frames)
    changing = np.logical_or.reduce(bits) & ~np.logical_and.reduce(bits)  # (slots, cells)
    chosen = tuple(int(slot) for slot in np.flatnonzero(changing.any(1)))
    if not chosen:
        return None
    state = pack(*((f"slot_{slot}", int(changing[slot].sum()), "binary", f"slot {slot}") for slot in chosen))
    spec = FactorSpec(state, pictures.factors.action, (), pictures.factors.codes)
    return SlotReader(model, tuple(np.flatnonzero(changing[slot]) for slot in chosen), chosen, spec)


def _make(rows: int, columns: int, slots: int, key: PRNGKeyArray, fixed: Any) -> SlotModel:
    return SlotModel(rows, columns, key, slots)
