"""The calibration of worth: worlds whose truth is right, and a summary that counts right."""

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.evaluation.worth.estimate import BETTER, UNKNOWN
from benchmarks.worth.run import calibrate, summarise
from benchmarks.worth.tabular import random_world
from benchmarks.worth.unlock import probabilities, simulate


def test_the_exact_value_is_the_mean_return_of_many_episodes():
    world = random_world(2, states=6, actions=2, horizon=4)
    log = world.draw_log(20_000, np.random.default_rng(0)).log
    assert log.returns.mean() == pytest.approx(world.value(world.behaviour), abs=0.01)
    assert set(log.reward) == {0.0, 1.0}
    assert log.step.max() == 3
    values = [world.value(world.policies[name]) for name in ("100% best", "75% best", "behaviour", "75% worst")]
    assert values == sorted(values, reverse=True)


def test_policies_of_unlock_have_probabilities_and_the_worth_of_their_noise():
    state = np.zeros((1, 110), np.float32)
    state[0, [7, 36 + 9, 72 + 30, 108]] = 1  # the key is two cells to the right
    np.testing.assert_allclose(probabilities(state, 0.0, False), [[0, 0, 0, 1, 0, 0]])
    np.testing.assert_allclose(probabilities(state, 0.6, False).sum(), 1)
    assert simulate(0.0, False, episodes=50) == 1.0
    assert simulate(0.5, True, episodes=50) < 0.1


def row(value, low, high, verdict):
    estimate = {"worth": [value, low, high], "gain": [value - 0.5, low - 0.5, high - 0.5]}
    return {"by": "FQE", "estimators": {"FQE": estimate}, "effective_sample": 1.0, "verdict": verdict}


def test_a_summary_counts_coverage_ranks_regret_and_false_verdicts():
    truth = {"behaviour": 0.5, "good": 0.8, "bad": 0.2}
    same = {"behaviour": row(0.5, 0.4, 0.6, UNKNOWN)}
    right = {**same, "good": row(0.7, 0.6, 0.9, BETTER), "bad": row(0.1, 0.0, 0.3, UNKNOWN)}
    wrong = {**same, "good": row(0.6, 0.5, 0.7, BETTER), "bad": row(0.9, 0.8, 1.0, BETTER)}
    logs = [{"rows": 10, "behaviour": [0.5, 0.4, 0.6], "policies": policies} for policies in (right, wrong)]
    out = summarise(truth, logs)
    assert out["coverage"] == pytest.approx(4 / 6)
    assert out["false_better"] == 0.5
    assert out["regret_at_1"] == pytest.approx(0.3)
    assert out["rank_correlation"] == pytest.approx((1.0 - 0.5) / 2)
    assert {r["policy"]: r["coverage"] for r in out["rows"]} == {"behaviour": 1.0, "good": 0.5, "bad": 0.5}


def test_logs_that_are_there_are_not_appraised_again(tmp_path, monkeypatch):
    first = calibrate("random", tmp_path, 2)
    monkeypatch.setattr("benchmarks.worth.run.appraise", None)
    assert calibrate("random", tmp_path, 2)["rows"] == first["rows"]
    assert calibrate("random", tmp_path, 1, first=501)["rows"] != first["rows"]
    assert len(list((tmp_path / "random-100").iterdir())) == 2
    with pytest.raises(BecauseError, match="no world 'moon'"):
        calibrate("moon", tmp_path, 1)
    with pytest.raises(BecauseError, match="dynamics"):
        calibrate("icu-sepsis", tmp_path, 1)
