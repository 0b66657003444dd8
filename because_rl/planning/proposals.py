"""From a fitted model to an agent. In continuous actions planning needs more than a model: where candidates come
from, and what lies beyond the end.

Every model-based method fits the same two stages, the cloned action law of the data and a goal-conditioned
value. Neither sees the state factors from which, by the method's own graph, no path leads to the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import (
    Actions,
    Behaviour,
    Persistence,
    behaviour_loss,
    describe,
    draw,
    persistence,
)
from because_rl.models.bilinear import Outputs
from because_rl.models.column_statistics import Statistics
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.models.value import Value, value_loss, value_of_goal
from because_rl.planning.agent import LearnedModel, PlannerAgent, price
from because_rl.planning.shooting import ShootingConfig
from because_rl.training.run import Run
from because_rl.training.stage import Stage
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class PlanningConfig:
    """What every method that plans in a learned model can be told beside its model."""

    hidden: int = 128
    batch: int = 256
    rate: float = 1e-3
    world_steps: int = 6000
    behaviour_steps: int = 2000
    behaviour_hidden: int = 128
    value_steps: int = 3000
    pessimism: float | None = None
    """lambda; None: set by the held-out data (`planner_agent.price`)"""
    price: float = 0.06
    """what a trajectory like the held-out ones pays for uncertainty, as a share of the goal's reward"""
    memory: float | None = None
    """AR(1) coefficient of the proposals' noise; None: as in the data"""
    discount: float = 0.99
    expectile: float = 0.8
    planner: ShootingConfig = field(default_factory=ShootingConfig)


Predict = Callable[[Layout, Statistics, Any, Array, Array], tuple[list[Outputs], Array]]
"""A fitted model: (layout, statistics, parameters of one seed, state, action) -> outputs, penalty in [0, 1]."""


class Proposals(NamedTuple):
    """Fitted, for all seeds."""

    parameters: dict[str, Any]
    """behaviour, value and gate, each with a leading axis of seeds"""
    memory: float
    """lag-1 correlation of the action law's noise in the data"""
    habit: float
    """chance, in the data, that a component of the action law is kept for another step"""


def make_planner_agent(
    data: Transitions,
    run: Run,
    c: PlanningConfig,
    layout: Layout,
    stats: Statistics,
    weights: np.ndarray,
    parameters: Mapping[str, Any],
    predict: Predict,
    figures: Mapping[str, np.ndarray] | None = None,
) -> PlannerAgent:
    """The agent that plans in a fitted model, which is what all model-based methods end in.

    `weights`: the method's mask (inputs, targets). `parameters` have a leading axis of seeds.
    """
    parameters, planner = dict(parameters), c.planner
    if data.factors.codes is None and data.factors.goal:
        proposals = fit_proposals(data, run, c, layout, stats, weights)
        parameters |= proposals.parameters
        memory = proposals.memory if c.memory is None else c.memory
        planner = replace(planner, memory=memory, habit=proposals.habit)
    seeds = len(run.seeds)
    imagine, successor = partial(_imagine, predict, layout, stats), partial(_successor, predict, layout, stats)
    pessimism = price(data, imagine, parameters, seeds, c.price) if c.pessimism is None else np.full(seeds, c.pessimism)
    learned = LearnedModel(imagine, successor, law(data, stats), worth(data, stats))
    return PlannerAgent(data, run.seeds, learned, parameters, planner, pessimism, figures)


def _imagine(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array]:
    outputs, penalty = predict(layout, stats, p, state, action)
    return decode(layout, stats, outputs, state, hard=False).state, penalty


def _successor(
    predict: Predict, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[Array, Array, Array]:
    outputs, penalty = predict(layout, stats, p, state, action)
    guess = decode(layout, stats, outputs, state, hard=True)
    return guess.state, guess.log_p, penalty


def fit_proposals(
    data: Transitions, run: Run, c: PlanningConfig, layout: Layout, stats: Statistics, weights: np.ndarray
) -> Proposals:
    """`weights`: the method's mask (inputs, targets)."""
    train, actions = data.batch(~data.held_out), describe(data.action)
    gate = broadcast_over_seeds(jnp.asarray(relevant(layout, weights)), len(run.seeds))
    behaviour = run.fit(
        Stage(
            "behaviour",
            lambda key, fixed: Behaviour(data.factors, key, hidden=c.behaviour_hidden),
            partial(behaviour_loss, stats, actions),
            c.behaviour_steps,
            c.batch,
            c.rate,
        ),
        train,
        gate,
        of={"hidden": c.behaviour_hidden},
    )
    value = run.fit(
        Stage(
            "value",
            lambda key, fixed: Value(data.factors, key, hidden=c.hidden),
            partial(value_loss, data.factors, stats, c.discount, c.expectile),
            c.value_steps,
            c.batch,
            c.rate,
        ),
        train,
        gate,
        of={"hidden": c.hidden, "discount": c.discount, "expectile": c.expectile},
    )
    parameters = {"behaviour": behaviour, "value": value, "gate": gate}
    lasting = _persistence(data, stats, actions, behaviour, gate)
    return Proposals(parameters, float(lasting.noise.mean()), float(lasting.component.mean()))


def law(data: Transitions, stats: Statistics) -> Any:
    """(parameters, state, goal, noise) -> action."""
    return partial(_draw, stats, describe(data.action))


def _draw(stats: Statistics, actions: Actions, p: dict[str, Any], state: Array, goal: Array, noise: Array) -> Array:
    return draw(stats, actions, p["behaviour"], p["gate"], state, goal, noise)


def worth(data: Transitions, stats: Statistics) -> Any:
    """(parameters, state, goal) -> terminal value."""
    return partial(_value, data.factors, stats)


def _value(factors: FactorSpec, stats: Statistics, p: dict[str, Any], state: Array, goal: Array) -> Array:
    return value_of_goal(factors, stats, p["value"], p["gate"], state, goal)


def _persistence(
    data: Transitions, stats: Statistics, actions: Actions, behaviour: Behaviour, gate: Array
) -> Persistence:
    train = ~data.held_out
    episode = data.episode[train]
    follows = jnp.asarray(np.append(episode[1:] == episode[:-1], False), jnp.float32)
    every = jax.jit(jax.vmap(partial(persistence, stats, actions), (0, 0, None, None)))
    return every(behaviour, gate, data.batch(train), follows)


def relevant(layout: Layout, weights: np.ndarray) -> np.ndarray:
    """(state columns,) 1 for the state factors from which a path in the mask leads to the goal, else 0."""
    names = [f.name for f in layout.factors.state]
    found = {goal.factor for goal in layout.factors.goal} or set(names)
    while True:
        more = {
            name
            for i, name in enumerate(names)
            if any(weights[i, j] > 0 and names[j] in found for j in range(len(names)))
        }
        if more <= found:
            break
        found |= more
    gate = np.zeros(layout.factors.state_size, np.float32)
    for factor in layout.factors.state:
        gate[factor.slice] = factor.name in found
    return gate


def broadcast_over_seeds(tree: Any, seeds: int) -> Any:
    """The same for every seed, with a leading axis."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (seeds, *a.shape)), tree)
