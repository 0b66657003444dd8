"""Regimes: the chain against enumeration, rows and graphs of two regimes, and what is no regime of its own."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from because_rl.discovery.discover import discover
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.regimes.chain import smooth
from because_rl.discovery.regimes.find import find_regimes, parse_regimes
from because_rl.discovery.regimes.masks import discover_regimes
from because_rl.discovery.regression.engine import Budget
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.transitions import Transitions
from benchmarks.discovery.regime_recovery import regime_recovery
from benchmarks.discovery.regime_systems import NOISES, draw_log

QUICK = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60))
SPEC = FactorSpec(pack(("x", 1, "continuous"), ("v", 1, "continuous")), pack(("push", 1, "continuous")))
EPISODES, LENGTH = 40, 30


def carts(driver, level, kind="normal", seed=0):
    """x' = .7 x + driver(v, push) + level * noise, v' = .5 v + push + noise / 2; (rows,) regime in `driver`."""
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal if kind == "normal" else lambda shape: rng.standard_t(2.5, shape)
    state, rows = rng.standard_normal((EPISODES, 2)), []
    for t in range(LENGTH):
        push = rng.uniform(-1, 1, EPISODES)
        noise = draw((EPISODES, 2))
        after = np.column_stack(
            [
                0.7 * state[:, 0] + driver(t)(state[:, 1], push) + level(t) * noise[:, 0],
                0.5 * state[:, 1] + push + 0.3 * noise[:, 1],
            ]
        )
        rows.append((state, push[:, None], after))
        state = after
    before, taken, then = (np.stack(part, 1).reshape(EPISODES * LENGTH, -1) for part in zip(*rows, strict=True))
    return Transitions.from_arrays(
        before, taken, then, np.repeat(np.arange(EPISODES), LENGTH), factors=SPEC, name="carts"
    )


def by_velocity(v, push):
    return 0.8 * v


def by_push(v, push):
    return 0.8 * push


def variables(data):
    return Variables.from_arrays(data.factors, data.state, data.action, data.next_state, data.episode)


def count(data, regimes="auto"):
    return find_regimes(variables(data), regimes).count


@pytest.fixture(scope="module")
def switching():
    """Velocity drives the position in the first twelve steps of an episode, the push afterwards."""
    return carts(lambda t: by_velocity if t < 12 else by_push, lambda t: 0.2)


def test_smoothing_agrees_with_the_sum_over_all_paths():
    rng, leave = np.random.default_rng(0), 0.07
    evidence, starts = rng.normal(size=(7, 3)), np.array([0, 4])
    posterior, total = np.zeros((7, 3)), np.zeros(2)
    switches = 0.0
    for episode, rows in enumerate((range(4), range(4, 7))):
        weights = {}
        for path in itertools.product(range(3), repeat=len(rows)):
            moves = sum(a != b for a, b in itertools.pairwise(path))
            chance = (leave / 2) ** moves * (1 - leave) ** (len(rows) - 1 - moves) / 3
            weights[path] = chance * np.exp(sum(evidence[t, k] for t, k in zip(rows, path, strict=True)))
        total[episode] = np.log(sum(weights.values()))
        for path, weight in weights.items():
            share = weight / np.exp(total[episode])
            switches += share * sum(a != b for a, b in itertools.pairwise(path))
            for t, k in zip(rows, path, strict=True):
                posterior[t, k] += share
    smoothed = smooth(evidence, starts, leave)
    np.testing.assert_allclose(smoothed.posterior, posterior, rtol=1e-9)
    np.testing.assert_allclose(smoothed.log_likelihood, total, rtol=1e-9)
    assert smoothed.leave == pytest.approx(min((switches + 1) / (5 + 20), 0.1))


def test_two_regimes_get_their_rows_and_graphs(switching):
    result = discover_regimes(switching, batches=0, test=QUICK)
    assert result.regimes.count == 2
    assert (result.regimes.label == (switching.step < 12)).mean() > 0.97  # the later regime has more rows
    later, earlier = result.masks
    assert later.parents("x") == ("x", "push")
    assert earlier.parents("x") == ("x", "v")
    assert result.edges["push", "v"] == "stable"
    assert "stable" not in (result.edges["v", "x"], result.edges["push", "x"])
    excluded = [replace(mask, status=np.where(mask.kept, mask.status, "excluded")) for mask in result.masks]
    bound = replace(result, masks=tuple(excluded)).edges
    assert (bound["v", "x"], bound["push", "x"], bound["push", "v"]) == ("bound", "bound", "stable")
    for detectable, verdict in ((0.01, "bound"), (1.0, "open")):  # of those left out; the effect lies between
        doubtful = [
            replace(
                mask,
                status=np.where(mask.kept, mask.status, "undetermined"),
                detectable=np.where(mask.kept, mask.detectable, detectable),
            )
            for mask in result.masks
        ]
        assert replace(result, masks=tuple(doubtful)).edges["v", "x"] == verdict
    content = result.to_dict()
    assert sum(run[2] for run in content["runs"]) == len(switching)
    assert [entry["regimes"] for entry in content["edges"] if entry["from"] == "v" and entry["to"] == "x"] == [[2]]


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_another_noise_level_is_no_regime(kind):
    assert count(carts(lambda t: by_velocity, lambda t: 0.1 if t < 15 else 0.5, kind)) == 1


def test_regimes_show_through_heavy_tails():
    """With normal instead of Student's likelihood only one of the two is seen."""
    assert count(carts(lambda t: by_velocity if t < 12 else by_push, lambda t: 0.3, "heavy")) == 2


