"""How wrong a world model is one step ahead, apart from any planning: on what the behaviour that logged its data does
in new scenes, of the training law or of another.

The error of a continuous factor is the root of its mean squared error, in units of the usual size of its change
(1: no better than 'nothing moves'); of a discrete one it is the share of wrong predictions. A model's error is the
mean over factors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import make_batch
from because_rl.factors import FactorSpec
from because_rl.planning.agent import PlannerAgent

OTHER_SEED = 1_000_000
"""Added to a dataset's seed: no dataset and no evaluation has these scenes."""


class Steps(NamedTuple):
    state: np.ndarray
    action: np.ndarray
    """columns, as models see them"""
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
    """Of each seed and factor, and the mean."""
    guess = jax.jit(
        jax.vmap(jax.vmap(lambda p, s, a: agent.learned.successor(p, s, a)[0], (None, 0, 0)), (0, None, None))
    )
    told = np.asarray(
        guess(agent.parameters, jnp.asarray(steps.state, jnp.float32), jnp.asarray(steps.action, jnp.float32))
    )
    each = {f.name: factor_error(agent.factors, f.name, told, steps).tolist() for f in agent.factors.state}
    per_seed = np.mean(list(each.values()), axis=0)
    return {"rows": len(steps.state), "error": float(per_seed.mean()), "per_seed": per_seed.tolist(), "factors": each}


def factor_error(factors: FactorSpec, name: str, told: np.ndarray, steps: Steps) -> np.ndarray:
    """(K,) of predictions (K, rows, state).

    >>> from because_rl.factors import pack
    >>> spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("a", 1, "continuous")))
    >>> now, then = np.zeros((2, 2)), np.array([[1.0, 1.0], [-1.0, 0.0]])
    >>> steps = Steps(now, np.zeros((2, 1)), then)
    >>> [float(factor_error(spec, name, now[None], steps)[0]) for name in ("x", "on")]
    [1.0, 0.5]
    """
    columns = factors[name].slice
    guess, now, then = told[..., columns], steps.state[:, columns], steps.next_state[:, columns]
    if factors[name].type != "continuous":
        return ((guess > 0.5) != (then > 0.5)[None]).any(2).mean(1)
    size = np.sqrt(((then - now) ** 2).mean(0))
    error = np.sqrt(((guess - then[None]) ** 2).mean(1))
    return (error / np.where(size > 0, size, 1.0)).mean(1)
