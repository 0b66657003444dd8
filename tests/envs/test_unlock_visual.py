"""Pictures of Unlock: against minigrid's own renderer, as a Gymnasium environment, and as datasets."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from because_rl.datasets.collect import collect, rollout
from because_rl.datasets.minari_files import read_episodes, read_metadata
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.recipe import Recipe
from because_rl.envs.unlock.batch import UnlockBatch
from because_rl.envs.unlock.env import CELLS, Unlock
from because_rl.envs.unlock.pictures import STATE, TILE, draw
from because_rl.envs.unlock.simulator import Room
from because_rl.envs.unlock.visual import UnlockVisualBatch
from because_rl.errors import BecauseError
from because_rl.rng import stream

STATES = 1000


def random_states(count):
    """Different states of scenes of all splits: agent anywhere, key on the floor or carried, any of the doors left."""
    rng, per_split = stream(0, "pictures"), 2 * count // len(Unlock.splits)
    states = np.concatenate([UnlockBatch(split).reset(range(per_split)).state for split in Unlock.splits])
    n = len(states)
    states[:, :CELLS] = np.eye(CELLS)[rng.integers(0, CELLS, n)]
    states[:, 2 * CELLS : 3 * CELLS] *= rng.random((n, CELLS)) < 0.7
    carried = rng.random(n) < 0.5
    states[carried, CELLS : 2 * CELLS] = 0
    states[:, 3 * CELLS :] = np.eye(2)[carried.astype(int)]
    return rng.permutation(np.unique(states, axis=0))[:count]


def minigrid_picture(state):
    """What minigrid renders of its own grid; the carried key is an object in the corner of the wall."""
    room = Room(6)
    room.reset()
    room.agent_cell = int(state[:CELLS].argmax())
    for cell in np.flatnonzero(state[CELLS : 2 * CELLS]):
        room.put(cell, room.make_key())
    for cell in np.flatnonzero(state[2 * CELLS : 3 * CELLS]):
        room.put(cell, room.make_door())
    if state[STATE - 1]:
        room.grid.set(0, 0, room.make_key())
    return room.get_frame(highlight=False, tile_size=TILE)


def test_pictures_equal_what_minigrid_renders():
    states = random_states(STATES)
    pictures = draw(states)
    assert pictures.shape == (STATES, 64, 64, 3)
    for state, picture in zip(states, pictures, strict=True):
        assert (picture == minigrid_picture(state)).all()


def test_different_states_have_different_pictures():
    states = random_states(STATES)
    assert len(np.unique(draw(states).reshape(len(states), -1), axis=0)) == len(states)


def test_states_that_cannot_be_drawn_are_refused():
    state = UnlockBatch().reset([0]).state
    state[0, 2 * CELLS + state[0, CELLS : 2 * CELLS].argmax()] = 1
    with pytest.raises(BecauseError, match="a key and a door on one cell"):
        draw(state)
    with pytest.raises(BecauseError, match="shape"):
        draw(np.zeros((3, 114)))


def test_the_environment_shows_what_the_batch_shows():
    env, batch = gymnasium.make("because/UnlockVisual-v0", split="O", render_mode="rgb_array"), UnlockVisualBatch("O")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # it is a wrapper, of which the checker warns
        check_env(gymnasium.make("because/UnlockVisual-v0"), skip_render_check=True)
    picture, _ = env.reset(seed=3)
    shown = batch.reset([3])
    assert shown.goal.shape == (1, 0)
    assert shown.state.dtype == np.uint8
    for action in (0, 3, 4, 5, 1, 2):
        assert (picture.reshape(1, -1) == shown.state).all()
        picture, *_ = env.step(action)
        shown = batch.step(np.array([action])).observation


def test_visual_datasets_hold_pictures_of_the_same_episodes(tmp_path):
    recipe = Recipe.parse("unlock-visual-medium", 10)
    collect(recipe, tmp_path)
    folder = dataset_path(recipe.id, tmp_path)
    metadata = read_metadata(folder, recipe.id)
    assert "factors" not in metadata["because"]
    written = read_episodes(folder, metadata, recipe.id)
    for raw, episode in zip(written, rollout(Recipe.parse("unlock-medium", 10), range(10)), strict=True):
        assert (raw["observations"] == draw(episode["state"])).all()
        assert (raw["actions"] == episode["action"]).all()
        assert (raw["terminations"] == episode["terminated"]).all()


def test_pictures_are_of_unlock_without_cues_only():
    with pytest.raises(BecauseError, match="recipe"):
        Recipe.parse("lift-visual-medium-x")
    with pytest.raises(BecauseError, match="pictures of lift"):
        Recipe.parse("lift-visual-medium")
    with pytest.raises(BecauseError, match="without spurious"):
        Recipe.parse("unlock-visual-medium", spurious=4)
