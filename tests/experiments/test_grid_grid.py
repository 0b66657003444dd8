"""Grids: which jobs they make, what the address of a cell depends on, and what is refused."""

import os
import random
import shutil

import pytest

from because_rl.algorithms.registry import METHODS, make_method
from because_rl.errors import BecauseError
from because_rl.experiments.grid import source
from because_rl.experiments.grid.cells import dataset_of, join_jobs
from because_rl.experiments.grid.grid import choose, jobs, read_grid
from because_rl.experiments.grid.source import code_version
from tests.experiments.support import SMALL, SPEC, grid_jobs, keys
from tests.support import REPOSITORY

EXAMPLE = REPOSITORY / "grids" / "tiny.yaml"


def test_the_papers_grid_is_18_tasks_of_7_methods():
    paper = read_grid("paper")
    assert len(paper.methods) == 7
    known = [name for name in paper.methods if name in METHODS]
    paper_jobs = jobs(choose(paper, known))
    assert len(paper_jobs) == 9 * len(known)
    heads = [head for job in paper_jobs for head in job.cells.values()]
    assert len({(h["label"], h["dataset"], h["split"]) for h in heads if h["split"] in "IO"}) == 18 * len(known)
    assert {h["split"] for h in heads if h["dataset"] == "because/unlock-medium-v1"} == {
        *("I", "O", "O-law", "O-doors", "O-cells")
    }
    assert {(len(h["seeds"]), h["episodes"]) for h in heads} == {(10, 100)}


def test_the_example_file_can_be_read():
    heads = [head for job in jobs(read_grid(EXAMPLE)) for head in job.cells.values()]
    assert {(h["label"], h["method"]) for h in heads} == {("td3bc", "td3bc"), ("cautious", "td3bc")}
    assert {h["recipe"]["episodes"] for h in heads} == {50, 200}


def test_the_address_holds_all_that_decides_a_result(monkeypatch):
    base = grid_jobs()
    assert keys(base) == keys(grid_jobs())
    changes = [
        {"methods": {"ccil": SMALL | {"weight": 0.5}}},
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
        {"worlds": ["unlock-visual"]},
        {"splits": ["O-law"]},
        {"chunk": 10},
        {"own_data": 7},
        {"own_data": 0},  # the same datasets for seed 0, but other scenes
    ]
    key_sets = [keys(grid_jobs(**change)) for change in changes]
    monkeypatch.setattr("because_rl.experiments.grid.grid.code_version", lambda *arguments: "another")
    key_sets += [keys(base), keys(grid_jobs())]
    assert len(set().union(*key_sets)) == sum(map(len, key_sets))
    monkeypatch.undo()
    # A label, settings that equal the defaults, and other splits are not part of it
    default = make_method("ccil", SMALL, "unlock").config.weight
    assert keys(grid_jobs(methods={"own": {"method": "ccil", **SMALL, "weight": default}})) == keys(base)
    assert keys(grid_jobs(methods=["ccil"], set=SMALL)) == keys(base)
    assert keys(grid_jobs(subcases=True)) > keys(base)
    assert [job.key for job in grid_jobs(subcases=True)] == [job.key for job in base]


