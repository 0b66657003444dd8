"""The page of a run shows what it is given, as text, leaves out what is not there, and works in a browser."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from because_rl.evaluation.energy_map import EnergyMap
from because_rl.evaluation.scenes import Picture
from because_rl.report.grid_data import Curves, Film, Grid, Maps, Rate, Result
from because_rl.report.run_page import RunReport, write_run_page
from tests.chromium import CHROMIUM, Browser

NAME = "<b>x</b>"
"""A factor whose name would be markup if it were not escaped."""


def picture(frames=3):
    data = io.BytesIO()
    Image.effect_noise((40, 30 * frames), 50).convert("RGB").save(data, "WEBP")
    return Picture(data.getvalue(), frames, True)


def result(split, outcomes):
    per_seed = [seed.count("1") / len(seed) for seed in outcomes]
    rate = Rate(sum(per_seed) / len(per_seed), 0.25, 1.0)
    return Result(
        "because", f"unlock-{split}-medium", "unlock", split, "medium", "d", 1, rate, per_seed, outcomes, (), ()
    )


def edge(source, target, status, weight, **more):
    row = {"from": source, "to": target, "status": status, "kept": status not in ("excluded", "forbidden")}
    return row | {"weight": weight, "p": 1e-9, "effect": 0.5, "detectable": 0.015} | more


GRAPH = {
    "dataset": "d",
    "inputs": [NAME, "y", "push", "marker", "still"],
    "targets": [NAME, "y"],
    "edges": [
        edge(NAME, NAME, "forced", 1.0, p=0.0),
        edge("y", NAME, "undetermined", 1.0, why="y is <i>constant</i>", needs="40 more steps", detectable=None),
        edge("push", NAME, "excluded", 0.25, p=0.02),
        edge("marker", NAME, "undetermined", 0.0, kept=False, why="marker never changes in an episode"),
        edge(NAME, "y", "excluded", 0.0, p=0.7),
        edge("y", "y", "forced", 1.0),
        edge("push", "y", "established", 0.75),
        edge("marker", "y", "excluded", 0.0, p=0.9, detectable=0.0),
    ],
    "settings": {"test": "gtest", "threshold": 0.002, "n": 100},
    "sufficiency": {"y": {"loss": 0.25, "p": 1e-3, "reopened": ["push"], "suffices": False}},
    "score": {"f1": 0.8, "missed": [[NAME, "y"]], "false": [["push", "y"]]},
}
FACTORS = [
    {"factor": NAME, "type": "binary", "measure": "predicted correctly", "value": 0.95}
    | {"per_seed": [0.9, 1.0], "unchanged": 0.5, "rows": 123},
    {"factor": "y", "type": "continuous", "measure": "change predicted (R²)", "value": -0.25}
    | {"per_seed": [-0.25, -0.25], "unchanged": 0.0, "rows": 123},
    {"factor": "z", "type": "continuous", "measure": "change predicted (R²)", "value": None}
    | {"per_seed": [], "unchanged": None, "rows": 123},
]


def make_report(**changes):
    """A run that has everything; `changes` replace fields of the grid, or of the report."""
    metrics = [{"stage": s, "step": n, "loss": [1 / n, None]} for s in ("world", "energy") for n in (1, 2, 3)]
    steps = np.eye(3, dtype=int)
    energy_map = EnergyMap("Moving", "", "", np.arange(3.0), np.arange(3.0), 1.0 - steps, steps, {})
    results = [result("I", ["1101", "1001"]), result("O", ["1111", "1111"])]
    grid = {
        "results": results,
        "oracle": {("unlock", split): Rate(0.875, 0.8, 0.9) for split in "IO"},
        "behaviour": {"d": Rate(0.425, 0.36, 0.49)},
        "graphs": [GRAPH],
        "curves": [Curves.from_metrics("because", "d", metrics)],
        "maps": [Maps("d", 2, "abc", "2026-01-01", [energy_map])],
        "films": {results[0].task: [Film("Solved: scene 0.", picture()), Film("Failed: scene 2.", picture())]},
        "missing": [("nothing much", "because help")],
    }
    report = {
        "facts": [("data", NAME)],
        "seeds": (3, 5),
        "film_notes": {results[1].task: ["Every seed solved all 4 scenes: there is no failure to show."]},
        "accuracy": FACTORS,
        "uncertainty": {"held_out": 0.1, "mixed": 0.6},
        "settings": {"Settings of the method": {"hidden": 8, "x": "</pre><script>alert(1)</script>"}},
    }
    grid |= {name: value for name, value in changes.items() if name in grid}
    report |= {name: value for name, value in changes.items() if name in report}
    return RunReport("because on <data>", Grid("run", focus="because", **grid), **report)


def views(text):
    return re.findall(r'<a href="#(\w+)">', text)


def test_page_shows_success_films_graph_models_and_settings(tmp_path):
    text = write_run_page(tmp_path, make_report()).read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]
    assert views(text) == ["overview", "graph", "errors", "energy", "learning", "provenance"]
    for shown in ("62.5%", "because: 62.5% [25.0, 100.0]", "oracle planner: 87.5%", "logging policy: 42.5%"):
        assert shown in text
    assert text.count('class="film"') == 2
    assert "there is no failure to show" in text
    assert "seed 5: 2 of 4 scenes failed" in text
    kinds = re.findall(r'<path class="(\w+)" data-edge', text)
    assert sorted(kind for kind in kinds if kind != "hit") == sorted(
        ["forced", "forced", "undetermined", "unstable", "missed", "false", "omitted"]
    )
    assert "The data exclude 3 pairs, which are not drawn, and leave 2 undetermined, of which 1 are left out" in text
    assert "it predicts worse than all inputs: y (0.25); for this push -&gt; y came back." in text
    legend = re.findall(r'<li><i class="(\w+)"></i> ', text)
    assert legend == ["forced", "undetermined", "omitted", "unstable", "false", "missed"]
    assert "undetermined, p 1e-09, weight 1.00; y is &lt;i&gt;constant" in text  # when pointed at
    pairs = re.findall(r"<tr><th scope=\"row\">(\w+) → y′</th>(.*?)</tr>", text)
    cells = {source: re.findall("<td.*?>(.*?)</td>", row) for source, row in pairs}
    assert cells["push"] == ["established", "yes", "1e-09", "0.75", "0.500", "0.015", "", ""]
    assert cells["marker"][5] == "–"  # the test does not say
    assert '<td>none</td><td class="text">y is &lt;i&gt;constant&lt;/i&gt;</td><td class="text">40 more steps' in text
    assert "p &lt; 1e-300" in text  # not p = 0
    assert "y, change predicted (R²): -0.250; if nothing changed 0.000" in text
    assert "123 steps of held-out episodes" in text
    assert "d, Moving: where logged 0.00, elsewhere 1.00" in text
    assert text.count('viewBox="0 0 100 60"') == 2  # a curve for each stage
    assert "hidden&quot;: 8" in text
    assert 'src="http' not in text
    assert "url(http" not in text


def test_a_policy_stands_beside_the_behaviour(tmp_path):
    policy = {"policy": "the <fitted> policy", "by": "FQE", "verdict": "undetermined", "why": "the interval holds 0"}
    worth = {
        "quantity": "expected sum of rewards",
        "behaviour": {"value": 2.0, "low": 1.0, "high": 3.0},
        "policies": [policy | {"worth": {"value": 4.0, "low": 2.0, "high": 5.0}}],
    }
    text = write_run_page(tmp_path, replace(make_report(), worth=worth)).read_text()
    assert "the &lt;fitted&gt; policy: 4, 95% interval 2 to 5, by FQE" in text
    assert "behaviour: 2, 95% interval 1 to 3" in text
    assert "undetermined</b> – the interval holds 0." in text
    assert "The &lt;fitted&gt; policy: undetermined" in text
    assert 'style="left: 25.00%; width: 75.00%"' in text  # 2 to 5 on an axis from 1 to 5
    assert text.index("Worth of the policy") < text.index("The run")


def test_names_and_settings_are_text(tmp_path):
    text = write_run_page(tmp_path, make_report()).read_text()
    for markup in (NAME, "<i>constant", "<script>alert", "on <data>"):
        assert markup not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"results": []}, ["overview", "graph", "errors", "energy", "learning", "provenance"]),
        ({"accuracy": [], "uncertainty": {}, "maps": []}, ["overview", "graph", "learning", "provenance"]),
        ({"graphs": [], "curves": []}, ["overview", "errors", "energy", "provenance"]),
    ],
    ids=["evaluation", "model", "graph"],
)
def test_parts_that_a_run_lacks_are_left_out(tmp_path, changes, shown):
    text = write_run_page(tmp_path, make_report(**changes)).read_text()
    assert views(text) == shown
    assert re.findall(r'<section class="view" id="(\w+)"', text) == shown


def test_a_graph_without_evidence_is_drawn(tmp_path):
    """Older runs kept only the weights of their edges."""
    former = {"established": "edge", "excluded": "no edge", "undetermined": "untestable", "forced": "forced"}
    bare = [
        {name: e[name] for name in ("from", "to", "weight")} | {"status": former[e["status"]]} for e in GRAPH["edges"]
    ]
    graph = {"dataset": "d", "inputs": GRAPH["inputs"], "targets": GRAPH["targets"], "edges": bare}
    text = write_run_page(tmp_path, make_report(graphs=[graph])).read_text()
    assert "y → &lt;b&gt;x&lt;/b&gt;′: undetermined, weight 1.00" in text
    assert "push → y′: established, weight 0.75" in text
    assert "excluded, weight 0.00" not in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_browser(tmp_path):
    """Phone and desktop, dark and light; films play, and an edge shows its evidence by mouse, tap and keyboard."""
    page = write_run_page(tmp_path, make_report())
    shown, panel = "document.querySelector('.view.shown').id", "document.querySelector('.edge-details').innerText"
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((360, True), (1280, False)):
            browser.open(f"file://{page}", width=width, dark=dark)
            for name in views(page.read_text()):
                browser.click(f"nav.views a[href='#{name}']")
                browser.wait(f"{shown} === '{name}'")
                assert browser.js("document.documentElement.scrollWidth") <= width, name
        browser.js("location.hash = 'overview'")
        browser.click(".player button")
        browser.wait("document.querySelector('.film').style.objectPosition.endsWith(' 100%')")
        browser.js("location.hash = 'graph'")
        browser.point(".graph path.unstable")
        browser.wait(f"{panel}.includes('0.02')")
        browser.click(".graph path.false")
        browser.point("h1")
        browser.wait(f"{panel}.includes('a false edge')")  # stays after a tap
        browser.point(".graph path.undetermined")
        browser.wait(f"{panel}.includes('40 more steps')")
        assert "undetermined, kept" in browser.js(panel)
        assert "y is <i>constant</i>" in browser.js(panel)
        browser.point(".graph path.omitted")
        browser.wait(f"{panel}.includes('undetermined, left out')")
        assert "0.015" in browser.js(panel)
        browser.js("document.querySelector('.graph .scroll').focus()")
        browser.press("Tab")
        assert browser.js(panel).startswith(f"Effects of {NAME}")
        assert "p < 1e-300" in browser.js(panel)
        assert browser.js("document.querySelectorAll('main b b, main i i').length") == 0
        assert browser.problems == []
        assert all(address.startswith(("file:", "data:")) for address in browser.asked)
