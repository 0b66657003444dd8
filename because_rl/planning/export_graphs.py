"""The ONNX graphs of the two planners.

Shooting is what JAX traces, translated. Value iteration is Python in `value_iteration`, and here a loop of its own
around the translated model: the states that can be reached are listed level by level, and then

    Q_h(s, a) = p(s'|s,a) [ r(s') + (1 - r(s')) gamma V_{h-1}(s') ] - lambda penalty(s, a),    V_h = max_a Q_h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jaxtyping import Array

import because_rl.onnx.picking
import because_rl.onnx.random  # noqa: F401  (both add to the table)
from because_rl.models.behaviour_policy import nearest_code
from because_rl.onnx.graph import Builder, Tensor, constant
from because_rl.onnx.primitives import cast, reshape
from because_rl.planning.goal import attained
from because_rl.planning.shooting import Plan, first_plan

CHUNK = 512
"""Rows for which the model is asked at once."""
RANDOM = "random"


class Memory(NamedTuple):
    """What a policy remembers: an input that takes, in the next step, the value of an output."""

    input: str
    output: str
    start: float | str
    """of all elements in the first step; 'seed': of the episode, as the metadata say"""


def planner_memory(agent: Any) -> list[Memory]:
    """What a shooting planner remembers between steps."""
    starts = {
        name: float(np.asarray(part).flat[0])
        for name, part in first_plan(agent.config, agent.factors)._asdict().items()
    }
    return [Memory(RANDOM, f"{RANDOM}_next", "seed")] + [
        Memory(f"plan_{name}", f"plan_{name}_next", start if np.isfinite(start) else str(start))
        for name, start in starts.items()
    ]


def vote_of_seeds(actions: Array, discrete: bool) -> Array:
    """The action on which K seeds agree, (K,) numbers or (K, columns), as `training.method.vote` chooses it."""
    if discrete:
        return actions[(actions[:, None] == actions[None]).sum(1).argmax()]
    spread = actions.std(0, keepdims=True) + 1e-12
    return actions[jnp.sqrt((((actions[:, None] - actions[None]) / spread) ** 2).sum(-1)).sum(1).argmin()]


def one_step(agent: Any) -> Callable[..., tuple[Array, ...]]:
    """A step of a shooting planner: (observation, goal, steps left, key, *plan) -> action, key, *plan."""
    factors = agent.factors
    seeds, parameters, pessimism = len(agent.seeds), agent.parameters, jnp.asarray(agent.pessimism, jnp.float32)

    def step(observation: Array, goal: Array, steps_left: Array, key: Array, *plan: Array) -> tuple[Array, ...]:
        state = jnp.pad(observation, (0, factors.state_size - factors.observed_size))
        rows = (jnp.broadcast_to(part, (seeds, 1, *part.shape)) for part in (state, goal))
        key, now = jax.random.split(key)
        before = Plan(*(part[:, None] for part in plan))
        after = agent._plan.function(agent._inputs, parameters, pessimism, *rows, before, steps_left, now)
        actions = after.actions[:, 0, 0]
        if factors.codes is not None:
            actions = nearest_code(jnp.asarray(factors.codes, jnp.float32), actions)
        return vote_of_seeds(actions, factors.codes is not None), key, *(part[:, 0] for part in after)

    return step


def shooting_model(agent: Any, metadata: dict[str, str]) -> onnx.ModelProto:
    b, factors, memory = Builder(), agent.factors, planner_memory(agent)
    plan = first_plan(agent.config, factors)
    given = [
        Tensor((factors.observed_size,), "f", "observation"),
        Tensor((factors.goal_size,), "f", "goal"),
        Tensor((), "i", "steps_left"),
        Tensor((), "k", memory[0].input),
        *(Tensor((len(agent.seeds), *part.shape), "f", m.input) for m, part in zip(memory[1:], plan, strict=True)),
    ]
    # An input without numbers, as where there is no goal, is none.
    given = [t if 0 not in t.shape else constant(np.zeros(t.shape, np.float32)) for t in given]
    action, *remembered = b.call(one_step(agent), *given)
    outputs = [("action", action), *((m.output, t) for m, t in zip(memory, remembered, strict=True))]
    return b.model([t for t in given if t.known is None], outputs, metadata)


def value_iteration_model(agent: Any, metadata: dict[str, str]) -> onnx.ModelProto:
    b, factors = Builder(), agent.factors
    observation = Tensor((factors.state_size,), "f", "observation")
    goal = Tensor((factors.goal_size,), "f", "goal")
    steps_left = Tensor((), "i", "steps_left")
    actions = [
        reshape(b, _best_action(b, agent, k, observation, goal, steps_left), (1,)) for k in range(len(agent.seeds))
    ]
    every = b.node("Concat", *actions, kind="i", shape=(len(actions),), axis=0)
    (action,) = b.call(lambda actions: vote_of_seeds(actions, True), every)
    return b.model([observation, goal, steps_left], [("action", action)], metadata)


def _best_action(b: Builder, agent: Any, k: int, observation: Tensor, goal: Tensor, steps_left: Tensor) -> Tensor:
    """The action of the k-th seed."""
    factors, codes = agent.factors, np.asarray(agent.factors.codes, np.float32)
    size, count = factors.state_size, len(codes)
    parameters = jax.tree.map(lambda a: a[k], agent.parameters)

    def reached(state: Array, goal: Array) -> Array:
        return attained(factors, state, goal) > 0.5

    def successors(states: Array, actions: Array, goal: Array) -> tuple[Array, ...]:
        after, log_p, penalty = jax.vmap(agent.learned.successor, (None, 0, 0))(parameters, states, actions)
        return after, jax.vmap(reached, (0, None))(after, goal), log_p, penalty

    def try_all(frontier: Tensor) -> list[Tensor]:
        """What follows every action in each state: (rows, columns), whether it is a goal, log p, penalty."""
        each = b.node("Unsqueeze", frontier, _ints(1), kind="f", shape=("f", 1, size))
        rows = _shaped(b, b.node("Expand", each, _ints(1, count, 1), kind="f", shape=("f", count, size)), -1, size)
        total = _length(b, rows)
        copies = b.node("Div", total, _ints(count), kind="i", shape=(1,))
        copies = b.node("Concat", copies, _ints(1), kind="i", shape=(2,), axis=0)
        taken = b.node("Tile", constant(codes), copies, kind="f", shape=("rows", codes.shape[1]))
        blocks = [_blocks(b, part, total) for part in (rows, taken)]
        body, made = b.subgraph(
            [("f", (CHUNK, size)), ("f", (CHUNK, codes.shape[1]))], lambda s, a: b.call(successors, s, a, goal)
        )
        kinds = [(t.kind, ("blocks", *t.shape)) for t in made]
        outputs = b.add_node_at(b.level, "Scan", blocks, kinds, body=body, num_scan_inputs=2)
        flat = [_shaped(b, t, -1, *t.shape[2:]) for t in outputs]
        return [b.node("Slice", t, _ints(0), total, _ints(0), kind=t.kind, shape=("rows", *t.shape[1:])) for t in flat]

    def explore(turn: Tensor, go: Tensor, states: Tensor, goals: Tensor, start: Tensor, *table: Tensor) -> list[Tensor]:
        """Try all actions in the states from place `start` on, and append what is new."""
        known = _length(b, states)
        frontier = b.node("Slice", states, start, known, _ints(0), kind="f", shape=("f", size))
        done = b.node("Slice", goals, start, known, _ints(0), kind="b", shape=("f",))
        after, is_goal, log_p, penalty = try_all(frontier)
        chance = b.node("Exp", cast(b, log_p, "d"), kind="d", shape=("rows",))
        # Nothing follows a goal: its row of the table leads to itself and is worth nothing.
        over = _shaped(b, _repeated(b, done, count, "b"), -1)
        same = _shaped(b, _repeated(b, frontier, count, "f"), -1, size)
        after = b.node("Where", _shaped(b, over, -1, 1), same, after, kind="f", shape=("rows", size))
        is_goal = b.node("Or", over, is_goal, kind="b", shape=("rows",))
        every = b.node("Concat", states, after, kind="f", shape=("all", size), axis=0)
        listed, first, places, _ = b.add_node(
            "Unique", [every], [("f", ("n", size)), *[("i", ("n",))] * 3], axis=0, sorted=0
        )
        flags = b.node("Concat", goals, is_goal, kind="b", shape=("all",), axis=0)
        flags = b.node("Gather", flags, first, kind="b", shape=("n",), axis=0)
        child = b.node("Slice", places, known, _ints(1 << 62), _ints(0), kind="i", shape=("rows",))
        zero = constant(np.zeros((), np.float64))
        rows = [
            child,
            *(b.node("Where", over, zero, x, kind="d", shape=("rows",)) for x in (chance, cast(b, penalty, "d"))),
        ]
        grown = [
            b.node("Concat", old, _shaped(b, new, -1, count), kind=old.kind, shape=("n", count), axis=0)
            for old, new in zip(table, rows, strict=True)
        ]
        more = b.node("Greater", _length(b, listed), known, kind="b", shape=(1,))
        return [reshape(b, more, ()), listed, flags, known, *grown]

    root = reshape(b, observation, (1, size))
    at_goal = reshape(b, b.call(reached, observation, goal)[0], (1,))
    empty = [constant(np.zeros((0, count), np.int32)), *[Tensor((0, count), "d", known=np.zeros((0, count)))] * 2]
    start = [root, at_goal, _ints(0), *empty]
    reachable = _loop(b, steps_left, start, [("n", size), ("n",), (1,), *[("m", count)] * 3], explore)
    states, goals, _, child, chance, penalty = reachable
    missing = b.node("Sub", _length(b, states), _length(b, child), kind="i", shape=(1,))
    padding = b.node("Concat", _ints(0, 0), missing, _ints(0), kind="i", shape=(4,), axis=0)
    child, chance, penalty = (
        b.node("Pad", t, padding, kind=t.kind, shape=("n", count)) for t in (child, chance, penalty)
    )
    reward = b.node("Gather", cast(b, goals, "d"), child, kind="d", shape=("n", count), axis=0)
    discount, price = (
        Tensor((), "d", known=np.array(x, np.float64)) for x in (agent.config.discount, agent.pessimism[k])
    )
    one = Tensor((), "d", known=np.array(1.0))

    def quality(value: Tensor) -> Tensor:
        def op(operator: str, *inputs: Tensor) -> Tensor:
            return b.node(operator, *inputs, kind="d", shape=("n", count))

        later = b.node("Gather", value, child, kind="d", shape=("n", count), axis=0)
        future = op("Add", reward, op("Mul", op("Mul", op("Sub", one, reward), discount), later))
        return op("Sub", op("Mul", chance, future), op("Mul", price, penalty))

    def back_up(turn: Tensor, go: Tensor, value: Tensor) -> list[Tensor]:
        return [go, b.node("ReduceMax", quality(value), _ints(1), kind="d", shape=("n",), keepdims=0)]

    nothing = b.node("Expand", Tensor((1,), "d", known=np.zeros(1)), _length(b, states), kind="d", shape=("n",))
    before = b.node("Sub", steps_left, constant(np.int32(1)), kind="i", shape=())
    (value,) = _loop(b, before, [nothing], [("n",)], back_up)
    first = b.node("Gather", quality(value), constant(np.int32(0)), kind="d", shape=(count,), axis=0)
    return b.node("ArgMax", first, kind="i", shape=(), axis=0, keepdims=0)


def _ints(*numbers: int) -> Tensor:
    return Tensor((len(numbers),), "i", known=np.array(numbers, np.int64))


def _length(b: Builder, x: Tensor) -> Tensor:
    """How many rows there are, (1,)."""
    return b.node("Shape", x, kind="i", shape=(1,), start=0, end=1)


def _shaped(b: Builder, x: Tensor, *shape: Any) -> Tensor:
    known = ["rows" if size == -1 else size for size in shape]
    return b.node("Reshape", x, _ints(*shape), kind=x.kind, shape=known)


def _repeated(b: Builder, x: Tensor, count: int, kind: str) -> Tensor:
    """(rows, count[, columns]) each row `count` times."""
    each = b.node("Unsqueeze", x, _ints(1), kind=kind, shape=("f", 1, *x.shape[1:]))
    sizes = _ints(1, count, *[1] * (len(x.shape) - 1))
    return b.node("Expand", each, sizes, kind=kind, shape=("f", count, *x.shape[1:]))


def _blocks(b: Builder, rows: Tensor, total: Tensor) -> Tensor:
    """(blocks, CHUNK, columns) with zeros behind the last row."""
    lack = b.node("Mod", b.node("Neg", total, kind="i", shape=(1,)), _ints(CHUNK), kind="i", shape=(1,))
    padding = b.node("Concat", _ints(0, 0), lack, _ints(0), kind="i", shape=(4,), axis=0)
    padded = b.node("Pad", rows, padding, kind="f", shape=("padded", rows.shape[1]))
    return b.node(
        "Reshape", padded, _ints(-1, CHUNK, int(rows.shape[1])), kind="f", shape=("blocks", CHUNK, rows.shape[1])
    )


def _loop(b: Builder, turns: Tensor, start: list[Tensor], shapes: list[tuple], body: Any) -> list[Tensor]:
    """A Loop that goes on for `turns`, or until the first output of the body is false."""
    kinds = [t.kind for t in start]
    # Sizes may grow from turn to turn: they have no names.
    unnamed = [tuple(None if isinstance(size, str) else size for size in shape) for shape in shapes]
    graph, _ = b.subgraph([("i", ()), ("b", ()), *zip(kinds, unnamed, strict=True)], body)  # type: ignore[list-item]
    yes = constant(np.array(True))
    return b.add_node_at(b.level, "Loop", [turns, yes, *start], list(zip(kinds, shapes, strict=True)), body=graph)
