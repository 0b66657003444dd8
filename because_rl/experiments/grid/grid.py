"""Grids: every combination of methods, datasets and splits, as jobs whose cells have addresses.

A job is one training (all seeds of a group as one program) and its evaluations; each evaluation is a cell. The key of
a cell holds a hash of everything that decides its numbers: the method and its whole config, the dataset's recipe,
seeds, split, episodes, and the source code that computes them. So a cell that has been computed is found again by
anyone who asks for it, and any change that matters makes another cell.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from because_rl.datasets.paths import dataset_path, home_folder, short_name
from because_rl.datasets.recipe import FORMAT, Recipe
from because_rl.envs.tasks import BEHAVIOURS, SPLITS, check_simulator, world_class
from because_rl.errors import BecauseError, check_name
from because_rl.experiments.grid.runner import Job, StopSweep, claim, finished, stops_sweep
from because_rl.experiments.grid.source import code_version
from because_rl.io import exclusive, read_yaml, sha256
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

if TYPE_CHECKING:  # they import JAX, which the list of jobs does not need
    from because_rl.training.method import Agent
    from because_rl.training.side_by_side import Team
    from because_rl.transitions import Transitions

MAX_SEEDS = 1000
ONE_STEP_EPISODES = 50
METHODS = ("because", "because-paper", "optimism", "linear", "full", "mopo", "td3bc")


@dataclass(frozen=True)
class Grid:
    """All combinations of these fields. The defaults are the paper's: 18 tasks, 10 seeds, 100 episodes.

    A SPEC file sets a few of the fields; `grids/tiny.yaml` is an example.
    """

    methods: dict | tuple[str, ...] = METHODS
    """names of methods; or label -> settings, where 'method' names the method if the label does not"""
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    """the slowest first, so that the last job to end is a short one"""
    policies: tuple[str, ...] = BEHAVIOURS
    splits: tuple[str, ...] = SPLITS
    subcases: bool = True
    """whether to add the splits that break the training law in one way each, where a world has them"""
    seeds: int | tuple[int, ...] = 10
    """a number n for the seeds 0 to n - 1, or the seeds themselves"""
    group: int | None = None
    """number of seeds trained as one program; None: all"""
    episodes: int = 100
    """evaluation episodes per seed"""
    spurious: tuple[int, ...] = (1,)
    ratios: tuple[float, ...] = (1.0,)
    """number of logged episodes, as shares of the paper's"""
    dataset_seeds: tuple[int, ...] = (0,)
    coverages: tuple[float | None, ...] = (None,)
    set: dict = field(default_factory=dict)
    """settings of all methods"""
    chunk: int = 2000
    """training steps between two checkpoints (those of ten seeds are large files)"""
    together: int = 1
    """number of datasets of a world on which a method is trained and evaluated side by side (`cells.join_jobs`)"""


def read_grid(spec: str | Path, changes: Mapping[str, Any] | None = None) -> Grid:
    """The grid of a YAML file, or the paper's for 'paper', with the fields in `changes` replaced."""
    from because_rl.algorithms.registry import configure

    fields: Any = {}
    if str(spec) != "paper":
        try:
            fields = read_yaml(Path(spec))
        except BecauseError as error:
            need = "'paper', or a YAML file with fields of a grid."
            raise BecauseError(error.got, need=need, fix="see grids/tiny.yaml for an example.") from error
        if not isinstance(fields, dict) or not fields or not all(isinstance(key, str) for key in fields):
            raise BecauseError(
                f"{spec} holds no fields.", need="lines like 'worlds: [unlock]'.", fix="see grids/tiny.yaml."
            )
    return configure(configure(Grid(), fields), changes or {})


def choose(grid: Grid, methods: Sequence[str] = (), settings: Mapping[str, Any] | None = None) -> Grid:
    """The grid with only these methods (none given: all) and more settings.

    A setting 'hidden' is for all methods, 'mopo:hidden' for one, where it takes precedence.
    """
    rows = {label: {"method": name, **own} for label, name, own in _methods(grid)}
    rows = {label: rows.get(label, {}) for label in methods or rows}
    common = dict(grid.set)
    for key, value in (settings or {}).items():
        label, colon, name = key.rpartition(":")
        if colon and label not in rows:
            raise BecauseError(f"Got a setting for {label!r}.", need=f"one of {', '.join(rows)}.", fix="correct it.")
        (rows[label] if colon else common)[name] = value
    return replace(grid, methods=rows, set=common)


