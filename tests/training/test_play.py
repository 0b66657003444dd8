"""Acting in environments of Gymnasium: returns, ends, and observations of another width."""

import gymnasium
import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.training.play import play, split_observation

PUSH = pack(("push", 1, "continuous"))
X = FactorSpec(pack(("x", 2, "continuous")), PUSH)


class Countdown(gymnasium.Env):
    """Pays the action; ends after as many steps as the seed says, and is cut off after four."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Box(-9, 9, (1,))

    def reset(self, *, seed=None, options=None):
        self.left, self.steps = seed, 0
        return np.array([self.left, 0.0]), {}

    def step(self, action):
        self.left, self.steps = self.left - 1, self.steps + 1
        return np.array([self.left, self.steps]), float(action[0]), self.left == 0, self.steps == 4, {}


def test_episodes_have_their_returns_and_ends():
    begun = []

    def begin(episode):
        begun.append(episode)
        return lambda observation, steps: np.array([steps + 1.0])

    episodes = play(begin, Countdown(), 3, first_seed=3, most_steps=100)
    assert begun == [0, 1, 2]
    assert episodes.steps.tolist() == [3, 4, 4]
    assert episodes.returns.tolist() == [6, 10, 10]
    assert episodes.terminated.tolist() == [True, True, False]
    assert play(begin, Countdown(), 1, first_seed=3, most_steps=2).terminated.tolist() == [False]


def test_observations_split_into_state_and_goal():
    state, nothing = split_observation(X, np.ones(2))
    assert (state.tolist(), nothing.shape) == ([1, 1], (0,))
    with pytest.raises(BecauseError, match="'observation' has 3 columns"):
        split_observation(X, np.ones(3))
    wanted = FactorSpec(X.state, PUSH, (GoalFactor("there", 0, 2, "continuous", factor="x"),))
    parts = split_observation(wanted, {"observation": np.ones(2), "desired_goal": np.zeros(2)})
    assert [part.tolist() for part in parts] == [[1, 1], [0, 0]]
    with pytest.raises(BecauseError, match="'desired_goal' has 0 columns"):
        split_observation(wanted, np.ones(2))
    rewarded = X.with_outcomes("gain", has_ends=True)
    assert len(split_observation(rewarded, np.ones(2))[0]) == 2
