"""Run the missing cells of a grid, each once, whichever processes are killed and however many take part.

    RESULTS/cells/<key>.json     a finished cell, written once and then left alone
    RESULTS/failed/<key>.json    why a job failed; it is tried again on request only
    RESULTS/.claims/<key>.lock   held by the process that works on a job; the system releases it when that process dies

A job is the unit that is claimed: cells that share costly work, such as one training and its evaluations. Workers
do not talk to each other: each goes through the jobs and takes those that are neither finished nor claimed (`work`).
So any number of runners may share the folder, on several machines too. An engine decides which processes do the work:
`local` uses processes of this machine; `ray_engine` uses a cluster whose machines need not see the folder.
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
from because_rl.io import exclusive, remove_free_locks, remove_leftovers, sha256, write_json
from because_rl.provenance import provenance
from because_rl.records import CHECKSUM, read_record, record_sha256, verify_checksum

POLL_SECONDS = 0.5
"""Time between two checks of jobs that other processes hold."""
MAX_DEATHS = 3
"""Number of workers that may die in one job before the job counts as failed."""
DEVICE_FAILURE = 75
"""Exit code of a worker whose device (GPU) failed."""
PACKAGE = Path(__file__).resolve().parents[2]
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO}


@dataclass(frozen=True)
class Job:
    key: str
    cells: Mapping[str, Mapping[str, Any]]
    """key of a cell -> its head: plain data that says what is computed, and that its result file repeats"""
    parts: tuple[Job, ...] = ()
    """where it joins several trainings: a job for each, with its own cells"""

    @property
    def trainings(self) -> tuple[Job, ...]:
        """Its parts, or itself."""
        return self.parts or (self,)


Compute = Callable[[Job, Sequence[str]], Iterable[tuple[str, Mapping[str, Any]]]]
"""(job, keys of its missing cells) -> (key, result) of each, which are written as they come"""
Notify = Callable[[str, str], None]
"""Called with 'start' or 'end' and the key of a job."""


class Status(NamedTuple):
    done: int
    total: int
    """cells"""
    failed: int
    """jobs"""
    running: tuple[str, ...]
    """keys of the jobs that this runner's workers are computing"""


Report = Callable[[Status], None]
ReportRunning = Callable[[tuple[str, ...]], None]
"""Called with the keys of the running jobs."""
Engine = Callable[[Sequence[Job], Compute, Path, int, ReportRunning], None]
"""(jobs, compute, folder, workers, report_running); returns when every job is finished or failed"""


class StopSweep(BecauseError):
    """Raised by a `Compute` function where the cell is not at fault: no failure is recorded, and all workers stop."""


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
    """Compute all missing cells of the jobs into the results folder.

    Returns when every job is finished or failed, by this runner or by others that share the folder.

    Args:
        compute: computes the missing cells of a job; must be picklable if `workers` > 0.
        workers: number of processes; 0 computes in this one.
        retry_failed: forget earlier failures first.
        report: called with the status now and then, and at both ends.
        engine: `local` by default.
    """
    if workers < 0:
        raise BecauseError(f"Got {workers} workers.", need="0 (this process) or more.", fix="pass --workers 2.")
    folder, last_report = Path(folder), 0.0

    def report_running(running: tuple[str, ...]) -> None:
        nonlocal last_report
        if time.monotonic() > last_report + POLL_SECONDS / 2:  # a status lists the whole folder
            report(status(jobs, folder, running))
            last_report = time.monotonic()

    for part in (folder, folder / "cells", folder / "failed"):
        remove_leftovers(part)
    remove_free_locks(folder / ".claims")
    if retry_failed:
        for job in jobs:
            failed_file(folder, job).unlink(missing_ok=True)
    report(status(jobs, folder))
    if unfinished_jobs(jobs, folder):
        (engine or local)(jobs, compute, folder, workers, report_running)
    report(final := status(jobs, folder))
    return final


def work(jobs: Sequence[Job], compute: Compute, folder: Path, notify: Notify = lambda event, key: None) -> None:
    """Compute one job after the other until none is left; wait for jobs of other processes, which may yet die."""
    while unfinished := unfinished_jobs(jobs, folder):
        held = [job for job in unfinished if not _try_job(job, compute, folder, notify)]
        if held:
            time.sleep(POLL_SECONDS)


