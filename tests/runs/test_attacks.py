"""Runs whose files were tampered with and signed again, settings beyond any memory, and fits that were killed early."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from because_rl.datasets.load import load
from because_rl.discovery.mask import CausalMask
from because_rl.errors import BecauseError
from because_rl.io import read_json, sha256, write_json
from because_rl.report.graph_svg import explore
from because_rl.runs import discover as discovering
from because_rl.runs import fit as fitting
from because_rl.runs.discover import discover_dataset
from because_rl.runs.report import report_run
from because_rl.runs.train import load_agent, train
from because_rl.training import saved
from because_rl.training.method import vote
from tests.runs.small import DATA, SMALL
from tests.support import REPOSITORY, arrays, because, write


@pytest.fixture
def run(home, tmp_path):
    return shutil.copytree(home / "run", tmp_path / "run")


def sign(agent, **changes):
    """Change the description of a saved agent, with checksums that fit."""
    record = read_json(agent / "agent.json") | changes
    record["weights_sha256"] = sha256((agent / "weights.safetensors").read_bytes())
    write_json(agent / "agent.json", record | {"sha256": saved._sha256(record)})


def test_weights_that_are_not_finite_are_refused(run):
    weights = run / "agent" / "weights.safetensors"
    parts = safetensors.numpy.load(weights.read_bytes())
    name = min(parts)
    weights.write_bytes(safetensors.numpy.save(parts | {name: np.full_like(parts[name], np.nan)}))
    sign(run / "agent")
    with pytest.raises(BecauseError, match="not finite"):
        load_agent(run)
    weights.write_bytes(b"\xff" * 100)
    sign(run / "agent")
    with pytest.raises(BecauseError, match="not what was written"):
        load_agent(run)


@pytest.mark.parametrize("name", ["statistics/change", "actions/low", ".nets"])
@pytest.mark.parametrize("damage", [None, np.zeros((2, 3, 1))])
def test_signed_weights_of_other_names_and_shapes_are_refused(run, name, damage):
    weights = run / "agent" / "weights.safetensors"
    parts = safetensors.numpy.load(weights.read_bytes())
    name = next(part for part in parts if part.startswith(name))
    del parts[name]
    weights.write_bytes(safetensors.numpy.save(parts if damage is None else parts | {name: damage}))
    sign(run / "agent")
    with pytest.raises(BecauseError, match="What was saved of 'agent'"):
        load_agent(run)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": "01"}, "seeds"),
        ({"horizon": 0}, "horizon"),
        ({"method": "magic"}, "not among the methods"),
        ({"config": {"hidden": 10**9}}, "shape"),
        ({"factors": {"state": 1, "action": []}}, "list"),
    ],
)
def test_a_signed_description_of_another_agent_is_refused(run, changes, says):
    sign(run / "agent", **changes)
    with pytest.raises(BecauseError, match=says):
        load_agent(run)


def test_settings_beyond_any_memory_leave_a_folder_that_can_be_used(home, tmp_path):
    for changes in ({"hidden": 10**9}, {"batch": 10**9}):
        options = SMALL | {"overrides": SMALL["overrides"] | changes}
        with pytest.raises(BecauseError, match="GB of memory"):
            train("ccil", DATA, home, tmp_path / "run", **options)


@pytest.mark.parametrize("option", ["--seeds", "--chunk", "--rounds"])
def test_counts_beyond_any_use_are_refused(home, option):
    assert "less than or equal" in because("train", "ccil", "--data", DATA, option, 10**30, root=home, code=2).stderr


def test_a_damaged_evaluation_is_named(home, run, tmp_path):
    (run / "evaluation-I.json").write_text('{"split": "I"}')
    with pytest.raises(BecauseError, match=r"evaluation-I\.json is not an evaluation"):
        report_run(run, tmp_path / "page", home)


# Kills -------------------------------------------------------------------------------------------------


def test_discovery_that_was_stopped_draws_its_pictures_later(home, tmp_path, monkeypatch):
    """The file that says that all is there is written last."""

    def stop(*_):
        raise KeyboardInterrupt

    factors = load(DATA, home).factors
    rows = [{"from": a, "to": b, "status": "established"} for a in factors.inputs for b in factors.targets]
    rows = [row | {"p": 0.0, "statistic": 1.0, "effect": 0.5, "weight": 1.0, "kept": True} for row in rows]
    mask = CausalMask.from_dict({"inputs": factors.inputs, "targets": factors.targets, "edges": rows})
    monkeypatch.setattr(discovering, "discover", lambda *_, **__: mask)
    options = DATA, home, None, tmp_path / "graph", lambda done, total: None
    with monkeypatch.context() as patch:
        patch.setattr(discovering, "draw_mask", stop)
        with pytest.raises(KeyboardInterrupt):
            discover_dataset(*options)
    assert not (tmp_path / "graph" / "graph.json").exists()
    discover_dataset(*options)
    assert {file.name for file in (tmp_path / "graph").iterdir()} == {
        *("graph.json", "graph.dot", "graph.graphml", "graph.node-link.json"),
        *(f"{name}.{suffix}" for name in ("graph", "p-values") for suffix in ("svg", "png")),
    }


def test_a_fit_that_was_killed_early_resumes_or_is_replaced(tmp_path, monkeypatch):
    log, out, spec = write(tmp_path / "log.hdf5", arrays(20, 6)), tmp_path / "fitted", tmp_path / "factors.yaml"
    because("factors", log, "-o", spec)
    places = iter(("write_dataset", "load", "load", "load"))

    def start(**options):
        """Fit until the next of these functions is called."""

        def stop(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(fitting, next(places), stop)
            with pytest.raises(KeyboardInterrupt):
                fitting.fit(log, spec, out, **options)

    start(seeds=[0])
    assert (out / "fit.json").exists()
    (out / f".fit.json.tmp-0-{2**30}-0").touch()  # what a killed process leaves
    start(seeds=[0], resume=True)
    assert (out / "datasets").is_dir()
    with pytest.raises(BecauseError, match="--resume"):
        fitting.fit(log, spec, out, seeds=[0])
    start(seeds=[1])  # nothing was trained: other settings may take its place
    start(seeds=[1], resume=True)
    assert json.loads((out / "fit.json").read_text())["asked"]["seeds"] == [1]
    assert {file.name for file in out.parent.iterdir()} == {"log.hdf5", "factors.yaml", "fitted"}


@pytest.mark.long
def test_files_are_utf8_whatever_the_locale(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        "methods: {Ünlock: {method: ccil}}\nworlds: [unlock]\npolicies: [medium]\n", "utf-8"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "because_rl", "sweep", str(tmp_path / "grid.yaml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=os.environ | ascii_only)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 jobs to run" in done.stdout


def test_an_agent_never_returns_an_action_that_is_no_number():
    with pytest.raises(BecauseError, match="not a finite number"):
        vote(np.array([[[0.5]], [[np.nan]]]), discrete=False)


def test_a_graph_whose_settings_are_empty_has_a_page():
    """The schema allows null in place of a threshold."""
    edge = {"from": "x", "to": "x", "status": "forced", "weight": 1.0, "kept": True, "p": 1.0, "effect": 0.0}
    edge |= {"statistic": 0.0, "weight_ci95": [1.0, 1.0], "detectable": None}
    graph = {"inputs": ["x"], "targets": ["x"], "edges": [edge], "settings": {"threshold": None, "n": None}}
    assert "1 of 1 possible edges" in explore(graph)
