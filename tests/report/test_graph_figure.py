"""The picture of a mask: undetermined edges dashed, those left out dotted, excluded pairs not drawn."""

import numpy as np
from matplotlib.patches import FancyArrowPatch

from because_rl.discovery.mask import CausalMask
from because_rl.graph import Graph
from because_rl.report.graph_figure import draw_mask, render

STATUS = np.array([["forced"], ["established"], ["excluded"], ["undetermined"], ["undetermined"]])
KEPT = np.array([[True], [True], [False], [True], [False]])


def mask():
    ones = np.ones((5, 1))
    return CausalMask(tuple("xabcd"), ("x",), ones, ones, ones, ones * np.inf, STATUS, KEPT, KEPT * 1.0)


def drawn(figure):
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    return [(arrow.get_linestyle(), round(arrow.get_linewidth(), 2)) for arrow in arrows]


def test_lines_show_verdicts(tmp_path):
    figure = draw_mask(mask())
    assert drawn(figure) == [("-", 1.7), ("-", 1.7), ("--", 1.7), (":", 0.4)]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["forced", "established", "undetermined", "undetermined, left out"]
    assert render(figure, tmp_path / "g.svg").startswith(b"<?xml")


def test_lines_show_mistakes():
    truth = Graph.from_parents(tuple("xabcd"), {"x": ("x", "b", "c", "d")})
    figure = draw_mask(mask(), truth)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["forced", "false edge", "missed edge", "undetermined"]
    assert len(drawn(figure)) == 5  # missed are an excluded and an undetermined one
