"""Parquet logs of more rows than are read: a sample of whole episodes, and the others in chunks."""

import json
import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import because_rl as br
from because_rl.datasets import large_log
from because_rl.datasets.columns import Columns
from because_rl.datasets.row_store import open_row_store, write_row_store
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.transitions import LEARNED
from tests.support import because

SPEC = FactorSpec(pack(("x", 1, "continuous"), ("gear", 2, "categorical")), pack(("push", 1, "continuous")))
ROLES = {"state": ["x", "gear"], "action": ["push"], "episode": "batch"}
EPISODES, LENGTH = 120, 9


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(0), EPISODES * LENGTH
    return {
        "batch": np.array([f"b{k:04}" for k in np.arange(n) // LENGTH]),
        "x": rng.normal(size=n),
        "gear": np.array(["high", "low"])[rng.integers(2, size=n)],
        "push": rng.normal(size=n),
        "unused": np.arange(n),
    }


def write_parts(folder, table, parts):
    """Parts of different sizes: episodes begin in one and end in the next."""
    folder.mkdir()
    rows = len(table["batch"])
    edges = [rows * k // parts + 2 * (0 < k < parts) for k in range(parts + 1)]
    for k in range(parts):
        part = {name: values[edges[k] : edges[k + 1]] for name, values in table.items()}
        parquet.write_table(pyarrow.table(part), folder / f"part-{k}.parquet", row_group_size=100)
    return folder


@pytest.fixture
def log(tmp_path, table, monkeypatch):
    monkeypatch.setattr(large_log, "BATCH", 50)
    monkeypatch.setattr(large_log, "CHUNK_ROWS", 200)
    monkeypatch.setattr(large_log, "CHUNK_EPISODES", 10)
    return write_parts(tmp_path / "log", table, 5)


def rows_of(data):
    return {tuple(np.hstack(row)) for row in zip(data.state, data.action, data.next_state, strict=True)}


def test_sample_and_rest_together_are_the_whole_log(log):
    whole = br.load(log, factors=SPEC, **ROLES, sample_rows=0)
    data = br.load(log, factors=SPEC, **ROLES, sample_rows=270)
    assert whole.rest is None
    assert (data.episodes, len(data)) == (30, 30 * (LENGTH - 1))
    chunks = list(data.rest)
    assert len(chunks) == len(data.rest) == 4
    assert data.episodes + sum(chunk.episodes for chunk in chunks) == EPISODES
    assert len(data) + sum(map(len, chunks)) == len(whole)
    assert set.union(rows_of(data), *map(rows_of, chunks)) == rows_of(whole)
    assert data.metadata["sample"]["of_rows"] == EPISODES * LENGTH
    assert data.metadata["notes"][0].startswith("a sample: 30 of 120 episodes, drawn with seed 0, with 270 of 1,080")


def test_a_log_that_fits_is_read_as_before(log):
    whole = br.load(log, factors=SPEC, **ROLES)
    assert whole.rest is None
    assert "sample" not in whole.metadata


def test_episodes_of_a_sample_are_whole_and_follow_the_seed(log):
    def labels(seed):
        sample = read_log(log, columns=Columns(("x", "gear"), ("push",), (), "batch"), sample_rows=270, seed=seed)
        return sample.large.in_sample.tolist(), [len(e["actions"]) for e in sample.episodes]

    assert labels(0) == labels(0)
    assert labels(0)[0] != labels(1)[0]
    assert set(labels(0)[1]) == {LENGTH - 1}


def test_flags_of_ends_cut_a_large_log_into_episodes(tmp_path, table):
    flags = {k: v for k, v in table.items() if k != "batch"}
    flags["done"] = np.arange(len(table["x"])) % LENGTH == LENGTH - 1
    folder = write_parts(tmp_path / "log", flags | {"batch": table["batch"]}, 3)
    data = br.load(folder, factors=SPEC, state=["x", "gear"], action=["push"], sample_rows=270)
    assert (data.episodes, len(data.rest)) == (30, 1)


def test_episodes_that_are_not_together_are_refused(tmp_path, table):
    order = np.r_[np.arange(5), np.arange(20, len(table["x"])), np.arange(5, 20)]
    folder = write_parts(tmp_path / "log", {k: v[order] for k, v in table.items()}, 3)
    with pytest.raises(BecauseError, match="the rows of episode 'b0000' are not together"):
        br.load(folder, factors=SPEC, **ROLES, sample_rows=270)


def test_the_rest_is_checked_as_well(log, table, tmp_path):
    options = ("--state", "x,gear", "--action", "push", "--episode", "batch", "--sample-rows", "270")
    (tmp_path / "f.json").write_text(json.dumps(SPEC.to_dict()))
    options += ("--factors", str(tmp_path / "f.json"))
    valid = because("check", log, *options, "--json", root=tmp_path)
    assert '"transitions": 960' in valid.stdout
    broken = table | {"x": np.where(np.arange(len(table["x"])) == 700, np.nan, table["x"])}
    folder = write_parts(tmp_path / "broken", broken, 3)
    refused = because("check", folder, *options, root=tmp_path, code=2)
    assert "values are missing: 1 of 'x'" in refused.stderr


def test_stored_rows_are_those_of_all_episodes_but_the_held_out(log, tmp_path):
    data = br.load(log, factors=SPEC, **ROLES, sample_rows=270)
    store = write_row_store(tmp_path / "rows", data)
    again = open_row_store(tmp_path / "rows", data.factors)
    assert len(again) == len(data.rest)
    for stored, chunk in zip(again, data.rest, strict=True):
        for name in LEARNED:
            np.testing.assert_array_equal(getattr(stored, name), getattr(chunk, name))
        assert list(stored.metadata["rows"]) == chunk.metadata["rows"]
    drawn = store.draw(np.random.default_rng(0), 20_000)
    rows = {tuple(np.hstack(row)) for row in zip(drawn["state"], drawn["action"], drawn["next_state"], strict=True)}
    wanted = rows_of(data.rows(~data.held_out)).union(*map(rows_of, data.rest))
    assert rows == wanted
    assert not rows & rows_of(data.rows(data.held_out))


def test_a_store_that_was_cut_off_is_refused(log, tmp_path):
    data = br.load(log, factors=SPEC, **ROLES, sample_rows=270)
    write_row_store(tmp_path / "rows", data)
    os.truncate(tmp_path / "rows" / "rows.bin", 100)
    with pytest.raises(BecauseError, match="does not have the size"):
        open_row_store(tmp_path / "rows", data.factors)
