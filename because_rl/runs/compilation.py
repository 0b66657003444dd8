"""Compiled programs: where they are cached, and how a CPU runs them."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from because_rl.datasets.paths import home_folder


def use_compilation_cache(folder: Path) -> None:
    """Cache compiled programs in `folder`, for this process and later ones; call it before the first is compiled."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def use_home_compilation_cache(root: Path | None) -> None:
    """Cache compiled programs beside the datasets under `root`, unless the environment names another folder."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        use_compilation_cache(home_folder(root) / "programs")


SEQUENTIAL = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
SUPPORTED_BY = ("0.10.", "0.11.")
"""Versions of jaxlib that have this flag; others might refuse to start with it."""


def disable_concurrent_ops() -> None:
    """Let a CPU run the operations of a program one after the other; call it before the first is compiled.

    With two cores, two batched triangular solves that run concurrently wait for each other's threads for ever, as they
    did with ten seeds of five worlds each. One at a time, each on all cores, a seed of BECAUSE takes a seventh longer.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if SEQUENTIAL.split("=")[0] not in flags and version("jaxlib").startswith(SUPPORTED_BY):
        os.environ["XLA_FLAGS"] = f"{flags} {SEQUENTIAL}".strip()
