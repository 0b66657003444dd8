"""How much more than an ordinary step can a plan cost? The range of each method's penalty.

    ordinary      mean penalty of the held-out rows, which sets lambda
    worst plan    largest mean penalty over the steps of an imagined plan, in units of the ordinary one
    worst step    largest penalty of a step of such plans, in the same unit

Plans are those that a planner considers: imagined in the learned model from held-out states, with actions of the
cloned behaviour policy, or drawn evenly where actions are discrete. A penalty with a small range is none in effect: all
plans pay nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.algorithms.registry import make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.planning.agent import PlannerAgent, PlanningMethod
from because_rl.planning.shooting import correlated, sticky
from because_rl.provenance import provenance
from because_rl.runs.train import load_for_training
from because_rl.transitions import Transitions
from benchmarks.ladder.run import DEVELOPMENT_SEEDS

Report = Callable[[int, int], None]
METHODS = ("because", "mopo", "mopo-plain", "delphic", "mnm")
"""Those with a penalty."""
STARTS, PLANS = 64, 64
"""Held-out states, and plans from each."""


def penalties(
    dataset: str,
    seed: int,
    keep: Path,
    methods: Sequence[str] = METHODS,
    settings: Mapping[str, str] | None = None,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """The range of the penalty of each method, trained on one dataset.

    Args:
        dataset: such as "unlock-medium".
        seed: of the dataset, one for development.
        keep: a folder for datasets.
        methods: that plan with a penalty.
        settings: of all methods that have a field of that name.
        report: called with (methods finished, methods in all).

    Returns:
        A row for each method.
    """
    if seed not in DEVELOPMENT_SEEDS:
        raise BecauseError(f"Got dataset seed {seed}.", need="500 to 599.", fix="leave other seeds to evaluation.")
    recipe = Recipe.parse(dataset, seed=seed)
    collect(recipe, keep)
    data, rows = load_for_training(recipe.id, keep), []
    for done, name in enumerate(methods):
        report(done, len(methods))
        method = make_method(name, None, recipe.world)
        known = {key: value for key, value in (settings or {}).items() if hasattr(method.config, key.split(".")[0])}
        method = make_method(name, known, recipe.world)
        if not isinstance(method, PlanningMethod):
            raise BecauseError(f"{name} has no world model.", need="a method that plans.", fix="leave it out.")
        agent = method.fit(data, 1)
        assert isinstance(agent, PlannerAgent)
        rows.append({"method": name, "dataset": dataset} | penalty_range(agent, data))
    report(len(methods), len(methods))
    return {"rows": rows, "provenance": provenance(dataset=dataset, dataset_seed=seed, settings=dict(settings or {}))}


def penalty_range(agent: PlannerAgent, data: Transitions) -> dict[str, float]:
    """The figures of the module's docstring, of the agent's first seed."""
    held = np.flatnonzero(data.held_out)
    ordinary = float(agent.predict(data.state[held], data.action[held], seed=agent.seeds[0]).uncertainty.mean())
    starts = held[np.linspace(0, len(held) - 1, min(STARTS, len(held))).astype(int)]
    each = np.asarray(plan_penalties(agent, data.state[starts], data.goal[starts]))
    unit = max(ordinary, 1e-12)
    return {
        "ordinary": ordinary,
        "median_plan": float(np.median(each.mean(-1)) / unit),
        "worst_plan": float(each.mean(-1).max() / unit),
        "worst_step": float(each.max() / unit),
        "pessimism": float(agent.pessimism[0]),
    }


def plan_penalties(agent: PlannerAgent, state: np.ndarray, goal: np.ndarray) -> Array:
    """(states, plans, steps) the penalties of imagined plans."""
    factors, learned, h = agent.factors, agent.learned, agent.config.horizon
    p = jax.tree.map(lambda a: a[0], agent.parameters)
    codes = None if factors.codes is None else jnp.asarray(factors.codes, jnp.float32)

    def from_state(state: Array, goal: Array, key: Array) -> Array:
        if codes is not None:
            choices = codes[jax.random.randint(key, (PLANS, h), 0, len(codes))]
        else:
            memory, habit = p["persistence"]
            k1, k2 = jax.random.split(key)
            noise = correlated(k1, (PLANS, h, factors.action_size), memory)
            choices = jnp.concatenate([sticky(k2, (PLANS, h), habit)[:, :, None], noise], axis=2)

        def step(at: Array, choice: Array) -> tuple[Array, Array]:
            if codes is not None:
                after, _, penalty = learned.successor(p, at, choice)
                return after, penalty
            low, high = agent.summary.actions.low, agent.summary.actions.high
            action = jnp.clip(learned.behaviour_policy(p, at, goal, choice), low, high)
            return learned.imagine(p, at, action)

        return jax.vmap(lambda choices: jax.lax.scan(step, state, choices)[1])(choices)

    keys = jax.random.split(jax.random.key(0), len(state))
    return jax.jit(lambda s, g, k: jax.lax.map(lambda row: from_state(*row), (s, g, k)))(
        jnp.asarray(state), jnp.asarray(goal), keys
    )
