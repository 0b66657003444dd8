"""A sweep on a Ray cluster of two nodes, all on the loopback interface: workers die, jobs fail, and the cells are those
of the local engine."""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid.ray_engine import RayEngine
from because_rl.experiments.grid.runner import Job, StopSweep, cell_file, failures, sweep, unfinished_jobs

pytest.importorskip("ray", reason="Ray is not installed (pip install 'because-rl[ray]')")
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Loopback addresses. Not 127.0.0.1, which Ray replaces by the machine's address in the network."""
MORTAL = ("127.0.0.4", "127.0.0.5", "127.0.0.6")
"""Nodes that tests kill."""
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, "include_log_monitor": False}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of one CPU each, without dashboard and usage statistics; all their processes end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # workers must import the function of the cells
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args=SMALL | {"node_ip_address": HEAD})
        nodes.add_node(**SMALL, node_ip_address=OTHER)
        pids = [pid for node in nodes.list_all_nodes() for pid in node_processes(node)]
        yield nodes
        nodes.shutdown()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def node_processes(node):
    return [info.process.pid for infos in node.all_processes.values() for info in infos]


def jobs(count):
    return [Job(f"j{n}", {f"j{n}-{split}": {"split": split} for split in "IO"}) for n in range(count)]


def ray_here():
    """The address of this node in a worker of Ray, else ''."""
    import ray

    return ray.util.get_node_ip_address() if ray.is_initialized() else ""


@dataclass(frozen=True)
class Noting:
    """Cells that cost a moment. Notes which process computes them, in a folder that the workers here can see."""

    notes: Path
    pause: float = 0.0

    def __call__(self, job, missing):
        where = ray_here() or "local"
        for key in missing:
            (self.notes / f"{key} {time.monotonic_ns()} {os.getpid()} {where}").touch()
            time.sleep(self.pause)
            self.trouble(key)
            yield key, {"number": random.Random(key).random()}

    def trouble(self, key):
        pass

    def noted(self):
        """(cell, process, machine) of each computation, in the order of their start."""
        computed = sorted((file.name.split() for file in self.notes.iterdir()), key=lambda parts: int(parts[1]))
        return [(cell, process, machine) for cell, _, process, machine in computed]


def written_cells(folder):
    return {file.name: file.read_bytes() for file in (folder / "cells").iterdir()}


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@dataclass(frozen=True)
class Killed(Noting):
    """Its worker is killed once in the first cell of one job, and once in the second cell of another.

    The latter waits until the cell before it has arrived, which `folder` shows.
    """

    folder: Path | None = None

    def trouble(self, key):
        if ray_here() and key in ("j0-I", "j1-O") and [cell for cell, *_ in self.noted()].count(key) == 1:
            while key == "j1-O" and not cell_file(self.folder, "j1-I").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_workers_lose_nothing(cluster, tmp_path, notes):
    """Only the cell in which a worker died is repeated; the cells are those of the local engine."""
    folder, reports = tmp_path / "ray", []
    compute = Killed(notes, 0.3, folder)
    status = sweep(jobs(6), compute, folder, report=reports.append, engine=RayEngine(cluster.address), workers=0)
    assert status == (12, 12, 0, ())
    computed = [cell for cell, *_ in compute.noted()]
    assert len(computed) == 12 + 2
    assert computed.count("j0-I") == computed.count("j1-O") == 2
    assert {machine for *_, machine in compute.noted()} == {HEAD, OTHER}
    assert [status.done for status in reports] == sorted(status.done for status in reports)
    assert max(len(status.running) for status in reports) == 2
    sweep(jobs(6), compute, tmp_path / "local", workers=0)
    assert written_cells(folder) == written_cells(tmp_path / "local")
    assert not list((folder / ".claims").iterdir())


class NodeKiller:
    """Called with each status of a sweep: kills a node, with all its processes at once, when one of its cells has
    arrived and the next of that job has begun. `killed`: (its address, the cells that had arrived by then) of each."""

    def __init__(self, cluster, compute, folder, nodes):
        self.cluster, self.compute, self.folder, self.nodes, self.killed = cluster, compute, folder, dict(nodes), []

    def __call__(self, status):
        arrived = {file.stem for file in (self.folder / "cells").glob("*.json")}
        begun = {machine: cell for cell, _, machine in self.compute.noted()}
        for machine in set(begun) & set(self.nodes):
            if begun[machine].endswith("-O") and begun[machine][:-1] + "I" in arrived:
                node = self.nodes.pop(machine)
                for pid in node_processes(node):
                    os.kill(pid, signal.SIGKILL)
                self.cluster.remove_node(node, allow_graceful=False)
                self.killed.append((machine, arrived))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "kills"), [(5, 1), pytest.param(24, 3, marks=pytest.mark.long)])
