"""Discovery of large data: screening, drawing episodes, progress, and continuing after a stop."""

from dataclasses import replace

import numpy as np
import pytest

from because_rl.discovery.discover import discover
from because_rl.discovery.independence import residual, target_test
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.independence.target_test import TargetTest
from because_rl.discovery.regression.covariance import covariance_test, detectable_effect
from because_rl.discovery.regression.engine import Budget, Engine
from because_rl.discovery.regression.gpu_engine import AcceleratedEngine
from because_rl.discovery.regression.margins import FEWEST, draw_episodes
from because_rl.discovery.regression.screening import changes, covariance_tests, episode_squares
from because_rl.discovery.regression.threads import thread_map
from because_rl.discovery.variables import Variables
from because_rl.factors import FactorSpec, pack
from because_rl.transitions import Transitions

BUDGET = Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60)
QUICK = ResidualTest(budget=BUDGET)
LENGTH = 20


@pytest.fixture
def screen_all(monkeypatch):
    """However few inputs there are."""
    monkeypatch.setattr(target_test, "FEW_INPUTS", 0)


def chain(n=1200, states=6, actions=2, seed=0):
    """Each factor follows the one before it, every second one by a sine; the first ones are driven by actions."""
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(n, states)), rng.uniform(-1, 1, (n, actions))
    after = 0.6 * state + 0.2 * rng.normal(size=state.shape)
    for j in range(1, states):
        after[:, j] += 0.5 * (np.sin(2 * state[:, j - 1]) if j % 2 else state[:, j - 1])
    after[:, :actions] += action
    names = [f"s{j}" for j in range(states)], [f"a{k}" for k in range(actions)]
    factors = FactorSpec(*(pack(*((name, 1, "continuous") for name in group)) for group in names))
    return Transitions.from_arrays(state, action, after, np.arange(n) // LENGTH, factors=factors)


def variables(data):
    return Variables.from_arrays(data.factors, data.state, data.action, data.next_state, data.episode)


# Screening ------------------------------------------------------------------------------------------------
def test_screening_changes_no_verdict(monkeypatch, screen_all):
    data, compared = chain(n=4000), []
    compare = TargetTest._compare
    monkeypatch.setattr(TargetTest, "_compare", lambda self, *a: (compared.append(self.j), compare(self, *a))[1])
    test = ResidualTest(budget=replace(BUDGET, centres=150, learn_rows=3000, learn_centres=100))
    thorough = discover(data, test=test, batches=0)
    in_full = len(compared)
    screened = discover(data, test=replace(test, thorough=0), batches=0)
    assert len(compared) - in_full < in_full / 2
    np.testing.assert_array_equal(screened.status, thorough.status)
    np.testing.assert_allclose(screened.effect, thorough.effect, atol=QUICK.least_effect / 5)
    np.testing.assert_allclose(screened.detectable, thorough.detectable, rtol=0.1)
    assert np.abs(np.log10(screened.p + 1e-12) - np.log10(thorough.p + 1e-12)).max() < 1


def test_change_of_a_fit_is_that_of_its_substituted_prediction():
    """With a budget that samples all rows the estimate is exact, for inputs of one column and of several."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 4))
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * rng.normal(size=(500, 1))
    engine = Engine(x, [slice(a, a + 100) for a in range(0, 500, 100)], Budget(centres=60), 0)
    problem = engine.problem("y", y, np.ones(4))
    kernel = engine.learn([problem])[0]
    (fit, prediction), substitute = engine.cross_fit([problem], [kernel])[0], 0.3 * x
    inputs = [np.array([0]), np.array([1, 2]), np.array([3])]
    for columns, change in zip(inputs, changes(problem, fit, x, substitute, inputs), strict=True):
        mixed = x.copy()
        mixed[:, columns] = substitute[:, columns]
        difference = prediction - engine.predict(fit, mixed)
        np.testing.assert_allclose(change.size, (difference**2).mean(0), rtol=1e-6)
        slope = np.linalg.lstsq(0.7 * x[:, columns], difference, rcond=None)[0]
        np.testing.assert_allclose(change.slope, slope, rtol=1e-6, atol=1e-9)


def test_tests_of_all_inputs_at_once_are_those_of_each():
    rng = np.random.default_rng(0)
    starts, ry = np.arange(0, 600, LENGTH), rng.normal(size=(600, 2))
    residuals = [rng.normal(size=(600, width)) for width in (1, 3, 1)]
    residuals[1][:, 0] += ry[:, 0]
    slopes = [0.1 * rng.normal(size=(rx.shape[1], 2)) for rx in residuals]
    squares = [episode_squares(rx, starts) for rx in residuals]
    batch = covariance_tests(residuals, squares, slopes, ry, starts, 1e-4, [None] * len(residuals))
    for k, (rx, slope) in enumerate(zip(residuals, slopes, strict=True)):
        t, p = covariance_test(rx, ry + rx @ slope, starts)
        assert batch.statistic[k] == pytest.approx(t)
        assert batch.p[k] == pytest.approx(p)
        assert batch.detectable[k] == pytest.approx(detectable_effect(rx, ry, starts, 1e-4))
    few = covariance_tests(residuals, [s[:2] for s in squares], slopes, ry, starts[:2], 1e-4, [None] * len(residuals))
    assert (few.detectable == 1).all()


def test_screened_results_do_not_depend_on_threads_or_the_order_of_factors(monkeypatch):
    test, data = replace(QUICK, thorough=0), variables(chain(n=800, states=4))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = test(data)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    i, j = [5, 2, 0, 4, 1, 3], [3, 1, 0, 2]
    shuffled = Variables(
        tuple(data.inputs[k] for k in i),
        tuple(data.targets[k] for k in j),
        tuple(data.x[k] for k in i),
        tuple(data.y[k] for k in j),
        data.episode,
    )
    three = test(shuffled)
    for name in ("p", "statistic", "effect", "detectable"):
        np.testing.assert_array_equal(getattr(three, name), getattr(one, name)[np.ix_(i, j)])


@pytest.mark.long
def test_screening_gives_the_same_with_the_compiled_engine(monkeypatch, screen_all):
    test, data = replace(QUICK, thorough=0), variables(chain(n=800, states=3, actions=1))
    plain = test(data)
    monkeypatch.setattr(residual, "make_engine", AcceleratedEngine)
    compiled = test(data)
    for name in ("p", "effect", "detectable"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(plain, name), rtol=1e-3, atol=1e-6)


def test_maps_in_threads_of_a_map_start_no_threads_of_their_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    inner = thread_map(lambda a: thread_map(lambda b: a + b, [1, 2]), [10, 20])
    assert inner == [[11, 12], [21, 22]]


# Drawing episodes -----------------------------------------------------------------------------------------
def test_beyond_max_rows_whole_episodes_are_drawn_and_counted():
    data = chain(n=2000, states=3)
    mask = discover(data, test=replace(QUICK, max_rows=1000), batches=0)
    assert (mask.settings["n"], mask.settings["rows_used"], mask.settings["max_rows"]) == (2000, 1000, 1000)
    every = discover(data, test=QUICK, batches=0)
    assert every.settings["rows_used"] == 2000
    assert (mask.detectable[mask.status == "excluded"] > 0).all()
    assert np.median(mask.detectable) > np.median(every.detectable)


def test_drawn_rows_are_whole_episodes_of_every_fold():
    starts, folds = np.arange(0, 3000, 10), (slice(0, 1000), slice(1000, 2000), slice(2000, 3000))
    rows, first, cuts = draw_episodes(starts, folds, 1500)
    assert len(rows) == 1500
    np.testing.assert_array_equal(np.add.outer(rows[first], np.arange(10)).reshape(-1), rows)
    for before, after in zip(folds, cuts, strict=True):
        inside = rows[after]
        assert (inside >= before.start).all()
        assert (inside < before.stop).all()
        assert len(inside) == 500


def test_few_long_episodes_are_thinned_rather_than_dropped():
    starts, folds = np.arange(0, 24000, 1000), (slice(0, 12000), slice(12000, 24000))
    rows, first, cuts = draw_episodes(starts, folds, 2000)
    assert len(first) == 2 * FEWEST
    assert len(rows) == 2000
    assert cuts == (slice(0, 1000), slice(1000, 2000))


# Progress and continuing ----------------------------------------------------------------------------------
class Stopped(Exception):
    pass


def test_a_stopped_discovery_continues_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data, tested = chain(n=800, states=4), []
    run = TargetTest.run
    monkeypatch.setattr(TargetTest, "run", lambda self: (tested.append(self.target.factor.name), run(self))[1])
    options = {"test": QUICK, "batches": 1}
    undisturbed = discover(data, **options)
    assert len(tested) == 8

    def stop(done, total):
        if done == 1:
            raise Stopped

    tested.clear()
    with pytest.raises(Stopped):
        discover(data, **options, progress=stop, keep=tmp_path)
    assert 1 <= len(tested) < 4  # one more may have begun before the first was reported
    assert len(list(tmp_path.iterdir())) == len(tested)
    calls = []
    continued = discover(data, **options, progress=lambda *call: calls.append(call), keep=tmp_path)
    assert len(tested) == 8  # none of them twice
    assert calls == [(done, 8) for done in range(9)]
    assert continued.to_dict() == undisturbed.to_dict()


def test_kept_targets_of_other_data_settings_or_damaged_files_are_not_used(tmp_path, monkeypatch):
    data, tested = chain(n=400, states=2, actions=1), []
    run = TargetTest.run
    monkeypatch.setattr(TargetTest, "run", lambda self: (tested.append(self.j), run(self))[1])

    def count(data, **options):
        tested.clear()
        discover(data, **({"test": QUICK, "batches": 0} | options), keep=tmp_path)
        return len(tested)

    assert count(data) == 2
    assert count(data) == 0
    assert count(data, seed=1) == 2
    assert count(data, test=replace(QUICK, folds=4)) == 2
    assert count(chain(n=400, states=2, actions=1, seed=1)) == 2
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    assert count(data) == 2


def test_tests_that_take_all_targets_at_once_report_them_together():
    calls = []
    discover(chain(n=400), test="fisherz", batches=1, progress=lambda *call: calls.append(call))
    assert calls == [(0, 12), (6, 12), (12, 12)]
