"""Run the missing cells of a grid: each once, whoever is killed and however many processes take part.

    RESULTS/cells/<key>.json     a finished cell, written once and then left alone
    RESULTS/failed/<key>.json    why a job failed; it is tried again on request only
    RESULTS/.claims/<key>.lock   held by whoever works on a job; the system lets go of it when that process dies

A job is what is claimed at a time: cells that share costly work, such as one training and its evaluations. Workers
do not talk to each other: each goes through the jobs and takes those that are neither done nor held (`work`). So
any number of runners may share the folder, on several machines too, and an engine is whatever does the jobs in some
processes: `local` does here, `ray_engine` on a cluster, whose machines need not see the folder.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from because_rl.errors import BecauseError
from because_rl.io import exclusive, read_json, write_json
from because_rl.provenance import provenance

POLL = 0.5
"""Seconds between two looks at jobs that others hold."""
OLD = 3600.0
"""Seconds after which a half-written file is a dead process's: far more than a write takes or clocks differ by."""
DEATHS = 3
"""Workers that may die at one job before it counts as failed."""
BROKEN = 75
"""Exit code of a worker whose device failed it."""
PACKAGE = Path(__file__).resolve().parents[2]
PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO}


@dataclass(frozen=True)
class Job:
    key: str
    cells: Mapping[str, Mapping[str, Any]]
    """key of a cell -> what it is, in plain data: the head of its result file"""


Compute = Callable[[Job, Sequence[str]], Iterable[tuple[str, Mapping[str, Any]]]]
"""(job, keys of the cells that are missing) -> key and result of each, kept as they come"""
Say = Callable[[str, str], None]
"""('takes' or 'leaves', key of a job)"""


class Status(NamedTuple):
    done: int
    total: int
    """cells"""
    failed: int
    """jobs"""
    running: tuple[str, ...]
    """keys of the jobs that this runner's workers are at"""


Report = Callable[[Status], None]
Engine = Callable[[Sequence[Job], Compute, Path, int, Callable[[tuple[str, ...]], None]], None]
"""(jobs, compute, folder, workers, tell the keys of running jobs) -> when nothing is left to do"""


class StopSweep(BecauseError):
    """Raised by a cell's function where the fault is not this cell's: nothing is recorded, and all workers stop."""


def sweep(
    jobs: Sequence[Job],
    compute: Compute,
    folder: Path,
    *,
    workers: int = 1,
    retry_failed: bool = False,
    report: Report = lambda status: None,
    engine: Engine | None = None,
) -> Status:
    """Until every job is finished or failed, by whomever. `workers=0` works in this very process."""
    if workers < 0:
        raise BecauseError(f"Got {workers} workers.", need="0 (this process) or more.", fix="pass --workers 2.")
    folder, told = Path(folder), 0.0

    def tell(running: tuple[str, ...]) -> None:
        nonlocal told
        if time.monotonic() > told + POLL / 2:  # it costs a look at the folder
            report(status(jobs, folder, running))
            told = time.monotonic()

    _tidy(folder)
    if retry_failed:
        for job in jobs:
            failed_file(folder, job).unlink(missing_ok=True)
    report(status(jobs, folder))
    if left(jobs, folder):
        (engine or local)(jobs, compute, folder, workers, tell)
    report(now := status(jobs, folder))
    return now


def work(jobs: Sequence[Job], compute: Compute, folder: Path, say: Say = lambda what, key: None) -> None:
    """Take one job after the other until nothing is left; wait for those that others hold, who may yet die."""
    while todo := left(jobs, folder):
        held = [job for job in todo if not _take(job, compute, folder, say)]
        if held:
            time.sleep(POLL)


def _take(job: Job, compute: Compute, folder: Path, say: Say) -> bool:
    """Do what is missing of a job; False where somebody else is at it."""
    with claim(folder, job) as mine:
        if not mine:
            return False
        # Only now is it certain that nobody else is finishing it.
        missing = [key for key in job.cells if not cell_file(folder, key).exists()]
        if not missing or failed_file(folder, job).exists():
            return True
        say("takes", job.key)
        try:
            for key, result in results(compute, job, missing):
                keep(folder, job, key, result)
        except Exception as error:
            if stops_all(error):
                raise
            fail(folder, job, *why(error))
        say("leaves", job.key)
    return True


@contextlib.contextmanager
def claim(folder: Path, job: Job) -> Iterator[bool]:
    """Whether the job is ours for as long as this lasts."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder / ".claims" / f"{job.key}.lock", f"working on {job.key}"))
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            yield False
        else:
            yield True


def results(compute: Compute, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What the function gives for the missing cells; an error where it leaves one out."""
    came: set[str] = set()
    for key, result in compute(job, missing):
        yield key, result
        came.add(key)
    if lacking := [key for key in missing if key not in came]:
        raise BecauseError(f"No result came for {lacking[0]}.", need="one for every cell.", fix="report this.")


def keep(folder: Path, job: Job, key: str, result: Mapping[str, Any]) -> None:
    write_json(cell_file(folder, key), {**result, **job.cells[key]})


def stops_all(error: BaseException | None) -> bool:
    """Whether no cell is at fault: a full or read-only disk fails every cell, and cannot even keep the reason."""
    while error is not None:
        if isinstance(error, StopSweep) or (isinstance(error, OSError) and error.errno in PLACE):
            return True
        error = error.__cause__ or error.__context__
    return False


def why(error: Exception) -> tuple[str, str]:
    """The reason of a failure and its details. Where this machine keeps its files is nobody's business."""
    details = "".join(traceback.format_exception(error)).replace(str(PACKAGE.parent), "").replace(sys.prefix, "")
    return str(error) if isinstance(error, BecauseError) else repr(error), details