def test_killed_nodes_lose_nothing(cluster, tmp_path, notes, count, kills):
    """A cell that has arrived is not computed again, each machine costs one cell at most, and nothing is missing."""
    nodes = {machine: cluster.add_node(**SMALL, node_ip_address=machine) for machine in MORTAL[:kills]}
    folder, compute = tmp_path / "ray", Noting(notes, 0.6)
    killer = NodeKiller(cluster, compute, folder, nodes)
    status = sweep(jobs(count), compute, folder, report=killer, engine=RayEngine(cluster.address), workers=0)
    assert status == (2 * count, 2 * count, 0, ())
    assert len(killer.killed) == kills
    computed = [cell for cell, *_ in compute.noted()]
    assert len(computed) <= 2 * count + kills
    for _, arrived in killer.killed:
        assert arrived
        assert all(computed.count(cell) == 1 for cell in arrived)
    sweep(jobs(count), Noting(notes), tmp_path / "local", workers=0)
    assert written_cells(folder) == written_cells(tmp_path / "local")
    assert not list((folder / ".claims").iterdir())


@dataclass(frozen=True)
class Troubled(Noting):
    def trouble(self, key):
        if key == "j0-O":
            raise BecauseError("Got bad luck.", need="good luck.", fix="try again.")
        if key == "j1-I":
            raise ZeroDivisionError("no luck at all")
        if key == "j2-O":
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stopping(Noting):
    def trouble(self, key):
        if key == "j1-I":
            raise StopSweep("Got new code.", need="the old.", fix="start again.")


@pytest.mark.long
def test_failures_keep_their_reason_and_a_stop_ends_all(cluster, tmp_path, notes):
    compute, folder = Troubled(notes), tmp_path / "failing"
    status = sweep(jobs(4), compute, folder, engine=RayEngine(cluster.address))
    assert (status.done, status.failed) == (4, 3)  # j0-I, j2-I and both of j3
    first, second, third = failures(jobs(4), folder)
    assert first["reason"] == "Got bad luck. Needed: good luck. Fix: try again."
    assert "ZeroDivisionError" in second["reason"]
    assert "no luck at all" in second["details"]
    assert "3 workers died" in third["reason"]
    assert [cell for cell, *_ in compute.noted()].count("j2-O") == 3
    assert sweep(jobs(4), Noting(notes), folder, engine=RayEngine(cluster.address), retry_failed=True) == (8, 8, 0, ())
    with pytest.raises(StopSweep, match="Got new code"):
        sweep(jobs(40), Stopping(notes, 0.05), tmp_path / "stopped", engine=RayEngine(cluster.address))
    assert failures(jobs(40), tmp_path / "stopped") == []
    assert len(unfinished_jobs(jobs(40), tmp_path / "stopped")) > 30


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_what_has_arrived(cluster, tmp_path, notes):
    folder = tmp_path / "r"

    def interrupt(status):
        if status.done >= 3:
            raise KeyboardInterrupt  # as Ctrl-C does in the runner

    with pytest.raises(KeyboardInterrupt):
        sweep(jobs(8), Noting(notes, 0.3), folder, report=interrupt, engine=RayEngine(cluster.address))
    assert 3 <= len(written_cells(folder)) < 16
    before = written_cells(folder)
    assert sweep(jobs(8), Noting(notes), folder, engine=RayEngine(cluster.address)) == (16, 16, 0, ())
    assert before.items() <= written_cells(folder).items()
    computed = [cell for cell, *_ in Noting(notes).noted()]
    assert all(computed.count(name.removesuffix(".json")) == 1 for name in before)


@pytest.mark.parametrize(
    ("address", "message"),
    [("nowhere", "Got the address"), ("ray://x:1", "Got the address"), ("127.0.0.1:9", "Nothing answers")],
)
def test_a_missing_cluster_is_refused(tmp_path, address, message):
    with pytest.raises(BecauseError, match=message):
        sweep(jobs(1), Noting(tmp_path), tmp_path / "r", engine=RayEngine(address))
