"""From embeddings of cells to a few codes: cells that look the same have the same code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from because_rl.vision.network import CELL

MAX_CODES = 64
LEAST_GAP = 3.0
"""How much farther from its nearest code the last code must be than any embedding is in the end."""


def cut(frames: np.ndarray) -> np.ndarray:
    """The cells of frames: (n, rows, columns, CELL, CELL, 3) of (n, height, width, 3)."""
    n, h, w, _ = frames.shape
    return frames.reshape(n, h // CELL, CELL, w // CELL, CELL, 3).transpose(0, 1, 3, 2, 4, 5)


def embed_frames(frames: np.ndarray, embed: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The different embeddings of the cells of frames, (u, hidden), and which each cell has, (n, rows, columns).

    `embed` takes cells (m, CELL, CELL, 3) to (m, hidden). Equal cells are embedded once.
    """
    cells = cut(frames)
    flat = np.ascontiguousarray(cells).reshape(-1, CELL * CELL * 3)
    raw = flat.view(np.dtype((np.void, flat.shape[1])))[:, 0]
    _, first, which = np.unique(raw, return_index=True, return_inverse=True)
    return embed(flat[first].reshape(-1, CELL, CELL, 3)), which.reshape(cells.shape[:3])


def nearest(embeddings: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(m,) the nearest of the centres (k, hidden) to each of (m, hidden)."""
    return distances(embeddings, centres).argmin(1)


def distances(embeddings: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(m, k) Euclidean distances."""
    return np.stack([np.linalg.norm(embeddings - centre, axis=1) for centre in centres], axis=1)


def choose_codes(embeddings: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The centres of codes, (k, hidden), of embeddings (m, hidden) that occur `weight` (m,) times.

    Each next centre is the embedding farthest from all before it, beginning with the most frequent one. There are as
    many codes as leave the largest gap: the last is much farther from those before than any embedding is from its own.
    Each centre is then the mean of its embeddings.
    """
    centres = [int(weight.argmax())]
    distance = np.linalg.norm(embeddings - embeddings[centres[0]], axis=1)
    radius = [float(distance.max())]
    while len(centres) < min(MAX_CODES + 1, len(embeddings)) and radius[-1] > 1e-6 * (1e-12 + radius[0]):
        centres.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(embeddings - embeddings[centres[-1]], axis=1))
        radius.append(float(distance.max()))
    gaps = np.array(radius[:-1]) / np.maximum(radius[1:], 1e-6 * (1e-12 + radius[0]))
    count = 1 if not len(gaps) or gaps.max() < LEAST_GAP else int(gaps.argmax()) + 2
    chosen = embeddings[centres[:count]]
    label = nearest(embeddings, chosen)
    return np.stack([np.average(embeddings[label == k], axis=0, weights=weight[label == k]) for k in range(count)])
