"""Held-out accuracy with the discovered mask beside all inputs: what is fitted, the losses, and what is kept."""

import numpy as np
import pytest

from because_rl.datasets.user_dataset import prepare_log
from because_rl.datasets.user_log import read_log
from because_rl.factors import FactorSpec
from because_rl.rng import stream
from benchmarks.discovery import prediction as bench
from benchmarks.discovery.prediction import compare_masks, write_log
from benchmarks.discovery.recovery import make_system

CHOICE = ["mountaincar"], ["random"], ["24x10"], [0]


@pytest.fixture
def fits(monkeypatch):
    """Stands in for `fit`: notes its arguments; velocity is predicted worse with the discovered mask."""
    calls = []

    def fit(log, spec, folder, root, seeds, overrides):
        calls.append((read_log(log), FactorSpec.from_file(spec), list(seeds), overrides))
        velocity = 0.9 if overrides["mask"] == "discovered" else 0.95
        values = {"position": 0.99, "velocity": velocity}
        accuracy = [{"factor": f, "measure": "R²", "value": v, "per_seed": [v]} for f, v in values.items()]
        constant = {"factor": "constant", "measure": "R²", "value": None, "per_seed": []}
        graph = {"position": ["position"], "velocity": ["velocity"]} if overrides["mask"] == "discovered" else None
        return {"accuracy": [*accuracy, constant], "graph": graph}

    monkeypatch.setattr(bench, "fit", fit)
    return calls


def test_losses_of_factors_are_those_against_all_inputs(fits, tmp_path):
    reports = []
    result = compare_masks(*CHOICE, tmp_path, 2, {"world_steps": 5}, lambda *done: reports.append(done))
    assert [(row["factor"], row["discovered"], row["full"]) for row in result["rows"]] == [
        ("position", 0.99, 0.99),
        ("velocity", 0.9, 0.95),
    ]
    assert result["largest_loss"] == pytest.approx(0.05)
    assert not result["within"]
    assert result["rows"][1]["causes"] == ["velocity"]
    assert result["rows"][1]["true_causes"] == ["position", "velocity", "force"]
    assert [call[2:] for call in fits] == [
        ([0, 1], {"energy_steps": 0, "world_steps": 5, "mask": mask}) for mask in ("discovered", "full")
    ]
    assert reports == [(1, 1)]
    assert result["provenance"]["config"]["seeds"] == [0]
    assert compare_masks(*CHOICE, tmp_path)["rows"] == result["rows"]
    assert len(fits) == 2  # the second call has read the file of the first


def test_the_log_has_the_rows_of_the_system(fits, tmp_path):
    compare_masks(*CHOICE, tmp_path)
    log, spec, *_ = fits[0]
    data = make_system("mountaincar").transitions(
        stream(0, "system", "mountaincar", "random", "24x10"), "random", 240, 10
    )
    assert spec == data.factors
    prepared = prepare_log(log, spec)
    before = np.concatenate([episode["observations"][:-1] for episode in prepared.episodes])
    np.testing.assert_array_equal(before, data.state)
    write_log(tmp_path / "again.hdf5", data)
    assert read_log(tmp_path / "again.hdf5").sha256 == log.sha256
