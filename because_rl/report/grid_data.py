"""What a page of a whole grid is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from because_rl.envs.tasks import BEHAVIOURS, SPLITS
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.report.scenes import Picture


class Rate(NamedTuple):
    """A success rate with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """One method on one task, all its seeds."""

    method: str
    task: str
    world: str
    split: str
    policy: str
    dataset: str
    spurious: int
    rate: Rate
    per_seed: Sequence[float]
    outcomes: Sequence[str]
    """of each seed, '1' or '0' for each scene"""
    one_step: Sequence[Mapping[str, Any]]
    """as the cells say it; empty for methods without a world model"""
    cells: Sequence[Mapping[str, Any]]
    """what each cell says of itself: key, seeds, config, code, seconds, provenance"""

    @property
    def solved(self) -> list[float]:
        """Share of seeds that solve each scene that all of them were in."""
        return [sum(scene == "1" for scene in seeds) / len(seeds) for seeds in zip(*self.outcomes, strict=False)]


class Film(NamedTuple):
    caption: str
    picture: Picture


class Failure(NamedTuple):
    """A scene that the method failed."""

    scene: int
    """its place in the evaluation"""
    solved: int
    seeds: int
    picture: Picture


class Curves(NamedTuple):
    """Losses of a run that was kept."""

    method: str
    dataset: str
    stages: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
    """stage -> (steps, loss at each of them by seed)"""


class Maps(NamedTuple):
    """What the energy model of a method makes of its data."""

    dataset: str
    seeds: int
    revision: str
    when: str
    maps: Sequence[EnergyMap]


@dataclass(frozen=True)
class Grid:
    name: str
    results: Sequence[Result]
    focus: str = "because"
    """the method that the others are compared with"""
    comparisons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """other method -> what `because compare` says of the focus against it, with 'worse' beside 'significant'"""
    paper: Mapping[tuple[str, str], Rate] = field(default_factory=dict)
    """(method, task) -> what the paper's tables say"""
    oracle: Mapping[tuple[str, str], Rate] = field(default_factory=dict)
    """(world, split) -> the same planner with the simulator as its model"""
    behaviour: Mapping[str, Rate] = field(default_factory=dict)
    """dataset -> the policy that logged it"""
    graphs: Sequence[Mapping[str, Any]] = ()
    """as `because discover` writes them"""
    curves: Sequence[Curves] = ()
    maps: Sequence[Maps] = ()
    films: Mapping[str, Sequence[Film]] = field(default_factory=dict)
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)
    """by task"""
    missing: Sequence[tuple[str, str]] = ()
    """(what is not there, the command that makes it)"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_found", {(r.method, r.task): r for r in self.results})

    def result(self, method: str, task: str) -> Result | None:
        return self._found.get((method, task))  # type: ignore[attr-defined]

    def of_task(self, task: str) -> list[Result]:
        """The focus first, then from the best down."""
        return sorted((r for r in self.results if r.task == task), key=lambda r: (r.method != self.focus, -r.rate[0]))

    @property
    def methods(self) -> list[str]:
        """The focus first, then from the best down, by what they have on the main splits."""
        rates: dict[str, list[float]] = {}
        for r in self.results:
            rates.setdefault(r.method, []).append(r.rate.value)
        return sorted(rates, key=lambda m: (m != self.focus, -sum(rates[m]) / len(rates[m]), m))

    @property
    def tasks(self) -> list[str]:
        """By world, split and data; the splits I and O only."""
        return _ordered(r for r in self.results if r.split in SPLITS)

    @property
    def subcases(self) -> list[str]:
        """Tasks on splits that break the training law in one way."""
        return _ordered(r for r in self.results if r.split not in SPLITS)

    def one(self, task: str) -> Result:
        """Any result on a task: what it says of the task itself."""
        return next(r for r in self.results if r.task == task)

    @property
    def worlds(self) -> list[str]:
        return list(dict.fromkeys(self.one(task).world for task in self.tasks))

    @property
    def datasets(self) -> list[str]:
        return sorted(dict.fromkeys(r.dataset for r in self.results))


def _ordered(results: Any) -> list[str]:
    place = {name: n for n, name in enumerate(BEHAVIOURS)}
    return list(
        dict.fromkeys(r.task for r in sorted(results, key=lambda r: (r.world, r.split, place.get(r.policy, 9), r.task)))
    )
