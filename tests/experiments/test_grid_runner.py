"""The runner with cells that cost nothing, killed at random; grids and their addresses; one real cell."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid import runner
from because_rl.experiments.grid.runner import Job, StopSweep, cell_file, failures, finished, left, sweep
from because_rl.io import exclusive

# This file is also the program that the tests below start and kill, so its imports are few: workers start fast.

SEEDS, SCENES = [0, 1], 8


def tiny_jobs(count):
    """`count` jobs of two cells each."""
    return [
        Job(
            f"tiny-{n:04}",
            {
                f"tiny-{n:04}-{split}": {"label": f"m{n % 7}", "dataset": f"because/walk-d{n // 7}-v0", "split": split}
                | {"recipe": {"world": "walk", "behaviour": f"d{n // 7}"}}
                | {"seeds": SEEDS, "episodes": SCENES, "spurious": 1}
                for split in ("I", "O")
            },
        )
        for n in range(count)
    ]


@dataclass(frozen=True)
class Tiny:
    """A cell's function that logs each time it is asked, and whether what it is asked for was there already."""

    folder: Path
    pause: float = 0.0

    def __call__(self, job, missing):
        for key in missing:
            self.log(key + (" AGAIN" if cell_file(self.folder, key).exists() else ""))
            time.sleep(self.pause)
            yield key, self.result(key)

    def result(self, key):
        rng = random.Random(key)
        outcomes = ["".join(rng.choice("01") for _ in range(SCENES)) for _ in SEEDS]
        return {"per_seed": [o.count("1") / SCENES for o in outcomes], "steps": rng.random(), "outcomes": outcomes}

    def tidy(self, jobs, folder):
        pass

    def log(self, line):
        with open(self.folder.with_suffix(".log"), "a") as log:
            log.write(line + "\n")

    def lines(self):
        return self.folder.with_suffix(".log").read_text().splitlines()


def main(folder, workers, count, pause):
    status = sweep(tiny_jobs(int(count)), Tiny(Path(folder), float(pause)), Path(folder), workers=int(workers))
    assert (status.done, status.failed) == (status.total, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])


@pytest.fixture
def start():
    """Starts this file as a program; whatever is still there after the test is killed."""
    started = []

    def start(folder, workers, count, pause):
        command = [sys.executable, __file__, str(folder), str(workers), str(count), str(pause)]
        # In the background of a shell Ctrl-C is ignored, which programs inherit: here it must count.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        started.append(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed)
        )
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers_of(pid):
    """Processes that `pid` has spawned (the one that tracks its resources is none of them)."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pids, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def tables(folder):
    return [(folder / f"table.{suffix}").read_bytes() for suffix in ("json", "csv")]


# Killed ------------------------------------------------------------------------------------------------

KILLS = int(os.environ.get("BECAUSE_KILLS", "6"))
"""BECAUSE_KILLS=50 for the whole measure."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The tables of 1,000 cells."""
    from because_rl.experiments.grid.compare import write_table

    jobs, folder = tiny_jobs(500), tmp_path_factory.mktemp("calm") / "r"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # nobody will pull the plug
        sweep(jobs, Tiny(folder), folder, workers=0)
    write_table(jobs, folder)
    return tables(folder)


@pytest.mark.parametrize(("runners", "workers"), [(1, 2), (8, 0)])
def test_killed_at_random_no_cell_is_lost_or_run_again(tmp_path, start, undisturbed, runners, workers):
    """SIGKILL for runners and workers among 1,000 cells: the same tables as undisturbed."""
    from because_rl.experiments.grid.compare import write_table

    jobs, folder = tiny_jobs(500), tmp_path / "killed"
    rng, killed, seen = random.Random(runners), 0, set()
    pause = 0.0005 * KILLS * max(runners, workers)  # together they must not be done before the last kill
    team = [start(folder, workers, 500, pause) for _ in range(runners)]
    while killed < KILLS:
        before = len(runner._names(folder / "cells"))
        while len(runner._names(folder / "cells")) == before:  # kill what is at work, not what is starting
            assert before < 1000, f"all was done after {killed} kills"
            time.sleep(0.01)
        time.sleep(rng.random() * 0.3)
        spawned = [pid for process in team for pid in workers_of(process.pid)]
        seen.update(spawned)
        victim = rng.choice([process.pid for process in team] + spawned)
        os.kill(victim, signal.SIGKILL)
        killed += 1
        for n, process in enumerate(team):
            if process.pid == victim:
                process.wait()
                team[n] = start(folder, workers, 500, pause)
    for process in team:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    write_table(jobs, folder)
    assert tables(folder) == undisturbed
    ran = Tiny(folder).lines()
    assert not [line for line in ran if "AGAIN" in line]
    assert len(set(ran)) == 1000
    assert len(ran) <= 1000 + killed * max(1, workers)
    assert gone(seen)


