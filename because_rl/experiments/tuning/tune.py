"""A tuning round: as many trials for every method, each judged on development scenes of the training law.

    1  `jobs`: one training for each method, world and trial (`trials`), by a few seeds, on one dataset of the world
    2  `Develop`: train it, then its success on development scenes and its error on held-out episodes (`development`)
    3  `tuning_table.write`: all trials side by side, and which of them a preset would take

Neither split O nor an evaluation's scenes are looked at, and no preset is changed: that is for people to decide.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from because_rl.envs.tasks import check_world
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import Grid
from because_rl.experiments.grid.grid import jobs as jobs_of
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.scale import TINY as TINY_SCALE
from because_rl.experiments.paper.study import also
from because_rl.experiments.tuning.development import SPLIT, develop, held_out
from because_rl.experiments.tuning.trials import CHANGES, SHARED, TRIALS, trials
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

MEASURE = "development"


@dataclass(frozen=True)
class Round:
    methods: tuple[str, ...] = tuple(CHANGES)
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    policy: str = "medium"
    """whose data are trained on"""
    seeds: int = 3
    episodes: int = 100
    """development scenes, per seed"""
    ratio: float = 1.0
    """share of the paper's number of logged episodes"""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """by method: settings that all its trials have"""

    def __post_init__(self) -> None:
        for method in self.methods:
            if method in SHARED:
                raise BecauseError(
                    f"{method} is not tuned by itself.",
                    need=f"one of {', '.join(CHANGES)}.",
                    fix=f"tune {SHARED[method]}, whose trials it shares.",
                )


TINY = Round(
    methods=("td3bc", "ccil"),
    worlds=("unlock",),
    seeds=2,
    episodes=8,
    ratio=0.2,
    given={**TINY_SCALE.settings, "ccil": {"steps": 100}},
)


# What is run -------------------------------------------------------------------------------------------


def jobs(wanted: Round) -> list[Job]:
    """All presets first: by the time a method's next trial comes, the mask and whatever else they share is there."""
    found: dict[str, Job] = {}
    for trial in range(TRIALS):
        for method in wanted.methods:
            for world in wanted.worlds:
                job = _job(wanted, method, check_world(world), trial)
                if job.key in found:
                    raise BecauseError(
                        f"Trial {trial} of {method} on {world} is there twice.",
                        need="different trials, methods and worlds.",
                        fix="remove one of the two.",
                    )
                found[job.key] = job
    if not found:
        raise BecauseError("There is nothing to tune.", need="a method and a world.", fix="name at least one of each.")
    return list(found.values())


def _job(wanted: Round, method: str, world: str, trial: int) -> Job:
    """A training as any sweep has it, of which only success on development scenes is asked."""
    from because_rl.algorithms.registry import make_method

    given = wanted.given.get(method, {})
    settings = trials(method, world, given)[trial]
    preset = asdict(make_method(method, given, world, tuned=False).config)
    grid = Grid(
        methods={method: preset | settings},
        worlds=(world,),
        policies=(wanted.policy,),
        splits=(SPLIT,),
        subcases=False,
        seeds=wanted.seeds,
        episodes=wanted.episodes,
        ratios=(wanted.ratio,),
    )
    (job,) = also(jobs_of(grid), MEASURE, (develop.__module__,), split=SPLIT, scenes=wanted.episodes)
    # Where a trial stands in the list is no part of its address.
    cells = {
        key: {**told, "trial": trial, "settings": settings} for key, told in job.cells.items() if "measure" in told
    }
    return Job(job.key, cells)


class Develop(Measure):
    """The function of a cell."""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        import jax

        from because_rl.runs.folder import METRICS
        from because_rl.runs.train import load_agent, load_for_training

        training, run = self.training, self.training._run(job)
        if training.compile_cache is not None:
            use_compilation_cache(training.compile_cache)
        jax.clear_caches()  # the programs of the last job are of no use to this one
        begin = time.monotonic()
        self._train(job)
        trained = time.monotonic()
        agent = load_agent(run, training.root)
        for key in missing:
            cell = job.cells[key]
            world = cell["recipe"]["world"]
            found = develop(agent, world, cell["scenes"], cell["spurious"], training.processes)
            found["held_out"] = held_out(agent, load_for_training(cell["dataset"], training.root))
            lines = map(json.loads, (run / METRICS).read_text().splitlines())
            found["stages"] = {line["stage"]: line for line in lines}  # the last of each
            spent = {"training": round(trained - begin, 2), "evaluation": round(time.monotonic() - trained, 2)}
            yield key, found | {"seconds": spent, "provenance": provenance(device=jax.devices()[0].device_kind)}
        if not training.keep_runs:
            shutil.rmtree(run)
