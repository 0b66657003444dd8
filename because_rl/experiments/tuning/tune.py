"""A tuning round: the same number of trials for every method, each judged on development scenes of the training law.

    1  `jobs`: one training for each method, world and trial (`trials`), with a few seeds, on one dataset of the world
    2  `Develop`: train it, then its success on development scenes and its error on held-out episodes (`development`)
    3  `table.write_table`: all trials side by side, and which of them a preset would take

Split O and the scenes of evaluations are not used, and no preset is changed: that is for people to decide.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from because_rl.envs.tasks import check_world
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import Grid
from because_rl.experiments.grid.grid import jobs as grid_jobs
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.experiment import add_measure, measures_only
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.scale import TINY as TINY_SCALE
from because_rl.experiments.tuning.development import SPLIT, develop, held_out
from because_rl.experiments.tuning.trials import CHANGES, SHARED, TRIALS, trials
from because_rl.provenance import provenance

MEASURE = "development"


@dataclass(frozen=True)
class Round:
    """The methods and worlds to tune, and the size of each trial."""

    methods: tuple[str, ...] = tuple(CHANGES)
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    policy: str = "medium"
    """behaviour policy of the training data"""
    seeds: int = 3
    episodes: int = 100
    """development scenes, per seed"""
    ratio: float = 1.0
    """number of logged episodes, as a share of the paper's"""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """method -> settings that all its trials have"""

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


# Jobs --------------------------------------------------------------------------------------------------


def jobs(tuning: Round) -> list[Job]:
    """One job for each trial of a round, all presets first.

    So when a method's next trial begins, the mask and whatever else its trials share is already there.
    """
    by_key: dict[str, Job] = {}
    for trial in range(TRIALS):
        for method in tuning.methods:
            for world in tuning.worlds:
                job = _job(tuning, method, check_world(world), trial)
                if job.key in by_key:
                    raise BecauseError(
                        f"Trial {trial} of {method} on {world} is there twice.",
                        need="different trials, methods and worlds.",
                        fix="remove one of the two.",
                    )
                by_key[job.key] = job
    if not by_key:
        raise BecauseError("There is nothing to tune.", need="a method and a world.", fix="name at least one of each.")
    return list(by_key.values())


def _job(tuning: Round, method: str, world: str, trial: int) -> Job:
    """A training as in any sweep, with one cell: its quality on the development scenes."""
    from because_rl.algorithms.registry import make_method

    given = tuning.given.get(method, {})
    settings = trials(method, world, given)[trial]
    preset = asdict(make_method(method, given, world, tuned=False).config)
    grid = Grid(
        methods={method: preset | settings},
        worlds=(world,),
        policies=(tuning.policy,),
        splits=(SPLIT,),
        subcases=False,
        seeds=tuning.seeds,
        episodes=tuning.episodes,
        ratios=(tuning.ratio,),
    )
    measured = add_measure(grid_jobs(grid), MEASURE, (develop.__module__,), split=SPLIT, scenes=tuning.episodes)
    (job,) = measures_only(measured)
    # The number of a trial is no part of its address.
    return Job(job.key, {key: {**head, "trial": trial, "settings": settings} for key, head in job.cells.items()})


class Develop(Measure):
    """Computes the cells of a tuning round."""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        import jax

        from because_rl.runs.folder import read_metrics
        from because_rl.runs.train import load_agent, load_for_training

        training, run = self.training, self.training.run_folder(job)
        training.start_programs()
        begin = time.monotonic()
        self.train(job)
        trained = time.monotonic()
        agent = load_agent(run)
        for key in missing:
            cell = job.cells[key]
            world = cell["recipe"]["world"]
            result = develop(agent, world, cell["scenes"], cell["spurious"], training.processes)
            result["held_out"] = held_out(agent, load_for_training(cell["dataset"], training.root))
            lines = read_metrics(run)
            result["stages"] = {line["stage"]: line for line in lines}  # the last line of each
            seconds = {"training": round(trained - begin, 2), "evaluation": round(time.monotonic() - trained, 2)}
            yield key, result | {"seconds": seconds, "provenance": provenance(device=jax.devices()[0].device_kind)}
        if not training.keep_runs:
            shutil.rmtree(run)
