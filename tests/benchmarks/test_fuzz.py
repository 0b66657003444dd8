"""A few hundred damaged inputs of all kinds, and by name those that were once accepted or raised a traceback."""

import json
import os

import h5py
import numpy as np
import pytest

from because_rl.datasets.columns import Columns
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import read_grid
from because_rl.io import read_json, read_yaml, write_json
from because_rl.report.model_pages import graph_score
from because_rl.rng import stream
from benchmarks.fuzz import data as fuzz_data
from benchmarks.fuzz import records as fuzz_records
from benchmarks.fuzz.configs import GRID, Wrong
from benchmarks.fuzz.run import FAULTS, TARGETS, Target, fuzz, judge, verdicts_of
from tests.support import arrays, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    for prepare in (fuzz_data.prepare_arrays, fuzz_data.prepare_data):
        prepare(folder)
    return folder


def check_target(target, inputs, base, work):
    """Damaged inputs are refused or valid, and there are both."""
    verdicts = [judge(TARGETS[target], stream(0, "fuzz", target, n), base, work) for n in range(inputs)]
    faults = [v for v in verdicts if v["outcome"] in FAULTS]
    assert not faults, faults[0]
    assert {v["outcome"] for v in verdicts} >= {"refused", "accepted"}


@pytest.mark.parametrize(
    ("target", "inputs"),
    [("grid", 30), ("settings", 120), ("factors", 50), ("arrays", 80), ("dataset", 30)]
    + [("records", 60), ("structures", 12), ("names", 40)],
)
def test_damaged_inputs_are_refused_or_valid(base, tmp_path, target, inputs):
    check_target(target, inputs, base, tmp_path / "work")


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "inputs"),
    [("grid", 300), ("settings", 600), ("factors", 500), ("dataset", 300), ("records", 2000), ("names", 2000)],
)
def test_many_damaged_inputs_are_refused_or_valid(base, tmp_path, target, inputs):
    check_target(target, inputs, base, tmp_path / "work")


def check_fuzz(inputs, targets):
    result = fuzz(inputs, 0, targets)
    assert [row["target"] for row in result["rows"]] == targets
    assert result["inputs"] == sum(row["inputs"] for row in result["rows"]) == inputs
    assert (result["faults"], result["examples"]) == (0, [])
    assert all(row["refused"] and row["accepted"] for row in result["rows"])
    assert "revision" in result["provenance"]


def test_fuzz_counts_outcomes_by_target(base, tmp_path, monkeypatch):
    def verdicts_here(name, target, seed, count, first):
        """As `verdicts_of`, but in this process, which takes no seconds to start."""
        for number in range(first, count):
            verdict = judge(target, stream(seed, "fuzz", name, number), base, tmp_path / "work")
            numbers.append(number)
            yield {"number": number, "peak_mib": 7, "seconds": 0.5} | verdict

    numbers = []
    monkeypatch.setattr("benchmarks.fuzz.run.verdicts_of", verdicts_here)
    check_fuzz(54, ["log", "arrays"])
    numbers.clear()
    monkeypatch.setattr("benchmarks.fuzz.run.BLOCK", 4)
    for inputs in (10, 30, 30):
        result = fuzz(inputs, 0, ["arrays"], keep=tmp_path)
        assert [(row["inputs"], row["peak_mib"]) for row in result["rows"]] == [(inputs, 7)]
    assert numbers == list(range(30))


@pytest.mark.long
def test_fuzz_in_separate_processes():
    check_fuzz(300, ["log"])
    assert 100 < fuzz(5, 0, ["arrays"])["rows"][0]["peak_mib"] < 1000


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in ("agent", "run")])
def test_the_same_seed_gives_the_same_damage(base, tmp_path, target):
    made = []
    for place in ("a", "b"):
        damages, files = [], []
        for n in range(10):
            (work := tmp_path / place / str(n)).mkdir(parents=True)
            damages.append(TARGETS[target].case(stream(0, "fuzz", target, n), base, work)[0])
            if target != "structures":  # objects of an HDF5 file have the time at which they were made
                files += [file.read_bytes() for file in sorted(work.rglob("*")) if file.is_file()]
        made.append((damages, files))
    assert made[0] == made[1]
    assert len(set(made[0][0])) > 3


