"""The commands for tasks and datasets."""

import json

import networkx as nx
import numpy as np
import pytest
from PIL import Image

from because_rl.datasets.user_dataset import prepare_log
from because_rl.datasets.user_log import read_log
from because_rl.factors import FactorSpec
from tests.support import arrays, because, because_process, write


def test_tasks_equal_the_papers_table():
    rows = json.loads(because("tasks", "--json").stdout)
    assert len(rows) == 18
    expected = {"lift": (33, 4, 15, 4, 30), "unlock": (110, 8, 4, 3, 15), "crash": (22, 8, 6, 4, 30)}
    for row in rows:
        keys = ("state_size", "action_size", "state_factors", "action_factors", "horizon")
        assert tuple(row[key] for key in keys) == expected[row["task"].split("-")[0]]
    assert "unlock-O-medium" in because("tasks").stdout


def test_collect_list_and_check(tmp_path):
    collected = json.loads(because("collect", "unlock-medium", "--episodes", 30, "--json", root=tmp_path).stdout)
    assert {"dataset", "episodes", "transitions", "success_rate", "success_ci95", "seconds"} <= set(collected)
    name = collected["dataset"]
    listed = json.loads(because("datasets", "--json", root=tmp_path).stdout)
    assert [row["dataset"] for row in listed] == [name]
    assert name in because("datasets", "-o", tmp_path / "list.json", root=tmp_path).stdout
    written = json.loads((tmp_path / "list.json").read_text())
    assert [row["dataset"] for row in written["rows"]] == [name]
    checked = json.loads(because("check", name, "--json", root=tmp_path).stdout)
    assert checked["valid"]
    assert checked["transitions"] == collected["transitions"]
    path = tmp_path / "datasets" / name / "data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:5000])
    refused = because("check", name, root=tmp_path, code=2)
    assert refused.stdout == ""
    assert "Needed:" in refused.stderr


@pytest.mark.slow
def test_show_renders_a_strip(tmp_path):
    result = json.loads(because("show", "unlock-O-expert", "-o", tmp_path / "a.png", "--json").stdout)
    assert result["success"] in (True, False)
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    assert picture.shape[0] > 300
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_graph_is_drawn_the_same_twice(tmp_path, suffix):
    graph = json.loads(because("graph", "unlock", "-o", tmp_path / f"a.{suffix}", "--json").stdout)
    assert len(graph["edges"]) == 13
    # In another process sets have another order.
    again = because if suffix == "png" else because_process
    again("graph", "unlock", "-o", tmp_path / f"b.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second
    if suffix == "svg":
        assert all(name.encode() in first for name in graph["inputs"])


def test_graph_is_written_for_other_tools(tmp_path):
    edges = json.loads(because("graph", "unlock", "-o", tmp_path / "a.json", "--json").stdout)["edges"]
    expected = {(source, f"{target}'") for source, target in edges}
    assert set(nx.node_link_graph(json.loads((tmp_path / "a.json").read_text()), edges="edges").edges) == expected
    because("graph", "unlock", "-o", tmp_path / "a.graphml")
    assert set(nx.read_graphml(tmp_path / "a.graphml").edges) == expected
    because("graph", "unlock", "-o", tmp_path / "a.dot")
    assert (tmp_path / "a.dot").read_text().count(" -> ") == len(expected)


def test_factors_writes_what_fit_reads(tmp_path):
    path, out = write(tmp_path / "a.hdf5", arrays()), tmp_path / "factors.yaml"
    spec = json.loads(because("factors", path, "-o", out, "--json").stdout)
    assert FactorSpec.from_file(out).to_dict() == spec
    prepare_log(read_log(path), FactorSpec.from_file(out))
    assert "--force" in because("factors", path, "-o", out, code=2).stderr
    assert "# goal:" in because("factors", path).stdout
