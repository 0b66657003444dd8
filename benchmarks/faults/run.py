"""Fault injection: let the k-th operation on files of a command fail, for every k, and run the command again.

Operations are: make a folder, open a file for writing, write, fsync, rename. A fault is ENOSPC or EIO, raised after
half of a write, or SIGKILL. The command must end with one error message (or by
the signal), and the same command, run again, must end well, with the files of an undisturbed run and nothing else:
no temporary file, lock or unfinished folder. ``python -m benchmarks faults collect --keep work/faults``

Commands run in forked processes: what they need is imported once, and JAX, whose threads do not survive a fork, is
first used after it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import append_bytes, read_arrays, read_json_lines
from because_rl.provenance import provenance

KINDS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "SIGKILL": 0}
SECONDS = 300
"""after which a command counts as hanging"""
TINY = [part for text in ("steps=4", "hidden=4", "batch=8") for part in ("--set", text)]
FIT = ["world_steps=4", "energy_steps=4", "behaviour_steps=4", "value_steps=4", "hidden=4", "batch=8", "batches=0"]
FIT += ["planner.population=4", "planner.horizon=2", "mask=full"]
DATA = "unlock-medium-n20"
COMMANDS: dict[str, tuple[str, ...]] = {
    "collect": ("collect", "unlock-medium", "--episodes", "5", "--seed", "1"),
    "discover": ("discover", DATA, "-o", "graph"),
    "train": ("train", "ccil", "--data", DATA, "--seeds", "2", *TINY, "--chunk", "2", "-o", "new", "--resume"),
    "evaluate": ("evaluate", "run", "--split", "IO", "--episodes", "2"),
    "fit": ("fit", "log.hdf5", "--factors", "factors.yaml", "-o", "fitted", "--seeds", "1", "--chunk", "4", "--resume")
    + tuple(part for text in FIT for part in ("--set", text)),
    "sweep": ("sweep", "grid.yaml", "-o", "results", "--workers", "0"),
    "report": ("report", "run", "-o", "page"),
}
GRID: dict[str, Any] = {
    "methods": {"ccil": {"steps": 4, "hidden": 4, "batch": 8}},
    "worlds": ["unlock"],
    "policies": ["medium"],
}
GRID |= {"seeds": 1, "episodes": 2, "ratios": [0.05], "subcases": False, "splits": ["I"], "chunk": 4}


class Injector:
    """Counts operations on files in a folder; the k-th one fails, if `k` is above 0."""

    def __init__(self, folder: Path, k: int = 0, kind: str = "SIGKILL"):
        self.folder, self.k, self.kind, self.count = str(folder), k, kind, 0

    def step(self, half: Callable[[], Any] = lambda: None) -> None:
        """Count one operation; `half` does a part of it before it fails."""
        self.count += 1
        if self.count == self.k:
            half()
            if self.kind == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(KINDS[self.kind], os.strerror(KINDS[self.kind]))

    def counts(self, file: Any) -> bool:
        """Whether a path or a file handle is in the folder: compiled programs, for one, are not."""
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(file)
        return path.startswith(self.folder)

    @contextlib.contextmanager
    def installed(self) -> Iterator[Injector]:
        """While the context lasts, this process's operations on files are counted."""
        real_open, real = builtins.open, {name: getattr(os, name) for name in ("mkdir", "fsync", "replace", "rename")}

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            written = set(mode) & set("wax+") and self.counts(file)
            if written:
                self.step()
            handle = real_open(file, mode, *arguments, **options)
            return _Written(handle, self) if written and "b" in mode else handle

        def counted(name: str) -> Callable[..., Any]:
            def call(file: Any, *arguments: Any, **options: Any) -> Any:
                if self.counts(file) and not (name == "mkdir" and os.path.isdir(file)):
                    self.step()
                return real[name](file, *arguments, **options)

            return call

        builtins.open = opened
        for name in real:
            setattr(os, name, counted(name))
        try:
            yield self
        finally:
            builtins.open = real_open
            for name, function in real.items():
                setattr(os, name, function)