def _try_job(job: Job, compute: Compute, folder: Path, notify: Notify) -> bool:
    """Compute the missing cells of a job; False where another process holds it."""
    with claim(folder, job) as claimed:
        if not claimed:
            return False
        missing = missing_cells(folder, job)
        if not missing:
            return True
        notify("start", job.key)
        try:
            for key, result in computed_cells(compute, job, missing):
                write_cell(folder, job, key, result)
        except Exception as error:
            if stops_sweep(error):
                raise
            write_failure(folder, job, *describe_error(error))
        notify("end", job.key)
    return True


@contextlib.contextmanager
def claim(folder: Path, job: Job) -> Iterator[bool]:
    """Hold a job for as long as the context lasts; yields False where another process holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder / ".claims" / f"{job.key}.lock", f"working on {job.key}"))
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            yield False
        else:
            yield True


def missing_cells(folder: Path, job: Job) -> list[str]:
    """Keys of the cells that are still to be computed; none if the job has failed.

    Certain only while the job is claimed: before that, its holder may be about to finish it.
    """
    if failed_file(folder, job).exists():
        return []
    return [key for key in job.cells if not cell_file(folder, key).exists()]


def computed_cells(compute: Compute, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The results of `compute` as they come; raises at the end if one of the missing cells did not come."""
    keys: set[str] = set()
    for key, result in compute(job, missing):
        yield key, result
        keys.add(key)
    if omitted := [key for key in missing if key not in keys]:
        raise BecauseError(f"No result came for {omitted[0]}.", need="one for every cell.", fix="report this.")


def write_cell(folder: Path, job: Job, key: str, result: Mapping[str, Any]) -> None:
    cell = {**result, **job.cells[key]}
    write_json(cell_file(folder, key), cell | {CHECKSUM: record_sha256(cell, sha256)})


def read_cell(file: Path) -> dict[str, Any]:
    """The content of a cell, checked; without its checksum, which cells of older versions do not have."""
    cell = read_record(file, "cell")
    verify_checksum(cell, file, sha256)
    return {name: value for name, value in cell.items() if name != CHECKSUM}


def stops_sweep(error: BaseException | None) -> bool:
    """Whether the error is no cell's fault: on a full or read-only disk every cell fails, and no reason can be kept."""
    while error is not None:
        if isinstance(error, StopSweep) or (isinstance(error, OSError) and error.errno in STORAGE_ERRORS):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_error(error: Exception) -> tuple[str, str]:
    """Reason and details (traceback) of a failure, without the places where this machine keeps its files."""
    details = "".join(traceback.format_exception(error)).replace(str(PACKAGE.parent), "").replace(sys.prefix, "")
    return str(error) if isinstance(error, BecauseError) else repr(error), details


# The engine `local` ------------------------------------------------------------------------------------


class _Worker:
    """A process that calls `work`. Each has a pipe of its own, so that one that dies cannot block the others."""

    def __init__(self, task: tuple[Sequence[Job], Compute, Path]):
        # Spawned, not forked: forking a process that has started JAX's threads can hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(worker_end,))
        self.process.start()
        worker_end.close()
        self.task, self.job, self.had_job, self.last_words = task, "", False, ""

    def read_messages(self) -> None:
        """Note which job it is computing; raises the error that made it stop the sweep."""
        with contextlib.suppress(EOFError, OSError):  # it died, perhaps in the middle of a message
            while self.pipe.poll():
                event, content = self.pipe.recv()
                if event == "ready":
                    # Not as arguments of the process: those would block us for good if it died before it read them.
                    self.pipe.send(self.task)
                elif event == "stop":
                    raise content
                elif event == "device failed":
                    self.last_words = f" It said: {content}"
                else:
                    self.job, self.had_job = content if event == "start" else "", True


