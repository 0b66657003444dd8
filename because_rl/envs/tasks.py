"""The 18 tasks: three worlds x two splits x three behaviours. Splits I and O share training data."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import gymnasium

from because_rl.envs.batch import BatchEnv, SimulatorBatch
from because_rl.envs.parallel import ParallelBatch
from because_rl.envs.world import World, needs_extra
from because_rl.errors import BecauseError

VISUAL_ID = "because/UnlockVisual-v0"
"""Unlock with pictures as observations."""
BEHAVIOURS = ("random", "medium", "expert")
SPLITS = ("I", "O")


class _Entry(NamedTuple):
    episodes: int
    """episodes in the paper's dataset of each behaviour"""
    horizon: int
    """steps of an episode, that of the world's class"""
    paper_success: dict[str, float]
    """success rate of each behaviour policy, from the paper's table of behaviours"""
    simulator: str
    slow: bool = False
    """whether a step is expensive enough for several processes to be faster"""


WORLDS = {
    "lift": _Entry(1000, 30, {"random": 0.24, "medium": 0.60, "expert": 1.00}, "robosuite", slow=True),
    "unlock": _Entry(200, 15, {"random": 0.21, "medium": 0.46, "expert": 0.87}, "minigrid"),
    "crash": _Entry(1000, 30, {"random": 0.14, "medium": 0.35, "expert": 0.66}, "highway-env"),
}


def _import(world: str, module: str, name: str):
    # A world is imported on first use: that is slow, and Lift's fast version needs optional packages.
    with needs_extra(check_world(world)):
        return getattr(importlib.import_module(f"because_rl.envs.{world}.{module}"), name)


def check_world(name: str) -> str:
    """`name`, if there is such a world; raises a `BecauseError` otherwise."""
    if name not in WORLDS:
        raise BecauseError(f"There is no world {name!r}.", need=f"one of {', '.join(WORLDS)}.", fix="correct the name.")
    return name


def world_class(name: str) -> type[World]:
    """The Gymnasium environment of a world."""
    return _import(name, "env", name.capitalize())


def batch_class(name: str) -> type[BatchEnv]:
    """The fast implementation of a world."""
    return _import(name, "batch", f"{name.capitalize()}Batch")


def make_batch(
    name: str,
    split: str = "I",
    spurious: int = 1,
    *,
    simulator: bool = False,
    processes: int = 1,
    pictures: bool = False,
) -> BatchEnv:
    """N worlds stepped together: the fast implementation, or the unmodified simulator.

    Worlds that are slow to step (Lift) are divided among `processes`. With `pictures`, Unlock shows these.
    """
    if pictures:
        return _import(name, "visual", f"{name.capitalize()}VisualBatch")(split)
    if simulator:
        return SimulatorBatch(world_class(name), split, spurious)
    if processes > 1 and WORLDS[check_world(name)].slow:
        return ParallelBatch(world_class(name), batch_class(name), split, spurious, processes)
    return batch_class(name)(split, spurious)


@cache
def check_simulator(name: str, processes: int = 1) -> None:
    """Start a world once, as an evaluation with so many `processes` will; raises a `BecauseError` where it cannot run.

    To be called before a training whose result is to be evaluated in the world.
    """
    batch = make_batch(name, processes=processes)
    try:
        batch.reset([0])
    finally:
        batch.close()


def register() -> None:
    """Make ``gymnasium.make("because/Unlock-v1", split="O", spurious=4)`` work.

    Gymnasium adds its `TimeLimit`, and with it ``env.spec.max_episode_steps``; it ends an episode at the step at which
    the world does. The order of calls and actions are checked by the worlds. `get_world` returns the world itself.
    """
    for name, entry in WORLDS.items():
        gymnasium.register(
            f"because/{name.capitalize()}-v1",
            entry_point=f"because_rl.envs.{name}.env:{name.capitalize()}",
            max_episode_steps=entry.horizon,
            order_enforce=False,
            disable_env_checker=True,
        )
    gymnasium.register(
        VISUAL_ID,
        entry_point="because_rl.envs.unlock.visual:UnlockVisual",
        max_episode_steps=WORLDS["unlock"].horizon,
        order_enforce=False,
        disable_env_checker=True,
    )


@dataclass(frozen=True)
class Task:
    """World, split of evaluation, and behaviour that collected the training data.

    >>> Task.parse("unlock-O-medium").dataset
    'because/unlock-medium-v1'
    """

    world: str
    split: str
    behaviour: str

    @property
    def name(self) -> str:
        return f"{self.world}-{self.split}-{self.behaviour}"

    @property
    def dataset(self) -> str:
        return f"because/{self.world}-{self.behaviour}-v1"

    @classmethod
    def parse(cls, name: str) -> Task:
        """The task called ``world-split-behaviour``, in upper or lower case."""
        for task in TASKS:
            if task.name.lower() == name.lower():
                return task
        raise BecauseError(
            f"There is no task {name!r}.",
            need="{lift,unlock,crash}-{I,O}-{random,medium,expert}.",
            fix="run 'because tasks' to see all 18.",
        )


TASKS = tuple(Task(w, s, b) for w in WORLDS for s in SPLITS for b in BEHAVIOURS)
