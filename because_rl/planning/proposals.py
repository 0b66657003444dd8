"""Where a planner's candidates come from, and what lies beyond its horizon.

Every model-based method fits the same two stages: the behaviour policy of the data, cloned, from which candidates are
drawn, and a goal-conditioned value of the state at the end of a plan. Neither sees the state factors from which no path
leads to the goal in the method's own graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import (
    BehaviourPolicy,
    Persistence,
    behaviour_loss,
    draw_action,
    persistence,
)
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import ActionStatistics, PreparedData, Statistics, Summary, blank_outcomes
from because_rl.models.value import (
    Returns,
    Value,
    logged_returns,
    return_loss,
    rewards_ahead,
    value_loss,
    value_of_goal,
)
from because_rl.planning.shooting import ShootingConfig
from because_rl.training.run import Run
from because_rl.training.stage import Stage


@dataclass(frozen=True)
class PlanningConfig:
    """Settings of every method that plans in a learned model, beside those of its model."""

    hidden: int = 128
    batch: int = 256
    rate: float = 1e-3
    world_steps: int = 6000
    behaviour_steps: int = 2000
    behaviour_hidden: int = 128
    value_steps: int = 3000
    pessimism: float | None = None
    """lambda; None: set by the held-out data (`agent.price_pessimism`)"""
    price: float = 0.06
    """what a trajectory like the held-out ones pays for uncertainty, as a share of the goal's reward"""
    memory: float | None = None
    """AR(1) coefficient of the proposals' noise; None: as in the data"""
    discount: float = 0.99
    expectile: float = 0.8
    planner: ShootingConfig = field(default_factory=ShootingConfig)


def no_policy_reason(factors: FactorSpec) -> str:
    """Why no policy can be planned with these factors; empty where one can."""
    if not factors.goal and not factors.outcomes:
        return "the factors name no goal, and no rewards are logged"
    if factors.codes is None and (optional := [f.name for f in factors.action if f.optional]):
        return f"action {optional[0]!r} is optional and the factor spec has no 'codes'"
    return ""


def plans_exactly(factors: FactorSpec) -> bool:
    """Whether value iteration plans: over numbered actions, and states that can be listed. Otherwise shooting does."""
    continuous = any(factor.is_continuous for factor in factors.state)
    return factors.codes is not None and not continuous and not factors.maximises_reward


def needs_proposals(factors: FactorSpec) -> bool:
    """Whether plans are drawn from the behaviour policy."""
    return not plans_exactly(factors) and not no_policy_reason(factors)


def fit_proposals(c: PlanningConfig, prepared: PreparedData, run: Run, mask: np.ndarray) -> dict[str, Any]:
    """Fit the behaviour policy and the terminal value.

    `mask` is the method's own, (inputs, targets), or one for each seed, (seeds, inputs, targets).

    Returns 'behaviour', 'value', 'gate' and 'persistence' with a leading axis of seeds, or nothing where a planner
    needs none of them.
    """
    data, stats, actions = prepared.transitions, prepared.stats, prepared.summary.actions
    if not needs_proposals(data.factors):
        return {}
    masks = np.broadcast_to(mask, (len(run.seeds), *mask.shape[-2:]))
    gate = jnp.asarray(np.stack([goal_ancestors(prepared.layout, one) for one in masks]))
    behaviour = run.fit(
        Stage(
            "behaviour",
            lambda key, fixed: BehaviourPolicy(data.factors, key, hidden=c.behaviour_hidden),
            partial(behaviour_loss, stats, actions),
            c.behaviour_steps,
            c.batch,
            c.rate,
            settings={"hidden": c.behaviour_hidden}
            | ({} if data.factors.codes is None else {"codes": data.factors.codes}),
        ),
        prepared.train,
        gate,
    )
    more, rows = {}, prepared.train
    loss: Any = partial(value_loss, data.factors, stats, c.discount, c.expectile)
    if data.factors.maximises_reward:
        returns = logged_returns(data, c.discount)
        more = {"returns": broadcast_over_seeds(returns, len(run.seeds))}
        ahead = rewards_ahead(data, returns, c.discount)
        rows = {**rows, **{name: jnp.asarray(values[~data.held_out]) for name, values in ahead.items()}}
        loss = partial(return_loss, stats, returns, c.expectile)
    value = run.fit(
        Stage(
            "value",
            lambda key, fixed: Value(data.factors, key, hidden=c.hidden),
            loss,
            c.value_steps,
            c.batch,
            c.rate,
            settings={"hidden": c.hidden, "discount": c.discount, "expectile": c.expectile},
        ),
        rows,
        gate,
    )
    persistence = _persistence(prepared, behaviour, gate)
    return {"behaviour": behaviour, "value": value, "gate": gate, "persistence": persistence, **more}


