"""Compiled programs: how they are kept for other processes and later ones, and how they are run."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from because_rl.datasets.paths import home_folder


def use_compilation_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`; call it before the first is compiled."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def use_home_compilation_cache(root: Path | None) -> None:
    """Keep them beside the datasets, unless the environment names another place."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        use_compilation_cache(home_folder(root) / "programs")


IN_TURN = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
KNOWN_TO = ("0.10.", "0.11.")
"""Versions of jaxlib that know it; others might refuse to start with it."""


def disable_concurrent_ops() -> None:
    """Let a CPU run the operations of a program one after the other; call it before the first is compiled.

    Two batched triangular solves side by side wait for each other's threads for good where there are two cores, as they
    did with ten seeds of five worlds each. One at a time, each on all cores, a seed of BECAUSE takes a seventh longer.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if IN_TURN.split("=")[0] not in flags and version("jaxlib").startswith(KNOWN_TO):
        os.environ["XLA_FLAGS"] = f"{flags} {IN_TURN}".strip()