# The engine `local` ------------------------------------------------------------------------------------


class _Worker:
    """A process of ours that calls `work`. Each has a pipe of its own: one that dies cannot block the others."""

    def __init__(self, task: tuple[Sequence[Job], Compute, Path]):
        # Spawned, not forked: forking a process that has started JAX's threads can hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.task, self.job, self.sound, self.words = task, "", False, ""

    def listen(self) -> None:
        """Hear which job it is at; raises what made it stop all work."""
        with contextlib.suppress(EOFError, OSError):  # it died, perhaps in the middle of a word
            while self.pipe.poll():
                what, told = self.pipe.recv()
                if what == "asks":
                    # Not as arguments of the process: those would block us for good if it died before it read them.
                    self.pipe.send(self.task)
                elif what == "stops":
                    raise told
                elif what == "dies":
                    self.words = f" It said: {told}"
                else:
                    self.job, self.sound = told if what == "takes" else "", True


def local(
    jobs: Sequence[Job], compute: Compute, folder: Path, workers: int, tell: Callable[[tuple[str, ...]], None]
) -> None:
    """Processes on this machine. One that dies is replaced; a job that several died of has failed."""
    if workers == 0:
        return work(jobs, compute, folder, lambda what, key: tell((key,) if what == "takes" else ()))
    by_key, deaths, stillborn = {job.key: job for job in jobs}, Counter[str](), 0
    team: list[_Worker] = []
    try:
        for _ in range(min(workers, len(left(jobs, folder)))):
            team.append(_Worker((jobs, compute, folder)))
        while team:
            wait([w.pipe for w in team] + [w.process.sentinel for w in team], timeout=POLL)
            for worker in list(team):
                gone = not worker.process.is_alive()
                worker.listen()
                if not gone:
                    continue
                team.remove(worker)
                if code := worker.process.exitcode:
                    deaths[worker.job] += bool(worker.job)
                    stillborn = 0 if worker.sound else stillborn + 1
                    if deaths[worker.job] == DEATHS:
                        why = f"{DEATHS} workers died at it, the last with exit code {code}."
                        why += " Out of memory?" * (code == -signal.SIGKILL) + worker.words
                        fail(folder, by_key[worker.job], why)
                    if stillborn == 10 * DEATHS:
                        raise BecauseError(
                            f"{stillborn} workers in a row died before they had a job (exit code {code}).",
                            need="a machine on which they start.",
                            fix="look at their messages above, or try --workers 0.",
                        )
                    team.append(_Worker((jobs, compute, folder)))
            tell(tuple(sorted(w.job for w in team if w.job)))
    finally:
        for worker in team:
            worker.process.kill()  # whatever it writes is written atomically
        for worker in team:
            worker.process.join()


def _serve(pipe: Connection) -> None:
    """In a worker. It leaves Ctrl-C to its parent, and dies with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    # Several processes share a GPU only if the first does not reserve most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def mortal(job: Job, missing: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """A process whose device has failed it ends: it keeps what it took of a GPU's memory for as long as it lives,
        and some failures stay with it. Its successor finds that memory free, and perhaps fewer beside it."""
        try:
            yield from compute(job, missing)
        except Exception as error:
            if type(error).__name__ == "JaxRuntimeError" or "Unable to initialize backend" in str(error):
                pipe.send(("dies", why(error)[0]))
                os._exit(BROKEN)
            raise

    try:
        pipe.send(("asks", ""))
        jobs, compute, folder = pipe.recv()
        work(jobs, mortal, folder, lambda what, key: pipe.send((what, key)))
    except BrokenPipeError:
        pass  # the parent is gone, and we are about to be
    except BecauseError as error:
        pipe.send(("stops", error))
    except Exception:
        pipe.send(("stops", RuntimeError(traceback.format_exc())))


# What is there -----------------------------------------------------------------------------------------


def cell_file(folder: Path, key: str) -> Path:
    return folder / "cells" / f"{key}.json"


def failed_file(folder: Path, job: Job) -> Path:
    return folder / "failed" / f"{job.key}.json"


def finished(folder: Path, job: Job) -> bool:
    return all(cell_file(folder, key).exists() for key in job.cells)


def fail(folder: Path, job: Job, reason: str, details: str = "") -> None:
    told = {"job": job.key, "cells": sorted(job.cells), "reason": reason, "details": details}
    write_json(failed_file(folder, job), told | {"provenance": provenance()})


def failures(jobs: Sequence[Job], folder: Path) -> list[dict[str, Any]]:
    """The records of the jobs that failed and have not been finished since."""
    done, failed = _names(folder / "cells"), _names(folder / "failed")
    return [read_json(failed_file(folder, job)) for job in jobs if job.key in failed and not done >= set(job.cells)]


def left(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Neither finished nor failed."""
    done, failed = _names(folder / "cells"), _names(folder / "failed")
    return [job for job in jobs if job.key not in failed and not done >= set(job.cells)]


def status(jobs: Sequence[Job], folder: Path, running: tuple[str, ...] = ()) -> Status:
    done, failed = _names(folder / "cells"), _names(folder / "failed")
    wanted = {key for job in jobs for key in job.cells}
    lost = sum(job.key in failed and not done >= set(job.cells) for job in jobs)
    return Status(len(wanted & done), len(wanted), lost, running)


def _names(folder: Path) -> set[str]:
    try:
        return {name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json")}
    except FileNotFoundError:
        return set()


def _tidy(folder: Path) -> None:
    """Remove what killed processes left half written. By age: process ids mean nothing on another machine."""
    for leftover in [*folder.glob(".*.tmp-*"), *folder.glob("*/.*.tmp-*")]:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > OLD:
                leftover.unlink()
