"""Benchmarks of the worlds themselves: speed, and agreement with the real simulators."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.envs.batch import BatchEnv
from because_rl.envs.tasks import BEHAVIOURS, WORLDS, make_batch
from because_rl.envs.unlock.pictures import TILE, draw
from because_rl.envs.unlock.visual import UnlockVisual
from because_rl.envs.world import get_world
from because_rl.provenance import provenance
from because_rl.rng import stream
from because_rl.statistics import wilson

Report = Callable[[int, int], None]

FAST_SIZE = {"unlock": 1000, "crash": 1000, "lift": 16}
"""Batch size by world."""
REAL_SIZE = {"unlock": 20, "crash": 20, "lift": 1}
"""Batch size by world, on the real simulators."""
PICTURES = 500
"""Pictures drawn in one call."""
SECONDS = 4.0
"""Minimum seconds of timed steps for each engine."""


def steps_per_second(batch: BatchEnv, size: int) -> float:
    """World steps per second under random actions; resets are not counted."""
    rng = stream(0, "speed")
    batch.reset(range(size))
    actions = [batch.random_actions(rng) for _ in range(batch.horizon)]
    spent, steps = 0.0, 0
    for attempt in range(1000):
        batch.reset(range(size))
        for action in actions:
            alive = int((~(batch.terminated | batch.truncated)).sum())
            begin = time.perf_counter()
            batch.step(action)
            if attempt:  # the first pass compiles and warms up
                spent += time.perf_counter() - begin
                steps += alive
        if spent >= SECONDS:
            break
    batch.close()
    return steps / spent


def speed(report: Report) -> dict[str, Any]:
    """One row per world: steps per second of the fast world and of the real simulator, and their ratio."""
    rows = []
    for n, world in enumerate(WORLDS):
        report(n, len(WORLDS))
        fast = steps_per_second(make_batch(world), FAST_SIZE[world])
        real = steps_per_second(make_batch(world, simulator=True), REAL_SIZE[world])
        rows.append(
            {
                "world": world,
                "simulator": WORLDS[world].simulator,
                "fast": round(fast),
                "real": round(real),
                "times": round(fast / real, 1),
            }
        )
    report(len(WORLDS), len(WORLDS))
    return {"rows": rows, "provenance": provenance(fast_size=FAST_SIZE, real_size=REAL_SIZE, seconds=SECONDS)}


def renderer_speed(images: int = 100_000, peer_images: int = 500) -> dict[str, Any]:
    """One row per renderer of Unlock's rooms: images per second of the table of tiles and of minigrid, one process."""
    env, states = UnlockVisual("O"), make_batch("unlock", "O").reset(range(PICTURES)).state
    env.reset(seed=0)
    room = get_world(env).room  # type: ignore[attr-defined]
    renderers: dict[str, tuple[Callable[[], Any], int]] = {
        "tiles": (lambda: draw(states), PICTURES),
        "minigrid": (lambda: room.get_frame(highlight=False, tile_size=TILE), 1),
    }
    rows = []
    for (name, (render, per_call)), total in zip(renderers.items(), (images, peer_images), strict=True):
        render()  # both keep the tiles that they have drawn
        begin, load = time.perf_counter(), os.getloadavg()[0]
        for _ in range(total // per_call):
            render()
        rate = total // per_call * per_call / (time.perf_counter() - begin)
        rows.append({"renderer": name, "images_per_second": round(rate), "load_before": round(load, 2)})
    return {"rows": rows, "provenance": provenance(images=images, peer_images=peer_images, batch=PICTURES)}


def _successes(recipe: Recipe, episodes: int, group: int, simulator: bool) -> np.ndarray:
    batch = make_batch(recipe.world, "I", recipe.spurious, simulator=simulator)
    groups = [range(start, min(start + group, episodes)) for start in range(0, episodes, group)]
    success = [bool(e["terminated"][-1]) for g in groups for e in rollout(recipe, g, batch)]
    batch.close()
    return np.array(success)


def agreement(episodes: int, many: int, report: Report) -> dict[str, Any]:
    """Success of each behaviour: `episodes` on both engines with the same seeds, and `many` on the fast one."""
    rows = []
    recipes = [Recipe.parse(f"{world}-{behaviour}") for world in WORLDS for behaviour in BEHAVIOURS]
    for n, recipe in enumerate(recipes):
        report(n, len(recipes))
        fast = _successes(recipe, many, FAST_SIZE[recipe.world], simulator=False)
        real = _successes(recipe, episodes, REAL_SIZE[recipe.world], simulator=True)
        low, high = wilson(float(fast.mean()), len(fast))
        rows.append(
            {
                "behaviour": f"{recipe.world}-{recipe.behaviour}",
                "paper": WORLDS[recipe.world].paper_success[recipe.behaviour],
                "fast": round(float(fast.mean()), 3),
                "low95": round(low, 3),
                "high95": round(high, 3),
                "fast_first": round(float(fast[:episodes].mean()), 3),
                "real_first": round(float(real.mean()), 3),
                "same_outcome": int((fast[:episodes] == real).sum()),
            }
        )
    report(len(recipes), len(recipes))
    return {"rows": rows, "provenance": provenance(simulator_episodes=episodes, fast_episodes=many, seed=0)}
