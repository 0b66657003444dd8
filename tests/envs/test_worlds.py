"""The interface that all worlds share, on every simulator."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from because_rl.envs.parallel import ParallelBatch
from because_rl.envs.tasks import SPLITS, TASKS, WORLDS, Task, make_batch, world_class
from because_rl.envs.unlock.batch import UnlockBatch
from because_rl.envs.world import get_world
from because_rl.errors import BecauseError

SIZES = {  # the paper's table of environment configurations: state, action, state factors, action factors, horizon
    "lift": (33, 4, 15, 4, 30),
    "unlock": (110, 8, 4, 3, 15),
    "crash": (22, 8, 6, 4, 30),
}
worlds = pytest.mark.parametrize("world", WORLDS)


def make(world, **kwargs):
    return get_world(gymnasium.make(f"because/{world.capitalize()}-v1", **kwargs))


def test_there_are_eighteen_tasks():
    assert len({task.name for task in TASKS}) == 18
    assert Task.parse("CRASH-o-expert") == Task("crash", "O", "expert")
    with pytest.raises(BecauseError, match="no task 'lift-I'"):
        Task.parse("lift-I")


@worlds
def test_sizes_match_the_paper(world):
    cls = world_class(world)
    factors = cls.make_factors(1)
    sizes = factors.state_size, factors.action_size, len(factors.state), len(factors.action), cls.horizon
    assert sizes == SIZES[world]
    assert WORLDS[world].horizon == cls.horizon
    for level in (2, 4, 8):
        assert len(cls.make_factors(level).state) == len(factors.state) + level - 1


@worlds
@pytest.mark.parametrize("spurious", [1, 4])
def test_true_graph_is_over_the_factors(world, spurious):
    env = make(world, spurious=spurious)
    graph = env.true_graph()
    assert graph.inputs == env.factors.inputs
    assert graph.targets == env.factors.targets
    assert all((name, name) in graph.edges for name in graph.targets)
    env.close()


@worlds
def test_passes_gymnasiums_checker(world):
    env = make(world, split="O", spurious=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not within the observation space bounds.*infinity.*")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.slow
@worlds
def test_seed_determines_the_episode(world):
    env = make(world)

    def play(seed):
        rng = np.random.default_rng(seed)
        observation, info = env.reset(seed=seed)
        states = [observation["observation"]]
        for _ in range(5):
            action = (
                int(rng.integers(env.action_space.n))
                if hasattr(env.action_space, "n")
                else rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            )
            states.append(env.step(action)[0]["observation"])
        return np.stack(states), info

    first, info = play(7)
    play(8)
    again, again_info = play(7)
    assert (first == again).all()
    assert all(np.array_equal(info[key], again_info[key]) for key in info)
    env.close()


@worlds
@pytest.mark.parametrize("split", SPLITS)
def test_fast_batch_starts_in_the_simulators_state(world, split):
    env, batch = make(world, split=split, spurious=4), make_batch(world, split, 4)
    batch.reset([5, 6])
    for n, seed in enumerate([5, 6]):
        _, info = env.reset(seed=seed)
        np.testing.assert_allclose(env.exact_state(), batch.exact_state()[n], atol=1e-9)
        np.testing.assert_array_equal(env.exact_goal(), batch.exact_goal()[n])
        for name, value in batch.hidden().items():
            np.testing.assert_allclose(info[name], value[n])
    env.close()
    batch.close()


@worlds
def test_hidden_confounders_are_in_info(world):
    env = make(world)
    _, info = env.reset(seed=0)
    assert {"u_c", "u_pi"} <= set(info)
    env.close()


def assert_in_space(space, states):
    assert ((states >= space.low) & (states <= space.high)).all(), np.argwhere(
        (states < space.low) | (states > space.high)
    )[0]


def check_random_steps_stay_in_space(world, split, min_steps, hold=1):
    """Each random action is held for `hold` steps: the longer, the farther bodies move."""
    batch = make_batch(world, split, 2)
    low, high = world_class(world).state_bounds(2)
    space = gymnasium.spaces.Box(np.float32(low), np.float32(high), dtype=np.float32)
    rng, steps, size, first_seed = np.random.default_rng(0), 0, {"lift": 20}.get(world, 200), 0
    while steps < min_steps:
        observation = batch.reset(range(first_seed, first_seed + size))
        first_seed += size
        while not batch.done:
            assert_in_space(space, observation.state)
            steps += int((~(batch.terminated | batch.truncated)).sum())
            if batch.steps % hold == 0:
                actions = batch.random_actions(rng)
            observation = batch.step(actions).observation
        for factor in batch.factors.state:
            assert not factor.invalid(observation.state[:, factor.slice]).any(), factor.name
    batch.close()


@pytest.mark.slow
@worlds
@pytest.mark.parametrize("split", SPLITS)
def test_random_steps_stay_in_space(world, split):
    check_random_steps_stay_in_space(world, split, 500, hold=10)


@pytest.mark.long
@worlds
@pytest.mark.parametrize("split", SPLITS)
def test_ten_thousand_random_steps_stay_in_space(world, split):
    check_random_steps_stay_in_space(world, split, 10_000)


@worlds
def test_ended_episodes_do_not_change(world):
    batch = make_batch(world)
    rng = np.random.default_rng(0)
    batch.reset([0, 1])
    for _ in range(batch.horizon):
        batch.step(batch.random_actions(rng))
    assert batch.done
    before = batch.exact_state().copy()
    step = batch.step(batch.random_actions(rng))
    assert (batch.exact_state() == before).all()
    assert not step.reward.any()
    batch.close()


@worlds
def test_misuse_raises_errors(world):
    with pytest.raises(BecauseError, match="split='X'"):
        make(world, split="X")
    with pytest.raises(BecauseError, match="spurious=3"):
        make(world, spurious=3)
    with pytest.raises(BecauseError, match="render_mode='human'"):
        world_class(world)(render_mode="human")
    env = make(world)
    with pytest.raises(BecauseError, match="before reset"):
        env.step(env.action_space.sample())
    env.reset(seed=0)
    with pytest.raises(BecauseError, match="the action 'up'"):
        env.step("up")
    env.close()
    batch = make_batch(world)
    batch.reset([0, 1])
    with pytest.raises(BecauseError, match="1 actions for 2 worlds"):
        batch.step(batch.random_actions(np.random.default_rng(0))[:1])
    batch.close()


class MissingBatch(UnlockBatch):
    def __init__(self, split, spurious):
        raise BecauseError("There is no minigrid.", need="it.", fix="install it.")


def test_error_of_a_worker_process_is_raised_here():
    batch = ParallelBatch(world_class("unlock"), MissingBatch)
    with pytest.raises(BecauseError, match=r"There is no minigrid\. Needed: it\. Fix: install it\."):
        batch.reset([0])
    batch.close()


def test_unknown_world_raises_an_error():
    with pytest.raises(BecauseError, match="no world 'pong'"):
        world_class("pong")
