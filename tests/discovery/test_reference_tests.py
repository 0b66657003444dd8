"""The reference tests beside the two defaults: Fisher's z, fcit with its trees, and l0."""

import numpy as np
import pytest
from scipy import stats

from because_rl.discovery.independence.fcit import Fcit
from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.l0 import L0
from because_rl.discovery.mask import decide
from because_rl.discovery.regression.tree import grow
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from benchmarks.discovery.study import CASES, pair_p_value


def linear_data(weights, n, noise, seed=0):
    """n independent rows with next state = [state, action] @ weights (inputs, states) + noise; and the raw arrays."""
    inputs, states = weights.shape
    spec = FactorSpec(
        pack(*((f"s{k}", 1, "continuous") for k in range(states))),
        pack(*((f"a{k}", 1, "continuous") for k in range(inputs - states))),
    )
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(n, states)), rng.normal(size=(n, inputs - states))
    after = np.concatenate([state, action], 1) @ weights + noise * rng.normal(size=(n, states))
    return spec, state, action, after


# Fisher's z -------------------------------------------------------------------------------------------------
def test_fisherz_against_its_formula():
    rng = np.random.default_rng(0)
    x, y, z = CASES["linear-5-500"].draw(rng, 500)
    b = np.column_stack([np.ones(500), z])
    rx, ry = (v - b @ np.linalg.lstsq(b, v, rcond=None)[0] for v in (x, y))
    r = np.corrcoef(rx, ry)[0, 1]
    expected = 2 * stats.norm.sf(abs(np.arctanh(r)) * np.sqrt(500 - 5 - 3))
    assert pair_p_value(FisherZ(), x, y, z) == pytest.approx(expected, rel=1e-6)


def test_fisherz_with_wide_and_redundant_factors():
    _, state, action, after = linear_data(np.eye(5, 3) + np.eye(5, 3, k=1) * 0.5, 600, 0.3)
    action[:, 1] = action[:, 0]
    spec = FactorSpec(
        pack(("a", 1, "continuous"), ("b", 2, "continuous")), pack(("u", 1, "continuous"), ("copy", 1, "continuous"))
    )
    evidence = FisherZ()(Variables.from_arrays(spec, state, action, after))
    assert np.isinf(evidence.detectable[2:]).all()
    assert not evidence.detectable[:2].any()
    assert "linear function of the other inputs" in evidence.why["copy", "b"]
    assert evidence.p[0, 1] < 1e-6
    assert evidence.p[1, 0] > 1e-3


# fcit -------------------------------------------------------------------------------------------------------
def test_tree_against_brute_force():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, (60, 3)).astype(float), rng.normal(size=(60, 1))
    tree = grow(x, y)

    def drop(column, cut):
        sides = y[x[:, column] <= cut], y[x[:, column] > cut]
        return -sum(((s - s.mean()) ** 2).sum() for s in sides)

    best = max(drop(c, v) for c in range(3) for v in np.unique(x[:, c])[:-1])
    assert drop(tree.column[0, 0], tree.cut[0, 0]) == pytest.approx(best)
    cells = {tuple(row): y[(x == row).all(1)].mean() for row in x}
    np.testing.assert_allclose(tree.predict(x)[:, 0], [cells[tuple(row)] for row in x], atol=1e-9)


@pytest.mark.parametrize("least", [2, 20])
def test_trees_grown_together_equal_trees_grown_separately(least):
    rng = np.random.default_rng(1)
    x, owner = rng.normal(size=(300, 7)), np.array([0, 1, 1, 2, 3, 3, 4])
    x[:, 4:] = x[:, 4:] > 0
    y = np.c_[x[:, 0] + x[:, 1] * x[:, 4], x[:, 3] ** 2] + 0.1 * rng.normal(size=(300, 2))
    new = rng.normal(size=(200, 7))
    together = grow(x, y, owner, least)
    np.testing.assert_array_equal(together.predict(new, None, 30), grow(x, y).predict(new, None, 30))
    for i in range(5):
        rest = owner != i
        separate = grow(x[:, rest], y).predict(new[:, rest], None, max(least, 2))
        np.testing.assert_allclose(together.predict(new, i, least), separate, rtol=1e-12)


def test_fcit_reaches_the_thresholds_of_the_paper_with_more_splits():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=1200), rng.normal(size=(1200, 2))
    y = z[:, 0] + 0.1 * rng.normal(size=1200)
    assert pair_p_value(Fcit(), x, y + 2 * x, z) < 1e-6
    assert pair_p_value(Fcit(splits=8), x, y + 2 * x, z) > 1e-6
    assert pair_p_value(Fcit(), x, y, z) > 0.01


def test_splits_of_the_same_rows_keep_the_level():
    """Without the correction for shared rows 4 of these 24 are rejected."""
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(24):
        x, z = rng.normal(size=120), rng.normal(size=(120, 1))
        y = z[:, 0] + rng.normal(size=120)
        rejected += pair_p_value(Fcit(), x, y, z) < 0.05
    assert rejected <= 2


# l0 ---------------------------------------------------------------------------------------------------------
def test_l0_finds_a_sparse_linear_graph():
    weights = np.zeros((6, 4))
    weights[[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 1, 3]] = 0.8
    data = Variables.from_arrays(*linear_data(weights, 3000, 0.3))
    test = L0(penalty=0.01)
    assert (decide(data, test(data), test, 0.5, self_edges=False).matrix == (weights != 0)).all()


def test_l0_refuses_too_few_rows():
    with pytest.raises(BecauseError, match=r"20 transitions.*at least 50"):
        L0()(Variables.from_arrays(*linear_data(np.eye(3, 2), 20, 0.3)))
