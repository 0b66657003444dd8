"""Fuzzing: read many damaged inputs and count the outcomes; ``python -m benchmarks fuzz --inputs 20000 -o fuzz.json``.

Good outcomes: `refused` (with a BecauseError), `accepted` (and its content is valid), `unprotected` (it differs from
what was written, in a file without a checksum). Faults: `traceback`, `wrong` (accepted, but should not have been),
`hang`, `crash`. Inputs are read in separate processes: damaged HDF5 can hang or kill the C library. Every input is a
function of seed, target and number, so a fault can be reproduced by its number (an input of target `run` also depends
on the time and path in its run.json).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.io import append_bytes, read_json_lines
from because_rl.provenance import provenance
from because_rl.rng import stream
from benchmarks.fuzz import configs, data, records
from benchmarks.fuzz.mutations import Rng

FAULTS = ("traceback", "wrong", "hang", "crash")
OUTCOMES = ("refused", "accepted", "unprotected", *FAULTS)
START = 200.0
"""Seconds allowed for a process to start"""
MEMORY = 4 * 2**30
"""Bytes that reading one input may allocate on top of the program: an input that declares more must be refused"""
BLOCK = 200
"""Verdicts that are kept at a time"""
SHOWN = 5
"""Input numbers listed for each kind of fault"""


@dataclass(frozen=True)
class Target:
    """A kind of input to damage and read."""

    case: Callable[[Rng, Path, Path], configs.Case]
    """(generator, folder with the sound inputs, work folder) -> damaged input"""
    share: float
    """of all inputs"""
    prepare: Callable[[Path], None] | None = None
    """writes the sound inputs into a folder"""
    patience: float = 5.0
    """CPU seconds after which reading one input counts as a hang; sound inputs take milliseconds"""


TARGETS = {
    "grid": Target(configs.grid_case, 0.20),
    "settings": Target(configs.settings_case, 0.24),
    "factors": Target(configs.factors_case, 0.18),
    "log": Target(data.log_case, 0.12, data.prepare_data),
    "dataset": Target(data.dataset_case, 0.10, data.prepare_data),
    "arrays": Target(data.arrays_case, 0.15, data.prepare_arrays),
    "records": Target(records.record_case, 0.20),
    "structures": Target(records.structure_case, 0.05, patience=10.0),
    "names": Target(records.name_case, 0.10),
    "agent": Target(data.agent_case, 0.01, data.prepare_run, patience=20.0),
    "run": Target(data.run_case, 0.01, data.prepare_run, patience=60.0),
}


def fuzz(
    inputs: int = 20_000,
    seed: int = 0,
    targets: Sequence[str] = (),
    report: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 1,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Damage and read `inputs` inputs; returns the outcomes by target (`rows`), and the faults with `examples`.

    `targets` restricts the targets (all), `workers` is how many are examined at a time, and `report` is called with
    the numbers of inputs done and in total. `keep` is a folder for verdicts, from which a later call with the same
    seed resumes. A row has the peak of the memory of the processes that read its inputs ("peak_mib", imports
    included) and the inputs per second.
    """
    if unknown := set(targets) - set(TARGETS):
        raise BecauseError(
            f"There is no target {min(unknown)!r}.", need=f"one of {', '.join(TARGETS)}.", fix="correct --target."
        )
    if inputs < 1:
        raise BecauseError(f"Got {inputs} inputs.", need="at least 1.", fix="pass --inputs 20000.")
    chosen = [name for name in TARGETS if name in (targets or TARGETS)]
    whole = sum(TARGETS[name].share for name in chosen)
    shares = {name: max(1, round(inputs * TARGETS[name].share / whole)) for name in chosen}
    rows: list[dict[str, Any]] = []
    examples: list[dict[str, Any]] = []
    done = Counter[str]()

    def examine(name: str) -> tuple[list[dict[str, Any]], float]:
        kept = None if keep is None else keep / f"{name}-seed-{seed}.jsonl"
        verdicts = read_json_lines(kept)[: shares[name]] if kept is not None and kept.exists() else []
        done[name] = len(verdicts)
        begin, unwritten = time.monotonic() - sum(verdict["seconds"] for verdict in verdicts), ""
        for verdict in verdicts_of(name, TARGETS[name], seed, shares[name], len(verdicts)):
            verdicts.append(verdict)
            done[name] += 1
            report(done.total(), sum(shares.values()))
            unwritten += json.dumps(verdict) + "\n"
            if kept is not None and (done[name] % BLOCK == 0 or done[name] == shares[name]):
                append_bytes(kept, unwritten.encode(), kept.stat().st_size if kept.exists() else 0)
                unwritten = ""
        return verdicts, time.monotonic() - begin

    with ThreadPoolExecutor(max(1, workers)) as pool:  # a thread only waits for its process to answer
        for name, (verdicts, seconds) in zip(chosen, pool.map(examine, chosen), strict=True):
            tally = Counter(verdict["outcome"] for verdict in verdicts)
            row = {"target": name, "inputs": len(verdicts)} | {outcome: tally[outcome] for outcome in OUTCOMES}
            row |= {"seconds": round(seconds, 1), "per_second": round(len(verdicts) / max(seconds, 1e-9), 1)}
            rows.append(row | {"peak_mib": max(verdict["peak_mib"] for verdict in verdicts)})
            examples += _examples(name, verdicts)
    faults = sum(row[outcome] for row in rows for outcome in FAULTS)
    total = sum(row["inputs"] for row in rows)
    result = {"inputs": total, "seed": seed, "faults": faults, "rows": rows, "examples": examples}
    return result | {"provenance": provenance(inputs=inputs, seed=seed, targets=chosen)}


