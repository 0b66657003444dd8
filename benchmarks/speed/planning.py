"""How fast the sampling planner imagines, and what share of the machine's matrix multiplication that is.

One *evaluation* is one step of the world model for one candidate. With r evaluations per second, f floating-point
operations in each (as XLA counts them in the compiled model) and a peak of F operations per second (a large square
matmul, timed in the same run), the share is r f / F. Weights are random: speed does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from because_rl.envs.tasks import world_class
from because_rl.factors import FactorSpec
from because_rl.models.bilinear import BilinearModel, Gates, make_gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import Statistics
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan
from because_rl.provenance import provenance
from because_rl.rng import child_seed

WORLDS = ("crash", "lift")
REPEATS = 5
ROWS = 4096
"""Of the single model step whose operations are counted."""


def planning_speed(
    hidden: int = 128,
    worlds: Sequence[str] = WORLDS,
    episodes: int = 16,
    population: int = 256,
    horizon: int = 15,
    matmul: int = 2048,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Rows by world; `episodes` worlds are planned for at once."""
    peak = matmul_peak(matmul)
    config = ShootingConfig(population=population, horizon=horizon, proposals="uniform")
    rows = []
    for done, world in enumerate(worlds):
        report(done, len(worlds))
        measured = _measure(world_class(world).make_factors(1), hidden, config, episodes)
        rows.append({"world": world} | measured | {"share_of_peak": measured["flops_per_second"] / peak})
    report(len(worlds), len(worlds))
    settings = {"hidden": hidden, "episodes": episodes, "population": population, "horizon": horizon}
    device = jax.devices()[0]
    return {
        "rows": rows,
        "matmul_flops_per_second": peak,
        "device": f"{device.platform} {device.device_kind}",
        "provenance": provenance(**settings, matmul=matmul, repeats=REPEATS),
    }


def matmul_peak(size: int) -> float:
    """Operations per second of a square float32 matmul: 2 n^3 over the median time."""
    a = jax.random.normal(jax.random.key(child_seed(0, "matmul")), (size * size,)).reshape(size, size)
    return 2 * size**3 / _seconds(jax.jit(jnp.matmul), a, a)


def _measure(factors: FactorSpec, hidden: int, config: ShootingConfig, episodes: int) -> dict[str, float]:
    layout = Layout(factors)
    stats = plain_statistics(layout)
    gates = make_gates(layout, np.ones((len(factors.inputs), len(factors.targets))))
    model = BilinearModel(layout, jax.random.key(child_seed(0, "planning speed")), hidden=hidden)
    imagined = imagine(layout, stats, gates)

    @jax.jit
    def plans(model: BilinearModel, state: jax.Array, goal: jax.Array, before: Plan, key: jax.Array) -> Plan:
        limit, left = jnp.ones(factors.action_size), jnp.asarray(30)
        one = partial(plan, config, factors, imagined, model)
        return jax.vmap(lambda s, g, b, k: one(s, g, b, left, -limit, limit, k))(
            state, goal, before, jax.random.split(key, episodes)
        )

    before = jax.tree.map(lambda a: jnp.broadcast_to(a, (episodes, *a.shape)), first_plan(config, factors))
    state, goal = jnp.zeros((episodes, factors.state_size)), jnp.ones((episodes, factors.goal_size))
    begin = time.perf_counter()
    program = plans.lower(model, state, goal, before, jax.random.key(0)).compile()
    compiling = time.perf_counter() - begin
    seconds = _seconds(program, model, state, goal, before, jax.random.key(0))
    rate = episodes * config.population * config.horizon / seconds
    flops = _operations(imagined, model, factors)
    return {
        "evaluations_per_second": rate,
        "flops_per_evaluation": flops,
        "flops_per_second": rate * flops,
        "milliseconds_per_plan": 1000 * seconds / episodes,
        "compile_seconds": compiling,
    }


def imagine(layout: Layout, stats: Statistics, gates: Gates) -> PlanningModel:
    """The world model as a planner sees it, without energy, behaviour policy and value: these are other networks."""

    def advance(model: BilinearModel, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        outputs = model(stats, gates, jnp.concatenate([state, action]))
        after = decode(layout, stats, outputs, state, hard=False).state
        return after, after, jnp.zeros(())

    return PlanningModel(
        begin=lambda model, state: state,
        advance=advance,
        behaviour_policy=lambda model, state, goal, noise: jnp.zeros_like(noise[1:]),
        terminal_value=lambda model, state, goal: jnp.zeros(()),
    )


def plain_statistics(layout: Layout) -> Statistics:
    """As if every column were already standardised."""
    one, state = jnp.ones(layout.size), jnp.ones(layout.factors.state_size)
    apart = jnp.ones(sum(layout.inputs[i].width for i, _ in layout.pairs))
    moves = jnp.ones(len(layout.factors.state))
    return Statistics(mean=0 * one, scale=one, change=0.01 * state, difference=apart, moves=moves, low=-one, high=one)


def _operations(imagined: PlanningModel, model: BilinearModel, factors: FactorSpec) -> float:
    step = jax.jit(jax.vmap(imagined.advance, in_axes=(None, 0, 0)))
    state, action = jnp.zeros((ROWS, factors.state_size)), jnp.zeros((ROWS, factors.action_size))
    counted = step.lower(model, state, action).compile().cost_analysis()
    assert counted is not None, "XLA counts operations on every platform that we know"
    return float(counted["flops"]) / ROWS


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """The median of some runs after the first."""
    taken = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        jax.block_until_ready(work(*arguments))
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken[1:]))
