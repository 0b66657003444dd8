"""Compiled programs that are kept, for other processes and later ones."""

from __future__ import annotations

import os
from pathlib import Path

from because_rl.datasets.home import home


def share_programs(folder: Path) -> None:
    """Keep compiled programs in `folder`; call it before the first is compiled."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def keep_programs(root: Path | None) -> None:
    """Keep them beside the datasets, unless the environment names another place."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        share_programs(home(root) / "programs")
