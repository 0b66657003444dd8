"""The residual test and its parts, and the two reference tests beside it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from because_rl.discovery.independence.fcit import Fcit
from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import decide
from because_rl.discovery.regression import gpu_engine as accelerated
from because_rl.discovery.regression.confounder import episode_constants
from because_rl.discovery.regression.covariance import Basis, combine, covariance_test, projected_test
from because_rl.discovery.regression.engine import Budget, Engine, draw_rows
from because_rl.discovery.regression.gpu_engine import AcceleratedEngine
from because_rl.discovery.regression.kernel_ridge import Centres, Rows, cross_fit, kernel, root_of
from because_rl.discovery.regression.margins import prepare
from because_rl.discovery.regression.redundancy import relatives, variation
from because_rl.discovery.regression.tree import grow
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from benchmarks.discovery.study import CASES, calibrate, pair_p_value

QUICK = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60))
SPEC = FactorSpec(
    pack(("a", 1, "continuous"), ("b", 2, "continuous"), ("on", 1, "binary")),
    pack(("push", 1, "continuous"), ("idle", 1, "continuous")),
)


def world(n=600, seed=0, episode=20, slope=0.0):
    """a <- a, push; b <- b, a; on <- on, a: with u a shift of a and b that is constant in an episode."""
    rng = np.random.default_rng(seed)
    u = slope * np.repeat(rng.choice((-1.0, 1.0), n // episode), episode)
    a, b, push, idle = rng.normal(size=n), rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=n)
    on = (rng.random(n) < 0.3).astype(float)
    next_a = 0.8 * a + np.tanh(push) + u + 0.1 * rng.normal(size=n)
    next_b = 0.5 * b + np.column_stack([np.sin(a), 0 * a]) + u[:, None] + 0.1 * rng.normal(size=(n, 2))
    next_on = np.maximum(on, (a > 1.0).astype(float))
    state, next_state = np.column_stack([a, b, on]), np.column_stack([next_a, next_b, next_on])
    return state, np.column_stack([push, idle]), next_state, np.repeat(np.arange(n // episode), episode)


TRUE = {("a", "a"), ("push", "a"), ("a", "b"), ("b", "b"), ("on", "on"), ("a", "on")}


def edges(test, data):
    return set(decide(data, test(data), test, 1e-4, self_edges=False).graph.edges)


def test_finds_the_graph():
    data = Variables.from_arrays(SPEC, *world())
    evidence = QUICK(data)
    assert edges(QUICK, data) == TRUE
    assert not evidence.untestable.any()
    assert ((evidence.p >= 0) & (evidence.p <= 1)).all()
    assert ((evidence.effect >= 0) & (evidence.effect <= 1)).all()


def test_pairs_that_are_not_refitted_get_the_same_verdicts():
    data = Variables.from_arrays(SPEC, *world(seed=3))
    hasty = replace(QUICK, thorough=0)
    assert edges(hasty, data) == edges(QUICK, data) == TRUE
    assert (hasty(data).p != QUICK(data).p).any()


def test_a_cause_of_a_rare_event_is_kept_as_untestable_however_small_its_effect():
    """The light goes on about 60 times in 4,000 rows, more often where a is high."""
    state, action, next_state, episode = world(n=4000, seed=1)
    rng = np.random.default_rng(0)
    state[:, 3] = 0
    next_state[:, 3] = rng.random(4000) < 0.03 / (1 + np.exp(-3 * state[:, 0]))
    moved = int(next_state[:, 3].sum())
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    evidence, names = QUICK(data), [f.name for f in data.inputs]
    a, on = names.index("a"), 2
    assert evidence.p[a, on] < 1e-4
    assert evidence.effect[a, on] < QUICK.least_effect
    assert evidence.untestable[a, on]
    assert f"moved only {moved} times" in evidence.why["a", "on"]
    assert evidence.p[names.index("idle"), on] > 1e-4
    assert not evidence.untestable[names.index("idle"), on]


def test_is_deterministic_in_its_seed():
    data = Variables.from_arrays(SPEC, *world())
    first, again, other = QUICK(data, 1), QUICK(data, 1), QUICK(data, 2)
    np.testing.assert_array_equal(first.p, again.p)
    assert (first.p != other.p).any()


@given(st.randoms(use_true_random=False))
@settings(max_examples=3, deadline=None)
def test_order_of_rows_and_factors_does_not_matter(random):
    data = Variables.from_arrays(SPEC, *world(n=400))
    expected = QUICK(data)
    rows = np.array(random.sample(range(len(data)), len(data)))
    i, j = random.sample(range(len(data.inputs)), len(data.inputs)), random.sample(range(3), 3)
    shuffled = Variables(
        tuple(data.inputs[k] for k in i),
        tuple(data.targets[k] for k in j),
        tuple(data.x[k][rows] for k in i),
        tuple(data.y[k][rows] for k in j),
        data.episode[rows],
    )
    found = QUICK(shuffled)
    for name in ("p", "statistic", "effect", "untestable"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[np.ix_(i, j)])


@given(st.floats(-3, 3), st.floats(0.01, 100), st.booleans())
@settings(max_examples=3, deadline=None)
def test_units_of_continuous_columns_do_not_matter(shift, scale, flip):
    state, action, next_state, episode = world(n=400)
    expected = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    scale = -scale if flip else scale
    for array in (state, next_state):
        array[:, 1:3] = shift + scale * array[:, 1:3]
    action[:, 0] = scale - shift * 0 + 2 * action[:, 0]
    found = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    np.testing.assert_allclose(found.p, expected.p, rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found.effect, expected.effect, atol=1e-5)


def test_hidden_cause_of_the_episode_makes_no_edges():
    rng = np.random.default_rng(0)
    n, length = 3000, 30
    u = np.repeat(rng.choice((-1.0, 1.0), n // length), length)
    # Both bodies feel u; the level of a tells about u, so pooled data say a -> b.
    spec = FactorSpec(pack(("a", 1, "continuous"), ("b", 1, "continuous")), pack(("push", 1, "continuous")))
    state = u[:, None] + rng.normal(size=(n, 2))
    push = rng.normal(size=(n, 1))
    change = 0.3 * u[:, None] + 0.5 * np.column_stack([push[:, 0], 0 * u]) + 0.1 * rng.normal(size=(n, 2))
    data = Variables.from_arrays(spec, state, push, state + change, np.repeat(np.arange(n // length), length))
    naive = replace(QUICK, confounder=False)
    assert ("a", "b") in edges(naive, data)
    assert edges(QUICK, data) == {("a", "a"), ("b", "b"), ("push", "a")}


def test_what_is_constant_in_episodes_is_an_echo_when_causes_may_be_hidden():
    """A tag that tells u: with hidden causes allowed no data can tell it from u; without them it is a cause."""
    rng = np.random.default_rng(0)
    n, length = 1200, 30
    u = np.repeat(rng.choice((-1.0, 1.0), n // length), length)
    spec = FactorSpec(pack(("a", 1, "continuous"), ("tag", 1, "continuous")), pack(("push", 1, "continuous")))
    a, push, tag = rng.normal(size=n), rng.normal(size=(n, 1)), u + np.repeat(rng.normal(size=n // length), length) / 5
    state = np.column_stack([a, tag])
    after = np.column_stack([a + 0.5 * push[:, 0] + 0.5 * u + 0.1 * rng.normal(size=n), tag])
    data = Variables.from_arrays(spec, state, push, after, np.repeat(np.arange(n // length), length))
    naive = replace(QUICK, confounder=False)
    assert edges(naive, data) == {("a", "a"), ("push", "a"), ("tag", "a"), ("tag", "tag")}
    found = decide(data, QUICK(data), QUICK, 1e-4)
    assert found.graph.edges == {("a", "a"), ("push", "a"), ("tag", "tag")}
    assert "echo" in found.why["tag", "a"]
    assert ("tag", "a") in decide(data, QUICK(data), QUICK, 1e-4, force=[("tag", "a")]).graph.edges


def test_no_hidden_cause_is_invented():
    rng = np.random.default_rng(0)
    starts = np.arange(0, 1000, 10)
    assert episode_constants(rng.normal(size=(1000, 4)), starts, max_directions=3).shape == (1000, 0)
    u = np.repeat(rng.normal(size=100), 10)
    found = episode_constants(u[:, None] * [1.0, -1.0, 0.0] + 0.3 * rng.normal(size=(1000, 3)), starts, max_directions=3)
    assert found.shape == (1000, 1)
    assert abs(np.corrcoef(found[:, 0], u)[0, 1]) > 0.98


# What the data cannot answer ------------------------------------------------------------------------------
def test_constant_factor_is_untestable():
    state, action, next_state, episode = world()
    action[:, 1] = 7.0
    evidence = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    assert evidence.untestable[4].all()
    assert not evidence.untestable[:4].any()
    assert evidence.why["idle", "a"] == "idle never varies in these data"


def test_duplicate_factor_is_untestable_where_it_matters():
    state, action, next_state, episode = world()
    action[:, 1] = 2 * action[:, 0] + 1
    evidence = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    assert evidence.untestable[3, 0]
    assert evidence.untestable[4, 0]
    assert "follows from the other inputs" in evidence.why["push", "a"]
    assert "idle" in evidence.why["push", "a"]
    assert not evidence.untestable[3:, 1:].any()  # neither is needed for b and on: that is an answer


def test_what_never_changes_listens_to_nothing_but_itself():
    state, action, next_state, episode = world()
    next_state[:, 0] = state[:, 0]
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    assert (QUICK(data).p[1:, 0] == 1).all()
    assert edges(QUICK, data) & {(name, "a") for name in SPEC.inputs} == {("a", "a")}


def test_refuses_what_it_cannot_use():
    state, action, next_state, episode = world(n=400)
    with pytest.raises(BecauseError, match="60 transitions"):
        QUICK(Variables.from_arrays(SPEC, state[:60], action[:60], next_state[:60]))
    with pytest.raises(BecauseError, match="Got 5 episodes"):
        QUICK(Variables.from_arrays(SPEC, state[:100], action[:100], next_state[:100], episode[:100]))
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    data.x[0][7] = np.nan
    with pytest.raises(BecauseError, match="'a' has a value that is not finite"):
        QUICK(data)


# Level and power --------------------------------------------------------------------------------------------
def test_level_and_power_at_a_glance():
    """A smoke test of the study; docs/discovery.md has the real one."""
    test = replace(QUICK, budget=Budget(centres=80, learn_centres=80))
    rows = calibrate({"residual": test}, ["linear-5-500", "nonlinear-1000", "effect-1000"], replications=8)["rows"]
    rates = {row["case"]: row["0.01"]["rate"] for row in rows}
    assert rates["linear-5-500"] <= 2 / 8
    assert rates["nonlinear-1000"] <= 2 / 8
    assert rates["effect-1000"] == 1


def test_study_resumes(tmp_path):
    done = []
    args = ({"z": FisherZ()}, ["linear-1-500"])
    calibrate(*args, replications=20, folder=tmp_path)
    resumed = calibrate(*args, replications=40, folder=tmp_path, report=lambda k, total: done.append(k))
    assert done[0] > 20
    assert resumed["rows"][0]["0.05"] == calibrate(*args, replications=40)["rows"][0]["0.05"]


# Parts ------------------------------------------------------------------------------------------------------
def test_kernel_against_loops():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    naive = [[1 / (1 + ((u - v) ** 2).sum()) for v in b] for u in a]
    np.testing.assert_allclose(kernel(a, b), naive, rtol=1e-12)


def test_fit_sees_neither_rows_nor_centres_of_its_fold():
    rng = np.random.default_rng(0)
    u, y = [rng.normal(size=(40, 2)) for _ in range(3)], [rng.normal(size=(40, 1)) for _ in range(3)]
    home = np.arange(30) % 3
    centres = Centres(np.stack([u[h][k] for k, h in enumerate(home)]), (home != np.arange(3)[:, None]).astype(float))
    args = np.ones(2), centres, np.eye(2), np.eye(2), 1e-3
    before = cross_fit(Rows(u), y, *args)[1]
    y[0] = y[0] + 100
    moved = Centres(np.where((home == 0)[:, None], 9.0, centres.points), centres.free)
    after = cross_fit(Rows(u), y, np.ones(2), moved, *args[2:])[1]
    np.testing.assert_allclose(after[0], before[0], atol=1e-8)
    assert abs(after[1] - before[1]).max() > 1


def test_metric_passes_to_what_tells_of_a_dropped_column():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    x[:, 2] = x[:, 0]  # a copy of column 0, which is all that matters
    root = root_of(np.diag([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0]), np.cov(x.T))
    metric = root @ root.T
    assert metric[2, 2] > 0.9 * np.trace(metric)
    assert metric[0, 0] == pytest.approx(0, abs=1e-12)


def test_covariance_test_is_students_t_over_episodes():
    rng = np.random.default_rng(0)
    x, y, starts = rng.normal(size=(60, 1)), rng.normal(size=(60, 1)), np.arange(0, 60, 6)
    sums = (x * y).reshape(10, 6).sum(1)
    expected = stats.ttest_1samp(sums, 0)
    t, p = covariance_test(x, y, starts)
    assert t == pytest.approx(abs(expected.statistic))
    assert p == pytest.approx(expected.pvalue)


def test_projected_test_is_one_sided():
    rng = np.random.default_rng(0)
    y, folds = rng.normal(size=(100, 1)), (slice(0, 50), slice(50, 100))
    assert projected_test(y, y, np.arange(100), folds)[1] < 1e-5
    assert projected_test(-y, y, np.arange(100), folds)[1] > 0.999
    assert combine(1.0, 0.001) == pytest.approx(0.01)


def test_basis_is_ordinary_least_squares():
    rng = np.random.default_rng(0)
    x, fit, a = rng.normal(size=(50, 3)), rng.normal(size=(50, 1)), rng.normal(size=(50, 2))
    b = np.hstack([np.ones((50, 1)), x[:, :2], fit, fit**2])
    expected = a - b @ np.linalg.lstsq(b, a, rcond=None)[0]
    np.testing.assert_allclose(Basis(x, np.array([1.0, 1.0, 0.0]), fit).remove(a), expected, atol=1e-10)


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_draw_includes_rows_as_often_as_it_says(size, seed):
    rng = np.random.default_rng(seed)
    chance = rng.random(40) ** 4 + 1e-6
    rows, inclusion = draw_rows(rng, chance, size)
    assert len(set(rows)) == len(rows) == size
    assert ((inclusion > 0) & (inclusion <= 1 + 1e-12)).all()


def test_relatives_and_variation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 3))
    x[:, 2] = x[:, 0] + 0.1 * x[:, 2]
    columns = [np.array([k]) for k in range(3)]
    assert relatives(np.cov(x.T), columns, 0) == [2]
    moves = (np.arange(1000) < 100).astype(float)[:, None]
    x[:100, 1] = 0
    assert variation(x[:, 1:2], moves) == 0
    assert variation(x[:, :1], moves) > 0.5


def test_prepared_folds_hold_whole_episodes():
    state, action, next_state, _ = world(n=500)
    episode = np.sort(np.random.default_rng(0).integers(0, 40, 500))
    data = prepare(Variables.from_arrays(SPEC, state, action, next_state, episode), folds=5, seed=0)
    assert data.folds[0].start == 0
    assert data.folds[-1].stop == 500
    for fold in data.folds:
        assert fold.start in data.starts
        assert 60 <= fold.stop - fold.start <= 140


def _spoil(function):
    return lambda *arguments: jax.tree.map(lambda leaf: leaf * jnp.nan, function(*arguments))


@pytest.mark.slow
def test_accelerated_engine_gives_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.column_stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2], x[:, 0]]) + 0.1 * rng.normal(size=(300, 3))
    setup = x, [slice(0, 160), slice(160, 300)], Budget(centres=20, learn_rows=200, learn_centres=16), 0
    plain, fast = Engine(*setup), AcceleratedEngine(*setup)
    problems = [plain.problem(f"y{k}", y[:, :k], np.ones(3)) for k in (1, 3)]
    kernels = plain.learn(problems)
    for expected, found in zip(kernels, fast.learn(problems), strict=True):
        np.testing.assert_allclose(found.metric, expected.metric, atol=1e-8)
        assert found.ridge == expected.ridge
    fits = plain.cross_fit(problems, kernels)
    for expected, found in zip(fits, fast.cross_fit(problems, kernels), strict=True):
        np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
    starts = np.array([0, 7, 50, 51, 160, 200, 290])  # of episodes, which do not cross folds
    inside = plain.cross_fit(problems, kernels, starts)
    for expected, found in zip(inside, fast.cross_fit(problems, kernels, starts), strict=True):
        np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
    assert np.abs(inside[0][1] - fits[0][1]).max() > 1e-3
    keeps = [problems[1]._replace(keep=np.array(keep)) for keep in ([0.0, 1.0, 1.0], [1.0, 0.0, 1.0])]
    args = keeps, fits[1][0], np.zeros_like(x)
    np.testing.assert_allclose(fast.predict_substituted(*args), plain.predict_substituted(*args), atol=1e-6)
    np.testing.assert_allclose(fast.errors(keeps, kernels[1]), plain.errors(keeps, kernels[1]), atol=1e-6)
    np.testing.assert_allclose(fast.predict(fits[1][0], -x), plain.predict(fits[1][0], -x), atol=1e-6)

    # What rounding spoils is done again the other way.
    for name in ("_learn", "_errors", "_fit"):
        monkeypatch.setattr(accelerated, name, _spoil(getattr(accelerated, name)))
    assert fast.learn(problems)[1].ridge == kernels[1].ridge
    np.testing.assert_array_equal(fast.errors(keeps, kernels[1]), plain.errors(keeps, kernels[1]))
    np.testing.assert_array_equal(fast.cross_fit(problems, kernels)[1][1], fits[1][1])


def test_engine_counts_weighted_rows_without_bias():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    engine = Engine(x, [slice(0, 1000), slice(1000, 2000)], Budget(centres=40, learn_rows=500), seed=0)
    y = (x[:, :1] > 2).astype(float)
    problem = engine.problem("rare", y, np.ones(2))
    assert sum(map(len, problem.sample)) == 500
    total = sum((w**2).sum() for w in problem.weight)
    assert total == pytest.approx(2000, rel=0.1)
    assert np.concatenate([y[s] for s in problem.sample]).sum() > 0.9 * y.sum()


# The reference tests ----------------------------------------------------------------------------------------
def test_fisherz_against_its_formula():
    rng = np.random.default_rng(0)
    x, y, z = CASES["linear-5-500"].draw_rows(rng, 500)
    b = np.column_stack([np.ones(500), z])
    rx, ry = (v - b @ np.linalg.lstsq(b, v, rcond=None)[0] for v in (x, y))
    r = np.corrcoef(rx, ry)[0, 1]
    expected = 2 * stats.norm.sf(abs(np.arctanh(r)) * np.sqrt(500 - 5 - 3))
    assert pair_p_value(FisherZ(), x, y, z) == pytest.approx(expected, rel=1e-6)


def test_fisherz_with_wide_and_redundant_factors():
    state, action, next_state, episode = world()
    action[:, 1] = action[:, 0]
    evidence = FisherZ()(Variables.from_arrays(SPEC, state, action, next_state, episode))
    assert evidence.untestable[3:].all()
    assert evidence.p[0, 1] < 1e-6
    assert evidence.p[1, 0] > 1e-3


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
def test_trees_grown_together_are_the_trees_grown_apart(least):
    rng = np.random.default_rng(1)
    x, owner = rng.normal(size=(300, 7)), np.array([0, 1, 1, 2, 3, 3, 4])
    x[:, 4:] = x[:, 4:] > 0
    y = np.c_[x[:, 0] + x[:, 1] * x[:, 4], x[:, 3] ** 2] + 0.1 * rng.normal(size=(300, 2))
    new = rng.normal(size=(200, 7))
    together = grow(x, y, owner, least)
    np.testing.assert_array_equal(together.predict(new, None, 30), grow(x, y).predict(new, None, 30))
    for i in range(5):
        rest = owner != i
        apart = grow(x[:, rest], y).predict(new[:, rest], None, max(least, 2))
        np.testing.assert_allclose(together.predict(new, i, least), apart, rtol=1e-12)


def test_fcit_finds_a_strong_edge():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=400), rng.normal(size=(400, 2))
    y = z[:, 0] + 0.1 * rng.normal(size=400)
    assert pair_p_value(Fcit(), x, y + 2 * x, z) < 0.01
    assert pair_p_value(Fcit(), x, y, z) > 0.01
