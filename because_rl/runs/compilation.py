"""Where compiled programs are cached."""

from __future__ import annotations

import os
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
