"""Event files: one per seed, that grow with each chunk and hold every event once, also after a kill."""

import time

import numpy as np
import pytest

from because_rl.runs.tensorboard import FILE, FOLDER, EventFiles
from tests.runs.events import read_events, records

HISTORY = {
    "world": {"step": np.array([[500, 500], [1000, 1000]]), "loss": np.array([[3.0, 2.5], [1.0, np.nan]])},
    "energy": {"step": np.array([[300, 300]]), "loss": np.array([[-0.5, -0.25]])},
    "empty": {},
}
FIRST = {"world": {name: values[:1] for name, values in HISTORY["world"].items()}}
"""The history after the first chunk."""


def paths(folder):
    return [folder / FOLDER / f"seed-{seed}" / FILE for seed in (0, 7)]


def test_each_seed_has_its_events_with_wall_times(tmp_path):
    before, files = time.time(), EventFiles(tmp_path, (0, 7))
    files.write(FIRST)
    first, second = paths(tmp_path)
    assert [event[1:] for event in read_events(first)] == [(None, {}), (500, {"world/loss": 3.0})]
    assert b"brain.Event:2" in next(records(first.read_bytes()))
    old = first.read_bytes()
    files.write(HISTORY)
    assert first.read_bytes().startswith(old)  # it grows: a reader has it open
    events = read_events(first)
    assert [event[1:] for event in events[2:]] == [(1000, {"world/loss": 1.0}), (300, {"energy/loss": -0.5})]
    assert before <= events[0][0] <= events[-1][0] <= time.time()
    assert np.isnan(read_events(second)[2][2]["world/loss"])


@pytest.mark.parametrize("size", [0, 5, 30, 37, 80, 81, 120, 10_000])
def test_files_that_were_cut_off_are_completed_once(tmp_path, size):
    """Wherever a kill left the file, and if it left bytes that are no record."""
    EventFiles(tmp_path, (0, 7)).write(HISTORY)
    first, second = paths(tmp_path)
    whole, untouched = read_events(first), second.read_bytes()
    first.write_bytes((first.read_bytes() + b"\0" * 20)[:size])
    EventFiles(tmp_path, (0, 7)).write(HISTORY)
    assert [event[1:] for event in read_events(first)] == [event[1:] for event in whole]
    assert second.read_bytes() == untouched
