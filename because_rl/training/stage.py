"""Fit any loss by stochastic gradient descent, many seeds as one compiled program.

A stage's state is its parameters, its optimiser and a step number; step t draws its batch and its noise from
(seed, stage, t) alone. So a run that was stopped goes on as if it had not been.

A program knows its data by shape only: rows are filled up to a multiple of ROW_STEP, and arrays inside a loss or an
`after` that is a `partial` are arguments. So one compiled program, kept in a compilation cache, serves all datasets of
a world, and datasets that are trained side by side can be one program (`side_by_side`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from because_rl.errors import BecauseError
from because_rl.rng import child_seed, stream
from because_rl.training.side_by_side import Program, describe, run_program
from because_rl.transitions import RowSource

ROW_STEP = 8192
STREAMED_ROWS = 4 * ROW_STEP
"""That are drawn for each chunk of steps from more rows than fit in memory."""
Batch = Mapping[str, jax.Array]
Loss = Callable[[Any, Any, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
"""(model, fixed, batch, key) -> loss and metrics"""


class StreamedRows(dict[str, jax.Array]):
    """The rows of a sample, for what takes all rows at once, and a source of far more, from which stages train."""

    def __init__(self, sample: Batch, source: RowSource):
        super().__init__(sample)
        self._source = source

    def block(self, seed: int, name: str, number: int) -> dict[str, jax.Array]:
        """The rows of chunk `number` of a stage: the same whenever it is asked for, and in number."""
        rows = self._source.draw(stream(seed, "rows", name, number), STREAMED_ROWS)
        return {key: jnp.asarray(values, jnp.float32) for key, values in rows.items()}


@dataclass(frozen=True)
class Stage:
    """One model to fit: how it is initialised, its loss, and how the loss is descended."""

    name: str
    init: Callable[[jax.Array, Any], Any]
    """(key, fixed of this seed) -> model (an equinox module)"""
    loss: Loss
    steps: int
    batch: int = 256
    rate: float = 1e-3
    decay: float = 1e-4
    rule: optax.GradientTransformation | None = None
    """how to descend, instead of AdamW at `rate` and `decay`"""
    after: Callable[[Any, jax.Array], Any] = lambda model, step: model
    """(model, number of the step just taken) -> model: moves what no gradient moves, like target networks"""
    settings: Mapping[str, Any] | None = None
    """plain data that decide `init` and `loss` beside the arrays; a stage that has them can be shared between runs"""

    def optimiser(self) -> optax.GradientTransformation:
        if self.rule is not None:
            return self.rule
        warm = min(200, self.steps // 10 + 1)
        schedule = optax.warmup_cosine_decay_schedule(0.1 * self.rate, self.rate, warm, max(self.steps, warm + 1))
        rule = optax.chain(optax.clip_by_global_norm(10.0), optax.adamw(schedule, weight_decay=self.decay))
        return optax.flatten(rule)


class Progress(NamedTuple):
    """What a stage has come to; every array has a leading axis of seeds."""

    params: Any
    optimiser: Any
    step: jax.Array


def start(stage: Stage, fixed: Any, seeds: Sequence[int]) -> Progress:
    def one(key: jax.Array, fixed: Any) -> Progress:
        params = eqx.filter(stage.init(key, fixed), eqx.is_inexact_array)
        # As steps leave them: of jnp.full the type is weak, and `advance` would be compiled for each kind of type.
        params = jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), params)
        return Progress(params, stage.optimiser().init(params), jnp.zeros((), jnp.int32))

    keys = _keys(stage, seeds, "init")
    if isinstance(keys, jax.core.Tracer):  # only the shapes are wanted
        return jax.vmap(one)(keys, fixed)
    # Drawing many arrays is one program that takes seconds to optimise and runs once.
    quick = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(one), compiler_options=quick)(keys, fixed)


def _keys(stage: Stage, seeds: Sequence[int], use: str) -> jax.Array:
    return jnp.stack([jax.random.key(child_seed(seed, stage.name, use) % 2**31) for seed in seeds])


COPIES = 4
"""of the parameters while they are trained: themselves, their gradient and the two moments of AdamW"""


def _check_memory(stage: Stage, data: Batch, fixed: Any, seeds: int) -> None:
    """Refuse a model or a batch that cannot fit in memory: allocating it might end the process."""
    shapes = eqx.filter_eval_shape(stage.init, jax.random.key(0), jax.tree.map(lambda a: a[0], fixed))
    leaves = [leaf for leaf in jax.tree.leaves(shapes) if isinstance(leaf, jax.ShapeDtypeStruct)]
    model = COPIES * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    batch = stage.batch * sum(math.prod(a.shape[1:]) * a.dtype.itemsize for a in data.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if seeds * (model + batch) > memory:
        raise BecauseError(
            f"Training '{stage.name}' takes at least {seeds * (model + batch) / 1e9:,.0f} GB of memory.",
            need=f"at most the {memory / 1e9:,.0f} GB of this machine.",
            fix="train fewer seeds, or smaller layers and batches.",
        )


def skeleton(stage: Stage, fixed: Any) -> Any:
    """The model's structure without its arrays: combine it with parameters to get the model."""
    one = jax.tree.map(lambda a: a[0], fixed)
    shapes = eqx.filter_eval_shape(stage.init, jax.random.key(0), one)  # to draw the arrays would take seconds
    arrays, rest = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    assert all(jnp.issubdtype(a.dtype, jnp.inexact) for a in jax.tree.leaves(arrays)), "a model's arrays are trained"
    return rest


