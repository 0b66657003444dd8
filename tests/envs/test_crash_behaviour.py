"""Crash's behaviours: success rates, the hidden cue, the same episodes in the fast batch and in highway-env."""

import numpy as np
import pytest

from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.crash.batch import CrashBatch, crash_step
from because_rl.envs.crash.behaviour import CrashBehaviour
from because_rl.envs.crash.env import Crash

PAPER = {"random": 0.14, "medium": 0.35, "expert": 0.66}
levels = pytest.mark.parametrize("level", PAPER)
splits = pytest.mark.parametrize("split", ["I", "O"])


def play(batch, behaviour, seeds):
    """All actions (steps, N, 8), with NaN after an episode's end."""
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    actions = []
    while not batch.done:
        active = ~(batch.terminated | batch.truncated)
        action = behaviour.act(observation)
        assert action.dtype == np.float32
        assert (np.abs(action) <= 1).all()
        observation = batch.step(action).observation
        actions.append(np.where(active[:, None], action.astype(float), np.nan))
    return np.array(actions)


@levels
def test_success_rates_match_the_paper(level):
    batch = CrashBatch("I")
    play(batch, CrashBehaviour(level), range(50_000, 56_000))
    rate = batch.terminated.mean()
    print(f"{level}: {rate:.4f} +- {1.96 * np.sqrt(rate * (1 - rate) / 6000):.4f}")
    assert abs(rate - PAPER[level]) < 0.02


@levels
def test_an_episode_depends_on_its_seed_alone(level):
    behaviour = CrashBehaviour(level)
    together = play(CrashBatch("I"), behaviour, range(20))
    for seed in (5, 17, 3):
        alone = play(CrashBatch("I"), behaviour, [seed])
        np.testing.assert_array_equal(alone[:, 0], together[: len(alone), seed])


@levels
def test_highway_env_agrees_on_eight_episodes(level):
    outcomes = []
    for batch in (CrashBatch("I"), SimulatorBatch(Crash, "I")):
        play(batch, CrashBehaviour(level), range(8))
        outcomes.append((batch.terminated, batch.exact_state()))
    assert (outcomes[0][0] == outcomes[1][0]).all()
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], atol=1e-3)


@pytest.mark.long
@levels
def test_highway_env_agrees_on_a_hundred_episodes(level):
    outcomes = []
    for batch in (CrashBatch("I", 2), SimulatorBatch(Crash, "I", 2)):
        play(batch, CrashBehaviour(level), range(900, 1000))
        outcomes.append((batch.terminated, batch.steps))
    print(f"{level}: {outcomes[0][0].mean():.2f} batch, {outcomes[1][0].mean():.2f} highway-env")
    assert (outcomes[0][0] == outcomes[1][0]).all()


@levels
def test_the_cue_confounds_the_car_with_both_pedestrians(level):
    """Car and pedestrians do not react to each other; only u_pi correlates their pushes."""

    def correlations(**overrides):
        actions = play(CrashBatch("I"), CrashBehaviour(level, **overrides), range(500)).reshape(-1, 8)
        actions = actions[~np.isnan(actions[:, 0])]
        return [np.corrcoef(actions[:, 2], sign * actions[:, column])[0, 1] for sign, column in ((-1, 5), (1, 7))]

    assert min(correlations()) > 0.2
    assert np.abs(correlations(cue=0.0)).max() < 0.05


def test_the_cue_has_weight_three_tenths():
    batch = CrashBatch("I")
    actions = play(batch, CrashBehaviour("random"), range(500))
    cue, throttle = batch.hidden()["u_pi"].T[: len(actions)], actions[:, :, 2]
    valid = ~np.isnan(throttle)
    slope = np.polyfit(cue[valid], throttle[valid], 1)[0]
    assert abs(slope - 0.3) < 0.01


def test_experts_pedestrians_wait_for_the_hidden_start():
    batch, behaviour = CrashBatch("I"), CrashBehaviour("expert", noise=0.0, cue=0.0)
    seeds = range(400)
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    start = batch.hidden()["start"] * behaviour.config.longest_wait
    for t in range(18):
        observation = batch.step(behaviour.act(observation)).observation
        slow = np.abs(observation.state[:, [13, 18]]).max(1) < 0.5
        waited_long, going = (start > t + 1) & (t > 4), (start < t - 4) & ~batch.terminated
        assert slow[waited_long].all()
        assert (~slow[going]).mean() > 0.7 if going.any() and t < 10 else True


def share_solved_by_shooting(split, scenes):
    """The share of scenes in which one of a thousand random open-loop plans succeeds.

    A plan is linear between four random actions.
    """
    batch, rng, plans, knots = CrashBatch(split), np.random.default_rng(0), 1000, 4
    batch.reset(range(scenes))
    start, goal, slope = batch.exact_state(), batch.exact_goal(), batch.hidden()["slope"]
    time = np.linspace(0, knots - 1, 30)
    left = np.minimum(time.astype(int), knots - 2)
    weight = (time - left)[None, :, None]
    solved = []
    for scene in range(scenes):
        value = rng.uniform(-1, 1, (plans, knots, 8))
        plan = value[:, left] * (1 - weight) + value[:, left + 1] * weight
        state = np.repeat(start[scene : scene + 1], plans, 0)
        for t in range(30):
            state = crash_step(state, plan[:, t], slope[scene, 0], slope[scene, 1])
        solved.append(batch.factors.reached(state, np.repeat(goal[scene : scene + 1], plans, 0)).any())
    print(f"{split}: {np.mean(solved):.2f} of {scenes} scenes")
    return np.mean(solved)


@splits
def test_nearly_every_scene_can_be_solved(split):
    assert share_solved_by_shooting(split, 40) >= 0.95


@pytest.mark.long
@splits
def test_nearly_every_one_of_a_hundred_scenes_can_be_solved(split):
    assert share_solved_by_shooting(split, 100) >= 0.95
