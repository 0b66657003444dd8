"""A few computations at once: results in order, ticks from all, and the first failure ends all."""

import os
import time

import pytest

from because_rl.errors import BecauseError
from because_rl.runs.processes import cores, run_in_processes

pytestmark = pytest.mark.slow


def count(name, ticks, wait, tick):
    for _ in range(ticks):
        tick()
    time.sleep(wait)
    return name, cores()


def fail(how, file, tick):
    if how == "wait":
        file.write_text(str(os.getpid()))
        time.sleep(600)
    while not file.exists():
        time.sleep(0.01)
    if how == "die":
        os._exit(3)
    raise BecauseError("Got nothing.", need="something.", fix="give it.")


def test_results_are_in_order_and_cores_are_shared():
    ticks = []
    results = run_in_processes(count, [("a", 2, 0.5), ("b", 3, 0.0)], lambda: ticks.append(1))
    assert [name for name, _ in results] == ["a", "b"]
    assert len(ticks) == 5
    assert sum(share for _, share in results) == cores()


@pytest.mark.parametrize(("how", "message"), [("fail", "Got nothing."), ("die", "exit code 3")])
def test_first_failure_or_death_ends_all(how, message, tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(BecauseError, match=message):
        run_in_processes(fail, [("wait", file), (how, file)], lambda: None)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