def test_workers_die_with_a_killed_runner_and_leave_nothing_held(tmp_path, start):
    process = start(tmp_path / "r", 2, 50, 60.0)
    while not (tmp_path / "r.log").exists() or len(Tiny(tmp_path / "r").lines()) < 2:
        time.sleep(0.02)
    spawned = workers_of(process.pid)
    assert len(spawned) == 2
    process.kill()
    process.wait()
    assert gone(spawned, 2.0)
    for lock in (tmp_path / "r" / ".claims").iterdir():
        with exclusive(lock, "anything"):
            pass


def test_ctrl_c_ends_workers_and_the_same_command_goes_on(tmp_path, start):
    folder = tmp_path / "r"
    process = start(folder, 2, 300, 0.05)
    while len(runner._names(folder / "cells")) < 5:
        time.sleep(0.02)
    spawned = workers_of(process.pid)
    for worker in spawned:
        os.kill(worker, signal.SIGINT)  # they leave it to the runner
    before = len(runner._names(folder / "cells"))
    while len(runner._names(folder / "cells")) < before + 4:
        time.sleep(0.02)
    assert workers_of(process.pid) == spawned
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the runner and to its workers
    _, said = process.communicate(timeout=20)
    assert process.returncode != 0
    assert said.count("KeyboardInterrupt") == 1
    assert gone(spawned)
    assert len(runner._names(folder / "cells")) < 600
    sweep(tiny_jobs(300), Tiny(folder), folder, workers=0)
    assert len(runner._names(folder / "cells")) == 600
    assert not [line for line in Tiny(folder).lines() if "AGAIN" in line]


@dataclass(frozen=True)
class Deadly(Tiny):
    """Kills its worker at some jobs, `times` times each."""

    times: int = 1

    def __call__(self, job, missing):
        self.log(job.key)
        if job.key in ("tiny-0000", "tiny-0002") and self.lines().count(job.key) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        for key in missing:
            yield key, self.result(key)


def test_a_job_whose_worker_died_is_taken_again(tmp_path):
    folder = tmp_path / "r"
    assert sweep(tiny_jobs(4), Deadly(folder), folder, workers=2) == (8, 8, 0, ())
    assert sorted(Deadly(folder).lines()) == sorted([f"tiny-{n:04}" for n in (0, 0, 1, 2, 2, 3)])


def test_a_job_that_kills_every_worker_fails_and_holds_up_no_other(tmp_path):
    folder = tmp_path / "r"
    found = sweep(tiny_jobs(4), Deadly(folder, times=99), folder, workers=1)
    assert (found.done, found.failed) == (4, 2)
    assert "3 workers died" in failures(tiny_jobs(4), folder)[0]["reason"]
    assert Deadly(folder).lines().count("tiny-0000") == 3


JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})
FULL = JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.36GiB")
ABSENT = RuntimeError("Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA")


@dataclass(frozen=True)
class Crowded(Tiny):
    """Finds its device full in the second cell of the first job, `times` times."""

    times: int = 1
    error: Exception = FULL

    def __call__(self, job, missing):
        for key in missing:
            self.log(f"{key} {os.getpid()}")
            tried = [line for line in self.lines() if line.startswith("tiny-0000-O")]
            if key == "tiny-0000-O" and len(tried) <= self.times:
                raise self.error
            yield key, self.result(key)


@pytest.mark.parametrize("error", [FULL, ABSENT])
def test_a_worker_whose_device_fails_gives_its_memory_back_and_another_goes_on(tmp_path, error):
    folder = tmp_path / "r"
    assert sweep(tiny_jobs(2), Crowded(folder, error=error), folder, workers=1) == (4, 4, 0, ())
    cells, workers = zip(*(line.split() for line in Crowded(folder).lines()), strict=True)
    assert list(cells) == ["tiny-0000-I", "tiny-0000-O", "tiny-0000-O", "tiny-0001-I", "tiny-0001-O"]
    assert workers[0] == workers[1] != workers[2] == workers[3]


def test_a_job_for_which_a_device_is_always_full_fails(tmp_path):
    folder = tmp_path / "r"
    assert sweep(tiny_jobs(2), Crowded(folder, times=99), folder, workers=1).failed == 1
    assert "3 workers died" in (reason := failures(tiny_jobs(2), folder)[0]["reason"])
    assert "Out of memory while trying to allocate 4.36GiB" in reason


