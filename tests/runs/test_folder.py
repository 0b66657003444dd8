"""A run folder describes one run, and refuses any other."""

import json
import shutil

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.runs.evaluate import evaluate_run
from because_rl.runs.folder import read_metrics, read_run, write_metrics
from because_rl.runs.train import load_agent, train
from tests.runs.small import DATA, OTHER_DATA, SETTINGS, SMALL


def test_run_folder_describes_its_run(home):
    record = read_run(home / "run")
    assert record["finished"] == ["agent/agent.json", "agent/weights.safetensors", "ccil.npz"]
    assert (record["method"], record["dataset"], record["seeds"], record["horizon"]) == ("ccil", DATA, [0, 1], 15)
    assert record["config"]["hidden"] == 8
    assert record["config"]["keep"] == 0.95
    assert "revision" in record["provenance"]
    lines = read_metrics(home / "run")
    assert [(line["stage"], line["step"], len(line["loss"])) for line in lines] == [
        ("ccil", step, 2) for step in (10, 20, 30, 40, 50)
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["config"].update(steps=60),  # it would be trained further
        lambda record: record.update(seeds=3),
        lambda record: record.update(finished=[{}]),
        lambda record: record.update(sha256=None),
        lambda record: record.update(seconds="1"),
    ],
)
def test_changed_run_description_is_refused(home, tmp_path, change):
    shutil.copytree(home / "run", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    change(record)
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    with pytest.raises(BecauseError, match=r"not (what was written|a run)"):
        load_agent(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overrides": SETTINGS | {"weight": 0.5}}, r"config.weight is 0.001 there and 0.5 now"),
        ({"dataset": OTHER_DATA}, "data_sha256 is .*dataset is"),
        ({"seeds": range(3)}, r"seeds is \[0, 1\] there and \[0, 1, 2\] now"),
        ({"chunk": 20}, "chunk is 10"),
        ({"resume": False}, "this run already.*--resume"),
    ],
)
def test_run_is_not_overwritten_by_another(home, change, message):
    before = {file: file.read_bytes() for file in (home / "run").rglob("*") if file.is_file()}
    with pytest.raises(BecauseError, match=message):
        train("ccil", root=home, folder=home / "run", **({"dataset": DATA, "resume": True} | SMALL | change))
    assert {file: file.read_bytes() for file in (home / "run").rglob("*") if file.is_file()} == before


def test_folder_without_a_run_is_refused(home, tmp_path):
    with pytest.raises(BecauseError, match="no run in"):
        evaluate_run(tmp_path)
    (tmp_path / "ccil.npz").write_bytes(b"")
    with pytest.raises(BecauseError, match="unknown run"):
        train("ccil", DATA, home, tmp_path, **SMALL)


def test_metrics_that_are_not_finite_are_null(tmp_path):
    history = {"a": {"step": np.array([[5, 5]]), "loss": np.array([[1.5, np.inf]])}, "empty": {}}
    write_metrics(tmp_path, history)
    assert read_metrics(tmp_path) == [{"stage": "a", "step": 5, "loss": [1.5, None]}]
