"""The parts of the residual test, each against a simple reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from because_rl.discovery.regression import gpu_engine, kernel_ridge
from because_rl.discovery.regression.covariance import (
    Basis,
    combine,
    covariance_test,
    detectable_effect,
    largest_effect,
    projected_test,
)
from because_rl.discovery.regression.engine import Budget, Engine, draw_rows
from because_rl.discovery.regression.gpu_engine import AcceleratedEngine
from because_rl.discovery.regression.hidden_cause import has_hidden_cause
from because_rl.discovery.regression.kernel_ridge import Centres, Rows, cross_fit, kernel, root_of
from because_rl.discovery.regression.margins import prepare
from because_rl.discovery.regression.redundancy import relatives, variation
from because_rl.discovery.regression.threads import thread_map
from because_rl.discovery.variables import Variables
from because_rl.factors import FactorSpec, pack


# Regression -------------------------------------------------------------------------------------------------
def test_kernel_against_loops():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    naive = [[1 / (1 + ((u - v) ** 2).sum()) for v in b] for u in a]
    np.testing.assert_allclose(kernel(a, b), naive, rtol=1e-12)


def test_a_fold_is_fitted_without_its_rows_and_centres():
    rng = np.random.default_rng(0)
    u, y = [rng.normal(size=(40, 2)) for _ in range(3)], [rng.normal(size=(40, 1)) for _ in range(3)]
    fold = np.arange(30) % 3
    centres = Centres(np.stack([u[f][k] for k, f in enumerate(fold)]), (fold != np.arange(3)[:, None]).astype(float))
    args = np.ones(2), centres, np.eye(2), np.eye(2), 1e-3
    before = cross_fit(Rows(u), y, *args)[1]
    y[0] = y[0] + 100
    moved = Centres(np.where((fold == 0)[:, None], 9.0, centres.points), centres.free)
    after = cross_fit(Rows(u), y, np.ones(2), moved, *args[2:])[1]
    np.testing.assert_allclose(after[0], before[0], atol=1e-8)
    assert abs(after[1] - before[1]).max() > 1


def test_metric_of_a_dropped_column_passes_to_its_copy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    x[:, 2] = x[:, 0]  # only column 0 matters, and column 2 is a copy
    root = root_of(np.diag([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0]), np.cov(x.T))
    metric = root @ root.T
    assert metric[2, 2] > 0.9 * np.trace(metric)
    assert metric[0, 0] == pytest.approx(0, abs=1e-12)


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_drawn_rows_are_different_and_their_probabilities_valid(size, seed):
    rng = np.random.default_rng(seed)
    chance = rng.random(40) ** 4 + 1e-6
    rows, inclusion = draw_rows(rng, chance, size)
    assert len(set(rows)) == len(rows) == size
    assert ((inclusion > 0) & (inclusion <= 1 + 1e-12)).all()


def test_weighted_rows_are_counted_without_bias():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    engine = Engine(x, [slice(0, 1000), slice(1000, 2000)], Budget(centres=40, learn_rows=500), seed=0)
    y = (x[:, :1] > 2).astype(float)
    problem = engine.problem("rare", y, np.ones(2))
    assert sum(map(len, problem.sample)) == 500
    total = sum((w**2).sum() for w in problem.weight)
    assert total == pytest.approx(2000, rel=0.1)
    assert np.concatenate([y[s] for s in problem.sample]).sum() > 0.9 * y.sum()


def test_threads_give_the_same_answers_in_order():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((50, 50)) for _ in range(8)]
    assert all((a == b @ b).all() for a, b in zip(thread_map(lambda a: a @ a, parts), parts, strict=True))


PROGRAMS = ("_learn", "_errors", "_fit", "_predict_substituted", "_predict")


def with_nans(function):
    return lambda *arguments: jax.tree.map(lambda leaf: leaf * jnp.nan, function(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)])
def test_accelerated_engine_gives_the_same(monkeypatch, short):
    """The short version has one width of targets, one update of the metric, and no compiler optimisation."""
    if short:
        monkeypatch.setattr(kernel_ridge, "STEPS", 1)
        for name in PROGRAMS:
            monkeypatch.setattr(gpu_engine, name, jax.jit(getattr(gpu_engine, name).__wrapped__))
    widths = (3, 4) if short else (1, 3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.column_stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2], *x[:, :2].T]) + 0.1 * rng.normal(size=(300, 4))
    setup = x, [slice(0, 160), slice(160, 300)], Budget(centres=20, learn_rows=200, learn_centres=16), 0
    plain, fast = Engine(*setup), AcceleratedEngine(*setup)
    problems = [plain.problem(f"y{width}", y[:, :width], np.ones(3)) for width in widths]
    kernels = plain.learn(problems)
    assert any(np.ptp(np.diag(learned.metric)) > 0.01 for learned in kernels)  # one is learned, not the identity
    for expected, result in zip(kernels, fast.learn(problems), strict=True):
        np.testing.assert_allclose(result.metric, expected.metric, atol=1e-8)
        assert result.ridge == expected.ridge
    fits = plain.cross_fit(problems, kernels)
    for expected, result in zip(fits, fast.cross_fit(problems, kernels), strict=True):
        np.testing.assert_allclose(result[1], expected[1], atol=1e-6)
    starts = np.array([0, 7, 50, 51, 160, 200, 290])  # of episodes, which do not cross folds
    within = plain.cross_fit(problems, kernels, starts)
    for expected, result in zip(within, fast.cross_fit(problems, kernels, starts), strict=True):
        np.testing.assert_allclose(result[1], expected[1], atol=1e-6)
    assert np.abs(within[0][1] - fits[0][1]).max() > 1e-3
    reduced = [problems[1]._replace(keep=np.array(keep)) for keep in ([0.0, 1.0, 1.0], [1.0, 0.0, 1.0])]
    args = reduced, fits[1][0], -x
    np.testing.assert_allclose(fast.predict_substituted(*args), plain.predict_substituted(*args), atol=1e-6)
    np.testing.assert_allclose(fast.errors(reduced, kernels[1]), plain.errors(reduced, kernels[1]), atol=1e-6)
    np.testing.assert_allclose(fast.predict(fits[1][0], -x), plain.predict(fits[1][0], -x), atol=1e-6)

    # Where rounding gives NaN, the problem is solved again by the plain engine.
    for name in ("_learn", "_errors", "_fit"):
        monkeypatch.setattr(gpu_engine, name, with_nans(getattr(gpu_engine, name)))
    assert fast.learn(problems)[1].ridge == kernels[1].ridge
    np.testing.assert_array_equal(fast.errors(reduced, kernels[1]), plain.errors(reduced, kernels[1]))
    np.testing.assert_array_equal(fast.cross_fit(problems, kernels)[1][1], fits[1][1])


def test_problems_are_batched_by_the_width_of_their_targets():
    engine = Engine(np.random.default_rng(0).normal(size=(40, 2)), [slice(0, 20), slice(20, 40)], Budget(), 0)
    problems = [engine.problem("y", engine.x[:, [0] * width], np.ones(2)) for width in (1, 3, 1, 4)]
    assert list(gpu_engine._by_width(problems)) == [(1, [0] + [2] * 7), (4, [1] + [3] * 7)]


# Tests on residuals -----------------------------------------------------------------------------------------
def test_covariance_test_is_students_t_over_episodes():
    rng = np.random.default_rng(0)
    x, y, starts = rng.normal(size=(60, 1)), rng.normal(size=(60, 1)), np.arange(0, 60, 6)
    sums = (x * y).reshape(10, 6).sum(1)
    expected = stats.ttest_1samp(sums, 0)
    t, p = covariance_test(x, y, starts)
    assert t == pytest.approx(abs(expected.statistic))
    assert p == pytest.approx(expected.pvalue)


def test_detectable_effects_on_rare_events_are_seen():
    """The log odds of an event in one of a hundred rows go with x, by as much entropy as is called detectable."""
    rng, n, rate = np.random.default_rng(0), 20_000, 0.01
    starts, entropy = np.arange(0, n, 20), -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    x, event = rng.normal(size=(n, 1)), (rng.random((n, 1)) < rate) - rate
    share = detectable_effect(x, event, starts, 1e-4, entropy)
    assert share < detectable_effect(x, event, starts, 1e-4) / 2
    slope, rejected = np.sqrt(2 * share * entropy / rate), []
    for _ in range(100):
        x = rng.normal(size=(n, 1))
        event = rng.random((n, 1)) < rate * np.exp(slope * x - slope**2 / 2)
        rejected.append(covariance_test(x, event - event.mean(), starts)[1] < 1e-4)
    assert np.mean(rejected) > 0.8


@pytest.mark.parametrize("effect", [0.0, 0.005, 0.02])
def test_effects_are_at_most_the_largest_that_is_not_ruled_out(effect):
    rng, n, covered = np.random.default_rng(1), 2000, []
    starts = np.arange(0, n, 10)
    for _ in range(300):
        x, noise = rng.normal(size=(2, n, 1))
        y = np.sqrt(effect) * x + np.sqrt(1 - effect) * noise
        p, detectable = covariance_test(x, y, starts)[1], detectable_effect(x, y, starts, 1e-4)
        covered.append(largest_effect(p, detectable, 1e-4) >= effect)
    assert np.mean(covered) > 0.93


def test_projected_test_is_one_sided():
    rng = np.random.default_rng(0)
    y, folds = rng.normal(size=(100, 1)), (slice(0, 50), slice(50, 100))
    assert projected_test(y, y, np.arange(100), folds)[1] < 1e-5
    assert projected_test(-y, y, np.arange(100), folds)[1] > 0.999
    assert combine(1.0, 0.001) == pytest.approx(0.01)


def test_basis_is_ordinary_least_squares():
    rng = np.random.default_rng(0)
    x, fit, a = rng.normal(size=(50, 3)), rng.normal(size=(50, 1)), rng.normal(size=(50, 2))
    b = np.hstack([np.ones((50, 1)), x[:, :2], fit, fit**2])
    expected = a - b @ np.linalg.lstsq(b, a, rcond=None)[0]
    np.testing.assert_allclose(Basis(x, np.array([1.0, 1.0, 0.0]), fit).remove(a), expected, atol=1e-10)


# Data -------------------------------------------------------------------------------------------------------
def test_hidden_causes_show_in_residuals_or_in_a_biased_fit():
    rng = np.random.default_rng(0)
    starts, noise = np.arange(0, 1000, 10), rng.normal(size=(1000, 2))
    u = np.repeat(rng.normal(size=(100, 1)), 10, axis=0)
    assert not has_hidden_cause(noise, noise, starts)
    assert has_hidden_cause(noise + 0.5 * u * [0.0, 1.0], noise + 0.5 * u * [0.0, 1.0], starts)
    proxy = u + rng.normal(size=(1000, 1))  # a fit that takes a proxy for the cause errs within episodes
    assert has_hidden_cause(u - 0.5 * proxy + 0.1 * noise, u + 0.1 * noise, starts)


def test_relatives_and_variation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 3))
    x[:, 2] = x[:, 0] + 0.1 * x[:, 2]
    columns = [np.array([k]) for k in range(3)]
    assert relatives(np.cov(x.T), columns, 0) == [2]
    moves = (np.arange(1000) < 100).astype(float)[:, None]
    x[:100, 1] = 0
    assert variation(x[:, 1:2], moves) == 0
    assert variation(x[:, :1], moves) > 0.5


def test_prepared_folds_hold_whole_episodes():
    rng = np.random.default_rng(0)
    spec = FactorSpec(pack(("a", 2, "continuous")), pack(("u", 1, "continuous")))
    state, action, after = (rng.normal(size=(500, width)) for width in (2, 1, 2))
    episode = np.sort(rng.integers(0, 40, 500))
    data = prepare(Variables.from_arrays(spec, state, action, after, episode), folds=5, seed=0)
    assert data.folds[0].start == 0
    assert data.folds[-1].stop == 500
    for fold in data.folds:
        assert fold.start in data.starts
        assert 60 <= fold.stop - fold.start <= 140
