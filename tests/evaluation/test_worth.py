"""What policies are worth, from logs of a small world whose truth is known by dynamic programming."""

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.evaluation.worth.doubly_robust import (
    cumulative_ratios,
    doubly_robust_terms,
    logged_terms,
    weighted_means,
)
from because_rl.evaluation.worth.estimate import BETTER, UNKNOWN, WORSE, WorldModel, appraise
from because_rl.evaluation.worth.given_policy import policy_of_rows
from because_rl.evaluation.worth.log import FOLDS, FittedQ, LoggedEpisodes, Policy
from because_rl.evaluation.worth.table import PRIOR_ROWS, TableModel
from benchmarks.worth.tabular import random_world

WORLD = random_world(4, states=8, actions=2, horizon=5)


def draw(episodes, seed=0):
    return WORLD.draw_log(episodes, np.random.default_rng(seed))


def at_log(model, name):
    chance = WORLD.policies[name]
    return Policy(name, chance[model.state], chance[model.next_state])


@pytest.fixture(scope="module")
def large():
    return draw(4000)


def once(log):
    return np.ones((1, log.episodes))


@pytest.mark.parametrize("name", ["behaviour", "100% best", "75% worst"])
def test_fitted_q_approaches_the_exact_value(large, name):
    value = weighted_means(large.fit(at_log(large, name), once(large.log)).first, once(large.log))[0]
    assert value == pytest.approx(WORLD.value(WORLD.policies[name]), abs=0.02)


def plain_fit(model, chance):
    """The same tables as `TableModel.fit` by loops, for weights of 1: V_H at first states, and surprises."""
    log, first, surprise = model.log, np.zeros(model.log.episodes), np.zeros(len(model.log.reward))
    for k in range(FOLDS):
        rows, value = np.flatnonzero(log.fold != k), np.zeros(model.count)
        for h in range(1, log.horizon + 1):
            target = log.reward + log.goes_on * value[model.next_state]
            q = np.zeros((model.count, log.actions))
            for s in range(model.count):
                here = rows[model.state[rows] == s]
                of_state = (target[here].sum() + PRIOR_ROWS * target[rows].mean()) / (len(here) + PRIOR_ROWS)
                for a in range(log.actions):
                    tried = here[log.number[here] == a]
                    q[s, a] = (target[tried].sum() + PRIOR_ROWS * of_state) / (len(tried) + PRIOR_ROWS)
            due = (log.step == log.horizon - h) & (log.fold == k)
            surprise[due] = (target - q[model.state, log.number])[due]
            value = (chance * q).sum(1)
        asked = log.fold[log.first] == k
        first[asked] = value[model.state[log.first]][asked]
    return first, surprise


def test_tables_are_those_of_plain_loops():
    small = draw(25, seed=9)
    fits = small.fit(at_log(small, "50% best"), once(small.log))
    first, surprise = plain_fit(small, WORLD.policies["50% best"])
    np.testing.assert_allclose(fits.first[0], first, atol=1e-5)
    np.testing.assert_allclose(fits.surprise[0], surprise, atol=1e-5)


def test_ratios_multiply_along_an_episode_and_stay_after_its_end():
    log = LoggedEpisodes(
        *(np.zeros((5, 1), np.float32),) * 3,
        np.zeros(5, int),
        2,
        *(np.zeros(5, np.float32),) * 2,
        np.array([0, 0, 0, 1, 1]),
        np.array([0, 1, 2, 0, 1]),
        3,
    )
    ratios = cumulative_ratios(log, np.array([1.0, 0.2, 0.9, 0.3, 0.6]), np.array([0.5, 0.4, 0.9, 0.6, 0.2]))
    np.testing.assert_allclose(ratios, [[2.0, 1.0, 1.0], [0.5, 1.5, 1.5]])


def test_bounds_hold_the_estimate_and_narrow_with_the_log(large):
    widths = []
    for model in (draw(60, seed=3), large):
        low, value, high = (model.fit(at_log(model, "100% best"), once(model.log), k).first.mean() for k in (-1, 0, 1))
        assert low < value < high
        widths.append(high - low)
    assert widths[1] < 0.01 < widths[0]


def true_ratios(model, name):
    rows = np.arange(len(model.log.number)), model.log.number
    return cumulative_ratios(model.log, at_log(model, name).now[rows], at_log(model, "behaviour").now[rows])


@pytest.mark.parametrize("name", ["50% best", "50% worst"])
def test_doubly_robust_is_right_where_q_is_wrong(large, name):
    log = large.log
    nothing = FittedQ(np.zeros((1, log.episodes)), log.reward[None].astype(float), np.zeros((1, log.episodes)))  # Q = 0
    terms = doubly_robust_terms(log, nothing, true_ratios(large, name), once(log))
    assert weighted_means(terms, once(log))[0] == pytest.approx(WORLD.value(WORLD.policies[name]), abs=0.04)


