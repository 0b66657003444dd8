"""What clients of Gymnasium look for in the worlds: goal observations, time limits, pickling, typed access."""

import copy
import pickle
import subprocess
import sys
import typing

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeAwareObservation

from because_rl.envs.tasks import WORLDS, make_batch, world_class
from because_rl.envs.world import World, get_world
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.graph import Graph
from tests.support import REPOSITORY

pytestmark = pytest.mark.slow

worlds = pytest.mark.parametrize("world", WORLDS)
SOLVED = {"unlock": 1, "crash": 1, "lift": 0}
"""A seed whose episode the expert solves."""


def make(world, **kwargs):
    return gymnasium.make(f"because/{world.capitalize()}-v1", **kwargs)


def expert_actions(world, seed):
    """The actions with which the expert solves this scene, planned in the fast counterpart of the world."""
    from because_rl.datasets.recipe import Recipe

    batch, behaviour = make_batch(world), Recipe.parse(f"{world}-expert").make_behaviour()
    observation, actions = batch.reset([seed]), []
    behaviour.reset(batch, [seed])
    while not batch.done:
        actions.append(behaviour.act(observation)[0])
        observation = batch.step(actions[-1][None]).observation
    batch.close()
    assert batch.terminated[0]
    return actions


@worlds
def test_rewards_follow_from_observations(world):
    """An expert's episode, which ends at its goal, and the start of a random one."""
    env = make(world)
    actions = expert_actions(world, SOLVED[world])
    env.reset(seed=SOLVED[world])
    steps = [env.step(action) for action in actions]
    env.reset(seed=0)
    env.action_space.seed(0)
    steps += [env.step(env.action_space.sample()) for _ in range(5)]
    assert [step[1] for step in steps] == [0.0] * (len(actions) - 1) + [1.0] + [0.0] * 5
    inner, columns = get_world(env), goal_columns(get_world(env).factors)
    for observation, reward, terminated, truncated, info in steps:
        goals = observation["achieved_goal"], observation["desired_goal"], info
        assert inner.compute_reward(*goals) == reward
        assert inner.compute_terminated(*goals) == terminated == info["is_success"]
        assert inner.compute_truncated(*goals) == truncated
        assert np.array_equal(observation["achieved_goal"], observation["observation"][columns])
        assert env.observation_space.contains(observation)
    batch = [np.stack([step[0][key] for step in steps]) for key in ("achieved_goal", "desired_goal")]
    infos = [step[4] for step in steps]
    assert inner.compute_reward(*batch, infos).tolist() == [step[1] for step in steps]
    assert inner.compute_terminated(*batch, infos).tolist() == [step[2] for step in steps]
    assert inner.compute_truncated(*batch, infos).tolist() == [step[3] for step in steps]
    twice = [part[None].repeat(2, 0) for part in batch]
    assert inner.compute_reward(*twice, {}).shape == (2, len(steps))
    env.close()


def goal_columns(factors):
    """State columns that the goal is about, in the order of the goal's columns."""
    return np.concatenate([np.arange(factors.state_size)[factors[goal.factor].slice] for goal in factors.goal])


def test_achieved_goal_is_in_the_columns_of_the_goal():
    state = pack(("a", 2, "continuous"), ("b", 1, "continuous"), ("c", 1, "continuous"))
    goal = (
        GoalFactor("late", 1, 3, "continuous", factor="a", relation="at_most"),
        GoalFactor("early", 0, 1, "continuous", factor="c", relation="at_least"),
    )
    spec = FactorSpec(state, pack(("push", 1, "continuous")), goal)
    rows = np.arange(8.0).reshape(2, 4)
    assert spec.achieved_goal(rows).tolist() == [[3, 0, 1], [7, 4, 5]]
    wanted = np.array([7.0, 4.0, 5.0])
    assert spec.satisfied(spec.achieved_goal(rows), wanted).tolist() == spec.reached(rows, wanted).tolist()
    assert spec.reached(rows, wanted).tolist() == [False, True]


def test_reward_is_that_of_float32_observations_near_the_goal(monkeypatch):
    """Heights at which float64 and float32 disagree about the goal count as they are observed, in world and batch."""
    env, batch = world_class("lift")(), make_batch("lift")
    env.reset(seed=0)
    batch.reset([0])
    state, goal, height = env.exact_state(), env.exact_goal(), env.factors["cube_z"].start
    disagreements = 0
    for offset in np.linspace(-1.2e-6, -0.8e-6, 100):
        state[height] = goal[0] + offset
        monkeypatch.setattr(env, "exact_state", state.copy)
        observation, info = env._observe(), env._info(env._observe())
        reward = env.compute_reward(observation["achieved_goal"], observation["desired_goal"], info)
        monkeypatch.setattr(batch, "_advance", lambda columns, active: None)
        monkeypatch.setattr(batch, "exact_state", lambda: state[None].copy())
        batch.terminated[:], batch.truncated[:], batch.steps = False, False, 0
        assert batch.step(np.zeros((1, 4))).reward[0] == reward == info["is_success"]
        disagreements += reward != env.factors.reached(state, goal)
    assert disagreements > 0
    batch.close()


