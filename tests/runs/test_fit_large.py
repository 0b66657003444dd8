"""Fitting a Parquet log of more rows than are read: the graph of a sample, checked and trained on all episodes."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from because_rl.datasets import large_log
from because_rl.datasets.load import load
from because_rl.discovery.discover import discover
from because_rl.training import stage
from tests.runs.test_fit import TINY
from tests.support import because

EPISODES, LENGTH, ROWS = 160, 20, 1600
FACTORS = {
    "table": {"episode": "batch"},
    "state": [{"name": name, "columns": name, "type": "continuous"} for name in ("x", "y")],
    "action": [{"name": name, "columns": name, "type": "continuous"} for name in ("push", "valve")],
}


def simulate(broken):
    """x follows push and y follows x; in the `broken` episodes y also follows the valve."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, EPISODES))
    rows = []
    for _ in range(LENGTH):
        push, valve = rng.normal(size=(2, EPISODES))
        rows.append([x, y, push, valve])
        noise = 0.3 * rng.normal(size=(2, EPISODES))
        x, y = 0.7 * x + push + noise[0], 0.6 * y + 0.8 * x + 0.7 * broken * valve + noise[1]
    table = dict(zip(("x", "y", "push", "valve"), np.stack(rows, 1).transpose(0, 2, 1).reshape(4, -1), strict=True))
    return table | {"batch": np.repeat(np.arange(EPISODES), LENGTH)}


def write(folder, table):
    (folder / "log").mkdir(exist_ok=True)
    for part, rows in enumerate(np.array_split(np.arange(EPISODES * LENGTH), 4)):
        parquet.write_table(pyarrow.table({k: v[rows] for k, v in table.items()}), folder / f"log/{part}.parquet")
    (folder / "factors.json").write_text(json.dumps(FACTORS))
    return folder / "log"


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(large_log, "CHUNK_ROWS", 400)
    monkeypatch.setattr(large_log, "CHUNK_EPISODES", 25)
    monkeypatch.setattr(stage, "STREAMED_ROWS", 1024)


def test_a_sampled_log_gives_the_graph_of_the_whole(tmp_path, small_chunks):
    log = write(tmp_path, simulate(np.zeros(EPISODES)))
    whole = discover(load(log, factors=tmp_path / "factors.json"), batches=0)
    command = ("discover", log, "--factors", tmp_path / "factors.json", "--sample-rows", ROWS, "-o", tmp_path / "g")
    result = json.loads(because(*command, "--json", root=tmp_path).stdout)
    kept = {(e["from"], e["to"]) for e in result["edges"] if e["kept"]}
    assert kept == whole.graph.edges == {("x", "x"), ("push", "x"), ("y", "y"), ("x", "y")}
    assert result["settings"]["rest"]["reopened"] == []
    assert result["settings"]["rest"]["episodes"] == 80


def test_a_fit_reopens_and_learns_what_only_the_rest_shows(tmp_path, small_chunks):
    log = write(tmp_path, simulate(np.zeros(EPISODES)))
    data = load(log, factors=tmp_path / "factors.json", sample_rows=ROWS)
    unseen = ~data.rest.sample.large.in_sample
    write(tmp_path, simulate(unseen))
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    command = ("fit", log, "--factors", tmp_path / "factors.json", "--sample-rows", ROWS, "-o", tmp_path / "f")
    result = json.loads(because(*command, "--seeds", 1, *settings, "--json", root=tmp_path).stdout)
    assert [(e["from"], e["to"]) for e in result["rest"]["reopened"]] == [("valve", "y")]
    assert "valve" in result["graph"]["y"]
    assert result["sample"]["episodes"] == 80
    assert not (tmp_path / "f/rows").exists()
    assert "a sample: 80 of 160 episodes" in result["notes"][0]
