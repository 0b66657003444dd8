"""Many ways to damage a dataset; each is refused with an error that says what is wrong and where."""

import json
import re
import shutil

import gymnasium
import h5py
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from because_rl.datasets.collect import collect
from because_rl.datasets.load import load
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec

RECIPE = Recipe.parse("unlock-medium", 20)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    root = tmp_path_factory.mktemp("clean")
    collect(RECIPE, root)
    return dataset_path(RECIPE.id, root)


@pytest.fixture
def ours(clean, tmp_path):
    """A copy of the collected dataset, for one test to damage."""
    return shutil.copytree(clean, tmp_path / "broken")


def edit(folder, change):
    """Change the data without the checksums, so that what is wrong with the data themselves is reported."""
    (folder / "checksums.json").unlink(missing_ok=True)
    with h5py.File(folder / "data/main_data.hdf5", "a") as file:
        change(file)


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def put(episode, name, step, column, value):
    def change(file):
        file[f"episode_{episode}/{name}"][step, column] = value

    return change


def replace(episode, name, make):
    def change(file):
        group = file[f"episode_{episode}"]
        old = group[name][()]
        del group[name]
        group[name] = make(old)

    return change


def delete(path):
    def change(file):
        del file[path]

    return change


def set_flag(episode, name, step, value):
    def change(file):
        file[f"episode_{episode}/{name}"][step] = value

    return change


def unend(file):
    file["episode_4/terminations"][-1] = False
    file["episode_4/truncations"][-1] = False


BROKEN_DATA = {
    "nan in a state": (put(3, "observations/observation", 2, 5, np.nan), r"episode 3, step 2.*column 5 is nan"),
    "infinite state": (put(3, "observations/observation", 0, 0, np.inf), r"episode 3, step 0.*inf"),
    "value outside its space": (
        put(2, "observations/observation", 1, 109, 7.0),
        r"episode 2, step 1.*column 109 is 7, outside",
    ),
    "agent in two cells": (
        replace(1, "observations/observation", lambda s: two_agents(s)),
        r"episode 1, step 4.*'agent'",
    ),
    "half a door": (put(1, "observations/observation", 3, 80, 0.5), r"episode 1, step 3.*'door'.*binary"),
    "nan in the goal": (put(0, "observations/desired_goal", 1, 2, np.nan), r"episode 0, step 1.*goal column 2"),
    "action that does not exist": (set_flag(6, "actions", 2, 17), r"episode 6, step 2.*action 17"),
    "negative action": (set_flag(6, "actions", 0, -1), r"episode 6, step 0.*action -1"),
    "actions that are not whole": (replace(6, "actions", lambda a: a + 0.5), r"episode 6.*float64"),
    "actions of the wrong shape": (replace(6, "actions", lambda a: a[:, None]), r"episode 6.*shape"),
    "one state too few": (replace(7, "observations/observation", lambda s: s[:-1]), r"episode 7.*rows for"),
    "states too narrow": (replace(7, "observations/observation", lambda s: s[:, :100]), r"episode 7.*shape \(100,\)"),
    "states as text": (replace(7, "observations/observation", lambda s: s.astype("S8")), r"episode 7.*\|S8"),
    "rewards too short": (replace(8, "rewards", lambda r: r[:-1]), r"episode 8.*rewards has shape"),
    "nan reward": (set_flag(8, "rewards", 1, np.nan), r"episode 8, step 1.*reward"),
    "ends in the middle": (set_flag(9, "truncations", 2, True), r"episode 9, step 2.*goes on"),
    "never ends": (unend, r"episode 4, step \d+.*never ends"),
    "no terminations": (delete("episode_5/terminations"), r"episode 5 cannot be read"),
    "an episode is missing": (delete("episode_11"), r"episode 11 cannot be read"),
    "a state is missing": (delete("episode_12/observations/observation"), r"episode 12.*state is missing"),
    "an empty episode": (
        lambda f: [replace(13, k, lambda a: a[:0])(f) for k in ("actions", "rewards")],
        r"episode 13.*empty",
    ),
}


def two_agents(state):
    state[4, :2] = 1
    return state


