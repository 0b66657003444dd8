"""Against scipy, against brute force, and against what can be computed by hand."""

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
    mann_whitney,
    mean,
    paired,
    paired_by_layout,
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
    found = mean(values)
    assert found.value == pytest.approx(values.mean())
    assert found[1:] == t_interval(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    assert found[1:] == pytest.approx((low, high))
    assert mean([0.4]) == (0.4, 0.4, 0.4)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("seed", range(5))
def test_welch_is_scipys(seed, alternative):
    a, b = 2 * draws(seed, 7), 0.5 + draws(seed + 100, 12)
    found, scipys = welch(a, b, alternative), stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    assert (found.t, found.dof, found.p) == pytest.approx((scipys.statistic, scipys.df, scipys.pvalue))
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.value == pytest.approx(a.mean() - b.mean())


def test_welch_by_hand():
    """a = 1, 3 and b = 0, 0, 3: variances 2 and 3, so t = (2 - 1) / sqrt(2/2 + 3/3), dof = 4 / (1/1 + 1/2)."""
    found = welch([1.0, 3.0], [0.0, 0.0, 3.0], "greater")
    assert (found.t, found.dof) == pytest.approx((1 / np.sqrt(2), 8 / 3))


def test_welch_where_nothing_scatters():
    """Ten seeds that all solve everything are common; 0 / 0 must not become NaN."""
    ones, zeros = [1.0] * 10, [0.0] * 10
    assert [welch(ones, ones, a).p for a in ALTERNATIVES] == [0.5, 0.5, 1.0]
    assert [welch(ones, zeros, a).p for a in ALTERNATIVES] == [0.0, 1.0, 0.0]
    assert welch(ones, zeros)[:3] == (1.0, 1.0, 1.0)
    tiny = [1e-160, 2e-160, 3e-160]  # squares of these variances are not numbers any more
    assert np.isfinite(welch(tiny, tiny).dof)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_paired_is_scipys(alternative):
    a, b = draws(1, 9), draws(2, 9)
    scipys = stats.ttest_rel(a, b, alternative=alternative)
    assert (paired(a, b, alternative).t, paired(a, b, alternative).p) == pytest.approx(
        (scipys.statistic, scipys.pvalue)
    )


def test_pairing_by_layout_cancels_what_makes_scenes_hard():
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


def test_holm_by_hand_and_never_out_of_order():
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
    found = iqm_interval(tasks)
    assert found.value == pytest.approx(np.sort(np.concatenate(tasks))[15:45].mean())
    assert found.low < found.value < found.high
    assert iqm_interval(tasks) == found
    assert iqm_interval(tasks, seed=1) != found
    # Stratified: tasks far apart do not widen it, since no run moves to another task
    assert iqm_interval([[0.0] * 5, [100.0] * 5])[1:] == (iqm([0.0] * 5 + [100.0] * 5),) * 2


def test_the_bootstrap_covers_about_as_often_as_it_says():
    """Mean of 95% intervals' coverage over 200 draws of 3 tasks x 10 runs; the percentile bootstrap is a bit short."""
    covered = [
        found.low <= 0.3 <= found.high
        for seed in range(200)
        if (found := iqm_interval(list(draws(seed, 3, 10)), resamples=300))
    ]
    assert 0.87 <= np.mean(covered) <= 0.99


def test_probability_of_improvement_is_mann_whitneys_u():
    a, b = [stream(k, "a").integers(0, 6, 5) for k in range(3)], [stream(k, "b").integers(0, 6, 4) for k in range(3)]
    by_hand = np.mean(
        [
            np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(*pair)])
            for pair in zip(a, b, strict=True)
        ]
    )
    found = probability_of_improvement(a, b)
    assert found.value == pytest.approx(by_hand)
    u = [stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(a, b, strict=True)]
    assert found.value == pytest.approx(np.mean(u))
    assert found.low <= found.value <= found.high
    assert probability_of_improvement([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, 1.0, 1.0)


def test_performance_profile_by_hand():
    tasks = [[0.0, 0.5], [0.5, 1.0]]
    found = performance_profile(tasks, [-0.1, 0.0, 0.5, 1.0])
    assert [point.value for point in found] == [1.0, 0.75, 0.25, 0.0]
    assert (found[0].low, found[3].high) == (1.0, 0.0)
    # Above 0.5 is one run of the second task only, in each resample 0, 1 or 2 of 4
    assert (found[2].low, found[2].high) == (0.0, 0.5)


def test_two_samples_against_scipy():
    a, b = draws(1, 8), draws(2, 11)
    assert mann_whitney(a, b, "less") == pytest.approx(tuple(stats.mannwhitneyu(a, b, alternative="less")))
    assert wasserstein([0.0, 1.0], [5.0, 6.0]) == pytest.approx(5.0)
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: welch([1.0], [1.0, 2.0]),
        lambda: welch([1.0, np.nan], [1.0, 2.0]),
        lambda: welch([1.0, 2.0], [1.0, 2.0], "larger"),
        lambda: paired([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: mean([]),
        lambda: iqm_interval([]),
        lambda: iqm_interval([[]]),
        lambda: probability_of_improvement([[1.0]], [[1.0], [2.0]]),
    ],
)
def test_what_has_no_answer_is_refused(ask):
    with pytest.raises(BecauseError, match=r"Got .* Needed: .* Fix:"):
        ask()
