"""Strict by default: silent promotion of dtypes or ranks is an error in every test."""

import os

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
np.seterr(invalid="raise", divide="raise", over="raise")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A home of its own for datasets and runs."""
    monkeypatch.setenv("BECAUSE_HOME", str(tmp_path))
    return tmp_path
