"""Benchmarks of pictures: what they measure, never how fast this machine is."""

import numpy as np

from because_rl.datasets.recipe import Recipe
from benchmarks.speed.worlds import renderer_speed
from benchmarks.vision.limits import Case, add_noise, read_limits


def test_both_renderers_are_measured():
    rows = {row["renderer"]: row["images_per_second"] for row in renderer_speed(1000, 5)["rows"]}
    assert min(rows.values()) > 0
    assert set(rows) == {"tiles", "minigrid"}


def test_limits_say_what_is_read_and_what_is_not(tmp_path):
    cases = [Case(40, 0, 0), Case(1, 0, 0)]
    rows = read_limits(Recipe.parse("unlock-visual-medium", 40, seed=500), tmp_path, cases)["rows"]
    assert rows[0]["all"] == 1.0
    assert rows[0]["codes"] == 7
    assert rows[1]["all"] < 1.0  # of one episode


def test_noise_has_the_deviation_that_is_asked_for():
    grey = np.full((50, 64, 64, 3), 128, np.uint8)
    noisy = add_noise(grey, 4.0, "test")
    assert abs(noisy.astype(float).std() - 4.0) < 0.1
    assert (add_noise(grey, 0.0, "test") == grey).all()
