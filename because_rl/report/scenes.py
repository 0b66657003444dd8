"""Pictures of scenes by the simulators' own renderers, kept beside the results, so that each is drawn once.

A film is one tall picture of frames, the first on top: a page shows one frame at a time and lets people go through
them at their own pace. Lift takes about a second per frame where there is no GPU, hence a limit of time: what it does
not reach is drawn by the next report.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from because_rl.datasets.recipe import Recipe
from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.tasks import WORLDS, world_class
from because_rl.errors import BecauseError
from because_rl.io import write_bytes

FRAMES = 16
"""At most, in a film."""
SLOW_FILM = 30.0
"""Seconds that must be left to begin a film of a world whose simulator is slow."""
WIDTH = {"crash": 440}
"""Of a frame in pixels; others 320."""


class Picture(NamedTuple):
    data: bytes
    """WebP"""
    frames: int = 1
    reached: bool | None = None
    """of a film: the goal"""

    @property
    def size(self) -> tuple[int, int]:
        """Of one frame."""
        width, height = Image.open(io.BytesIO(self.data)).size
        return width, height // self.frames


class Scenes:
    """Draws what `folder` does not have yet, as long as `seconds` are left; then it has no picture to give."""

    def __init__(self, folder: Path, seconds: float = float("inf")):
        self.folder, self.deadline = Path(folder), time.monotonic() + seconds
        self.left_out = 0
        self.problem = ""
        """why nothing can be drawn here: a simulator or OpenGL is not installed"""
        self._batches: dict[tuple[str, str, int], SimulatorBatch | None] = {}

    def film(self, world: str, split: str, behaviour: str, scene: int, spurious: int = 1) -> Picture | None:
        """An episode of a dataset's behaviour."""
        name = f"film-{world}-{split}-{behaviour}-x{spurious}-{scene}"
        for reached in (True, False):
            for file in self.folder.glob(f"{name}-{'reached' if reached else 'missed'}-*.webp"):
                return Picture(file.read_bytes(), int(file.stem.rpartition("-")[2]), reached)
        batch = self._batch(world, split, spurious, SLOW_FILM if WORLDS[world].slow else 0.0)
        if batch is None:
            return None
        policy = Recipe.parse(f"{world}-{behaviour}").make_behaviour()
        observation = batch.reset([scene])
        policy.reset(batch, [scene])
        frames, stride = [batch.envs[0].picture()], -(-batch.horizon // (FRAMES - 1))
        while not batch.done:
            observation = batch.step(policy.act(observation)).observation
            if batch.steps % stride == 0 or batch.done:
                frames.append(batch.envs[0].picture())
        reached = bool(batch.terminated[0])
        picture = Picture(_webp(frames, world), len(frames), reached)
        write_bytes(self.folder / f"{name}-{'reached' if reached else 'missed'}-{len(frames)}.webp", picture.data)
        return picture

    def start(self, world: str, split: str, scene: int, spurious: int = 1) -> Picture | None:
        """A scene before anybody has acted."""
        file = self.folder / f"start-{world}-{split}-x{spurious}-{scene}.webp"
        if file.exists():
            return Picture(file.read_bytes())
        batch = self._batch(world, split, spurious)
        if batch is None:
            return None
        batch.reset([scene])
        picture = Picture(_webp([batch.envs[0].picture()], world))
        write_bytes(file, picture.data)
        return picture

    def close(self) -> None:
        for batch in self._batches.values():
            if batch is not None:
                batch.close()
        self._batches = {}

    def _batch(self, world: str, split: str, spurious: int, seconds: float = 0.0) -> SimulatorBatch | None:
        """The world to draw in; None when time is up, or when it cannot be drawn on this machine."""
        key, found = (world, split, spurious), None
        if time.monotonic() + seconds < self.deadline:
            if key not in self._batches:
                self._batches[key] = self._open(*key)
            found = self._batches[key]
        self.left_out += found is None
        return found

    def _open(self, world: str, split: str, spurious: int) -> SimulatorBatch | None:
        try:
            batch = SimulatorBatch(world_class(world), split, spurious, render=True)
            batch.reset([0])
            batch.envs[0].picture()
        except BecauseError as error:
            self.problem = str(error)
            return None
        return batch


def _webp(frames: Sequence[np.ndarray], world: str) -> bytes:
    width = WIDTH.get(world, 320)
    height = round(width * frames[0].shape[0] / frames[0].shape[1])
    sheet = Image.new("RGB", (width, height * len(frames)))
    for n, frame in enumerate(frames):
        sheet.paste(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS), (0, n * height))
    out = io.BytesIO()
    sheet.save(out, "WEBP", quality=72, method=4)
    return out.getvalue()
