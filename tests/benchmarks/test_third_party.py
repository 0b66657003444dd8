"""RDDL problems: their true graphs, logs, the scores of graphs and of returns, and the way to d3rlpy."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from because_rl.datasets.load import load
from because_rl.discovery.mask import CausalMask
from because_rl.errors import BecauseError
from because_rl.graph import Graph
from benchmarks.third_party.graphs import compare
from benchmarks.third_party.logs import behaviour, make_factors, play, returns
from benchmarks.third_party.peer import d3rlpy_policy
from benchmarks.third_party.rddl import Problem, load_problem
from benchmarks.third_party.returns import compare_with_log, logged_returns
from benchmarks.third_party.truth import true_graph

BOX = Problem(
    name="box",
    states=("a", "b"),
    actions=("push",),
    boolean_states=False,
    boolean_actions=False,
    low=np.array([-1.0]),
    high=np.array([1.0]),
    horizon=5,
    first=np.zeros(2),
    syntax={"a": frozenset(("a", "b", "push")), "b": frozenset(("a", "b"))},
    equations=(
        ("a'", lambda v, u: v["a"] + 0.0 * v["b"] + v["push"] + u[0]),
        ("b'", lambda v, u: np.where(v["b"] > 100, v["a"], 0.5 * v["b"] + u[1])),
    ),
    reward=lambda v, u: -np.abs(1.0 * v["a'"]),
    ends=(),
    uniforms=2,
)
"""The coefficient of b in a' is 0, and no state reached lets a into b'."""


def test_truth_drops_inputs_that_equations_name_without_effect():
    rng = np.random.default_rng(0)
    log = play(BOX, behaviour(BOX, "random", rng), 50, rng)
    truth = true_graph(BOX, log["observations"][:, :2], rng, 500)
    assert truth.named.sum() == 5
    assert truth.graph.edges == {("a", "a"), ("push", "a"), ("b", "b")}


def test_boolean_states_are_only_changed_to_reached_ones():
    swap = replace(
        BOX,
        boolean_states=True,
        boolean_actions=True,
        equations=(("a'", lambda v, u: v["a"] ^ v["push"]), ("b'", lambda v, u: v["a"] & v["b"])),
        syntax={"a": frozenset(("a", "push")), "b": frozenset(("a", "b"))},
    )
    separate = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    edges = true_graph(swap, separate, np.random.default_rng(0), 200).graph.edges
    assert edges == {("a", "a"), ("push", "a")}  # b' needs a and b at once, which never was
    together = np.vstack([separate, [1.0, 1.0]])
    assert ("a", "b") in true_graph(swap, together, np.random.default_rng(0), 200).graph.edges


def test_logs_follow_the_model_and_load_with_rewards():
    rng = np.random.default_rng(0)
    log = play(BOX, behaviour(BOX, "confounded", rng), 30, rng)
    assert len(log["rewards"]) == 150
    np.testing.assert_allclose(log["rewards"], -np.abs(log["next_observations"][:, 0]))
    assert returns(log).shape == (30,)
    assert np.corrcoef(log["observations"][:, 2], log["actions"][:, 0])[0, 1] > 0.2
    data = load({k: v for k, v in log.items() if k != "episode"}, factors=make_factors(BOX, True))
    assert data.factors.targets == ("a", "b", "cue", "reward")
    np.testing.assert_allclose(data.next_state[:4, :3], data.state[1:5, :3])


def verdicts_on_box(p, detectable):
    """a -> a and b -> b forced, push -> a established, b -> a undetermined, the rest excluded; the truth: a <- a, push,
    and b <- a, b, push. `p` and `detectable` are those of (a -> a, b -> b), whose effect is .5."""
    inputs, targets = ("a", "b", "push", "reward"), ("a", "b", "reward")
    status = np.full((4, 3), "excluded", "U12")
    status[[0, 1], [0, 1]], status[2, 0], status[0, 1], status[:, 2] = "forced", "established", "undetermined", "forced"
    zero = np.zeros((4, 3))
    own_p, effect, least = zero + 1, zero.copy(), zero.copy()
    own_p[[0, 1], [0, 1]], effect[[0, 1], [0, 1]], least[[0, 1], [0, 1]] = p, 0.5, detectable
    settings = {"threshold": 1e-4, "least_effect": 0.02}
    mask = CausalMask(inputs, targets, own_p, zero, effect, least, status, status == "forced", zero, settings=settings)
    return compare(mask, Graph.from_parents(inputs[:3], {"a": ("a", "push"), "b": ("a", "b", "push")}))


def test_score_counts_established_edges_between_fluents_alone():
    row = verdicts_on_box((1e-9, 1e-9), (0.01, 0.01))
    assert row["pairs"] == 6
    assert row["score"]["missed"] == [["a", "b"], ["push", "b"]]
    assert row["score"]["recall"] == pytest.approx(3 / 5)
    assert row["score_without_own_past"]["recall"] == pytest.approx(1 / 3)
    assert row["recall_decided"] == pytest.approx(3 / 4)
    assert row["true_excluded"] == [("push", "b")]


@pytest.mark.parametrize(("p", "detectable"), [((1e-9, 0.3), (0.01, 0.01)), ((1e-9, 1e-9), (0.01, np.inf))])
def test_an_own_past_counts_where_the_rows_show_it(p, detectable):
    row = verdicts_on_box(p, detectable)
    assert row["score"]["missed"] == [["a", "b"], ["b", "b"], ["push", "b"]]
    assert row["score_assumed"]["recall"] == pytest.approx(3 / 5)
    assert row["true_undetermined"] == [("a", "b"), *([("b", "b")] if detectable[1] == np.inf else [])]


def test_returns_of_a_log_are_those_of_its_episodes():
    rng = np.random.default_rng(1)
    log = play(BOX, behaviour(BOX, "random", rng), 12, rng)
    np.testing.assert_allclose(logged_returns(log), returns(log))


def test_a_method_is_better_or_worse_only_beyond_the_noise():
    rng = np.random.default_rng(0)
    logged = rng.normal(size=200)
    learned = rng.normal(size=(3, 20))
    learned += logged.mean() - learned.mean()
    means = {shift: compare_with_log(learned + shift, logged)["verdict"] for shift in (-2.0, 0.0, 2.0)}
    assert means == {-2.0: "worse", 0.0: "equal", 2.0: "better"}


@pytest.mark.skipif(find_spec("d3rlpy") is not None, reason="d3rlpy is installed here, and would train")
def test_a_python_without_d3rlpy_is_refused_with_instructions():
    with (
        pytest.raises(BecauseError, match=r"ended with status 1.*d3rlpy_peer.py"),
        d3rlpy_policy(Path(sys.executable), Path("no log"), 0),
    ):
        pass


@pytest.mark.parametrize("name", ["SysAdmin_MDP_ippc2011", "UAV_Continuous", "Reservoir_Continuous"])
def test_batches_step_as_pyrddlgym_does(name):
    gym = pytest.importorskip("pyRDDLGym", reason="pyRDDLGym is not installed: see benchmarks/third_party/rddl.py")
    manager = pytest.importorskip("rddlrepository.core.manager").RDDLRepoManager()
    problem, rng = load_problem(name), np.random.default_rng(0)
    env = gym.make(name, manager.archiver_dict[name]["instances"][0])
    state, _ = env.reset(seed=0)
    excess, variance, draws = [], [], 1000
    for action in problem.random_actions(40, rng):
        now = np.array([float(state[s]) for s in problem.states])
        rows = np.repeat(now[None], draws, 0), np.repeat(action[None], draws, 0)
        ours, rewards, _ = problem.step(*rows, problem.noise(draws, rng))
        kind = bool if problem.boolean_actions else float
        state, reward, *_ = env.step({a: kind(v) for a, v in zip(problem.actions, action, strict=True)})
        theirs = np.array([float(state[s]) for s in problem.states] + [reward])
        both = np.c_[ours, rewards]
        excess.append(theirs - both.mean(0))
        variance.append(both.var(0))
    z = np.sum(excess, 0) / np.sqrt(np.sum(variance, 0) * (1 + 1 / draws) + 1e-9)
    assert np.abs(z).max() < 4
    noisy = np.asarray(variance) > 1e-9
    spread = (np.asarray(excess)[noisy] ** 2 / np.asarray(variance)[noisy]).mean() if noisy.any() else 1.0
    assert 0.5 < spread < 2
