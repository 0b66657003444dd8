"""Run a sweep's jobs on a Ray cluster: ``because sweep GRID --engine ray --address HOST:6379``.

The machines of the cluster need no folder in common. The runner holds the claims and writes all files; a worker gets
a job with the keys of its missing cells and streams back their results, cell by cell. So when a worker dies, the
cells that came before are kept and only the others are computed again; and when the runner is stopped, what has
arrived is on disk. Each machine needs because-rl (the same source: a job refuses another) and collects missing
datasets under its own root. The runner itself must be on one of the cluster's machines, as every driver of Ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from because_rl.errors import BecauseError
from because_rl.experiments.grid.runner import (
    MAX_DEATHS,
    POLL_SECONDS,
    Compute,
    Job,
    ReportRunning,
    claim,
    computed_cells,
    describe_error,
    missing_cells,
    stops_sweep,
    unfinished_jobs,
    write_cell,
    write_failure,
)

START = "start one with 'ray start --head', and run the sweep on one of its machines."


@dataclass(frozen=True)
class RayEngine:
    address: str = "auto"
    """HOST:PORT of the cluster; 'auto': that in RAY_ADDRESS, else the cluster on this machine"""
    gpus: float = 0.0
    """GPUs per job: a fraction where several jobs share one; with 0, Ray hides the GPUs from the job"""

    def __call__(
        self,
        jobs: Sequence[Job],
        compute: Compute,
        folder: Path,
        workers: int,
        report_running: ReportRunning,
    ) -> None:
        """Returns when no job is left. `workers`: number of jobs at a time; 0: as many as the cluster has room for."""
        with _connected(self.address) as ray:
            start = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(_compute).remote
            tasks: list[_Task] = []
            deaths = Counter[str]()
            try:
                while tasks or unfinished_jobs(jobs, folder):
                    running = {task.job.key for task in tasks}
                    for job in unfinished_jobs(jobs, folder):
                        if len(tasks) >= (workers or self._capacity(ray)):
                            break
                        if job.key not in running and (task := _submit(start, job, compute, folder)):
                            tasks.append(task)
                    if not tasks:
                        time.sleep(POLL_SECONDS)  # other runners hold the remaining jobs, and may yet die
                        continue
                    ready, _ = ray.wait([task.stream for task in tasks], timeout=POLL_SECONDS)
                    for task in [task for task in tasks if task.stream in ready]:
                        if not task.receive(ray, deaths):
                            tasks.remove(task)
                            task.claim.close()
                    report_running(tuple(sorted(task.job.key for task in tasks)))
            finally:
                for task in tasks:
                    with contextlib.suppress(Exception):  # keep what has arrived, whatever the reason for stopping
                        while ray.wait([task.stream], timeout=0)[0] and task.receive(ray, deaths):
                            pass
                    with contextlib.suppress(Exception):
                        ray.cancel(task.stream, force=True)
                    task.claim.close()

    def _capacity(self, ray: Any) -> int:
        """Number of jobs that the cluster can run at a time."""
        resources = ray.cluster_resources()
        capacity = int(resources.get("CPU", 0))
        if self.gpus > 0:
            capacity = min(capacity, int(resources.get("GPU", 0) / self.gpus))
        if capacity < 1:
            raise BecauseError(
                f"The cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs.",
                need=f"1 CPU and {self.gpus:g} GPUs for a job.",
                fix="add machines, or lower --gpus.",
            )
        return capacity


@dataclass(eq=False)
class _Task:
    """A job that this runner has claimed, and the stream of messages from its worker."""

    job: Job
    folder: Path
    stream: Any
    claim: contextlib.ExitStack

    def receive(self, ray: Any, deaths: Counter[str]) -> bool:
        """Handle the next message of the worker; False where it was the last."""
        try:
            event, *content = ray.get(next(self.stream))
        except StopIteration:
            return False
        except ray.exceptions.RayTaskError as error:  # not an error of `compute`, which comes as a message
            raise BecauseError(
                f"A worker could not begin with a job ({str(error).strip().splitlines()[-1]}).",
                need="because-rl and what it needs on every machine of the cluster.",
                fix="install the same version everywhere.",
            ) from error
        except ray.exceptions.RayError as error:  # the worker or its machine died, or was out of memory
            deaths[self.job.key] += 1
            if deaths[self.job.key] == MAX_DEATHS:
                reason = f"{MAX_DEATHS} workers died at it, the last with {type(error).__name__}."
                write_failure(self.folder, self.job, reason)
            return False
        if event == "stop":
            raise content[0]
        try:
            if event == "failed":
                write_failure(self.folder, self.job, *content)
            else:
                write_cell(self.folder, self.job, *content)
        except Exception as error:
            if stops_sweep(error):
                raise
            write_failure(self.folder, self.job, *describe_error(error))
            return False
        return True


def _submit(start: Callable, job: Job, compute: Compute, folder: Path) -> _Task | None:
    """Claim a job and send it to the cluster; None where another runner holds it or has finished it."""
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(claim(folder, job)) or not (missing := missing_cells(folder, job)):
            return None
        return _Task(job, folder, start(compute, job, missing), stack.pop_all())


def _compute(compute: Compute, job: Job, missing: Sequence[str]) -> Iterator[tuple]:
    """On a worker: ('cell', key, result) for each; after an error ('failed', reason, details) or ('stop', error)."""
    # Several processes share a GPU only if the first does not reserve most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        for key, result in computed_cells(compute, job, missing):
            yield "cell", key, result
    except Exception as error:
        yield ("stop", error) if stops_sweep(error) else ("failed", *describe_error(error))


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yields the module ray, connected to the cluster."""
    try:
        import ray
    except ImportError as error:
        raise BecauseError(
            f"Ray cannot be imported ({error}).", need="the package ray.", fix="pip install 'because-rl[ray]'."
        ) from error
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of many kinds: no cluster, another version of Ray or Python, no node here
        raise BecauseError(
            f"Could not join the Ray cluster {address} ({str(error).strip().splitlines()[0]}).",
            need="a running cluster with a node on this machine.",
            fix=START,
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()  # which also ends our workers


def _check_reachable(address: str) -> None:
    """Fail at once where no cluster answers; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()) or "/" in host:
        raise BecauseError(f"Got the address {address!r}.", need="HOST:PORT, or 'auto'.", fix=START)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise BecauseError(
            f"Nothing answers at {address} ({error}).", need="the address of a running Ray cluster.", fix=START
        ) from error
