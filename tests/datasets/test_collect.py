"""Collecting gives the same bytes, however often it is interrupted."""

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
from because_rl.envs.world import get_world
from because_rl.errors import BecauseError
from because_rl.io import exclusive, file_sha256


def content(root, recipe):
    """File -> hash, of all files of a dataset."""
    folder = dataset_path(recipe.id, root)
    return {f.relative_to(folder).as_posix(): file_sha256(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def test_nine_recipes_with_the_papers_sizes():
    recipes = all_recipes()
    assert [r.episodes for r in recipes] == [200] * 3 + [1000] * 6
    assert len({r.id for r in recipes}) == 9
    assert len({r.id for r in all_recipes(spurious=4, seed=2)} | {r.id for r in recipes}) == 18


def test_a_dataset_holds_what_the_rollout_returned(root):
    recipe = Recipe.parse("unlock-medium", 30, seed=3, spurious=2)
    summary = collect(recipe, root)
    data, episodes = load(recipe.id, root), rollout(recipe, range(30))
    assert summary["episodes"] == data.episodes == 30
    assert summary["transitions"] == len(data) == sum(len(e["action"]) for e in episodes)
    assert summary["success_rate"] == pytest.approx(data.success_rate)
    assert summary["success_ci95"][0] < summary["success_rate"] < summary["success_ci95"][1]
    np.testing.assert_array_equal(data.state, np.concatenate([e["state"][:-1] for e in episodes]))
    np.testing.assert_array_equal(data.next_state, np.concatenate([e["state"][1:] for e in episodes]))
    codes = np.asarray(data.factors.codes, np.float32)
    np.testing.assert_array_equal(data.action, codes[np.concatenate([e["action"] for e in episodes])])
    reached = data.factors.reached(data.next_state, data.goal)
    assert (reached == data.terminated).all()
    assert (data.reward == data.terminated).all()
    assert ((data.step == 0).sum()) == 30


def test_the_root_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collect(Recipe.parse("unlock-expert", 5), "here")
    assert load("because/unlock-expert-n5-v1", "here").episodes == 5
    assert (tmp_path / "here/datasets/because/unlock-expert-n5-v1/data/main_data.hdf5").is_file()


def test_minari_reads_the_dataset(root, monkeypatch):
    collect(Recipe.parse("unlock-expert", 5), root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root / "datasets"))
    dataset = minari.load_dataset("because/unlock-expert-n5-v1")
    assert dataset.total_episodes == 5
    episode = next(dataset.iterate_episodes())
    assert {name: part.shape[1] for name, part in episode.observations.items()} == {
        "achieved_goal": 36,
        "desired_goal": 36,
        "observation": 110,
    }
    assert (episode.observations["achieved_goal"] == episode.observations["observation"][:, 72:108]).all()
    env = dataset.recover_environment()
    assert env.observation_space == dataset.observation_space
    assert env.spec.max_episode_steps == 15
    assert get_world(env).true_graph().matrix.shape == (7, 4)
    metadata = next(iter(dataset.storage.get_episode_metadata([0])))
    assert set(metadata["hidden"]) >= {"u_c", "u_pi"}


def test_an_episode_does_not_depend_on_its_neighbours():
    recipe = Recipe.parse("unlock-random", 10)
    alone, together = rollout(recipe, range(7, 8))[0], rollout(recipe, range(10))[7]
    assert all(np.array_equal(alone[key], together[key]) for key in alone)


def test_every_setting_changes_the_data(root):
    recipes = [
        Recipe.parse("unlock-medium", 20),
        Recipe.parse("unlock-medium", 20, seed=1),
        Recipe.parse("unlock-medium", 20, coverage=1.0),
        Recipe.parse("unlock-random", 20),
    ]
    for recipe in recipes:
        collect(recipe, root)
    assert len({content(root, r)["data/main_data.hdf5"] for r in recipes}) == 4
    assert list_datasets(root) == sorted(r.id for r in recipes)


def test_collecting_again_gives_the_same_bytes(root):
    recipe = Recipe.parse("unlock-medium", 20)
    collect(recipe, root)
    before = content(root, recipe)
    assert collect(recipe, root)["already_there"]
    assert not collect(recipe, root, force=True)["already_there"]
    assert content(root, recipe) == before


def test_an_interrupted_collection_continues_with_the_missing_chunks(root, monkeypatch):
    recipe = Recipe.parse("unlock-medium", 40)
    collect(recipe, root / "undisturbed")
    monkeypatch.setitem(collecting.CHUNK, "unlock", 10)
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
    chunks = sorted((root / "datasets/because/.unlock-medium-n40-v1.partial").glob("*.npz"))
    assert len(chunks) == 2
    chunks[0].write_bytes(chunks[0].read_bytes()[:-100])  # one of them is damaged as well
    calls.clear()
    monkeypatch.setattr(collecting, "_write_chunk", lambda *args: calls.append(args) or real(*args))
    collect(recipe, root)
    assert len(calls) == 3  # the two missing and the damaged one, not the good one
    assert content(root, recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "datasets/because") == ["unlock-medium-n40-v1"]


def test_a_second_collection_at_the_same_time_is_refused(root):
    recipe = Recipe.parse("unlock-medium", 50)
    lock = dataset_path(recipe.id, root).parent / ".unlock-medium-n50-v1.lock"
    with exclusive(lock, "busy"), pytest.raises(BecauseError, match="Another process"):
        collect(recipe, root)


KILLED_AT_EVERY_WRITE = """
import os, signal, sys
from because_rl.datasets import collect as collecting
from because_rl.datasets.recipe import Recipe

collecting.CHUNK["unlock"] = 10
collecting.collect(Recipe.parse("unlock-medium", 1), sys.argv[1] + "-imports")  # once, not in every child
fsync, rename, replace = os.fsync, os.rename, os.replace

def collect_until(write):
    # Kill this process at this write to disk, unless the dataset is complete by then.
    left = write
    def counted(real):
        def call(*arguments):
            nonlocal left
            left -= 1
            if not left and not os.path.exists(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)
        return call
    os.fsync, os.rename, os.replace = counted(fsync), counted(rename), counted(replace)
    collecting.collect(Recipe.parse("unlock-medium", 30), sys.argv[1])
    os._exit(0)

kills = 0
while True:
    child = os.fork() or collect_until(kills + 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_kills_at_every_write_change_nothing(root):
    """Each attempt continues the one before and is killed one write later, until one gets to its end."""
    recipe = Recipe.parse("unlock-medium", 30)
    collect(recipe, root / "undisturbed")
    target = dataset_path(recipe.id, root / "killed")
    command = [sys.executable, "-c", KILLED_AT_EVERY_WRITE, str(root / "killed"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8
    assert content(root / "killed", recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "killed/datasets/because") == [target.name]


KILLED_WITH_WORKERS = """
import os, signal, sys
from because_rl.datasets import collect as collecting
from because_rl.datasets.recipe import Recipe

collecting.CHUNK["crash"] = 2

def kill(done, total):
    if done:
        os.kill(os.getpid(), signal.SIGKILL)

collecting.collect(Recipe.parse("crash-expert", 12), sys.argv[1], workers=2, progress=kill)
"""


@pytest.mark.slow
def test_workers_end_with_a_killed_parent_and_keep_their_chunks(root, monkeypatch):
    recipe = Recipe.parse("crash-expert", 12)
    collect(recipe, root / "undisturbed", workers=1)
    command = [sys.executable, "-c", KILLED_WITH_WORKERS, str(root / "killed")]
    # The workers share the pipe: it ends when all of them have.
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert list_datasets(root / "killed") == []
    chunks = list((root / "killed/datasets/because/.crash-expert-n12-v1.partial").glob("*.npz"))
    monkeypatch.setitem(collecting.CHUNK, "crash", 2)
    reports = []
    collect(recipe, root / "killed", workers=1, progress=lambda done, total: reports.append(done))
    assert reports[0] == 2 * len(chunks) > 0  # not collected again
    assert content(root / "killed", recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "killed/datasets/because") == [dataset_path(recipe.id, root).name]


KILLS = int(os.environ.get("BECAUSE_KILLS", "4"))
"""Kills per dataset in the test below."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "episodes"), [("unlock-medium", 200), ("crash-expert", 500)])
def test_kills_at_random_moments_change_nothing(root, name, episodes):
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
            shutil.rmtree(dataset_path(recipe.id, root / "killed"))  # finished before it was killed: once more
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
    assert start(root / "killed").wait() == 0
    assert content(root / "killed", recipe) == content(root / "undisturbed", recipe)
    assert os.listdir(root / "killed/datasets/because") == [dataset_path(recipe.id, root).name]
