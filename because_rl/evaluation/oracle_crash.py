"""Crash's oracle planner: shooting with the true equations of motion, including the hidden slope."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.crash.batch import crash_step
from because_rl.evaluation.oracle_planner import Oracle
from because_rl.factors import FactorSpec
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan

SHOOTING = ShootingConfig(population=768, horizon=30, pessimism=0.0, proposals="uniform", hold=6)


def _crash_advance(slope: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    after = crash_step(state, action, slope[0], slope[1])
    return after, after, jnp.zeros(())


CRASH = PlanningModel(
    begin=lambda slope, state: state,
    advance=_crash_advance,
    behaviour_policy=lambda slope, state, goal, noise: jnp.zeros_like(noise[1:]),
    terminal_value=lambda slope, state, goal: jnp.zeros(()),
)
"""The true dynamics as a planning model. Parameters: the hidden slopes (of all bodies but the car, of the car)."""


@partial(jax.jit, static_argnames=("config", "factors"))
def _crash_plans(
    config: ShootingConfig,
    factors: FactorSpec,
    slope: jax.Array,
    state: jax.Array,
    goal: jax.Array,
    before: Plan,
    steps_left: jax.Array,
    key: jax.Array,
) -> Plan:
    limit = jnp.ones(factors.action_size)

    def one(world: tuple) -> Plan:
        slope, state, goal, before, key = world
        return plan(config, factors, CRASH, slope, state, goal, before, steps_left, -limit, limit, key)

    keys = jax.random.split(key, len(state))
    return jax.lax.map(one, (slope, state, goal, before, keys), batch_size=16)  # small enough for cache and memory


class CrashOracle(Oracle):
    """Plans for every world of the batch at every step."""

    def __init__(self, seed: int = 0, config: ShootingConfig = SHOOTING):
        self.key, self.config = jax.random.key(seed), config

    def begin(self, batch: BatchEnv) -> None:
        self.factors = batch.factors
        self.slope = jnp.asarray(batch.hidden()["slope"][:, :2], jnp.float32)
        empty = first_plan(self.config, batch.factors)
        self.plans: Plan = jax.tree.map(lambda a: jnp.broadcast_to(a, (batch.size, *a.shape)), empty)

    def act(self, observation: Observation, steps_left: int) -> np.ndarray:
        state, goal = (jnp.asarray(part) for part in observation)
        key = jax.random.fold_in(self.key, steps_left)
        self.plans = _crash_plans(
            self.config, self.factors, self.slope, state, goal, self.plans, jnp.asarray(steps_left), key
        )
        return np.asarray(self.plans.actions[:, 0])
