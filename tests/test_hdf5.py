"""HDF5 files that reach outside, declare more than they hold, or crash the library are refused."""

import contextlib
import resource

import h5py
import numpy as np
import pytest

from because_rl import hdf5
from because_rl.datasets.load import load
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from tests.support import arrays, because, write

ROWS = 144


def external_link(file, folder):
    write(folder / "other.hdf5", {"rewards": np.zeros(ROWS)})
    file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")


def soft_link(file, folder):
    file["rewards"] = h5py.SoftLink("/episodes")


def external_storage(file, folder):
    (folder / "secret").write_bytes(bytes(8 * ROWS))
    file.create_dataset("rewards", (ROWS,), "f8", external=[(str(folder / "secret"), 0, 8 * ROWS)])


def virtual_dataset(file, folder):
    write(folder / "other.hdf5", {"rewards": np.zeros(ROWS)})
    layout = h5py.VirtualLayout((ROWS,), "f8")
    layout[:] = h5py.VirtualSource(folder / "other.hdf5", "rewards", (ROWS,))
    file.create_virtual_dataset("rewards", layout)


def same_array_twice(file, folder):
    file["rewards"] = file["episodes"]


def nothing_allocated(file, folder):
    file.create_dataset("rewards", (3 * 10**9,), "f4", chunks=(10**6,))


def nothing_allocated_within_the_limit(file, folder):
    file.create_dataset("rewards", (2 * 10**8,), "f4", chunks=(10**6,))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (external_link, "link to data elsewhere"),
        (soft_link, "link to data elsewhere"),
        (external_storage, "in another file"),
        (virtual_dataset, "in another file"),
        (same_array_twice, "same object"),
        (nothing_allocated, "declares 12,000,000,000 bytes"),
        (nothing_allocated_within_the_limit, "declares 800,000,000 bytes"),
    ],
)
def test_hdf5_that_reaches_outside_or_declares_too_much(tmp_path, damage, says):
    path = write(tmp_path / "log.hdf5", arrays())
    with h5py.File(path, "r+") as file:
        damage(file, tmp_path)
    with pytest.raises(BecauseError, match=says):
        read_log(path)


def test_arrays_of_other_names_are_not_read(tmp_path):
    """Neither what they hold nor a graph of links with 2^25 ways through it."""
    path = write(tmp_path / "log.hdf5", arrays())
    with h5py.File(path, "r+") as file:
        file.create_dataset("camera", (10**12,), "f4", chunks=(10**6,))
        below = file.create_group("deep")
        for _ in range(25):
            group = file.create_group(None)
            group["a"] = group["b"] = below
            below = group
        file["infos"] = below
    assert len(read_log(path).episodes) == 24


def test_max_gb_is_the_limit_of_what_is_read(tmp_path):
    path = write(tmp_path / "log.hdf5", arrays())
    refused = because("factors", path, "--max-gb", 1e-6, code=2)
    assert "--max-gb" in refused.stderr
    assert "x" in because("factors", path, "--max-gb", 1).stdout
    assert "above 0" in because("factors", path, "--max-gb", -1, code=2).stderr


def test_a_crash_of_the_library_is_an_error_and_no_more(tmp_path, monkeypatch):
    path = write(tmp_path / "log.hdf5", arrays())
    crash = tmp_path / "crash.py"
    crash.write_text("import os, sys; sys.stdin.readline(); os.abort()\n")
    hdf5._stop()
    with monkeypatch.context() as patch:
        patch.setattr(hdf5, "PROGRAM", crash)
        with pytest.raises(BecauseError, match="ended with exit code -6"):
            read_log(path)
    assert len(read_log(path).episodes) == 24  # a new process has taken its place


@contextlib.contextmanager
def files_of_at_most(size):
    """In place of a full disk: writing more fails in the same way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [2_000, 150_000])
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, size):
    """At first while a chunk of episodes is written, then while the dataset is."""
    command = ("collect", "unlock-medium", "--episodes", 5)
    with files_of_at_most(size):
        refused = because(*command, root=tmp_path, code=2)
    assert "Could not write" in refused.stderr.splitlines()[-1]
    assert ("main_data.hdf5" in refused.stderr) == (size > 10_000)
    assert not list(tmp_path.rglob("*.tmp-*"))
    because(*command, root=tmp_path)
    assert load("because/unlock-medium-n5-v1", tmp_path).episodes == 5


def test_thousands_of_arrays_are_read(tmp_path):
    """A thousand episodes of seven arrays each: all open at once they would not fit in the memory of the reader."""
    with hdf5.new_hdf5(tmp_path / "many.hdf5") as file:
        for number in range(1000):
            group = file.create_group(f"episode_{number}")
            for name in "abcdefg":
                group.create_dataset(name, data=[float(number)], chunks=(1,), maxshape=(None,))
    content = hdf5.read_hdf5(tmp_path / "many.hdf5", "abcdefg")
    assert len(content.arrays) == 7000
    assert content.arrays["episode_999/g"] == 999