def test_a_worker_whose_parent_no_longer_listens_ends_without_a_word(tmp_path, capfd):
    import multiprocessing

    from because_rl.experiments.grid.runner import _serve

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_serve, args=(theirs,))
    worker.start()
    theirs.close()
    assert ours.recv() == ("asks", "")
    ours.send((tiny_jobs(1), Tiny(tmp_path / "r"), tmp_path / "r"))
    ours.close()
    worker.join()
    assert worker.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


# Failures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Faulty(Tiny):
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
def test_failures_tell_their_reason_and_are_retried_on_request_only(tmp_path, workers):
    jobs, folder = tiny_jobs(3), tmp_path / "r"
    found = sweep(jobs, Faulty(folder), folder, workers=workers)
    assert (found.done, found.total, found.failed) == (4, 6, 2)
    first, second = failures(jobs, folder)
    assert first["reason"] == "Got bad luck. Needed: good luck. Fix: try again."
    assert "ZeroDivisionError" in second["reason"]
    assert "no luck at all" in second["details"]
    assert "revision" in second["provenance"]
    before = len(Faulty(folder).lines())
    assert sweep(jobs, Faulty(folder), folder, workers=workers).failed == 2
    assert len(Faulty(folder).lines()) == before
    # Only what is missing is run again
    assert sweep(jobs, Tiny(folder), folder, workers=workers, retry_failed=True) == (6, 6, 0, ())
    assert Tiny(folder).lines()[before:] == ["tiny-0000-O", "tiny-0001-O"]
    assert failures(jobs, folder) == []


def test_a_function_that_leaves_a_cell_out_has_failed(tmp_path):
    (job,) = tiny_jobs(1)
    sweep([job], lambda job, missing: [(missing[0], Tiny(tmp_path).result("x"))], tmp_path, workers=0)
    assert "No result came for tiny-0000-O" in failures([job], tmp_path)[0]["reason"]
    assert cell_file(tmp_path, "tiny-0000-I").exists()


@dataclass(frozen=True)
class Stopping(Tiny):
    def __call__(self, job, missing):
        raise StopSweep("Got new code.", need="the old.", fix="start again.")


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_cells_fault_stops_the_sweep_and_is_no_failure(tmp_path, workers):
    with pytest.raises(BecauseError, match="Got new code"):
        sweep(tiny_jobs(3), Stopping(tmp_path), tmp_path, workers=workers)
    assert failures(tiny_jobs(3), tmp_path) == []
    assert len(left(tiny_jobs(3), tmp_path)) == 3


def test_jobs_that_others_hold_are_waited_for_and_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POLL", 0.02)
    folder = tmp_path / "r"
    with contextlib.suppress(ZeroDivisionError), exclusive(folder / ".claims" / "tiny-0001.lock", "holding it"):
        thread = threading.Thread(target=sweep, args=(tiny_jobs(3), Tiny(folder), folder), kwargs={"workers": 0})
        thread.start()
        while len(runner._names(folder / "cells")) < 4:
            time.sleep(0.01)
        time.sleep(0.1)
        assert thread.is_alive()
        assert not cell_file(folder, "tiny-0001-I").exists()
        raise ZeroDivisionError  # its owner dies
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert len(runner._names(folder / "cells")) == 6


def test_only_old_leftovers_are_removed(tmp_path):
    """A young one may be another machine's, whose process ids say nothing here."""
    (tmp_path / "cells").mkdir()
    young, old = (tmp_path / "cells" / f".{name}.json.tmp-1-00" for name in ("young", "old"))
    for file in (young, old):
        file.write_text("half")
    os.utime(old, (0, time.time() - 2 * runner.OLD))
    assert sweep(tiny_jobs(1), Tiny(tmp_path / "x"), tmp_path, workers=0).done == 2
    assert (young.exists(), old.exists()) == (True, False)


def test_progress_is_told(tmp_path):
    told = []
    sweep(tiny_jobs(3), Tiny(tmp_path / "r"), tmp_path / "r", workers=0, report=told.append)
    assert told[0] == (0, 6, 0, ())
    assert told[-1] == (6, 6, 0, ())
    assert ("tiny-0000",) in [status.running for status in told]


# Grids -------------------------------------------------------------------------------------------------

SMALL = {"steps": 40, "hidden": 8, "batch": 16}
SPEC = {
    "methods": {"td3bc": SMALL},
    "worlds": ["unlock"],
    "policies": ["medium"],
    "seeds": 2,
    "episodes": 5,
    "ratios": [0.1],
    "subcases": False,
    "chunk": 20,
}


def grid_jobs(**changes):
    from because_rl.experiments.grid.grid import jobs, read_grid

    return jobs(read_grid("paper", SPEC | changes))


