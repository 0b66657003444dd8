import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from because_rl import io
from because_rl.errors import BecauseError
from because_rl.rng import child_seed, stream


def test_streams_are_named_and_independent():
    a, b = stream(1, "x").random(5), stream(1, "y").random(5)
    assert (a != b).all()
    assert (stream(1, "x").random(5) == a).all()
    assert (stream(2, "x").random(5) != a).all()
    assert stream(1, "x", 1).random() != stream(1, "x", 2).random()
    assert 0 <= child_seed(3, "a") < 2**31
    with pytest.raises(ValueError, match="-1"):
        stream(-1, "x")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    io.write_json(path, {"old": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BecauseError, match=r"a\.json: No space left"):
        io.write_json(path, {"new": 2})
    assert io.read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_arrays_round_trip_and_refuse_damage(tmp_path):
    path = tmp_path / "a.npz"
    io.write_arrays(path, {"x": np.arange(1000.0)})
    assert (io.read_arrays(path)["x"] == np.arange(1000)).all()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(BecauseError, match="damaged"):
        io.read_arrays(path)
    path.write_bytes(damaged[:500])
    with pytest.raises(BecauseError, match="damaged"):
        io.read_arrays(path)


def test_object_arrays_are_refused(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        io.write_arrays(tmp_path / "a.npz", {"x": np.array([object()])})


def test_new_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "d"
    with pytest.raises(ZeroDivisionError), io.new_folder(target) as folder:
        (folder / "half").write_text(str(1 / 0))
    assert os.listdir(tmp_path) == []
    for text in ("one", "two"):
        with io.new_folder(target) as folder:
            (folder / "file").write_text(text)
        assert (target / "file").read_text() == text
    assert os.listdir(tmp_path) == ["d"]


def test_leftovers_of_dead_processes_are_removed(tmp_path, monkeypatch):
    """Process 1 is alive and 999999999 is not. For files of another machine, only their age counts."""
    here = [tmp_path / f".{name}.tmp-{io._machine()}-{pid}-ab" for name, pid in (("x", 999999999), ("y", 1))]
    others = [tmp_path / f".{name}.tmp-00000000-{pid}-ab" for name, pid in (("young", 999999999), ("old", 1))]
    unknown = [tmp_path / ".z.tmp-young", tmp_path / ".z.tmp-old"]
    for path in (*here, *others, *unknown):
        path.mkdir() if path in others else path.write_text("")
        if "old" in path.name:
            os.utime(path, (0, 0))
    io.remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([here[1], others[0], unknown[0]])
    monkeypatch.setattr(io, "_machine", lambda: "elsewhere")
    (tmp_path / here[0].name).write_text("")
    io.remove_leftovers(tmp_path)  # as if on another machine
    assert len(list(tmp_path.iterdir())) == 4


def test_the_temporary_file_of_a_killed_process_is_removed(tmp_path):
    """`remove_leftovers` understands the names that `write_bytes` gives."""
    stop = "from because_rl import io; import os; io.os.fsync = lambda handle: os._exit(9); io.write_text({!r}, 'x')"
    subprocess.run([sys.executable, "-c", stop.format(str(tmp_path / "file"))], check=False)
    (leftover,) = tmp_path.iterdir()
    assert ".tmp-" in leftover.name
    io.remove_leftovers(tmp_path)
    assert not leftover.exists()


def test_the_hash_covers_names_shapes_types_and_values():
    x = np.zeros((2, 3))
    hashes = {io.arrays_sha256(a) for a in ({"x": x}, {"y": x}, {"x": x.T}, {"x": x.astype("f4")}, {"x": x + 1})}
    assert len(hashes) == 5
    assert io.arrays_sha256({"a": x, "b": x + 1}) == io.arrays_sha256({"b": x + 1, "a": x})


def test_a_lock_on_a_removed_file_is_not_taken(tmp_path, monkeypatch):
    """The last holder removes the file after we have opened it, and another process makes and locks a new one."""
    lock, flock, others = tmp_path / "x.lock", io.fcntl.flock, []

    def late(file, how):
        if not others:
            lock.unlink()
            others.append(lock.open("w"))
            flock(others[0], how)
        flock(file, how)

    monkeypatch.setattr(io.fcntl, "flock", late)
    with pytest.raises(BecauseError, match="Another process is busy"), io.exclusive(lock, "busy"):
        pass
    others[0].close()
    with io.exclusive(lock, "busy"):
        assert lock.exists()
    assert not lock.exists()


HOLD = """
import sys
import threading
from pathlib import Path
from because_rl.io import in_turn
with in_turn(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
    Path(sys.argv[1]).with_suffix(".done").touch()
"""


def test_a_turn_waits_for_another_process_and_not_for_itself(tmp_path):
    lock = tmp_path / "x.lock"
    with io.in_turn(lock), io.in_turn(lock):
        pass
    other = subprocess.Popen([sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    end = threading.Timer(0.2, other.stdin.close)
    end.start()
    with io.in_turn(lock):
        assert lock.with_suffix(".done").exists()
    assert other.wait(10) == 0
    assert not lock.exists()
    other.stdout.close()