def jobs(grid: Grid) -> list[Job]:
    """The jobs of a grid, in the order of running.

    Neighbours are different methods, hence different programs: workers that begin together do not all compile the same
    one, and on a world's next dataset they find the programs in the compilation cache.
    """
    for name in ("episodes", "chunk", "together"):
        if getattr(grid, name) < 1:
            raise BecauseError(f"Got {name}={getattr(grid, name)}.", need="at least 1.", fix="give a larger number.")
    by_key: dict[str, Job] = {}
    for recipe, (label, name, settings), seeds in product(_recipes(grid), _methods(grid), _groups(grid)):
        training = _training(name, recipe, seeds, {**grid.set, **settings}, grid.chunk)
        prefix = f"{name}-{short_name(recipe.id)}"
        cells = {}
        for split in _splits(grid, recipe.world):
            head = training | {"split": split, "episodes": grid.episodes, "spurious": recipe.spurious}
            cells[address(f"{prefix}-{split}", head)] = {"label": label} | head
        job = Job(address(prefix, training), cells)
        if job.key in by_key:
            raise BecauseError(
                f"{label} on {recipe.id} is in the grid twice.", need="each once.", fix="remove one of the two."
            )
        by_key[job.key] = job
    if not all(job.cells for job in by_key.values()) or not by_key:
        raise BecauseError("The grid has an empty side.", need="at least one of each.", fix="fill the empty lists.")
    return list(by_key.values())


def _training(
    method: str, recipe: Recipe, seeds: Sequence[int], settings: Mapping[str, Any], chunk: int
) -> dict[str, Any]:
    """What decides the result of a training, as plain data."""
    from because_rl.algorithms.registry import make_method

    head = {
        "method": method,
        "config": asdict(make_method(method, settings, recipe.world).config),
        "dataset": recipe.id,
        "recipe": recipe.to_dict() | {"format": FORMAT},
        "seeds": list(seeds),
        "chunk": chunk,
        "code": code_version(method, recipe.visual),
    }
    return json.loads(json.dumps(head))  # as it will be read back: tuples become lists


def address(prefix: str, head: Mapping[str, Any]) -> str:
    """The key of a cell or job: a readable prefix, and a hash of the data that decide its result."""
    return f"{prefix}-{sha256(json.dumps(head, sort_keys=True).encode())[:16]}"


# The combinations --------------------------------------------------------------------------------------


