"""The cost of a mask: data of Lift's shape, a small measurement, and the figure."""

import os

import numpy as np
import pytest

from because_rl.discovery.discover import make_test
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.regression.engine import Budget
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.report.graph_figure import save
from benchmarks.discovery import cost as bench
from benchmarks.discovery.cost import EPISODE, LIFT, cost, draw_cost, growth, lift_shaped, measure, times_faster

pytestmark = pytest.mark.slow


def test_the_shape_is_that_of_lift():
    lift = world_class("lift").make_factors(1)
    for ours, theirs in ((LIFT.state, lift.state), (LIFT.action, lift.action)):
        assert [(f.name, f.width, f.type) for f in ours] == [(f.name, f.width, f.type) for f in theirs]
    variables, edges = lift_shaped(1010)
    assert len(variables) == 1010
    assert (np.bincount(variables.episode)[:-1] == EPISODE).all()
    assert sum(x.shape[1] for x in variables.x) == 37
    assert ("eef_x", "rel_x") in edges
    again, _ = lift_shaped(1010)
    assert all((a == b).all() for a, b in zip(variables.y, again.y, strict=True))


def test_rows_of_an_episode_follow_one_another():
    variables, _ = lift_shaped(100)
    for x, y in zip(variables.x, variables.y, strict=False):
        inside = np.flatnonzero(np.diff(variables.episode) == 0)
        assert (x[inside + 1] == y[inside]).all()


def test_strong_linear_effects_are_true_edges():
    variables, edges = lift_shaped(3000)
    names, targets = ([f.name for f in part] for part in (variables.inputs, variables.targets))
    effect = make_test("fisherz")(variables).effect
    strong = {(names[i], targets[j]) for i, j in np.argwhere(effect > 0.3)}
    assert strong
    assert strong <= edges


def test_a_few_pairs_of_fcit_are_scaled_to_all():
    (row,) = measure("fcit", 500, 1, 0)
    assert row["pairs"] == 19  # those of one target, of which there are 15
    assert row["mask_cpu_seconds"] == pytest.approx(15 * row["cpu_seconds"], rel=0.05)
    assert row["peak_gb"] > 0.05  # includes the memory of this test process


def cost_row(test, n, seconds, run="only"):
    return {"test": test, "n": n, "run": run, "wall_seconds": seconds} | dict.fromkeys(
        ("mask_seconds", "mask_cpu_seconds"), seconds
    )


def test_costs_are_compared_and_drawn(tmp_path):
    rows = [cost_row("residual", 2000, 10.0), cost_row("residual", 20000, 50.0)]
    original = cost_row("fcit (original)", 2000, 900.0)
    assert times_faster([*rows, original]) == [{"n": 2000, "than": "fcit (original)", "wall": 90.0, "cpu": 90.0}]
    assert growth([*rows, original]) == [{"from": 2000, "to": 20000, "wall": 0.7, "cpu": 0.7}]
    on_gpu = [cost_row("residual", 2000, 30.0, "first, with compilation"), cost_row("residual", 2000, 1.0, "second")]
    assert times_faster([*on_gpu, original])[0]["wall"] == 900.0
    for suffix in ("svg", "png"):
        save(draw_cost([*rows, original]), tmp_path / f"cost.{suffix}")
        assert (tmp_path / f"cost.{suffix}").stat().st_size > 1000


@pytest.mark.slow
def test_a_measurement_covers_all_pairs(monkeypatch):
    tiny = Budget(centres=20, learn_rows=200, learn_centres=20, probe_rows=200, probe_centres=20)
    monkeypatch.setattr(bench, "ResidualTest", lambda: ResidualTest(budget=tiny, confounder=False))
    (row,) = measure("residual", 500, 0, 0)
    assert row["pairs"] == 285
    assert row["mask_cpu_seconds"] == pytest.approx(row["cpu_seconds"], abs=0.1)


def process_of_measurement(test, n, pairs, seed):
    """Stands in for `measure`."""
    return [cost_row(test, n, 1.0) | {"process": os.getpid()}]


@pytest.mark.long
def test_every_measurement_has_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(bench, "measure", process_of_measurement)
    reports = []
    result = cost([500], pairs=0, report=lambda done, total: reports.append((done, total)))
    (row,) = result["rows"]
    assert (row["test"], row["n"]) == ("residual", 500)
    assert row["process"] != os.getpid()
    assert result["times_faster"] == result["growth"] == []
    assert result["provenance"]
    assert reports == [(0, 1), (1, 1)]


@pytest.mark.long
def test_the_benchmark_measures_a_whole_mask():
    (row,) = cost([500], pairs=0)["rows"]
    assert row["pairs"] == 285
    assert row["peak_gb"] < 3


def test_too_few_rows_are_refused():
    with pytest.raises(BecauseError, match="Got 30 rows"):
        cost([30])
