"""JSON files of ours and archives of arrays that were damaged or tampered with: one error, whatever the bytes."""

import json
import os
import zipfile

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.experiments.grid.compare import read_results
from because_rl.experiments.grid.results import read_grid_results
from because_rl.experiments.grid.runner import cell_file, read_cell, write_cell
from because_rl.io import read_arrays, read_json, read_text, write_arrays, write_json
from because_rl.records import check_record, read_record
from because_rl.runs.folder import read_metrics
from tests.experiments.small_sweep import SmallCompute, small_jobs

CELL = {"label": "a", "dataset": "because/walk-v1", "split": "I", "spurious": 1, "seeds": [0, 1], "episodes": 4}
CELL |= {"recipe": {"world": "walk", "behaviour": "x"}, "provenance": {"when": "2026"}}
CELL |= {"per_seed": [0.5, 1.0], "outcomes": ["0101", "1111"], "success": 0.75}
EDGE = {"from": "x", "to": "x", "status": "established", "weight": 1.0}
EVALUATION = {"method": "a", "dataset": "b", "world": "unlock", "split": "I", "spurious": 1, "episodes": 4}
EVALUATION |= {"success": 0.5, "low95": 0.4, "high95": 0.6, "per_seed": [0.5]}
KEPT = {"seed": 0, "scene": 3, "solved": True, "actions": [0, 1]}
REGIMES = {"regimes": [{"regime": 1, "rows": 5, "episodes": 1}], "runs": [[0, 0, 5, 1]]}
REGIMES |= {"edges": [{"from": "x", "to": "x", "verdict": "stable", "regimes": [1]}]}

SOUND = {
    "cell of a grid": CELL,
    "table": {"rows": [{"method": "a", "task": "b", "per_seed": [1], "cells": ["a-b-0123"]}]},
    "evaluation": EVALUATION | {"episodes_kept": [KEPT]},
    "oracle table": {"rows": [{"world": "a", "split": "I", "success": 1, "low95": 0.5, "high95": 1.0}]},
    "graph": {"inputs": ["x"], "targets": ["x"], "edges": [EDGE]},
    "file of regimes": REGIMES,
    "line of metrics": {"stage": "world", "step": 5, "loss": [0.5, None]},
    "fit": {"asked": {"factors": {}}},
}
BROKEN = [
    ("cell of a grid", CELL | {"per_seed": [5.0, 1.0]}, "per_seed.0"),
    ("cell of a grid", CELL | {"outcomes": ["1101", "1111"]}, "contradicts 'outcomes'"),
    ("cell of a grid", CELL | {"success": 1.0}, "contradicts 'per_seed'"),
    ("cell of a grid", CELL | {"seeds": [0]}, "not as long"),
    ("cell of a grid", CELL | {"recipe": []}, "recipe"),
    ("table", {"rows": [{"cells": ["../../secret"]}]}, "pattern"),
    ("table", {"rows": {}}, "rows"),
    ("evaluation", EVALUATION | {"success": None}, "success"),
    ("evaluation", EVALUATION | {"episodes_kept": [KEPT | {"scene": 4}]}, "not in the evaluation"),
    ("oracle table", {"rows": [{"world": "a"}]}, "split"),
    ("graph", {"inputs": ["x"], "targets": ["y"], "edges": [EDGE]}, "not in the graph"),
    ("graph", {"inputs": ["x"], "targets": ["x"], "edges": [EDGE | {"weight": "1"}]}, "weight"),
    ("file of regimes", REGIMES | {"runs": [[0, 0, 4, 1]]}, "contradict the rows"),
    ("file of regimes", REGIMES | {"runs": [[0, 0, 5]]}, "runs.0"),
    ("line of metrics", {"stage": "world", "step": 5, "loss": 0.5}, "loss"),
    ("fit", {"asked": []}, "asked"),
    ("run", {"method": "td3bc"}, "Field required"),
    ("agent", None, "valid"),
]


@pytest.mark.parametrize("schema", SOUND)
def test_sound_records_are_read(tmp_path, schema):
    write_json(tmp_path / "a.json", SOUND[schema])
    assert read_record(tmp_path / "a.json", schema) == SOUND[schema]


@pytest.mark.parametrize(("schema", "value", "says"), BROKEN)
def test_broken_records_are_refused(schema, value, says):
    with pytest.raises(BecauseError, match=says):
        check_record(value, schema, "It")


def test_cells_have_a_checksum_and_older_ones_none(tmp_path):
    job, compute = small_jobs(1)[0], SmallCompute(tmp_path)
    key = next(iter(job.cells))
    write_cell(tmp_path, job, key, compute.result(key))
    file = cell_file(tmp_path, key)
    cell = read_cell(file)
    assert "sha256" not in cell
    write_json(file, cell)
    assert read_cell(file) == cell
    write_cell(tmp_path, job, key, compute.result(key))
    write_json(file, read_json(file) | {"steps": 0.0})
    with pytest.raises(BecauseError, match="checksum"):
        read_cell(file)


def test_broken_results_are_refused_by_those_that_read_them(tmp_path):
    write_json(tmp_path / "cells" / "a-b.json", CELL | {"per_seed": [5.0, 1.0]})
    with pytest.raises(BecauseError, match="per_seed"):
        read_grid_results(tmp_path)
    for row in ({"task": "a", "per_seed": [7.0]}, {"task": "a", "per_seed": [1.0], "cells": ["../x"]}):
        write_json(tmp_path / "table.json", {"rows": [row]})
        for read in (read_results, read_grid_results):
            with pytest.raises(BecauseError, match=r"table\.json"):
                read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"stage": "world"}\n')
    with pytest.raises(BecauseError, match="step"):
        read_metrics(tmp_path)


# Files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"[NaN]", "NaN"), (b"[1e999]", "1e999"), (b'"\\ud800"', "surrogates"), (b'"\xff"', "UTF-8"), (b"", "JSON")],
)
def test_json_that_is_not_json(tmp_path, content, says):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(BecauseError, match=says):
        read_json(tmp_path / "a.json")


def test_only_regular_files_of_limited_size_are_read(tmp_path, monkeypatch):
    (tmp_path / "device.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("device.json", "pipe.json", ".", "missing.json"):
        with pytest.raises(BecauseError, match="cannot be read"):
            read_json(tmp_path / name)
    with open(tmp_path / "sparse.npz", "wb") as file:
        file.truncate(10**13)
    for read in (read_json, read_text, read_arrays):
        with pytest.raises(BecauseError, match="at most"):
            read(tmp_path / "sparse.npz")


def test_archives_that_unpack_to_more_than_their_size(tmp_path):
    write_arrays(tmp_path / "sound.npz", {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(True)})
    assert read_arrays(tmp_path / "sound.npz")["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    np.savez_compressed(tmp_path / "packed.npz", _sha256=np.zeros(32, np.uint8), a=np.zeros(10**6))
    with zipfile.ZipFile(tmp_path / "declared.npz", "w") as archive:
        head = json.dumps({"descr": "<f8", "fortran_order": False, "shape": [10**12]})
        head = head.replace("false", "False").replace("[", "(").replace("]", ",)").ljust(117) + "\n"
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(64))
    for name, says in (("packed.npz", "more than its size"), ("declared.npz", "size that it declares")):
        with pytest.raises(BecauseError, match=says):
            read_arrays(tmp_path / name)
