"""What a mask costs: data of Lift's shape, a tiny measurement, its picture; and one BLAS thread per thread of ours."""

import numpy as np
import pytest

from because_rl.discovery.discover import make_test
from because_rl.discovery.regression.threads import thread_map
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.report.graph_figure import save
from benchmarks.discovery.cost import EPISODE, LIFT, cost, draw_cost, growth, lift_shaped, measure, times_faster


def test_the_shape_is_that_of_lift():
    real = world_class("lift").make_factors(1)
    for mine, theirs in ((LIFT.state, real.state), (LIFT.action, real.action)):
        assert [(f.name, f.width, f.type) for f in mine] == [(f.name, f.width, f.type) for f in theirs]
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


def test_a_linear_look_finds_strong_true_edges():
    variables, edges = lift_shaped(3000)
    names, targets = ([f.name for f in part] for part in (variables.inputs, variables.targets))
    effect = make_test("fisherz")(variables).effect
    found = {(names[i], targets[j]) for i, j in np.argwhere(effect > 0.3)}
    assert found
    assert found <= edges


def test_a_few_pairs_of_fcit_are_scaled_to_all():
    (row,) = measure("fcit", 500, 1, 0)
    assert row["pairs"] == 19  # those of one target, of which there are 15
    assert row["mask_cpu_seconds"] == pytest.approx(15 * row["cpu_seconds"], rel=0.05)
    assert row["peak_gb"] > 0.05  # and no less than what starts it had, which here is a large test process


def row(test, n, seconds, run="only"):
    return {"test": test, "n": n, "run": run, "wall_seconds": seconds} | dict.fromkeys(
        ("mask_seconds", "mask_cpu_seconds"), seconds
    )


def test_costs_are_compared_and_drawn(tmp_path):
    rows = [row("residual", 2000, 10.0), row("residual", 20000, 50.0), row("fcit (original)", 2000, 900.0)]
    assert times_faster(rows) == [{"n": 2000, "than": "fcit (original)", "wall": 90.0, "cpu": 90.0}]
    assert growth(rows) == [{"from": 2000, "to": 20000, "wall": 0.7, "cpu": 0.7}]
    on_gpu = [row("residual", 2000, 30.0, "first, with compilation"), row("residual", 2000, 1.0, "second")]
    assert times_faster([*on_gpu, rows[-1]])[0]["wall"] == 900.0
    for suffix in ("svg", "png"):
        save(draw_cost(rows), tmp_path / f"cost.{suffix}")
        assert (tmp_path / f"cost.{suffix}").stat().st_size > 1000


@pytest.mark.slow
def test_the_bench_measures_a_whole_mask():
    result = cost([500], pairs=0)
    (only,) = result["rows"]
    assert only["pairs"] == 285
    assert only["peak_gb"] < 3
    assert result["times_faster"] == result["growth"] == []


def test_too_few_rows_are_refused():
    with pytest.raises(BecauseError, match="Got 30 rows"):
        cost([30])


def test_threads_give_the_same_answers_in_order():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((50, 50)) for _ in range(8)]
    assert all((a == b @ b).all() for a, b in zip(thread_map(lambda a: a @ a, parts), parts, strict=True))