def fit(
    stage: Stage,
    data: Batch,
    fixed: Any,
    seeds: Sequence[int],
    progress: Progress | None = None,
    *,
    until: int | None = None,
    chunk: int = 500,
    report: Callable[[Stage, Progress, dict[str, np.ndarray]], None] = lambda stage, progress, metrics: None,
) -> Progress:
    """Train until step `until` (None: to the end); `report` is called after every chunk with (seeds,) metrics."""
    _check_data(stage, data)
    _check_memory(stage, data, fixed, len(seeds))
    progress = start(stage, fixed, seeds) if progress is None else progress
    given, rest = hoist((stage.loss, stage.after))
    program = _advance(stage, rest, skeleton(stage, fixed))
    keys = _keys(stage, seeds, "train")
    streamed = data if isinstance(data, StreamedRows) else None
    count = jnp.asarray(STREAMED_ROWS if streamed is not None else len(next(iter(data.values()))))
    data = {} if streamed is not None else {name: _filled_up(values) for name, values in data.items()}
    end = stage.steps if until is None else until
    while (done := int(progress.step[0])) < end:
        length = min(chunk - done % chunk, end - done)
        if streamed is not None:
            data = streamed.block(seeds[0], stage.name, done // chunk)
        progress, metrics, sound = run_program(program, progress, given, count, fixed, keys, rows=data, length=length)
        _check_steps(stage, np.asarray(sound), done, seeds)
        report(stage, progress, {name: np.asarray(value) for name, value in metrics.items()})
    return progress


def hoist(function: Any) -> tuple[Any, Any]:
    """The arrays in a tree of partials, and the rest: put together again they are the same functions.

    An array that a function closes over is a constant of the program; as an argument it leaves the program alone.
    """

    def opened(f: Any) -> Any:
        return jax.tree_util.Partial(f.func, *f.args, **f.keywords) if isinstance(f, partial) else f

    tree = jax.tree.map(opened, function, is_leaf=lambda f: isinstance(f, partial))
    return eqx.partition(tree, eqx.is_array)


def over_rows(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A program of (arrays of each seed, *arrays of rows): `function` of one seed and one row, for all of them.

    It returns arrays with axes of seeds and rows. `name` is for programs that run side by side.
    """
    arrays, rest = hoist(function)

    @jax.jit
    def program(arrays: Any, by_seed: Any, *rows: jax.Array) -> Any:
        axes = [0] * len(rows), [None] * len(rows)
        one_seed = jax.vmap(eqx.combine(arrays, rest), (None, *axes[0]))
        return jax.vmap(one_seed, (0, *axes[1]))(by_seed, *rows)

    return partial(run_program, Program(name, program, describe(rest)), arrays)


def _filled_up(values: jax.Array) -> jax.Array:
    missing = -len(values) % ROW_STEP
    return jnp.concatenate([jnp.asarray(values), jnp.zeros((missing, *values.shape[1:]), values.dtype)])


def _advance(stage: Stage, functions: Any, static: Any) -> Program:
    """The program of a number of steps; `functions` are the loss and `after` without their arrays."""
    optimiser = stage.optimiser()

    def step(
        progress: Progress, key: jax.Array, functions: Any, data: Batch, count: jax.Array, fixed: Any
    ) -> tuple[Progress, dict[str, jax.Array]]:
        stage_loss, after = functions
        row_key, loss_key = jax.random.split(jax.random.fold_in(key, progress.step))
        rows = jax.random.randint(row_key, (stage.batch,), 0, count)
        batch = {name: values[rows] for name, values in data.items()}

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            return stage_loss(eqx.combine(params, static), fixed, batch, loss_key)

        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(progress.params)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            updates, state = optimiser.update(gradient, progress.optimiser, progress.params)
        params = optax.apply_updates(progress.params, updates)
        params = eqx.filter(after(eqx.combine(params, static), progress.step), eqx.is_inexact_array)
        return Progress(params, state, progress.step + 1), {"loss": value} | metrics

    @partial(jax.jit, static_argnames="length")
    def advance(
        progress: Progress, given: Any, count: jax.Array, fixed: Any, keys: jax.Array, data: Batch, *, length: int
    ) -> tuple[Progress, dict[str, jax.Array], jax.Array]:
        """`length` steps; also mean metrics, and (seeds, length + 1): was each loss finite, and what came out?"""
        whole = eqx.combine(given, functions)

        def one(progress: Progress, fixed: Any, key: jax.Array) -> tuple[Progress, dict[str, jax.Array], jax.Array]:
            progress, metrics = jax.lax.scan(
                lambda p, _: step(p, key, whole, data, count, fixed), progress, length=length
            )
            after = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(progress.params)]).all()
            sound = jnp.append(jnp.isfinite(metrics["loss"]), after)
            return progress, {name: value.mean(0) for name, value in metrics.items()}, sound

        if len(keys) > 1:
            return jax.vmap(one)(progress, fixed, keys)
        # An axis of one seed costs a CPU a third of its speed.
        return jax.tree.map(lambda a: a[None], one(*jax.tree.map(lambda a: a[0], (progress, fixed, keys))))

    descent = (stage.steps, stage.rate, stage.decay) if stage.rule is None else stage.rule
    return Program(stage.name, advance, describe((stage.batch, descent, functions, static)))


def _check_data(stage: Stage, data: Batch) -> None:
    for name, values in data.items():
        bad = ~np.isfinite(np.asarray(values))
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise BecauseError(
                f"Stage '{stage.name}' was given a value that is not finite: {name}, row {row}.",
                need="finite data.",
                fix="'because check DATASET' tells whether the data are sound.",
            )


def _check_steps(stage: Stage, sound: np.ndarray, done: int, seeds: Sequence[int]) -> None:
    """Called before anything is kept, so what is kept is always finite."""
    if sound.all():
        return
    worst = int(np.argmin(sound.all(1)))
    step = done + int(np.argmin(sound[worst]))
    raise BecauseError(
        f"The loss of stage '{stage.name}' is not finite at step {step}, seed {seeds[worst]}.",
        need="a finite loss.",
        fix=f"lower the learning rate; what was kept is the state at step {done}.",
    )