def local(jobs: Sequence[Job], compute: Compute, folder: Path, workers: int, report_running: ReportRunning) -> None:
    """Processes on this machine. One that dies is replaced; a job in which `MAX_DEATHS` died has failed."""
    if workers == 0:
        return work(jobs, compute, folder, lambda event, key: report_running((key,) if event == "start" else ()))
    by_key, deaths, early_deaths = {job.key: job for job in jobs}, Counter[str](), 0
    team: list[_Worker] = []
    try:
        for _ in range(min(workers, len(unfinished_jobs(jobs, folder)))):
            team.append(_Worker((jobs, compute, folder)))
        while team:
            wait([w.pipe for w in team] + [w.process.sentinel for w in team], timeout=POLL_SECONDS)
            for worker in list(team):
                dead = not worker.process.is_alive()  # before its last messages are read
                worker.read_messages()
                if not dead:
                    continue
                team.remove(worker)
                if code := worker.process.exitcode:
                    deaths[worker.job] += bool(worker.job)
                    early_deaths = 0 if worker.had_job else early_deaths + 1
                    if deaths[worker.job] == MAX_DEATHS:
                        reason = f"{MAX_DEATHS} workers died at it, the last with exit code {code}."
                        reason += " Out of memory?" * (code == -signal.SIGKILL) + worker.last_words
                        write_failure(folder, by_key[worker.job], reason)
                    if early_deaths == 10 * MAX_DEATHS:
                        raise BecauseError(
                            f"{early_deaths} workers in a row died before they had a job (exit code {code}).",
                            need="a machine on which they start.",
                            fix="look at their messages above, or try --workers 0.",
                        )
                    team.append(_Worker((jobs, compute, folder)))
            report_running(tuple(sorted(w.job for w in team if w.job)))
    finally:
        for worker in team:
            worker.process.kill()  # whatever it writes is written atomically
        for worker in team:
            worker.process.join()


def _serve(pipe: Connection) -> None:
    """The main function of a worker. It ignores Ctrl-C, which its parent handles, and dies with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    # Several processes share a GPU only if the first does not reserve most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def compute_or_exit(job: Job, missing: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """End this process when its device fails: it would keep its share of the GPU's memory for as long as it
        lives, and some failures persist. The worker that replaces it finds that memory free."""
        try:
            yield from compute(job, missing)
        except Exception as error:
            if type(error).__name__ == "JaxRuntimeError" or "Unable to initialize backend" in str(error):
                pipe.send(("device failed", describe_error(error)[0]))
                os._exit(DEVICE_FAILURE)
            raise

    try:
        pipe.send(("ready", ""))
        jobs, compute, folder = pipe.recv()
        work(jobs, compute_or_exit, folder, lambda event, key: pipe.send((event, key)))
    except BrokenPipeError:
        pass  # the parent has died, and this process is about to
    except BecauseError as error:
        pipe.send(("stop", error))
    except Exception:
        pipe.send(("stop", RuntimeError(traceback.format_exc())))


# The results folder ------------------------------------------------------------------------------------


def cell_file(folder: Path, key: str) -> Path:
    return folder / "cells" / f"{key}.json"


def failed_file(folder: Path, job: Job) -> Path:
    return folder / "failed" / f"{job.key}.json"


def finished(folder: Path, job: Job) -> bool:
    return all(cell_file(folder, key).exists() for key in job.cells)


def write_failure(folder: Path, job: Job, reason: str, details: str = "") -> None:
    record = {"job": job.key, "cells": sorted(job.cells), "reason": reason, "details": details}
    write_json(failed_file(folder, job), record | {"provenance": provenance()})


def failures(jobs: Sequence[Job], folder: Path) -> list[dict[str, Any]]:
    """The records (job, cells, reason, details, provenance) of the jobs that failed and are still unfinished."""
    done, failed = _keys(folder / "cells"), _keys(folder / "failed")
    return [
        read_record(failed_file(folder, job), "record of a failure")
        for job in jobs
        if job.key in failed and not done >= set(job.cells)
    ]


def unfinished_jobs(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The jobs that are neither finished nor failed."""
    done, failed = _keys(folder / "cells"), _keys(folder / "failed")
    return [job for job in jobs if job.key not in failed and not done >= set(job.cells)]


def status(jobs: Sequence[Job], folder: Path, running: tuple[str, ...] = ()) -> Status:
    done, failed = _keys(folder / "cells"), _keys(folder / "failed")
    wanted = {key for job in jobs for key in job.cells}
    failed_jobs = sum(job.key in failed and not done >= set(job.cells) for job in jobs)
    return Status(len(wanted & done), len(wanted), failed_jobs, running)


def _keys(folder: Path) -> set[str]:
    try:
        return {name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json")}
    except FileNotFoundError:
        return set()
