"""What there is to run: every combination of methods, datasets and splits, as jobs whose results have addresses.

A job is one training, all seeds of a group as one program, and its evaluations; each evaluation is a cell. The key of
a cell is a hash of all that decides its numbers: the method and its whole config, the dataset's recipe, seeds,
split, episodes, and the source code that computes them. So what has been computed is found again, whoever asks,
and any change that matters makes another cell.
"""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.home import dataset_path, home
from because_rl.datasets.recipe import FORMAT, Recipe
from because_rl.envs.tasks import BEHAVIOURS, SPLITS, WORLDS
from because_rl.errors import BecauseError
from because_rl.experiments.grid.runner import Job, StopSweep, claim, finished
from because_rl.io import exclusive, read_yaml, sha256
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

MOST_SEEDS = 1000
ONE_STEP_EPISODES = 50
METHODS = ("because", "because-paper", "optimism", "linear", "full", "mopo", "td3bc")


@dataclass(frozen=True)
class Grid:
    """All combinations of these. The defaults are the paper's: 18 tasks, 10 seeds, 100 episodes.

    A SPEC file sets some of the fields; `grids/tiny.yaml` is an example.
    """

    methods: dict | tuple[str, ...] = METHODS
    """names; or name -> settings, of which 'method' is the method's name where that is not the same"""
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    """in this order: the slowest first, so that the last job to end is a short one"""
    policies: tuple[str, ...] = BEHAVIOURS
    splits: tuple[str, ...] = SPLITS
    subcases: bool = True
    """also the splits that break the training law in one way each, where a world has them"""
    seeds: int | tuple[int, ...] = 10
    """10: the seeds 0 to 9"""
    group: int | None = None
    """seeds trained as one program; None: all"""
    episodes: int = 100
    """of evaluation, per seed"""
    spurious: tuple[int, ...] = (1,)
    ratios: tuple[float, ...] = (1.0,)
    """shares of the paper's number of logged episodes"""
    dataset_seeds: tuple[int, ...] = (0,)
    coverages: tuple[float | None, ...] = (None,)
    set: dict = field(default_factory=dict)
    """settings for all methods"""
    chunk: int = 2000
    """steps between two checkpoints, which for ten seeds are large"""


def read_grid(spec: str | Path, changes: Mapping[str, Any] | None = None) -> Grid:
    """The grid of a YAML file, or 'paper'; then `changes`."""
    from because_rl.algorithms.registry import configure

    told: Any = {}
    if str(spec) != "paper":
        try:
            told = read_yaml(Path(spec))
        except BecauseError as error:
            need = "'paper', or a YAML file with fields of a grid."
            raise BecauseError(error.got, need=need, fix="see grids/tiny.yaml for an example.") from error
        if not isinstance(told, dict) or not told or not all(isinstance(key, str) for key in told):
            raise BecauseError(
                f"{spec} holds no fields.", need="lines like 'worlds: [unlock]'.", fix="see grids/tiny.yaml."
            )
    return configure(configure(Grid(), told), changes or {})


def choose(grid: Grid, methods: Sequence[str] = (), settings: Mapping[str, Any] | None = None) -> Grid:
    """Some methods only, and more settings: 'hidden' for all, or 'mopo:hidden' for one, which counts more."""
    told = {label: {"method": name, **own} for label, name, own in _methods(grid)}
    told = {label: told.get(label, {}) for label in methods or told}
    common = dict(grid.set)
    for key, value in (settings or {}).items():
        label, colon, name = key.rpartition(":")
        if colon and label not in told:
            raise BecauseError(f"Got a setting for {label!r}.", need=f"one of {', '.join(told)}.", fix="correct it.")
        (told[label] if colon else common)[name] = value
    return replace(grid, methods=told, set=common)


