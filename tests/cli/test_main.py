"""The contract of every command: JSON alone on stdout, words on stderr, exit codes 0 and 2."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import because_rl
from tests.support import because


def test_tasks_equal_the_papers_table():
    rows = json.loads(because("tasks", "--json").stdout)
    assert len(rows) == 18
    expected = {"lift": (33, 4, 15, 4, 30), "unlock": (110, 8, 4, 3, 15), "crash": (22, 8, 6, 4, 30)}
    for row in rows:
        keys = ("state_size", "action_size", "state_factors", "action_factors", "horizon")
        assert tuple(row[key] for key in keys) == expected[row["task"].split("-")[0]]
    assert "unlock-O-medium" in because("tasks").stdout


def test_collect_list_check_and_load(tmp_path):
    said = json.loads(because("collect", "unlock-medium", "--episodes", 30, "--json", root=tmp_path).stdout)
    assert {"dataset", "episodes", "transitions", "success_rate", "success_ci95", "seconds"} <= set(said)
    listed = json.loads(because("datasets", "--json", root=tmp_path).stdout)
    assert [row["dataset"] for row in listed] == [said["dataset"]]
    assert said["dataset"] in because("datasets", root=tmp_path).stdout
    checked = json.loads(because("check", said["dataset"], "--json", root=tmp_path).stdout)
    assert checked["valid"]
    assert checked["transitions"] == said["transitions"]
    path = tmp_path / "datasets" / said["dataset"] / "data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:5000])
    refused = because("check", said["dataset"], root=tmp_path, code=2)
    assert refused.stdout == ""
    assert "Needed:" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("collect", "unlock-superb"), "unlock-superb"),
        (("collect", "crash-medium", "--coverage", "0.2"), "only for unlock"),
        (("collect", "unlock-medium", "--episodes", "0"), "0 episodes"),
        (("collect", "unlock-medium", "--spurious", "3"), "spurious=3"),
        (("collect", "unlock-medium", "--seed", "-4"), "seed -4"),
        (("show", "unlock"), "no task 'unlock'"),
        (("check", "nothing"), "no dataset 'nothing'"),
        (("factors", "pong"), "no world 'pong'"),
        (("graph", "unlock", "-o", "a.gif"), "a.gif"),
        (("fly",), "No such command"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_paragraph(tmp_path, arguments, says, monkeypatch):
    monkeypatch.setenv("BECAUSE_HOME", str(tmp_path))
    refused = because(*arguments, code=2)
    assert says in refused.stderr
    assert refused.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_unwritable_root_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused = because("collect", "unlock-medium", root=tmp_path / "file", code=2)
    assert "file" in refused.stderr


@pytest.mark.parametrize("command", ["tasks", "collect", "datasets", "check", "show", "factors", "graph", "discover"])
def test_help_has_an_example(command):
    assert "Example:" in because(command, "--help").stdout


def test_show_renders_a_strip(tmp_path):
    said = json.loads(because("show", "unlock-O-expert", "-o", tmp_path / "a.png", "--json").stdout)
    assert said["success"] in (True, False)
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    assert picture.shape[0] > 300
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 5


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_graph_is_drawn_the_same_twice(tmp_path, suffix):
    for name in ("a", "b"):
        said = json.loads(because("graph", "unlock", "-o", tmp_path / f"{name}.{suffix}", "--json").stdout)
    assert len(said["edges"]) == 13
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
    assert first == second
    if suffix == "svg":
        assert all(name.encode() in first for name in said["inputs"])


@pytest.mark.slow
def test_discover_writes_graph_and_pictures(tmp_path):
    because("collect", "unlock-medium", root=tmp_path)
    said = json.loads(
        because(
            *("discover", "unlock-medium", "--json", "-o", tmp_path / "g", "--forbid", "door->agent"), root=tmp_path
        ).stdout
    )
    assert said["score"]["f1"] >= 0.92
    assert {"f1", "precision", "recall", "shd"} <= set(said["score"])
    assert {"p", "effect", "weight", "status"} <= set(said["edges"][0])
    forbidden = [e for e in said["edges"] if (e["from"], e["to"]) == ("door", "agent")]
    assert forbidden[0]["status"] == "forbidden"
    names = {path.name for path in (tmp_path / "g").iterdir()}
    assert names == {f"graph.{s}" for s in ("json", "svg", "png", "dot", "graphml")} | {"p-values.svg", "p-values.png"}
    assert "revision" in json.loads((tmp_path / "g" / "graph.json").read_text())["provenance"]


def test_discover_refuses_bad_edges_and_tests(tmp_path):
    because("collect", "unlock-medium", "--episodes", 20, root=tmp_path)
    name = "because/unlock-medium-n20-v0"
    assert "cause->effect" in because("discover", name, "--force", "key", root=tmp_path, code=2).stderr
    assert "no independence test 'tarot'" in because("discover", name, "--test", "tarot", root=tmp_path, code=2).stderr


def test_help_shows_all_that_it_says():
    """Typer takes words in square brackets for markup and drops them."""
    sources = [*Path(because_rl.__file__).parent.glob("*.py")]
    lost = [line for file in sources for line in file.read_text().splitlines() if re.search(r'help=f?"[^"]*\[', line)]
    assert not lost
