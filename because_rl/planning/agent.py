"""Act by planning in a learned model: the part that all model-based methods share.

Discrete actions are planned by exact value iteration, continuous ones by shooting from the data's action law.
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
from because_rl.planning.goal import attained
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan
from because_rl.planning.value_iteration import Successors, ValueIteration
from because_rl.rng import child_seed
from because_rl.training.method import Agent
from because_rl.training.stage import hoist
from because_rl.transitions import Transitions

CPU_WORLD_BATCH = 4
"""Worlds that a CPU plans for at once, at most."""


class LearnedModel(NamedTuple):
    """A learned model as planners use it: pure functions of (parameters of one seed, one row)."""

    imagine: Callable[[Any, Array, Array], tuple[Array, Array]]
    """state, action -> next state with binary factors as probabilities, penalty in [0, 1]"""
    successor: Callable[[Any, Array, Array], tuple[Array, Array, Array]]
    """state, action -> the likeliest next state, its log-probability, penalty"""
    law: Callable[[Any, Array, Array, Array], Array]
    value: Callable[[Any, Array, Array], Array]


def price(
    data: Transitions, imagine: Callable[..., tuple[Array, Array]], parameters: Any, seeds: int, share: float
) -> np.ndarray:
    """lambda of each seed, by held-out data: a trajectory like those pays a `share` of the goal's reward in penalties.

    lambda = share / (horizon * mean penalty of held-out rows), at most 1.
    """
    held = data.batch(data.held_out)
    rows = jax.jit(jax.vmap(jax.vmap(lambda p, s, a: imagine(p, s, a)[1], (None, 0, 0)), (0, None, None)))
    ordinary = np.asarray(rows(parameters, held["state"][:2000], held["action"][:2000])).mean(1)
    return np.minimum(share / (data.horizon * np.maximum(ordinary, 0.02)), 1.0)


class PlannerAgent(Agent):
    def __init__(
        self,
        data: Transitions,
        seeds: tuple[int, ...],
        learned: LearnedModel,
        parameters: Any,
        config: ShootingConfig,
        pessimism: np.ndarray,
        figures: Mapping[str, np.ndarray] | None = None,
    ):
        """`parameters` have a leading axis of seeds, as have `pessimism` (lambda) and the `figures` to report."""
        self.figures = dict(figures or {}) | {"pessimism": pessimism}
        config = replace(config, pessimism=1.0)  # penalties come multiplied by each seed's own lambda
        self.seeds, self.factors, self.horizon, self.config = seeds, data.factors, data.horizon, config
        self.learned, self.parameters, self.pessimism = learned, parameters, pessimism
        self.discrete = data.factors.codes is not None
        if self.discrete:
            step = jax.jit(jax.vmap(learned.successor, in_axes=(None, 0, 0)))
            self._successors = step
        else:
            given, rest = hoist(learned)
            bounds = Bounds(data.action.min(0), data.action.max(0), config.memory, config.habit)
            self._given = given, Bounds(*(jnp.asarray(b, jnp.float32) for b in bounds))
            # What data decide is an argument, so that one compiled program serves all datasets of a world.
            self._plan = _compile(replace(config, memory=0.0, habit=0.0), self.factors, rest)

    def begin(self, worlds: int, seed: int) -> None:
        if self.discrete:
            self._planners = [self._table(k) for k in range(len(self.seeds))]
            return
        blank = first_plan(self.config, self.factors)
        shape = (len(self.seeds), worlds)
        self._before = jax.tree.map(lambda a: jnp.broadcast_to(a, (*shape, *a.shape)), blank)
        self._key = jax.random.key(child_seed(seed, "plan") % 2**31)

    def _table(self, k: int) -> ValueIteration:
        mine = jax.tree.map(lambda a: a[k], self.parameters)

        def model(states: np.ndarray, actions: np.ndarray) -> Successors:
            state, log_p, penalty = self._successors(mine, jnp.asarray(states), jnp.asarray(actions))
            return Successors(np.asarray(state), np.exp(np.asarray(log_p, np.float64)), np.asarray(penalty))

        return ValueIteration(
            model, self.factors, self.horizon, discount=self.config.discount, pessimism=float(self.pessimism[k])
        )

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        if self.discrete:
            return np.stack([p.act(s, g, steps_left) for p, s, g in zip(self._planners, state, goal, strict=True)])
        self._key, now = jax.random.split(self._key)
        self._before = self._plan(
            self._given,
            self.parameters,
            jnp.asarray(self.pessimism, jnp.float32),
            jnp.asarray(state, jnp.float32),
            jnp.asarray(goal, jnp.float32),
            self._before,
            jnp.asarray(steps_left),
            now,
        )
        return np.asarray(self._before.actions[:, :, 0])


class Bounds(NamedTuple):
    """What the data say about actions: their box, and how long whims last."""

    low: Any
    high: Any
    memory: Any
    habit: Any


def _compile(config: ShootingConfig, factors: FactorSpec, rest: Any) -> Callable[..., Plan]:
    """One program for all steps, over seeds and worlds; `rest` is `Learned` without its arrays."""
    on_cpu = jax.default_backend() == "cpu"

    def advance(learned: LearnedModel, parameters: Any, state: Array, action: Array) -> tuple[Array, Array, Array]:
        after, penalty = learned.imagine(parameters[0], state, action)
        return after, after, penalty * parameters[1]  # lambda is part of the parameters: one program for all of them

    def seed(
        given: Any, parameters: Any, state: Array, goal: Array, before: Plan, steps_left: Array, key: Array
    ) -> Plan:
        learned, bounds = eqx.combine(given[0], rest), given[1]
        model = PlanningModel(
            begin=lambda parameters, state: state,
            advance=partial(advance, learned),
            law=lambda parameters, state, goal, noise: learned.law(parameters[0], state, goal, noise),
            value=lambda parameters, state, goal: learned.value(parameters[0], state, goal),
        )
        settings = replace(config, memory=bounds.memory, habit=bounds.habit)

        def world(inputs: tuple[Array, Array, Plan, Array]) -> Plan:
            state, goal, before, key = inputs
            return plan(
                settings, factors, model, parameters, state, goal, before, steps_left, bounds.low, bounds.high, key
            )

        inputs = (state, goal, before, jax.random.split(key, len(state)))
        if not on_cpu:
            return jax.vmap(world)(inputs)
        # A few worlds at a time: their candidates then stay in the caches. Where all have their goal, nothing is done.
        there = jax.vmap(partial(attained, factors))(state, goal) > 0.5
        order = jnp.argsort(there)
        together = -(-len(state) // -(-len(state) // CPU_WORLD_BATCH))
        filled = jnp.concatenate([order, jnp.broadcast_to(order[-1:], (-len(state) % together,))])
        some = jax.tree.map(lambda a: a[filled].reshape(-1, together, *a.shape[1:]), (inputs, there))
        plans = jax.lax.map(
            lambda few: jax.lax.cond(few[1].all(), lambda: few[0][2], lambda: jax.vmap(world)(few[0])), some
        )
        back = jnp.argsort(order)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[back], plans)

    @jax.jit
    def every(
        given: Any,
        parameters: Any,
        pessimism: Array,
        state: Array,
        goal: Array,
        before: Plan,
        steps_left: Array,
        key: Array,
    ) -> Plan:
        own = ((parameters, pessimism), state, goal, before, jax.random.split(key, len(state)))

        def one(own: tuple) -> Plan:
            parameters, state, goal, before, key = own
            return seed(given, parameters, state, goal, before, steps_left, key)

        return jax.lax.map(one, own) if on_cpu else jax.vmap(one)(own)

    return every