def test_seeds_in_groups_are_jobs_of_their_own():
    heads = [next(iter(job.cells.values())) for job in grid_jobs(seeds=5, group=2)]
    assert [head["seeds"] for head in heads] == [[0, 1], [2, 3], [4]]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's source, of which `version` computes the hash."""
    shutil.copytree(REPOSITORY / "because_rl", tmp_path / "because_rl", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(source, "PACKAGE", tmp_path / "because_rl")
    return tmp_path / "because_rl"


version = code_version.__wrapped__
"""Without its cache."""


def test_only_source_that_decides_results_counts_as_another_version(package):
    assert version() == code_version()
    for name in ("cli/main.py", "report/run_page.py", "experiments/grid/runner.py", "statistics.py", "io.py"):
        (package / name).write_text("# other\n" + (package / name).read_text())
    assert version() == code_version()
    versions = {version("because")}
    for name in ("models/nets.py", "rng.py", "evaluation/rollout.py", "envs/lift/behaviour.py", "graph.py"):
        (package / name).write_text("# other\n" + (package / name).read_text())
        versions.add(version("because"))
    assert len(versions) == 6
    before = version("because"), version("because", True)
    (package / "vision/codes.py").write_text("# other\n" + (package / "vision/codes.py").read_text())
    assert version("because") == before[0]
    assert version("because", True) != before[1]


def test_a_new_baseline_keeps_the_cells_of_other_methods(package):
    methods = ("because", "mopo", "td3bc", "cdl", None)
    before = {method: version(method) for method in methods}

    def changed(name: str) -> set[str | None]:
        """The methods whose version depends on this file."""
        text = (package / name).read_text()
        (package / name).write_text("# other\n" + text)
        affected = {method for method in methods if version(method) != before[method]}
        (package / name).write_text(text)
        return affected

    assert changed("algorithms/registry.py") == {None}
    assert changed("algorithms/cdl.py") == {"cdl", None}
    assert changed("models/policy.py") == {"td3bc", "cdl", None}
    assert changed("discovery/independence/gtest.py") == {"because", None}
    assert changed("planning/shooting.py") == {"because", "mopo", "cdl", None}
    assert changed("training/stage.py") == changed("envs/lift/env.py") == set(methods)


def test_each_seed_has_data_and_scenes_of_its_own():
    own = grid_jobs(own_data=1000, seeds=[2, 0], policies=["random", "medium"], splits=["I", "O"])
    heads = [head for job in own for head in job.cells.values()]
    assert len(own) == 4
    assert len(keys(own)) == len(heads) == 8
    assert {(*h["seeds"], h["recipe"]["seed"], h["scenes_draw"]) for h in heads} == {(2, 1002, 1002), (0, 1000, 1000)}
    assert [len(job.trainings) for job in join_jobs(own, 9)] == [4]  # one program for all
    assert {dataset_of(head) for head in heads} == {"because/unlock-random-n20-v1", "because/unlock-medium-n20-v1"}


@pytest.mark.parametrize(
    ("change", "message"),
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
        ({"own_data": 1000, "dataset_seeds": [3]}, r"own_data=1000, dataset_seeds=\[3\]"),
        ({"own_data": -1}, "own_data=-1"),
        ({"splits": []}, "empty side"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(BecauseError, match=message):
        grid_jobs(**change)


@pytest.mark.parametrize("text", ["[1, 2]", "worlds: [unlock", "1: 2", "\x00", "!!python/object:os.system {}", "3"])
def test_a_file_that_is_no_grid_is_refused(tmp_path, text):
    (tmp_path / "grid.yaml").write_text(text)
    for path in (tmp_path / "grid.yaml", tmp_path / "none.yaml", tmp_path):
        with pytest.raises(BecauseError, match=path.name):
            read_grid(path)


def test_mutated_grids_are_read_or_refused(tmp_path):
    """No other exception than our own, whatever is in the file."""
    text = EXAMPLE.read_text()
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
    base = read_grid("paper", SPEC | {"methods": {"td3bc": {"hidden": 8}, "mopo": None}})
    chosen = choose(base, ["td3bc", "linear"], {"batch": "32", "td3bc:hidden": "16"})
    assert chosen.methods == {"td3bc": {"method": "td3bc", "hidden": "16"}, "linear": {}}
    assert chosen.set == {"batch": "32"}
    with pytest.raises(BecauseError, match=r"'mopo'.*td3bc"):
        choose(base, ["td3bc"], {"mopo:members": 2})


def test_joined_jobs_hold_the_same_cells_in_groups_of_datasets():
    changes = {
        "methods": {"ccil": SMALL, "td3bc": SMALL},
        "worlds": ["unlock", "crash"],
        "policies": ["random", "expert"],
    }
    single = grid_jobs(dataset_seeds=[0, 1, 2], **changes)
    joint = join_jobs(single, 4)
    assert join_jobs(single, 1) == single
    assert [len(job.trainings) for job in joint] == [4, 4, 2, 2, 4, 4, 2, 2]
    assert keys(joint) == keys(single) == keys(part for job in joint for part in job.trainings)
    assert len({job.key for job in joint}) == len(joint)
    for job in joint:
        assert len({(cell["method"], cell["recipe"]["world"]) for cell in job.cells.values()}) == 1
    assert joint == join_jobs(grid_jobs(dataset_seeds=[0, 1, 2], together=4, **changes), 4)
    assert len(join_jobs(grid_jobs(seeds=5, group=2), 9)) == 2  # of two seeds, and of one
