"""The command ``because sweep``: how it ends, a full disk at each write, and cells that are really trained."""

import json
import os
import pickle
from pathlib import Path

import pytest

from because_rl.algorithms.registry import make_method
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.experiments.grid import compute
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.runner import StopSweep, cell_file, finished
from because_rl.runs.evaluate import evaluate_run
from because_rl.runs.folder import read_run
from because_rl.runs.train import train
from tests.experiments.small_sweep import SmallCompute
from tests.experiments.support import SMALL, SPEC, command, grid_jobs, tables

WITH_MODEL = {
    "hidden": 8,
    "batch": 16,
    "world_steps": 40,
    "behaviour_steps": 40,
    "behaviour_hidden": 8,
    "value_steps": 40,
}
"""Settings of a small method that plans."""


class FullDisk:
    """After `space(n)` the n-th flush of a file (or folder) to disk fails, and all after it; None: none fails."""

    def __init__(self, monkeypatch):
        self.flushed, self.fail_at, real = [], None, os.fsync

        def fsync(handle):
            self.flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
            if self.fail_at is not None and len(self.flushed) >= self.fail_at:
                raise OSError(28, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    def space(self, flushes):
        self.flushed, self.fail_at = [], flushes

    def last_flush(self, name):
        """The number of the last flush of a file of which this is part of the name."""
        return max(n for n, file in enumerate(self.flushed, 1) if name in file)


def check_json_files(folder):
    """Every file that a reader would look at is whole."""
    for file in folder.rglob("*.json"):
        if not file.name.startswith("."):
            json.loads(file.read_text())


def check_disk_error(ended, folder):
    assert ended.code == 2
    assert folder.name in ended.text.replace("\n", "")
    assert "No space left" in ended.text.replace("\n", " ")
    check_json_files(folder)
    assert not (folder / "failed").exists()


@pytest.fixture
def spec(tmp_path):
    """The file of a small grid."""
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(SPEC))
    return file


def test_a_full_disk_at_each_write_loses_nothing(tmp_path, monkeypatch, spec):
    disk = FullDisk(monkeypatch)

    def run(folder):
        monkeypatch.setattr(compute, "TrainAndEvaluate", lambda *settings: SmallCompute(tmp_path / folder))
        return command("sweep", spec, "--workers", 0, "--root", tmp_path, "-o", tmp_path / folder)

    disk.space(None)
    assert run("calm").code == 0
    writes, wanted = len(disk.flushed), tables(tmp_path / "calm")
    assert writes >= 8  # two cells, table.json and table.csv; a file and its folder each
    for n in range(1, writes + 1):
        folder = tmp_path / f"full-{n}"
        disk.space(n)
        check_disk_error(run(folder.name), folder)
        done = [file.stem for file in (folder / "cells").glob("*.json")]
        disk.space(None)
        assert run(folder.name).code == 0
        assert tables(folder) == wanted
        lines = SmallCompute(folder).lines()
        assert all(lines.count(key) == 1 for key in done)


