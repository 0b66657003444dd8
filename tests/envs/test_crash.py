"""Crash: scenes, bodies on highway-env's road, the fast batch against highway-env, the picture."""

import itertools
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from highway_env.vehicle.kinematics import Vehicle

from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.crash.batch import CrashBatch, crash_step
from because_rl.envs.crash.behaviour import CrashBehaviour
from because_rl.envs.crash.drawing import FIRED
from because_rl.envs.crash.env import Crash
from because_rl.envs.crash.scene import (
    BODIES,
    DT,
    HALF_LENGTH,
    HALF_WIDTH,
    HORIZON,
    MAX_ACCELERATION,
    draw_scenes,
)

SEEDS = range(4000)
splits = pytest.mark.parametrize("split", ["I", "O"])


def random_actions(rng, size):
    return rng.uniform(-1, 1, (size, 8)).astype(np.float32)


# Scenes ------------------------------------------------------------------------------------------------
def test_both_splits_draw_bodies_from_the_stated_ranges():
    for split in ("I", "O"):
        (ego, car, ped1, ped2) = draw_scenes(SEEDS, split, 1).bodies.transpose(1, 2, 0)
        for value, (low, high) in [
            (ego[1], (-0.3, 0.3)), (ego[2], (7, 10)), (car[0], (16, 44)), (car[1], (3.7, 4.3)), (car[2], (0, 1)),
            (ped1[1], (7, 9)), (-ped2[1], (7, 9)), (-ped1[3], (0, 0.8)), (ped2[3], (0, 0.8)),
        ]:  # fmt: skip
            assert low <= value.min() < low + 0.02 * (high - low)
            assert high - 0.02 * (high - low) < value.max() <= high
        assert (ego[0] == 0).all()
        assert (ped1[4] == -np.pi / 2).all()
        assert (ped2[4] == np.pi / 2).all()


def test_only_training_pedestrians_stand_near_the_car():
    training, other = draw_scenes(SEEDS, "I", 1).bodies, draw_scenes(SEEDS, "O", 1).bodies
    for ped in (2, 3):
        gap = training[:, ped, 0] - training[:, 1, 0]
        assert gap.min() >= 3.5
        assert gap.max() <= 5.5
        assert abs(np.corrcoef(other[:, ped, 0], other[:, 1, 0])[0, 1]) < 0.05
        # The marginal distribution stays the same.
        assert abs(np.sort(training[:, ped, 0]) - np.sort(other[:, ped, 0])).max() < 1.0
    assert abs(np.corrcoef(other[:, 2, 0], other[:, 3, 0])[0, 1]) < 0.05


def test_goals_slopes_and_channels_of_the_splits():
    training, other = draw_scenes(SEEDS, "I", 4), draw_scenes(SEEDS, "O", 4)
    assert (training.goal.sum(1) == 1).all()
    assert abs(training.goal[:, 0].mean() - 0.5) < 0.03
    assert (other.goal == 1).all()
    assert set(training.u_c) == {-1.0, 1.0}
    np.testing.assert_allclose(training.slope, 0.3 * training.u_c[:, None] * np.ones(4))
    np.testing.assert_allclose(other.slope, 0.3 * other.u_c[:, None] * [1, -1, 1, 1])
    correlation = [np.corrcoef(scenes.channels[:, 0], scenes.u_c)[0, 1] for scenes in (training, other)]
    assert correlation[0] < -0.99
    assert correlation[1] > 0.99