def _examples(name: str, verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One fault of each kind, with the count and the first numbers of those like it."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for verdict in verdicts:
        if verdict["outcome"] in FAULTS:
            alike.setdefault((verdict["outcome"], verdict["where"]), []).append(verdict)
    return [
        {"target": name, "alike": len(group), "numbers": [v["number"] for v in group[:SHOWN]]}
        | {key: group[0][key] for key in ("outcome", "where", "damage", "why")}
        for group in alike.values()
    ]


def judge(target: Target, rng: Rng, base: Path, work: Path) -> dict[str, Any]:
    """Make one damaged input in the new folder `work`, read it, and return outcome, where, damage and why."""
    work.mkdir()
    outcome, where, why, what = "accepted", "", "", ""
    try:
        what, read = target.case(rng, base, work)
        outcome = read()
    except BecauseError as error:
        complete = all(isinstance(part, str) and part.strip() for part in (error.got, error.need, error.fix))
        outcome, why = "refused" if complete else "traceback", str(error)
    except configs.Wrong as error:
        outcome, where, why = "wrong", " ".join(str(error).split()[:2]), str(error)
    except Exception as error:
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "because_rl" in f.filename]
        where = " < ".join(f"{Path(f.filename).name}:{f.name}" for f in ours[:-3:-1]) + f" {type(error).__name__}"
        outcome, why = "traceback", str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"outcome": outcome, "where": where, "damage": what, "why": why[:300]}


# Processes ---------------------------------------------------------------------------------------------


def verdicts_of(name: str, target: Target, seed: int, count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The verdicts on inputs `first` to count - 1, in order; a process that hangs or dies is replaced."""
    with tempfile.TemporaryDirectory(prefix="because-fuzz-") as folder:
        base, number = Path(folder) / "base", first
        base.mkdir()
        if target.prepare is not None and number < count:
            target.prepare(base)
        while number < count:
            context = multiprocessing.get_context("spawn")
            pipe, child_end = context.Pipe(duplex=False)
            task = (child_end, name, target, seed, range(number, count), Path(folder))
            process = context.Process(target=_serve, args=task, daemon=True)
            process.start()
            child_end.close()
            try:
                if not pipe.poll(START):
                    raise BecauseError("A process did not start.", need="free memory and CPU time.", fix="try again.")
                pipe.recv()  # it is ready
                while number < count:
                    begin = time.monotonic()
                    verdict = {"number": number, "peak_mib": 0} | _next(pipe, target.patience, process)
                    yield verdict | {"seconds": round(time.monotonic() - begin, 4)}
                    number += 1
                    if verdict["outcome"] in ("hang", "crash"):
                        break
            finally:
                process.kill()
                process.join()


def _next(pipe: Connection, patience: float, process: BaseProcess) -> dict[str, Any]:
    try:
        begin, outcome, why = _cpu_seconds(process), "hang", f"no answer in {patience:g} s of CPU time"
        for _ in range(20):  # on a busy machine the process may not have had CPU time
            if pipe.poll(patience):
                return pipe.recv()
            if _cpu_seconds(process) > begin + 0.9 * patience:
                break
    except EOFError:
        process.join()
        outcome, why = "crash", f"exit code {process.exitcode}"
    return {"outcome": outcome, "where": "", "damage": "", "why": why}


def _cpu_seconds(process: BaseProcess) -> float:
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(pipe: Connection, name: str, target: Target, seed: int, todo: range, folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()  # ends with its parent
    warnings.simplefilter("ignore")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_in_use() + MEMORY, most))
    pipe.send(None)
    for number in todo:
        rng = stream(seed, "fuzz", name, number)
        verdict = judge(target, rng, folder / "base", folder / f"work-{number}")
        pipe.send(verdict | {"peak_mib": _peak()})


def _peak() -> int:
    """The most memory in MiB that this process, or one that it started and that has ended, ever had."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024


def _in_use() -> int:
    """Bytes of address space that this process uses."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 16 * 2**30
