"""Grids: every combination of methods, datasets and splits, as jobs whose cells have addresses.

A job is one training (all seeds of a group as one program) and its evaluations; each evaluation is a cell. The key of
a cell holds a hash of everything that decides its numbers: the method and its whole config, the dataset's recipe,
seeds, split, episodes, and the source code that computes them. So a cell that has been computed is found again by
anyone who asks for it, and any change that matters makes another cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import short_name
from because_rl.datasets.recipe import FORMAT, Recipe
from because_rl.envs.tasks import BEHAVIOURS, SPLITS, world_class
from because_rl.errors import BecauseError, check_name
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.grid.source import code_version
from because_rl.io import read_yaml, sha256

MAX_SEEDS = 1000
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
    own_data: int | None = None
    """a number n: training seed k has dataset seed n + k of each recipe, hence a graph of its own, and is evaluated in
    scenes of its own, the same for all methods. So intervals over seeds cover data, discovery, training and scenes.
    None: the training seeds share the datasets in `dataset_seeds`, and all methods and seeds the same scenes"""
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
        if grid.own_data is not None and recipe.seed != grid.own_data + seeds[0]:
            continue
        training = _training(name, recipe, seeds, {**grid.set, **settings}, grid.chunk)
        prefix = f"{name}-{short_name(recipe.id)}"
        cells = {}
        for split in _splits(grid, recipe.world):
            head = training | {"split": split, "episodes": grid.episodes, "spurious": recipe.spurious}
            head |= {} if grid.own_data is None else {"scenes_draw": recipe.seed}
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
    draws = grid.dataset_seeds
    if grid.own_data is not None:
        if draws != (0,) or grid.own_data < 0 or grid.group is not None:
            raise BecauseError(
                f"Got own_data={grid.own_data}, dataset_seeds={list(draws)}, group={grid.group}.",
                need="own_data of at least 0, with neither of the others.",
                fix="for example own_data: 1000 alone.",
            )
        draws = tuple(grid.own_data + seed for group in _groups(grid) for seed in group)
    combinations = product(grid.worlds, grid.policies, grid.spurious, grid.ratios, draws, grid.coverages)
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
    size = size if grid.own_data is None else 1
    if not 0 < len(seeds) <= MAX_SEEDS or len(set(seeds)) != len(seeds) or min(seeds) < 0 or size < 1:
        raise BecauseError(
            f"Got seeds={grid.seeds}, group={grid.group}.",
            need=f"1 to {MAX_SEEDS} seeds, different and at least 0, in groups of 1 or more.",
            fix="for example seeds: 10.",
        )
    return [list(seeds[k : k + size]) for k in range(0, len(seeds), size)]
