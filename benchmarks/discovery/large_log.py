"""A log that does not fit in memory: seconds, peak memory and F1 of `check`, `discover` and `fit` on it.

The log is a sparse nonlinear system of 30 state factors and 10 actions (`synthetic.sparse`), in parts of Parquet, with
rows of 40 float32 columns and an id. In one stretch of it, the rows from `BROKEN` on for half a per cent of the log, an
action also drives a factor that it does not drive elsewhere: an effect that a sample of the log can hardly show, and
that the check of the other episodes should report.

Each command runs in a process of its own. Its peak memory is what the operating system reports of it, which includes
the pages of files that it has mapped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.graph import Graph
from because_rl.io import new_folder, read_json, remove_folder, write_json
from because_rl.provenance import provenance
from because_rl.rng import stream
from benchmarks.discovery.recovery import make_system, score_verdicts
from benchmarks.discovery.synthetic import sparse

SYSTEM, STATES, ACTIONS = "nonlinear-30x10", 30, 10
LENGTH = 100
"""Rows of an episode."""
BROKEN, SHARE = 0.9, 0.005
"""Where in the log the stretch begins, and its share of the log."""
COMMANDS = ("check", "discover", "fit")


def scale(
    rows: int,
    parts: int,
    seed: int,
    keep: Path,
    commands: Sequence[str] = COMMANDS,
    options: Sequence[str] = (),
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Write the log and run commands on it.

    Args:
        rows: of the log, in episodes of 100.
        parts: files.
        seed: of the rows.
        keep: a folder for the log and results, from which a later run resumes.
        commands: of `COMMANDS`.
        options: further options of all commands, such as ``--sample-rows``.
        report: called with (steps finished, steps in total).
    """
    total = 1 + len(commands)
    report(0, total)
    begin = time.monotonic()
    if not (keep / "log.json").exists():
        write_log(keep / "log", rows, parts, seed)
        write_json(keep / "log.json", {"seconds": round(time.monotonic() - begin, 1)})
    factors = keep / "factors.json"
    write_json(factors, factor_file())
    report(1, total)
    results = []
    for done, command in enumerate(commands, 2):
        file = keep / f"{command}.json"
        if not file.exists():
            arguments = ["--factors", str(factors), *options]
            if command != "check":
                remove_folder(keep / f"{command}-folder")
                arguments += ["-o", str(keep / f"{command}-folder")]
            if command == "fit":
                arguments += ["--seeds", "1"]
            write_json(file, measure([command, str(keep / "log"), *arguments, "--json"]))
        results.append({"command": command} | summarise(command, read_json(file), keep / f"{command}-folder"))
        report(done, total)
    size = sum(part.stat().st_size for part in (keep / "log").iterdir())
    return {
        "rows": results,
        "log": {"rows": rows, "parts": parts, "columns": STATES + ACTIONS, "gigabytes": round(size / 1e9, 2)},
        "writing_seconds": read_json(keep / "log.json")["seconds"],
        "provenance": provenance(
            rows=rows, parts=parts, seed=seed, system=SYSTEM, options=list(options), commands=list(commands)
        ),
    }


def additional_edge(truth: Graph) -> tuple[str, str]:
    """The first pair of an action and a state factor that is no edge."""
    return next((a, s) for a in truth.inputs[STATES:] for s in truth.targets if (a, s) not in truth.edges)


def factor_file() -> dict[str, Any]:
    """The content of a factor file: every column is a factor."""
    factors = make_system(SYSTEM).factors
    groups = {"state": factors.state, "action": factors.action}
    entries = {k: [{"name": f.name, "columns": f.name, "type": "continuous"} for f in v] for k, v in groups.items()}
    return {"table": {"episode": "episode"}} | entries


def write_log(folder: Path, rows: int, parts: int, seed: int) -> None:
    """Write the log in parts of whole episodes."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    usual = sparse(STATES, ACTIONS, linear=False)
    other = sparse(STATES, ACTIONS, linear=False, also=[additional_edge(usual.graph)])
    episodes = rows // LENGTH
    names = [f.name for f in (*usual.factors.state, *usual.factors.action)]
    edges = [episodes * k // parts for k in range(parts + 1)]
    first, last = (int(share * episodes) for share in (BROKEN, BROKEN + SHARE))
    with new_folder(folder) as new:
        for k in range(parts):
            numbers = np.arange(edges[k], edges[k + 1])
            changed = (numbers >= first) & (numbers < last)
            x = np.empty((len(numbers), LENGTH, len(names)), np.float32)
            for system, which in ((usual, ~changed), (other, changed)):
                if not which.any():
                    continue
                rng = stream(seed, "large log", k, int(system is other))
                state, action, _, _ = system.log(rng, "random", int(which.sum()) * LENGTH, LENGTH)
                x[which] = np.hstack([state, action]).reshape(-1, LENGTH, len(names))
            columns = dict(zip(names, x.reshape(-1, len(names)).T.copy(), strict=True))
            table = arrow.table({"episode": np.repeat(numbers, LENGTH)} | columns)
            parquet.write_table(table, new / f"part-{k:03}.parquet")


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run ``because`` with these arguments: what it printed, seconds, CPU seconds, and peak memory in GB."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([sys.executable, "-m", "because_rl", *arguments], stdout=output, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        for file in (output, errors):
            file.seek(0)
        if status:
            raise BecauseError(
                f"'because {arguments[0]}' failed: {errors.read()[-1000:].decode(errors='replace')}",
                need="a command that ends well.",
                fix="run it by itself.",
            )
        return {
            "printed": json.loads(output.read()),
            "seconds": round(seconds, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
        }


def summarise(command: str, measured: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Cost; and of a graph the scores of the sample's verdicts and what the other episodes add."""
    row = {name: measured[name] for name in ("seconds", "cpu_seconds", "peak_gb")}
    if command == "check":
        return row | {name: measured["printed"][name] for name in ("episodes", "transitions")}
    content = read_json(folder / ("graph.json" if command == "discover" else "graph/graph.json"))
    truth = make_system(SYSTEM).graph
    rest = content["settings"]["rest"]
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for edge in content["edges"]:
        verdicts.setdefault(edge["status"], []).append((edge["from"], edge["to"]))
    scores = score_verdicts(verdicts, truth)
    excluded = [edge["detectable"] for edge in content["edges"] if edge["status"] == "excluded"]
    row |= {name: scores[name] for name in ("precision", "recall", "f1", "f1_established", "undetermined")}
    row |= {
        "rows_used": content["settings"]["rows_used"],
        "detectable": {"median": float(np.median(excluded)), "largest": max(excluded)},
        "rest": {name: rest[name] for name in ("chunks", "episodes", "rows", "reopened")},
        "additional_edge": list(additional_edge(truth)),
        "additional_edge_reopened": list(additional_edge(truth)) in [[e["from"], e["to"]] for e in rest["reopened"]],
    }
    if command == "fit":
        printed = measured["printed"]
        row |= {"sample": printed["sample"], "steps": {k: v["step"] for k, v in printed["stages"].items() if v}}
        values = [accuracy["value"] for accuracy in printed["accuracy"]]
        row["held_out_r2"] = {"least": min(values), "mean": float(np.mean(values))}
    return row
