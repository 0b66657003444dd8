"""The commands for one run: discover, train, evaluate, report."""

import json

import pytest

from tests.support import because

SETTINGS = ("--set", "steps=50", "--set", "hidden=8", "--set", "batch=16", "--chunk", 10)
"""The program of tests/runs, so that one cache serves both."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    because("collect", "unlock-medium", "--episodes", 20, root=folder)
    return folder


@pytest.mark.slow
def test_train_evaluate_and_report(root, tmp_path):
    data = "because/unlock-medium-n20-v1"
    command = ("train", "ccil", "--data", data, "--seeds", 2, *SETTINGS)
    result = json.loads(because(*command, "--json", root=root).stdout)
    assert result["run"] == str(root / "runs" / "ccil-unlock-medium-n20")
    assert result["stages"]["ccil"]["step"] == 50
    assert "--resume" in because(*command, root=root, code=2).stderr
    assert "kept in" in " ".join(because(*command, "--resume", root=root).stdout.split())
    scored = json.loads(because("evaluate", result["run"], "--split", "I", "--episodes", 4, "--json", root=root).stdout)
    assert len(scored["per_seed"]) == 2
    page = json.loads(because("report", result["run"], "-o", tmp_path / "page", "--json", root=root).stdout)
    assert [(row["policy"], row["split"]) for row in page["success"]] == [("behaviour", "I"), ("ccil", "I")]
    assert page["success"][1]["success"] == scored["success"]
    printed = because("report", result["run"], "-o", tmp_path / "page", root=root).stdout
    assert printed.splitlines()[-1] == page["page"] == str(tmp_path / "page" / "index.html")
    assert "Learning curves" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.slow
def test_discover_writes_graph_and_pictures(root, tmp_path):
    because("collect", "unlock-medium", root=root)
    command = ("discover", "unlock-medium", "--json", "-o", tmp_path / "g", "--forbid", "door->agent")
    result = json.loads(because(*command, root=root).stdout)
    assert result["score"]["f1"] >= 0.92
    assert {"f1", "precision", "recall", "shd"} <= set(result["score"])
    assert {"p", "effect", "detectable", "weight", "status", "kept"} <= set(result["edges"][0])
    forbidden = [e for e in result["edges"] if (e["from"], e["to"]) == ("door", "agent")]
    assert forbidden[0]["status"] == "forbidden"
    names = {path.name for path in (tmp_path / "g").iterdir()}
    graphs = {f"graph.{s}" for s in ("json", "svg", "png", "dot", "graphml", "node-link.json")}
    assert names == graphs | {"p-values.svg", "p-values.png"}
    assert "revision" in json.loads((tmp_path / "g" / "graph.json").read_text())["provenance"]


def test_discover_refuses_bad_edges_and_tests(root):
    name = "because/unlock-medium-n20-v1"
    assert "cause->effect" in because("discover", name, "--force", "key", root=root, code=2).stderr
    assert "no independence test 'tarot'" in because("discover", name, "--test", "tarot", root=root, code=2).stderr


def test_discover_lists_what_is_undetermined_with_its_reason(monkeypatch):
    why, needs = "too few steps with the door open, and the pole follows from the cart", "about 400 more of these steps"
    pair = {"p": 0.5, "effect": 0.1, "weight": 1.0, "statistic": 1.0}
    rows = [
        pair | {"from": "x", "to": "x", "status": "forced", "kept": True, "detectable": 0.0},
        pair | {"from": "u", "to": "x", "status": "established", "kept": True, "detectable": 0.0125},
        pair | {"from": "v", "to": "x", "status": "excluded", "kept": False, "detectable": 0.01},
        pair
        | {"from": "w", "to": "x", "status": "undetermined", "kept": True, "detectable": None}
        | {"why": why, "needs": needs},
        pair | {"from": "m", "to": "x", "status": "undetermined", "kept": False, "detectable": 0.02, "why": "constant"},
    ]
    result = {"dataset": "d", "folder": "f", "edges": rows}
    monkeypatch.setattr("because_rl.runs.discover.discover_dataset", lambda *a, **k: result)
    text = because("discover", "d").stdout
    flat = " ".join(text.replace("│", " ").split())
    assert "3 of 5 edges kept, 1 excluded, 2 undetermined" in flat
    assert [line.split()[1] for line in text.splitlines() if line.startswith("│")][-3:] == ["x", "u", "w"]
    assert "0.013" in text or "0.012" in text
    for word in (*why.split(), *needs.split(), "constant"):
        assert word.strip(",") in flat
    assert json.loads(because("discover", "d", "--json").stdout) == result
