"""Translated programs compute what JAX computes, and the same random numbers bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import because_rl.onnx.picking  # noqa: E402
import because_rl.onnx.random  # noqa: E402, F401
from because_rl.errors import BecauseError  # noqa: E402
from because_rl.onnx.graph import STORED, Builder, Tensor, kind_of  # noqa: E402

X = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def packed(value):
    """An array as the graph stores it: a key as one number."""
    if not jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        return np.asarray(value)
    words = np.asarray(jax.random.key_data(value)).astype(np.uint64)
    return np.asarray((words[..., 0] << np.uint64(32)) | words[..., 1]).astype(np.int64)


def run(function, argument):
    """What ONNX Runtime makes of the translated function, and what JAX does."""
    b, given = Builder(), Tensor(argument.shape, kind_of(argument.dtype), "x")
    outputs = b.call(function, given)
    model = b.model([given], [(f"out{k}", t) for k, t in enumerate(outputs)], {})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {"x": np.asarray(packed(argument), STORED[given.stored])})
    with jax.numpy_rank_promotion("allow"):
        return got, [packed(part) for part in jax.tree.leaves(function(argument))]


def numbers(x):
    return jax.scipy.stats.norm.cdf(x), jax.nn.softplus(5 * x), jnp.expm1(x), x**3, x.std(0), lax.erf_inv(x / 4)


def picks(x):
    along = jnp.take_along_axis(x, x.argmax(1)[:, None], 1)
    put = jax.vmap(lambda row, k: row.at[k].add(1.0))(x, x.argmax(1))
    return x[x.argmax(1)], along, put, x.at[:, :-1].set(0.0)[::-1], jnp.argsort(x, axis=1), lax.top_k(x, 2)


def loops(x):
    back = lax.scan(lambda total, row: (total * 0.5 + row, total.sum()), x[0], x, reverse=True)
    return back, lax.cond(x.sum() > 0, lambda: x, lambda: -x), jnp.einsum("ij,kj->ik", x, x), jnp.cumsum(x, 1)


@pytest.mark.parametrize("function", [numbers, picks, loops])
def test_translated_functions_compute_what_jax_computes(function):
    for got, want in zip(*run(function, jnp.asarray(X)), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_random_numbers_are_those_of_jax():
    def draws(key):
        keys = jax.random.split(key, 3)
        return keys, jax.random.bits(keys[2], (7,)), jax.vmap(lambda k: jax.random.uniform(k, (9,)))(keys)

    for got, want in zip(*run(draws, jax.random.key(7)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_operation_that_is_not_translated_is_named():
    with pytest.raises(BecauseError, match="'digamma'"):
        run(jax.scipy.special.digamma, jnp.asarray(X))