def keys(found):
    return {key for job in found for key in job.cells}


def test_the_papers_grid_is_18_tasks_of_7_methods():
    from because_rl.algorithms.registry import METHODS
    from because_rl.experiments.grid.grid import choose, jobs, read_grid

    paper = read_grid("paper")
    assert len(paper.methods) == 7
    known = [name for name in paper.methods if name in METHODS]
    found = jobs(choose(paper, known))
    assert len(found) == 9 * len(known)
    heads = [head for job in found for head in job.cells.values()]
    assert len({(h["label"], h["dataset"], h["split"]) for h in heads if h["split"] in "IO"}) == 18 * len(known)
    assert {h["split"] for h in heads if h["dataset"] == "because/unlock-medium-v0"} == {
        *("I", "O", "O-law", "O-doors", "O-cells")
    }
    assert {(len(h["seeds"]), h["episodes"]) for h in heads} == {(10, 100)}


def test_the_example_can_be_read():
    from because_rl.experiments.grid.grid import jobs, read_grid

    found = jobs(read_grid(Path(__file__).parents[2] / "grids" / "tiny.yaml"))
    heads = [head for job in found for head in job.cells.values()]
    assert {(h["label"], h["method"]) for h in heads} == {("td3bc", "td3bc"), ("cautious", "td3bc")}
    assert {h["recipe"]["episodes"] for h in heads} == {50, 200}


def test_the_address_holds_all_that_decides_a_result(monkeypatch):
    base = grid_jobs()
    assert keys(base) == keys(grid_jobs())
    changes = [
        {"methods": {"td3bc": SMALL | {"alpha": 0.5}}},
        {"methods": ["mopo"]},
        {"seeds": 3},
        {"seeds": [1, 0]},
        {"episodes": 6},
        {"ratios": [0.2]},
        {"spurious": [2]},
        {"dataset_seeds": [1]},
        {"coverages": [0.2]},
        {"policies": ["expert"]},
        {"worlds": ["crash"]},
        {"splits": ["O-law"]},
        {"chunk": 10},
    ]
    seen = [keys(grid_jobs(**change)) for change in changes]
    monkeypatch.setattr("because_rl.experiments.grid.grid.code_version", lambda method=None: "another")
    seen += [keys(base), keys(grid_jobs())]
    assert len(set().union(*seen)) == sum(map(len, seen))
    monkeypatch.undo()
    # A name, and settings that say what is so anyway, are not part of it; nor are other splits
    assert keys(grid_jobs(methods={"mine": {"method": "td3bc", **SMALL, "alpha": 0.3}})) == keys(base)
    assert keys(grid_jobs(methods=["td3bc"], set=SMALL)) == keys(base)
    assert keys(grid_jobs(subcases=True)) > keys(base)
    assert [job.key for job in grid_jobs(subcases=True)] == [job.key for job in base]


def test_seeds_in_groups_are_jobs_of_their_own():
    found = grid_jobs(seeds=5, group=2)
    assert [next(iter(job.cells.values()))["seeds"] for job in found] == [[0, 1], [2, 3], [4]]


def test_only_source_that_decides_results_counts_as_another_version(tmp_path, monkeypatch):
    from because_rl.experiments.grid import grid

    package = tmp_path / "because_rl"
    shutil.copytree(Path(grid.__file__).parents[2], package, ignore=shutil.ignore_patterns("__pycache__"))
    version = grid.code_version.__wrapped__
    assert grid.code_version() == version()
    monkeypatch.setattr(grid, "PACKAGE", package)
    assert version() == grid.code_version()
    for name in ("cli/main.py", "report/run_page.py", "experiments/grid/runner.py", "statistics.py", "io.py"):
        (package / name).write_text("# other\n" + (package / name).read_text())
    assert version() == grid.code_version()
    seen = {version("because")}
    for name in ("models/nets.py", "rng.py", "evaluation/rollout.py", "envs/lift/behaviour.py", "graph.py"):
        (package / name).write_text("# other\n" + (package / name).read_text())
        seen.add(version("because"))
    assert len(seen) == 6


