"""Benchmarks of pictures: what they measure, never how fast this machine is."""

import numpy as np
import pytest

from because_rl.datasets.recipe import Recipe
from because_rl.factors import FactorSpec, pack
from benchmarks.speed.worlds import renderer_speed
from benchmarks.vision.compare import compare_readers, match_columns, reader_rows, with_opposites
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


def test_factors_are_matched_with_wider_ones_and_with_opposites():
    rng = np.random.default_rng(0)
    lamps, on = rng.random((200, 3)) < 0.4, rng.random((200, 1)) < 0.5
    true = np.hstack([lamps, on, ~on]).astype(float)
    read = np.hstack([~on, rng.random((200, 1)) < 0.5, lamps[:, [2, 0]], ~lamps[:, [1]], on]).astype(float)
    truth = FactorSpec(pack(("lamps", 3, "binary"), ("on", 2, "categorical")), pack(("go", 1, "binary")))
    spec = FactorSpec(pack(("a", 2, "binary"), ("b", 4, "binary")), truth.action)
    matches = match_columns(read, spec, true, truth)
    assert {name: match.factor for name, match in matches.items()} == {"lamps": "b", "on": "a"}
    for name, match in matches.items():
        assert (with_opposites(read)[:, match.columns] == true[:, truth[name].slice]).all()


@pytest.mark.long
def test_two_ways_to_read_factors_are_scored_alike(tmp_path):
    """Hardly trained: codes of cells read everything nevertheless, slots nothing."""
    result = compare_readers(Recipe.parse("unlock-visual-medium", 40, seed=500), tmp_path, (0, 5), [0])
    codes, slots = result["rows"]
    assert codes["read"]["I"]["all"] == codes["read"]["O"]["all"] == 1.0
    assert codes["edges"]["f1"] > 0.8
    assert slots.get("read", {"I": {"all": 0.0}})["I"]["all"] < 0.5
    assert [row["way"] for row in reader_rows(result)] == ["codes of cells", "slot autoencoder"]
