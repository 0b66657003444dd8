"""Evaluating a run: in its world, by split and by round."""

import json

import pytest

from because_rl.errors import BecauseError
from because_rl.runs import evaluate
from because_rl.runs.evaluate import evaluate_run, final_and_best


@pytest.mark.slow
def test_run_is_evaluated_in_its_world(home):
    result = evaluate_run(home / "run", "O", 5)["O"]
    assert (len(result["per_seed"]), result["episodes"], result["split"]) == (2, 5, "O")
    kept = json.loads((home / "run" / "evaluation-O.json").read_text())
    assert kept["per_seed"] == result["per_seed"]
    assert "revision" in kept["provenance"]
    assert result["final"] == {name: kept[name] for name in result["final"]}
    assert result["best"]["per_seed"] == result["per_seed"]  # there is only one round
    with pytest.raises(BecauseError, match="Got split 'X'"):
        evaluate_run(home / "run", "X", 5)


@pytest.mark.slow
def test_splits_in_processes_give_the_same_outcomes(home, monkeypatch):
    together = evaluate_run(home / "run", "IO", 3)
    progress = []
    monkeypatch.setattr(evaluate, "_in_processes", lambda world, splits: True)
    parallel = evaluate_run(home / "run", "IO", 3, report=lambda done, total: progress.append(done / total))
    assert list(parallel) == ["I", "O"]
    for split in "IO":
        assert parallel[split]["outcomes"] == together[split]["outcomes"]
    assert progress == sorted(progress)
    assert progress[-1] == 1
    assert len(progress) > 6


def test_best_round_is_chosen_for_each_seed():
    result = final_and_best([{"per_seed": rates, "success": sum(rates) / 2} for rates in ([0.2, 0.9], [0.6, 0.4])])
    assert result["rounds"] == [0.55, 0.5]
    assert (result["final"]["per_seed"], result["final"]["success"]) == ([0.6, 0.4], 0.5)
    assert (result["best"]["per_seed"], result["best"]["success"]) == ([0.6, 0.9], 0.75)
    assert result["best"]["round"] == [2, 1]