def test_a_new_baseline_leaves_the_cells_of_other_methods_alone(tmp_path, monkeypatch):
    from because_rl.experiments.grid import grid

    package = tmp_path / "because_rl"
    shutil.copytree(Path(grid.__file__).parents[2], package, ignore=shutil.ignore_patterns("__pycache__"))
    version = grid.code_version.__wrapped__
    monkeypatch.setattr(grid, "PACKAGE", package)
    methods = ("because", "mopo", "td3bc", "cdl", None)
    before = {method: version(method) for method in methods}

    def changed(name: str) -> set[str | None]:
        text = (package / name).read_text()
        (package / name).write_text("# other\n" + text)
        found = {method for method in methods if version(method) != before[method]}
        (package / name).write_text(text)
        return found

    assert changed("algorithms/registry.py") == {None}
    assert changed("algorithms/cdl.py") == {"cdl", None}
    assert changed("models/policy.py") == {"td3bc", "cdl", None}
    assert changed("discovery/independence/gtest.py") == {"because", None}
    assert changed("planning/shooting.py") == {"because", "mopo", "cdl", None}
    assert changed("training/stage.py") == changed("envs/lift/env.py") == set(methods)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": ["td4"]}, "no method 'td4'"),
        ({"methods": {"td3bc": 3}}, "Got 3 for the method 'td3bc'"),
        ({"methods": {"td3bc": {"beta": 1}}}, "no setting 'beta'"),
        ({"methods": {"a": {"method": "td3bc"}, "b": {"method": "td3bc"}}}, "twice"),
        ({"worlds": ["pong"]}, "pong"),
        ({"policies": ["superb"]}, "superb"),
        ({"splits": ["X"]}, "no split 'X'"),
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, r"seeds=\(1, 1\)"),
        ({"seeds": 10**12}, "seeds=1000000000000"),
        ({"seeds": "ten"}, "seeds='ten'"),
        ({"group": 0}, "group=0"),
        ({"episodes": 0}, "episodes=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"ratios": [0.0]}, "ratio 0.0"),
        ({"ratios": [float("nan")]}, r"ratios=\[nan\]"),
        ({"spurious": [3]}, "spurious=3"),
        ({"coverages": [2.0]}, "coverage 2.0"),
        ({"colour": "red"}, "no setting 'colour' in Grid"),
        ({"policies": []}, "empty side"),
        ({"splits": []}, "empty side"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(change, says):
    with pytest.raises(BecauseError, match=says):
        grid_jobs(**change)


@pytest.mark.parametrize("text", ["[1, 2]", "worlds: [unlock", "1: 2", "\x00", "!!python/object:os.system {}", "3"])
def test_a_file_that_is_no_grid_is_refused(tmp_path, text):
    from because_rl.experiments.grid.grid import read_grid

    (tmp_path / "grid.yaml").write_text(text)
    for path in (tmp_path / "grid.yaml", tmp_path / "none.yaml", tmp_path):
        with pytest.raises(BecauseError, match=path.name):
            read_grid(path)


def test_mutated_grids_are_read_or_refused(tmp_path):
    """No traceback of another kind, whatever is in the file."""
    from because_rl.experiments.grid.grid import jobs, read_grid

    text = (Path(__file__).parents[2] / "grids" / "tiny.yaml").read_text()
    rng, file = random.Random(0), tmp_path / "grid.yaml"
    refused = 0
    for _ in range(int(os.environ.get("BECAUSE_FUZZ", "150"))):
        letters = list(text)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(letters))
            letters[place : place + rng.randint(0, 3)] = rng.choices(
                "{}[]:,#-'\"&*!? \n\t0159.eaé\x00", k=rng.randint(0, 3)
            )
        file.write_text("".join(letters))
        try:
            jobs(read_grid(file))
        except BecauseError:
            refused += 1
    assert refused > 20


def test_choosing_methods_and_settings():
    from because_rl.experiments.grid.grid import choose, read_grid

    base = read_grid("paper", SPEC | {"methods": {"td3bc": {"hidden": 8}, "mopo": None}})
    chosen = choose(base, ["td3bc", "linear"], {"batch": "32", "td3bc:hidden": "16"})
    assert chosen.methods == {"td3bc": {"method": "td3bc", "hidden": "16"}, "linear": {}}
    assert chosen.set == {"batch": "32"}
    with pytest.raises(BecauseError, match=r"'mopo'.*td3bc"):
        choose(base, ["td3bc"], {"mopo:members": 2})


# Tables and comparisons --------------------------------------------------------------------------------


def test_the_table_merges_groups_of_seeds_and_needs_only_the_cells(tmp_path):
    from because_rl.experiments.grid.compare import write_table

    head = {"label": "m", "dataset": "because/unlock-medium-v0", "split": "O", "episodes": 4, "spurious": 1}
    head |= {"recipe": {"world": "unlock", "behaviour": "medium"}}
    jobs = [Job(name, {name: head | {"seeds": seeds}}) for name, seeds in (("a", [2, 3]), ("b", [0, 1]), ("c", [4]))]
    results = {
        "a": {"per_seed": [0.5, 1.0], "steps": 4.0, "outcomes": ["1100", "1111"]},
        "b": {"per_seed": [0.0, 0.5], "steps": 10.0, "outcomes": ["0000", "0011"]},
    }
    for job in jobs[:2]:
        sweep([job], lambda job, missing: [(job.key, results[job.key])], tmp_path, workers=0)
    (row,) = write_table(jobs, tmp_path)
    assert (row["task"], row["seeds"], row["per_seed"]) == ("unlock-O-medium", [0, 1, 2, 3], [0.0, 0.5, 0.5, 1.0])
    assert row["success"] == 0.5
    assert row["steps"] == (4.0 * 6 + 10.0 * 2) / 8
    assert json.loads((tmp_path / "table.json").read_text()) == {"rows": [row]}
    assert (
        (tmp_path / "table.csv")
        .read_text()
        .splitlines()[1]
        .startswith("m,unlock-O-medium,because/unlock-medium-v0,O,4,0.5,")
    )
    before = tables(tmp_path)
    write_table(jobs[::-1], tmp_path)
    assert tables(tmp_path) == before


def test_compare_by_hand():
    from scipy import stats

    from because_rl.experiments.grid.compare import Runs, compare

    a = {"x": Runs([0.9, 0.8, 0.7]), "y": Runs([0.5, 0.5], ["1100", "1010"]), "z": Runs([0.1, 0.2])}
    b = {"x": Runs([0.1, 0.3, 0.2]), "y": Runs([0.5], ["0100"]), "w": Runs([1.0])}
    found = compare(a, b)
    x, y = found["rows"]
    p = stats.ttest_ind([0.9, 0.8, 0.7], [0.1, 0.3, 0.2], equal_var=False, alternative="greater").pvalue
    assert (x["difference"], x["p"], x["p_holm"], x["paired_p"]) == (pytest.approx(0.6), pytest.approx(p), x["p"], None)
    d = stats.ttest_1samp([1.0, -0.5, 0.5, 0.0], 0, alternative="greater").pvalue
    assert (y["p"], y["paired_p"], y["paired_p_holm"]) == (None, pytest.approx(d), pytest.approx(d))
    assert (found["only_a"], found["only_b"]) == (["z"], ["w"])
    assert (found["overall"]["higher"], found["overall"]["significant"], found["overall"]["tasks"]) == (1, 1, 2)
    assert found["overall"]["probability_of_improvement"]["value"] == pytest.approx(0.75)
    both = compare({"x": a["x"], "v": a["x"]}, {"x": b["x"], "v": b["x"]}, "two-sided")
    assert both["rows"][0]["p_holm"] == pytest.approx(2 * both["rows"][0]["p"])
    with pytest.raises(BecauseError, match="no task in common"):
        compare({"z": a["z"]}, b)


def because(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "because_rl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_compare_from_the_command_line(tmp_path, monkeypatch, capsys):
    from because_rl.experiments.grid.compare import read_results, write_table

    jobs, folder = tiny_jobs(14), tmp_path / "r"
    sweep(jobs, Tiny(folder), folder, workers=0)
    write_table(jobs, folder)
    found = json.loads(because("compare", f"{folder}:m0", f"{folder / 'table.json'}:m1", "--json").stdout)
    assert [row["task"] for row in found["rows"]] == ["walk-I-d0", "walk-I-d1", "walk-O-d0", "walk-O-d1"]
    assert all(row["paired_p"] is not None for row in found["rows"])
    code, said = command(monkeypatch, capsys, "compare", f"{folder}:m0", f"{folder}:m1")
    assert code == 0
    assert "walk-O-d1" in said
    assert "over 4 tasks" in said
    assert "walk-I-d0 (m3)" in read_results(folder)
    one = read_results(cell_file(folder, "tiny-0000-I"))
    assert list(one) == ["walk-I-d0"]
    assert one["walk-I-d0"].outcomes == Tiny(folder).result("tiny-0000-I")["outcomes"]
    for a, says in (
        (folder, "RESULTS:METHOD"),
        (f"{folder}:m9", "no results of m9"),
        (tmp_path / "x", "no results in"),
    ):
        code, said = command(monkeypatch, capsys, "compare", a, f"{folder}:m1")
        assert code == 2
        assert says in said


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"rows": [3]}',
        '{"rows": [{"task": "x"}]}',
        '{"rows": [{"per_seed": [1.0]}]}',
        '{"rows": [{"task": "x", "per_seed": ["1"]}]}',
        '{"rows": [{"task": "x", "per_seed": []}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0]}, {"task": "x", "per_seed": [1.0]}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0], "outcomes": ["12"]}]}',
        '{"rows": [{"task": "x", "per_seed": [1.0], "outcomes": ["10", "1"]}]}',
        '{"rows": []}',
        "{",
    ],
)
def test_results_that_are_none_are_refused(tmp_path, text):
    from because_rl.experiments.grid.compare import read_results

    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BecauseError, match=r"t\.json"):
        read_results(tmp_path / "t.json")


