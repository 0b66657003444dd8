"""Pictures of level and power: what their lines show, and what they are drawn from."""

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.io import write_json
from benchmarks.discovery.figures import PANELS, draw_calibration, draw_power, read_p_values


def lines(panel, label):
    return [line for line in panel.lines if line.get_label() == label]


def bars(panel, label):
    """The line of a verdict, and the ends (low, high) of its intervals."""
    (bar,) = [container for container in panel.containers if container.get_label() == label]
    line, _, (segments,) = bar.lines
    return line.get_data(), [segment[:, 1].tolist() for segment in segments.get_segments()]


def test_calibration_shows_the_share_rejected_at_each_level(tmp_path):
    p = np.append(np.full(30, 0.02), np.full(270, 0.5))
    for case in ("linear-1-500", "effect-1000", "hidden-25-tied-20x50"):
        write_json(tmp_path / f"residual--{case}--seed0.json", {"p": p.tolist()})
    p_values = read_p_values(tmp_path)
    assert set(p_values) == {("residual", "linear-1-500"), ("residual", "hidden-25-tied-20x50")}  # true nulls
    figure = draw_calibration(p_values)
    titles = [panel.get_title() for panel in figure.axes if panel.get_visible()]
    assert titles == [title for title, _ in PANELS]
    level, share = lines(figure.axes[0], "linear")[0].get_data()
    assert share[level < 0.019].max() == 0
    np.testing.assert_allclose(share[(level > 0.021) & (level < 0.49)], 0.1)
    assert share[-1] == 1
    assert lines(figure.axes[3], "20 episodes of 50")
    assert not lines(figure.axes[2], "20 episodes of 50")


def test_a_folder_without_p_values_is_refused(tmp_path):
    with pytest.raises(BecauseError, match="no p-values of null cases"):
        read_p_values(tmp_path)


def test_power_shows_the_share_of_each_verdict():
    rows = [
        {"case": case, "replications": 40, "kept": 0.5, "verdicts": verdicts}
        for case, verdicts in {
            "added-0-1000": {"excluded": 0.75, "undetermined": 0.25},
            "added-0.1-1000": {"established": 1.0},
            "product-20x100": {"undetermined": 1.0},
        }.items()
    ]
    figure = draw_power([*rows, {"case": "linear-1-500", "replications": 40}])
    effects, episodes = figure.axes
    points, intervals = bars(effects, "established")
    np.testing.assert_array_equal(points, [[0, 0.1], [0, 1]])
    np.testing.assert_allclose(intervals, [[0, 0.088], [0.912, 1]], atol=1e-3)  # of 0 and of 40 in 40 data sets
    np.testing.assert_array_equal(bars(effects, "excluded")[0][1], [0.75, 0])
    np.testing.assert_array_equal(bars(episodes, "undetermined")[0], [[20], [1]])
    np.testing.assert_array_equal(lines(effects, "in the mask")[0].get_ydata(), [0.5, 0.5])