def test_regimes_learned_from_a_part_are_given_to_all_rows(switching, monkeypatch):
    monkeypatch.setattr("because_rl.discovery.regimes.find.MOST_ROWS", 25 * LENGTH)
    label = find_regimes(variables(switching), 2).label
    assert (label == (switching.step < 12)).mean() > 0.97


def test_with_one_regime_the_mask_is_that_of_discover():
    data = carts(lambda t: by_velocity, lambda t: 0.2)
    result, plain = discover_regimes(data, batches=1, test=QUICK, seed=3), discover(data, batches=1, test=QUICK, seed=3)
    assert result.regimes.count == 1
    assert result.regimes.scores[1]["gain"] < 0  # on the rows of the fit it would be positive
    assert result.masks[0].to_dict() == plain.to_dict()
    assert set(result.edges.values()) == {"stable"}


def test_regimes_do_not_depend_on_units_or_calls(switching):
    stretched = Transitions.from_arrays(
        switching.state * [100, 0.01],
        switching.action,
        switching.next_state * [100, 0.01],
        switching.episode,
        factors=SPEC,
    )
    label = find_regimes(variables(switching), 2).label
    np.testing.assert_array_equal(label, find_regimes(variables(switching), 2).label)
    assert (label == find_regimes(variables(stretched), 2).label).mean() > 0.999


@pytest.mark.parametrize("regimes", ["many", "0", "-1", "7", "²", "", 2.5])
def test_numbers_of_regimes_that_are_refused(regimes):
    with pytest.raises(BecauseError, match="Got regimes"):
        parse_regimes(regimes)


def test_logs_without_regimes_to_see_are_refused(switching):
    short = switching.rows(switching.step < 5)
    few = switching.rows(switching.episode < 19)
    still = Transitions.from_arrays(switching.state, switching.action, switching.state, switching.episode, factors=SPEC)
    for data, message in ((short, "rows on average"), (few, "Got 19 episodes"), (still, "No continuous")):
        with pytest.raises(BecauseError, match=message):
            count(data)


def test_regimes_too_small_for_a_test_are_refused(switching):
    """Only six episodes ever leave the first regime."""
    rare = switching.rows((switching.step < 12) | (switching.episode < 6))
    with pytest.raises(BecauseError, match=r"number 2 has \d+ rows in 6 episodes"):
        find_regimes(variables(rare), 2)
    assert count(rare) == 1


def test_benchmark_cells_are_kept_and_read_again(tmp_path, monkeypatch):
    small = draw_log("non-gaussian", 500, states=3, actions=1, regimes=2, episodes=30, length=60)
    monkeypatch.setattr("benchmarks.discovery.regime_recovery.draw_log", lambda noise, draw, regimes: small)
    result = regime_recovery(["non-gaussian"], [500], 2, tmp_path, true=2)
    (row,) = result["rows"]
    assert row["accuracy"]["mean"] > 0.95
    assert row["edges"]["stable"]["in_all"] == row["edges"]["stable"]["edges"]
    monkeypatch.setattr("benchmarks.discovery.regime_recovery.draw_log", None)  # no draw is computed again
    assert regime_recovery(["non-gaussian"], [500], 2, tmp_path, true=2)["cells"] == result["cells"]
    with pytest.raises(BecauseError, match="no noise 'white'"):
        regime_recovery(["white"], [500], 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("noise", NOISES)
def test_three_regimes_of_ten_factors_are_recovered(noise, tmp_path):
    (cell,) = regime_recovery([noise], [500], "auto", tmp_path)["cells"]
    assert cell["regimes"] == 3
    assert cell["accuracy"] > 0.97
    assert cell["f1"] > 0.9