@pytest.mark.parametrize("kind", BROKEN_DATA)
def test_broken_data(ours, kind):
    change, message = BROKEN_DATA[kind]
    edit(ours, change)
    with pytest.raises(BecauseError, match=message) as refusal:
        load(ours)
    assert re.match(r"Dataset broken.* Needed: .+ Fix: .+", str(refusal.value))


def metadata(folder):
    return folder / "data/metadata.json"


def truncate(folder):
    path = folder / "data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def forget_factors(folder):
    (folder / "checksums.json").unlink()
    edit_json(metadata(folder), lambda m: m.pop("because"))


def name_environment(folder):
    """Minari would make this environment to learn its spaces, which here would write a file."""
    spec = {"id": "x-v0", "entry_point": "pathlib:Path.touch", "kwargs": {"self": str(folder / "code-ran")}}

    def change(content):
        del content["observation_space"]
        content["env_spec"] = json.dumps(spec)

    edit_json(metadata(folder), change)


BROKEN_FILES = {
    "truncated file": (truncate, r"cannot be (opened|read)"),
    "not an HDF5 file": (lambda f: (f / "data/main_data.hdf5").write_text("hello"), r"cannot be (opened|read)"),
    "no data file": (lambda f: (f / "data/main_data.hdf5").unlink(), r"cannot be opened"),
    "no metadata": (lambda f: metadata(f).unlink(), r"no data/metadata\.json"),
    "metadata is not JSON": (lambda f: metadata(f).write_text("{"), r"not valid JSON"),
    "metadata was changed": (lambda f: edit_json(metadata(f), lambda m: m.update(author=["x"])), r"metadata.*checksum"),
    "metadata lacks entries": (
        lambda f: edit_json(metadata(f), lambda m: m.pop("total_steps")),
        r"lacks \['total_steps'\]",
    ),
    "unknown format": (
        lambda f: (edit_json(metadata(f), lambda m: m.update(data_format="csv")), (f / "checksums.json").unlink()),
        r"cannot be opened",
    ),
    "an environment instead of spaces": (name_environment, r"does not describe the spaces"),
    "no factor spec": (forget_factors, r"no factor spec"),
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_broken_files(ours, kind):
    change, message = BROKEN_FILES[kind]
    change(ours)
    with pytest.raises(BecauseError, match=message):
        load(ours)


def plain_json(folder, change):
    (folder / "checksums.json").unlink()
    edit_json(metadata(folder), change)


BROKEN_COUNTS = {
    "too many episodes promised": (lambda m: m.update(total_episodes=21), r"episode 20 cannot be read"),
    "no episode at all": (lambda m: m.update(total_episodes=0), r"at least one episode"),
    "steps do not add up": (lambda m: m.update(total_steps=5), r"metadata says 5"),
    "spec for other data": (
        lambda m: m["because"]["factors"]["state"].pop(),
        r"108 state columns but the data have 110",
    ),
    "codes for other actions": (lambda m: m["because"]["factors"]["codes"].pop(), r"5 rows for 6 actions"),
}


@pytest.mark.parametrize("kind", BROKEN_COUNTS)
def test_broken_counts(ours, kind):
    change, message = BROKEN_COUNTS[kind]
    plain_json(ours, change)
    with pytest.raises(BecauseError, match=message):
        load(ours)


@pytest.fixture(scope="module")
def good(clean):
    return load(clean)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_refused_or_harmless(good, ours, seed):
    """Flip one random bit of the file: either it is refused or the data are the same."""
    path, rng = ours / "data/main_data.hdf5", np.random.default_rng(seed)
    raw = bytearray(path.read_bytes())
    raw[rng.integers(len(raw))] ^= 1 << rng.integers(8)
    path.write_bytes(raw)
    try:
        data = load(ours)
    except BecauseError:
        return
    for name in ("state", "action", "next_state", "goal", "reward", "terminated", "truncated"):
        assert np.array_equal(getattr(data, name), getattr(good, name))


def test_a_flipped_bit_in_a_state_names_its_episode(ours):
    path = ours / "data/main_data.hdf5"
    with h5py.File(path, "a") as file:
        state = file["episode_5/observations/observation"]
        state[2, :36] = np.roll(state[2, :36], 1)  # still one-hot: only the checksum shows it
    with pytest.raises(BecauseError, match="episode 5: the data do not match their checksum"):
        load(ours)


def test_no_such_dataset(root):
    with pytest.raises(BecauseError, match=r"no dataset 'nothing'.*is none"):
        load("nothing", root)


def test_a_dataset_of_an_earlier_version_is_refused(ours, root):
    (ours / "checksums.json").unlink()
    edit_json(metadata(ours), lambda m: m.update(dataset_id=m["dataset_id"].replace("-v1", "-v0")))
    with pytest.raises(BecauseError, match=r"earlier version.*unlock-medium-n20-v1.*because collect unlock-medium'"):
        load(ours)
    with pytest.raises(BecauseError, match=r"crash-expert-v0 is of an earlier version.*because collect crash-expert'"):
        load("because/crash-expert-v0", root)


# Data that this package did not collect -------------------------------------------------------------------
def cart_pole(folder, episodes=4):
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    storage = MinariStorage.new(_made(folder / "data"), env.observation_space, env.action_space)
    buffers = []
    for n in range(episodes):
        observations, actions, rewards, ends = [env.reset(seed=n)[0]], [], [], []
        while not ends or not any(ends[-1]):
            actions.append(int(env.np_random.integers(2)))
            observation, reward, *end, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            ends.append(end)
        terminated, truncated = map(list, zip(*ends, strict=True))
        buffers.append(
            EpisodeBuffer(n, n, None, np.stack(observations), np.array(actions), rewards, terminated, truncated)
        )
    storage.update_episodes(buffers)
    return buffers


def _made(path):
    path.mkdir(parents=True)
    return path


CART_POLE = {
    "state": [
        {"name": n, "columns": i, "type": "continuous"} for i, n in enumerate(("x", "velocity", "angle", "spin"))
    ],
    "action": [{"name": "push", "columns": [0, 2], "type": "categorical"}],
}


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_foreign_data_load(tmp_path, suffix):
    buffers = cart_pole(tmp_path / "logs")
    spec = tmp_path / f"factors.{suffix}"
    spec.write_text(json.dumps(CART_POLE) if suffix == "json" else yaml.safe_dump(CART_POLE))
    data = load(tmp_path / "logs", factors=spec)
    assert data.episodes == 4
    assert data.goal.shape == (len(data), 0)
    np.testing.assert_array_equal(data.state[data.episode == 2, :4], buffers[2].observations[:-1])
    assert data.factors.targets[4:] == ("reward", "end")
    np.testing.assert_array_equal(data.action.argmax(1)[data.episode == 2], buffers[2].actions)


def test_foreign_data_need_a_spec_that_fits(tmp_path):
    cart_pole(tmp_path / "logs")
    with pytest.raises(BecauseError, match="no factor spec"):
        load(tmp_path / "logs")
    spec = tmp_path / "factors.yaml"
    spec.write_text("state: [")
    with pytest.raises(BecauseError, match=r"Could not read .*factors.yaml"):
        load(tmp_path / "logs", factors=spec)
    with pytest.raises(BecauseError, match="no file"):
        load(tmp_path / "logs", factors=tmp_path / "missing.yaml")


def test_context_must_not_change_within_an_episode(tmp_path):
    buffers = cart_pole(tmp_path / "logs")
    spec = json.loads(json.dumps(CART_POLE))
    spec["state"][0]["role"] = "context"
    first = np.flatnonzero(buffers[0].observations[:, 0] != buffers[0].observations[0, 0])[0]
    with pytest.raises(BecauseError, match=rf"episode 0, step {first}: state factor 'x' of role 'context' changes"):
        load(tmp_path / "logs", factors=FactorSpec.from_dict(spec))
    spec["state"][0] |= {"role": "", "type": "angle"}
    assert load(tmp_path / "logs", factors=FactorSpec.from_dict(spec)).factors["x"].type == "angle"


def test_unsupported_spaces_are_named(tmp_path):
    storage = MinariStorage.new(
        _made(tmp_path / "data"), spaces.Dict({"camera": spaces.Discrete(3)}), spaces.Discrete(2)
    )
    storage.update_episodes([EpisodeBuffer(0, 0, None, {"camera": [0, 1]}, [0], [0.0], [True], [False])])
    spec = tmp_path / "f.json"
    spec.write_text(json.dumps(CART_POLE))
    with pytest.raises(BecauseError, match="observation space is Dict"):
        load(tmp_path, factors=spec)
