"""Training into a run folder: it can be stopped at any moment and continued, and its agent loaded again."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from because_rl.algorithms.ccil import CCIL
from because_rl.algorithms.registry import make_method
from because_rl.discovery.regression.threads import _openblas
from because_rl.errors import BecauseError
from because_rl.io import write_json
from because_rl.runs.evaluate import evaluate_run
from because_rl.runs.folder import _sha256, read_metrics, read_run
from because_rl.runs.report import report_run
from because_rl.runs.tensorboard import FILE, FOLDER
from because_rl.runs.train import load_agent, load_for_training, train
from because_rl.training.run import Run
from tests.runs.events import read_events
from tests.runs.small import DATA, SETTINGS, SMALL


def test_loaded_agent_acts_as_the_trained_one_without_training(home):
    data = load_for_training(DATA, home)
    trained = make_method("ccil", SETTINGS, "unlock").fit(data, Run(SMALL["seeds"], chunk=SMALL["chunk"]))
    before = {file: file.stat().st_mtime_ns for file in (home / "run").iterdir()}
    loaded = load_agent(home / "run")
    state, goal = (np.stack([values[:50]] * 2) for values in (data.state, data.goal))
    assert loaded.seeds == (0, 1)
    np.testing.assert_array_equal(loaded.start(50).act(state, goal, 9), trained.start(50).act(state, goal, 9))
    assert {file: file.stat().st_mtime_ns for file in (home / "run").iterdir()} == before


def test_a_mask_of_any_name_is_reported_without_metrics(home, tmp_path, monkeypatch):
    def fit(method, data, run):
        run.report("mask-2", 0, 1, {})
        raise KeyboardInterrupt

    reports = []
    monkeypatch.setattr(CCIL, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        train("ccil", DATA, home, tmp_path / "run", report=lambda *progress: reports.append(progress), **SMALL)
    assert reports == [("mask-2", 0, 1, {})]


def test_run_of_an_earlier_dataset_version_is_loaded(home, tmp_path):
    folder = shutil.copytree(home / "run", tmp_path / "run")
    record = read_run(folder) | {"dataset": DATA.replace("-v1", "-v0")}
    write_json(folder / "run.json", record | {"sha256": _sha256(record)})
    assert load_agent(folder).seeds == (0, 1)
    assert report_run(folder, tmp_path / "page", home)["success"]


def test_unfinished_run_is_not_loaded_and_continues(home, tmp_path):
    def stop(*progress):
        raise KeyboardInterrupt

    again, folder = ("ccil", DATA, home, tmp_path / "stopped"), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(*again, report=stop, **SMALL)
    with pytest.raises(BecauseError, match="not finished"):
        load_agent(folder)
    assert len(read_metrics(folder)) == 1
    record = read_run(folder)
    assert record["seconds"] > 0
    (folder / "run.json").write_text(json.dumps(record | {"seconds": 5000.0}))
    seconds = train(*again, resume=True, **SMALL)["seconds"]
    assert 5000 < seconds < 6000  # includes the time before the run was stopped
    assert train(*again, resume=True, **SMALL)["seconds"] == read_run(folder)["seconds"] == seconds
    for name in ("ccil.npz", "metrics.jsonl"):
        assert (folder / name).read_bytes() == (home / "run" / name).read_bytes()
    (folder / "ccil.npz").unlink()
    with pytest.raises(BecauseError, match=r"lacks ccil.npz"):
        load_agent(folder)


@pytest.mark.long
def test_rounds_are_kept_and_continue_to_the_same_bits(home, tmp_path):
    """Three rounds of CCIL, which has one stage, end where one round does, also if stopped within the second."""

    def stop(stage, done, *progress):
        if done == 30:
            raise KeyboardInterrupt

    train("ccil", DATA, home, tmp_path / "three", rounds=3, **SMALL)
    stopped = ("ccil", DATA, home, tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        train(*stopped, report=stop, rounds=3, **SMALL)
    assert [file.name for file in (tmp_path / "stopped").glob("round-*")] == ["round-1"]
    train(*stopped, rounds=3, resume=True, **SMALL)
    for name in ("ccil.npz", *(f"{folder}/weights.safetensors" for folder in ("round-1", "round-2", "agent"))):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()
    assert (tmp_path / "three" / "ccil.npz").read_bytes() == (home / "run" / "ccil.npz").read_bytes()
    data = load_for_training(DATA, home)
    state, goal = (np.stack([values] * 2) for values in (data.state, data.goal))
    agents = (load_agent(tmp_path / "three", k) for k in (1, 3, None))
    early, late, last = (agent.start(len(data)).act(state, goal, 9) for agent in agents)
    assert (early != late).any()
    np.testing.assert_array_equal(late, last)
    result = evaluate_run(tmp_path / "three", "O", 3)["O"]
    assert len(result["rounds"]) == 3
    assert result["best"]["success"] >= result["final"]["success"]


@pytest.mark.skipif(not _openblas(), reason="this NumPy and SciPy have no OpenBLAS of their own")
def test_training_uses_one_blas_thread(home, tmp_path):
    """Two threads wait in busy loops where other processes need the cores: seconds become minutes."""
    (get_threads, set_threads), counts = _openblas()[-1], []
    set_threads(2)
    try:
        train("ccil", DATA, home, tmp_path / "run", report=lambda *progress: counts.append(get_threads()), **SMALL)
        assert counts == [1] * 5
        assert get_threads() == 2  # as before
    finally:
        set_threads(1)


# Modules are imported once and each `because train` is a fork of that process, before JAX has started anything,
# which saves most of the time that a start of Python takes. The first run is left alone.
KILLER = textwrap.dedent("""
    import os, random, signal, sys, time
    import because_rl.cli.main, because_rl.runs.train, because_rl.envs.unlock.env

    calm, killed, kills, command = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    file = os.path.join(killed, "ccil.npz")
    random.seed(0)

    def start(folder):
        child = os.fork()
        if child == 0:
            sys.argv = ["because", *command, "-o", folder, "--resume"]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            because_rl.cli.main.main()
            os._exit(0)
        return child

    def written():
        return os.stat(file).st_mtime_ns if os.path.exists(file) else 0

    assert os.waitpid(start(calm), 0)[1] == 0
    count = 0
    while True:
        before, child = written(), start(killed)
        if count < kills:
            if count % 5:  # mostly between checkpoints, sometimes before the first
                while written() == before and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    time.sleep(0.001)
                time.sleep(random.random() * 0.03)
            else:
                time.sleep(random.random())
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            count += 1
        else:
            print(count, os.WEXITSTATUS(status))
            break
""")


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_random_and_resumed_gives_the_same_bits(home, tmp_path, kills):
    settings = SETTINGS | {"steps": 100 * kills}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = ("train", "ccil", "--data", DATA, "--seeds", "2", "--chunk", "10", *options, "--root", home)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, *map(str, (tmp_path / "calm", tmp_path / "killed", kills, *command))],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.stdout.split() == [str(kills), "0"], done.stderr
    for name in ("ccil.npz", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
    kept = {"run.json", "metrics.jsonl", "ccil.npz", "agent", FOLDER}
    assert {file.name for file in (tmp_path / "killed").iterdir()} == kept
    for seed in (0, 1):
        killed, calm = (read_events(tmp_path / name / FOLDER / f"seed-{seed}" / FILE) for name in ("killed", "calm"))
        assert [event[1:] for event in killed] == [event[1:] for event in calm]  # all but the wall times
        assert len(calm) == 1 + settings["steps"] // 10
