"""Discovery as a part of runs: what a stop leaves behind, that it continues, and what is said about the rows."""

import json

import numpy as np
import pytest

from because_rl.algorithms.because import BecauseConfig, estimate_mask
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.factors import FactorSpec, pack
from because_rl.io import read_json
from because_rl.records import read_record
from because_rl.runs import discover as module
from because_rl.runs.fit_page import rows_used
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.support import because

SPEC = FactorSpec(pack(("x", 1, "continuous"), ("v", 1, "continuous")), pack(("push", 1, "continuous")))


class Stopped(Exception):
    pass


def stop_after_one(done, total):
    if done == 1:
        raise Stopped


@pytest.fixture
def data():
    """x' = x + v, v' = v + push, in 20 episodes."""
    rng = np.random.default_rng(0)
    state, push = rng.normal(size=(400, 2)), rng.normal(size=(400, 1))
    after = state + np.column_stack([state[:, 1], push[:, 0]]) + 0.1 * rng.normal(size=(400, 2))
    return Transitions.from_arrays(state, push, after, np.arange(400) // 10, factors=SPEC, name="carts")


def test_discovery_of_a_dataset_continues_and_leaves_only_the_graph(data, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_encoded", lambda *arguments: (data, None))
    monkeypatch.setattr(module, "save", lambda *arguments: None)
    arguments = "carts", None, None, tmp_path
    with pytest.raises(Stopped):
        module.discover_dataset(*arguments, stop_after_one, batches=0)
    assert list((tmp_path / "unfinished").iterdir())
    assert not (tmp_path / "graph.json").exists()
    calls = []
    test = ResidualTest(max_rows=200)
    result = module.discover_dataset(*arguments, lambda *call: calls.append(call), test=test, batches=0)
    assert calls == [(0, 2), (1, 2), (2, 2)]
    assert not (tmp_path / "unfinished").exists()
    settings = read_json(tmp_path / "graph.json")["settings"]
    assert (settings["n"], settings["rows_used"]) == (400, 200)
    assert rows_used(result["settings"]) == ", from 200 of 400 rows in whole episodes"


def test_the_mask_of_a_run_is_reported_by_target_and_continues(data, tmp_path):
    config, calls = BecauseConfig(batches=0), []
    with pytest.raises(Stopped):
        estimate_mask(config, data, Run([0], tmp_path, lambda stage, done, total, metrics: stop_after_one(done, total)))
    kept = tmp_path / "unfinished-mask"
    assert list(kept.iterdir())
    mask, possible, *_ = estimate_mask(config, data, Run([0], tmp_path, lambda *call: calls.append(call)))
    assert calls == [("mask", done, 2, {}) for done in range(3)]
    assert not kept.exists()
    np.testing.assert_array_equal(mask, estimate_mask(config, data, Run([0])).mask)
    assert (possible >= mask).all()


@pytest.fixture
def switching():
    """x' = .7 x + v in the first twelve steps of an episode, .7 x + push afterwards; 40 episodes."""
    rng = np.random.default_rng(0)
    state, step = rng.normal(size=(1200, 2)), np.arange(1200) % 30
    push = rng.normal(size=(1200, 1))
    driver = np.where(step < 12, state[:, 1], push[:, 0])
    after = np.column_stack([0.7 * state[:, 0] + driver, push[:, 0]]) + 0.2 * rng.normal(size=(1200, 2))
    return Transitions.from_arrays(state, push, after, np.arange(1200) // 30, factors=SPEC, name="carts")


def test_each_regime_has_a_folder_and_a_line(switching, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_encoded", lambda *arguments, **roles: (switching, None))
    monkeypatch.setattr(module, "save", lambda *arguments: None)
    command = "discover", "carts", "-o", tmp_path, "--test", "fisherz", "--regimes"
    text = because(*command, "auto").stdout
    assert "Regime 1: 7" in text
    assert "Regime 2: 4" in text
    assert "│ bound   │ 1 " in text
    assert "│ stable  │ 1, 2 " in text
    record = read_record(tmp_path / "regimes.json", "file of regimes")
    assert [entry["regime"] for entry in record["regimes"]] == [1, 2]
    assert [score["regimes"] for score in record["scores"]] == [1, 2, 3]
    for k, cause in ((1, "push"), (2, "v")):
        graph = read_record(tmp_path / f"regime-{k}" / "graph.json", "graph")
        edges = {(edge["from"], edge["to"]) for edge in graph["edges"] if edge["kept"]}
        assert {(name, "x") for name in ("v", "push")} & edges == {(cause, "x")}
    assert not (tmp_path / "graph.json").exists()
    assert not (tmp_path / "unfinished").exists()
    assert len(json.loads(because(*command, "2", "--json").stdout)["graphs"]) == 2
    assert "Got regimes '9'" in because(*command, "9", code=2).stderr


def test_one_regime_is_the_graph_without_the_option(data, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_encoded", lambda *arguments, **roles: (data, None))
    monkeypatch.setattr(module, "save", lambda *arguments: None)
    text = because("discover", "carts", "-o", tmp_path / "auto", "--test", "fisherz", "--regimes", "auto").stdout
    assert "One regime" in text
    assert "regimes" not in because("discover", "carts", "-o", tmp_path / "plain", "--test", "fisherz").stdout
    auto, plain = (read_json(tmp_path / name / "graph.json") for name in ("auto", "plain"))
    assert auto["edges"] == plain["edges"]
    assert not (tmp_path / "plain" / "regimes.json").exists()
    assert len(read_record(tmp_path / "auto" / "regimes.json", "file of regimes")["regimes"]) == 1


def test_rows_are_mentioned_only_where_not_all_are_used():
    assert rows_used({"n": 5, "rows_used": 5}) == rows_used({"n": 5}) == rows_used({}) == ""
