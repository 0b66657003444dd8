"""Fixtures of the tests that really train."""

import os
from pathlib import Path

import jax
import pytest


@pytest.fixture
def compile_cache(monkeypatch):
    """The test session's folder of compiled programs, for commands that would use one of their own.

    What is trained here takes less time than to compile it: so programs are not optimised, and a job keeps those of
    the jobs before it.
    """
    limits = [f"jax_persistent_cache_min_{what}" for what in ("compile_time_secs", "entry_size_bytes")]
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", *limits)}
    jax.config.update("jax_disable_most_optimizations", True)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    yield Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    for name, value in (before | {"jax_disable_most_optimizations": False}).items():
        jax.config.update(name, value)
