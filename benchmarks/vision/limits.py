"""What reading factors from pictures depends on: how many episodes, noise of pixels, and training of the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from because_rl.datasets.collect import collect
from because_rl.datasets.pictures import Pictures, load_pictures
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import SPLITS, world_class
from because_rl.envs.unlock.pictures import draw
from because_rl.errors import BecauseError
from because_rl.evaluation.one_step import new_steps
from because_rl.evaluation.recovery import accuracy, match_factors
from because_rl.provenance import provenance
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.vision.encoder import STEPS, fit_encoder

SCENES = 100
"""New scenes of each split: every other frame matches factors, the others compare them."""


class Case(NamedTuple):
    episodes: int
    noise: float
    """standard deviation of what is added to each byte"""
    steps: int
    """of the network's training; 0: random convolutions"""


CASES = (
    *(Case(episodes, 0, 0) for episodes in (3, 10, 50, 200)),
    Case(200, 0, STEPS),
    *(Case(50, noise, steps) for noise in (4, 8, 16) for steps in (0, STEPS)),
)


def add_noise(frames: np.ndarray, deviation: float, name: str) -> np.ndarray:
    """The frames with Gaussian noise, rounded and cut to bytes."""
    if not deviation:
        return frames
    noise = stream(0, "pixels", name).normal(0, deviation, frames.shape)
    return np.clip(np.round(frames + noise), 0, 255).astype(np.uint8)


def first_episodes(pictures: Pictures, count: int) -> Pictures:
    """The log of the first `count` episodes."""
    kept = pictures.episode < count
    rows = {name: getattr(pictures, name)[kept] for name in ("before", "action", "reward", "terminated", "episode")}
    return replace(pictures, frames=pictures.frames[: rows["before"][-1] + 2], **rows)


def read_limits(
    recipe: Recipe,
    root: Path | None = None,
    cases: Iterable[Case] = CASES,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """One row per case: codes, factors, and the share of frames in new scenes in which all factors are right."""
    collect(recipe, root)
    pictures, cases = load_pictures(recipe.id, root), tuple(cases)
    truth = world_class(recipe.world).make_factors(1)
    plain = replace(recipe, visual=False)
    states = np.concatenate([new_steps(plain, split, SCENES, truth).state for split in SPLITS])
    known, new = states[::2], states[1::2]
    rows = []
    for n, case in enumerate(cases):
        report(n, len(cases))
        log, begin = first_episodes(pictures, case.episodes), time.perf_counter()
        log = replace(log, frames=add_noise(log.frames, case.noise, "log"))
        row: dict[str, Any] = {**case._asdict(), "frames": len(log.frames), "codes": 0, "factors": "", "all": 0.0}
        try:
            encoder = fit_encoder(log, Run([0]), case.steps)
        except BecauseError as error:
            rows.append(row | {"factors": error.got})
            continue
        shown, asked = (add_noise(draw(s), case.noise, name) for s, name in ((known, "known"), (new, "new")))
        matches = match_factors(encoder.read(shown), encoder.factors, known, truth)
        row |= {"codes": len(encoder.centres), "factors": ", ".join(f"{p.name} {p.width}" for p in encoder.parts)}
        row |= {"all": round(accuracy(matches, encoder.read(asked), new, truth)["all"], 4)}
        rows.append(row | {"seconds": round(time.perf_counter() - begin, 1)})
    report(len(cases), len(cases))
    return {"rows": rows, "provenance": provenance(recipe=recipe.to_dict(), scenes=SCENES)}
