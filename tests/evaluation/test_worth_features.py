"""Worth where states do not repeat: a walk on a line, whose value is known in closed form."""

import numpy as np
import pytest

from because_rl.evaluation.worth import features
from because_rl.evaluation.worth.estimate import BETTER, WORSE, appraise
from because_rl.evaluation.worth.features import FeatureModel
from because_rl.evaluation.worth.given_policy import policy_of_function, policy_of_rows
from because_rl.evaluation.worth.imitation import imitate, with_plans
from because_rl.evaluation.worth.log import LoggedEpisodes
from because_rl.factors import Factor, FactorSpec
from because_rl.models.prepared_data import summarise
from because_rl.transitions import Transitions

STEP, HORIZON, EPISODES = 0.2, 4, 80
RIGHT = STEP * HORIZON * (HORIZON + 1) / 2
"""The worth of a policy that always goes right by one step, from 0 on average, where the reward is the place."""


def walk(numbered, seed=0):
    """x' = x + .2 a + noise, rewarded by x'; a is -1 or 1 by chance, or uniform between them."""
    rng = np.random.default_rng(seed)
    place, rows = Factor("x", 0, 1, "continuous", "place"), []
    push = Factor("push", 0, 1, "binary" if numbered else "continuous", "push")
    spec = FactorSpec((place,), (push,), codes=((-1.0,), (1.0,)) if numbered else None).with_outcomes("reward", False)
    for episode in range(EPISODES):
        x = rng.uniform(-2, 2)
        for _ in range(HORIZON):
            a = rng.choice([-1.0, 1.0]) if numbered else rng.uniform(-1, 1)
            after = x + STEP * a + 0.05 * rng.standard_normal()
            rows.append((x, a, after, episode))
            x = after
    x, a, after, episode = np.array(rows).T
    state, following = (np.column_stack([part, [0.0] * len(x)]) for part in (x, after))
    following[:, 1] = after
    return Transitions.from_arrays(state, a[:, None], following, episode, factors=spec, reward=after)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(features, "STEPS", 150)
    monkeypatch.setattr(features, "HIDDEN", 8)


def always(data, number, action):
    """Always the same action, as a function of states would say it."""

    def policy(states):
        assert states.shape[1] == 1  # outcomes are not shown
        return np.full(len(states), number) if data.factors.codes is not None else np.full((len(states), 1), action)

    return policy


@pytest.mark.parametrize("numbered", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_worth_of_walking_right_and_left(numbered):
    data = walk(numbered)
    log = LoggedEpisodes.from_transitions(data)
    assert (log.horizon, log.episodes, log.inputs.shape[1]) == (HORIZON, EPISODES, 1)
    policies = [policy_of_function(log, data, always(data, k, a), str(a)) for k, a in ((1, 1.0), (0, -1.0))]
    behaviour, (right, left) = appraise(log, FeatureModel(log), policies, resamples=20)
    start = data.state[data.step == 0, 0].mean() * HORIZON
    assert behaviour.value == pytest.approx(log.returns.mean(), abs=1e-4)
    assert right.estimators["FQE"].worth.value == pytest.approx(start + RIGHT, abs=0.25)
    assert left.estimators["FQE"].worth.value == pytest.approx(start - RIGHT, abs=0.25)
    assert (right.verdict, left.verdict) == (BETTER, WORSE)
    assert right.answer.worth.low < start + RIGHT < right.answer.worth.high


def test_plans_are_imitated_and_take_the_place_of_the_network():
    data = walk(True)
    log, rows = LoggedEpisodes.from_transitions(data), np.arange(0, len(data), 2)
    planned = np.where(data.state[rows, :1] < 0, 1.0, -1.0).astype(np.float32)
    imitation = imitate(summarise(data), data, rows, planned)
    assert imitation.agreement > 0.8
    assert imitation.asked == len(rows)
    policy = imitation.at_log("planner", data)
    whole = with_plans(policy, log, rows, planned)
    np.testing.assert_array_equal(whole.now[rows].argmax(1), (planned[:, 0] > 0).astype(int))
    np.testing.assert_array_equal(whole.now[1::2], policy.now[1::2])
    before = rows[rows % HORIZON > 0] - 1
    np.testing.assert_array_equal(whole.after[before], whole.now[before + 1])


def test_a_given_action_must_have_the_columns_of_the_log():
    log = LoggedEpisodes.from_transitions(walk(False))
    assert policy_of_rows(log, np.zeros((len(log.reward), 1)), "mine").now.shape == (len(log.reward), 1, 1)
    with pytest.raises(Exception, match="2 columns"):
        policy_of_rows(log, np.zeros((len(log.reward), 2)), "mine")
