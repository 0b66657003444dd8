"""Pictures of one episode of a behaviour policy on the real simulator, tiled into one image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from because_rl.datasets.recipe import Recipe
from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.tasks import Task, world_class
from because_rl.io import write_bytes


def render_episode(
    task: Task, seed: int = 0, spurious: int = 1, behaviour: str = "expert"
) -> tuple[list[np.ndarray], bool]:
    """All frames, (height, width, 3) uint8 each, of the episode of this seed, and whether it reached its goal."""
    batch = SimulatorBatch(world_class(task.world), task.split, spurious, render=True)
    policy = Recipe.parse(f"{task.world}-{behaviour}").make_behaviour()
    observation = batch.reset([seed])
    policy.reset(batch, [seed])
    frames = [batch.envs[0].picture()]
    while not batch.done:
        observation = batch.step(policy.act(observation)).observation
        frames.append(batch.envs[0].picture())
    success = bool(batch.terminated[0])
    batch.close()
    return frames, success


def tile_frames(frames: list[np.ndarray], count: int = 6, columns: int = 3, gap: int = 8) -> np.ndarray:
    """One image of `count` evenly spaced frames, first and last included, in rows of `columns` on white.

    `gap`: pixels between frames. Returns (height, width, 3) uint8.
    """
    picked = [frames[i] for i in np.unique(np.linspace(0, len(frames) - 1, count).round().astype(int))]
    height, width, _ = picked[0].shape
    rows = -(-len(picked) // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, np.uint8)
    for n, frame in enumerate(picked):
        top, left = gap + (n // columns) * (height + gap), gap + (n % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def encode_png(picture: np.ndarray) -> bytes:
    """The content of a PNG file of an image (height, width, 3 or 4) uint8."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def save_png(picture: np.ndarray, path: Path) -> None:
    """Write an image (height, width, 3) uint8."""
    write_bytes(path, encode_png(picture))
