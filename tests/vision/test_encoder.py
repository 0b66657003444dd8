"""From a log of pictures to factors, transitions and an agent that is shown pictures."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from because_rl import hdf5
from because_rl.datasets import collect as collecting
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.pictures import check_file_name, check_frames, holds_pictures, load_pictures
from because_rl.datasets.recipe import Recipe
from because_rl.envs.unlock import pictures as unlock_pictures
from because_rl.envs.unlock.env import CELLS
from because_rl.errors import BecauseError
from because_rl.io import read_json, write_json
from because_rl.training.run import Run
from because_rl.vision.encoder import PictureEncoder, fit_encoder
from tests.support import because
from tests.vision.logs import TRUE, unlock_log


@pytest.fixture(scope="module")
def log():
    return unlock_log()


@pytest.fixture(scope="module")
def encoder(log):
    """With random convolutions, which tell different tiles apart as well."""
    return fit_encoder(log[0], Run([0]), steps=0)


def test_factors_of_pictures_are_the_true_ones(log, encoder):
    pictures, states = log
    read = encoder.read(pictures.frames)
    mover, door, key, has_key = (encoder.factors[f.name] for f in encoder.factors.state)
    if (read[:, door.slice] != states[:, TRUE["door"].slice]).any():  # which of the two is larger is chance
        door, key = key, door
    for name, factor in (("agent", mover), ("door", door), ("key", key), ("has_key", has_key)):
        assert (read[:, factor.slice] == states[:, TRUE[name].slice]).all(), name
    assert encoder.goal.factor == door.name
    assert encoder.wanted.tolist() == [0.0] * CELLS


def test_transitions_follow_the_frames(log, encoder):
    pictures, _ = log
    data, read = encoder.transitions(pictures), encoder.read(pictures.frames)
    assert (data.state == read[pictures.before]).all()
    assert (data.next_state == read[pictures.before + 1]).all()
    assert (data.step[data.episode == 3] == np.arange((data.episode == 3).sum())).all()
    assert (data.factors.reached(data.next_state, data.goal) == data.terminated).all()
    assert data.horizon == 15


def test_an_encoder_reads_the_same_after_restoring(log, encoder):
    frames = log[0].frames[:50]
    again = PictureEncoder.restore(encoder.description(), log[0].factors, encoder.arrays())
    assert (again.read(frames) == encoder.read(frames)).all()
    assert again.factors == encoder.factors
    with pytest.raises(BecauseError, match="32 x 64 pixels"):
        encoder.read(frames[:, :32])


def test_noise_of_pixels_does_not_change_what_is_read(log):
    pictures, _ = log
    noise = np.random.default_rng(0).integers(-3, 4, pictures.frames[:80].shape)
    few = replace(pictures, frames=np.clip(pictures.frames[:80].astype(int) + noise, 0, 255).astype(np.uint8))
    few = replace(few, **{k: getattr(few, k)[few.before < 79] for k in ("action", "reward", "terminated", "episode")})
    few = replace(few, before=pictures.before[pictures.before < 79])
    noisy, clean = (fit_encoder(p, Run([0]), steps=0) for p in (few, replace(few, frames=pictures.frames[:80])))
    assert (noisy.read(few.frames) == clean.read(pictures.frames[:80])).all()


def test_nothing_of_the_state_vector_is_in_a_dataset(tmp_path, monkeypatch):
    """Pictures are drawn of true states; whatever else is made of the state sees it scrambled."""
    recipe = Recipe.parse("unlock-visual-medium", 10)
    collecting.collect(recipe, tmp_path / "plain")
    order = np.random.default_rng(0).permutation(unlock_pictures.STATE)
    rollout, draw = collecting.rollout, unlock_pictures.draw

    def scrambled(*arguments):
        return [e | {"state": e["state"][:, order]} for e in rollout(*arguments)]

    monkeypatch.setattr(collecting, "rollout", scrambled)
    monkeypatch.setattr(unlock_pictures, "draw", lambda state: draw(state[:, np.argsort(order)]))
    collecting.collect(recipe, tmp_path / "scrambled")
    sums = [
        read_json(dataset_path(recipe.id, tmp_path / root) / "checksums.json")["episodes"]
        for root in ("plain", "scrambled")
    ]
    assert sums[0] == sums[1]


def test_a_damaged_picture_is_refused(tmp_path):
    recipe = Recipe.parse("unlock-visual-expert", 2)
    collecting.collect(recipe, tmp_path)
    assert holds_pictures("unlock-visual-expert-n2", tmp_path)
    assert len(load_pictures("unlock-visual-expert-n2", tmp_path).frames) > 4
    hdf5._stop()  # the process that reads keeps the file locked
    with h5py.File(dataset_path(recipe.id, tmp_path) / "data/main_data.hdf5", "r+") as file:
        file["episode_1/observations"][0, 3, 5, 1] += 1
    with pytest.raises(BecauseError, match="episode 1: the data do not match their checksum"):
        load_pictures("unlock-visual-expert-n2", tmp_path)


def test_pictures_of_a_users_own_dataset_are_read(tmp_path):
    recipe = Recipe.parse("unlock-visual-medium", 20)
    collecting.collect(recipe, tmp_path)
    folder = dataset_path(recipe.id, tmp_path)
    metadata = read_json(folder / "data/metadata.json")
    write_json(folder / "data/metadata.json", {k: v for k, v in metadata.items() if k != "because"})
    (folder / "checksums.json").unlink()
    pictures = load_pictures(folder)
    assert pictures.factors.action[0].type == "categorical"
    assert pictures.factors.codes == tuple(map(tuple, np.eye(6).tolist()))  # so agents answer with the number
    encoder = fit_encoder(pictures, Run([0]), steps=0)
    assert [part.kind for part in encoder.parts] == ["mover", "still", "still", "switch"]
    assert encoder.transitions(pictures).factors.action_size == 6


def test_the_command_check_takes_pictures(tmp_path):
    collecting.collect(Recipe.parse("unlock-visual-expert", 2), tmp_path)
    checked = json.loads(because("check", "unlock-visual-expert-n2", "--json", root=tmp_path).stdout)
    assert checked["valid"]
    assert (checked["pictures"], checked["pixels"]) == (checked["transitions"] + 2, "64 x 64")


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((4, 64, 64, 3), np.float32), "type float32"),
        (np.zeros((4, 64, 64), np.uint8), "one channel"),
        (np.zeros((4, 64, 64, 1), np.uint8), "one channel"),
        (np.zeros((4, 64, 64, 4), np.uint8), "four channels"),
        (np.zeros((4, 3, 64, 64), np.uint8), "channels first"),
        (np.zeros((4, 12288), np.uint8), "has shape"),
        ([np.zeros((64, 64, 3), np.uint8), np.zeros((32, 64, 3), np.uint8)], "32 x 64 and 64 x 64"),
    ],
)
def test_pictures_of_another_form_are_refused(frames, message):
    with pytest.raises(BecauseError, match=message):
        check_frames(frames, "The log")


def test_videos_and_sizes_that_are_no_cells_are_refused(log):
    with pytest.raises(BecauseError, match="is a video"):
        check_file_name("drive.mp4")
    with pytest.raises(BecauseError, match="60 x 64 pixels"):
        fit_encoder(replace(log[0], frames=log[0].frames[:, :60]), Run([0]), steps=0)


@pytest.mark.long
def test_a_trained_encoder_reads_every_factor_of_every_behaviour():
    for behaviour in ("random", "medium", "expert"):
        pictures, states = unlock_log(200, behaviour)
        encoder = fit_encoder(pictures, Run([0]))
        assert [part.width for part in encoder.parts] == [CELLS, CELLS, CELLS, 2]
        assert encoder.goal.factor == "still_1"
        read = encoder.read(pictures.frames)
        assert (read[:, encoder.factors["still_1"].slice] == states[:, TRUE["door"].slice]).all()
