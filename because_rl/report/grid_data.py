"""The content of a grid's page, as plain data: `because_rl.experiments.grid_report` fills it from the result files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from because_rl.envs.tasks import BEHAVIOURS, SPLITS
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.evaluation.scenes import Picture


class Rate(NamedTuple):
    """A success rate with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """One method on one task, over all its seeds."""

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
    """by seed: one character per scene, '1' where it was solved, else '0'"""
    one_step: Sequence[Mapping[str, Any]]
    """one-step errors as stored in the cells; empty for methods without a world model"""
    cells: Sequence[Mapping[str, Any]]
    """the cells behind this result: key, seeds, config, code, seconds, provenance"""
    draws: Sequence[int] | None = None
    """by seed: its draw of data and scenes; None: all seeds have the same scenes"""

    @property
    def solved(self) -> list[float]:
        """Share of seeds that solve each scene, over the scenes that all seeds were evaluated in."""
        return [sum(scene == "1" for scene in seeds) / len(seeds) for seeds in zip(*self.outcomes, strict=False)]


class Film(NamedTuple):
    """An episode of a policy, as the frames of one picture."""

    caption: str
    picture: Picture


class Failure(NamedTuple):
    """A scene that the method failed."""

    scene: int
    """its index in the evaluation"""
    solved: int
    """number of seeds that solved it"""
    seeds: int
    picture: Picture


class Curves(NamedTuple):
    """Losses of a run whose folder was kept."""

    method: str
    dataset: str
    stages: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
    """stage -> (steps, losses with one row per step and one column per seed)"""

    @classmethod
    def from_metrics(cls, method: str, dataset: str, metrics: Sequence[Mapping[str, Any]], most: int = 200) -> Curves:
        """From the lines of a run's metrics, with at most `most` points for each stage."""
        stages = {}
        for stage in dict.fromkeys(row["stage"] for row in metrics):
            rows = [row for row in metrics if row["stage"] == stage and "loss" in row]
            rows = [rows[n] for n in np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))]
            # a loss that is not finite is kept as null
            losses = [np.atleast_1d(np.asarray(row["loss"], float)).tolist() for row in rows]
            stages[stage] = [row["step"] for row in rows], losses
        return cls(method, dataset, stages)


class Maps(NamedTuple):
    """Energy maps of one dataset, averaged over `seeds` seeds."""

    dataset: str
    seeds: int
    revision: str
    when: str
    maps: Sequence[EnergyMap]


@dataclass(frozen=True)
class Grid:
    """All results of a grid and what the page shows beside them."""

    name: str
    results: Sequence[Result]
    focus: str = "because"
    """the method that the others are compared with"""
    comparisons: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """other method -> result of `because compare --two-sided` for the focus against it"""
    paper: Mapping[tuple[str, str], Rate] = field(default_factory=dict)
    """(method, task) -> the rate in the paper's tables"""
    oracle: Mapping[tuple[str, str], Rate] = field(default_factory=dict)
    """(world, split) -> success of the same planner with the simulator as its model"""
    behaviour: Mapping[str, Rate] = field(default_factory=dict)
    """dataset -> success of the policy that logged it"""
    graphs: Sequence[Mapping[str, Any]] = ()
    """graph.json files, as `because discover` writes them"""
    curves: Sequence[Curves] = ()
    maps: Sequence[Maps] = ()
    films: Mapping[str, Sequence[Film]] = field(default_factory=dict)
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)
    """by task"""
    missing: Sequence[tuple[str, str]] = ()
    """(missing part of the page, command that produces it)"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_method_and_task", {(r.method, r.task): r for r in self.results})

    def result(self, method: str, task: str) -> Result | None:
        """The result of a method on a task, or None if there is none."""
        return self._by_method_and_task.get((method, task))  # type: ignore[attr-defined]

    def results_on(self, task: str) -> list[Result]:
        """Results of all methods on a task: the focus first, then by falling success."""
        return sorted((r for r in self.results if r.task == task), key=lambda r: (r.method != self.focus, -r.rate[0]))

    @property
    def methods(self) -> list[str]:
        """The focus first, then by falling mean success over all tasks of the method."""
        rates: dict[str, list[float]] = {}
        for r in self.results:
            rates.setdefault(r.method, []).append(r.rate.value)
        return sorted(rates, key=lambda m: (m != self.focus, -sum(rates[m]) / len(rates[m]), m))

    @property
    def tasks(self) -> list[str]:
        """Tasks of the splits I and O, ordered by world, split and dataset."""
        return _ordered(r for r in self.results if r.split in SPLITS)

    @property
    def subcases(self) -> list[str]:
        """Tasks of the other splits, which differ from the training distribution in one way each."""
        return _ordered(r for r in self.results if r.split not in SPLITS)

    def one(self, task: str) -> Result:
        """Any result on a task, to read the task's world, split, policy and dataset from."""
        return next(r for r in self.results if r.task == task)

    @property
    def worlds(self) -> list[str]:
        """Worlds that have a task in `tasks`, in that order."""
        return list(dict.fromkeys(self.one(task).world for task in self.tasks))

    @property
    def datasets(self) -> list[str]:
        """Sorted ids of the datasets behind the results."""
        return sorted(dict.fromkeys(r.dataset for r in self.results))


def _ordered(results: Iterable[Result]) -> list[str]:
    rank = {name: n for n, name in enumerate(BEHAVIOURS)}
    rows = sorted(results, key=lambda r: (r.world, r.split, rank.get(r.policy, 9), r.task))
    return list(dict.fromkeys(r.task for r in rows))
