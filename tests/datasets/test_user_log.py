"""Reading a user's own log: HDF5 in several shapes, Minari datasets, and why a log is refused."""

import numpy as np
import pytest

from because_rl.datasets.user_dataset import prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from tests.support import arrays, write

X_ON = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")))


def test_flat_arrays_are_cut_into_episodes(tmp_path):
    rows = arrays()
    log = read_log(write(tmp_path / "a.hdf5", rows))
    assert len(log.episodes) == 24
    first = log.episodes[1]
    np.testing.assert_array_equal(first["observations"][:-1], rows["observations"][6:12])
    np.testing.assert_array_equal(first["observations"][-1], rows["next_observations"][11])
    assert first["truncations"].tolist() == [False] * 5 + [True]


def test_without_next_observations_the_last_row_only_ends_its_episode(tmp_path):
    rows = arrays()
    del rows["next_observations"]
    log = read_log(write(tmp_path / "a.hdf5", rows))
    assert [len(e["actions"]) for e in log.episodes] == [5] * 24
    np.testing.assert_array_equal(log.episodes[2]["observations"], rows["observations"][12:18])
    np.testing.assert_array_equal(log.episodes[2]["actions"], rows["actions"][12:17])


def test_flags_may_mark_episode_ends(tmp_path):
    rows = arrays()
    ids = rows.pop("episodes")
    ends = np.append(ids[1:] != ids[:-1], True)
    for names in (("terminations", "truncations"), ("terminals", "timeouts")):
        flags = {names[0]: ends & (ids % 2 == 0), names[1]: ends & (ids % 2 == 1)}
        log = read_log(write(tmp_path / f"{names[0]}.hdf5", rows | flags))
        assert len(log.episodes) == 24
        assert [bool(e["terminations"][-1]) for e in log.episodes] == [True, False] * 12


def test_a_group_per_episode_reads_the_same_as_flat_arrays(tmp_path):
    flat = read_log(write(tmp_path / "a.hdf5", arrays()))
    tree = {f"episode_{n}/{k}": v for n, e in enumerate(flat.episodes) for k, v in e.items()}
    grouped = read_log(write(tmp_path / "b.hdf5", tree))
    assert grouped.sha256 == flat.sha256  # and episode_10 follows episode_9, not episode_1


def test_datasets_in_the_folder_of_minari_are_read(tmp_path, monkeypatch):
    log = prepare_log(read_log(write(tmp_path / "a.hdf5", arrays())), X_ON)
    write_dataset(log, tmp_path / "minari/mine/log-v3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert read_log("mine/log-v3", tmp_path / "elsewhere").sha256 == log.sha256


def _without(name):
    return lambda rows: rows.pop(name)


def _set(name, index, value):
    def change(rows):
        rows[name][index] = value

    return change


def _put(name, value):
    return lambda rows: rows.__setitem__(name, value)


def _one_long_episode(rows):
    del rows["next_observations"]
    rows["episodes"][:] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("observations"), "no array 'observations'"),
        (_without("actions"), "no array 'actions'"),
        (_without("episodes"), "does not say where episodes end"),
        (_set("observations", (7, 0), np.nan), "1 of 'state column 0' (first: episode 1, step 1)"),
        (_set("actions", (8, 0), np.inf), "episode 1, step 2: action column 0 is inf"),
        (_put("actions", np.zeros((5, 1))), "'actions' has 5 rows and 'observations' 144"),
        (_put("rewards", np.zeros(3)), "'rewards' has 3 rows"),
        (_one_long_episode, "has 1 episode."),
        (_put("observations", np.full((144, 2), b"a")), "of type |S1"),
        (_put("states", np.zeros((144, 2))), "both 'observations' and 'states'"),
        (_put("observations", np.zeros((144, 3))), "'next_observations' have shape (2,)"),
        (_set("next_observations", (3, 0), 9.0), "'next_observations' of row 3 are not"),
        (_set("next_observations", (5, 1), 0.5), "'on' is [0.5]"),
    ],
)
def test_bad_logs_are_refused_with_the_reason(tmp_path, change, message):
    rows = arrays()
    change(rows)
    if "step 1)" in message:
        rows["next_observations"][6, 0] = np.nan
    path = write(tmp_path / "a.hdf5", rows)
    with pytest.raises(BecauseError) as refused:
        prepare_log(read_log(path), X_ON)
    assert message in str(refused.value)


def test_bad_files_and_names_are_refused_with_the_reason(tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"not hdf5")
    for data, message in ((tmp_path / "a.hdf5", "cannot be read"), ("nothing/here-v0", "no data 'nothing/here-v0'")):
        with pytest.raises(BecauseError, match=message):
            read_log(data, tmp_path)
    whole = write(tmp_path / "b.hdf5", arrays()).read_bytes()
    (tmp_path / "c.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BecauseError, match="cannot be read"):
        read_log(tmp_path / "c.hdf5")