# The command, and real cells ---------------------------------------------------------------------------


def command(monkeypatch, capsys, *arguments):
    """In this process: (exit code, what it said)."""
    from because_rl.cli import main as cli

    monkeypatch.setattr(sys, "argv", ["because", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, "".join(capsys.readouterr())


class FullDisk:
    """The n-th flush of a file (or folder) to disk fails, and those after it."""

    def __init__(self, monkeypatch):
        self.calls, self.fail_at, real = 0, None, os.fsync

        def fsync(handle):
            self.calls += 1
            if self.fail_at is not None and self.calls >= self.fail_at:
                raise OSError(28, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    def space(self, flushes):
        self.calls, self.fail_at = 0, flushes


def sound(folder):
    """Every file that a reader would look at is whole."""
    for file in folder.rglob("*.json"):
        if not file.name.startswith("."):
            json.loads(file.read_text())
    return True


def test_a_full_disk_at_each_write_loses_nothing_and_is_named(tmp_path, monkeypatch, capsys):
    from because_rl.experiments.grid import grid

    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    disk = FullDisk(monkeypatch)

    def run(folder):
        monkeypatch.setattr(grid, "TrainAndEvaluate", lambda *told: Tiny(tmp_path / folder))
        settings = ("--workers", 0, "--root", tmp_path, "-o", tmp_path / folder)
        return command(monkeypatch, capsys, "sweep", tmp_path / "spec.yaml", *settings)

    disk.space(None)
    assert run("calm")[0] == 0
    writes, wanted = disk.calls, tables(tmp_path / "calm")
    assert writes >= 8  # two cells, table.json and table.csv; a file and its folder each
    for n in range(1, writes + 1):
        folder = tmp_path / f"full-{n}"
        disk.space(n)
        code, said = run(folder.name)
        assert code == 2
        assert str(folder) in said.replace("\n", "")
        assert "No space left" in said.replace("\n", " ")
        assert sound(folder)
        assert not (folder / "failed").exists()
        done = sorted(runner._names(folder / "cells"))
        disk.space(None)
        assert run(folder.name)[0] == 0
        assert tables(folder) == wanted
        lines = Tiny(folder).lines()
        assert all(lines.count(key) == 1 for key in done)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [(BecauseError("Got no luck.", need="luck.", fix="retry."), 1, "Got no luck"), (KeyboardInterrupt(), 130, "again")],
)
def test_the_command_tells_how_it_ended(tmp_path, monkeypatch, capsys, error, code, says):
    from because_rl.experiments.grid import grid

    class Ending(Tiny):
        def __call__(self, job, missing):
            raise error

    monkeypatch.setattr(grid, "TrainAndEvaluate", lambda *told: Ending(tmp_path / "r"))
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    sweep_it = ("sweep", tmp_path / "spec.yaml", "--workers", 0, "-o", tmp_path / "r")
    ended, said = command(monkeypatch, capsys, *sweep_it)
    assert ended == code
    assert says in said
    wanted = "0 of 1" if code == 1 else "1 of 1"
    assert wanted in command(monkeypatch, capsys, *sweep_it, "--dry-run")[1]
    assert "1 of 1" in command(monkeypatch, capsys, *sweep_it, "--dry-run", "--retry-failed")[1]


@pytest.fixture
def programs(tmp_path):
    """A folder of compiled programs; afterwards this process compiles for itself again."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    names = [f"jax_persistent_cache_min_{what}" for what in ("compile_time_secs", "entry_size_bytes")]
    known = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", *names)}
    compilation_cache.reset_cache()
    yield tmp_path / "programs"
    for name, value in known.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_a_real_cell_is_what_train_and_evaluate_give_by_hand(tmp_path, programs, monkeypatch, capsys):
    from because_rl.algorithms.registry import make_method
    from because_rl.runs.compilation import use_compilation_cache
    from because_rl.runs.evaluate import evaluate_run
    from because_rl.runs.train import train

    spec, results = tmp_path / "spec.yaml", tmp_path / "results"
    spec.write_text(json.dumps(SPEC))
    sweep_it = ("sweep", spec, "--root", tmp_path, "-o", results, "--keep-runs", "--compile-cache", programs)
    said = json.loads(because(*sweep_it, "--json").stdout)
    assert said["failed"] == []
    (job,) = grid_jobs()
    by_hand = tmp_path / "by-hand"
    use_compilation_cache(programs)
    train("td3bc", "because/unlock-medium-n20-v0", tmp_path, by_hand, range(2), SMALL, chunk=20)
    assert (by_hand / "td3bc.npz").read_bytes() == (tmp_path / "sweep" / job.key / "td3bc.npz").read_bytes()
    for row, split in zip(said["rows"], "IO", strict=True):
        wanted = evaluate_run(by_hand, tmp_path, split, 5)[split]
        (key,) = row["cells"]
        cell = json.loads(cell_file(results, key).read_text())
        for name in ("per_seed", "outcomes", "success", "low95", "high95", "steps", "method", "split", "world"):
            assert cell[name] == wanted[name]
        assert cell["seeds"] == [0, 1]
        assert [len(seed) for seed in cell["outcomes"]] == [5, 5]
        assert cell["config"] == json.loads(json.dumps(vars(make_method("td3bc", SMALL, "unlock").config)))
        assert {"revision", "versions"} <= set(cell["provenance"])
    # Nothing is run again; one more split is evaluated without training
    before = {file: file.stat().st_mtime_ns for file in (results / "cells").iterdir()}
    assert "0 of 1 jobs to run" in command(monkeypatch, capsys, *sweep_it, "--dry-run")[1]
    spec.write_text(json.dumps(SPEC | {"splits": ["I", "O", "O-law"]}))
    assert "1 of 1 jobs to run" in command(monkeypatch, capsys, *sweep_it, "--dry-run")[1]
    trained = (tmp_path / "sweep" / job.key / "td3bc.npz").stat().st_mtime_ns
    assert len(json.loads(because(*sweep_it, "--json").stdout)["rows"]) == 3
    assert (tmp_path / "sweep" / job.key / "td3bc.npz").stat().st_mtime_ns == trained
    assert {file: file.stat().st_mtime_ns for file in before} == before
    # What another version has run counts when asked for
    for file in (results / "cells").iterdir():
        file.with_stem(f"{file.stem}-older").write_text(json.dumps(json.loads(file.read_text()) | {"code": "older"}))
        file.unlink()
    assert "1 of 1 jobs to run" in command(monkeypatch, capsys, *sweep_it, "--dry-run")[1]
    assert "0 of 1 jobs to run" in command(monkeypatch, capsys, *sweep_it, "--dry-run", "--any-code")[1]
    rows = json.loads(because(*sweep_it, "--any-code", "--json").stdout)["rows"]
    assert len(rows) == 3
    assert all((results / "cells" / f"{key}.json").exists() for row in rows for key in row["cells"])
    next((results / "cells").iterdir()).unlink()
    assert len(json.loads(because(*sweep_it, "--any-code", "--json").stdout)["rows"]) == 3
    assert len(list((results / "cells").iterdir())) == 3


@pytest.mark.slow
def test_a_full_disk_at_each_write_of_a_real_cell(tmp_path, monkeypatch, capsys, programs):
    from because_rl.datasets.collect import collect
    from because_rl.datasets.recipe import Recipe
    from because_rl.runs.folder import read_run

    collect(Recipe.parse("unlock-medium", 20), tmp_path)
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    (job,) = grid_jobs()
    disk = FullDisk(monkeypatch)
    monkeypatch.setattr("jax.clear_caches", lambda: None)  # here the programs of the last job are those of the next

    def run(folder):
        where = ("--root", tmp_path, "-o", tmp_path / folder, "--work", tmp_path / "work" / folder)
        settings = (*where, "--compile-cache", programs, "--workers", 0)
        return command(monkeypatch, capsys, "sweep", tmp_path / "spec.yaml", *settings)

    disk.space(None)
    assert run("calm")[0] == 0
    writes, wanted = disk.calls, tables(tmp_path / "calm")
    assert writes >= 20  # the run, its stages and metrics, two cells, two tables; a file and its folder each
    for n in range(1, writes + 1, 2):  # each file; folders fail in the test above
        folder, work = tmp_path / f"full-{n}", tmp_path / "work" / f"full-{n}"
        disk.space(n)
        code, said = run(folder.name)
        assert code == 2
        assert str(folder.name) in said.replace("\n", "")
        assert "No space left" in said.replace("\n", " ")
        assert sound(folder)
        assert not (folder / "failed").exists()
        if n > 2 and not finished(folder, job):
            assert read_run(work / job.key)["seeds"] == [0, 1]
        disk.space(None)
        assert run(folder.name)[0] == 0
        assert tables(folder) == wanted
        assert not list(work.iterdir())  # removed once all is evaluated
