"""Where a number came from: revision, versions, hardware, time. Every result file carries it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("numpy", "jax", "gymnasium", "minari", "minigrid", "highway-env", "mujoco", "robosuite")


def revision() -> str:
    """The git revision of the source, with ``+changes`` when the tree differs from it.

    ``BECAUSE_REVISION`` overrides it, for a copy of the source without its git history.
    """
    if given := os.environ.get("BECAUSE_REVISION"):
        return given
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # installed in a folder of another repository: fails
        # Only the source counts as changed: the runs that ask write result files into the same tree.
        changed = _git("status", "--porcelain", "--", ".", "../pyproject.toml")
        return _git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"


def _git(*arguments: str) -> str:
    folder = Path(__file__).resolve().parent
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def provenance(**config: Any) -> dict[str, Any]:
    """Revision, time, command, hardware and package versions, to be kept with a result; `config`: its settings."""
    return {
        "revision": revision(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["because", *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])]),
        "config": config,
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "memory_gib": _memory_gib(),
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }
