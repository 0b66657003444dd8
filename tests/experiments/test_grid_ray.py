"""A sweep on a Ray cluster of two nodes, all on the loopback interface: workers die, jobs fail, and what is kept is
what the local engine keeps."""

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid.ray_engine import RayEngine
from because_rl.experiments.grid.runner import Job, StopSweep, failures, left, sweep

pytest.importorskip("ray", reason="Ray is not installed (pip install 'because-rl[ray]')")
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Addresses of this machine alone. Ray takes 127.0.0.1 for 'whatever address others see', hence not that one."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of one CPU each: no dashboard, no statistics of use, and nothing left afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # workers must find the cells' function
        from ray.cluster_utils import Cluster

        small = {
            "num_cpus": 1,
            "object_store_memory": 80 * 2**20,
            "include_dashboard": False,
            "include_log_monitor": False,
        }
        nodes = Cluster(initialize_head=True, head_node_args=small | {"node_ip_address": HEAD})
        nodes.add_node(**small, node_ip_address=OTHER)
        mine = [
            info.process.pid
            for node in nodes.list_all_nodes()
            for infos in node.all_processes.values()
            for info in infos
        ]
        yield nodes.address
        nodes.shutdown()
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]


def jobs(count):
    return [Job(f"j{n}", {f"j{n}-{split}": {"split": split} for split in "IO"}) for n in range(count)]


@dataclass(frozen=True)
class Tiny:
    """Cells that cost a moment. Notes who computes what: the cluster's workers happen to see this folder, too."""

    notes: Path
    pause: float = 0.0

    def __call__(self, job, missing):
        import ray

        where = ray.util.get_node_ip_address() if ray.is_initialized() else "here"
        for key in missing:
            (self.notes / f"{key}-{time.monotonic_ns()}").write_text(f"{os.getpid()} {where}")
            time.sleep(self.pause)
            self.trouble(key)
            yield key, {"number": random.Random(key).random()}

    def trouble(self, key):
        pass

    def noted(self):
        """(cell, process, machine), in the order of their beginning"""
        files = sorted(self.notes.iterdir(), key=lambda file: int(file.name.rpartition("-")[2]))
        return [(file.name.rpartition("-")[0], *file.read_text().split()) for file in files]


def kept(folder):
    return {file.name: file.read_bytes() for file in (folder / "cells").iterdir()}


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_results_are_those_of_the_local_engine(cluster, tmp_path, notes):
    """SIGKILL for a process that is at a job, twice, once in the second cell of its job."""
    compute, folder, killed, told = Tiny(notes, 0.3), tmp_path / "ray", [], []

    def kill():
        for wanted in ("I", "O"):
            while True:
                with contextlib.suppress(IndexError, ValueError):  # nothing yet, or not yet written
                    cell, pid, _ = compute.noted()[-1]
                    if cell.endswith(wanted) and cell not in dict(killed):
                        break
                time.sleep(0.01)
            os.kill(int(pid), signal.SIGKILL)
            killed.append((cell, pid))
            time.sleep(1.0)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = sweep(jobs(6), compute, folder, report=told.append, engine=RayEngine(cluster), workers=0)
    killer.join(timeout=5)
    assert found == (12, 12, 0, ())
    assert len(killed) == 2
    asked = [cell for cell, *_ in compute.noted()]
    for cell, _ in killed:
        assert asked.count(cell) == 2
    assert len(asked) == 12 + len(killed)  # a cell that had arrived before its worker died is not asked for again
    assert {where for *_, where in compute.noted()} == {HEAD, OTHER}
    assert [status.done for status in told] == sorted(status.done for status in told)
    assert max(len(status.running) for status in told) == 2
    sweep(jobs(6), compute, tmp_path / "local", workers=0)
    assert kept(folder) == kept(tmp_path / "local")
    assert not list((folder / ".claims").iterdir())


@dataclass(frozen=True)
class Troubled(Tiny):
    def trouble(self, key):
        if key == "j0-O":
            raise BecauseError("Got bad luck.", need="good luck.", fix="try again.")
        if key == "j1-I":
            raise ZeroDivisionError("no luck at all")
        if key == "j2-O":
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stopping(Tiny):
    def trouble(self, key):
        if key == "j1-I":
            raise StopSweep("Got new code.", need="the old.", fix="start again.")


@pytest.mark.slow
def test_failures_tell_their_reason_and_a_stop_stops_all(cluster, tmp_path, notes):
    compute, folder = Troubled(notes), tmp_path / "failing"
    found = sweep(jobs(4), compute, folder, engine=RayEngine(cluster))
    assert (found.done, found.failed) == (4, 3)  # j0-I, j2-I and both of j3
    first, second, third = failures(jobs(4), folder)
    assert first["reason"] == "Got bad luck. Needed: good luck. Fix: try again."
    assert "ZeroDivisionError" in second["reason"]
    assert "no luck at all" in second["details"]
    assert "3 workers died" in third["reason"]
    assert [cell for cell, *_ in compute.noted()].count("j2-O") == 3
    assert sweep(jobs(4), Tiny(notes), folder, engine=RayEngine(cluster), retry_failed=True) == (8, 8, 0, ())
    with pytest.raises(StopSweep, match="Got new code"):
        sweep(jobs(40), Stopping(notes, 0.05), tmp_path / "stopped", engine=RayEngine(cluster))
    assert failures(jobs(40), tmp_path / "stopped") == []
    assert len(left(jobs(40), tmp_path / "stopped")) > 30


@pytest.mark.slow
def test_interrupted_it_keeps_what_has_arrived_and_goes_on(cluster, tmp_path, notes):
    folder = tmp_path / "r"

    def interrupt(status):
        if status.done >= 3:
            raise KeyboardInterrupt  # where Ctrl-C finds the runner

    with pytest.raises(KeyboardInterrupt):
        sweep(jobs(8), Tiny(notes, 0.3), folder, report=interrupt, engine=RayEngine(cluster))
    assert 3 <= len(kept(folder)) < 16
    before = kept(folder)
    assert sweep(jobs(8), Tiny(notes), folder, engine=RayEngine(cluster)) == (16, 16, 0, ())
    assert before.items() <= kept(folder).items()
    again = [cell for cell, *_ in Tiny(notes).noted()]
    assert all(again.count(name.removesuffix(".json")) == 1 for name in before)


@pytest.mark.parametrize(
    ("address", "said"),
    [("nowhere", "Got the address"), ("ray://x:1", "Got the address"), ("127.0.0.1:9", "Nothing answers")],
)
def test_a_cluster_that_is_not_there(tmp_path, address, said):
    with pytest.raises(BecauseError, match=said):
        sweep(jobs(1), Tiny(tmp_path), tmp_path / "r", engine=RayEngine(address))
