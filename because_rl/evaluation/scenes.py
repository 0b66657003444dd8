"""Pictures of scenes, drawn by the simulators' own renderers and stored beside the results, so that each is drawn once.

A film is one tall picture of frames, the first on top; a page shows one frame at a time. Lift takes about a second per
frame where there is no GPU, so there is a time limit: pictures that it leaves out are drawn by the next report.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from because_rl.datasets.recipe import Recipe
from because_rl.envs.batch import Observation, SimulatorBatch
from because_rl.envs.tasks import WORLDS, world_class
from because_rl.errors import BecauseError
from because_rl.io import read_bytes, remove_leftovers, write_bytes

FRAMES = 16
"""Maximum number of frames in a film."""
SLOW_FILM = 30.0
"""Seconds that must be left to start a film of a world whose simulator is slow."""
WIDTH = {"crash": 440}
"""Width of a frame in pixels by world; 320 for the others."""

Policy = Callable[[Observation], np.ndarray]
"""observation of one world -> (1, ...) action"""


class Picture(NamedTuple):
    """A drawn scene, or a film of `frames` frames below each other."""

    data: bytes
    """WebP"""
    frames: int = 1
    reached: bool | None = None
    """for a film: whether the episode reached the goal"""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of one frame in pixels."""
        width, height = Image.open(io.BytesIO(self.data)).size
        return width, height // self.frames


class Scenes:
    """Pictures from `folder`; missing ones are drawn and added, until `seconds` have passed.

    `left_out` counts the pictures that could not be drawn; `problem` is the reason if the simulator failed.
    """

    def __init__(self, folder: Path, seconds: float = float("inf")):
        self.folder, self.deadline = Path(folder), time.monotonic() + seconds
        remove_leftovers(self.folder)
        self.left_out = 0
        self.problem = ""
        """the error, where a simulator or OpenGL is not installed"""
        self._batches: dict[tuple[str, str, int], SimulatorBatch | None] = {}

    def film(self, world: str, split: str, behaviour: str, scene: int, spurious: int = 1) -> Picture | None:
        """An episode of a dataset's behaviour in the scene with this seed; None if it cannot be drawn now."""

        def begin(batch: SimulatorBatch) -> Policy:
            policy = Recipe.parse(f"{world}-{behaviour}").make_behaviour()
            policy.reset(batch, [scene])
            return policy.act

        return self._film(world, split, behaviour, scene, spurious, begin)

    def replay(
        self, world: str, split: str, policy: str, scene: int, spurious: int, actions: Sequence
    ) -> Picture | None:
        """An episode whose actions are known, one per step; `policy` names it among the kept films."""

        def begin(batch: SimulatorBatch) -> Policy:
            space = batch.action_space
            # the last action again, if the simulator needs a step more than the world in which they were taken
            return lambda observation: np.asarray([actions[min(batch.steps, len(actions) - 1)]], space.dtype)

        return self._film(world, split, policy, scene, spurious, begin)

    def _film(
        self, world: str, split: str, policy: str, scene: int, spurious: int, begin: Callable[[SimulatorBatch], Policy]
    ) -> Picture | None:
        name = f"film-{world}-{split}-{policy}-x{spurious}-{scene}"
        for reached in (True, False):
            for file in self.folder.glob(f"{name}-{'reached' if reached else 'missed'}-*.webp"):
                return Picture(read_bytes(file), int(file.stem.rpartition("-")[2]), reached)
        batch = self._batch(world, split, spurious, SLOW_FILM if WORLDS[world].slow else 0.0)
        if batch is None:
            return None
        observation = batch.reset([scene])
        act = begin(batch)
        frames, stride = [batch.envs[0].picture()], -(-batch.horizon // (FRAMES - 1))
        while not batch.done:
            observation = batch.step(act(observation)).observation
            if batch.steps % stride == 0 or batch.done:
                frames.append(batch.envs[0].picture())
        reached = bool(batch.terminated[0])
        picture = Picture(_webp(frames, world), len(frames), reached)
        write_bytes(self.folder / f"{name}-{'reached' if reached else 'missed'}-{len(frames)}.webp", picture.data)
        return picture

    def start(self, world: str, split: str, scene: int, spurious: int = 1) -> Picture | None:
        """A scene before the first action; None if it cannot be drawn now."""
        file = self.folder / f"start-{world}-{split}-x{spurious}-{scene}.webp"
        if file.exists():
            return Picture(read_bytes(file))
        batch = self._batch(world, split, spurious)
        if batch is None:
            return None
        batch.reset([scene])
        picture = Picture(_webp([batch.envs[0].picture()], world))
        write_bytes(file, picture.data)
        return picture

    def close(self) -> None:
        """Close the simulators."""
        for batch in self._batches.values():
            if batch is not None:
                batch.close()
        self._batches = {}

    def _batch(self, world: str, split: str, spurious: int, seconds: float = 0.0) -> SimulatorBatch | None:
        """The simulator; None if fewer than `seconds` are left or it does not run on this machine."""
        key, batch = (world, split, spurious), None
        if time.monotonic() + seconds < self.deadline:
            if key not in self._batches:
                self._batches[key] = self._open(*key)
            batch = self._batches[key]
        self.left_out += batch is None
        return batch

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