def jobs(grid: Grid) -> list[Job]:
    """In the order of running. Neighbours are different methods, hence different programs: workers that begin together
    do not all compile the same one, and on a world's next data they find them in the compilation cache."""
    for name in ("episodes", "chunk"):
        if getattr(grid, name) < 1:
            raise BecauseError(f"Got {name}={getattr(grid, name)}.", need="at least 1.", fix="give a larger number.")
    found: dict[str, Job] = {}
    for recipe, (label, name, settings), seeds in product(_recipes(grid), _methods(grid), _groups(grid)):
        training = _training(name, recipe, seeds, {**grid.set, **settings}, grid.chunk)
        address = f"{name}-{recipe.id.removeprefix('because/').removesuffix('-v0')}"
        cells = {}
        for split in _splits(grid, recipe.world):
            told = training | {"split": split, "episodes": grid.episodes, "spurious": recipe.spurious}
            cells[f"{address}-{split}-{_hash(told)}"] = {"label": label} | told
        job = Job(f"{address}-{_hash(training)}", cells)
        if job.key in found:
            raise BecauseError(
                f"{label} on {recipe.id} is in the grid twice.", need="each once.", fix="remove one of the two."
            )
        found[job.key] = job
    if not all(job.cells for job in found.values()) or not found:
        raise BecauseError("The grid has an empty side.", need="at least one of each.", fix="fill the empty lists.")
    return list(found.values())


def _training(
    method: str, recipe: Recipe, seeds: Sequence[int], settings: Mapping[str, Any], chunk: int
) -> dict[str, Any]:
    from because_rl.algorithms.registry import make_method

    told = {
        "method": method,
        "config": asdict(make_method(method, settings, recipe.world).config),
        "dataset": recipe.id,
        "recipe": recipe.to_dict() | {"format": FORMAT},
        "seeds": list(seeds),
        "chunk": chunk,
        "code": code_version(method),
    }
    return json.loads(json.dumps(told))  # as it will be read back: tuples are lists


def _hash(told: Mapping[str, Any]) -> str:
    return sha256(json.dumps(told, sort_keys=True).encode())[:16]


ALWAYS = (
    "envs",
    "datasets",
    "evaluation/rollout.py",
    "evaluation/one_step.py",
    "factors.py",
    "graph.py",
    "rng.py",
    "transitions.py",
)
"""What decides the results of every method, beside its own source."""
LEARNING = ("algorithms", "models", "planning", "training", "discovery")
PACKAGE = Path(__file__).resolve().parents[2]


@cache
def code_version(method: str | None = None) -> str:
    """A hash of the source that decides a method's results; docs, commands, reports and other methods do not.

    None: of all methods.
    """
    from because_rl.algorithms.registry import METHODS

    digest = hashlib.sha256()
    if method is None:
        own = [file for folder in LEARNING for file in (PACKAGE / folder).rglob("*.py")]
    else:
        own = [file for file in reached(METHODS[method].method.__module__) if _part(file) in LEARNING]
    for part in map(PACKAGE.joinpath, ALWAYS):
        own += part.rglob("*.py") if part.is_dir() else [part]
    for file in sorted(own):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def reached(module: str) -> set[Path]:
    """The file of a module of this package, those of all that it imports from the package, and so on."""
    found, todo = set[Path](), [module]
    while todo:
        file = PACKAGE.joinpath(*todo.pop().split(".")[1:]).with_suffix(".py")
        if file in found or not file.is_file():
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}."):
                todo += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0]


# The combinations --------------------------------------------------------------------------------------


