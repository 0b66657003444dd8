"""Scores of verdicts on systems with known graphs: formulas, files, refusals, and the other methods if installed."""

from importlib.util import find_spec

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph
from because_rl.io import read_json, write_json
from because_rl.rng import stream
from because_rl.transitions import Transitions
from benchmarks.discovery import graph_peers
from benchmarks.discovery import recovery as bench
from benchmarks.discovery.graph_peers import PEERS, by_factor
from benchmarks.discovery.recovery import make_system, recovery, score_verdicts

TRUTH = Graph.from_parents(("a", "b", "act"), {"a": ("a", "b", "act"), "b": ("b", "act")})


def test_undetermined_edges_count_for_recall_and_not_for_precision():
    verdicts = {"established": [("b", "a"), ("a", "b")], "undetermined": [("act", "b")], "forced": [("a", "a")]}
    score = score_verdicts(verdicts, TRUTH)
    assert score["precision"] == 0.5
    assert score["recall"] == pytest.approx(2 / 3)
    assert score["f1"] == pytest.approx(2 / (2 + 3 / 2))
    assert score["recall_established"] == pytest.approx(1 / 3)
    assert (score["undetermined"], score["true"], score["possible"]) == (1, 3, 4)
    assert (score["false_established"], score["missed"]) == ([("a", "b")], [("act", "a")])


def test_without_any_claim_precision_is_one_and_recall_zero():
    score = score_verdicts({"excluded": [("b", "a")]}, TRUTH)
    assert (score["precision"], score["recall"], score["f1"]) == (1.0, 0.0, 0.0)


def test_cells_are_kept_and_read_again(tmp_path):
    choice = ["linear-3x1"], ["random"], ["25x20"], [0, 1], ["because"], tmp_path
    reports = []
    result = recovery(*choice, report=lambda done, total: reports.append((done, total)))
    (row,) = result["rows"]
    assert row["precision"] > 0.5
    assert row["recall"] > 0.5
    assert reports == [(1, 2), (2, 2)]
    assert result["provenance"]["config"]["seeds"] == [0, 1]
    path = tmp_path / "linear-3x1--random--25x20--seed0--because.json"
    cell = read_json(path)
    assert (cell["n"], cell["episodes"]) == (500, 25)
    write_json(path, cell | {"precision": -1.0})  # a second call must read this file and not compute it again
    assert recovery(*choice)["cells"][0]["precision"] == -1


def test_a_refusal_is_kept_as_failed(tmp_path):
    """The residual test needs 20 episodes."""
    (row,) = recovery(["linear-3x1"], ["random"], ["5x50"], [0], ["because"], tmp_path)["rows"]
    assert row["failed"] == 1
    assert "f1" not in row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: ["tarot"]}, "no system 'tarot'"),
        ({1: ["sleepy"]}, "no behaviour 'sleepy'"),
        ({2: ["many"]}, "size 'many'"),
        ({4: ["crystal"]}, "no method 'crystal'"),
    ],
)
def test_unknown_names_are_refused_before_the_first_cell(tmp_path, change, message):
    choice = {0: ["linear-3x1"], 1: ["random"], 2: ["25x20"], 3: [0], 4: ["because"]} | change
    with pytest.raises(BecauseError, match=message):
        recovery(*choice.values(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(PEERS, "pcmci", (PEERS["pcmci"][0], "no_such_module", "tigramite"))
    with pytest.raises(BecauseError, match=r"^pcmci needs tigramite.*graph_peers.py"):
        recovery(["linear-3x1"], ["random"], ["25x20"], [0], ["pcmci"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_methods_share_rows_and_a_broken_one_stops_no_other(tmp_path, monkeypatch):
    rows = []

    def reports_nothing(data, seed):
        rows.append(data.sha256())
        return np.zeros((4, 3), bool)

    def breaks(data, seed):
        rows.append(data.sha256())
        raise ValueError("singular")

    monkeypatch.setattr(bench, "require", {"lasso": reports_nothing, "pcmci": breaks}.__getitem__)
    result = recovery(["linear-3x1"], ["random"], ["25x20"], [0], ["lasso", "pcmci"], tmp_path)
    assert [cell.get("failed") for cell in result["cells"]] == [None, "ValueError: singular"]
    assert result["rows"][0]["recall"] == 0
    assert rows[0] == rows[1]


def test_columns_of_a_factor_count_together():
    factors = FactorSpec(pack(("a", 2, "continuous"), ("b", 1, "continuous")), pack(("act", 1, "continuous")))
    data = Transitions.from_arrays(np.ones((4, 3)), np.ones((4, 1)), np.ones((4, 3)), np.zeros(4), factors=factors)
    columns = np.zeros((4, 3), bool)
    columns[1, 2] = columns[3, 0] = True  # a[1] -> b, act -> a[0]
    np.testing.assert_array_equal(by_factor(data, columns), [[False, True], [False, False], [True, False]])


@pytest.mark.parametrize("name", PEERS)
def test_other_methods_recover_a_linear_system(name):
    module = PEERS[name][1].split(".")[0]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    system = make_system("linear-4x1")
    data = system.transitions(stream(0, "peers"), "random", 2000, 50)
    edges = graph_peers.require(name)(data, 0)
    assert edges.shape == (5, 4)
    truth, other = system.graph.matrix, ~np.eye(5, 4, dtype=bool)
    assert (edges == truth)[other].mean() > 0.8
    assert edges[other].any()
