"""The same log in every format that is read: identical arrays, in any order of rows; and the same graph."""

import csv

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import because_rl as br
from because_rl.datasets.columns import Columns
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_dataset import prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.factors import FactorSpec, pack

SPEC = FactorSpec(
    pack(("x", 1, "continuous"), ("on", 1, "binary"), ("gear", 3, "categorical")), pack(("push", 1, "continuous"))
)
GEARS = np.array(["high", "low", "mid"])
ROLES = {"state": ["x", "on", "gear"], "action": ["push"], "episode": "batch", "time": "t", "reward": "gain"}
LEVELS = ["x", "on", "gear=high", "gear=low", "gear=mid"]


def columns(episodes=24, length=8):
    """A table: a body that is pushed, more in a high gear, and a lamp that is on beyond 1. Text ids and levels."""
    rng, n = np.random.default_rng(0), episodes * length
    push, gear, x = rng.normal(size=n), rng.integers(3, size=n), np.zeros(n)
    for row in range(n):
        x[row] = rng.normal() if row % length == 0 else x[row - 1] + (0.3 + (gear[row - 1] == 0)) * push[row - 1]
    episode, step = np.divmod(np.arange(n), length)
    return {
        "batch": np.array([f"b{k:04}" for k in episode]),
        "t": 0.5 * step,
        "x": x,
        "on": (x > 1).astype(int),
        "gear": GEARS[gear],
        "push": push,
        "gain": rng.normal(size=n),
        "remark": np.array(["12", "n/a", "none of this is used, nor is it a number"])[rng.integers(3, size=n)],
    }


def matrices(table):
    """The same as D4RL-like arrays: observations, actions, rewards, episodes."""
    levels = table["gear"][:, None] == GEARS
    return {
        "observations": np.hstack([table["x"][:, None], table["on"][:, None], levels]),
        "actions": table["push"][:, None],
        "rewards": table["gain"],
        "episodes": np.unique(table["batch"], return_inverse=True)[1],
    }


def backwards(table):
    """The rows of each episode in the opposite order."""
    order = np.arange(len(table["x"])).reshape(-1, 8)[:, ::-1].reshape(-1)
    return {name: values[order] for name, values in table.items()}


