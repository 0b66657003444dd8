"""Fault injection: a small slice in this process, a larger one in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.faults.run import Injector, fingerprint, leftovers, state
from tests.support import REPOSITORY, because

COLLECT = ("collect", "unlock-medium", "--episodes", 2)


@pytest.mark.slow
def test_collect_survives_operations_that_fail(tmp_path):
    """A failed operation is one error message; then the same command ends with the same files, and no others."""
    (calm := tmp_path / "calm").mkdir()
    with Injector(tmp_path).installed() as counter:
        because(*COLLECT, root=calm)
    expected = fingerprint(calm)
    assert counter.count > 15
    assert leftovers(calm) == []
    for k in (*range(1, 6), *range(6, counter.count + 1, 6)):
        (work := tmp_path / str(k)).mkdir()
        kind = ("ENOSPC", "EIO")[k % 2]
        with Injector(tmp_path, k, kind).installed():
            refused = because(*COLLECT, root=work, code=2)
        assert "Could not write" in refused.stderr
        assert [name for name in leftovers(work) if ".tmp-" in name] == []
        because(*COLLECT, root=work)
        assert (fingerprint(work), leftovers(work)) == (expected, [])


def test_the_injector_breaks_the_operation_it_is_asked_to(tmp_path):
    def work():
        with open(tmp_path / "a", "wb") as file:
            file.write(b"1234")
            os.fsync(file.fileno())
        os.replace(tmp_path / "a", tmp_path / "b")

    for k, content in ((1, {}), (2, {"a": b"12"}), (3, {"a": b"1234"}), (4, {"a": b"1234"}), (5, {"b": b"1234"})):
        with Injector(tmp_path, k, "EIO").installed():
            if k < 5:
                with pytest.raises(OSError, match="Input/output"):
                    work()
            else:
                work()
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == content
    (tmp_path / ".b.tmp-1").touch()
    assert leftovers(tmp_path) == [".b.tmp-1"]


def test_fingerprints_leave_out_times_and_nothing_else(tmp_path):
    prints = []
    for content in ({"a": 1, "seconds": 1}, {"a": 1, "seconds": 2}, {"a": 2, "seconds": 2}):
        (tmp_path / "x.json").write_text(json.dumps(content))
        prints.append(fingerprint(tmp_path))
    assert prints[0] == prints[1] != prints[2]


def test_states_differ_where_files_do(tmp_path):
    """But for times, and for the random part of temporary names."""
    states = []
    for name, content in ((".a.tmp-1f-7-aa", b"12"), (".a.tmp-2e-8-bb", b"12"), (".a.tmp-1f-7-aa", b"1"), ("a", b"12")):
        for file in tmp_path.iterdir():
            file.unlink()
        (tmp_path / name).write_bytes(content)
        states.append(state(tmp_path))
    assert states[0] == states[1]
    assert len(set(states)) == 3


@pytest.mark.long
def test_kills_of_whole_processes(tmp_path):
    """In a process without JAX, since it forks. The second time it only reads what the first has kept."""
    words = ["faults", "collect", "train", "--kind", "SIGKILL", "--every", "9", "-o", tmp_path / "faults.json"]
    words += ["--keep", tmp_path / "kept"]
    kept = []
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "benchmarks", *map(str, words)], cwd=REPOSITORY, check=True)
        result = json.loads((tmp_path / "faults.json").read_text())
        assert result["failures"] == []
        assert [row["faults"] for row in result["rows"]] == [row["survived"] for row in result["rows"]]
        kept.append({file: file.read_text() for file in (tmp_path / "kept").rglob("*.jsonl")})
    assert kept[0] == kept[1]
    assert sum(len(text.splitlines()) for text in kept[0].values()) == sum(row["faults"] for row in result["rows"])
