"""Time of one experiment: the commands ``train`` and ``evaluate`` as a user runs them, compilation included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from because_rl.datasets.paths import home_folder
from because_rl.errors import BecauseError
from because_rl.provenance import provenance


def run_cost(
    data: str,
    method: str = "because",
    seeds: int = 1,
    episodes: int = 100,
    settings: Mapping[str, str] | None = None,
    root: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Seconds of training and of evaluating in both splits, in fresh processes with an empty compilation cache.

    Returns one row with the seconds of each command, their sum and the success by split.
    """
    overrides = [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="because-cost-") as folder:
        run, common = Path(folder) / "run", ("--root", str(home_folder(root)), "--json")
        commands = {
            "train": ("train", method, "--data", data, "--seeds", str(seeds), *overrides, "-o", str(run), *common),
            "evaluate": ("evaluate", str(run), "--split", "IO", "--episodes", str(episodes), *common),
        }
        fresh = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "programs")}
        seconds, output = {}, {}
        for n, (name, command) in enumerate(commands.items()):
            report(n, len(commands))
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "because_rl", *command], capture_output=True, env=fresh)
            seconds[name] = round(time.perf_counter() - begin, 1)
            if done.returncode:
                raise BecauseError(
                    f"'because {name}' ended with exit code {done.returncode}.",
                    need="exit code 0.",
                    fix=f"see its error output: {done.stderr.decode(errors='replace').strip()[-500:]}",
                )
            output[name] = json.loads(done.stdout)
        report(len(commands), len(commands))
    success = {split: result["success"] for split, result in output["evaluate"]["splits"].items()}
    row = {"data": data, "method": method, "seeds": seeds, "episodes": 2 * episodes, **seconds}
    return {
        "rows": [row | {"seconds": round(sum(seconds.values()), 1), "success": success, "load_before": round(load, 2)}],
        "provenance": provenance(data=data, method=method, seeds=seeds, episodes=episodes, settings=settings or {}),
    }