def test_part_of_a_grid_leaves_the_table_of_all(tmp_path, monkeypatch, spec):
    folder = tmp_path / "r"
    monkeypatch.setattr(compute, "TrainAndEvaluate", lambda *settings: SmallCompute(folder))
    spec.write_text(json.dumps(SPEC | {"methods": {"ccil": SMALL, "td3bc": SMALL}}))
    sweep = ("sweep", spec, "--workers", 0, "-o", folder)
    assert len(command(*sweep, "--json").json["rows"]) == 4
    before = tables(folder)
    part = command(*sweep, "--methods", "ccil", "--no-run")
    assert "table.json has other rows too" in " ".join(part.stdout.split())
    assert tables(folder) == before
    subset = json.loads((folder / "table-subset.json").read_text())["rows"]
    assert [row["method"] for row in subset] == ["ccil", "ccil"]
    assert command(*sweep, "--no-run", "--json").json["table"] == str(folder / "table.json")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(BecauseError("Got no luck.", need="luck.", fix="retry."), 1, "Got no luck"), (KeyboardInterrupt(), 130, "again")],
)
def test_exit_code_and_message_after_an_error(tmp_path, monkeypatch, spec, error, code, message):
    class Ending(SmallCompute):
        def __call__(self, job, missing):
            raise error

    monkeypatch.setattr(compute, "TrainAndEvaluate", lambda *settings: Ending(tmp_path / "r"))
    sweep = ("sweep", spec, "--workers", 0, "-o", tmp_path / "r")
    ended = command(*sweep)
    assert ended.code == code
    assert message in ended.stderr
    left = "0 of 1" if code == 1 else "1 of 1"
    assert left in command(*sweep, "--dry-run").stdout
    assert "1 of 1" in command(*sweep, "--dry-run", "--retry-failed").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "workers"), [("ccil", 0), pytest.param("td3bc", 1, marks=pytest.mark.long, id="td3bc in a worker")]
)
def test_a_cell_equals_training_and_evaluating_by_hand(tmp_path, compile_cache, spec, method, workers):
    """The same weights and results to the bit; then nothing is computed twice."""
    results, grid_spec = tmp_path / "results", SPEC | {"methods": {method: SMALL}}
    spec.write_text(json.dumps(grid_spec))
    (job,) = grid_jobs(methods={method: SMALL})
    sweep = ("sweep", spec, "--root", tmp_path, "-o", results, "--keep-runs", "--compile-cache", compile_cache)
    sweep += ("--workers", workers)
    first = command(*sweep, "--json").json
    assert first["failed"] == []
    by_hand, weights = tmp_path / "by-hand", tmp_path / "sweep" / job.key / f"{method}.npz"
    train(method, "because/unlock-medium-n20-v1", tmp_path, by_hand, range(2), SMALL, chunk=20)
    assert (by_hand / weights.name).read_bytes() == weights.read_bytes()
    for row, split in zip(first["rows"], "IO", strict=True):
        wanted = evaluate_run(by_hand, split, 5)[split]
        (key,) = row["cells"]
        cell = json.loads(cell_file(results, key).read_text())
        for name in ("per_seed", "outcomes", "success", "low95", "high95", "steps", "method", "split", "world"):
            assert cell[name] == wanted[name]
        assert cell["seeds"] == [0, 1]
        assert [len(seed) for seed in cell["outcomes"]] == [5, 5]
        assert cell["config"] == json.loads(json.dumps(vars(make_method(method, SMALL, "unlock").config)))
        assert {"revision", "versions"} <= set(cell["provenance"])
    # Nothing is run again; one more split is evaluated without training
    before = {file: file.stat().st_mtime_ns for file in (weights, *(results / "cells").iterdir())}
    assert "0 of 1 jobs to run" in command(*sweep, "--dry-run").stdout
    spec.write_text(json.dumps(grid_spec | {"splits": ["I", "O", "O-law"]}))
    assert "1 of 1 jobs to run" in command(*sweep, "--dry-run").stdout
    assert len(command(*sweep, "--json").json["rows"]) == 3
    assert {file: file.stat().st_mtime_ns for file in before} == before
    # Cells of another version of the source count on request
    for file in (results / "cells").iterdir():
        older = json.loads(file.read_text()) | {"code": "older"}
        del older["sha256"]
        file.with_stem(f"{file.stem}-older").write_text(json.dumps(older))
        file.unlink()
    assert "1 of 1 jobs to run" in command(*sweep, "--dry-run").stdout
    assert "0 of 1 jobs to run" in command(*sweep, "--dry-run", "--any-code").stdout
    rows = command(*sweep, "--any-code", "--json").json["rows"]
    assert len(rows) == 3
    assert all(cell_file(results, key).exists() for row in rows for key in row["cells"])
    next((results / "cells").iterdir()).unlink()
    assert len(command(*sweep, "--any-code", "--json").json["rows"]) == 3
    assert len(list((results / "cells").iterdir())) == 3


def test_the_function_of_a_cell_can_be_sent_to_workers(tmp_path):
    compute = TrainAndEvaluate(tmp_path, tmp_path / "work", True, tmp_path / "programs", 2)
    assert pickle.loads(pickle.dumps((compute, grid_jobs()))) == (compute, grid_jobs())  # noqa: S301  (our own)


def test_a_missing_simulator_stops_a_sweep_before_training(tmp_path, monkeypatch, spec):
    def missing(world, processes):
        assert (world, processes) == ("unlock", 3)
        raise BecauseError("No minigrid.", need="it.", fix="install it.")

    def train(*arguments, **settings):
        raise AssertionError("trained")

    monkeypatch.setattr(compute, "check_simulator", missing)
    monkeypatch.setattr("because_rl.runs.train.train", train)
    (job,) = grid_jobs()
    with pytest.raises(StopSweep, match="No minigrid"):
        TrainAndEvaluate(tmp_path, processes=3).train(job)


