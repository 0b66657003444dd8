"""The runner when processes die: killed at random, interrupted, or ended by a failing device."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from because_rl.experiments.grid import runner
from because_rl.experiments.grid.compare import write_table
from because_rl.experiments.grid.runner import failures, sweep
from because_rl.io import exclusive
from tests.experiments.small_sweep import Crowded, Deadly, SmallCompute, small_jobs
from tests.experiments.support import tables
from tests.support import REPOSITORY


@pytest.fixture
def start():
    """Starts a small sweep as a program; whatever is still alive after the test is killed."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "tests.experiments.small_sweep", *map(str, arguments)]
        # In the background of a shell Ctrl-C is ignored, which programs inherit: here it must have its usual effect.
        default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        streams = {"stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True, preexec_fn=default, **streams))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers_of(pid):
    """Processes that `pid` has spawned, without multiprocessing's resource tracker."""
    workers = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(int(child))
    return workers


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def all_end(pids, seconds=10.0):
    """Whether all these processes end within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def count_cells(folder):
    return len(list((folder / "cells").glob("*.json")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runners", "workers", "count", "kills"),
    [
        (1, 2, 50, 3),
        (3, 0, 50, 2),
        pytest.param(1, 2, 500, 50, marks=pytest.mark.long),
        pytest.param(8, 0, 500, 50, marks=pytest.mark.long),
    ],
)
def test_random_kills_lose_no_cell_and_repeat_none(tmp_path, start, monkeypatch, runners, workers, count, kills):
    """SIGKILL for runners and workers: the same tables as undisturbed, and no finished cell is computed again."""
    jobs, folder, calm = small_jobs(count), tmp_path / "killed", tmp_path / "calm"
    cells = 2 * count
    # Kills come less than half a second apart, and together the workers must not be done before the last one.
    pause = kills * max(runners, workers) / cells
    rng, killed, workers_seen = random.Random(runners), 0, set()
    team = [start(folder, workers, count, pause) for _ in range(runners)]
    while killed < kills:
        before = count_cells(folder)
        while count_cells(folder) == before:  # kill processes at work, not those that are starting
            assert before < cells, f"all was done after {killed} kills"
            time.sleep(0.01)
        time.sleep(rng.random() * 0.3)
        spawned = [pid for process in team for pid in workers_of(process.pid)]
        workers_seen.update(spawned)
        victim = rng.choice([process.pid for process in team] + spawned)
        os.kill(victim, signal.SIGKILL)
        killed += 1
        for n, process in enumerate(team):
            if process.pid == victim:
                process.wait()
                team[n] = start(folder, workers, count, pause)
    for process in team:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    sweep(jobs, SmallCompute(calm), calm, workers=0)
    for results in (folder, calm):
        write_table(jobs, results)
    assert tables(folder) == tables(calm)
    computed = SmallCompute(folder).lines()
    assert not [line for line in computed if "AGAIN" in line]
    assert len(set(computed)) == cells
    assert len(computed) <= cells + killed * max(1, workers)
    assert all_end(workers_seen)


@pytest.mark.parametrize(("workers", "rounds"), [(6, 3), pytest.param(24, 50, marks=pytest.mark.long)])
def test_workers_in_one_folder_lose_no_cell_and_read_whole_files(tmp_path, start, workers, rounds):
    process = start("share", tmp_path / "r", workers, rounds)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    cells = {key for job in small_jobs(workers * rounds) for key in job.cells}
    assert sorted(SmallCompute(tmp_path / "r").lines()) == sorted(cells)
    assert {file.name for file in (tmp_path / "r" / "cells").iterdir()} == {f"{key}.json" for key in cells}
    assert [path.name for path in (tmp_path / "r").iterdir() if path.name.startswith(".")] == [".claims"]
    assert not list((tmp_path / "r" / ".claims").iterdir())


def test_workers_die_with_their_runner_and_release_all_claims(tmp_path, start):
    process = start(tmp_path / "r", 2, 50, 60.0)
    while not (tmp_path / "r.log").exists() or len(SmallCompute(tmp_path / "r").lines()) < 2:
        time.sleep(0.02)
    spawned = workers_of(process.pid)
    assert len(spawned) == 2
    process.kill()
    process.wait()
    assert all_end(spawned, 2.0)
    for lock in (tmp_path / "r" / ".claims").iterdir():
        with exclusive(lock, "anything"):
            pass


@pytest.mark.slow
def test_ctrl_c_ends_workers_and_the_same_command_continues(tmp_path, start):
    folder = tmp_path / "r"
    process = start(folder, 2, 100, 0.05)
    while count_cells(folder) < 5:
        time.sleep(0.02)
    spawned = workers_of(process.pid)
    for worker in spawned:
        os.kill(worker, signal.SIGINT)  # ignored: the runner handles it
    before = count_cells(folder)
    while count_cells(folder) < before + 4:
        time.sleep(0.02)
    assert workers_of(process.pid) == spawned
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the runner and to its workers
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert errors.count("KeyboardInterrupt") == 1
    assert all_end(spawned)
    assert count_cells(folder) < 200
    sweep(small_jobs(100), SmallCompute(folder), folder, workers=0)
    assert count_cells(folder) == 200
    assert not [line for line in SmallCompute(folder).lines() if "AGAIN" in line]


@pytest.mark.slow
def test_a_job_is_repeated_until_three_workers_died(tmp_path):
    folder, jobs = tmp_path / "r", small_jobs(4)
    status = sweep(jobs, Deadly(folder), folder, workers=2)
    assert (status.done, status.failed) == (6, 1)
    (failure,) = failures(jobs, folder)
    assert failure["job"] == "tiny-0002"
    assert "3 workers died at it, the last with exit code -9. Out of memory?" in failure["reason"]
    assert sorted(Deadly(folder).lines()) == [f"tiny-{n:04}" for n in (0, 0, 1, 2, 2, 2, 3)]


def test_a_worker_whose_device_fails_is_replaced(tmp_path):
    folder = tmp_path / "r"
    assert sweep(small_jobs(2), Crowded(folder), folder, workers=1) == (4, 4, 0, ())
    cells, workers = zip(*(line.split() for line in Crowded(folder).lines()), strict=True)
    assert list(cells) == [f"tiny-000{n}-{split}" for n in (0, 1) for split in "IOO"]
    assert workers[0] == workers[1] != workers[2] == workers[3] == workers[4] != workers[5]


def test_a_job_whose_device_always_fails_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MAX_DEATHS", 2)
    folder = tmp_path / "r"
    assert sweep(small_jobs(1), Crowded(folder, times=99), folder, workers=1).failed == 1
    assert "2 workers died" in (reason := failures(small_jobs(1), folder)[0]["reason"])
    assert "Out of memory while trying to allocate 4.36GiB" in reason


def test_a_worker_ends_silently_when_its_parent_stops_listening(tmp_path, capfd):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=runner._serve, args=(theirs,))
    worker.start()
    theirs.close()
    assert ours.recv() == ("ready", "")
    ours.send((small_jobs(1), SmallCompute(tmp_path / "r"), tmp_path / "r"))
    ours.close()
    worker.join()
    assert worker.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err
