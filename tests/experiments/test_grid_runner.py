"""The runner with cells that cost nothing: failures, stops, claims and progress."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass

import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid import runner
from because_rl.experiments.grid.runner import StopSweep, cell_file, failures, sweep, unfinished_jobs
from because_rl.io import STALE_SECONDS, exclusive
from tests.experiments.small_sweep import SmallCompute, small_jobs


@dataclass(frozen=True)
class Faulty(SmallCompute):
    """Fails in the second cell of the first two jobs."""

    def __call__(self, job, missing):
        for key in missing:
            self.log(key)
            if key == "tiny-0000-O":
                raise BecauseError("Got bad luck.", need="good luck.", fix="try again.")
            if key == "tiny-0001-O":
                raise ZeroDivisionError("no luck at all")
            yield key, self.result(key)


@pytest.mark.parametrize("workers", [0, 1])
def test_failures_keep_their_reason_and_are_retried_on_request(tmp_path, workers):
    jobs, folder = small_jobs(3), tmp_path / "r"
    status = sweep(jobs, Faulty(folder), folder, workers=workers)
    assert (status.done, status.total, status.failed) == (4, 6, 2)
    first, second = failures(jobs, folder)
    assert first["reason"] == "Got bad luck. Needed: good luck. Fix: try again."
    assert "ZeroDivisionError" in second["reason"]
    assert "no luck at all" in second["details"]
    assert "revision" in second["provenance"]
    before = len(Faulty(folder).lines())
    assert sweep(jobs, Faulty(folder), folder, workers=workers).failed == 2
    assert len(Faulty(folder).lines()) == before
    # Only the missing cells are computed again
    assert sweep(jobs, SmallCompute(folder), folder, workers=0, retry_failed=True) == (6, 6, 0, ())
    assert SmallCompute(folder).lines()[before:] == ["tiny-0000-O", "tiny-0001-O"]
    assert failures(jobs, folder) == []


def test_a_function_that_omits_a_cell_has_failed(tmp_path):
    (job,) = small_jobs(1)
    sweep([job], lambda job, missing: [(missing[0], SmallCompute(tmp_path).result("x"))], tmp_path, workers=0)
    assert "No result came for tiny-0000-O" in failures([job], tmp_path)[0]["reason"]
    assert cell_file(tmp_path, "tiny-0000-I").exists()


@dataclass(frozen=True)
class Stopping(SmallCompute):
    def __call__(self, job, missing):
        raise StopSweep("Got new code.", need="the old.", fix="start again.")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_ends_the_sweep_and_is_no_failure(tmp_path, workers):
    with pytest.raises(BecauseError, match="Got new code"):
        sweep(small_jobs(3), Stopping(tmp_path), tmp_path, workers=workers)
    assert failures(small_jobs(3), tmp_path) == []
    assert len(unfinished_jobs(small_jobs(3), tmp_path)) == 3


def test_jobs_of_other_processes_are_awaited_and_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.02)
    folder = tmp_path / "r"
    with contextlib.suppress(ZeroDivisionError), exclusive(folder / ".claims" / "tiny-0001.lock", "holding it"):
        jobs, compute = small_jobs(3), SmallCompute(folder)
        thread = threading.Thread(target=sweep, args=(jobs, compute, folder), kwargs={"workers": 0})
        thread.start()
        while len(runner._keys(folder / "cells")) < 4:
            time.sleep(0.01)
        time.sleep(0.1)
        assert thread.is_alive()
        assert not cell_file(folder, "tiny-0001-I").exists()
        raise ZeroDivisionError  # its owner dies
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert len(runner._keys(folder / "cells")) == 6


def test_only_old_temporary_files_are_removed(tmp_path):
    """A recent one may belong to a live process of another machine, where process ids cannot be checked."""
    (tmp_path / "cells").mkdir()
    recent, old = (tmp_path / "cells" / f".{name}.json.tmp-1-00" for name in ("recent", "old"))
    for file in (recent, old):
        file.write_text("half")
    os.utime(old, (0, time.time() - 2 * STALE_SECONDS))
    assert sweep(small_jobs(1), SmallCompute(tmp_path / "x"), tmp_path, workers=0).done == 2
    assert (recent.exists(), old.exists()) == (True, False)


def test_progress_is_reported(tmp_path):
    reports = []
    sweep(small_jobs(3), SmallCompute(tmp_path / "r"), tmp_path / "r", workers=0, report=reports.append)
    assert reports[0] == (0, 6, 0, ())
    assert reports[-1] == (6, 6, 0, ())
    assert ("tiny-0000",) in [status.running for status in reports]


def test_a_negative_number_of_workers_is_refused(tmp_path):
    with pytest.raises(BecauseError, match="Got -1 workers"):
        sweep(small_jobs(1), SmallCompute(tmp_path / "r"), tmp_path / "r", workers=-1)