def untrained_proposals(c: PlanningConfig, factors: FactorSpec, key: PRNGKeyArray) -> dict[str, Any]:
    """What `fit_proposals` returns, of one seed and before training."""
    if not needs_proposals(factors):
        return {}
    return {
        "behaviour": BehaviourPolicy(factors, key, hidden=c.behaviour_hidden),
        "value": Value(factors, key, hidden=c.hidden),
        "gate": jnp.ones(factors.state_size),
        "persistence": Persistence(jnp.zeros(()), jnp.zeros(())),
    } | ({"returns": Returns(*(jnp.zeros(()) for _ in Returns._fields))} if factors.maximises_reward else {})


def behaviour_policy(summary: Summary) -> Any:
    """A function (parameters of one seed, state, goal, noise) -> action, whose arrays are arguments of a `partial`."""
    return partial(_draw_action, summary.factors, summary.stats, summary.actions)


def _draw_action(
    factors: FactorSpec,
    stats: Statistics,
    actions: ActionStatistics,
    p: dict[str, Any],
    state: Array,
    goal: Array,
    noise: Array,
) -> Array:
    state = blank_outcomes(factors, stats, state)
    return draw_action(stats, actions, p["behaviour"], p["gate"], state, goal, noise)


def terminal_value(summary: Summary) -> Any:
    """A function (parameters of one seed, state, goal) -> value, whose arrays are arguments of a `partial`."""
    return partial(_terminal_value, summary.factors, summary.stats)


def _terminal_value(factors: FactorSpec, stats: Statistics, p: dict[str, Any], state: Array, goal: Array) -> Array:
    if factors.maximises_reward:
        value = p["value"](stats, p["gate"], blank_outcomes(factors, stats, state), goal)[0]
        return jnp.clip(value, p["returns"].least, p["returns"].most)
    return value_of_goal(factors, stats, p["value"], p["gate"], state, goal)


def outcome(summary: Summary) -> Any:
    """A function (parameters of one seed, imagined state) -> reward in units of returns, probability of an end.

    None where no rewards count.
    """
    return partial(_outcome, summary.factors, summary.stats) if summary.factors.outcomes else None


def _outcome(factors: FactorSpec, stats: Statistics, p: dict[str, Any], state: Array) -> tuple[Array, Array]:
    columns = {factor.role: factor.start for factor in factors.outcomes}
    at = columns["reward"]
    reward, end = jnp.clip(state[at], stats.low[at], stats.high[at]), jnp.zeros(())
    if "end" in columns:
        end = state[columns["end"]]
        reward = reward + p["returns"].end * end
    return reward / p["returns"].unit, end


def _persistence(prepared: PreparedData, behaviour: BehaviourPolicy, gate: Array) -> Persistence:
    data, actions = prepared.transitions, prepared.summary.actions
    episode = data.episode[~data.held_out]
    follows = jnp.asarray(np.append(episode[1:] == episode[:-1], False), jnp.float32)
    over_seeds = jax.jit(jax.vmap(partial(persistence, prepared.stats, actions), (0, 0, None, None)))
    return over_seeds(behaviour, gate, prepared.train, follows)


def goal_ancestors(layout: Layout, mask: np.ndarray) -> np.ndarray:
    """(state columns,) 1 for the state factors from which a path in the mask leads to the goal, or without one to the
    reward or an end, or to what a constraint is on, else 0."""
    names = [f.name for f in layout.factors.state]
    outcomes = {f.name for f in layout.factors.outcomes}
    ancestors = {goal.factor for goal in layout.factors.goal} | outcomes or set(names)
    ancestors |= {constraint.factor for constraint in layout.factors.constraints} & set(names)
    while True:
        parents = {
            name
            for i, name in enumerate(names)
            if any(mask[i, j] > 0 and names[j] in ancestors for j in range(len(names)))
        }
        if parents <= ancestors:
            break
        ancestors |= parents
    gate = np.zeros(layout.factors.state_size, np.float32)
    for factor in layout.factors.state:
        gate[factor.slice] = factor.name in ancestors
    return gate


def full_mask(factors: FactorSpec) -> np.ndarray:
    """(inputs, targets) ones: the mask of a method that keeps every edge."""
    return np.ones((len(factors.inputs), len(factors.targets)), np.float32)


def broadcast_over_seeds(tree: Any, seeds: int) -> Any:
    """The same arrays for every seed, with a leading axis of seeds."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (seeds, *a.shape)), tree)
