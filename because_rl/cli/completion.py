"""Names that the shell completes (``because --install-completion``). Imports no JAX and no simulator: Tab is quick."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from because_rl.algorithms.presets import VARIANTS, WORLD_SETTINGS
from because_rl.datasets.paths import list_datasets, short_name
from because_rl.envs.tasks import BEHAVIOURS, TASKS, WORLDS

METHOD_NAMES = tuple(dict.fromkeys((*VARIANTS, *WORLD_SETTINGS)))
"""Those of `registry.METHODS`, which imports all methods and with them JAX."""


def complete_method(incomplete: str) -> list[str]:
    return _matching(METHOD_NAMES, incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """The last of several names with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_method(last) if name not in before.split(",")]


def complete_world(incomplete: str) -> list[str]:
    return _matching(WORLDS, incomplete)


def complete_task(incomplete: str) -> list[str]:
    return _matching((task.name for task in TASKS), incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """What ``because collect`` can make."""
    return _matching(["all", *(f"{world}-{behaviour}" for world in WORLDS for behaviour in BEHAVIOURS)], incomplete)


def complete_dataset(ctx: typer.Context, incomplete: str) -> list[str]:
    """The datasets under the root, by id and, for ours, by their short names."""
    ids = list_datasets(ctx.params.get("root"))
    short = [short_name(name) for name in ids if name.startswith("because/")]
    return _matching([*short, *ids], incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
