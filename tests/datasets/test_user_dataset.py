"""A user's own log as a dataset: its factors, its goals, what the end of an episode means."""

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from because_rl.datasets.load import load
from because_rl.datasets.minari_files import write_dataset_files
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_dataset import add_action_codes, encode_log, prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from tests.support import arrays, write

X_ON = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))
GOAL = (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),)


def test_adopted_log_is_a_minari_dataset_and_reads_back(tmp_path):
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


def test_factors_must_cover_the_columns(tmp_path):
    log = read_log(write(tmp_path / "a.hdf5", arrays()))
    three = FactorSpec(pack(("x", 3, "continuous")), X_ON.action)
    with pytest.raises(BecauseError, match="3 state columns but the data have 2"):
        prepare_log(log, three)


def test_a_goal_must_be_in_the_log_or_be_given(tmp_path):
    log = read_log(write(tmp_path / "a.hdf5", arrays()))
    spec = FactorSpec(X_ON.state, X_ON.action, GOAL)
    with pytest.raises(BecauseError, match="--goal VALUE"):
        prepare_log(log, spec)
    with pytest.raises(BecauseError, match="2 goal values"):
        prepare_log(log, spec, [1.0, 2.0])
    assert (prepare_log(log, spec, [0.5]).joined("goals") == 0.5).all()


def test_episode_terminates_at_its_goal_whatever_its_flag_says(tmp_path):
    rows = arrays() | {"terminations": np.ones(144)}  # in this log it only means 'over'
    log = prepare_log(read_log(write(tmp_path / "a.hdf5", rows)), FactorSpec(X_ON.state, X_ON.action, GOAL), [0.2])
    reached = rows["next_observations"][5::6, 0] >= np.float32(0.2)
    assert 0 < reached.sum() < 24
    assert [bool(e["terminations"][-1]) for e in log.episodes] == reached.tolist()
    assert [bool(e["truncations"][-1]) for e in log.episodes] == (~reached).tolist()


def test_numbered_actions_are_one_hot_or_a_column(tmp_path):
    rows = arrays() | {"actions": np.arange(144) % 3}
    log = read_log(write(tmp_path / "a.hdf5", rows))
    three = add_action_codes(log, FactorSpec(X_ON.state, pack(("push", 3, "categorical"))))
    assert three.codes == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    write_dataset(prepare_log(log, three), tmp_path / "three")
    np.testing.assert_array_equal(load(tmp_path / "three").action.argmax(1), rows["actions"])
    one = add_action_codes(log, X_ON)
    assert one.codes is None
    write_dataset(prepare_log(log, one), tmp_path / "one")
    np.testing.assert_array_equal(load(tmp_path / "one").action[:, 0], rows["actions"])


@pytest.mark.parametrize(("count", "start"), [(2, 0), (3, 0), (2, 1)])
def test_proposed_factors_of_numbered_actions_fit_every_reader(tmp_path, count, start):
    """Gymnasium's Discrete in a plain Minari dataset, of which the last action may never have been taken."""
    rows, rng = arrays(), np.random.default_rng(0)
    taken = rng.integers(2, size=144) + start
    length = np.arange(6)
    episodes = [
        {
            "observations": np.vstack([rows["observations"][k : k + 6], rows["next_observations"][k + 5 : k + 6]]),
            "actions": taken[k : k + 6],
            "rewards": np.zeros(6),
            "terminations": length == 5,
            "truncations": length == 9,
        }
        for k in range(0, 144, 6)
    ]
    box, discrete = spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(count, start=start)
    write_dataset_files(tmp_path / "own", box, discrete, episodes, {"dataset_id": "own/log-v0"})
    spec = FactorSpec.from_dict(yaml.safe_load(propose_factors(read_log(tmp_path / "own"))))
    assert spec.action_size == (1 if count == 2 else count)
    data = load(tmp_path / "own", factors=spec)
    np.testing.assert_array_equal(data.action[:, 0] if count == 2 else data.action.argmax(1), taken - start)
    log = prepare_log(read_log(tmp_path / "own"), add_action_codes(read_log(tmp_path / "own"), spec))
    np.testing.assert_array_equal(np.concatenate([e["action"] for e in encode_log(log)]), data.action)
    with pytest.raises(BecauseError) as refused:
        load(tmp_path / "own", factors=FactorSpec(X_ON.state[:1], X_ON.action))
    assert "because collect" not in str(refused.value)
