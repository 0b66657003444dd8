"""A user's own data: what is read, what is refused and why, what is proposed, and what a fit ends in."""

import importlib.util
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from because_rl.datasets.load import load
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_dataset import add_action_codes, no_policy_reason, prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.runs.fit import fit, load_model, load_policy
from tests.support import arrays, because, write

EXAMPLES = Path(__file__).parents[2] / "examples"
X_ON = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))
GOAL = (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),)
TINY = {"hidden": 16, "batch": 32, "world_steps": 200, "energy_steps": 60, "behaviour_steps": 20, "value_steps": 20}
TINY |= {"batches": 0, "planner.population": 16, "planner.horizon": 5}


def example(name):
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# Reading -----------------------------------------------------------------------------------------------


def test_flat_arrays_are_cut_into_episodes(tmp_path):
    told = arrays()
    log = read_log(write(tmp_path / "a.hdf5", told))
    assert len(log.episodes) == 12
    first = log.episodes[1]
    np.testing.assert_array_equal(first["observations"][:-1], told["observations"][6:12])
    np.testing.assert_array_equal(first["observations"][-1], told["next_observations"][11])
    assert first["truncations"].tolist() == [False] * 5 + [True]


def test_without_next_observations_the_last_row_only_ends_its_episode(tmp_path):
    told = arrays()
    del told["next_observations"]
    log = read_log(write(tmp_path / "a.hdf5", told))
    assert [len(e["actions"]) for e in log.episodes] == [5] * 12
    np.testing.assert_array_equal(log.episodes[2]["observations"], told["observations"][12:18])
    np.testing.assert_array_equal(log.episodes[2]["actions"], told["actions"][12:17])


def test_ends_may_be_told_by_flags_in_place_of_ids(tmp_path):
    told = arrays()
    ids = told.pop("episodes")
    ends = np.append(ids[1:] != ids[:-1], True)
    for names in (("terminations", "truncations"), ("terminals", "timeouts")):
        flags = {names[0]: ends & (ids % 2 == 0), names[1]: ends & (ids % 2 == 1)}
        log = read_log(write(tmp_path / f"{names[0]}.hdf5", told | flags))
        assert len(log.episodes) == 12
        assert [bool(e["terminations"][-1]) for e in log.episodes] == [True, False] * 6


def test_a_group_per_episode_reads_the_same_as_flat_arrays(tmp_path):
    flat = read_log(write(tmp_path / "a.hdf5", arrays()))
    tree = {f"episode_{n}/{k}": v for n, e in enumerate(flat.episodes) for k, v in e.items()}
    grouped = read_log(write(tmp_path / "b.hdf5", tree))
    assert grouped.sha256 == flat.sha256  # and episode_10 follows episode_9, not episode_1


def test_an_adopted_log_is_a_minari_dataset_and_reads_back(tmp_path):
    log = prepare_log(read_log(write(tmp_path / "a.hdf5", arrays())), X_ON)
    write_dataset(log, tmp_path / "home/datasets/own/log-v0")
    data = load("own/log-v0", tmp_path / "home")
    np.testing.assert_allclose(data.state, arrays()["observations"], rtol=1e-6)
    np.testing.assert_allclose(data.next_state, arrays()["next_observations"], rtol=1e-6)
    again = read_log("own/log-v0", tmp_path / "home")
    assert again.factors == X_ON
    assert again.sha256 == log.sha256
    file = tmp_path / "home/datasets/own/log-v0/data/main_data.hdf5"
    assert read_log(file).sha256 == log.sha256


def test_minaris_own_folder_is_looked_into(tmp_path, monkeypatch):
    log = prepare_log(read_log(write(tmp_path / "a.hdf5", arrays())), X_ON)
    write_dataset(log, tmp_path / "minari/mine/log-v3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert read_log("mine/log-v3", tmp_path / "elsewhere").sha256 == log.sha256


def _without(name):
    return lambda told: told.pop(name)


def _set(name, index, value):
    def change(told):
        told[name][index] = value

    return change


def _put(name, value):
    return lambda told: told.__setitem__(name, value)


def _one_long_episode(told):
    del told["next_observations"]
    told["episodes"][:] = 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without("observations"), "no array 'observations'"),
        (_without("actions"), "no array 'actions'"),
        (_without("episodes"), "does not say where episodes end"),
        (_set("observations", (7, 0), np.nan), "episode 1, step 1: state column 0 is nan"),
        (_set("actions", (8, 0), np.inf), "episode 1, step 2: action column 0 is inf"),
        (_put("actions", np.zeros((5, 1))), "'actions' has 5 rows and 'observations' 72"),
        (_put("rewards", np.zeros(3)), "'rewards' has 3 rows"),
        (_one_long_episode, "has 1 episode."),
        (_put("observations", np.full((72, 2), b"a")), "of type |S1"),
        (_put("states", np.zeros((72, 2))), "both 'observations' and 'states'"),
        (_put("observations", np.zeros((72, 3))), "'next_observations' have shape (2,)"),
        (_set("next_observations", (3, 0), 9.0), "'next_observations' of row 3 are not"),
        (_set("next_observations", (5, 1), 0.5), "'on' is [0.5]"),
    ],
)
def test_bad_logs_are_refused_in_words(tmp_path, change, says):
    told = arrays()
    change(told)
    if says.startswith("episode 1, step 1"):
        told["next_observations"][6, 0] = np.nan
    path = write(tmp_path / "a.hdf5", told)
    with pytest.raises(BecauseError) as refused:
        prepare_log(read_log(path), X_ON)
    assert says in str(refused.value)


