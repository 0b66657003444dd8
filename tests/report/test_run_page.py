"""The page of a run holds what the run's files say."""

import numpy as np

from because_rl.graph import Graph
from because_rl.report.run_page import write_page


def test_page_shows_graph_curves_and_success(tmp_path):
    graph = Graph.from_parents(("a", "b"), {"a": ("a",), "b": ("a", "b")})
    metrics = [{"stage": s, "step": n, "loss": [1.0 / n, 2.0 / n]} for s in ("world", "energy") for n in (1, 2, 3)]
    success = [
        {"policy": "behaviour", "split": "I", "success": 0.425, "low95": 0.36, "high95": 0.49},
        {"policy": "because", "split": "I", "success": 0.965, "low95": 0.9, "high95": 1.0},
        {"policy": "because", "split": "O", "success": 0.94, "low95": 0.88, "high95": np.float64(0.99)},
    ]
    page = write_page(tmp_path, "because on <data>", graph, metrics, success, '{"seeds": [0, 1]}')
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "0.965" in text
    assert "because on &lt;data&gt;" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("https://matplotlib.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")  # names of formats, not things to load
    assert {f.name for f in tmp_path.glob("*.png")} == {"success.png", "graph.png", "curves.png"}


def test_page_of_a_run_without_evaluation(tmp_path):
    assert "<svg" not in write_page(tmp_path, "new", None, [], [], "{}").read_text()
