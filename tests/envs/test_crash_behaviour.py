"""Crash's behaviours: success rates, the hidden cue, agreement on the twin and on highway-env."""

import numpy as np
import pytest

from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.crash.batch import CrashBatch, crash_step
from because_rl.envs.crash.behaviour import CrashBehaviour
from because_rl.envs.crash.env import Crash

PAPER = {"random": 0.14, "medium": 0.35, "expert": 0.66}
levels = pytest.mark.parametrize("level", PAPER)


def play(batch, behaviour, seeds):
    """All actions (steps, N, 8), with NaN after an episode's end."""
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    actions = []
    while not batch.done:
        on = ~(batch.terminated | batch.truncated)
        action = behaviour.act(observation)
        assert action.dtype == np.float32
        assert (np.abs(action) <= 1).all()
        observation = batch.step(action).observation
        actions.append(np.where(on[:, None], action.astype(float), np.nan))
    return np.array(actions)


@levels
def test_success_rates_are_the_papers(level):
    batch = CrashBatch("I")
    play(batch, CrashBehaviour(level), range(50_000, 56_000))
    rate = batch.terminated.mean()
    print(f"{level}: {rate:.4f} +- {1.96 * np.sqrt(rate * (1 - rate) / 6000):.4f}")
    assert abs(rate - PAPER[level]) < 0.02


@levels
def test_an_episode_depends_on_its_seed_alone(level):
    behaviour, some = CrashBehaviour(level), [5, 17, 3]
    together = play(CrashBatch("I"), behaviour, range(20))
    for seed in some:
        alone = play(CrashBatch("I"), behaviour, [seed])
        np.testing.assert_array_equal(alone[:, 0], together[: len(alone), seed])


@levels
def test_highway_env_agrees_on_a_few(level):
    outcomes = []
    for batch in (CrashBatch("I"), SimulatorBatch(Crash, "I")):
        play(batch, CrashBehaviour(level), range(8))
        outcomes.append((batch.terminated, batch.exact_state()))
    assert (outcomes[0][0] == outcomes[1][0]).all()
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], atol=1e-3)


@pytest.mark.slow
@levels
def test_highway_env_agrees_on_a_hundred(level):
    outcomes = []
    for batch in (CrashBatch("I", 2), SimulatorBatch(Crash, "I", 2)):
        play(batch, CrashBehaviour(level), range(900, 1000))
        outcomes.append((batch.terminated, batch.steps))
    print(f"{level}: {outcomes[0][0].mean():.2f} twin, {outcomes[1][0].mean():.2f} highway-env")
    assert (outcomes[0][0] == outcomes[1][0]).all()


@levels
def test_the_cue_confounds_the_car_with_both_pedestrians(level):
    """Car and pedestrians never look at each other; only u_pi ties their pushes."""

    def tie(**config):
        actions = play(CrashBatch("I"), CrashBehaviour(level, **config), range(500)).reshape(-1, 8)
        actions = actions[~np.isnan(actions[:, 0])]
        return [np.corrcoef(actions[:, 2], sign * actions[:, column])[0, 1] for sign, column in ((-1, 5), (1, 7))]

    assert min(tie()) > 0.2
    assert np.abs(tie(cue=0.0)).max() < 0.05


def test_the_cue_has_weight_three_tenths():
    batch = CrashBatch("I")
    actions = play(batch, CrashBehaviour("random"), range(500))
    cue, throttle = batch.hidden()["u_pi"].T[: len(actions)], actions[:, :, 2]
    on = ~np.isnan(throttle)
    slope = np.polyfit(cue[on], throttle[on], 1)[0]
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


@pytest.mark.slow
@pytest.mark.parametrize("split", ["I", "O"])
def test_shooting_with_the_true_model_finds_a_success_in_nearly_every_scene(split):
    """A thousand open-loop plans of four knots, straight lines between them; replanning finds the rest."""
    batch, rng, scenes, plans, knots = CrashBatch(split), np.random.default_rng(0), 100, 1000, 4
    batch.reset(range(scenes))
    start, goal, slope = batch.exact_state(), batch.exact_goal(), batch.hidden()["slope"]
    at = np.linspace(0, knots - 1, 30)
    left = np.minimum(at.astype(int), knots - 2)
    weight = (at - left)[None, :, None]
    found = []
    for scene in range(scenes):
        value = rng.uniform(-1, 1, (plans, knots, 8))
        plan = value[:, left] * (1 - weight) + value[:, left + 1] * weight
        state = np.repeat(start[scene : scene + 1], plans, 0)
        for t in range(30):
            state = crash_step(state, plan[:, t], slope[scene, 0], slope[scene, 1])
        found.append(batch.factors.reached(state, np.repeat(goal[scene : scene + 1], plans, 0)).any())
    print(f"{split}: {np.mean(found):.2f} of {scenes} scenes")
    assert np.mean(found) >= 0.95