def as_csv(folder, table, separator=","):
    with open(folder / "log.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(table)
        writer.writerows(zip(*(values.tolist() for values in table.values()), strict=True))
    return folder / "log.csv"


def as_frame(folder, table):
    return pytest.importorskip("pandas").DataFrame(table)


def as_frame_of_categories(folder, table):
    return as_frame(folder, table).astype({"gear": "category", "batch": "category", "on": bool})


def as_npz(folder, table, save=np.savez_compressed):
    save(folder / "log.npz", **table)
    return folder / "log.npz"


def as_hdf5(folder, table):
    with h5py.File(folder / "log.hdf5", "w") as file:
        for name, values in matrices(table).items():
            file[name] = values
        file["observations"].attrs["names"] = LEVELS
        file["actions"].attrs["names"] = ["push"]
    return folder / "log.hdf5"


def as_minari(folder, table):
    write_dataset(prepare_log(read_log(as_hdf5(folder, table)), SPEC), folder / "own")
    return folder / "own"


def as_parquet(folder, table):
    parquet.write_table(pyarrow.table(table), folder / "log.parquet")
    return folder / "log.parquet"


def as_parts(folder, table):
    (folder / "parts").mkdir()
    for part, rows in enumerate(np.array_split(np.arange(len(table["batch"])), 3)):
        piece = pyarrow.table({name: np.asarray(values)[rows] for name, values in table.items()})
        parquet.write_table(piece, folder / f"parts/part-{part}.parquet")
    return folder / "parts"


FORMATS = {
    "csv": (as_csv, ROLES),
    "csv with semicolons": (lambda folder, table: as_csv(folder, table, ";"), ROLES),
    "csv, rows backwards": (lambda folder, table: as_csv(folder, backwards(table)), ROLES),
    "npz": (as_npz, ROLES),
    "npz of arrays": (lambda folder, table: as_npz(folder, matrices(table), np.savez), {}),
    "dict": (lambda folder, table: {k: v.tolist() for k, v in table.items()}, ROLES),
    "dict of arrays": (lambda folder, table: matrices(table), {}),
    "pandas": (as_frame, ROLES),
    "pandas with categories": (as_frame_of_categories, ROLES),
    "hdf5": (as_hdf5, {}),
    "hdf5 by names": (as_hdf5, {"state": LEVELS, "action": ["push"]}),
    "minari": (as_minari, {}),
    "parquet": (as_parquet, ROLES),
    "parquet in parts": (as_parts, ROLES),
}


@pytest.fixture(scope="module")
def expected():
    return br.load(matrices(columns()), factors=SPEC)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_arrays(kind, expected, tmp_path):
    make, roles = FORMATS[kind]
    data = br.load(make(tmp_path, columns()), factors=SPEC, **roles)
    assert (len(data), data.episodes) == (24 * 7, 24)
    assert data.sha256() == expected.sha256()


def test_arrays_are_those_of_the_table(expected):
    table = columns()
    last = np.arange(24 * 8) % 8 == 7
    np.testing.assert_array_equal(expected.state[:, 0], table["x"][~last].astype(np.float32))
    np.testing.assert_array_equal(expected.next_state[:, 0], table["x"][np.roll(~last, 1)].astype(np.float32))
    np.testing.assert_array_equal(expected.reward, table["gain"][~last].astype(np.float32))
    assert (GEARS[expected.state[:, 2:].argmax(1)] == table["gear"][~last]).all()


def test_a_proposal_says_all_that_reading_the_table_needs(expected, tmp_path):
    path = as_csv(tmp_path, columns())
    (tmp_path / "f.yaml").write_text(propose_factors(read_log(path, columns=Columns(**ROLES))))
    data = br.load(path, factors=tmp_path / "f.yaml")
    assert data.factors == SPEC.with_outcomes("gain", has_ends=False)
    assert data.sha256() == expected.sha256()
    reordered = (tmp_path / "f.yaml").read_text().replace('"gear=high", "gear=low"', '"gear=low", "gear=high"')
    (tmp_path / "g.yaml").write_text(reordered)
    other = br.load(path, factors=tmp_path / "g.yaml")
    np.testing.assert_array_equal(other.state[:, [0, 1, 3, 2, 4]], data.state[:, :5])


@pytest.mark.parametrize("roles", ["state", "observation"])
def test_columns_named_like_arrays_need_no_roles(roles, expected):
    rows = matrices(columns())
    table = {f"{roles}_{k}": values for k, values in enumerate(rows["observations"].T)}
    table |= {"action_push": rows["actions"][:, 0], "reward": rows["rewards"], "episode_id": columns()["batch"]}
    assert br.load(table, factors=SPEC).sha256() == expected.sha256()


def test_next_columns_keep_the_last_step(expected):
    table = columns()
    table |= {f"next_{name}": np.roll(table[name], -1) for name in ("x", "on", "gear")}
    data = br.load(table, factors=SPEC, **ROLES)
    assert len(data) == 24 * 8
    np.testing.assert_array_equal(data.state[data.step < 7, :5], expected.state[:, :5])


@pytest.mark.long
def test_every_format_of_a_long_log_gives_the_same_graph(tmp_path):
    table, graphs = columns(120, 75), []
    for kind in ("csv", "npz", "dict of arrays", "hdf5", "parquet"):
        make, roles = FORMATS[kind]
        data = br.load(make(tmp_path, table), factors=SPEC, **roles)
        graphs.append(br.discover(data, batches=0))
    assert len(table["x"]) == 9000
    assert {graph.parents("x") for graph in graphs} == {("x", "gear", "push")}
    assert all((graph.kept == graphs[0].kept).all() and (graph.p == graphs[0].p).all() for graph in graphs)
