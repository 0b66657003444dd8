"""Theorem 1, measured: the family of MDPs, dynamic programming, the estimators and slopes, against known answers."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid.compute import TrainAndEvaluate
from because_rl.experiments.grid.runner import sweep
from because_rl.experiments.paper import theorem
from because_rl.experiments.paper.bilinear_family import (
    Family,
    Instances,
    backup,
    draw_instances,
    draw_log,
    estimate,
    evaluate,
    fit_core,
    measure_point,
    plan,
    significant_entries,
    visits,
)
from because_rl.experiments.paper.catalogue import EXPERIMENTS, write_all
from because_rl.experiments.paper.measure import Measure
from because_rl.experiments.paper.scale import TINY
from because_rl.experiments.paper.theorem import samples_needed
from because_rl.rng import stream
from because_rl.statistics import log_slope
from tests.support import REPOSITORY

SMALL = Family(states=4, actions=2, size=2, row_entries=2, horizon=3)


def instances(family=SMALL, repetitions=3):
    return draw_instances(stream(0, "test"), family, repetitions)


@pytest.mark.parametrize("family", [SMALL, Family(), Family(row_entries=10, states=20), Family(row_entries=1)])
def test_rows_sum_to_one_and_the_core_is_as_sparse_as_asked(family):
    mdp = instances(family)
    assert mdp.transitions.min() >= 0
    np.testing.assert_allclose(mdp.transitions.sum(-1), 1.0, rtol=1e-12)
    assert ((mdp.core > 0).sum((1, 2)) == family.size * family.row_entries).all()
    # the mean of the regression target is M^T phi
    target = mdp.transitions @ mdp.targets.swapaxes(1, 2)[:, None]
    np.testing.assert_allclose(target, mdp.phi @ mdp.core[:, None], atol=1e-12)


def test_more_entries_keep_those_that_were_there():
    few, many = (instances(Family(row_entries=k)).core > 0 for k in (2, 6))
    assert (many | ~few).all()


def test_a_rare_action_has_its_own_feature_and_few_rows():
    mdp = instances(Family(coverage=0.01))
    assert (mdp.phi[..., :-1, -1] == 0).all()
    assert mdp.phi[..., -1, -1].min() > 0.9
    assert mdp.behaviour[..., -1].mean() < 0.01
    np.testing.assert_allclose(mdp.transitions.sum(-1), 1.0)
    np.testing.assert_array_equal(mdp.core, instances(Family()).core)


def test_impossible_sizes_are_refused():
    for family in ({"states": 41}, {"row_entries": 11}, {"row_entries": 0}):
        with pytest.raises(BecauseError, match="multiple"):
            Family(**family)


def test_dynamic_programming_agrees_with_every_policy():
    """In an MDP with 2 states, 2 actions and 2 steps there are 16 policies; their values by sums over paths."""
    mdp = instances(Family(states=2, actions=2, size=2, horizon=2, contrast=0.7), 1)
    transitions, goal = mdp.transitions[0], mdp.goal
    best = np.zeros(2)
    for actions in itertools.product(range(2), repeat=4):
        policy = np.array(actions).reshape(2, 2)
        value = np.zeros(2)
        for start in range(2):
            for first, second in itertools.product(range(2), repeat=2):
                chance = transitions[start, policy[0, start], first]
                chance_then = transitions[first, policy[1, first], second]
                value[start] += chance * chance_then * (goal[first] + (1 - goal[first]) * goal[second])
        np.testing.assert_allclose(evaluate(mdp, policy[:, None])[0], value)
        best = np.maximum(best, value)
    np.testing.assert_allclose(plan(mdp, mdp.core).values[0][0], best)
    np.testing.assert_allclose(evaluate(mdp, plan(mdp, mdp.core).policy)[0], best)


def test_the_true_model_is_optimal_and_a_bonus_is_not():
    mdp = instances(Family(), 5)
    optimum = evaluate(mdp, plan(mdp, mdp.core).policy)
    np.testing.assert_allclose(optimum, plan(mdp, mdp.core).values[0])
    bonus = stream(0, "bonus").random(mdp.phi.shape[:3])
    assert (optimum - evaluate(mdp, plan(mdp, mdp.core, bonus).policy)).mean() > 0.01


def test_visits_add_up_to_the_value():
    """V = the sum over steps of the chance to be in (s, a), times the chance to reach the goal from there."""
    mdp = instances(Family(), 2)
    best = plan(mdp, mdp.core)
    where = visits(mdp, (np.arange(4) == best.policy[..., None]).astype(float))
    reach = backup(mdp, mdp.core, np.zeros(mdp.phi.shape[:2]))
    np.testing.assert_allclose((where * reach).sum((0, 2, 3)), best.values[0].mean(1))
    np.testing.assert_allclose(where[0].sum((1, 2)), 1.0)


def test_sums_of_a_log_have_the_law_of_single_draws():
    """Over many logs of few rows: means of phi y^T and of y^2, the variance of y, and its covariance with y^2."""
    noise, n = 0.7, 6
    mdp = draw_instances(stream(0, "one"), SMALL, 1)
    phi, core, mu, behaviour = (np.repeat(x, 40_000, 0) for x in (mdp.phi, mdp.core, mdp.mu, mdp.behaviour))
    many = Instances(phi, core, mu, mdp.goal, behaviour, mdp.horizon)
    log = draw_log(stream(0, "many"), many, n, noise)
    where = visits(mdp, np.broadcast_to(mdp.behaviour, (3, *mdp.behaviour.shape))).sum(0)[0]
    where /= where.sum()
    assert (log.counts.sum((1, 2)) == n).all()
    np.testing.assert_allclose(log.counts.mean(0), n * where, atol=0.05)
    mean = np.einsum("sa,sad,sae->de", where, mdp.phi[0], mdp.phi[0] @ mdp.core[0])
    np.testing.assert_allclose(log.cross.mean(0), n * mean, atol=0.06)
    first, second, third = (
        np.einsum("sa,sat,dt->d", where, mdp.transitions[0], mdp.targets[0] ** power) for power in (1, 2, 3)
    )
    np.testing.assert_allclose(log.squares.mean(0), n * (second + noise**2), rtol=0.02)
    # phi adds up to 1, so the sum of phi y^T over features is the sum of y: its variance, and its covariance with y^2
    total = log.cross.sum(1)
    np.testing.assert_allclose(total.var(0), n * (second - first**2 + noise**2), rtol=0.03)
    covariance = ((total - total.mean(0)) * log.squares).mean(0)
    expected = n * (third + 3 * noise**2 * first - first * (second + noise**2))
    np.testing.assert_allclose(covariance, expected, rtol=0.1, atol=0.05)


def test_least_squares_finds_the_core_and_tests_its_support():
    mdp = instances(Family(), 4)
    log = draw_log(stream(0, "log"), mdp, 10_000_000, 1.0)
    assert ((significant_entries(log) != (mdp.core > 0)).sum((1, 2)) <= 4).all()  # level .01 in 80 entries
    for name in ("because", "true mask", "dense", "normalised"):
        fit, model = estimate(name, mdp, log)
        np.testing.assert_allclose(fit.core, mdp.core, atol=0.02)
        np.testing.assert_allclose(fit.deviation.mean(), np.sqrt(1.0 + 0.08), rtol=0.02)
        sums = np.einsum("rsad,rde->rsa", model.phi, fit.core)
        assert np.allclose(sums, 1.0) == (name == "normalised")
    mask = mdp.core > 0
    fit = fit_core(log, mask)
    assert (fit.core[~mask] == 0).all()
    # the normal equations of each column on its own rows
    residual = log.cross - log.gram @ fit.core
    assert np.abs(residual[mask]).max() < 1e-6 * log.n


def test_errors_fall_with_samples_and_nothing_is_better_than_the_optimum():
    few, many = (measure_point(Family(), n, 10) for n in (1000, 1_000_000))
    for name, point in many.items():
        assert point["gap"].min() > -1e-12
        assert point["greedy_gap"].mean() < few[name]["greedy_gap"].mean() / 5
        assert point["bellman_error"].mean() < few[name]["bellman_error"].mean() / 5
        assert (point["gap"] < point["bound"]).all()
    assert many["because"]["missed"].max() == 0


def test_a_known_slope_is_recovered():
    rng = np.random.default_rng(0)
    x = np.logspace(2, 6, 9)
    slope = log_slope(x, x[:, None] ** -0.5 * rng.lognormal(0, 0.5, (9, 60)))
    assert slope.low < -0.5 < slope.high
    assert slope.high - slope.low < 0.1
    # of two families, one of which is worse for few samples and the other for many
    two = log_slope([1, 10, 100, 1000], [[[1.0], [0.1]], [[0.1], [0.1]], [[0.01], [0.1]], [[0.001], [0.1]]])
    assert two.value == pytest.approx(np.polyfit([0, 1, 2, 3], [0, -1, -1, -1], 1)[0])
    assert np.isnan(log_slope([1, 10], [[0.0, 0.0], [1.0, 1.0]]).value)


def test_samples_needed_by_hand():
    gaps = np.array([[0.4, 0.4], [0.2, 0.2], [0.4, 0.4], [0.1, 0.1]])
    assert samples_needed([1, 10, 100, 1000], gaps, 0.2) == pytest.approx(100 * 10**0.5)  # from the last time on
    assert np.isnan(samples_needed([1, 10, 100, 1000], gaps, 0.05))
    assert np.isnan(samples_needed([1, 10, 100, 1000], gaps, 0.5))


def test_the_docs_quote_intervals_that_the_study_has():
    quoted = re.findall(r"-?\d\.\d\d \[[^]]*\]", (REPOSITORY / "docs/theory.md").read_text())
    results = (REPOSITORY / "results/paper/theorem/theorem.md").read_text()
    assert len(quoted) > 40
    assert [interval for interval in quoted if interval not in results] == []


def test_a_tiny_study_from_nothing_to_files(tmp_path, monkeypatch):
    ends = {axis: sweep._replace(values=sweep.values[-2:]) for axis, sweep in theorem.SWEEPS.items()}
    monkeypatch.setattr(theorem, "SWEEPS", ends)
    monkeypatch.setattr(theorem, "CONTRASTS", (1.0, 0.5))
    scale = replace(TINY, theorem_samples=(100, 10_000), theorem_repetitions=3)
    experiment = EXPERIMENTS["theorem"]
    jobs = experiment.jobs(scale)
    assert len({job.key for job in jobs}) == len(jobs) == 1 + 7 * 2 + 1
    assert sweep(jobs, Measure(TrainAndEvaluate(), tmp_path, {}), tmp_path, workers=0).done == len(jobs)
    (made,) = write_all(["theorem"], scale, tmp_path, tmp_path / "paper")
    assert made["missing"] == 0
    folder = tmp_path / "paper" / "theorem"
    names = {"theorem.csv", "theorem.md", "theorem.svg", "theorem.png", "theorem.json", "slopes.csv", "complexity.csv"}
    assert {file.name for file in folder.iterdir()} == names
    assert "Slopes of the suboptimality" in (folder / "theorem.md").read_text()
    assert experiment.make(scale, jobs, {}).rows == []
