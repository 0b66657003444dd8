"""Collecting: the same bytes whatever happens on the way."""

import os
import shutil
import signal
import subprocess
import sys
import time

import minari
import numpy as np
import pytest

from because_rl.datasets import collect as collecting
from because_rl.datasets.collect import collect, rollout
from because_rl.datasets.load import load
from because_rl.datasets.paths import dataset_path, list_datasets
from because_rl.datasets.recipe import Recipe, all_recipes
from because_rl.errors import BecauseError
from because_rl.io import exclusive, file_sha256


def content(root, recipe):
    folder = dataset_path(recipe.id, root)
    return {f.relative_to(folder).as_posix(): file_sha256(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def test_nine_datasets_in_the_papers_sizes():
    recipes = all_recipes()
    assert [r.episodes for r in recipes] == [200] * 3 + [1000] * 6
    assert len({r.id for r in recipes}) == 9
    assert len({r.id for r in all_recipes(spurious=4, seed=2)} | {r.id for r in recipes}) == 18


def test_what_is_collected_is_what_the_rollout_gave(root):
    recipe = Recipe.parse("unlock-medium", 60, seed=3, spurious=2)
    said = collect(recipe, root)
    data, episodes = load(recipe.id, root), rollout(recipe, range(60))
    assert said["episodes"] == data.episodes == 60
    assert said["transitions"] == len(data) == sum(len(e["action"]) for e in episodes)
    assert said["success_rate"] == pytest.approx(data.success_rate)
    assert said["success_ci95"][0] < said["success_rate"] < said["success_ci95"][1]
    np.testing.assert_array_equal(data.state, np.concatenate([e["state"][:-1] for e in episodes]))
    np.testing.assert_array_equal(data.next_state, np.concatenate([e["state"][1:] for e in episodes]))
    np.testing.assert_array_equal(data.action, recipe_codes(data)[np.concatenate([e["action"] for e in episodes])])
    reached = data.factors.reached(data.next_state, data.goal)
    assert (reached == data.terminated).all()
    assert (data.reward == data.terminated).all()
    assert ((data.step == 0).sum()) == 60


def recipe_codes(data):
    return np.asarray(data.factors.codes, np.float32)


def test_a_relative_root_works_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collect(Recipe.parse("unlock-expert", 5), "here")
    assert load("because/unlock-expert-n5-v0", "here").episodes == 5
    assert (tmp_path / "here/datasets/because/unlock-expert-n5-v0/data/main_data.hdf5").is_file()


def test_minari_itself_can_read_it(root, monkeypatch):
    collect(Recipe.parse("unlock-expert", 20), root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root / "datasets"))
    dataset = minari.load_dataset("because/unlock-expert-n20-v0")
    assert dataset.total_episodes == 20
    episode = next(dataset.iterate_episodes())
    assert episode.observations["state"].shape[1] == 110
    assert dataset.recover_environment().true_graph().matrix.shape == (7, 4)
    metadata = next(iter(dataset.storage.get_episode_metadata([0])))
    assert set(metadata["hidden"]) >= {"u_c", "u_pi"}


def test_an_episode_does_not_depend_on_its_neighbours():
    recipe = Recipe.parse("unlock-random", 10)
    alone, together = rollout(recipe, range(7, 8))[0], rollout(recipe, range(10))[7]
    assert all(np.array_equal(alone[key], together[key]) for key in alone)


def test_seeds_and_knobs_change_the_data(root):
    recipes = [
        Recipe.parse("unlock-medium", 50),
        Recipe.parse("unlock-medium", 50, seed=1),
        Recipe.parse("unlock-medium", 50, coverage=1.0),
        Recipe.parse("unlock-random", 50),
    ]
    for recipe in recipes:
        collect(recipe, root)
    assert len({content(root, r)["data/main_data.hdf5"] for r in recipes}) == 4
    assert list_datasets(root) == sorted(r.id for r in recipes)


def test_collecting_again_does_nothing_or_the_same(root):
    recipe = Recipe.parse("unlock-medium", 50)
    collect(recipe, root)
    before = content(root, recipe)
    assert collect(recipe, root)["already_there"]
    assert not collect(recipe, root, force=True)["already_there"]
    assert content(root, recipe) == before


def test_a_crash_in_the_middle_loses_nothing_and_leaves_no_dataset(root, monkeypatch):
    recipe = Recipe.parse("unlock-medium")
    collect(recipe, root / "undisturbed")
    calls, real = [], collecting._write_chunk

    def failing(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(collecting, "_write_chunk", failing)
    with pytest.raises(KeyboardInterrupt):
        collect(recipe, root)
    assert list_datasets(root) == []
    chunks = sorted((root / "datasets/because/.unlock-medium-v0.partial").glob("*.npz"))
    assert len(chunks) == 2
    chunks[0].write_bytes(chunks[0].read_bytes()[:-100])  # and one of them is damaged
    calls.clear()
    monkeypatch.setattr(collecting, "_write_chunk", lambda *args: calls.append(args) or real(*args))
    collect(recipe, root)
    assert len(calls) == 3  # the two missing and the damaged one, not the good one
    assert content(root, recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "datasets/because") == ["unlock-medium-v0"]


def test_two_at_once_is_refused(root):
    recipe = Recipe.parse("unlock-medium", 50)
    lock = dataset_path(recipe.id, root).parent / ".unlock-medium-n50-v0.lock"
    with exclusive(lock, "busy"), pytest.raises(BecauseError, match="Another process"):
        collect(recipe, root)


KILLS = int(os.environ.get("BECAUSE_KILLS", "4"))
"""BECAUSE_KILLS=20 for the whole measure."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "episodes"), [("unlock-medium", 200), ("crash-expert", 500)])
def test_kills_change_nothing(root, name, episodes):
    recipe, rng = Recipe.parse(name, episodes), np.random.default_rng(0)

    def start(folder):
        command = [sys.executable, "-m", "because_rl", "collect", name]
        options = ["--episodes", str(episodes), "--root", str(folder)]
        return subprocess.Popen(command + options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    begin = time.monotonic()
    assert start(root / "undisturbed").wait() == 0
    whole = time.monotonic() - begin
    killed = 0
    while killed < KILLS:
        process = start(root / "killed")
        try:
            process.wait(rng.uniform(0.1, whole))
            shutil.rmtree(dataset_path(recipe.id, root / "killed"))  # finished before we struck: once more
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
    assert start(root / "killed").wait() == 0
    assert content(root / "killed", recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "killed/datasets/because") == [dataset_path(recipe.id, root).name]
