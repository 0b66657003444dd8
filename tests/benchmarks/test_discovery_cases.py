"""The distributions of the study: the shares and dependences that their names promise, and the verdicts counted."""

import numpy as np
import pytest
from scipy.stats import t as student

from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.gtest import GTest
from because_rl.io import read_json, write_json
from because_rl.rng import stream
from benchmarks.discovery.cases import CASES, POWER_CASES, TIED, autoregressive, hidden_cause, product, sticky
from benchmarks.discovery.study import as_variables, calibrate, examine, study


def test_autoregressive_noise_is_stationary_and_starts_anew():
    noise = autoregressive(stream(0, "noise"), 20_000, 5)[:, 0].reshape(-1, 5)
    np.testing.assert_allclose(noise.var(0), 1, atol=0.1)
    assert np.corrcoef(noise[:, 3], noise[:, 4])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert abs(np.corrcoef(noise[:-1, 4], noise[1:, 0])[0, 1]) < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_the_hidden_cause_has_the_share_in_its_name(tied):
    x, y, z, episode = hidden_cause(10, 0.25, tied)(stream(0, "hidden"), 40_000)
    rest_y, rest_x = y - np.sin(z[:, 1:4].sum(1)), x - np.tanh(z[:, :3].sum(1))

    def between(values):
        means = np.bincount(episode, values) / 10
        return (means.var() - values.var() / 10) / values.var() * 10 / 9  # what is constant in episodes

    assert between(rest_y) == pytest.approx(0.25, abs=0.03)
    assert between(rest_x) == pytest.approx(TIED if tied else 0, abs=0.03)


def test_sticky_levels_rarely_change_and_do_not_depend_on_each_other():
    x, y, z, episode = sticky(50)(stream(0, "sticky"), 20_000)
    changes = (x[1:] != x[:-1]).any(1)[episode[1:] == episode[:-1]]
    assert changes.mean() == pytest.approx(0.02 * 2 / 3, abs=0.004)
    assert (y[1:] != y[:-1]).any(1).mean() > 0.3
    assert [a.shape[1] for a in (x, y, z)] == [3, 3, 4]


def test_the_product_is_a_state_that_changes_by_its_inputs():
    a, after, z, episode = product(100)(stream(0, "product"), 2000)
    inside = episode[1:] == episode[:-1]
    np.testing.assert_allclose(after[:-1][inside], z[1:, 0][inside])
    change = after - z[:, 0]
    assert np.corrcoef(change, a * z[:, 1])[0, 1] == pytest.approx(np.sqrt(0.5), abs=0.1)
    variables = as_variables(a, after, z, episode, own=True)
    assert [f.name for f in variables.inputs] == ["x", "y", "z"]
    np.testing.assert_array_equal(variables.x[1][:, 0], z[:, 0])


@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_cases_of_power_curves_have_the_effect_in_their_name(effect):
    x, y, z = POWER_CASES[f"added-{effect:g}-3000"].draw(stream(0, "added"), 100_000)
    mean = np.tanh(z[:, :3].sum(1))
    rest = y - np.sin(z[:, 1:4].sum(1))
    rest -= mean * (mean @ rest) / (mean @ mean)
    assert np.corrcoef(rest, x - mean)[0, 1] ** 2 == pytest.approx(effect, abs=0.01)
    a, after, z, _ = POWER_CASES[f"product-{effect:g}-30x50"].draw(stream(0, "product"), 100_000)
    assert np.corrcoef(after - z[:, 0], a * z[:, 1])[0, 1] ** 2 == pytest.approx(effect, abs=0.01)
    assert POWER_CASES["added-0-1000"].null
    assert not POWER_CASES[f"added-{effect:g}-1000"].null


def test_every_case_draws_its_rows_and_whole_episodes():
    for name, case in CASES.items():
        x, y, z, *episode = case.draw(stream(0, name), case.n)
        assert len(x) == len(y) == len(z) == case.n
        assert bool(episode) == ("x" in name.rpartition("-")[2]), name
        if episode:
            count, length = map(int, name.rpartition("-")[2].split("x"))
            assert np.bincount(episode[0]).tolist() == [length] * count


def test_the_verdict_is_the_one_of_the_default_threshold():
    rng = stream(0, "verdict")
    x, z = rng.standard_normal((2, 300))
    y = x + rng.standard_normal(300)
    assert examine(FisherZ(), x, y, z)[1:] == ("established", True)
    assert examine(FisherZ(), x, rng.standard_normal(300), z).verdict == "excluded"
    assert examine(FisherZ(), z, y, z).verdict == "undetermined"  # x and z are the same column
    assert examine(lambda *sample: 0.5, x, y, z) == (0.5, None, False)


def test_verdicts_are_counted_and_files_without_them_are_continued(tmp_path):
    (row,) = calibrate({"z": FisherZ()}, ["effect-1000"], 4, folder=tmp_path)["rows"]
    assert row["verdicts"] == {"established": 1.0}
    (path,) = tmp_path.iterdir()
    write_json(path, {key: value for key, value in read_json(path).items() if key in ("p", "seconds")})
    (row,) = calibrate({"z": FisherZ()}, ["effect-1000"], 6, folder=tmp_path)["rows"]
    assert row["replications"] == 6
    assert read_json(path)["verdict"] == [None] * 4 + ["established"] * 2


def test_dependence_within_episodes_deceives_a_test_that_ignores_it():
    """What the cases are for: Fisher's z takes the rows as independent."""
    white, persistent = (
        calibrate({"z": FisherZ()}, [case], 40)["rows"][0]["0.05"]["rate"]
        for case in ("ar-white-linear-20x50", "ar-linear-20x50")
    )
    assert white < 0.2 < persistent


def test_cases_are_chosen_by_pattern_and_kind():
    rows = study(["fisherz"], ["hidden-10-*x10", "sticky-*"], 1)["rows"]
    assert [row["case"] for row in rows] == ["hidden-10-tied-100x10", "hidden-10-free-100x10"]
    assert examine(GTest(), *CASES["sticky-400x5"].draw(stream(0, "g"), 2000)).verdict is not None


@pytest.mark.parametrize("case", ["ar-linear-100x10", "ar-linear-400x5", "ar-white-linear-100x10", "ar-linear-20x50"])
def test_the_linear_cases_with_episodes_are_nulls(case):
    """A regression with variances clustered by episode, which is valid for them, keeps its level."""
    rejected = 0
    for number in range(200):
        x, y, z, episode = CASES[case].draw(stream(1, case, number), CASES[case].n)
        given = np.column_stack([z, np.ones(len(x))])
        rest_x, rest_y = (a - given @ np.linalg.lstsq(given, a, rcond=None)[0] for a in (x, y))
        per_episode = np.bincount(episode, rest_x * (rest_y - rest_x * (rest_x @ rest_y) / (rest_x @ rest_x)))
        t = rest_x @ rest_y / np.sqrt((per_episode**2).sum())
        rejected += 2 * student.sf(abs(t), len(per_episode) - 1) < 0.05
    assert 0.01 < rejected / 200 < 0.12
