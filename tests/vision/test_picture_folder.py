"""Logs of pictures as users write them, a folder of PNG files with a table or a Minari dataset, and what is refused."""

import shutil

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from because_rl import hdf5
from because_rl.datasets import collect as collecting
from because_rl.datasets.columns import Columns
from because_rl.datasets.minari_files import read_episodes, read_metadata, write_dataset_files
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.pictures import holds_pictures, load_pictures
from because_rl.datasets.recipe import Recipe
from tests.support import because
from tests.vision.logs import TRUE, unlock_log, write_folder


@pytest.fixture(scope="module")
def log():
    return unlock_log(20)[0]


def test_a_folder_of_pictures_is_read_as_it_was_logged(log, tmp_path):
    write_folder(log, tmp_path / "own")
    assert holds_pictures(tmp_path / "own")
    for path in (tmp_path / "own", tmp_path / "own/pictures.csv"):
        read = load_pictures(path)
        assert (read.frames == log.frames).all()
        assert (read.before == log.before).all()
        assert (read.terminated == log.terminated).all()
        assert read.name == "own"
    number = (log.action[:, None] == np.array(TRUE.codes)).all(2).argmax(1)
    assert read.factors.action[0].type == "categorical"
    assert (read.action.argmax(1) == number).all()
    assert (read.factors.encode_action(number) == read.action).all()


def test_a_table_may_have_a_row_for_the_last_picture(log, tmp_path):
    """Without next_picture; the action of that row may be missing, and the end is logged in the row before."""
    write_folder(log, tmp_path / "both")
    lines = (tmp_path / "both/pictures.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    out = ["picture,run,move,terminated"]
    for n, (before, after, episode, action, _, end) in enumerate(rows):
        out.append(f"{before},run {episode},{action},{end}")
        if n + 1 == len(rows) or rows[n + 1][2] != episode:
            out.append(f"{after},run {episode},,0")
    (tmp_path / "both/pictures.csv").write_text("\n".join(out))
    read = load_pictures(tmp_path / "both", columns=Columns(action=("move",), episode="run"))
    assert (read.frames == log.frames).all()
    assert (read.terminated == log.terminated).all()
    assert read.factors.codes == tuple(map(tuple, np.eye(6).tolist()))


# What is refused ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(log, tmp_path_factory):
    """A folder of pictures that could be fitted, and beside it the same as a Minari dataset with checksums."""
    folder = tmp_path_factory.mktemp("good")
    write_folder(log, folder / "own")
    recipe = Recipe.parse("unlock-visual-expert", 20)
    collecting.collect(recipe, folder)
    dataset_path(recipe.id, folder).rename(folder / "minari")
    return folder


def change_picture(change):
    """Replace a picture by `change` of it."""

    def damage(folder):
        path = folder / "own/frames/0005.png"
        change(Image.open(path)).save(path)
        return folder / "own"

    return damage


def change_bytes(change):
    def damage(folder):
        path = folder / "own/frames/0005.png"
        path.write_bytes(change(path.read_bytes()))
        return folder / "own"

    return damage


def flip(data):
    """One bit of the checksum of the pixels, which are before the last 12 bytes."""
    return data[:-13] + bytes([data[-13] ^ 1]) + data[-12:]


def change_table(change):
    def damage(folder):
        path = folder / "own/pictures.csv"
        path.write_text(change(path.read_text()))
        return folder / "own"

    return damage


def remove_picture(folder):
    (folder / "own/frames/0005.png").unlink()
    return folder / "own"


def all_pictures(change):
    def damage(folder):
        for path in (folder / "own/frames").iterdir():
            change(Image.open(path)).save(path)
        return folder / "own"

    return damage


def minari(change, space):
    """The Minari dataset, with other observations and without checksums."""

    def damage(folder):
        metadata = read_metadata(folder / "minari", "minari")
        episodes = read_episodes(folder / "minari", metadata, "minari")
        changed = [episode | {"observations": change(episode["observations"])} for episode in episodes]
        write_dataset_files(folder / "changed", space, spaces.Discrete(6), changed, {"dataset_id": "own/changed-v0"})
        return folder / "changed"

    return damage


def change_a_pixel(folder):
    hdf5._stop()  # the process that reads keeps the file locked
    with h5py.File(folder / "minari/data/main_data.hdf5", "r+") as file:
        file["episode_1/observations"][0, 3, 5, 1] += 1
    return folder / "minari"


def name_a_video(folder):
    (folder / "drive.mp4").write_bytes(b"\0" * 100)
    return folder / "drive.mp4"


BYTES = spaces.Box(0, 255, (64, 64, 3), np.uint8)
BAD = {
    "sizes": (change_picture(lambda image: image.resize((64, 32))), "has 32 x 64 pixels, and frames/"),
    "no cells": (all_pictures(lambda image: image.resize((64, 60))), "60 x 64 pixels"),
    "grey": (change_picture(lambda image: image.convert("L")), "frames/0005.png has one channel"),
    "transparent": (change_picture(lambda image: image.convert("RGBA")), "has four channels"),
    "16 bits": (change_picture(lambda image: image.convert("I;16")), "16 bits per channel"),
    "missing": (remove_picture, "0005.png' cannot be read (No such file"),
    "cut": (change_bytes(lambda data: data[:200]), "0005.png' cannot be read"),
    "flipped": (change_bytes(flip), "0005.png' cannot be read"),
    "no PNG": (change_bytes(lambda data: b"\xff\xd8\xff" + data), "it is no PNG"),
    "video": (name_a_video, "is a video"),
    "few": (change_table(lambda text: "\n".join(text.splitlines()[:30])), "at least 20"),
    "no pictures": (change_table(lambda text: text.replace("picture", "image")), "has no column 'picture'"),
    "no action": (change_table(lambda text: text.replace("action", "push")), "no column of the action"),
    "unnamed": (change_table(lambda text: text + "\n,,99,0,0.0,0"), "no picture is named"),
    "order": (
        change_table(lambda text: "\n".join(text.splitlines()[:2] + text.splitlines()[3:])),
        "'next_picture' of row 0",
    ),
    "floats": (
        minari(lambda frames: (frames / 255).astype(np.float32), spaces.Box(0, 1, (64, 64, 3), np.float32)),
        "pixels of type float32",
    ),
    "one channel": (minari(lambda frames: frames[..., 0], spaces.Box(0, 255, (64, 64), np.uint8)), "one channel"),
    "too few frames": (minari(lambda frames: frames[:-1], BYTES), "one more than actions"),
    "checksum": (change_a_pixel, "do not match their checksum"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pictures_are_refused_and_nothing_is_written(case, good, tmp_path):
    damage, message = BAD[case]
    shutil.copytree(good, tmp_path / "data")
    refused = " ".join(
        because("fit", damage(tmp_path / "data"), "-o", tmp_path / "out", root=tmp_path, code=2).stderr.split()
    )
    assert message in refused
    assert "Needed: " in refused
    assert "Fix: " in refused
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "encoders").exists()


@pytest.mark.parametrize("option", ["--factors", "--goal"])
def test_what_is_learned_from_pictures_cannot_be_given(option, good, tmp_path):
    value = good / "own/pictures.csv" if option == "--factors" else 1.0
    command = ("fit", good / "own", "-o", tmp_path / "out", option, value)
    assert f"{option} was given" in because(*command, root=tmp_path, code=2).stderr.replace("\n", " ")
    assert "because fit" in because("factors", good / "own", root=tmp_path, code=2).stderr.replace("\n", " ")