def _methods(grid: Grid) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name of the row, method, settings)"""
    told = grid.methods if isinstance(grid.methods, dict) else {name: {} for name in grid.methods}
    for label, given in told.items():
        if not isinstance(given or {}, dict) or not all(isinstance(key, str) for key in [label, *(given or {})]):
            raise BecauseError(
                f"Got {given!r} for the method {label!r}.",
                need="settings by name.",
                fix="for example 'mopo: {members: 3}'.",
            )
        settings = dict(given or {})
        yield label, str(settings.pop("method", label)), settings


def _recipes(grid: Grid) -> list[Recipe]:
    if bad := [ratio for ratio in grid.ratios if not 0 < ratio <= 100]:
        raise BecauseError(f"Got the ratio {bad[0]}.", need="a share above 0.", fix="for example ratios: [0.2, 1.0].")
    combinations = product(grid.worlds, grid.policies, grid.spurious, grid.ratios, grid.dataset_seeds, grid.coverages)
    return [
        Recipe.parse(
            f"{world}-{policy}",
            None if world not in WORLDS else max(1, round(ratio * WORLDS[world].episodes)),
            spurious=spurious,
            seed=seed,
            coverage=coverage,
        )
        for world, policy, spurious, ratio, seed, coverage in combinations
    ]


def _splits(grid: Grid, world: str) -> list[str]:
    from because_rl.envs.tasks import world_class
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
    seeds = range(min(grid.seeds, MOST_SEEDS + 1)) if isinstance(grid.seeds, int) else grid.seeds
    size = len(seeds) if grid.group is None else grid.group
    if not 0 < len(seeds) <= MOST_SEEDS or len(set(seeds)) != len(seeds) or min(seeds) < 0 or size < 1:
        raise BecauseError(
            f"Got seeds={grid.seeds}, group={grid.group}.",
            need=f"1 to {MOST_SEEDS} seeds, different and at least 0, in groups of 1 or more.",
            fix="for example seeds: 10.",
        )
    return [list(seeds[k : k + size]) for k in range(0, len(seeds), size)]


# The function of a cell --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainAndEvaluate:
    """Collect the data if they are missing, train, evaluate; a training that was stopped goes on where it was."""

    root: Path | None = None
    work: Path | None = None
    """where runs are kept until all their cells are there; None: under the root"""
    keep_runs: bool = False
    compile_cache: Path | None = None
    processes: int = 1
    """that share the simulation of slow worlds"""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        import jax

        from because_rl.runs.evaluate import evaluate_agent
        from because_rl.runs.folder import read_run
        from because_rl.runs.train import load_agent, train

        told = job.cells[missing[0]]
        if told["code"] != code_version(told["method"]):
            raise StopSweep(
                "The source code has changed since this sweep began.",
                need="results of one version.",
                fix="start the sweep again: what the change does not touch is not run again.",
            )
        if self.compile_cache is not None:
            use_compilation_cache(self.compile_cache)
        jax.clear_caches()  # the programs of the last job are of no use to this one
        recipe = Recipe(**{key: value for key, value in told["recipe"].items() if key != "format"})
        collected(recipe, self.root)
        run = self._run(job)
        trained = train(
            told["method"],
            told["dataset"],
            self.root,
            run,
            told["seeds"],
            told["config"],
            resume=True,
            chunk=told["chunk"],
            shared=run.parent / f"shared-{code_version()}",
        )
        agent, known = load_agent(run, self.root), read_run(run)
        common = {"data_sha256": known["data_sha256"], "stages": trained["stages"]}
        for key in missing:
            cell, begin = job.cells[key], time.monotonic()
            found = evaluate_agent(agent, known, cell["split"], cell["episodes"], cell["spurious"], self.processes)
            found |= self._of_model(agent, recipe, cell["split"])
            spent = {"training": trained["seconds"], "evaluation": round(time.monotonic() - begin, 2)}
            where = provenance(device=jax.devices()[0].device_kind)
            yield key, found | common | {"seconds": spent, "provenance": where}
        if not self.keep_runs:
            shutil.rmtree(run)

    def _of_model(self, agent: Any, recipe: Recipe, split: str) -> dict[str, Any]:
        """What there is to say of the world model, where there is one."""
        from because_rl.evaluation.one_step import new_steps, one_step_error
        from because_rl.planning.agent import PlannerAgent

        if not isinstance(agent, PlannerAgent) or split not in SPLITS:
            return {}
        steps = new_steps(recipe, split, ONE_STEP_EPISODES, agent.factors)
        figures = {name: np.asarray(values).tolist() for name, values in agent.figures.items()}
        return {"one_step": one_step_error(agent, steps), "figures": figures}

    def tidy(self, jobs: Sequence[Job], folder: Path) -> None:
        """Remove the runs that a worker would have removed, had it not been killed after its last cell."""
        for job in jobs:
            if self.keep_runs or not self._run(job).exists() or not finished(folder, job):
                continue
            with claim(folder, job) as mine:
                if mine:
                    shutil.rmtree(self._run(job))

    def _run(self, job: Job) -> Path:
        return (self.work or home(self.root) / "sweep") / job.key


def collected(recipe: Recipe, root: Path | None) -> None:
    """The dataset is there when this returns, whether we have collected it or another worker has."""
    from because_rl.datasets.collect import collect

    target = dataset_path(recipe.id, root)
    while not (target / "data" / "metadata.json").exists():
        try:
            with exclusive(target.parent / f".{target.name}.wanted.lock", f"collecting {recipe.id}"):
                collect(recipe, root, workers=1)
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            time.sleep(1.0)
