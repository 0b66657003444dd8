"""The network that turns a picture into a grid of cells: three convolutions of 128 channels, trained without labels.

Each convolution has a kernel of 2 x 2 pixels and a stride of 2, so a cell is 8 x 8 pixels and its embedding depends on
them alone. Loss: the squared error of each picture, decoded from its embeddings, and of the next one, decoded from the
embeddings that are predicted from this one and the action; and the size of the predicted changes, which should be few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from because_rl.models.nets import MLP, normal, silu
from because_rl.training.stage import Batch, Stage

CONVOLUTIONS = 3
HIDDEN = 128
CELL = 2**CONVOLUTIONS
"""Pixels along a side of a cell."""


def over_cells(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`f` of each cell of a grid."""
    return jax.vmap(jax.vmap(f))


class Convolution(eqx.Module):
    """Kernel 2 x 2, stride 2: a matrix product of the four pixels side by side."""

    weight: Array
    bias: Array

    def __init__(self, channels: int, hidden: int, key: PRNGKeyArray):
        self.weight = normal(key, (4 * channels, hidden)) / (4 * channels) ** 0.5
        self.bias = jnp.zeros(hidden)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h2 w2 n"]:
        h, w, c = x.shape
        patches = x.reshape(h // 2, 2, w // 2, 2, c).transpose(0, 2, 1, 3, 4).reshape(h // 2, w // 2, 4 * c)
        return over_cells(lambda patch: patch @ self.weight + self.bias)(patches)


class Encoder(eqx.Module):
    convolutions: list[Convolution]

    def __init__(self, key: PRNGKeyArray, hidden: int = HIDDEN):
        channels = (3, *[hidden] * CONVOLUTIONS)
        keys = jax.random.split(key, CONVOLUTIONS)
        self.convolutions = [Convolution(a, b, k) for a, b, k in zip(channels[:-1], channels[1:], keys, strict=True)]

    def __call__(self, picture: UInt8[Array, "h w 3"]) -> Float[Array, "rows columns n"]:
        x = picture.astype(jnp.float32) / 127.5 - 1.0
        for n, convolution in enumerate(self.convolutions):
            x = convolution(silu(x) if n else x)
        return x


class PictureModel(eqx.Module):
    """Encoder, decoder of a cell, and the change of a cell's embedding in a step."""

    encoder: Encoder
    decode: MLP
    change: MLP
    """from the embeddings of a cell and of its four neighbours, of the whole picture on average, and the action"""

    def __init__(self, actions: int, key: PRNGKeyArray, hidden: int = HIDDEN):
        k1, k2, k3 = jax.random.split(key, 3)
        self.encoder = Encoder(k1, hidden)
        self.decode = MLP((hidden, hidden, CELL * CELL * 3), k2)
        self.change = MLP((6 * hidden + actions, hidden, hidden), k3, last=0.1)

    def next_embedding(self, z: Float[Array, "rows columns n"], action: Float[Array, " a"]) -> tuple[Array, Array]:
        """The embeddings that are expected after the action, and by how much they change."""
        padded = jnp.pad(z, ((1, 1), (1, 1), (0, 0)))
        around = [padded[1:-1, 1:-1], padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
        shared = jnp.concatenate([z.mean((0, 1)), action])
        x = jnp.concatenate([*around, jnp.broadcast_to(shared, (*z.shape[:2], len(shared)))], axis=-1)
        change = over_cells(self.change)(x)
        return z + change, change


def cells_of(picture: Array) -> Array:
    """The pixels of each cell, (rows, columns, CELL * CELL * 3) of (height, width, 3); NumPy or JAX."""
    h, w, _ = picture.shape
    cells = picture.reshape(h // CELL, CELL, w // CELL, CELL, 3)
    return cells.transpose(0, 2, 1, 3, 4).reshape(h // CELL, w // CELL, CELL * CELL * 3)


def picture_loss(model: PictureModel, fixed: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
    """`batch`: frames "before" and "after" a step (n, height, width, 3) uint8, and its "action" (n, columns)."""

    def row(before: Array, after: Array, action: Array) -> tuple[Array, Array, Array]:
        z = model.encoder(before)
        then, change = model.next_embedding(z, action)

        def error(embedding: Array, frame: Array) -> Array:
            return ((over_cells(model.decode)(embedding) - cells_of(frame).astype(jnp.float32) / 255.0) ** 2).sum(-1)

        size = jnp.sqrt((change**2).sum(-1) + 1e-6)
        return error(z, before).mean(), error(then, after).mean(), size.mean()

    same, after, size = (part.mean() for part in jax.vmap(row)(batch["before"], batch["after"], batch["action"]))
    return same + after + 1e-3 * size, {"reconstruction": same, "prediction": after, "change": size}


def picture_stage(actions: int, steps: int, batch: int = 16, rate: float = 1e-3, hidden: int = HIDDEN) -> Stage:
    """Training of a `PictureModel`."""
    return Stage(
        "pictures",
        lambda key, fixed: PictureModel(actions, key, hidden),
        picture_loss,
        steps,
        batch,
        rate,
        settings={"hidden": hidden, "actions": actions},
    )


@jax.jit
def _embed(encoder: Encoder, cells: Array) -> Array:
    return jax.vmap(lambda cell: encoder(cell)[0, 0])(cells)


ROWS = 4096
"""Cells embedded by one program."""


def embed_cells(encoder: Encoder, cells: np.ndarray) -> np.ndarray:
    """The embeddings of cells: (n, hidden) float32 of (n, CELL, CELL, 3) uint8. Of equal cells they are equal."""
    parts = []
    for start in range(0, len(cells), ROWS):
        part = cells[start : start + ROWS]
        size = ROWS if len(cells) > 64 else 64  # two programs, whatever the number of cells
        padded = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), np.uint8)])
        parts.append(np.asarray(_embed(encoder, jnp.asarray(padded)))[: len(part)])
    return np.concatenate(parts)
