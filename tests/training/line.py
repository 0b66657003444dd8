"""A stage that is cheap to compile: a line fitted to points, with a part that no gradient moves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from because_rl.rng import stream
from because_rl.training.stage import Stage


class Line(NamedTuple):
    """y = w x + b, a slow copy of w, and a clock that no gradient moves."""

    w: jax.Array
    b: jax.Array
    slow: jax.Array
    clock: jax.Array


def line_stage(steps=100, fail_at=-1, break_at=-1, width=3, settings=None):
    """The loss is NaN at step `fail_at` where `fixed` is 1; the model is NaN after step `break_at`."""

    def init(key, fixed):
        w = jax.random.normal(key, (width,))
        return Line(w, jnp.zeros(()), w, jnp.zeros(()))

    def loss(model, fixed, batch, key):
        noise = 0.1 * jax.random.normal(key, batch["y"].shape)
        error = batch["x"] @ model.w + model.b - batch["y"] + noise
        bad = (model.clock == fail_at) & (fixed == 1.0)
        return jnp.where(bad, jnp.nan, (error**2).mean()), {"bias": model.b}

    def after(model, step):
        broken = jnp.where(step == break_at, jnp.nan, 0.0)
        return model._replace(
            slow=0.9 * model.slow + 0.1 * model.w + broken, clock=(step + 1).astype(jnp.float32), b=model.b
        )

    rule = optax.partition(
        {"net": optax.adam(0.01), "still": optax.set_to_zero()}, Line("net", "net", "still", "still")
    )
    return Stage("line", init, loss, steps, batch=16, rule=rule, after=after, settings=settings)


def line_data(n=200, width=3):
    rng = stream(0, "line")
    x = rng.normal(size=(n, width)).astype(np.float32)
    return {"x": jnp.asarray(x), "y": jnp.asarray(x @ np.arange(1.0, width + 1, dtype=np.float32))}


def same_bits(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def fixed(seeds):
    return jnp.arange(seeds, dtype=jnp.float32)
