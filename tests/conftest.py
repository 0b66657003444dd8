"""Strict by default: silent promotion of dtypes or ranks is an error in every test."""

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # beside another worker its threads wait in busy loops
# Tests run many small programs a few times each: compile them quickly, not well.
if version("jaxlib").startswith("0.10."):  # later ones have no such emitters to switch off, and refuse the flag
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Most of the time goes into compiling the same programs: all workers, and the commands that tests start, share
    # them. Only the first process gets here; the others inherit the place.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="because-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import hypothesis
import jax
import numpy as np
import pytest

hypothesis.settings.register_profile("patient", deadline=None)  # no test is about time: machines are busy
hypothesis.settings.load_profile("patient")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
np.seterr(invalid="raise", divide="raise", over="raise")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A home of its own for datasets and runs."""
    monkeypatch.setenv("BECAUSE_HOME", str(tmp_path))
    return tmp_path