class _Written:
    """A file whose writes are counted."""

    def __init__(self, handle: Any, injector: Injector):
        self._handle, self._injector = handle, injector

    def write(self, data: bytes) -> int:
        self._injector.step(lambda: (self._handle.write(data[: len(data) // 2]), self._handle.flush()))
        return self._handle.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.close()


# The files of a command --------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, str]:
    """File -> a hash of what must be the same in every run; times and provenance are left out."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): _content(file) for file in files}


def state(folder: Path) -> str:
    """A hash of all that a command would find in the folder: names, but for the random part of temporary ones, and
    contents, but for times."""
    entries = []
    for path in folder.rglob("*"):
        name = re.sub(r"\.tmp-[\w-]+", ".tmp", str(path.relative_to(folder)))
        try:
            entries.append(f"{name} {_content(path) if path.is_file() else 'folder'}")
        except Exception:  # half a file
            entries.append(f"{name} {_digest(path.read_bytes())}")
    return _digest("\n".join(sorted(entries)).encode())


def leftovers(folder: Path) -> list[str]:
    """Temporary files, locks and unfinished folders."""
    words = (".tmp-", ".lock", ".partial", "unfinished")
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if any(word in p.name for word in words))


def _content(file: Path) -> str:
    if file.suffix == ".json":
        return _digest(json.dumps(_timeless(json.loads(file.read_text("utf-8"))), sort_keys=True).encode())
    if file.suffix == ".npz":
        arrays = read_arrays(file)
        return _digest(
            b"".join(name.encode() + np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
        )
    if file.suffix == ".html" or "tfevents" in file.name:  # they show times
        return "present"
    return _digest(file.read_bytes())


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in ("provenance", "seconds", "sha256")}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# Processes ---------------------------------------------------------------------------------------------


def run_forked(function: Callable[[], Any], log: Path) -> tuple[int, str]:
    """Run a function in a forked process; returns its exit code (negative: a signal) and what it wrote."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(handle, stream)
            signal.alarm(SECONDS)
            function()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), log.read_text("utf-8", errors="replace")


def run_command(arguments: Sequence[str], folder: Path, injector: Injector) -> None:
    """Run ``because`` in a folder that is also its root."""
    from because_rl.cli.main import main

    os.chdir(folder)
    sys.argv = ["because", *arguments, "--root", "."]
    with injector.installed():
        try:
            main()
        finally:
            (folder.parent / "count").write_text(str(injector.count))


def _prepare(base: Path) -> None:
    """Everything that a command may need, in the folder `base`."""
    import h5py

    from because_rl.cli.main import main
    from because_rl.rng import stream

    os.chdir(base)
    rng = stream(0, "faults")
    steps = rng.normal(size=(24, 10, 1))
    states = np.cumsum(steps, axis=1)
    with h5py.File("log.hdf5", "w") as file:
        file["observations"], file["actions"] = states.reshape(-1, 1), steps.reshape(-1, 1)
        file["episodes"] = np.repeat(np.arange(24), 10)
    (base / "grid.yaml").write_text(json.dumps(GRID), "utf-8")
    train = [*COMMANDS["train"][:-3], "-o", "run"]
    for words in (
        ["collect", "unlock-medium", "--episodes", "20", "--root", "."],
        ["factors", "log.hdf5", "-o", "factors.yaml"],
        [*train, "--root", "."],
    ):
        sys.argv = ["because", *words]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


def _warm_up(programs: Path) -> None:
    """Import what the commands need, so that forked processes have it; nothing here may start JAX.

    Compiled programs are cached in the folder `programs`.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    import jax

    import because_rl.cli.main
    import because_rl.experiments.grid.grid
    import because_rl.experiments.grid_report
    import because_rl.runs.evaluate
    import because_rl.runs.fit
    import because_rl.runs.report  # noqa: F401
    from because_rl.runs.compilation import use_compilation_cache

    use_compilation_cache(programs)  # JAX may have been imported before it could read its variable
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


# The study ---------------------------------------------------------------------------------------------


def inject_faults(
    names: Sequence[str] = (),
    kinds: Sequence[str] = tuple(KINDS),
    every: int = 1,
    report: Callable[[int, int], None] = lambda done, total: None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Inject faults into the commands of these names (all).

    Args:
        kinds: among `KINDS`.
        every: only every so many operations, beginning with the first.
        report: called with (faults injected, faults in all) of the command at work.
        keep: a folder for the outcomes, from which a later call with the same source resumes.

    Returns:
        "rows" of command, operations, faults, survived; "failures"; and the "provenance".
    """
    if unknown := {*names} - {*COMMANDS} | {*kinds} - {*KINDS}:
        need = f"one of {', '.join(COMMANDS)}; {', '.join(KINDS)}."
        raise BecauseError(f"There is no {min(unknown)!r}.", need=need, fix="correct it.")
    origin = provenance(commands=list(names or COMMANDS), kinds=list(kinds), every=every)
    rows, failures = [], []
    with tempfile.TemporaryDirectory(prefix="because-faults-") as folder:
        place = Path(folder).resolve()
        base = place / "base"
        base.mkdir()
        kept = (keep or place / "kept").resolve() / origin["revision"]
        kept.mkdir(parents=True, exist_ok=True)
        _warm_up(kept.parent / "programs")
        code, text = run_forked(lambda: _prepare(base), place / "log")
        if code:
            raise BecauseError(f"The inputs could not be made: {text[-500:]}", need="them.", fix="see the message.")
        for name in names or COMMANDS:
            row, own = _study(name, place, kinds, every, report, kept / f"{name}.jsonl")
            rows.append(row)
            failures += own
    return {"rows": rows, "failures": failures, "provenance": origin}


def _study(
    name: str,
    place: Path,
    kinds: Sequence[str],
    every: int,
    report: Callable[[int, int], None],
    kept: Path,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    work, log = place / "work", place / "log"

    def start(k: int, kind: str) -> tuple[int, str]:
        return run_forked(lambda: run_command(COMMANDS[name], work, Injector(work, k, kind)), log)

    def fresh() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place / "base", work)

    for _ in range(2):  # the first one compiles
        fresh()
        code, text = start(0, "SIGKILL")
        if code:
            what = f"{name} fails without a fault: {text[-500:]}"
            raise BecauseError(what, need="it to work.", fix="see the message.")
    expected, operations = fingerprint(work), int((place / "count").read_text("utf-8"))
    cases = [(k, kind) for k in range(1, operations + 1, every) for kind in kinds]
    outcomes = {(line["operation"], line["fault"]): line for line in read_json_lines(kept)} if kept.exists() else {}
    survived = {line["state"] for line in outcomes.values() if not line["problem"]}
    for done, (k, kind) in enumerate(cases):
        report(done, len(cases))
        if (k, kind) in outcomes:
            continue
        fresh()
        code, text = start(k, kind)
        problem = _problem_at_fault(code, text, kind)
        if not problem and code == 0:
            problem = _problem_afterwards(code, text, expected, work)  # it has done its work in spite of the fault
        before = state(work)
        if not problem and before not in survived:  # the same files have the same future
            code, text = start(0, kind)
            problem = _problem_afterwards(code, text, expected, work)
            survived |= {before} if not problem else set()
        line = {"command": name, "operation": k, "fault": kind, "problem": problem[-1000:], "state": before}
        outcomes[k, kind] = line
        append_bytes(kept, (json.dumps(line) + "\n").encode(), kept.stat().st_size if kept.exists() else 0)
    report(len(cases), len(cases))
    failures = [outcomes[case] for case in cases if outcomes[case]["problem"]]
    row = {"command": name, "operations": operations, "faults": len(cases)}
    return row | {"survived": len(cases) - len(failures)}, failures


def _problem_at_fault(code: int, text: str, kind: str) -> str:
    """What is wrong with the end of a command in which an operation failed; empty if nothing is."""
    if kind == "SIGKILL":
        return "" if code == -signal.SIGKILL else f"exit code {code}: {text}"
    return f"exit code {code}: {text}" if "Traceback" in text or code not in (0, 1, 2) else ""


def _problem_afterwards(code: int, text: str, expected: dict[str, str], work: Path) -> str:
    """What is wrong after the same command was run again; empty if nothing is."""
    if code:
        return f"again, exit code {code}: {text}"
    if remains := leftovers(work):
        return f"left over: {remains}"
    different = Counter(expected.items()) - Counter(fingerprint(work).items())
    more = fingerprint(work).keys() - expected.keys()
    return f"other files: {sorted(name for name, _ in different)} {sorted(more)}" if different or more else ""
