"""One-step prediction errors of a world model, on steps of the logging behaviour in new scenes of a split.

The error of a continuous factor is its root mean squared error in units of the root mean square of its change (1: as
good as predicting no change); that of a discrete factor is the share of wrong predictions. A model's error is the mean
over factors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import make_batch
from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.calibration import read_rows

OTHER_SEED = 1_000_000
"""Added to a dataset's seed, so that the scenes are in no dataset and in no evaluation."""


class Steps(NamedTuple):
    """Transitions, one per row."""

    state: np.ndarray
    action: np.ndarray
    """as columns: discrete actions are encoded"""
    next_state: np.ndarray


def new_steps(recipe: Recipe, split: str, episodes: int, factors: FactorSpec) -> Steps:
    """Transitions of the recipe's behaviour in `episodes` scenes of a split."""
    batch = make_batch(recipe.world, split, recipe.spurious)
    try:
        rolled = rollout(replace(recipe, seed=recipe.seed + OTHER_SEED), range(episodes), batch)
    finally:
        batch.close()
    state, next_state = ([e["state"][part] for e in rolled] for part in (slice(None, -1), slice(1, None)))
    action = np.concatenate([e["action"] for e in rolled])
    if factors.codes is not None:
        action = np.asarray(factors.codes)[action]
    return Steps(np.concatenate(state), action, np.concatenate(next_state))


def one_step_error(agent: PlannerAgent, steps: Steps) -> dict[str, Any]:
    """The number of rows, the error by seed and factor (`factors`), its mean by seed and over all."""
    guess = read_rows(agent.learned.successor, agent.parameters, steps.state, steps.action)[0]
    spec = agent.factors
    by_factor = {f.name: factor_error(spec, f.name, guess, steps).tolist() for f in spec.state}
    per_seed = np.mean(list(by_factor.values()), axis=0)
    return {
        "rows": len(steps.state),
        "error": float(per_seed.mean()),
        "per_seed": per_seed.tolist(),
        "factors": by_factor,
    }


def factor_error(factors: FactorSpec, name: str, predicted: np.ndarray, steps: Steps) -> np.ndarray:
    """The error (K,) of a factor, for predicted states (K, rows, columns).

    >>> from because_rl.factors import pack
    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("a", 1, "continuous")))
    >>> now, then = np.zeros((2, 2)), np.array([[1.0, 1.0], [-1.0, 0.0]])
    >>> steps = Steps(now, np.zeros((2, 1)), then)
    >>> [float(factor_error(spec, name, now[None], steps)[0]) for name in ("x", "on")]
    [1.0, 0.5]
    """
    columns = factors[name].slice
    guess, now, then = predicted[..., columns], steps.state[:, columns], steps.next_state[:, columns]
    if not factors[name].is_continuous:
        return ((guess > 0.5) != (then > 0.5)[None]).any(2).mean(1)
    size = np.sqrt((factors[name].difference(then, now) ** 2).mean(0))
    error = np.sqrt((factors[name].difference(guess, then[None]) ** 2).mean(1))
    return (error / np.where(size > 0, size, 1.0)).mean(1)
