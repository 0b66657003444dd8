"""The residual test: the graph it finds, what it does not depend on, hidden causes, and what data cannot answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from because_rl.datasets.collect import rollout
from because_rl.datasets.recipe import Recipe
from because_rl.discovery.discover import choose_test, discover
from because_rl.discovery.independence import target_test
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import decide
from because_rl.discovery.regression import sufficiency
from because_rl.discovery.regression.engine import Budget
from because_rl.discovery.regression.hidden_cause import Variation
from because_rl.discovery.regression.sufficiency import compare, restore
from because_rl.discovery.variables import Variables
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph, score
from because_rl.transitions import Transitions

QUICK = ResidualTest(budget=Budget(centres=60, learn_rows=600, learn_centres=60, probe_rows=600, probe_centres=60))
SPEC = FactorSpec(
    pack(("a", 1, "continuous"), ("b", 2, "continuous"), ("on", 1, "binary")),
    pack(("push", 1, "continuous"), ("idle", 1, "continuous")),
)
INPUTS = ["a", "b", "on", "push", "idle"]
TRUE = {("a", "a"), ("push", "a"), ("a", "b"), ("b", "b"), ("on", "on"), ("a", "on")}


def world(n=2400, seed=0, episode=20):
    """State, action, next state and episode of: a <- a, push; b <- b, a; on <- on, a."""
    rng = np.random.default_rng(seed)
    a, b, push, idle = rng.normal(size=n), rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=n)
    on = (rng.random(n) < 0.3).astype(float)
    next_a = 0.8 * a + np.tanh(push) + 0.1 * rng.normal(size=n)
    next_b = 0.5 * b + np.column_stack([np.sin(a), 0 * a]) + 0.1 * rng.normal(size=(n, 2))
    next_on = np.maximum(on, (a > 1.0).astype(float))
    state, next_state = np.column_stack([a, b, on]), np.column_stack([next_a, next_b, next_on])
    return state, np.column_stack([push, idle]), next_state, np.repeat(np.arange(n // episode), episode)


def graph_edges(test, data, evidence=None):
    """The edges that the evidence establishes, without forced self-edges."""
    mask = decide(data, evidence or test(data), test, 1e-4, self_edges=False)
    return {(row["from"], row["to"]) for row in mask.rows() if row["status"] == "established"}


def verdict(test, data, evidence, pair):
    mask = decide(data, evidence, test, 1e-4)
    return str(mask.status[mask.inputs.index(pair[0]), mask.targets.index(pair[1])])


@pytest.fixture(scope="module")
def data():
    return Variables.from_arrays(SPEC, *world())


@pytest.fixture(scope="module")
def evidence(data):
    return QUICK(data)


def test_finds_the_graph(data, evidence):
    assert graph_edges(QUICK, data, evidence) == TRUE
    kept = decide(data, evidence, QUICK, 1e-4, self_edges=False).graph.edges
    assert {edge for edge in kept if edge[1] == "a"} == {("a", "a"), ("push", "a")}  # all others are excluded
    assert ((evidence.p >= 0) & (evidence.p <= 1)).all()
    assert ((evidence.effect >= 0) & (evidence.effect <= 1)).all()


def test_pairs_that_are_not_refitted_get_the_same_verdicts(data, evidence):
    hasty = replace(QUICK, thorough=0)
    hasty_evidence = hasty(data)
    assert graph_edges(hasty, data, hasty_evidence) == TRUE
    assert (hasty_evidence.p != evidence.p).any()


def test_causes_of_rare_events_are_undetermined_however_small_their_effect():
    """The light goes on about 60 times in 4,000 rows, more often where a is high."""
    state, action, next_state, episode = world(n=4000, seed=1)
    rng = np.random.default_rng(0)
    state[:, 3] = 0
    next_state[:, 3] = rng.random(4000) < 0.03 / (1 + np.exp(-3 * state[:, 0]))
    moved = int(next_state[:, 3].sum())
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    evidence = QUICK(data)
    a, idle, on = INPUTS.index("a"), INPUTS.index("idle"), 2
    assert evidence.p[a, on] < 1e-4
    assert evidence.effect[a, on] < QUICK.least_effect
    assert verdict(QUICK, data, evidence, ("a", "on")) == "undetermined"
    assert f"moved only {moved} times" in evidence.why["a", "on"]
    assert evidence.p[idle, on] > 1e-4
    assert verdict(QUICK, data, evidence, ("idle", "on")) == "undetermined"  # 60 events cannot exclude an effect
    assert "would have been seen" in evidence.why["idle", "on"]
    assert "episodes like these 200" in evidence.needs["idle", "on"]
    assert verdict(QUICK, data, evidence, ("idle", "a")) == "excluded"


def test_redundant_inputs_are_not_excluded_as_causes_of_an_event():
    """The light goes on in 2% of the rows, whatever the inputs; b repeats a, but for noise in its first column."""
    state, action, next_state, episode = world(n=12_000, seed=1)
    rng = np.random.default_rng(0)
    state[:, 1] = state[:, 0] + 0.05 * rng.normal(size=12_000)
    state[:, 3], next_state[:, 3] = 0, rng.random(12_000) < 0.02
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    evidence = QUICK(data)
    assert verdict(QUICK, data, evidence, ("a", "on")) == "undetermined"
    assert "a follows from the other inputs" in evidence.why["a", "on"]
    mask = decide(data, evidence, QUICK, 1e-4)
    assert ("a", "on") not in mask.graph.edges
    assert {verdict(QUICK, data, evidence, (i, "on")) for i in ("push", "idle")} == {"excluded"}


def rare_event(seed):
    """The light goes on in 3% of the rows, where a is large, or hardly less and push helps; b repeats a roughly."""
    rng = np.random.default_rng(seed)
    a, push, noise = rng.normal(size=(3, 8000))
    state = np.column_stack([a, 0.8 * a + 0.6 * noise, rng.normal(size=8000), np.zeros(8000)])
    next_state = np.column_stack([rng.normal(size=(8000, 3)), a + 0.055 * push > 1.9])
    action = np.column_stack([push, rng.normal(size=8000)])
    return Variables.from_arrays(SPEC, state, action, next_state, np.arange(8000) // 20)


def test_a_cause_of_a_rare_event_needs_more_than_other_causes(monkeypatch):
    data = rare_event(1)
    evidence = QUICK(data)
    mask = decide(data, evidence, QUICK, 1e-4, self_edges=False)
    assert verdict(QUICK, data, evidence, ("a", "on")) == "established"
    push, on = INPUTS.index("push"), 2
    assert mask.status[push, on] == "undetermined"
    assert not mask.kept[push, on]
    assert "on is a rare event" in evidence.why["push", "on"]
    monkeypatch.setattr(target_test, "EVENT_FACTOR", 1)
    usual = QUICK(data)
    assert evidence.p[push, on] == pytest.approx(100 * usual.p[push, on])
    assert usual.p[push, on] < 1e-4
    assert usual.effect[push, on] >= QUICK.least_effect
    np.testing.assert_array_equal(usual.p[:, :2], evidence.p[:, :2])


def test_what_improves_the_prediction_of_a_rare_event_stays_out(monkeypatch):
    monkeypatch.setattr(sufficiency, "LEVEL", 0.9)
    monkeypatch.setattr(ResidualTest, "least_effect", 0.01)
    evidence = QUICK(rare_event(1))
    assert not evidence.sufficiency["on"]["suffices"]
    assert evidence.sufficiency["on"]["reopened"] == []


def test_what_drives_a_cause_is_undetermined_and_others_are_excluded():
    """push moves a, and a moves b: in one step push might move b by too little to show. b and idle move no cause."""
    data = Variables.from_arrays(SPEC, *world(4800))
    evidence = QUICK(data)
    mask = decide(data, evidence, QUICK, 1e-4)
    status = {(row["from"], row["to"]): row["status"] for row in mask.rows()}
    assert status["push", "b"] == "undetermined"
    assert "push drives a, which may drive b" in evidence.why["push", "b"]
    assert ("push", "b") not in mask.graph.edges
    assert {status["b", "a"], status["idle", "b"], status["idle", "a"]} == {"excluded"}


def test_is_deterministic_in_its_seed(data, evidence):
    np.testing.assert_array_equal(QUICK(data, 0).p, evidence.p)
    assert (QUICK(data, 1).p != evidence.p).any()


@pytest.mark.parametrize("seed", [0, 1])
def test_order_of_rows_and_factors_does_not_matter(data, evidence, seed):
    rng = np.random.default_rng(seed)
    rows, i, j = rng.permutation(len(data)), rng.permutation(len(data.inputs)), rng.permutation(3)
    shuffled = Variables(
        tuple(data.inputs[k] for k in i),
        tuple(data.targets[k] for k in j),
        tuple(data.x[k][rows] for k in i),
        tuple(data.y[k][rows] for k in j),
        data.episode[rows],
    )
    result = QUICK(shuffled)
    for name in ("p", "statistic", "effect", "detectable"):
        np.testing.assert_array_equal(getattr(result, name), getattr(evidence, name)[np.ix_(i, j)])


@given(st.floats(-3, 3), st.floats(0.01, 100), st.booleans())
@settings(max_examples=2, deadline=None)
def test_units_of_continuous_columns_do_not_matter(evidence, shift, scale, flip):
    state, action, next_state, episode = world()
    scale = -scale if flip else scale
    for array in (state, next_state):
        array[:, 1:3] = shift + scale * array[:, 1:3]
    action[:, 0] = scale + 2 * action[:, 0]
    result = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    np.testing.assert_allclose(result.p, evidence.p, rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(result.effect, evidence.effect, atol=1e-5)


# Hidden causes --------------------------------------------------------------------------------------------
def test_a_hidden_cause_of_the_episode_makes_no_edges():
    rng = np.random.default_rng(0)
    n, length = 3000, 30
    u = np.repeat(rng.choice((-1.0, 1.0), n // length), length)
    # u shifts both bodies. The level of a is informative about u, so pooled data suggest a -> b.
    spec = FactorSpec(pack(("a", 1, "continuous"), ("b", 1, "continuous")), pack(("push", 1, "continuous")))
    state = u[:, None] + rng.normal(size=(n, 2))
    push = rng.normal(size=(n, 1))
    change = 0.3 * u[:, None] + 0.5 * np.column_stack([push[:, 0], 0 * u]) + 0.1 * rng.normal(size=(n, 2))
    data = Variables.from_arrays(spec, state, push, state + change, np.repeat(np.arange(n // length), length))
    assert ("a", "b") in graph_edges(replace(QUICK, confounder=False), data)
    assert graph_edges(QUICK, data) == {("a", "a"), ("b", "b"), ("push", "a")}


def test_episode_constants_are_left_out_unless_they_are_context():
    """No data distinguish a tag that is informative about u from u; without hidden causes it is a cause."""
    rng = np.random.default_rng(0)
    n, length = 1200, 30
    u = np.repeat(rng.choice((-1.0, 1.0), n // length), length)
    spec = FactorSpec(pack(("a", 1, "continuous"), ("tag", 1, "continuous")), pack(("push", 1, "continuous")))
    a, push, tag = rng.normal(size=n), rng.normal(size=(n, 1)), u + np.repeat(rng.normal(size=n // length), length) / 5
    state = np.column_stack([a, tag])
    after = np.column_stack([a + 0.5 * push[:, 0] + 0.5 * u + 0.1 * rng.normal(size=n), tag])
    data = Variables.from_arrays(spec, state, push, after, np.repeat(np.arange(n // length), length))
    naive = replace(QUICK, confounder=False)
    assert graph_edges(naive, data) == {("a", "a"), ("push", "a"), ("tag", "a"), ("tag", "tag")}
    evidence = QUICK(data)
    mask = decide(data, evidence, QUICK, 1e-4)
    assert ("tag", "a") not in mask.graph.edges
    assert verdict(QUICK, data, evidence, ("tag", "a")) == "undetermined"
    assert "hidden cause" in mask.why["tag", "a"]
    assert "'context'" in mask.needs["tag", "a"]
    assert ("tag", "a") in decide(data, evidence, QUICK, 1e-4, force=[("tag", "a")]).graph.edges
    context = replace(data, inputs=tuple(replace(f, role="context") if f.name == "tag" else f for f in data.inputs))
    assert verdict(QUICK, context, QUICK(context), ("tag", "a")) == "established"


def test_a_reward_causes_nothing_that_could_open_other_pairs():
    spec = FactorSpec(SPEC.state, SPEC.action).with_outcomes("reward", False)
    state, action, after, episode = world(4800)
    reward = (state[:, :1] + action[:, 1:]) + 0.1 * np.random.default_rng(1).normal(size=(len(state), 1))
    rows = np.hstack([state, 0 * reward]), action, np.hstack([after, reward])
    data = Variables.from_arrays(spec, *rows, episode)
    evidence = QUICK(data)
    assert {("a", "reward"), ("idle", "reward")} <= graph_edges(QUICK, data, evidence)
    assert [verdict(QUICK, data, evidence, pair) for pair in (("idle", "a"), ("idle", "b"))] == ["excluded"] * 2


def crash_score(episodes, test):
    """Of the mask discovered from the Crash-medium dataset, against the true edges that are not rare."""
    crash = world_class("crash")
    rolled, factors = rollout(Recipe.parse("crash-medium", episodes), range(episodes)), crash.make_factors(1)
    state, after = (np.concatenate([e["state"][cut] for e in rolled]) for cut in (slice(None, -1), slice(1, None)))
    action = np.concatenate([e["action"] for e in rolled])
    episode = np.repeat(np.arange(episodes), [len(e["action"]) for e in rolled])
    assert choose_test(factors) == "residual"
    data = Transitions.from_arrays(state, action, after, episode, factors=factors)
    mask = discover(data, test=test, batches=0)
    edges = {(row["from"], row["to"]) for row in mask.rows() if row["status"] in ("established", "forced")}
    return score(Graph(mask.inputs, mask.targets, frozenset(edges)), crash.make_true_graph(1), count_rare=False)


def between_bodies(edges):
    return [edge for edge in edges if set(edge) <= {"ego", "car", "ped1", "ped2"}]


@pytest.mark.slow
def test_hidden_slope_makes_no_edges_between_crash_bodies():
    """With 120 episodes only the collision flags, which are rarely set, lose edges."""
    budget = Budget(centres=100, learn_rows=1500, learn_centres=80, probe_rows=800, probe_centres=60)
    result = crash_score(120, ResidualTest(budget=budget))
    assert not between_bodies(result.false), result.false
    assert all(target.startswith("flag") for _, target in result.missed), result.missed
    assert result.f1 >= 0.75


@pytest.mark.long
def test_crash_graph_is_found_despite_the_hidden_slope():
    result = crash_score(400, None)
    assert not between_bodies(result.false), result.false
    assert result.f1 >= 0.85


# What the data cannot answer ------------------------------------------------------------------------------
def test_a_constant_factor_is_undetermined():
    state, action, next_state, episode = world()
    action[:, 1] = 7.0
    evidence = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    assert np.isinf(evidence.detectable[4]).all()
    assert np.isfinite(evidence.detectable[:4]).all()
    assert evidence.why["idle", "a"] == "idle never varies in these data"


def test_a_duplicate_factor_is_undetermined_where_it_matters():
    state, action, next_state, episode = world()
    action[:, 1] = 2 * action[:, 0] + 1
    evidence = QUICK(Variables.from_arrays(SPEC, state, action, next_state, episode))
    assert np.isinf(evidence.detectable[3:, 0]).all()
    assert "follows from the other inputs" in evidence.why["push", "a"]
    assert "idle" in evidence.why["push", "a"]
    assert np.isfinite(evidence.detectable[3:, 1:]).all()  # b and on need neither of them: that is an answer


def test_a_factor_that_never_changes_depends_only_on_itself():
    state, action, next_state, episode = world()
    next_state[:, 0] = state[:, 0]
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    evidence = QUICK(data)
    assert (evidence.p[1:, 0] == 1).all()
    assert graph_edges(QUICK, data, evidence) & {(name, "a") for name in SPEC.inputs} == {("a", "a")}


@pytest.mark.parametrize(("episodes", "expected"), [(20, "undetermined"), (30, "established"), (50, "established")])
def test_a_product_of_inputs_is_established_from_30_episodes_on(episodes, expected):
    """x' = x + .3 a b: neither a nor b has an effect on average."""
    rng = np.random.default_rng(3)
    n = 100 * episodes
    spec = FactorSpec(pack(("x", 1, "continuous")), pack(("a", 1, "continuous"), ("b", 1, "continuous")))
    state, action = rng.normal(size=(n, 1)), rng.normal(size=(n, 2))
    after = state + 0.3 * action.prod(1, keepdims=True) + 0.05 * rng.normal(size=(n, 1))
    data = Variables.from_arrays(spec, state, action, after, np.repeat(np.arange(episodes), 100))
    evidence = QUICK(data)
    assert {verdict(QUICK, data, evidence, (name, "x")) for name in "ab"} == {expected}


def test_autocorrelated_rows_keep_the_level():
    """All columns and the noise are persistent in episodes of 10 rows; x and y are independent given z."""
    rejected = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        walk = np.zeros((60, 10, 3))
        for t in range(10):
            last = walk[:, t - 1] if t else rng.normal(size=(60, 3))
            walk[:, t] = 0.9 * last + np.sqrt(1 - 0.81) * rng.normal(size=(60, 3))
        z, x, y = walk.reshape(-1, 3).T
        spec = FactorSpec(pack(("y", 1, "continuous")), pack(("x", 1, "continuous"), ("z", 1, "continuous")))
        columns = y[:, None] * 0 + rng.normal(size=(600, 1)), np.column_stack([x + z, z]), (y + z)[:, None]
        evidence = QUICK(Variables.from_arrays(spec, *columns, np.repeat(np.arange(60), 10)))
        rejected += evidence.p[1, 0] < 0.05
    assert rejected <= 4  # of 24 true nulls; P(more) is .006 at the level .05


def test_without_a_cause_the_mask_does_not_suffice():
    """A verdict that excludes a cause is corrected where the mask predicts worse than all inputs."""
    rng = np.random.default_rng(0)
    y, full = rng.normal(size=(2, 600, 1))
    starts = np.arange(0, 600, 20)
    predictions = {frozenset({0}): 0 * full, frozenset({0, 2}): 0 * full}

    def check(kept):
        return compare(full + 0.1 * y, predictions.get(frozenset(kept), full), full, starts, Variation())

    result = restore(check, {0}, [2, 1], 0.02)
    assert result.reopened == (1,)  # 2 came first, and is not needed
    assert result.loss == 0
    assert restore(check, {0, 1, 2}, [], 0.02).reopened == ()


def test_unusable_data_are_refused():
    state, action, next_state, episode = world()
    with pytest.raises(BecauseError, match="60 transitions"):
        QUICK(Variables.from_arrays(SPEC, state[:60], action[:60], next_state[:60]))
    with pytest.raises(BecauseError, match="Got 5 episodes"):
        QUICK(Variables.from_arrays(SPEC, state[:100], action[:100], next_state[:100], episode[:100]))
    data = Variables.from_arrays(SPEC, state, action, next_state, episode)
    data.x[0][7] = np.nan
    with pytest.raises(BecauseError, match="'a' has a value that is not finite"):
        QUICK(data)
