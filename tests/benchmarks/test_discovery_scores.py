"""Edge scores on collected datasets: kept in files, read again, averaged over seeds."""

import pytest

from because_rl.datasets.recipe import Recipe
from because_rl.io import read_json, write_json
from benchmarks.discovery import scores as bench
from benchmarks.discovery.scores import _row, scores

pytestmark = pytest.mark.slow


def test_scores_are_kept_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "all_recipes", lambda: [Recipe("unlock", "medium", 40)])
    reports = []
    result = scores(None, [1], [1], tmp_path, lambda done, total: reports.append((done, total)))
    (row,) = result["rows"]
    assert row["dataset"] == "unlock-medium"
    assert row["f1"] > 0.6
    assert reports == [(1, 1)]
    path = tmp_path / "verdicts" / "unlock-medium-n40-seed1-v1.json"
    verdict = read_json(path)
    verdict["score_without_rare"]["f1"] = 0.25  # a second call must read this file and not compute it again
    write_json(path, verdict)
    assert scores(None, [1], [1], tmp_path)["rows"][0]["f1"] == 0.25


@pytest.mark.long
def test_the_unlock_graph_scores_well(tmp_path):
    (row,) = scores(["unlock-expert"], [1], [1], tmp_path)["rows"]
    assert row["f1"] > 0.9


def test_row_averages_seeds_and_counts_distractors():
    def verdict(seed, f1, false):
        missed = [("push", "ped1"), ("dx", "ped1")]
        score = {"f1": f1, "precision": 1.0, "recall": 0.5, "shd": 3, "missed": missed, "false": false}
        doubt = {"pairs": 8, "undetermined": [*missed[:1], ("a", "b")], "true_undetermined": missed[:1]}
        scores = {"score": score, "score_without_rare": score, "kept": score}
        return {"seed": seed, "seconds": 1.0, "true_excluded": missed[1:]} | scores | doubt

    group = [verdict(11, 0.8, [["colour", "cube_x"], ["dx", "cube_y"]]), verdict(12, 1.0, [["marker_2", "ped1"]])]
    row = _row("lift-random", 1, True, group)
    assert row["f1"] == pytest.approx(0.9)
    assert row["from_distractors"] == 2
    assert row["undetermined"] == 0.25
    assert row["true_excluded"] == 2
    assert row["recall_decided"] == pytest.approx(2 / 3)  # two of four true edges, one of which is undetermined
    assert row["low95"] < 0.9 < row["high95"]
