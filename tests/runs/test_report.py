"""The page of a run, from the files that training and evaluating left."""

import json
import shutil

import numpy as np
import pytest

from because_rl.algorithms.because import BecauseConfig, estimate_mask
from because_rl.errors import BecauseError
from because_rl.evaluation.energy_map import EnergyMap
from because_rl.evaluation.held_out import Imagined
from because_rl.io import pack_json, read_arrays, write_arrays
from because_rl.planning.agent import PlannerAgent
from because_rl.runs import report
from because_rl.runs.evaluate import evaluate_run
from because_rl.runs.report import report_run
from because_rl.runs.train import load_run_data
from because_rl.training.run import Run


@pytest.fixture(autouse=True)
def few_frames(monkeypatch):
    monkeypatch.setattr("because_rl.evaluation.scenes.FRAMES", 3)


@pytest.fixture(scope="module")
def evaluated(home, tmp_path_factory):
    """CCIL, hardly trained, evaluated in three scenes of I."""
    folder = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(home / "run", folder, ignore=shutil.ignore_patterns("evaluation-*"))  # of other tests
    evaluate_run(folder, "I", 3)
    return folder


@pytest.mark.slow
def test_run_without_model_has_success_films_and_curves(home, evaluated, tmp_path):
    made = report_run(evaluated, tmp_path, home)
    text = (tmp_path / "index.html").read_text()
    assert [(row["policy"], row["split"]) for row in made["success"]] == [("behaviour", "I"), ("ccil", "I")]
    assert "this method learns a policy only" in text
    assert "Every seed failed all 3 scenes: there is no success to show." in text
    assert "Failed: scene 0, seed 0." in text
    assert 'id="graph"' not in text
    assert {m["command"].split()[1] for m in made["missing"]} == {"evaluate", "oracle"}


@pytest.mark.slow
def test_missing_simulator_and_unfinished_training_are_named(home, evaluated, tmp_path, monkeypatch):
    def fail(name):
        raise BecauseError("Module 'minigrid' is not installed.", need="it.", fix="install it.")

    monkeypatch.setattr("because_rl.evaluation.scenes.world_class", fail)
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder, ignore=shutil.ignore_patterns("pictures"))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"finished": None}))
    made = report_run(folder, tmp_path / "page", home)
    text = (tmp_path / "page" / "index.html").read_text()
    assert "No film of a failed scene: Module &#x27;minigrid&#x27; is not installed." in text
    assert any("training is not finished" in m["what"] for m in made["missing"])
    assert 'id="learning"' in text


class Planner(PlannerAgent):
    """Stands for BECAUSE's agent: to load that one takes a minute to compile."""

    def __init__(self):
        self.parameters, self.diagnostics = {"energy": ()}, {"pessimism": np.array([0.25, 0.5])}


def test_run_of_because_has_graph_maps_and_accuracy(home, tmp_path, monkeypatch):
    run, data, steps = tmp_path / "run", load_run_data(home / "run", home), np.eye(2, dtype=int)
    shutil.copytree(home / "run", run, ignore=shutil.ignore_patterns("evaluation-*", "pictures"))
    estimate_mask(BecauseConfig(batches=0), data, Run([0], run))
    energy_map = EnergyMap("Moving", "", "", np.arange(2.0), np.arange(2.0), 1.0 - steps, steps, {})
    row = {"factor": "key", "measure": "predicted correctly", "value": 0.75, "per_seed": [0.75], "unchanged": 0.5}
    monkeypatch.setattr(report, "load_agent", lambda *arguments, **options: Planner())
    monkeypatch.setattr(report, "energy_maps", lambda agent, data, world: [energy_map])
    monkeypatch.setattr(report, "held_out_accuracy", lambda agent, data: [row | {"rows": len(data)}])
    event = {"factor": "has_key", "rows": 50, "switches": 4, "recall": 0.75, "precision": None}
    imagined = Imagined(
        {"held_out": 0.125, "mixed": 0.5}, [event | {"foreseen": 0.9, "mixed": 0.03125, "planned": 0.25}]
    )
    monkeypatch.setattr(report, "imagined_steps", lambda agent, data: imagined)
    checks = {"door": {"loss": 0.25, "p": 0.001, "suffices": False, "reopened": ["key"]}}
    write_arrays(run / "sufficiency.npz", {"checks": pack_json(checks)})
    report_run(run, tmp_path / "page", home)
    text = (tmp_path / "page" / "index.html").read_text()
    for name in ("graph", "errors", "energy"):
        assert f'class="view" id="{name}"' in text
    assert "Against the true graph: F1" in text
    assert "by the independence test gtest" in text
    assert "Moving: where logged 0.00, elsewhere 1.00" in text
    assert "key, predicted correctly: 0.750" in text
    assert "0.25 to 0.5" in text
    assert "worse than all inputs: door (0.25); for this key -&gt; door came back" in text
    assert "undetermined edges" in text
    assert "0.0800" in text
    assert "0.0312" in text

    mask = read_arrays(run / "mask.npz")
    write_arrays(run / "mask.npz", {"weights": mask["weights"]})  # as older runs have it
    report_run(run, tmp_path / "old", home)
    old = (tmp_path / "old" / "index.html").read_text()
    assert "Against the true graph: F1" in old
    assert "by the independence test" not in old
