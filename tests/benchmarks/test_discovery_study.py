"""The study of level and power: rates, resuming, budgets, and which test gets which case."""

import pytest

from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.regression.engine import Budget
from because_rl.errors import BecauseError
from benchmarks.discovery.study import CASES, calibrate, study

pytestmark = pytest.mark.slow

QUICK = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60))


def test_level_and_power_of_the_residual_test():
    """A small version of the study; docs/discovery.md has its results."""
    null, effect = calibrate({"residual": QUICK}, ["nonlinear-1000", "effect-1000"], replications=6)["rows"]
    assert null["0.01"]["rate"] <= 1 / 6
    assert effect["0.01"]["rate"] == 1


@pytest.mark.long
def test_level_and_power_at_the_default_budget():
    cases = ["linear-5-500", "nonlinear-1000", "effect-1000"]
    linear, nonlinear, effect = calibrate({"residual": ResidualTest()}, cases, 12)["rows"]
    assert linear["0.05"]["rate"] <= 0.25
    assert nonlinear["0.05"]["rate"] <= 0.25
    assert effect["0.0001"]["rate"] == 1.0


def test_a_study_resumes_where_it_stopped(tmp_path):
    done, args = [], ({"z": FisherZ()}, ["linear-1-500"])
    calibrate(*args, replications=20, folder=tmp_path)
    resumed = calibrate(*args, replications=40, folder=tmp_path, report=lambda k, total: done.append(k))["rows"][0]
    whole = calibrate(*args, replications=40)["rows"][0]
    assert done[0] > 20
    assert resumed["0.05"] == whole["0.05"]
    assert resumed["smallest_p"] == whole["smallest_p"]


def test_a_slow_test_stops_when_its_budget_is_spent(tmp_path):
    tests, cases = {"residual": QUICK}, ["linear-1-500"]
    kept = calibrate(tests, cases, 3, folder=tmp_path)["rows"][0]
    assert kept["replications"] == 3
    assert calibrate(tests, cases, 50, folder=tmp_path, budget=1e-3)["rows"][0] == kept
    fresh = calibrate(tests, cases, 50, budget=1e-3)["rows"][0]
    assert fresh["replications"] == 1


def test_each_test_gets_the_cases_it_is_made_for():
    rows = study(["fisherz", "gtest"], ["linear-5-500", "categorical-2800"], 1)["rows"]
    assert [(row["test"], row["case"]) for row in rows] == [
        ("gtest", "categorical-2800"),
        ("fisherz", "linear-5-500"),
    ]


def test_unknown_tests_and_cases_are_refused():
    with pytest.raises(BecauseError, match="no test 'tarot'"):
        study(["tarot"], None, 1)
    with pytest.raises(BecauseError, match="no case 'easy'"):
        study(["residual"], ["easy"], 1)
    assert all(case.n >= 500 for case in CASES.values())
