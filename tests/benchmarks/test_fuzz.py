"""Damaged inputs of all kinds, a few hundred of them, and by name those that once got through."""

import json
import os

import h5py
import numpy as np
import pytest

from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import read_grid
from because_rl.io import read_json, read_yaml, write_json
from because_rl.rng import stream
from benchmarks.fuzz import data as fuzz_data
from benchmarks.fuzz.configs import GRID, Wrong
from benchmarks.fuzz.run import FAULTS, TARGETS, Target, fuzz, judge, verdicts_of
from tests.support import arrays, write

FROZEN: tuple[str, ...] = ()
"""Faults known in files that must not change while a grid of results is being computed; then this goes."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    for prepare in (fuzz_data.prepare_arrays, fuzz_data.prepare_data):
        prepare(folder)
    return folder


@pytest.mark.parametrize(
    ("target", "inputs"), [("grid", 60), ("settings", 120), ("factors", 100), ("arrays", 80), ("dataset", 60)]
)
def test_what_is_damaged_is_refused_or_sound(base, tmp_path, target, inputs):
    verdicts = [judge(TARGETS[target], stream(0, "fuzz", target, n), base, tmp_path / "work") for n in range(inputs)]
    found = [v for v in verdicts if v["outcome"] in FAULTS and not v["where"].startswith(FROZEN)]
    assert not found, found[0]
    assert {v["outcome"] for v in verdicts} >= {"refused", "accepted"}


def test_damaged_hdf5_in_processes_of_their_own():
    result = fuzz(60, 0, ["log"])
    assert [row["inputs"] for row in result["rows"]] == [60]
    assert not [fault for fault in result["examples"] if not fault["where"].startswith(FROZEN)], result["examples"]
    assert all(row["refused"] and row["accepted"] for row in result["rows"])
    assert "revision" in result["provenance"]


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "run"])
def test_the_same_seed_gives_the_same_damage(base, tmp_path, target):
    made = []
    for place in ("a", "b"):
        whats, files = [], []
        for n in range(10):
            (work := tmp_path / place / str(n)).mkdir(parents=True)
            whats.append(TARGETS[target].case(stream(0, "fuzz", target, n), base, work)[0])
            files += [file.read_bytes() for file in sorted(work.rglob("*")) if file.is_file()]
        made.append((whats, files))
    assert made[0] == made[1]
    assert len(set(made[0][0])) > 3


def trouble(rng, base, work):
    """A target whose readers do all that they should not."""
    n = int(work.name.rpartition("-")[2])

    def read():
        while n == 1:
            pass
        if n == 2:
            os.abort()
        if n == 3:
            raise KeyError("x")
        if n == 4:
            raise Wrong("it is another thing")
        if n == 5:
            raise BecauseError("Got x.", need=" ", fix="none.")
        if n == 6:
            raise BecauseError("Got x.", need="y.", fix="z.")
        return "accepted"

    return str(n), read


@pytest.mark.slow
def test_hangs_crashes_and_tracebacks_are_told_apart():
    found = [v["outcome"] for v in verdicts_of("trouble", Target(trouble, 1.0, patience=1.0), 0, 8)]
    assert found == ["accepted", "hang", "crash", "traceback", "wrong", "traceback", "refused", "accepted"]


# What fuzzing found ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GRID + "seeds: 5\n", "'seeds' is there twice"),
        ("set: " + "[" * 300 + "]" * 300, "levels"),
        ("set: &a [*a]\n", "part of"),
        ("b0: &b0 [x]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}{f', *b{n - 1}' * 9}]\n" for n in range(1, 13)), "100000"),
        ("seeds: 2026-99-99\n", "month"),
        ("seeds: !!int x\n", "invalid literal"),
    ],
)
def test_yaml_that_would_be_misread_or_never_end(tmp_path, text, says):
    (tmp_path / "grid.yaml").write_text(text)
    for read in (read_yaml, read_grid):
        with pytest.raises(BecauseError, match=says):
            read(tmp_path / "grid.yaml")


def test_json_that_would_be_misread(tmp_path):
    for text, says in (('{"a": 1, "a": 2}', "'a' is there twice"), ("[" * 200_000, "JSON"), ("9" * 5000, "JSON")):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(BecauseError, match=says):
            read_json(tmp_path / "x.json")
    with pytest.raises(BecauseError, match="finite"):
        write_json(tmp_path / "y.json", {"alpha": float("nan")})
    assert not (tmp_path / "y.json").exists()


def test_a_log_of_single_steps_is_read(tmp_path):
    log = read_log(write(tmp_path / "a.hdf5", arrays(episodes=12, length=1)))
    assert [len(episode["actions"]) for episode in log.episodes] == [1] * 12


def flag(value):
    def damage(file):
        file["terminations"] = np.full(72, value)

    return damage


def loop(file):
    file.create_group("deeper")["again"] = file["/"]


def huge(file):
    file.create_dataset("rewards", (2**50,), "f4", chunks=(16,))


def wide(file):
    file["rewards"] = np.zeros((72, 2))


@pytest.mark.parametrize(
    ("damage", "says"),
    [(flag(np.nan), "not finite"), (flag(0.5), "other values than 0 and 1"), (loop, "cannot be read")]
    + [(huge, "cannot be read"), (wide, "one number per row")],
)
def test_logs_that_got_through_or_raised(tmp_path, damage, says):
    path = write(tmp_path / "a.hdf5", arrays())
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(BecauseError, match=says):
        read_log(path)


def test_an_episode_that_is_no_group_is_not_left_out(base, tmp_path):
    path = tmp_path / "grouped.hdf5"
    path.write_bytes((base / "grouped.hdf5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["episode_3"]
        file["episode_3"] = np.zeros(3)
    with pytest.raises(BecauseError, match="'episode_3' is no group"):
        read_log(path)


def test_a_log_that_carries_checksums_is_checked(base):
    """`because fit FOLDER` reads our own datasets, too."""
    assert len(read_log(base / "dataset").episodes) == 12
    sums = base / "dataset" / "checksums.json"
    kept = sums.read_text()
    sums.write_text(json.dumps(json.loads(kept) | {"metadata": "0"}))
    with pytest.raises(BecauseError, match="does not match its checksums"):
        read_log(base / "dataset")
    sums.write_text(kept)
