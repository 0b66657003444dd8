"""Unwrapped angles: which columns get a sine and a cosine, and the edges that show only with these."""

import numpy as np
import pytest

from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import decide
from because_rl.discovery.regression import margins
from because_rl.discovery.regression.engine import Budget
from because_rl.discovery.regression.margins import prepare
from because_rl.discovery.variables import Variables
from because_rl.factors import FactorSpec, pack

QUICK = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60))
SPEC = FactorSpec(pack(("x", 1, "continuous"), ("h", 1, "continuous")), pack(("v", 1, "continuous")))


def glide(reach, act, n=2000, seed=0):
    """x' = x + .01 act(h, v), h' = h + noise, where h is uniform from -reach to reach."""
    rng = np.random.default_rng(seed)
    x, h, v = rng.normal(size=n), rng.uniform(-reach, reach, n), rng.uniform(0, 2, n)
    after = np.column_stack([x + 0.01 * act(h, v) + 0.001 * rng.normal(size=n), h + rng.normal(size=n)])
    return Variables.from_arrays(SPEC, np.column_stack([x, h]), v[:, None], after, np.arange(n) // 16)


def drift(h, v):
    return v * np.cos(h)


def test_a_heading_of_many_turns_is_excluded_unless_its_cosine_is_known(monkeypatch):
    rows = glide(2000, drift)

    def status():
        mask = decide(rows, QUICK(rows), QUICK, 1e-4)
        return {(row["from"], row["to"]): row["status"] for row in mask.rows()}

    known = status()
    assert [known[edge] for edge in (("h", "x"), ("v", "x"), ("x", "h"), ("v", "h"))] == [
        *("established", "established", "excluded", "excluded")
    ]
    monkeypatch.setattr(margins, "_turns", lambda *_: {})
    assert status()["h", "x"] == "excluded"


def test_degrees_are_known_by_their_own_period():
    def slow(h, v):
        return v * np.sin(np.deg2rad(h))

    data = prepare(glide(2000, slow), 5, 0)
    heading = data.x[:, data.columns[[factor.name for factor in data.inputs].index("h")]]
    angle = np.arctan2(*heading[:, 1:].T)
    assert heading.shape[1] == 3
    steps = np.unwrap(angle[np.argsort(heading[:, 0])])
    assert abs(steps[-1] - steps[0]) / (2 * np.pi) == pytest.approx(4000 / 360, rel=0.02)


@pytest.mark.parametrize(
    ("reach", "act"),
    [(12, drift), (2000, lambda h, v: v), (15, lambda h, v: v * (h > 3)), (2000, lambda h, v: np.tanh(h / 500))],
    ids=["few turns", "no effect", "switch", "smooth"],
)
def test_other_columns_enter_as_they_did(reach, act, monkeypatch):
    rows = glide(reach, act)
    data = prepare(rows, 5, 0)
    monkeypatch.setattr(margins, "_turns", lambda *_: {})
    before = prepare(rows, 5, 0)
    np.testing.assert_array_equal(data.x, before.x)
    for target, same in zip(data.targets, before.targets, strict=True):
        np.testing.assert_array_equal(target.persist, same.persist)


def test_the_own_value_of_an_unwrapped_angle_still_persists():
    data = prepare(glide(2000, drift), 5, 0)
    target = next(target for target in data.targets if target.factor.name == "h")
    assert target.persist.shape == (3, 1)
    level = data.x[:, data.columns[target.own]] @ target.persist + target.change @ target.gain
    np.testing.assert_allclose(level, target.level, atol=1e-9)