def _methods(grid: Grid) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(label of the table's row, method, settings)"""
    rows = grid.methods if isinstance(grid.methods, dict) else {name: {} for name in grid.methods}
    for label, given in rows.items():
        if not isinstance(given or {}, dict) or not all(isinstance(key, str) for key in [label, *(given or {})]):
            raise BecauseError(
                f"Got {given!r} for the method {label!r}.",
                need="settings by name.",
                fix="for example 'mopo: {members: 3}'.",
            )
        check_name(label, "The name of a method")
        settings = dict(given or {})
        yield label, str(settings.pop("method", label)), settings


def _recipes(grid: Grid) -> list[Recipe]:
    if bad := [ratio for ratio in grid.ratios if not 0 < ratio <= 100]:
        raise BecauseError(f"Got the ratio {bad[0]}.", need="a share above 0.", fix="for example ratios: [0.2, 1.0].")
    combinations = product(grid.worlds, grid.policies, grid.spurious, grid.ratios, grid.dataset_seeds, grid.coverages)
    return [
        replace(recipe, episodes=max(1, round(ratio * recipe.episodes)))
        for world, policy, spurious, ratio, seed, coverage in combinations
        for recipe in [Recipe.parse(f"{world}-{policy}", spurious=spurious, seed=seed, coverage=coverage)]
    ]


def _splits(grid: Grid, world: str) -> list[str]:
    from because_rl.evaluation.rollout import SUBCASES

    wanted = [*grid.splits, *(SUBCASES.get(world, ()) if grid.subcases else ())]
    if bad := [split for split in wanted if split not in world_class(world).splits]:
        raise BecauseError(
            f"There is no split {bad[0]!r} of {world}.",
            need=f"one of {', '.join(world_class(world).splits)}.",
            fix="correct the name.",
        )
    return list(dict.fromkeys(wanted))


def _groups(grid: Grid) -> list[list[int]]:
    """The seeds, in groups that are trained as one program."""
    seeds = range(min(grid.seeds, MAX_SEEDS + 1)) if isinstance(grid.seeds, int) else grid.seeds
    size = len(seeds) if grid.group is None else grid.group
    if not 0 < len(seeds) <= MAX_SEEDS or len(set(seeds)) != len(seeds) or min(seeds) < 0 or size < 1:
        raise BecauseError(
            f"Got seeds={grid.seeds}, group={grid.group}.",
            need=f"1 to {MAX_SEEDS} seeds, different and at least 0, in groups of 1 or more.",
            fix="for example seeds: 10.",
        )
    return [list(seeds[k : k + size]) for k in range(0, len(seeds), size)]


# Computing the cells -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainAndEvaluate:
    """Computes the cells of a job: collect the dataset if it is missing, train, evaluate.

    A training that was stopped goes on from its last checkpoint.
    """

    root: Path | None = None
    work: Path | None = None
    """folder of the runs until all their cells are there; None: under the root"""
    keep_runs: bool = False
    compile_cache: Path | None = None
    processes: int = 1
    """number of processes that share the simulation of slow worlds"""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        from because_rl.discovery.regression.threads import one_blas_thread
        from because_rl.training.side_by_side import Team

        self.start_programs()
        team, parts = Team(), [part for part in job.trainings if not part.cells.keys().isdisjoint(missing)]
        with one_blas_thread():  # for all: each sets back what it found, and they do not end in order
            outcomes = team.run([partial(self._train_and_load, part) for part in parts])
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if fatal := [error for error in failures if stops_sweep(error)]:
            raise fatal[0]
        trained = {part.key: run for part, run in zip(parts, outcomes, strict=True) if not isinstance(run, Exception)}
        same_scenes: dict[tuple[str, int, int], list[tuple[str, Trained]]] = {}
        for part in (part for part in parts if part.key in trained):
            for key in (key for key in missing if key in part.cells):
                cell = part.cells[key]
                scenes = cell["split"], cell["episodes"], cell["spurious"]
                same_scenes.setdefault(scenes, []).append((key, trained[part.key]))
        waiting = list(same_scenes.items())
        while waiting:
            scenes, cells = waiting.pop(0)
            try:
                results = self._evaluate(job, scenes, cells, team)
            except Exception as error:
                if len(cells) == 1:
                    failures.append(error)
                else:  # one of them is at fault
                    waiting = [(scenes, [cell]) for cell in cells] + waiting
            else:
                yield from results
        if failures:
            raise failures[0]
        for key in () if self.keep_runs else trained:
            shutil.rmtree(self.run_folder(key))

    def _train_and_load(self, job: Job) -> Trained:
        from because_rl.runs.folder import read_run
        from because_rl.runs.train import load_agent, load_for_training

        summary, run = self.train(job), self.run_folder(job)
        record = read_run(run)
        return Trained(load_agent(run), record, load_for_training(record["dataset"], self.root), summary)

    def _evaluate(
        self, job: Job, scenes: tuple[str, int, int], cells: Sequence[tuple[str, Trained]], team: Team
    ) -> list[tuple[str, dict[str, Any]]]:
        """The results of cells with the same scenes, whose agents act side by side."""
        import jax

        begin, runs = time.monotonic(), [run for _, run in cells]
        recipes, results = [recipe_of(job.cells[key]) for key, _ in cells], self.success(runs, *scenes, team)
        works = [partial(self.metrics, run, c, scenes[0]) for run, c in zip(runs, recipes, strict=True)]
        for run, result, metrics in zip(runs, results, team.run(works), strict=True):
            if isinstance(metrics, Exception):
                raise metrics
            seconds = {"training": run.summary["seconds"], "evaluation": round(time.monotonic() - begin, 2)}
            result |= metrics | {"data_sha256": run.record["data_sha256"], "stages": run.summary["stages"]}
            result |= {"seconds": seconds, "provenance": provenance(device=jax.devices()[0].device_kind)}
        return [(key, result) for (key, _), result in zip(cells, results, strict=True)]

    def success(
        self, runs: Sequence[Trained], split: str, episodes: int, spurious: int, team: Team
    ) -> list[dict[str, Any]]:
        """The success of agents that act side by side."""
        from because_rl.runs.evaluate import evaluate_agents

        agents, records = [run.agent for run in runs], [run.record for run in runs]
        return evaluate_agents(agents, records, split, episodes, spurious, self.processes, team)

    def metrics(self, run: Trained, recipe: Recipe, split: str) -> dict[str, Any]:
        """One-step error and figures of the agent's model; nothing where it has none or the split is a subcase."""
        from because_rl.evaluation.one_step import new_steps, one_step_error
        from because_rl.evaluation.representation import agent_diagnostics
        from because_rl.planning.agent import PlannerAgent

        if not isinstance(run.agent, PlannerAgent) or split not in SPLITS:
            return {}
        steps = new_steps(recipe, split, ONE_STEP_EPISODES, run.agent.factors)
        figures = {name: np.asarray(values).tolist() for name, values in agent_diagnostics(run.agent, run.data).items()}
        return {"one_step": one_step_error(run.agent, steps), "figures": figures}

    def start_programs(self) -> None:
        """Before a job: set the compilation cache, and drop the last job's programs, which this one cannot use."""
        import jax

        if self.compile_cache is not None:
            use_compilation_cache(self.compile_cache)
        jax.clear_caches()

    def train(self, job: Job) -> dict[str, Any]:
        """Train the run of a job, or finish it; returns the summary of `runs.train.train`."""
        from because_rl.runs.train import train

        head, run = check_source(job), self.run_folder(job)
        try:
            check_simulator(head["recipe"]["world"], self.processes)
        except BecauseError as error:  # this machine's fault, and better known before the training than after it
            raise StopSweep(error.got, need=error.need, fix=error.fix) from error
        ensure_dataset(recipe_of(head), self.root)
        return train(
            *(head["method"], head["dataset"], self.root, run, head["seeds"], head["config"]),
            resume=True,
            chunk=head["chunk"],
            shared=run.parent / f"shared-{code_version()}",
        )

    def tidy(self, jobs: Sequence[Job], folder: Path) -> None:
        """Remove the runs of finished jobs whose workers were killed before they could."""
        for job in (part for whole in jobs for part in whole.trainings):
            if self.keep_runs or not self.run_folder(job).exists() or not finished(folder, job):
                continue
            with claim(folder, job) as claimed:
                if claimed:
                    shutil.rmtree(self.run_folder(job))

    def run_folder(self, job: Job | str) -> Path:
        """Of a job of one training, or of its key."""
        return (self.work or home_folder(self.root) / "sweep") / (job if isinstance(job, str) else job.key)


class Trained(NamedTuple):
    """A training as its evaluations need it."""

    agent: Agent
    record: Mapping[str, Any]
    data: Transitions
    summary: Mapping[str, Any]
    """of `runs.train.train`"""


def check_source(job: Job) -> Mapping[str, Any]:
    """The head of a job's first cell, which describes the training; raises if the source has changed since."""
    head = next(iter(job.cells.values()))
    if head["code"] != code_version(head["method"], recipe_of(head).visual):
        raise StopSweep(
            "The source code has changed since this sweep began.",
            need="results of one version.",
            fix="start the sweep again: what the change does not touch is not run again.",
        )
    return head


def recipe_of(cell: Mapping[str, Any]) -> Recipe:
    """The recipe of a cell's dataset."""
    return Recipe(**{key: value for key, value in cell["recipe"].items() if key != "format"})


def ensure_dataset(recipe: Recipe, root: Path | None) -> None:
    """Collect a dataset unless it is there, with nothing left of a killed collection; wait for other processes' one."""
    from because_rl.datasets.collect import collect

    target = dataset_path(recipe.id, root)
    files, left = target / "data" / "metadata.json", (f".{target.name}.partial", f".{target.name}.*lock")
    while not files.exists() or any(path for pattern in left for path in target.parent.glob(pattern)):
        try:
            with exclusive(target.parent / f".{target.name}.wanted.lock", f"collecting {recipe.id}"):
                collect(recipe, root, workers=1)
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            time.sleep(1.0)