def faulty_case(rng, base, work):
    """A reader with every kind of fault, chosen by the input's number; the last two end its process."""
    n = int(work.name.rpartition("-")[2])

    def read():
        if n == 1:
            raise KeyError("x")
        if n == 2:
            raise Wrong("other content")
        if n == 3:
            raise BecauseError("Got x.", need=" ", fix="none.")
        if n == 4:
            raise BecauseError("Got x.", need="y.", fix="z.")
        while n == 5:
            pass
        if n == 7:
            os.abort()
        return "accepted"

    return str(n), read


@pytest.mark.long
def test_hangs_crashes_and_tracebacks_are_distinguished():
    """After the hang a new process goes on with the next input."""
    outcomes = [v["outcome"] for v in verdicts_of("faulty", Target(faulty_case, 1.0, patience=0.5), 0, 8)]
    assert outcomes == ["accepted", "traceback", "wrong", "traceback", "refused", "hang", "accepted", "crash"]


class Equal(str):
    """A checksum that agrees with any other."""

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("target", "place", "fault"),
    [
        ("grid", "because_rl.reading._unique_keys", dict),
        ("arrays", "because_rl.reading.arrays_sha256", lambda arrays: Equal()),
        ("records", "because_rl.records.check_record", lambda value, schema, where: value),
        ("names", "because_rl.factor.check_name", lambda *arguments, **options: None),
        ("settings", "because_rl.algorithms.registry._is_allowed", lambda value: True),
        pytest.param(
            *("dataset", "because_rl.datasets.user_log._verify_checksums", lambda *arguments: None),
            marks=pytest.mark.long,
        ),
    ],
)
def test_faults_planted_on_purpose_are_revealed(base, tmp_path, monkeypatch, target, place, fault):
    """A check that is left out shows within 300 inputs; without the fault there is none (see above)."""
    monkeypatch.setattr(place, fault)
    verdicts = (judge(TARGETS[target], stream(0, "fuzz", target, n), base, tmp_path / "work") for n in range(300))
    assert next((n for n, verdict in enumerate(verdicts) if verdict["outcome"] in FAULTS), None) is not None


# Faults that fuzzing has revealed ----------------------------------------------------------------------


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
    log = read_log(write(tmp_path / "a.hdf5", arrays(episodes=24, length=1)))
    assert [len(episode["actions"]) for episode in log.episodes] == [1] * 24


def flag(value):
    def damage(file):
        file["terminations"] = np.full(144, value)

    return damage


def loop(file):
    file.create_group("goals")["observations"] = file["/"]


def huge(file):
    file.create_dataset("rewards", (2**50,), "f4", chunks=(16,))


def wide(file):
    file["rewards"] = np.zeros((144, 2))


@pytest.mark.parametrize(
    ("damage", "says"),
    [(flag(np.nan), "other values than 0 and 1"), (flag(0.5), "other values than 0 and 1"), (loop, "cannot be read")]
    + [(huge, "cannot be read"), (wide, "one number per row")],
)
def test_damaged_logs_that_were_once_accepted(tmp_path, damage, says):
    path = write(tmp_path / "a.hdf5", arrays())
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(BecauseError, match=says):
        read_log(path)


def test_an_episode_that_is_no_group_is_refused(base, tmp_path):
    path = tmp_path / "grouped.hdf5"
    path.write_bytes((base / "grouped.hdf5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["episode_3"]
        file["episode_3"] = np.zeros(3)
    with pytest.raises(BecauseError, match="'episode_3' is not a group"):
        read_log(path)


def test_the_checksums_of_a_log_are_verified(base):
    """`because fit FOLDER` also reads datasets that this package has written."""
    assert len(read_log(base / "dataset").episodes) == 24
    sums = base / "dataset" / "checksums.json"
    content = sums.read_text()
    sums.write_text(json.dumps(json.loads(content) | {"metadata": "0"}))
    with pytest.raises(BecauseError, match="does not match its checksums"):
        read_log(base / "dataset")
    sums.write_text(content)


def test_a_graph_without_a_score_is_drawn(tmp_path):
    """The schema allows null, as it allows leaving the score out."""
    write_json(tmp_path / "graph.json", fuzz_records.GRAPH | {"score": None})
    fuzz_records._use_graph(tmp_path / "graph.json")
    assert graph_score({"edges": [{"status": "established"}], "score": None}) == "1 edges"


def test_columns_without_rows_are_refused():
    empty = {name: np.zeros(0) for name in ("x", "push", "run")}
    with pytest.raises(BecauseError):
        read_log(empty, columns=Columns("x", "push", episode="run"))