@worlds
def test_an_episode_is_truncated_once_at_its_horizon(world):
    env, alone = make(world), world_class(world)()
    assert env.spec.max_episode_steps == alone.horizon
    action = 0 if world == "unlock" else np.zeros(env.action_space.shape, np.float32)
    for start in (env, alone):
        start.reset(seed=3)
    for step in range(1, alone.horizon + 1):
        observation, reward, *ends, info = env.step(action)
        other, other_reward, *other_ends, _ = alone.step(action)
        assert (reward, ends) == (other_reward, other_ends) == (0.0, [False, step == alone.horizon])
        assert all(np.array_equal(observation[key], other[key]) for key in other)
        assert info["steps"] == step
        goals = observation["achieved_goal"], observation["desired_goal"]
        assert alone.compute_truncated(*goals, info) == ends[1]
        assert alone.compute_truncated(*(goal[None] for goal in goals), [info]).tolist() == [ends[1]]
    with pytest.raises(BecauseError, match="after the episode ended"):
        env.step(action)
    env.close()
    alone.close()


@worlds
def test_time_can_be_added_to_observations(world):
    env = TimeAwareObservation(make(world), flatten=False, normalize_time=True)
    env.reset(seed=0)
    observation, *_ = env.step(env.action_space.sample())
    assert observation["time"] == pytest.approx(1 / WORLDS[world].horizon)
    env.close()


@worlds
def test_calls_before_reset_raise_errors(world):
    for env in (make(world, render_mode="rgb_array"), world_class(world)()):
        with pytest.raises(BecauseError, match=f"{world}.step was called before reset"):
            env.step(env.action_space.sample())
        with pytest.raises(BecauseError, match=f"{world}.render was called before reset"):
            env.render()


@pytest.mark.parametrize("world", ["crash", "lift"])
def test_actions_of_any_number_type_are_accepted(world):
    env = make(world)
    single = np.linspace(-1, 1, env.action_space.shape[0], dtype=np.float32)
    after = []
    for action in (single, single.astype(np.float64), single.tolist()):
        env.reset(seed=0)
        after.append(env.step(action)[0]["observation"])
    assert (after[0] == after[1]).all()
    assert (after[0] == after[2]).all()
    for bad in (single * 1.01, single[:-1], np.full_like(single, np.nan), "up", None):
        with pytest.raises(BecauseError, match="Got the action"):
            env.step(bad)
    env.close()


@worlds
def test_a_pickled_world_continues_identically(world):
    env = make(world, split="O", spurious=2)
    env.reset(seed=4)
    env.action_space.seed(1)
    for _ in range(3):
        env.step(env.action_space.sample())
    extra = get_world(env).factors.state[-1]  # a change that no replay of actions would reproduce
    get_world(env).intervene(extra.name, np.eye(extra.width)[0])
    other = pickle.loads(pickle.dumps(env))  # noqa: S301  (our own)
    third = copy.deepcopy(get_world(env))
    assert get_world(other).true_graph() == third.true_graph() == get_world(env).true_graph()
    for _ in range(4):
        action = env.action_space.sample()
        assert np.array_equal(action, other.action_space.sample())
        expected = env.step(action)
        for step in (other.step(action), third.step(action)):
            assert step[1:4] == expected[1:4]
            for part in (0, 4):
                assert all(np.array_equal(step[part][key], value) for key, value in expected[part].items())
    assert env.reset()[1]["seed"] == other.reset()[1]["seed"]
    for one in (env, other, third):
        one.close()


@worlds
def test_a_world_is_pickled_before_reset(world):
    env = pickle.loads(pickle.dumps(make(world, split="O", render_mode="rgb_array")))  # noqa: S301  (our own)
    assert (get_world(env).split, env.render_mode) == ("O", "rgb_array")
    with pytest.raises(BecauseError, match="before reset"):
        env.render()


def test_get_world_refuses_other_environments():
    with pytest.raises(BecauseError, match="CartPole"):
        get_world(gymnasium.make("CartPole-v1"))


def test_factors_and_graph_have_types():
    assert typing.get_type_hints(get_world)["return"] is World
    assert World.__annotations__["factors"] == FactorSpec.__name__
    assert typing.get_type_hints(World.true_graph)["return"] is Graph
    assert (REPOSITORY / "because_rl/py.typed").is_file()


TYPED = """
import gymnasium
from because_rl.envs.world import get_world

env = gymnasium.make("because/Unlock-v1", split="O")
world = get_world(env)
reveal_type(world.factors)
reveal_type(world.true_graph())
reveal_type(world.reset(seed=0)[0])
world.no_such_name
"""


@pytest.mark.long
def test_mypy_knows_factors_and_graph(tmp_path):
    (tmp_path / "user.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(tmp_path / "user.py")], capture_output=True, text=True, cwd=REPOSITORY)
    lines = [line for line in done.stdout.splitlines() if "user.py" in line]
    for line, shown in zip(lines, ("factors.FactorSpec", "graph.Graph", "dict[str", "no_such_name"), strict=True):
        assert shown in line
