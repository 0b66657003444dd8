"""Edge scores as a command: resumable, the same for any number of workers, and able to be bad."""

import pytest

from because_rl.io import read_json, write_json
from benchmarks.discovery.scores import _row, scores


@pytest.mark.slow
def test_scores_are_kept_and_taken_up_again(tmp_path):
    seen = []
    result = scores(["unlock-expert"], [1], [1], tmp_path, lambda done, total: seen.append((done, total)))
    (row,) = result["rows"]
    assert row["dataset"] == "unlock-expert"
    assert row["f1"] > 0.9
    assert seen == [(1, 1)]
    verdict = tmp_path / "verdicts" / "unlock-expert-seed1-v0.json"
    written = read_json(verdict)
    written["score_without_rare"]["f1"] = 0.25  # a second call must take what is there, not compute it again
    write_json(verdict, written)
    assert scores(["unlock-expert"], [1], [1], tmp_path)["rows"][0]["f1"] == 0.25


def test_row_averages_seeds_and_counts_distractors():
    def verdict(seed, f1, false):
        score = {"f1": f1, "precision": 1.0, "recall": 0.5, "shd": 3, "missed": [], "false": false}
        return {"seed": seed, "seconds": 1.0, "score": score, "score_without_rare": score}

    group = [verdict(11, 0.8, [["colour", "cube_x"], ["dx", "cube_y"]]), verdict(12, 1.0, [["marker_2", "ped1"]])]
    row = _row("lift-random", 1, True, group)
    assert row["f1"] == pytest.approx(0.9)
    assert row["from_distractors"] == 2
    assert row["low95"] < 0.9 < row["high95"]