def test_cue_is_a_stationary_autoregression_and_start_is_uniform():
    scenes = draw_scenes(SEEDS, "I", 1)
    now, then = scenes.u_pi[:, 1:], scenes.u_pi[:, :-1]
    np.testing.assert_allclose(scenes.u_pi.std(0), 1, atol=0.06)
    innovation = now - 0.8 * then
    assert abs(innovation.std() - 0.6) < 0.01
    assert abs(np.corrcoef(innovation.ravel(), then.ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(scenes.u_pi[:, 0], scenes.u_c)[0, 1]) < 0.05
    np.testing.assert_allclose(np.quantile(scenes.start, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03)


def test_a_scene_does_not_depend_on_its_batch():
    together, alone = draw_scenes([3, 9, 4], "O", 2), draw_scenes([9], "O", 2)
    for name, value in vars(together).items():
        assert (value[1] == getattr(alone, name)[0]).all(), name


# Bodies on highway-env's road ----------------------------------------------------------------------------
def test_cars_are_moved_by_highway_envs_own_step():
    """A plain `Vehicle` with the throttle and steering that our car computes follows the same path."""
    assert (Vehicle.LENGTH / 2, Vehicle.WIDTH / 2) == (HALF_LENGTH, HALF_WIDTH)
    env, rng = Crash("I"), np.random.default_rng(0)
    env.reset(seed=1)
    ego = env.road.vehicles[0]
    plain = Vehicle(None, ego.position.copy(), ego.heading, ego.speed)
    for _ in range(30):
        ego.acceleration = rng.uniform(-1, 1, 2) * MAX_ACCELERATION[0]
        ego.step(DT)
        plain.act(dict(ego.action))
        plain.step(DT)
        assert (plain.position == ego.position).all()
        assert plain.heading == ego.heading
        assert plain.speed == ego.speed  # within the limits, as here, clipping changes nothing


def test_steering_gives_the_requested_acceleration():
    env = Crash("I")
    env.reset(seed=2)
    ego = env.road.vehicles[0]
    ego.set_state(np.array([0.0, 0.0, 8 * np.cos(0.3), 8 * np.sin(0.3), 0.3]))
    ego.acceleration, before = np.array([1.0, -1.5]), ego.velocity.copy()
    ego.step(1e-5)
    np.testing.assert_allclose((ego.velocity - before) / 1e-5, [1.0, -1.5], atol=1e-3)


def test_speeds_stay_within_their_limits():
    env = Crash("I")
    for action in (np.ones(8), -np.ones(8), np.tile([1.0, -1.0], 4)):
        env.reset(seed=3)
        for _ in range(HORIZON):
            env._advance(action)
        ego, car, *walkers = env.road.vehicles
        assert min(ego.speed, car.speed) >= 0
        assert max(ego.speed, car.speed) <= 15
        assert max(np.hypot(*walker.velocity) for walker in walkers) <= 2.5 + 1e-12


def test_bodies_pass_through_each_other():
    env = Crash("I")
    env.reset(seed=3)
    ego = env.exact_state()[:5]
    env._advance(np.zeros(8))
    alone = env.exact_state()
    env.reset(seed=3)
    env.intervene("car", ego)
    env.intervene("ped1", np.append(ego[:2], [0, 0, 0]))
    env._advance(np.zeros(8))
    assert (env.exact_state()[:5] == alone[:5]).all()
    assert not any(vehicle.crashed for vehicle in env.road.vehicles)


def test_near_miss_is_the_distance_to_highway_envs_polygon():
    rng, env = np.random.default_rng(0), Crash("I")
    env.reset(seed=0)
    ego, _, walker, _ = env.road.vehicles
    near = []
    for _ in range(2000):
        heading = rng.uniform(-3, 3)
        ego.set_state(np.array([*rng.uniform(-5, 5, 2), 0, 0, heading]))
        walker.set_state(np.append(ego.position + rng.uniform(-5, 5, 2), [0, 0, 0]))
        corners = ego.polygon()
        inside, gap = True, np.inf
        for a, b in itertools.pairwise(corners):
            edge, to = b - a, walker.position - a
            inside &= edge[0] * to[1] - edge[1] * to[0] <= 0
            gap = min(gap, np.linalg.norm(to - np.clip(to @ edge / (edge @ edge), 0, 1) * edge))
        assert ego.near_miss(walker) == (inside or gap < 1.0)
        near.append(ego.near_miss(walker))
    assert 0.1 < np.mean(near) < 0.9


def test_flags_latch_and_decide_success():
    env = Crash("I")
    _, info = env.reset(seed=0)
    required = int(env.exact_goal().argmax())
    ego = env.exact_state()[:5]
    env.intervene(f"ped{2 - required}", np.append(ego[:2] + [2.0, 0.0], [0, 0, 0]))  # the one that is not required
    *_, terminated, _, info = env.step(np.zeros(8, np.float32))
    assert env.exact_state()[20 + 1 - required] == 1
    assert not terminated
    assert not info["is_success"]
    env.intervene(f"ped{2 - required}", np.array([90.0, 9, 0, 0, 0]))
    env.intervene(f"ped{1 + required}", np.append(env.exact_state()[:2] + [2.0, 0.0], [0, 0, 0]))
    _, reward, terminated, _, info = env.step(np.zeros(8, np.float32))
    assert (env.exact_state()[20:22] == 1).all()
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)


@splits
def test_snapshot_and_restore_are_exact(split):
    env, rng = Crash(split, 4, "rgb_array"), np.random.default_rng(1)
    env.reset(seed=4)
    for _ in range(4):
        env.step(random_actions(rng, 1)[0])
    env.intervene(f"flag{1 + int(env.exact_goal().argmin())}", np.ones(1))  # one that does not end the episode
    snapshot, actions = env.snapshot(), random_actions(rng, 6)

    def play():
        out = [env.exact_state()]
        for action in actions:
            out.append(env.step(action)[0]["observation"])
        return np.concatenate(out), env.render()

    first, picture = play()
    env.reset(seed=5)
    env.restore(snapshot)
    again, same_picture = play()
    assert (first == again).all()
    assert (picture == same_picture).all()


def test_an_intervention_changes_only_its_factor():
    env, other = Crash("I", 4), CrashBatch("O", 4)
    other.reset([8])
    env.reset(seed=7)
    value = other.exact_state()[0]
    value[20:22] = 1
    for factor in env.factors.state:
        env.reset(seed=7)
        before = env.exact_state()
        env.intervene(factor.name, value[factor.slice])
        after = env.exact_state()
        np.testing.assert_allclose(after[factor.slice], value[factor.slice], atol=1e-12)
        rest = np.delete(np.arange(len(after)), np.arange(factor.start, factor.stop))
        assert (after[rest] == before[rest]).all()


# The fast batch -------------------------------------------------------------------------------------------
def compare(split, spurious, size, steps, level=None, seed=0):
    """Largest state error and number of compared steps, with the same actions given to both."""
    fast, real = CrashBatch(split, spurious), SimulatorBatch(Crash, split, spurious)
    rng, worst, count, episode = np.random.default_rng(seed), 0.0, 0, 0
    behaviour = CrashBehaviour(level) if level else None
    while count < steps:
        seeds = range(1000 * seed + episode, 1000 * seed + episode + size)
        episode += size
        observation = fast.reset(seeds)
        real.reset(seeds)
        if behaviour:
            behaviour.reset(fast, seeds)
        while not fast.done:
            count += int((~(fast.terminated | fast.truncated)).sum())
            actions = behaviour.act(observation) if behaviour else random_actions(rng, size)
            fast_step, real_step = fast.step(actions), real.step(actions)
            observation = fast_step.observation
            worst = max(worst, float(np.abs(fast.exact_state() - real.exact_state()).max()))
            assert (fast.exact_state()[:, 20:22] == real.exact_state()[:, 20:22]).all()
            for a, b in zip(fast_step[1:], real_step[1:], strict=True):
                assert (a == b).all()
    return worst, count


@pytest.mark.parametrize(
    ("split", "level", "spurious"), [("I", None, 1), ("O", None, 8), ("I", "medium", 4), ("O", "expert", 2)]
)
def test_batch_matches_highway_env(split, level, spurious):
    assert compare(split, spurious, 25, 1500, level)[0] < 1e-9


@pytest.mark.long
@splits
@pytest.mark.parametrize(("level", "spurious"), [(None, 1), (None, 8), ("random", 2), ("medium", 4), ("expert", 1)])
def test_batch_matches_highway_env_for_ten_thousand_steps(split, level, spurious):
    worst, count = compare(split, spurious, 50, 10_000, level, seed=1)
    print(f"{split} {level} x{spurious}: error {worst:.1e} over {count} steps")
    assert worst < 1e-9


def test_episodes_are_bitwise_equal_in_any_batch():
    rng, seeds = np.random.default_rng(0), np.arange(37)
    actions = rng.uniform(-1, 1, (HORIZON, 37, 8)).astype(np.float32)

    def play(rows):
        batch = CrashBatch("I", 2)
        batch.reset(seeds[rows])
        for t in range(HORIZON):
            batch.step(actions[t, rows])
        return batch.exact_state()

    together = play(np.arange(37))
    for size in (1, 3, 8):
        for start in range(0, 37, size):
            rows = np.arange(start, min(start + size, 37))
            assert (play(rows) == together[rows]).all()


def test_crash_step_takes_any_leading_shape_and_jax_arrays():
    batch, rng = CrashBatch("O", 2), np.random.default_rng(2)
    batch.reset(range(6))
    state, slope = batch.exact_state(), batch.hidden()["slope"]
    action = rng.uniform(-1, 1, (6, 8))
    before = state.copy()
    flat = crash_step(state, action, slope[:, 0], slope[:, 1])
    assert (state == before).all()
    folded = crash_step(
        state.reshape(2, 3, 23), action.reshape(2, 3, 8), slope[:, 0].reshape(2, 3), slope[:, 1].reshape(2, 3)
    )
    assert (folded.reshape(6, 23) == flat).all()
    one = crash_step(state[0], action[0], slope[0, 0], slope[0, 1])
    assert (one == flat[0]).all()
    batch.step(action)
    assert (batch.exact_state() == flat).all()
    single = [jnp.asarray(x, jnp.float32) for x in (state, action, slope[:, 0], slope[:, 1])]
    np.testing.assert_allclose(np.asarray(jax.jit(crash_step)(*single)), flat, atol=2e-5)
    # Without `car_slope` the car has the slope of the others.
    same = crash_step(state, action, slope[:, 0])
    assert (same[:, :5] == flat[:, :5]).all()
    assert (same[:, 5:10] != flat[:, 5:10]).any()


# Spaces and picture --------------------------------------------------------------------------------------
def test_passes_gymnasiums_checker_without_warnings():
    env = gymnasium.make("because/Crash-v1", split="O", spurious=4, render_mode="rgb_array").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@splits
def test_extreme_actions_stay_in_space(split):
    """Every corner of the action box held for a whole episode, and corners drawn anew each step."""
    batch, rng = CrashBatch(split), np.random.default_rng(0)
    low, high = (np.float32(bound) for bound in Crash.state_bounds(1))
    corners = np.array(np.meshgrid(*[[-1, 1]] * 8)).reshape(8, -1).T
    batch.reset(range(len(corners)))
    start, slope = batch.exact_state(), batch.hidden()["slope"]
    for held in (True, False):
        state = start
        for _ in range(HORIZON):
            action = corners if held else rng.choice([-1.0, 1.0], corners.shape)
            state = crash_step(state, action, slope[:, 0], slope[:, 1])
            assert ((np.float32(state) >= low) & (np.float32(state) <= high)).all()


def check_random_steps_of_highway_env_stay_in_space(split, min_steps):
    env, steps, seed = Crash(split, 2), 0, 0
    env.action_space.seed(0)
    while steps < min_steps:
        observation, _ = env.reset(seed=seed)
        seed += 1
        while not env._done:
            observation, *_ = env.step(env.action_space.sample())
            steps += 1
            assert env.observation_space.contains(observation)


@splits
def test_random_steps_of_highway_env_stay_in_space(split):
    check_random_steps_of_highway_env_stay_in_space(split, 700)


@pytest.mark.long
@splits
def test_ten_thousand_steps_of_highway_env_stay_in_space(split):
    check_random_steps_of_highway_env_stay_in_space(split, 10_000)


def test_picture_shows_bodies_and_flags():
    env = Crash("O", render_mode="rgb_array")
    env.reset(seed=3)
    first = env.render()
    assert first.shape == (320, 720, 3)
    assert first.dtype == np.uint8
    action = np.zeros(8, np.float32)
    action[[0, 5, 7]] = -0.3, -1.0, 1.0
    for _ in range(10):
        env.step(action)
    assert (env.render() != first).mean() > 0.005
    for name in BODIES:
        before = env.render()
        env.intervene(name, env.exact_state()[env.factors[name].slice] + [3.0, 0, 0, 0, 0])
        assert (env.render() != before).any(), name
    before = env.render()
    env.intervene("flag1", np.ones(1))
    lit = env.render()
    red = [(np.abs(picture.astype(int) - FIRED).sum(-1) < 12).sum() for picture in (before, lit)]
    assert red[1] - red[0] > 100
    env = Crash("I")
    env.reset(seed=3)
    assert env.render() is None
