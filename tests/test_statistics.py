"""Compared with scipy, with brute force, and with results computed by hand."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from scipy import stats

from because_rl.errors import BecauseError
from because_rl.rng import stream
from because_rl.statistics import (
    holm,
    iqm,
    iqm_interval,
    leads_over_first,
    mann_whitney,
    mean,
    paired_by_layout,
    paired_t_test,
    performance_profile,
    probability_of_improvement,
    t_interval,
    wasserstein,
    welch,
)

ALTERNATIVES = ("greater", "less", "two-sided")


def draws(seed, *shape):
    return stream(seed, "test statistics").normal(0.3, 1.0, shape)


def test_mean_has_the_t_interval():
    values = draws(0, 10)
    estimate = mean(values)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate[1:] == t_interval(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    assert estimate[1:] == pytest.approx((low, high))
    assert mean([0.4]) == (0.4, 0.4, 0.4)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("seed", range(5))
def test_welch_equals_scipy(seed, alternative):
    a, b = 2 * draws(seed, 7), 0.5 + draws(seed + 100, 12)
    difference, scipys = welch(a, b, alternative), stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    assert (difference.t, difference.dof, difference.p) == pytest.approx((scipys.statistic, scipys.df, scipys.pvalue))
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (difference.low, difference.high) == pytest.approx((low, high))
    assert difference.value == pytest.approx(a.mean() - b.mean())


def test_welch_by_hand():
    """a = 1, 3 and b = 0, 0, 3: variances 2 and 3, so t = (2 - 1) / sqrt(2/2 + 3/3), dof = 4 / (1/1 + 1/2)."""
    difference = welch([1.0, 3.0], [0.0, 0.0, 3.0], "greater")
    assert (difference.t, difference.dof) == pytest.approx((1 / np.sqrt(2), 8 / 3))


def test_welch_without_variance():
    """Ten seeds that all solve everything are common: 0 / 0 must not become NaN."""
    ones, zeros = [1.0] * 10, [0.0] * 10
    assert [welch(ones, ones, a).p for a in ALTERNATIVES] == [0.5, 0.5, 1.0]
    assert [welch(ones, zeros, a).p for a in ALTERNATIVES] == [0.0, 1.0, 0.0]
    assert welch(ones, zeros)[:3] == (1.0, 1.0, 1.0)
    tiny = [1e-160, 2e-160, 3e-160]  # the squares of their variances underflow
    assert np.isfinite(welch(tiny, tiny).dof)


def test_leads_of_two_settings_on_one_task_are_paired():
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 6))
    (lead,) = leads_over_first([[first], [second]])
    assert lead == pytest.approx(paired_t_test(second, first, "greater"))


def test_noise_of_leads_is_what_least_squares_leaves():
    """Dummies of setting and of dataset within each task; the residual of their regression is the noise."""
    values = np.random.default_rng(1).random((4, 3, 2)) + np.array([0, 5, 9])[:, None]
    setting, task, dataset = (axis.ravel() for axis in np.indices(values.shape))
    columns = [(task == j) & (setting == i) for i, j in product(range(4), range(3))]
    columns += [(task == j) & (dataset == k) for j, k in product(range(3), range(2))]
    design = np.array(columns, float).T
    residual = values.ravel() - design @ np.linalg.lstsq(design, values.ravel())[0]
    dof = values.size - np.linalg.matrix_rank(design)
    error = np.sqrt(2 * (residual**2).sum() / dof / 6)
    leads = leads_over_first(values)
    assert [lead.dof for lead in leads] == [dof] * 3 == [9] * 3
    assert [lead.t for lead in leads] == pytest.approx([(values[i] - values[0]).mean() / error for i in (1, 2, 3)])


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_paired_t_test_equals_scipy(alternative):
    a, b = draws(1, 9), draws(2, 9)
    scipys = stats.ttest_rel(a, b, alternative=alternative)
    assert (paired_t_test(a, b, alternative).t, paired_t_test(a, b, alternative).p) == pytest.approx(
        (scipys.statistic, scipys.pvalue)
    )


def test_pairing_by_layout_cancels_the_difficulty_of_scenes():
    """Half of the scenes are hard for both; a solves six more of the hard ones."""
    a, b = (np.repeat([[True] * 50 + [False] * 50], 10, axis=0) for _ in range(2))
    a[:, 50:56] = True
    by_scene = paired_by_layout(a, b, "greater")
    assert by_scene.value == pytest.approx(0.06)
    assert by_scene.p < 0.01
    assert welch(a.mean(0), b.mean(0), "greater").p > 0.1
    d = a.mean(0) - b.mean(0)
    assert by_scene.p == pytest.approx(stats.ttest_1samp(d, 0, alternative="greater").pvalue)
    shorter = paired_by_layout(a[:3], b[:, :40])
    assert shorter.dof == 39
    assert shorter.value == pytest.approx(a[:3, :40].mean() - b[:, :40].mean())


def test_holm_by_hand_and_by_brute_force():
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
    assert holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.9, 0.001, 0.5]) == pytest.approx([1.0, 0.003, 1.0])
    p = stream(3, "p").random(20)
    adjusted = np.array(holm(p))
    # Brute force: the step-down rule itself, at many levels
    for level in np.linspace(0.01, 0.99, 50):
        rejected, order = set(), np.argsort(p)
        for rank, k in enumerate(order):
            if p[k] > level / (len(p) - rank):
                break
            rejected.add(int(k))
        assert rejected == set(np.flatnonzero(adjusted <= level + 1e-12).tolist())


def test_iqm_by_hand_and_its_interval():
    assert iqm([0, 0, 1, 2, 3, 4, 9, 9]) == 2.5
    tasks = [draws(k, 10) + k for k in range(6)]
    estimate = iqm_interval(tasks)
    assert estimate.value == pytest.approx(np.sort(np.concatenate(tasks))[15:45].mean())
    assert estimate.low < estimate.value < estimate.high
    assert iqm_interval(tasks) == estimate
    assert iqm_interval(tasks, seed=1) != estimate
    # Stratified: a distance between tasks does not widen it, since runs are resampled within their task
    assert iqm_interval([[0.0] * 5, [100.0] * 5])[1:] == (iqm([0.0] * 5 + [100.0] * 5),) * 2


def test_bootstrap_interval_covers_about_95_percent():
    """Coverage of 200 intervals, of 3 tasks x 10 runs each; the percentile bootstrap covers a little less than 95%."""
    covered = [
        estimate.low <= 0.3 <= estimate.high
        for seed in range(200)
        if (estimate := iqm_interval(list(draws(seed, 3, 10)), resamples=300))
    ]
    assert 0.87 <= np.mean(covered) <= 0.99


def test_probability_of_improvement_needs_no_memory_for_pairs_of_runs():
    a, b = (stream(0, name).normal(size=1000) for name in "ab")
    tracemalloc.start()
    probability_of_improvement([a], [b], resamples=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_probability_of_improvement_is_mann_whitneys_u():
    a, b = [stream(k, "a").integers(0, 6, 5) for k in range(3)], [stream(k, "b").integers(0, 6, 4) for k in range(3)]
    by_hand = np.mean(
        [
            np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(*pair)])
            for pair in zip(a, b, strict=True)
        ]
    )
    estimate = probability_of_improvement(a, b)
    assert estimate.value == pytest.approx(by_hand)
    u = [stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(a, b, strict=True)]
    assert estimate.value == pytest.approx(np.mean(u))
    assert estimate.low <= estimate.value <= estimate.high
    assert probability_of_improvement([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, 1.0, 1.0)


def test_performance_profile_by_hand():
    tasks = [[0.0, 0.5], [0.5, 1.0]]
    profile = performance_profile(tasks, [-0.1, 0.0, 0.5, 1.0])
    assert [point.value for point in profile] == [1.0, 0.75, 0.25, 0.0]
    assert (profile[0].low, profile[3].high) == (1.0, 0.0)
    # Above 0.5 is one run of the second task only, in each resample 0, 1 or 2 of 4
    assert (profile[2].low, profile[2].high) == (0.0, 0.5)


def test_mann_whitney_and_wasserstein_equal_scipy():
    a, b = draws(1, 8), draws(2, 11)
    assert mann_whitney(a, b, "less") == pytest.approx(tuple(stats.mannwhitneyu(a, b, alternative="less")))
    assert wasserstein([0.0, 1.0], [5.0, 6.0]) == pytest.approx(5.0)
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b))


@pytest.mark.parametrize(
    "call",
    [
        lambda: welch([1.0], [1.0, 2.0]),
        lambda: welch([1.0, np.nan], [1.0, 2.0]),
        lambda: welch([1.0, 2.0], [1.0, 2.0], "larger"),
        lambda: paired_t_test([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: mean([]),
        lambda: iqm_interval([]),
        lambda: iqm_interval([[]]),
        lambda: probability_of_improvement([[1.0]], [[1.0], [2.0]]),
    ],
)
def test_invalid_inputs_are_refused(call):
    with pytest.raises(BecauseError, match=r"Got .* Needed: .* Fix:"):
        call()