def test_bad_files_and_names_are_refused_in_words(tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"not hdf5")
    for data, says in ((tmp_path / "a.hdf5", "cannot be read"), ("nothing/here-v0", "no data 'nothing/here-v0'")):
        with pytest.raises(BecauseError, match=says):
            read_log(data, tmp_path)
    whole = write(tmp_path / "b.hdf5", arrays()).read_bytes()
    (tmp_path / "c.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BecauseError, match="cannot be read"):
        read_log(tmp_path / "c.hdf5")


def test_factors_must_cover_the_columns(tmp_path):
    log = read_log(write(tmp_path / "a.hdf5", arrays()))
    three = FactorSpec(pack(("x", 3, "continuous")), X_ON.action)
    with pytest.raises(BecauseError, match="3 state columns but the data have 2"):
        prepare_log(log, three)


# Goals and ends ----------------------------------------------------------------------------------------


def test_a_goal_must_be_in_the_log_or_be_given(tmp_path):
    log = read_log(write(tmp_path / "a.hdf5", arrays()))
    spec = FactorSpec(X_ON.state, X_ON.action, GOAL)
    with pytest.raises(BecauseError, match="--goal VALUE"):
        prepare_log(log, spec)
    with pytest.raises(BecauseError, match="2 goal values"):
        prepare_log(log, spec, [1.0, 2.0])
    assert (prepare_log(log, spec, [0.5]).joined("goals") == 0.5).all()


def test_an_episode_terminates_at_its_goal_whatever_its_flag_says(tmp_path):
    told = arrays() | {"terminations": np.ones(72)}  # in this log it only means 'over'
    log = prepare_log(read_log(write(tmp_path / "a.hdf5", told)), FactorSpec(X_ON.state, X_ON.action, GOAL), [0.2])
    reached = told["next_observations"][5::6, 0] >= np.float32(0.2)
    assert 0 < reached.sum() < 12
    assert [bool(e["terminations"][-1]) for e in log.episodes] == reached.tolist()
    assert [bool(e["truncations"][-1]) for e in log.episodes] == (~reached).tolist()


def test_where_a_policy_can_be_planned():
    real, cells = pack(("x", 1, "continuous")), pack(("x", 3, "categorical"))
    wanted = (GoalFactor("far", 0, 3, "categorical", factor="x"),)
    push, pick = pack(("push", 1, "continuous")), pack(("pick", 2, "categorical"))
    codes = ((1.0, 0.0), (0.0, 1.0))
    assert no_policy_reason(FactorSpec(real, push, GOAL)) == ""
    assert "no goal" in no_policy_reason(FactorSpec(real, push))
    assert "'x' is continuous" in no_policy_reason(FactorSpec(real, pick, GOAL, codes))
    assert "'pick' is categorical" in no_policy_reason(FactorSpec(real, pick, GOAL))
    assert no_policy_reason(FactorSpec(cells, pick, wanted, codes)) == ""


def test_numbered_actions_are_one_hot_or_a_column(tmp_path):
    told = arrays() | {"actions": np.arange(72) % 3}
    log = read_log(write(tmp_path / "a.hdf5", told))
    three = add_action_codes(log, FactorSpec(X_ON.state, pack(("push", 3, "categorical"))))
    assert three.codes == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    write_dataset(prepare_log(log, three), tmp_path / "three")
    np.testing.assert_array_equal(load(tmp_path / "three").action.argmax(1), told["actions"])
    one = add_action_codes(log, X_ON)
    assert one.codes is None
    write_dataset(prepare_log(log, one), tmp_path / "one")
    np.testing.assert_array_equal(load(tmp_path / "one").action[:, 0], told["actions"])


# Proposals ---------------------------------------------------------------------------------------------


def test_types_are_told_by_values(tmp_path):
    rng = np.random.default_rng(0)
    told = arrays()
    gear = rng.integers(3, size=72)
    x = told["observations"][:, :1]
    told["observations"] = np.hstack([x, np.eye(3)[gear], gear[:, None], x, 2 - 3 * x, np.full((72, 1), 7.0)])
    del told["next_observations"]
    path = write(tmp_path / "a.hdf5", told | {"actions": rng.integers(4, size=72)})
    with h5py.File(path, "a") as file:
        file["observations"].attrs["names"] = ["x", "gear_1", "gear_2", "gear_3", "code", "copy", "off", "true"]
    text = propose_factors(read_log(path))
    spec = FactorSpec.from_dict(yaml.safe_load(text))
    assert [(f.name, f.start, f.stop, f.type) for f in spec.state] == [
        ("x", 0, 1, "continuous"),
        ("gear", 1, 4, "categorical"),
        ("code", 4, 5, "continuous"),
        ("copy", 5, 6, "continuous"),
        ("off", 6, 7, "continuous"),
        ("true", 7, 8, "continuous"),
    ]
    assert [(f.name, f.width, f.type) for f in spec.action] == [("action", 4, "categorical")]
    lines = {line.split("name: ")[1].split(",")[0].strip('"'): line for line in text.splitlines() if " - {name" in line}
    assert "codes of a category" in lines["code"]
    assert "the same as x" in lines["copy"]
    assert "follows from x exactly" in lines["off"]
    assert "always 7" in lines["true"]
    assert "#" not in lines["x"] + lines["gear"]


def test_the_goal_is_guessed_from_how_episodes_end(tmp_path):
    told = arrays()
    far = told["next_observations"][5::6, 0]
    told["goals"] = np.repeat(far - 0.01, 6)[:, None]
    spec = FactorSpec.from_dict(yaml.safe_load(propose_factors(read_log(write(tmp_path / "a.hdf5", told)))))
    assert (spec.goal[0].factor, spec.goal[0].relation) == (spec.state[0].name, "at_least")


def test_factors_command_writes_what_fit_reads(tmp_path):
    path, out = write(tmp_path / "a.hdf5", arrays()), tmp_path / "factors.yaml"
    said = json.loads(because("factors", path, "-o", out, "--json").stdout)
    assert FactorSpec.from_file(out).to_dict() == said
    prepare_log(read_log(path), FactorSpec.from_file(out))
    assert "--force" in because("factors", path, "-o", out, code=2).stderr
    assert "# goal:" in because("factors", path).stdout
    assert "Example:" in because("fit", "--help").stdout


# Fitting -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_log_without_a_goal_gives_all_but_a_policy(tmp_path):
    path, spec, out = write(tmp_path / "a.hdf5", arrays(40, 10)), tmp_path / "f.json", tmp_path / "fitted"
    spec.write_text(json.dumps(X_ON.to_dict()))
    settings = TINY | {"world_steps": 0}  # how well it foretells is asked of the cart; compiling the stage takes long
    result = fit(path, spec, out, seeds=[0, 1], overrides=settings)
    assert result["policy"] is None
    assert "no goal" in result["why_no_policy"]
    assert {row["factor"]: row["measure"] for row in result["accuracy"]}["on"] == "foretold right"
    assert all(len(row["per_seed"]) == 2 for row in result["accuracy"])
    page = (out / "report/index.html").read_text()
    assert page.count("<svg") == 2
    assert "Held-out accuracy" in page
    with pytest.raises(BecauseError, match="holds no policy"):
        load_policy(out)
    with pytest.raises(BecauseError, match="already"):
        fit(path, spec, out, seeds=[0, 1], overrides=settings)
    with pytest.raises(BecauseError, match="differs in seeds"):
        fit(path, spec, out, seeds=[0], overrides=settings, resume=True)
    before = {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")}
    (out / "run/energy.npz").unlink()  # as if it had been stopped there
    known = json.loads((out / "run/run.json").read_text())
    (out / "run/run.json").write_text(json.dumps(known | {"finished": None}))
    again = fit(path, spec, out, seeds=[0, 1], overrides=settings, resume=True)
    assert {file.name: file.read_bytes() for file in (out / "run").glob("*.npz")} == before
    assert again["accuracy"] == result["accuracy"]
    shutil.move(out, tmp_path / "moved")
    path.unlink()
    assert load_model(tmp_path / "moved").seeds == (0, 1)


CARTPOLE = {
    "position": {"position", "speed"},
    "speed": {"speed", "angle", "push"},
    "angle": {"angle", "spin"},
    "spin": {"angle", "spin", "push"},
}
"""What the equations of the cart and its pole say: positions follow their speeds, and speeds the push and the pole's
weight. Exactly, spin also moves the cart (spin^2 sin angle), in these data by 1/10,000 of what a push does."""


@pytest.mark.slow
def test_cartpole_ends_in_the_graph_of_its_equations(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # most of its time goes into compiling
    example("collect_cartpole").collect(tmp_path / "cartpole.hdf5", episodes=40)
    because("factors", tmp_path / "cartpole.hdf5", "-o", tmp_path / "factors.yaml")
    settings = TINY | {"world_steps": 800, "hidden": 32, "batch": 64}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    out = tmp_path / "fitted"
    command = ("fit", tmp_path / "cartpole.hdf5", "--factors", tmp_path / "factors.yaml", "-o", out, "--seeds", 1)
    result = json.loads(because(*command, *given, "--json").stdout)
    assert {target: set(causes) for target, causes in result["graph"].items()} == CARTPOLE
    accuracy = {row["factor"]: row["value"] for row in result["accuracy"]}
    assert min(accuracy.values()) > 0.9
    assert result["uncertainty"]["mixed"] > result["uncertainty"]["held_out"]
    agent = load_policy(out)
    agent.begin(2, seed=0)
    pushes = agent.act(np.zeros((1, 2, 4)), np.full((1, 2, 1), 0.5), 80)
    assert pushes.shape == (1, 2, 1)
    assert np.isin(pushes, (0, 1)).all()
