"""How a CPU runs the operations of a program."""

import os
import subprocess
import sys

import pytest

from because_rl.runs.compilation import SEQUENTIAL, disable_concurrent_ops

# Whitening of several kinds of factors: batched triangular solves that XLA would run concurrently.
SOLVES = """
import jax, jax.numpy as jnp, numpy as np
from because_rl.runs.compilation import disable_concurrent_ops
disable_concurrent_ops()

def loss(blocks):
    out = 0.0
    for x in blocks:
        root = jnp.linalg.cholesky(jnp.einsum("bni,bnj->bij", x, x) / 64 + jnp.eye(16))
        out += (jax.scipy.linalg.solve_triangular(root, jnp.swapaxes(x, 1, 2), lower=True) ** 4).sum()
    return out

def step(blocks, _):
    return jax.tree.map(lambda x, g: x - 1e-4 * g, blocks, jax.grad(loss)(blocks)), None

blocks = [jnp.asarray(np.random.default_rng(k).normal(size=(50, 128, 16)), jnp.float32) for k in range(6)]
print(jnp.isfinite(jax.jit(lambda b: jax.lax.scan(step, b, length=30)[0])(blocks)[0]).all())
"""


@pytest.mark.slow
def test_concurrent_triangular_solves_do_not_deadlock():
    """Without `disable_concurrent_ops` this program never ends where there are two cores."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ended = subprocess.run([sys.executable, "-c", SOLVES], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.stdout.strip() == "True", ended.stderr


def test_flag_is_added_once_to_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=1")
    disable_concurrent_ops()
    disable_concurrent_ops()
    assert os.environ["XLA_FLAGS"] == f"--xla_other=1 {SEQUENTIAL}"
