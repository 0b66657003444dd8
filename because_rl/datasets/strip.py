"""A film strip: one episode of a behaviour on the real simulator, a few frames side by side."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from because_rl.datasets.recipe import Recipe
from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.tasks import Task, world_class
from because_rl.io import write_bytes


def film(task: Task, seed: int = 0, spurious: int = 1, behaviour: str = "expert") -> tuple[list[np.ndarray], bool]:
    """Every frame of the episode of this seed, and whether it reached the goal."""
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


def strip(frames: list[np.ndarray], count: int = 6, columns: int = 3, gap: int = 8) -> np.ndarray:
    """`count` frames, first and last among them, laid out in rows of `columns` on white."""
    picked = [frames[i] for i in np.unique(np.linspace(0, len(frames) - 1, count).round().astype(int))]
    height, width, _ = picked[0].shape
    rows = -(-len(picked) // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, np.uint8)
    for n, frame in enumerate(picked):
        top, left = gap + (n // columns) * (height + gap), gap + (n % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def save_png(picture: np.ndarray, path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())
