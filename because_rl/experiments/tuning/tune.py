"""A tuning round: the same number of trials for every method, all judged on the same development data and scenes.

    1  `jobs`: a trial (`trials`) of a method on a world is a training on each of a few development datasets, of all
       behaviours; a training has a cell for each split. `grid.cells.join_jobs` makes one job of a trial's trainings
    2  `Develop`: train, then success on development scenes and the error on held-out episodes (`development`)
    3  `table.write_table`: all trials side by side, and by one rule which of them a preset would take

The data and scenes of evaluations are not used, and no preset is changed: that is for people to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import BEHAVIOURS, SPLITS, check_world
from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import join_jobs, missing_jobs
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.grid import Grid, address
from because_rl.experiments.grid.grid import jobs as grid_jobs
from because_rl.experiments.grid.runner import Job, failures, sweep
from because_rl.experiments.paper.experiment import source_hash
from because_rl.experiments.paper.scale import TINY as TINY_SCALE
from because_rl.experiments.tuning.development import DATASET_SEEDS, develop_together, held_out
from because_rl.experiments.tuning.trials import CHANGES, TRIALS, trials

if TYPE_CHECKING:
    from because_rl.experiments.grid.compute import Trained
    from because_rl.training.side_by_side import Team

MEASURE = "development"


@dataclass(frozen=True)
class Round:
    """The methods and worlds to tune, and the size of each trial."""

    methods: tuple[str, ...] = tuple(CHANGES)
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    policies: tuple[str, ...] = BEHAVIOURS
    """behaviour policies of the training data"""
    dataset_seeds: tuple[int, ...] = (500, 501)
    """of which each policy has a dataset"""
    splits: tuple[str, ...] = SPLITS
    """of the development scenes"""
    seeds: int = 1
    """training seeds on each dataset"""
    episodes: int = 100
    """development scenes of a split, per training seed"""
    ratio: float = 1.0
    """number of logged episodes, as a share of the paper's"""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """method -> settings that all its trials have"""

    def __post_init__(self) -> None:
        if bad := [seed for seed in self.dataset_seeds if seed not in DATASET_SEEDS]:
            first, last = DATASET_SEEDS[0], DATASET_SEEDS[-1]
            raise BecauseError(
                f"Got the dataset seed {bad[0]}.",
                need=f"seeds from {first} to {last}, which are for development.",
                fix=f"for example --dataset-seeds {first},{first + 1}: results of other seeds count in tables.",
            )

    @property
    def datasets(self) -> int:
        """of each world"""
        return len(self.policies) * len(self.dataset_seeds)


TINY = Round(
    methods=("ccil",),
    worlds=("unlock",),
    policies=("medium",),
    episodes=8,
    ratio=0.2,
    given={**TINY_SCALE.settings, "ccil": {"steps": 100}},
)


# Jobs --------------------------------------------------------------------------------------------------


def jobs(tuning: Round) -> list[Job]:
    """One job for each training of a round, all presets first.

    So when a method's next trial begins, the mask and whatever else its trials share is already there.
    """
    by_key: dict[str, Job] = {}
    for trial in range(TRIALS):
        for method in tuning.methods:
            for world in tuning.worlds:
                settings = trials(method, check_world(world), tuning.given.get(method, {}))[trial]
                for job in development_jobs(tuning, method, world, settings, trial=trial):
                    if job.key in by_key:
                        raise BecauseError(
                            f"Trial {trial} of {method} on {world} is there twice.",
                            need="different trials, methods, worlds and datasets.",
                            fix="remove one of the two.",
                        )
                    by_key[job.key] = job
    if not by_key:
        raise BecauseError("There is nothing to tune.", need="a method and a world.", fix="name at least one of each.")
    return list(by_key.values())


def development_jobs(
    tuning: Round, method: str, world: str, settings: Mapping[str, Any], **more_fields: Any
) -> list[Job]:
    """Trainings as in any sweep, whose cells are success on development scenes.

    `settings` replace those of the method's preset before tuning; `more_fields` are fields of the cells that are no
    part of their addresses.
    """
    from because_rl.algorithms.registry import make_method

    given = tuning.given.get(method, {})
    preset = asdict(make_method(method, given, world, tuned=False).config)
    grid = Grid(
        methods={method: {**preset, **settings}},
        worlds=(world,),
        policies=tuning.policies,
        splits=tuning.splits,
        subcases=False,
        seeds=tuning.seeds,
        episodes=tuning.episodes,
        ratios=(tuning.ratio,),
        dataset_seeds=tuning.dataset_seeds,
    )
    measured, source = [], source_hash(develop_together.__module__)
    for job in grid_jobs(grid):
        heads = [
            {k: v for k, v in cell.items() if k != "label"} | {"measure": MEASURE, "source": source}
            for cell in job.cells.values()
        ]
        extra = {"label": method, "settings": dict(settings), **more_fields}
        cells = {address(f"{job.key}-{head['split']}-{MEASURE}", head): extra | head for head in heads}
        measured.append(Job(job.key, cells))
    return measured


def run(
    jobs: Sequence[Job],
    compute: Develop,
    folder: Path,
    *,
    together: int = 1,
    workers: int = 1,
    any_code: bool = False,
    no_run: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Compute the missing cells of these jobs into a folder, up to `together` datasets side by side.

    `any_code` is that of `missing_jobs`; with `no_run` nothing is computed; `options` are those of `sweep`. Returns the
    records of the jobs that failed.
    """
    if together < 1:
        raise BecauseError(f"Got together={together}.", need="at least 1.", fix="give a larger number.")
    missing = join_jobs(missing_jobs(jobs, folder, any_code), together)
    if not no_run:
        sweep(missing, compute, folder, workers=workers, **options)
        compute.tidy(missing, folder)
    return failures(missing, folder)


class Develop(TrainAndEvaluate):
    """Computes the cells of a tuning round: those of a sweep, on development scenes and held-out data."""

    def success(
        self, runs: Sequence[Trained], split: str, episodes: int, spurious: int, team: Team, draws: Sequence[int]
    ) -> list[dict[str, Any]]:
        agents, world = [run.agent for run in runs], runs[0].record["world"]
        return develop_together(agents, world, episodes, spurious, self.processes, split, team)

    def metrics(self, run: Trained, recipe: Recipe, split: str) -> dict[str, Any]:
        return {"held_out": held_out(run.agent, run.data)}
