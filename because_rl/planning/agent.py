"""Act by planning in a learned model: the part that all model-based methods share.

Numbered actions in discrete states are planned by exact value iteration, all others by shooting from the data's
behaviour policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import nearest_code
from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import PreparedData, Statistics, Summary
from because_rl.planning.calibration import error_scale, event_shifts, price_pessimism
from because_rl.planning.export import write_policy
from because_rl.planning.goal import ended
from because_rl.planning.learned_model import LearnedModel, split_learned
from because_rl.planning.limits import action_box
from because_rl.planning.proposals import no_policy_reason, plans_exactly, untrained_proposals
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan
from because_rl.planning.value_iteration import Successors, ValueIteration
from because_rl.rng import child_seed
from because_rl.training.method import Agent, Controller, Method, Prediction, describe_data
from because_rl.training.run import Run, check_saved, flatten, unflatten, untrained_of_seeds
from because_rl.training.side_by_side import Program, describe, run_program
from because_rl.training.stage import hoist, over_rows

CPU_WORLD_BATCH, GPU_WORLD_BATCH = 4, 100
"""Worlds of a seed that are planned for at once, at most: on a CPU for its caches, on a GPU for its memory."""


class PlanningMethod(Method):
    """A method that learns a world model and plans in it; its config extends `PlanningConfig`."""

    @abstractmethod
    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        """The parameters that `predict` reads, of one seed and before training: a saved agent has their structure."""

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        """The model's outputs for one row by the parameters `p` of one seed, and the penalty in [0, 1].

        This one is for a model 'world' without uncertainty: its penalty is 0.
        """
        return p["world"](stats, p.get("mask"), jnp.concatenate([state, action])), jnp.zeros(())

    def make_agent(
        self,
        prepared: PreparedData,
        run: Run,
        model: Mapping[str, Any],
        proposals: Mapping[str, Any],
        diagnostics: Mapping[str, np.ndarray] | None = None,
    ) -> PlannerAgent:
        """The agent that plans in a fitted model.

        `model` is what `predict` reads, `proposals` what `fit_proposals` returned, with a leading axis of seeds on
        every array. `diagnostics` are numbers to report, one per seed.
        """
        c, data, parameters = self.config, prepared.transitions, {**model, **proposals}
        arrays, learned = split_learned(self.predict, prepared.summary, parameters)
        parameters["event_shift"] = jnp.asarray(event_shifts(data, prepared.stats, learned.expect, arrays))
        if data.factors.constraints:
            parameters["error_scale"] = jnp.asarray(error_scale(data, learned.forecast, arrays))
        if c.pessimism is None:
            pessimism = price_pessimism(data, learned.imagine, arrays, c.price)
        else:
            pessimism = np.full(len(run.seeds), c.pessimism)
        agent = PlannerAgent(self, prepared.summary, run.seeds, parameters, pessimism)
        agent.trained_on = describe_data(data)
        agent.diagnostics = dict(diagnostics or {}) | agent.diagnostics
        return agent

    def restore(
        self, factors: FactorSpec, horizon: int, seeds: tuple[int, ...], arrays: Mapping[str, np.ndarray]
    ) -> PlannerAgent:
        summary = Summary.restore(factors, horizon, arrays)

        def untrained(key: PRNGKeyArray) -> dict[str, Any]:
            # Earlier versions fitted no proposals for numbered actions in continuous states and no shifts of events:
            # their models still load.
            more = untrained_proposals(self.config, factors, key) if "['gate']" in arrays else {}
            if "['event_shift']" in arrays:
                more["event_shift"] = jnp.zeros(factors.state_size)
            if factors.constraints:
                more["error_scale"] = jnp.ones(factors.state_size)
            return self.untrained(summary, key) | more

        parameters = unflatten(untrained_of_seeds(untrained, len(seeds)), arrays, "agent")
        check_saved(arrays, "pessimism", (len(seeds),))
        return PlannerAgent(self, summary, seeds, parameters, arrays["pessimism"])


class PlannerAgent(Agent):
    """Plans anew at every step, for every seed and world."""

    def __init__(
        self, method: PlanningMethod, summary: Summary, seeds: tuple[int, ...], parameters: Any, pessimism: np.ndarray
    ):
        """`parameters` and `pessimism` (lambda) have a leading axis of seeds."""
        super().__init__(method, seeds, summary.factors, summary.horizon)
        self.summary, self.pessimism = summary, pessimism
        self.diagnostics = {"pessimism": pessimism}
        self.parameters, self.learned = split_learned(method.predict, summary, parameters)
        self.given = parameters
        # Penalties come multiplied by each seed's own lambda.
        self.config = replace(method.config.planner, pessimism=1.0)
        self.exact = plans_exactly(self.factors)
        if self.exact:
            self._successor_arrays, functions = hoist((self.learned.successor, self.learned.violation))
            self._successors = _compile_successors(functions)
        else:
            arrays, functions = hoist(self.learned)
            bounds = action_box(self.factors, summary.actions)
            self._inputs = arrays, tuple(jnp.asarray(b, jnp.float32) for b in bounds)
            # What data decide is an argument, so that one compiled program serves all datasets of a world.
            self._plan = _compile(self.config, method.config.memory, self.factors, functions)

    def start(self, worlds: int, seed: int = 0) -> Controller:
        if no_policy_reason(self.factors) or not (self.exact or "behaviour" in self.given):
            raise BecauseError(
                f"This agent has no policy: {no_policy_reason(self.factors) or 'an earlier version fitted it'}.",
                need="a goal, and a behaviour policy of the data to draw plans from.",
                fix="fit it again, with a factor spec of which a policy can be planned; predict works as it is.",
            )
        if self.exact:
            return ValueIterationController([self._value_iteration(k) for k in range(len(self.seeds))])
        return ShootingController(self, worlds, seed)

    def single_step_controller(self, worlds: int) -> Controller:
        return self._exact_plans if self.exact else self.start(worlds)

    @cached_property
    def _exact_plans(self) -> Controller:
        """Value iteration does not depend on earlier steps, so all single steps share its tables."""
        return self.start(1)

    def export(self, path: str | Path) -> dict[str, Any]:
        self.start(1)  # refuses agents without a policy
        return write_policy(self, path)

    def arrays(self) -> dict[str, np.ndarray]:
        return flatten(self.parameters) | self.summary.arrays() | {"pessimism": np.asarray(self.pessimism)}

    def _one_seed(self, k: int) -> PlannerAgent:
        parameters = jax.tree.map(lambda a: a[k : k + 1] if eqx.is_array(a) else a, self.given)
        return self.variant(parameters, self.pessimism[k : k + 1], self.seeds[k : k + 1])

    def variant(self, parameters: Any, pessimism: np.ndarray, seeds: tuple[int, ...]) -> PlannerAgent:
        """An agent with other parameters of the same structure; programs that were compiled for this one serve it."""
        assert isinstance(self.method, PlanningMethod)
        other = PlannerAgent(self.method, self.summary, seeds, parameters, pessimism)
        if self.exact:
            other._successors = self._successors
        else:
            other._plan = self._plan
        return other

    @cached_property
    def _expect_rows(self) -> Callable[..., tuple[Array, Array]]:
        return over_rows("expect", self.learned.expect)

    def _predict(self, state: np.ndarray, action: np.ndarray) -> Prediction:
        expected, penalty = self._expect_rows(self.parameters, jnp.asarray(state), jnp.asarray(action))
        after, columns = np.array(expected), {factor.role: factor.start for factor in self.factors.outcomes}
        if "end" in columns and "returns" in self.parameters:
            brought = np.asarray(self.parameters["returns"].end)[:, None] * after[..., columns["end"]]
            after[..., columns["reward"]] += brought
        return Prediction(likeliest_levels(self.factors, after.mean(0)), np.asarray(penalty).mean(0))

    def _value_iteration(self, k: int) -> ValueIteration:
        parameters = jax.tree.map(lambda a: a[k], self.parameters)

        def model(states: np.ndarray, actions: np.ndarray) -> Successors:
            rows = jnp.asarray(states), jnp.asarray(actions)
            state, log_p, *rest = run_program(self._successors, self._successor_arrays, parameters, *rows)
            return Successors(np.asarray(state), np.exp(np.asarray(log_p, np.float64)), *map(np.asarray, rest))

        return ValueIteration(
            model, self.factors, self.horizon, discount=self.config.discount, pessimism=float(self.pessimism[k])
        )


def _with_persistence(planner: ShootingConfig, memory: float | None, p: Mapping[str, Any]) -> ShootingConfig:
    """The planner's settings, with the persistence of the behaviour noise that a seed has estimated.

    `memory`: that of the method's config; None: as in the data. `p`: the parameters of the seed.
    """
    if "persistence" not in p:
        return planner
    noise, component = p["persistence"]
    return replace(planner, memory=noise if memory is None else memory, habit=component)


def likeliest_levels(factors: FactorSpec, state: np.ndarray) -> np.ndarray:
    """(n, state columns) with probabilities of discrete factors replaced by their likeliest level."""
    state = state.copy()
    for factor in factors.state:
        columns = state[:, factor.slice]
        if factor.type == "binary":
            state[:, factor.slice] = columns > 0.5
        elif factor.type == "categorical":
            level = np.arange(factor.width) == columns.argmax(1, keepdims=True)
            if factor.optional:  # no level at all is likelier
                level &= columns.max(1, keepdims=True) > 1.0 - columns.sum(1, keepdims=True)
            state[:, factor.slice] = level
    return state


class ValueIterationController(Controller):
    """Exact plans; what the model was asked once is kept."""

    def __init__(self, planners: list[ValueIteration]):
        self._planners = planners

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        return np.stack([p.act(s, g, steps_left) for p, s, g in zip(self._planners, state, goal, strict=True)])


class ShootingController(Controller):
    """Plans from the last plan, one step later."""

    def __init__(self, agent: PlannerAgent, worlds: int, seed: int):
        blank, shape = first_plan(agent.config, agent.factors), (len(agent.seeds), worlds)
        self._agent, self._key = agent, jax.random.key(child_seed(seed, "plan") % 2**31)
        self._last_plan = jax.tree.map(lambda a: jnp.broadcast_to(a, (*shape, *a.shape)), blank)

    def act(self, state: np.ndarray, goal: np.ndarray, steps_left: int) -> np.ndarray:
        agent = self._agent
        self._key, key = jax.random.split(self._key)
        self._last_plan = run_program(
            agent._plan,
            agent._inputs,
            agent.parameters,
            jnp.asarray(agent.pessimism, jnp.float32),
            jnp.asarray(state, jnp.float32),
            jnp.asarray(goal, jnp.float32),
            self._last_plan,
            jnp.asarray(steps_left),
            key,
        )
        actions, codes = self._last_plan.actions[:, :, 0], agent.factors.codes
        return np.asarray(actions if codes is None else nearest_code(jnp.asarray(codes, jnp.float32), actions))


def _compile_successors(functions: Any) -> Program:
    """The program of `LearnedModel.successor` and, with constraints, `violation` for rows; without their arrays."""

    def row(arrays: Any, parameters: Any, state: Array, action: Array) -> tuple[Array, ...]:
        successor, violation = eqx.combine(arrays, functions)
        after = successor(parameters, state, action)
        return after if violation is None else (*after, violation(parameters, state, action))

    over_rows = jax.jit(jax.vmap(row, (None, None, 0, 0)))
    return Program("successor", over_rows, describe(functions))


def _compile(config: ShootingConfig, memory: float | None, factors: FactorSpec, functions: Any) -> Program:
    """One program for all steps, over seeds and worlds; `functions` is a `LearnedModel` without its arrays."""
    on_cpu = jax.default_backend() == "cpu"

    def advance(learned: LearnedModel, parameters: Any, state: Array, action: Array) -> tuple[Array, Array, Array]:
        after, penalty = learned.imagine(parameters[0], state, action)
        return after, after, penalty * parameters[1]  # lambda is part of the parameters: one program for all of them

    def plan_of_seed(
        inputs: Any, parameters: Any, state: Array, goal: Array, before: Plan, steps_left: Array, key: Array
    ) -> Plan:
        learned, (low, high) = eqx.combine(inputs[0], functions), inputs[1]
        model = PlanningModel(
            begin=lambda parameters, state: state,
            advance=partial(advance, learned),
            behaviour_policy=lambda p, state, goal, noise: learned.behaviour_policy(p[0], state, goal, noise),
            terminal_value=lambda p, state, goal: learned.terminal_value(p[0], state, goal),
            outcome=None if (outcome := learned.outcome) is None else lambda p, state: outcome(p[0], state),
            violation=None if (broken := learned.violation) is None else lambda p, *step: broken(p[0], *step),
        )
        settings = _with_persistence(config, memory, parameters[0])

        def plan_of_world(world: tuple[Array, Array, Plan, Array]) -> Plan:
            state, goal, before, key = world
            return plan(settings, factors, model, parameters, state, goal, before, steps_left, low, high, key)

        worlds = (state, goal, before, jax.random.split(key, len(state)))
        if not on_cpu:
            return jax.lax.map(plan_of_world, worlds, batch_size=min(GPU_WORLD_BATCH, len(state)))
        # A few worlds at a time, so that their candidates stay in the caches. Worlds at their goal are sorted to the
        # end, and a batch of them alone is not planned for.
        done = jax.vmap(partial(ended, factors))(state, goal) > 0.5
        order = jnp.argsort(done)
        size = -(-len(state) // -(-len(state) // CPU_WORLD_BATCH))
        padded = jnp.concatenate([order, jnp.broadcast_to(order[-1:], (-len(state) % size,))])
        batches = jax.tree.map(lambda a: a[padded].reshape(len(padded) // size, size, *a.shape[1:]), (worlds, done))
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

    return Program("plan", plan_all, describe((config, memory, factors, functions)))