@pytest.mark.slow
@pytest.mark.parametrize("each_write", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_full_disk_while_training_loses_nothing(tmp_path, monkeypatch, compile_cache, spec, each_write):
    """Fails at a checkpoint and at a cell, or at every file that a job writes."""
    collect(Recipe.parse("unlock-medium", 20), tmp_path, workers=1)
    (job,) = grid_jobs()
    disk = FullDisk(monkeypatch)

    def run(folder):
        where = ("--root", tmp_path, "-o", tmp_path / folder, "--work", tmp_path / "work" / folder)
        return command("sweep", spec, *where, "--compile-cache", compile_cache, "--workers", 0)

    disk.space(None)
    assert run("calm").code == 0
    writes, wanted = len(disk.flushed), tables(tmp_path / "calm")
    assert writes >= 20  # the run, its stages and metrics, two cells, two tables; a file and its folder each
    chosen = (disk.last_flush("ccil.npz"), disk.last_flush("ccil-unlock-medium-n20-O"))
    for n in range(1, writes + 1, 2) if each_write else chosen:  # each file; folders fail in the test above
        folder, work = tmp_path / f"full-{n}", tmp_path / "work" / f"full-{n}"
        disk.space(n)
        check_disk_error(run(folder.name), folder)
        if n > 2 and not finished(folder, job):
            assert read_run(work / job.key)["seeds"] == [0, 1]
        disk.space(None)
        assert run(folder.name).code == 0
        assert tables(folder) == wanted
        assert not list(work.iterdir())  # removed once all is evaluated


@pytest.mark.long
@pytest.mark.parametrize("methods", [{"ccil": SMALL}, {"because": WITH_MODEL}], ids=["ccil", "because"])
def test_datasets_side_by_side_give_the_cells_of_separate_jobs(tmp_path, monkeypatch, compile_cache, spec, methods):
    """Although one of them fails, the disk is full in the middle, and the sweep goes on from there."""
    spec.write_text(json.dumps(SPEC | {"methods": methods, "dataset_seeds": [500, 501], "seeds": 1, "episodes": 2}))
    train, asked, disk = TrainAndEvaluate.train, [], FullDisk(monkeypatch)

    def run(folder, *options):
        where = ("--root", tmp_path, "-o", tmp_path / folder, "--work", tmp_path / "work" / folder)
        return command("sweep", spec, *where, "--compile-cache", compile_cache, "--workers", 0, *options)

    def fail_at(part):
        def fail(self, job):
            asked.append(job.key)
            if part in job.key:
                raise BecauseError("Got no data.", need="data.", fix="collect it.")
            return train(self, job)

        monkeypatch.setattr(TrainAndEvaluate, "train", fail)

    assert run("alone").code == 0
    wanted = cells_without_times(tmp_path / "alone")
    disk.space(8)  # while both are trained
    ended = run("joint", "--together", 2)
    assert (ended.code, "No space left" in " ".join(ended.text.split())) == (2, True)
    disk.space(None)
    fail_at("seed501")
    ended = run("joint", "--together", 2)
    assert (ended.code, "no data" in ended.text) == (1, True)
    assert cells_without_times(tmp_path / "joint") == {key: wanted[key] for key in wanted if "seed501" not in key}
    fail_at("nothing")
    asked.clear()
    assert run("joint", "--together", 2, "--retry-failed").code == 0
    assert cells_without_times(tmp_path / "joint") == wanted
    assert len(asked) == len(methods)
    assert all("seed501" in key for key in asked)
    assert tables(tmp_path / "joint") == tables(tmp_path / "alone")
    assert not list((tmp_path / "work" / "joint").glob("*-n20-*"))  # no run is left


def cells_without_times(folder):
    """Key -> what a cell says of training and success."""
    cells = {file.stem: json.loads(file.read_text()) for file in (folder / "cells").iterdir()}
    leave = ("seconds", "provenance", "sha256")
    return {key: {name: cell[name] for name in cell if name not in leave} for key, cell in cells.items()}


def test_what_a_killed_collection_left_beside_a_finished_dataset_goes(tmp_path):
    recipe = Recipe.parse("unlock-medium", 10)
    collect(recipe, tmp_path, workers=1)
    place = tmp_path / "datasets/because"
    before = sorted(path.name for path in place.iterdir())
    (place / f".{before[0]}.partial").mkdir()
    (place / f".{before[0]}.partial" / "chunk.npz").write_bytes(b"")
    for lock in ("lock", "wanted.lock"):
        (place / f".{before[0]}.{lock}").touch()
    compute.ensure_dataset(recipe, tmp_path)
    assert sorted(path.name for path in place.iterdir()) == before
