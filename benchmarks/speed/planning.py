"""Speed of the sampling planner, absolute and as a share of the machine's matrix multiplication.

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
from because_rl.models.bilinear import BilinearModel, make_gates
from because_rl.models.layout import Layout
from because_rl.models.likelihood import decode
from because_rl.models.prepared_data import Statistics
from because_rl.planning.shooting import Plan, PlanningModel, ShootingConfig, first_plan, plan
from because_rl.provenance import provenance
from because_rl.rng import child_seed, stream

WORLDS = ("crash", "lift")
REPEATS = 5
"""Timed runs, of which the median counts."""
ROWS = 4096
"""Batch size of the model step whose operations are counted."""


def planning_speed(
    hidden: int = 128,
    worlds: Sequence[str] = WORLDS,
    episodes: int = 16,
    population: int = 256,
    horizon: int = 15,
    matmul: int = 2048,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """One row per world: evaluations and operations per second, milliseconds per plan, share of the matmul peak.

    `hidden` is the width of the model's layers, `episodes` the number of worlds planned for at once, and `matmul` the
    side of the square matrices whose product sets the peak.
    """
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
    model, planning_model = make_model(factors, hidden)

    @jax.jit
    def plans(model: BilinearModel, state: jax.Array, goal: jax.Array, before: Plan, key: jax.Array) -> Plan:
        limit, steps_left = jnp.ones(factors.action_size), jnp.asarray(30)
        one_world = partial(plan, config, factors, planning_model, model)
        return jax.vmap(lambda s, g, b, k: one_world(s, g, b, steps_left, -limit, limit, k))(
            state, goal, before, jax.random.split(key, episodes)
        )

    before = jax.tree.map(lambda a: jnp.broadcast_to(a, (episodes, *a.shape)), first_plan(config, factors))
    state, goal = jnp.zeros((episodes, factors.state_size)), jnp.ones((episodes, factors.goal_size))
    begin = time.perf_counter()
    program = plans.lower(model, state, goal, before, jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - begin
    seconds = _seconds(program, model, state, goal, before, jax.random.key(0))
    rate = episodes * config.population * config.horizon / seconds
    flops = model_operations(model, planning_model)
    return {
        "evaluations_per_second": rate,
        "flops_per_evaluation": flops,
        "flops_per_second": rate * flops,
        "milliseconds_per_plan": 1000 * seconds / episodes,
        "compile_seconds": compile_seconds,
    }


def make_model(factors: FactorSpec, hidden: int) -> tuple[BilinearModel, PlanningModel]:
    """A world model with random weights and all edges, and the planning model that evaluates it.

    The planning model has none of the other networks: energy, behaviour policy and value.
    """
    layout = Layout(factors)
    stats = plain_statistics(layout)
    gates = make_gates(layout, np.ones((len(factors.inputs), len(factors.targets))))
    # NumPy draws the weights at once; the model's own initialisation would take seconds to compile.
    shapes = jax.eval_shape(partial(BilinearModel, layout, hidden=hidden), jax.random.key(0))
    rng = stream(0, "planning speed")
    model = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)

    def advance(model: BilinearModel, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        outputs = model(stats, gates, jnp.concatenate([state, action]))
        after = decode(layout, stats, outputs, state, hard=False).state
        return after, after, jnp.zeros(())

    return model, PlanningModel(
        begin=lambda model, state: state,
        advance=advance,
        behaviour_policy=lambda model, state, goal, noise: jnp.zeros_like(noise[1:]),
        terminal_value=lambda model, state, goal: jnp.zeros(()),
    )


def plain_statistics(layout: Layout) -> Statistics:
    """Statistics of columns that are already standardised."""
    one, pairs = jnp.ones(layout.size), sum(layout.inputs[i].width for i, _ in layout.pairs)
    return Statistics(
        mean=0 * one,
        scale=one,
        change=0.01 * jnp.ones(layout.factors.state_size),
        difference=jnp.ones(pairs),
        moves=jnp.ones(len(layout.factors.state)),
        low=-one,
        high=one,
        rarity=jnp.zeros(layout.factors.state_size),
    )


def model_operations(model: BilinearModel, planning_model: PlanningModel) -> float:
    """Floating-point operations of one model evaluation, as XLA counts them in the compiled program."""
    factors = model.layout.factors
    step = jax.jit(jax.vmap(planning_model.advance, in_axes=(None, 0, 0)))
    state, action = jnp.zeros((ROWS, factors.state_size)), jnp.zeros((ROWS, factors.action_size))
    cost = step.lower(model, state, action).compile().cost_analysis()
    assert cost is not None, "XLA counts operations on all known platforms"
    return float(cost["flops"]) / ROWS


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """The median over REPEATS runs after the first."""
    taken = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        jax.block_until_ready(work(*arguments))
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken[1:]))
