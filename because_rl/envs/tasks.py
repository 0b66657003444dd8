"""The 18 tasks: three worlds x two splits x three behaviours. Splits I and O share training data."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium

from because_rl.envs.batch import BatchEnv, SimulatorBatch
from because_rl.envs.parallel import ParallelBatch
from because_rl.envs.world import World, needs_extra
from because_rl.errors import BecauseError

BEHAVIOURS = ("random", "medium", "expert")
SPLITS = ("I", "O")


class _Entry(NamedTuple):
    episodes: int
    """episodes in the paper's dataset of each behaviour"""
    paper_success: dict[str, float]
    """success rate of each behaviour policy, from the paper's table of behaviours"""
    simulator: str
    slow: bool = False
    """whether a step is expensive enough for several processes to be faster"""


WORLDS = {
    "lift": _Entry(1000, {"random": 0.24, "medium": 0.60, "expert": 1.00}, "robosuite", slow=True),
    "unlock": _Entry(200, {"random": 0.21, "medium": 0.46, "expert": 0.87}, "minigrid"),
    "crash": _Entry(1000, {"random": 0.14, "medium": 0.35, "expert": 0.66}, "highway-env"),
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
    name: str, split: str = "I", spurious: int = 1, *, simulator: bool = False, processes: int = 1
) -> BatchEnv:
    """N worlds stepped together: the fast implementation, or the unmodified simulator.

    Worlds that are slow to step (Lift) are divided among `processes`.
    """
    if simulator:
        return SimulatorBatch(world_class(name), split, spurious)
    if processes > 1 and WORLDS[check_world(name)].slow:
        return ParallelBatch(world_class(name), batch_class(name), split, spurious, processes)
    return batch_class(name)(split, spurious)


def register() -> None:
    """Make ``gymnasium.make("because/Unlock-v0", split="O", spurious=4)`` work.

    No wrappers are added: the worlds check the order of calls, actions and horizon themselves, and users get
    the world itself, with ``env.true_graph()`` and ``env.factors``.
    """
    for name in WORLDS:
        gymnasium.register(
            f"because/{name.capitalize()}-v0",
            entry_point=f"because_rl.envs.{name}.env:{name.capitalize()}",
            order_enforce=False,
            disable_env_checker=True,
        )


@dataclass(frozen=True)
class Task:
    """World, split of evaluation, and behaviour that collected the training data.

    >>> Task.parse("unlock-O-medium").dataset
    'because/unlock-medium-v0'
    """

    world: str
    split: str
    behaviour: str

    @property
    def name(self) -> str:
        return f"{self.world}-{self.split}-{self.behaviour}"

    @property
    def dataset(self) -> str:
        return f"because/{self.world}-{self.behaviour}-v0"

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
