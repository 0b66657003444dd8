"""Lift: scenes, robosuite behind Gymnasium, the fast batch against robosuite, interventions, pictures."""

import os
import subprocess
import sys
from ctypes.util import find_library

import mujoco
import numpy as np
import pytest

from because_rl.envs.lift import simulator
from because_rl.envs.lift.batch import LiftBatch
from because_rl.envs.lift.behaviour import expert
from because_rl.envs.lift.env import CONTACT, GOAL_HEIGHT, HORIZON, Lift, draw_scene
from because_rl.envs.lift.osc import KP_POSTURE, osc
from because_rl.envs.parallel import ParallelBatch
from because_rl.envs.tasks import make_batch
from because_rl.errors import BecauseError

pytestmark = pytest.mark.slow

SPEC = Lift.make_factors(1)


@pytest.fixture(scope="module")
def env():
    """One robosuite simulation for all tests, which every test resets."""
    env = Lift(render_mode="rgb_array")
    yield env
    env.close()


@pytest.fixture(scope="module")
def batch():
    batch = LiftBatch()
    yield batch
    batch.close()


def random_actions(seed, count, hold=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (-(-HORIZON // hold), count, 4)).repeat(hold, 0)[:HORIZON]


def step_to_grasp(env, seed):
    """Follow the expert until the fingers hold the cube."""
    env.reset(seed=seed)
    while not env.exact_state()[CONTACT]:
        env.advance(expert(env.exact_state()[None])[0])


# Scenes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("split", "sign"), [("I", 1), ("O", -1)])
def test_hidden_side_determines_cube_position_and_colour(split, sign):
    scenes = [draw_scene(seed, split, 4) for seed in range(3000)]
    x, y, yaw, u_c, u_pi = (np.array([getattr(s, name) for s in scenes]) for name in ("x", "y", "yaw", "u_c", "u_pi"))
    colour = np.stack([scene.colours for scene in scenes])
    for value, bound in ((x, 0.1), (yaw, np.pi / 4)):
        assert 0.98 * bound < value.max() <= bound
        assert -bound <= value.min() < -0.98 * bound
        assert abs(np.corrcoef(value, y)[0, 1]) < 0.05
    assert abs(y).max() <= 0.15
    assert set(u_c) == {-1, 1}
    assert abs(u_c.mean()) < 0.06
    assert abs((y - 0.12 * u_c).std() - 0.015) < 0.002
    np.testing.assert_allclose(colour[:, 0], 0.5 + sign * 0.4 * y / 0.12, atol=1e-12)
    assert ((colour >= 0) & (colour <= 1)).all()
    correlations = [np.corrcoef(colour[:, k], y)[0, 1] * sign for k in range(4)]
    assert correlations[0] > 0.99
    assert correlations[1] < -0.97
    assert correlations[2] > 0.97
    assert correlations[3] < -0.97
    assert set(u_pi) == set(range(6, 16))
    assert abs(np.corrcoef(u_pi, u_c)[0, 1]) < 0.05


def test_spaces_have_the_sizes_of_the_paper(env):
    state, goal = env.observation_space["observation"], env.observation_space["desired_goal"]
    assert (state.shape, env.action_space.shape, goal.shape) == ((33,), (4,), (1,))
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation["desired_goal"][0] == np.float32(GOAL_HEIGHT)
    assert info["u_c"] in (-1, 1)
    assert Lift.state_bounds(4)[0].shape == (36,)


# robosuite -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_state_matches_robosuites_observation(env):
    env.reset(seed=3)
    for action in random_actions(3, 1)[:5, 0]:
        env.advance(action)
    state, observed = env.exact_state(), env.robot._get_observations(force_update=True)
    np.testing.assert_allclose(state[0:3], observed["robot0_eef_pos"], atol=1e-12)
    np.testing.assert_allclose(state[7:14], observed["robot0_joint_pos"], atol=1e-12)
    np.testing.assert_allclose(state[14:21], observed["robot0_joint_vel"], atol=1e-12)
    np.testing.assert_allclose(state[21:24], observed["cube_pos"], atol=1e-12)
    np.testing.assert_allclose(state[24:28], observed["cube_quat"], atol=1e-12)
    np.testing.assert_allclose(state[28:31], observed["cube_pos"] - observed["robot0_eef_pos"], atol=1e-12)
    overlap = abs(state[3:7] @ observed["robot0_eef_quat_site"])
    assert overlap == pytest.approx(1, abs=1e-6)  # robosuite computes this one in float32


def test_the_cube_rests_at_its_rest_height(env):
    env.reset(seed=0)
    for _ in range(10):
        env.advance(np.array([0.0, 0.0, 0.5, -1.0]))
    assert env.exact_state()[SPEC["cube_z"].start] == pytest.approx(simulator.REST_HEIGHT, abs=1e-6)


def test_gripper_command_does_not_depend_on_earlier_steps(env):
    commands = []
    for before in (-1.0, 1.0):
        env.reset(seed=0)
        env.advance(np.array([0.0, 0.0, 0.0, before]))
        for now in (-0.3, 0.0, 0.2):
            env.advance(np.array([0.0, 0.0, 0.0, now]))
            commands.append(env._data.ctrl[-2:].tolist())
    assert commands == 2 * [[0.04, -0.04], [0.04, -0.04], [0.0, 0.0]]


def test_lift_prints_nothing():
    code = "from because_rl.envs.lift.env import Lift; e = Lift(); e.reset(seed=0); e.step(e.action_space.sample())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_error_without_robosuite_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(BecauseError, match=r"pip install --no-deps robosuite==1\.5\.2"):
        simulator._robosuite.__wrapped__()


# The fast batch -----------------------------------------------------------------------------------------------
def largest_difference(env, batch, seeds, actions):
    """Largest difference of each state column over whole episodes, which success does not end."""
    batch.reset(seeds)
    states = [batch.exact_state()]
    for action in actions:
        batch._advance(action, np.ones(len(seeds), bool))
        states.append(batch.exact_state())
    largest = np.zeros(states[0].shape[1])
    for n, seed in enumerate(seeds):
        env.reset(seed=seed)
        for step, state in enumerate(states):
            largest = np.maximum(largest, abs(env.exact_state() - state[n]))
            if step < len(actions):
                env.advance(actions[step][n])
    return largest


def without_velocities(columns):
    """All state columns but the joint velocities."""
    return np.delete(columns, np.arange(SPEC["joint_vel"].start, SPEC["joint_vel"].stop))


def check_batch_matches_robosuite(env, batch, episodes, hold, tolerance):
    difference = largest_difference(env, batch, range(episodes), random_actions(hold, episodes, hold))
    assert without_velocities(difference).max() < tolerance
    assert difference[CONTACT] == 0


# Actions that are held for several steps drive the arm into its limits and the table, where rounding errors grow.
@pytest.mark.slow
@pytest.mark.parametrize(("hold", "tolerance"), [(1, 1e-9), (6, 1e-5)])
def test_batch_matches_robosuite(env, batch, hold, tolerance):
    check_batch_matches_robosuite(env, batch, 3, hold, tolerance)


@pytest.mark.long
@pytest.mark.parametrize(("hold", "tolerance"), [(1, 1e-9), (5, 1e-4)])
def test_batch_matches_robosuite_over_thirty_episodes(env, batch, hold, tolerance):
    check_batch_matches_robosuite(env, batch, 30, hold, tolerance)


def test_first_steps_agree_to_rounding(env, batch):
    """Contacts amplify nothing yet, and robosuite's first command after a reset uses the current state."""
    assert largest_difference(env, batch, range(3), random_actions(9, 3)[:2]).max() < 1e-12


def test_an_episode_depends_on_its_seed_only():
    """Bitwise: not on the rest of the batch, its place in it, earlier episodes or the number of threads."""
    actions = random_actions(0, 3)[:8]
    alone, together = LiftBatch(workers=1), LiftBatch(workers=3)
    ends = []
    for batch, seeds in ((together, [7, 8, 9]), (alone, [9]), (together, [9, 7, 8]), (together, [7, 8, 9])):
        batch.reset(seeds)
        for action in actions:
            batch._advance(action[[seed - 7 for seed in seeds]], np.ones(len(seeds), bool))
        ends.append(batch.exact_state())
    assert (ends[0][2] == ends[1][0]).all()
    assert (ends[0][[2, 0, 1]] == ends[2]).all()
    assert (ends[0] == ends[3]).all()
    for batch in (alone, together):
        batch.close()


def test_controller_matches_numpy():
    """The formulas of the docstring of `osc`, with explicit inverses."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(15, 15))
    mass, jac = root @ root.T + np.eye(15), rng.normal(size=(6, 15))
    q, qd, bias, rest = rng.normal(size=(4, 15))
    jac[:, 7:] = 0  # fingers and cube do not move the hand
    rotation, goal_rotation = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    position, goal = rng.normal(size=(2, 3))
    limits, torque = np.array([[-1e3, 1e3]] * 7), np.zeros(9)
    limits[2] = -0.1, 0.1
    osc(mass, jac[:3], jac[3:], position, rotation, goal, goal_rotation, rest[:7], q, qd, bias, limits, torque)

    m, j, v = mass[:7, :7], jac[:, :7], qd[:7]
    inverse = np.linalg.inv(m)
    turn = 0.5 * np.cross(rotation, goal_rotation, axis=0).sum(1)
    kp, kd = simulator.KP, 2 * np.sqrt(simulator.KP)
    force = np.linalg.inv(j[:3] @ inverse @ j[:3].T) @ (kp * (goal - position) - kd * j[:3] @ v)
    moment = np.linalg.inv(j[3:] @ inverse @ j[3:].T) @ (kp * turn - kd * j[3:] @ v)
    null = np.eye(7) - inverse @ j.T @ np.linalg.inv(j @ inverse @ j.T) @ j
    posture = null.T @ m @ (KP_POSTURE * (rest[:7] - q[:7]) - 2 * np.sqrt(KP_POSTURE) * v)
    expected = j.T @ np.append(force, moment) + bias[:7] + posture
    np.testing.assert_allclose(torque[:7], np.clip(expected, *limits.T), rtol=1e-9)
    assert (torque[7:] == 0).all()


def test_mujoco_state_is_complete():
    """The integration state that `LiftBatch` saves determines the future: actuators and plugins have no state."""
    model = LiftBatch(workers=1)._steppers[0].model
    assert model.na == 0
    assert model.nplugin == 0
    assert mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION) < 300


def test_processes_change_no_results():
    plain, shared = LiftBatch("O"), make_batch("lift", "O", processes=2)
    try:
        assert isinstance(shared, ParallelBatch)
        seeds = list(range(50))
        first, again = plain.reset(seeds), shared.reset(seeds)
        np.testing.assert_array_equal(first.state, again.state)
        np.testing.assert_array_equal(first.goal, again.goal)
        np.testing.assert_array_equal(plain.hidden()["u_c"], shared.hidden()["u_c"])
        rng = np.random.default_rng(0)
        for _ in range(3):
            actions = plain.random_actions(rng)
            np.testing.assert_array_equal(plain.step(actions).observation.state, shared.step(actions).observation.state)
        assert len(shared._workers) == 2
        processes = [process for process, _ in shared._workers]
        processes[0].kill()
        with pytest.raises(BecauseError, match="has died"):
            shared.step(actions)
    finally:
        plain.close()
        shared.close()
    assert not any(process.is_alive() for process in processes)


# Snapshots and interventions ---------------------------------------------------------------------------------
def test_snapshot_and_restore_are_exact(env):
    step_to_grasp(env, 5)
    snapshot, actions = env.snapshot(), random_actions(1, 1)[:6, 0]

    def play():
        states = [env.exact_state()]
        for action in actions:
            env.advance(action)
            states.append(env.exact_state())
        return np.stack(states)

    first = play()
    env.reset(seed=6)
    env.advance(actions[3])
    env.restore(snapshot)
    assert (play() == first).all()
    assert env._steps == snapshot.steps + len(actions)


def changed(before, after, tolerance=0.0):
    """Names of the factors that differ."""
    differs = abs(after - before) > tolerance
    return {factor.name for factor in SPEC.state if differs[factor.slice].any()}


def test_interventions_change_only_the_stated_factors(env):
    env.reset(seed=2)
    for _ in range(3):
        env.advance(np.array([0.4, -0.3, -0.5, -1.0]))
    snapshot, before = env.snapshot(), env.exact_state()
    shifted = {factor: before[SPEC[factor].start] + 0.01 for factor in SPEC.targets if SPEC[factor].width == 1}
    turned = np.array([np.sin(0.1), 0, 0, np.cos(0.1)])
    hand = {f"{part}_{axis}" for part in ("eef", "rel") for axis in "xyz"} | {"eef_quat"}
    cases = {
        "joint_vel": (before[14:21] + 0.1, {"joint_vel"}),
        "joint_pos": (before[7:14] + 0.02, hand | {"joint_pos"}),
        "cube_quat": (turned, {"cube_quat"}),
        "colour": (0.2, {"colour"}),
        "eef_quat": (before[3:7] + [0.01, -0.01, 0.02, 0.0], {"eef_quat", "joint_pos"}),
    }
    for axis in "xyz":
        cases[f"cube_{axis}"] = (shifted[f"cube_{axis}"], {f"cube_{axis}", f"rel_{axis}"})
        cases[f"rel_{axis}"] = (shifted[f"rel_{axis}"], {f"cube_{axis}", f"rel_{axis}"})
        cases[f"eef_{axis}"] = (shifted[f"eef_{axis}"], {f"eef_{axis}", "joint_pos", f"rel_{axis}"})
    for factor, (value, expected) in cases.items():
        env.restore(snapshot)
        env.intervene(factor, np.atleast_1d(value))
        after = env.exact_state()
        assert changed(before, after, 1e-9) == expected, factor
        value = value / np.linalg.norm(value) if factor.endswith("quat") else value
        np.testing.assert_allclose(after[SPEC[factor].slice], value, atol=1e-9, err_msg=factor)
    with pytest.raises(BecauseError, match="the factor 'mass'"):
        env.intervene("mass", np.ones(1))
    env.restore(snapshot)
    with pytest.raises(BecauseError, match="cannot bring the hand"):
        env.intervene("eef_x", np.array([3.0]))
    env.restore(snapshot)
    with pytest.raises(BecauseError, match="cannot hold the cube"):
        env.intervene("contact", np.ones(1))


def test_fingers_make_and_break_contact(env):
    step_to_grasp(env, 4)
    before = env.exact_state()
    env.intervene("contact", np.zeros(1))
    assert changed(before, env.exact_state()) == {"contact"}
    env.intervene("contact", np.ones(1))
    assert changed(before, env.exact_state()) == set()


def test_colours_have_no_effect():
    env = Lift(spurious=4)
    step_to_grasp(env, 1)
    snapshot = env.snapshot()
    env.advance(np.array([0.3, 0.2, 0.9, 1.0]))
    expected = env.exact_state()
    for factor in ("colour", "colour_2", "colour_4"):
        env.restore(snapshot)
        env.intervene(factor, np.array([0.111]))
        env.advance(np.array([0.3, 0.2, 0.9, 1.0]))
        after = env.exact_state()
        assert np.flatnonzero(after != expected).tolist() == [env.factors[factor].start]
        assert after[env.factors[factor].start] == 0.111


# Pictures --------------------------------------------------------------------------------------------------
@pytest.mark.skipif(find_library("EGL") is None, reason="no EGL here: apt-get install libegl1")
def test_picture_shows_the_colour_and_keeps_the_physics(env):
    env.reset(seed=0)
    env.advance(np.array([0.1, 0.2, 0.3, 1.0]))
    before = env.snapshot()
    env._camera = None
    env.intervene("colour", np.ones(1))
    orange = env.render()
    env.intervene("colour", np.zeros(1))
    blue = env.render()
    assert orange.shape == (506, 640, 3)
    assert orange.dtype == np.uint8
    assert (env.snapshot().physics == before.physics).all()
    cube = abs(orange[:480].astype(int) - blue[:480]).sum(-1) > 100
    assert 200 < cube.sum() < 3000  # a cube of about 25 pixels
    assert orange[:480][cube][:, 0].mean() > 1.5 * orange[:480][cube][:, 2].mean()
    assert blue[:480][cube][:, 2].mean() > 1.5 * blue[:480][cube][:, 0].mean()
    assert orange.std() > 20


NO_EGL = """
import sys

class NoEGL:
    def find_spec(self, name, path=None, target=None):
        if name in ("OpenGL.EGL", "mujoco.egl"):
            raise AttributeError("'NoneType' object has no attribute 'eglQueryString'")

sys.meta_path.insert(0, NoEGL())
"""
WITHOUT_EGL = """
import os, sys
from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe
from because_rl.envs.lift.env import Lift
from because_rl.errors import BecauseError

recipe = Recipe.parse("lift-expert", 2)
collect(recipe, sys.argv[1], workers=1)
assert load(recipe.id, sys.argv[1]).episodes == 2
env = Lift(render_mode="rgb_array")
env.reset(seed=0)
try:
    env.render()
except BecauseError as error:
    print(os.environ.get("MUJOCO_GL"), error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["egl", pytest.param(None, marks=pytest.mark.long)])
def test_only_rendering_needs_egl(tmp_path, backend):
    """A process of its own, in which OpenGL's EGL cannot be imported, whatever MUJOCO_GL says."""
    (tmp_path / "sitecustomize.py").write_text(NO_EGL)
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment |= {"MUJOCO_GL": backend} if backend else {}
    command = [sys.executable, "-c", WITHOUT_EGL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{backend} Lift cannot render here")
    assert "apt-get install libegl1" in done.stdout


def test_error_without_egl_names_the_package(env, monkeypatch):
    from robosuite.utils import binding_utils

    def missing(*args, **kwargs):
        raise ImportError("libEGL.so.1: cannot open shared object file")

    env.reset(seed=0)
    monkeypatch.setattr(binding_utils, "MjRenderContextOffscreen", missing)
    monkeypatch.setattr(env, "_camera", None)
    with pytest.raises(BecauseError, match="apt-get install libegl1"):
        env.render()
