"""Act by planning in a learned model: the part that all model-based methods share.

Discrete actions are planned by exact value iteration, continuous ones by shooting from the data's behaviour policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.factors import FactorSpec
from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import PreparedData, Statistics
from because_rl.planning.goal import attained
from because_rl.planning.proposals import PlanningConfig, Proposals, behaviour_policy, terminal_value
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan
from because_rl.planning.value_iteration import Successors, ValueIteration
from because_rl.rng import child_seed
from because_rl.training.method import Agent
from because_rl.training.run import Run
from because_rl.training.stage import hoist
from because_rl.transitions import Transitions

CPU_WORLD_BATCH = 4
"""Worlds that a CPU plans for at once, at most."""

Predict = Callable[[Layout, Statistics, Any, Array, Array], tuple[list[Outputs], Array]]
"""A fitted model: (layout, statistics, parameters of one seed, state, action) -> outputs, penalty in [0, 1]."""


class LearnedModel(NamedTuple):
    """A learned model as planners use it: pure functions of (parameters of one seed, one row)."""

    imagine: Callable[[Any, Array, Array], tuple[Array, Array]]
    """state, action -> next state with binary factors as probabilities, penalty in [0, 1]"""
    successor: Callable[[Any, Array, Array], tuple[Array, Array, Array]]
    """state, action -> the likeliest next state, its log-probability, penalty"""
    behaviour_policy: Callable[[Any, Array, Array, Array], Array]
    """state, goal, noise -> action"""
    terminal_value: Callable[[Any, Array, Array], Array]
    """state, goal -> value"""


def make_planner_agent(
    c: PlanningConfig,
    prepared: PreparedData,
    run: Run,
    predict: Predict,
    parameters: Mapping[str, Any],
    proposals: Proposals,
    diagnostics: Mapping[str, np.ndarray] | None = None,
) -> PlannerAgent:
    """The agent that plans in a fitted model, which all model-based methods return.

    `predict` is the fitted model, `parameters` what it reads, with a leading axis of seeds on every array.
    `diagnostics` are numbers to report, one per seed.
    """
    # An Equinox model may hold functions as leaves.
    arrays, static = eqx.partition(dict(parameters), lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
    if jax.tree.leaves(static):
        predict = partial(_predict_with_static, predict, static)
    parameters, seeds = {**arrays, **proposals.parameters}, len(run.seeds)
    learned = LearnedModel(
        partial(_imagine, predict, prepared.layout, prepared.stats),
        partial(_successor, predict, prepared.layout, prepared.stats),
        behaviour_policy(prepared),
        terminal_value(prepared),
    )
    planner = c.planner
    if proposals.parameters:
        memory = proposals.noise_persistence if c.memory is None else c.memory
        planner = replace(planner, memory=memory, habit=proposals.component_persistence)
    data = prepared.transitions
    if c.pessimism is None:
        pessimism = price_pessimism(data, learned.imagine, parameters, c.price)
    else:
        pessimism = np.full(seeds, c.pessimism)
    return PlannerAgent(data, run.seeds, learned, parameters, planner, pessimism, diagnostics)


def _predict_with_static(
    predict: Predict, static: Any, layout: Layout, stats: Statistics, p: Any, state: Array, action: Array
) -> tuple[list[Outputs], Array]:
    return predict(layout, stats, {**p, **eqx.combine({name: p[name] for name in static}, static)}, state, action)


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


def price_pessimism(
    data: Transitions, imagine: Callable[..., tuple[Array, Array]], parameters: Any, price: float
) -> np.ndarray:
    """(seeds,) lambda such that a trajectory like the held-out ones pays `price` of the goal's reward in penalties.

    lambda = price / (horizon * mean penalty of held-out rows), at most 1.
    """
    held = data.batch(data.held_out)
    rows = jax.jit(jax.vmap(jax.vmap(lambda p, s, a: imagine(p, s, a)[1], (None, 0, 0)), (0, None, None)))
    ordinary = np.asarray(rows(parameters, held["state"][:2000], held["action"][:2000])).mean(1)
    return np.minimum(price / (data.horizon * np.maximum(ordinary, 0.02)), 1.0)


class PlannerAgent(Agent):
    """Plans anew at every step, for every seed and world."""

    def __init__(
        self,
        data: Transitions,
        seeds: tuple[int, ...],
        learned: LearnedModel,
        parameters: Any,
        config: ShootingConfig,
        pessimism: np.ndarray,
        diagnostics: Mapping[str, np.ndarray] | None = None,
    ):
        """`parameters`, `pessimism` (lambda) and `diagnostics` have a leading axis of seeds."""
        self.diagnostics = dict(diagnostics or {}) | {"pessimism": pessimism}
        config = replace(config, pessimism=1.0)  # penalties come multiplied by each seed's own lambda
        self.seeds, self.factors, self.horizon, self.config = seeds, data.factors, data.horizon, config
        self.learned, self.parameters, self.pessimism = learned, parameters, pessimism
        self.discrete = data.factors.codes is not None
        if self.discrete:
            self._successors = jax.jit(jax.vmap(learned.successor, in_axes=(None, 0, 0)))
        else:
            arrays, functions = hoist(learned)
            bounds = Bounds(data.action.min(0), data.action.max(0), config.memory, config.habit)
            self._inputs = arrays, Bounds(*(jnp.asarray(b, jnp.float32) for b in bounds))
            # What data decide is an argument, so that one compiled program serves all datasets of a world.
            self._plan = _compile(replace(config, memory=0.0, habit=0.0), self.factors, functions)

    def begin(self, worlds: int, seed: int) -> None:
        if self.discrete:
            self._planners = [self._value_iteration(k) for k in range(len(self.seeds))]
            return
        blank = first_plan(self.config, self.factors)
        shape = (len(self.seeds), worlds)
        self._last_plan = jax.tree.map(lambda a: jnp.broadcast_to(a, (*shape, *a.shape)), blank)
        self._key = jax.random.key(child_seed(seed, "plan") % 2**31)

    def _value_iteration(self, k: int) -> ValueIteration:
        parameters = jax.tree.map(lambda a: a[k], self.parameters)

        def model(states: np.ndarray, actions: np.ndarray) -> Successors:
            state, log_p, penalty = self._successors(parameters, jnp.asarray(states), jnp.asarray(actions))
            return Successors(np.asarray(state), np.exp(np.asarray(log_p, np.float64)), np.asarray(penalty))

        return ValueIteration(
            model, self.factors, self.horizon, discount=self.config.discount, pessimism=float(self.pessimism[k])
        )

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        if self.discrete:
            return np.stack([p.act(s, g, steps_left) for p, s, g in zip(self._planners, state, goal, strict=True)])
        self._key, key = jax.random.split(self._key)
        self._last_plan = self._plan(
            self._inputs,
            self.parameters,
            jnp.asarray(self.pessimism, jnp.float32),
            jnp.asarray(state, jnp.float32),
            jnp.asarray(goal, jnp.float32),
            self._last_plan,
            jnp.asarray(steps_left),
            key,
        )
        return np.asarray(self._last_plan.actions[:, :, 0])


class Bounds(NamedTuple):
    """What the data say about actions: their box, and the temporal persistence of the behaviour noise."""

    low: Any
    high: Any
    memory: Any
    habit: Any


def _compile(config: ShootingConfig, factors: FactorSpec, functions: Any) -> Callable[..., Plan]:
    """One program for all steps, over seeds and worlds; `functions` is a `LearnedModel` without its arrays."""
    on_cpu = jax.default_backend() == "cpu"

    def advance(learned: LearnedModel, parameters: Any, state: Array, action: Array) -> tuple[Array, Array, Array]:
        after, penalty = learned.imagine(parameters[0], state, action)
        return after, after, penalty * parameters[1]  # lambda is part of the parameters: one program for all of them

    def plan_of_seed(
        inputs: Any, parameters: Any, state: Array, goal: Array, before: Plan, steps_left: Array, key: Array
    ) -> Plan:
        learned, bounds = eqx.combine(inputs[0], functions), inputs[1]
        model = PlanningModel(
            begin=lambda parameters, state: state,
            advance=partial(advance, learned),
            behaviour_policy=lambda p, state, goal, noise: learned.behaviour_policy(p[0], state, goal, noise),
            terminal_value=lambda p, state, goal: learned.terminal_value(p[0], state, goal),
        )
        settings = replace(config, memory=bounds.memory, habit=bounds.habit)

        def plan_of_world(world: tuple[Array, Array, Plan, Array]) -> Plan:
            state, goal, before, key = world
            return plan(
                settings, factors, model, parameters, state, goal, before, steps_left, bounds.low, bounds.high, key
            )

        worlds = (state, goal, before, jax.random.split(key, len(state)))
        if not on_cpu:
            return jax.vmap(plan_of_world)(worlds)
        # A few worlds at a time, so that their candidates stay in the caches. Worlds at their goal are sorted to the
        # end, and a batch of them alone is not planned for.
        done = jax.vmap(partial(attained, factors))(state, goal) > 0.5
        order = jnp.argsort(done)
        size = -(-len(state) // -(-len(state) // CPU_WORLD_BATCH))
        padded = jnp.concatenate([order, jnp.broadcast_to(order[-1:], (-len(state) % size,))])
        batches = jax.tree.map(lambda a: a[padded].reshape(-1, size, *a.shape[1:]), (worlds, done))
        plans = jax.lax.map(
            lambda batch: jax.lax.cond(batch[1].all(), lambda: batch[0][2], lambda: jax.vmap(plan_of_world)(batch[0])),
            batches,
        )
        original = jnp.argsort(order)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[original], plans)

    @jax.jit
    def plan_all(
        inputs: Any,
        parameters: Any,
        pessimism: Array,
        state: Array,
        goal: Array,
        before: Plan,
        steps_left: Array,
        key: Array,
    ) -> Plan:
        per_seed = ((parameters, pessimism), state, goal, before, jax.random.split(key, len(state)))

        def one_seed(arguments: tuple) -> Plan:
            parameters, state, goal, before, key = arguments
            return plan_of_seed(inputs, parameters, state, goal, before, steps_left, key)

        return jax.lax.map(one_seed, per_seed) if on_cpu else jax.vmap(one_seed)(per_seed)

    return plan_all
