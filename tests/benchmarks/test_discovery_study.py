"""The residual test on data whose answer is known, and the study that measures it at length."""

import numpy as np
import pytest

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.discover import choose_test, discover
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.graph import score
from benchmarks.discovery.study import CASES, calibrate, study


def test_strong_effects_are_found_and_nulls_mostly_are_not():
    rows = calibrate({"residual": ResidualTest()}, ["linear-5-500", "effect-1000"], 12)["rows"]
    null, effect = rows
    assert null["0.05"]["rate"] <= 0.25
    assert effect["0.0001"]["rate"] == 1.0


def test_a_study_goes_on_where_it_stopped(tmp_path):
    test = {"residual": ResidualTest()}
    whole = calibrate(test, ["linear-1-500"], 6)["rows"][0]
    calibrate(test, ["linear-1-500"], 2, folder=tmp_path)
    resumed = calibrate(test, ["linear-1-500"], 6, folder=tmp_path)["rows"][0]
    assert resumed["smallest_p"] == whole["smallest_p"]


def test_a_slow_test_stops_when_its_budget_is_spent(tmp_path):
    kept = calibrate({"residual": ResidualTest()}, ["linear-1-500"], 4, folder=tmp_path)["rows"][0]
    assert kept["replications"] == 4
    row = calibrate({"residual": ResidualTest()}, ["linear-1-500"], 50, folder=tmp_path, budget=1e-3)["rows"][0]
    assert row == kept
    fresh = calibrate({"residual": ResidualTest()}, ["linear-1-500"], 50, budget=1e-3)["rows"][0]
    assert fresh["replications"] == 1


def test_a_study_gives_each_test_the_cases_it_is_made_for():
    rows = study(["fisherz", "gtest"], ["linear-5-500", "categorical-2800"], 2)["rows"]
    assert [(row["test"], row["case"]) for row in rows] == [
        ("gtest", "categorical-2800"),
        ("fisherz", "linear-5-500"),
    ]


def test_a_study_says_what_it_does_not_know():
    with pytest.raises(BecauseError, match="no test 'tarot'"):
        study(["tarot"], None, 1)
    with pytest.raises(BecauseError, match="no case 'easy'"):
        study(["residual"], ["easy"], 1)
    assert all(case.n >= 500 for case in CASES.values())


@pytest.mark.slow
def test_the_crash_graph_is_found_despite_the_hidden_slope():
    recipe = Recipe.parse("crash-medium", 400)
    world = world_class("crash")
    episodes, factors = rollout(recipe, range(400)), world.make_factors(1)
    state, after = (np.concatenate([e["state"][cut] for e in episodes]) for cut in (slice(None, -1), slice(1, None)))
    action = np.concatenate([e["action"] for e in episodes])
    number = np.repeat(np.arange(400), [len(e["action"]) for e in episodes])
    assert choose_test(factors) == "residual"
    mask = discover(factors, state, action, after, number).mask
    found = score(mask.graph, world.make_true_graph(1), count_rare=False)
    bodies = {"ego", "car", "ped1", "ped2"}
    assert not [edge for edge in found.false if set(edge) <= bodies], found.false
    assert found.f1 >= 0.85
