"""Do the imitators reach the behaviour that they imitate? CCIL and ICIL, with the settings before and after tuning.

    behaviour     share of the dataset's episodes that attain the goal
    success       of the imitator in development scenes of split I, the mean over training seeds
    share         success / behaviour; an imitator that is good enough has .8

Only datasets for development are taken, and the scenes are those of `because tune`: none is in a table of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.algorithms.presets import TUNED
from because_rl.algorithms.registry import make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.experiments.tuning.development import DATASET_SEEDS, develop
from because_rl.provenance import provenance
from because_rl.runs.train import load_for_training
from because_rl.transitions import Transitions

Report = Callable[[int, int], None]
METHODS = ("ccil", "icil")


def imitators(
    datasets: Sequence[str],
    dataset_seeds: Sequence[int],
    keep: Path,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    episodes: int = 100,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Success of imitators in distribution, beside that of the behaviour.

    Args:
        datasets: such as "unlock-expert".
        dataset_seeds: of each, for development.
        keep: a folder for datasets.
        methods: that imitate.
        seeds: of training, as one program.
        episodes: development scenes for each training seed.
        report: called with (trainings finished, trainings in all).

    Returns:
        A row for each dataset, its seed, method and kind of settings.
    """
    if bad := [seed for seed in dataset_seeds if seed not in DATASET_SEEDS]:
        first, last = DATASET_SEEDS[0], DATASET_SEEDS[-1]
        raise BecauseError(
            f"Got dataset seed {bad[0]}.", need=f"{first} to {last}.", fix="leave other seeds to evaluation."
        )
    recipes = [Recipe.parse(name, seed=seed) for name in datasets for seed in dataset_seeds]
    cases = [(recipe, *choice) for recipe in recipes for choice in _choices(methods, recipe.world)]
    rows = []
    for done, (recipe, name, tuned) in enumerate(cases):
        report(done, len(cases))
        collect(recipe, keep)
        data = load_for_training(recipe.id, keep)
        agent = make_method(name, None, recipe.world, tuned=tuned).fit(data, seeds)
        outcome, behaviour = develop(agent, recipe.world, episodes, recipe.spurious), behaviour_success(data)
        rows.append(
            {
                "dataset": recipe.id,
                "method": name,
                "settings": "tuned" if tuned else "preset",
                "changes": dict(TUNED.get(name, {}).get(recipe.world, {})) if tuned else {},
                "behaviour": behaviour,
                "success": outcome["success"],
                "per_seed": outcome["per_seed"],
                "share": outcome["success"] / max(behaviour, 1e-12),
            }
        )
    report(len(cases), len(cases))
    return {"rows": rows, "provenance": provenance(seeds=seeds, episodes=episodes)}


def _choices(methods: Sequence[str], world: str) -> Iterator[tuple[str, bool]]:
    """Methods without and, where tuning changed anything, with what it chose."""
    for name in methods:
        yield name, False
        if TUNED.get(name, {}).get(world):
            yield name, True


def behaviour_success(data: Transitions) -> float:
    """The share of episodes that attain the goal."""
    episodes, number = np.unique(data.episode, return_inverse=True)
    attained = np.zeros(len(episodes), bool)
    np.logical_or.at(attained, number, data.terminated.astype(bool))
    return float(attained.mean())