@pytest.mark.parametrize("name", ["50% best", "50% worst"])
def test_doubly_robust_is_right_where_propensities_are_wrong(large, name):
    log, rows = large.log, np.arange(len(large.log.number))
    chosen = at_log(large, name).now[rows, log.number]
    ratios = cumulative_ratios(log, chosen, np.where(log.number == 0, 0.8, 0.2))
    fits = large.fit(at_log(large, name), once(log))
    robust = weighted_means(doubly_robust_terms(log, fits, ratios, once(log)), once(log))[0]
    truth = WORLD.value(WORLD.policies[name])
    assert robust == pytest.approx(truth, abs=0.04)
    nothing = FittedQ(np.zeros((1, log.episodes)), log.reward[None].astype(float), np.zeros((1, log.episodes)))
    sampled = weighted_means(doubly_robust_terms(log, nothing, ratios, once(log)), once(log))[0]
    assert abs(sampled - truth) > 0.04  # the propensities are wrong indeed


def test_what_was_cut_off_counts_as_q_says(large):
    log, half = large.log, 2
    whole = logged_terms(log, large.fit(large.behaviour(), once(log)))[0]
    np.testing.assert_allclose(whole, log.returns, atol=1e-6)  # nothing was
    kept = (log.episode % 2 == 0) | (log.step < half)
    cut = LoggedEpisodes(
        *(part[kept] for part in (log.inputs, log.next_inputs, log.action, log.number)),
        log.actions,
        *(part[kept] for part in (log.reward, log.goes_on, log.episode, log.step)),
        log.horizon,
    )
    model = TableModel(cut, large.state[kept], large.next_state[kept], large.count)
    terms = logged_terms(cut, model.fit(model.behaviour(), once(cut)))[0]
    assert cut.returns.mean() < log.returns.mean() - 0.02
    assert terms.mean() == pytest.approx(log.returns.mean(), abs=0.01)


def test_intervals_cover_the_truth_in_most_logs():
    covered = []
    for seed in range(12):
        model = draw(150, seed=100 + seed)
        _, (appraisal,) = appraise(model.log, model, [at_log(model, "50% best")], resamples=20)
        answer = appraisal.answer.worth
        covered.append(answer.low <= WORLD.value(WORLD.policies["50% best"]) <= answer.high)
        assert answer.high - answer.low < 0.5
    assert sum(covered) >= 10


def test_verdicts_need_enough_episodes(large):
    few = draw(20, seed=5)
    names = ["100% best", "75% worst"]
    behaviour, appraisals = appraise(large.log, large, [at_log(large, name) for name in names], resamples=20)
    assert [a.verdict for a in appraisals] == [BETTER, WORSE]
    assert behaviour.low < WORLD.value(WORLD.behaviour) < behaviour.high
    _, appraisals = appraise(few.log, few, [at_log(few, "50% best"), at_log(few, "behaviour")], resamples=20)
    assert {a.verdict for a in appraisals} == {UNKNOWN}


def test_a_world_model_that_disagrees_leaves_it_open(large):
    policy = at_log(large, "100% best")
    models = {policy.name: WorldModel(0.0, 0.0, 0.0)}
    _, (appraisal,) = appraise(large.log, large, [policy], models, resamples=20)
    assert appraisal.verdict == UNKNOWN
    assert appraisal.estimators["FQE"].worth.low < 0.0


def test_a_deterministic_policy_has_no_doubly_robust_estimate_from_few_episodes():
    few = draw(40, seed=7)
    _, (appraisal,) = appraise(few.log, few, [at_log(few, "100% best")], resamples=20)
    assert set(appraisal.estimators) == {"FQE"}
    assert "of the policy's own" in appraisal.why_no_dr


def test_a_given_policy_has_a_row_for_each_state_or_transition(large):
    log = large.log
    numbers = np.arange(len(log.number)) % 2
    policy = policy_of_rows(log, numbers, "mine")
    np.testing.assert_array_equal(policy.now.argmax(1), numbers)
    inside = np.setdiff1d(np.arange(len(numbers)), log.last)
    np.testing.assert_array_equal(policy.after.argmax(1)[inside], numbers[inside + 1])
    states = np.arange(len(log.number) + log.episodes) % 2
    policy = policy_of_rows(log, states, "mine")
    assert policy.after.argmax(1)[log.last[3]] == states[log.last[3] + 1 + 3]
    for rows, message in (
        (numbers[:-1], "one for each transition"),
        (numbers + 1, "whole numbers from 0 to 1"),
        (np.full((len(numbers), 2), 0.7), "sum to 1"),
        (np.full(len(numbers), np.nan), "no finite number"),
    ):
        with pytest.raises(BecauseError, match=message):
            policy_of_rows(log, rows, "mine")
