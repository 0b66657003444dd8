"""Run a sweep's jobs on a Ray cluster: ``because sweep GRID --engine ray --address HOST:6379``.

The machines of the cluster need no folder in common. The runner holds the claims and writes all files; a worker gets
a job with the keys of its missing cells and streams back what it computes, cell by cell. So when a worker dies, the
cells that came before are kept and only the others are asked for again; and when the runner is stopped, what has
arrived is on disk. Each machine needs because-rl (the same source: a job refuses another) and collects the datasets
it lacks under its own root. The runner itself must be on one of the cluster's machines, as every driver of Ray.
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
    DEATHS,
    POLL,
    Compute,
    Job,
    cell_file,
    claim,
    fail,
    failed_file,
    keep,
    left,
    results,
    stops_all,
    why,
)

START = "start one with 'ray start --head', and run the sweep on one of its machines."


@dataclass(frozen=True)
class RayEngine:
    address: str = "auto"
    """HOST:PORT of the cluster; 'auto': what RAY_ADDRESS says, else the one that runs here"""
    gpus: float = 0.0
    """of each job: a fraction where several share one; without any, Ray hides the GPUs from it"""

    def __call__(
        self,
        jobs: Sequence[Job],
        compute: Compute,
        folder: Path,
        workers: int,
        tell: Callable[[tuple[str, ...]], None],
    ) -> None:
        """Until nothing is left to do. `workers`: jobs at a time; 0: as many as the cluster has room for."""
        with _connected(self.address) as ray:
            start = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(_compute).remote
            flights: list[_Flight] = []
            deaths = Counter[str]()
            try:
                while flights or left(jobs, folder):
                    flown = {flight.job.key for flight in flights}
                    for job in left(jobs, folder):
                        if len(flights) >= (workers or self._room(ray)):
                            break
                        if job.key not in flown and (flight := _launch(start, job, compute, folder)):
                            flights.append(flight)
                    if not flights:
                        time.sleep(POLL)  # others hold what is left, and may yet die
                        continue
                    ready, _ = ray.wait([flight.stream for flight in flights], timeout=POLL)
                    for flight in [one for one in flights if one.stream in ready]:
                        if not flight.hear(ray, deaths):
                            flights.remove(flight)
                            flight.claim.close()
                    tell(tuple(sorted(flight.job.key for flight in flights)))
            finally:
                for flight in flights:
                    with contextlib.suppress(Exception):  # what has arrived is kept, whatever made us stop
                        while ray.wait([flight.stream], timeout=0)[0] and flight.hear(ray, deaths):
                            pass
                    with contextlib.suppress(Exception):
                        ray.cancel(flight.stream, force=True)
                    flight.claim.close()

    def _room(self, ray: Any) -> int:
        have = ray.cluster_resources()
        room = int(have.get("CPU", 0))
        if self.gpus > 0:
            room = min(room, int(have.get("GPU", 0) / self.gpus))
        if room < 1:
            raise BecauseError(
                f"The cluster has {have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs.",
                need=f"1 CPU and {self.gpus:g} GPUs for a job.",
                fix="add machines, or lower --gpus.",
            )
        return room


@dataclass(eq=False)
class _Flight:
    """A job that is ours, and the stream of what its worker says."""

    job: Job
    folder: Path
    stream: Any
    claim: contextlib.ExitStack

    def hear(self, ray: Any, deaths: Counter[str]) -> bool:
        """The next word of the worker; False where it was the last."""
        try:
            what, *told = ray.get(next(self.stream))
        except StopIteration:
            return False
        except ray.exceptions.RayTaskError as error:  # not of the cell's function, whose errors come as words
            raise BecauseError(
                f"A worker could not begin with a job ({str(error).strip().splitlines()[-1]}).",
                need="because-rl and what it needs on every machine of the cluster.",
                fix="install the same version everywhere.",
            ) from error
        except ray.exceptions.RayError as error:  # the worker or its machine died, or was out of memory
            deaths[self.job.key] += 1
            if deaths[self.job.key] == DEATHS:
                fail(self.folder, self.job, f"{DEATHS} workers died at it, the last with {type(error).__name__}.")
            return False
        if what == "stops":
            raise told[0]
        try:
            if what == "failed":
                fail(self.folder, self.job, *told)
            else:
                keep(self.folder, self.job, *told)
        except Exception as error:
            if stops_all(error):
                raise
            fail(self.folder, self.job, *why(error))
            return False
        return True


def _launch(start: Callable, job: Job, compute: Compute, folder: Path) -> _Flight | None:
    """Claim a job and send it to the cluster; None where somebody else has it or has finished it."""
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(claim(folder, job)):
            return None
        # Only now is it certain that nobody else is finishing it.
        missing = [key for key in job.cells if not cell_file(folder, key).exists()]
        if not missing or failed_file(folder, job).exists():
            return None
        return _Flight(job, folder, start(compute, job, missing), stack.pop_all())


def _compute(compute: Compute, job: Job, missing: Sequence[str]) -> Iterator[tuple]:
    """On a worker: ('cell', key, result) as they come, then perhaps ('failed', reason, details) or ('stops', error)."""
    # Several processes share a GPU only if the first does not reserve most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        for key, result in results(compute, job, missing):
            yield "cell", key, result
    except Exception as error:
        yield ("stops", error) if stops_all(error) else ("failed", *why(error))


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
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
        ray.shutdown()  # which also ends what our workers still do


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
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
