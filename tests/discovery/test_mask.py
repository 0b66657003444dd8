"""Everything around the independence tests: masks, thresholds, background knowledge, M-bar, exports."""

import importlib.util
import io
import json
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from because_rl.discovery.export import to_dot, to_graphml, to_networkx, to_node_link
from because_rl.discovery.independence.base import Evidence
from because_rl.discovery.independence.oracle import Oracle
from because_rl.discovery.mask import CausalMask, benjamini_yekutieli, decide
from because_rl.discovery.mbar import draw_batches, log_density, reweight
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph, score
from because_rl.rng import child_seed


def spec(states, actions=1):
    return FactorSpec(
        pack(*((f"s{i}", 1, "continuous") for i in range(states))),
        pack(*((f"a{i}", 1, "continuous") for i in range(actions))),
    )


def variables(states=3, actions=1, n=200, episodes=10, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, k)) for k in (states, actions, states)]
    return Variables.from_arrays(spec(states, actions), *arrays, np.arange(n) * episodes // n)


def random_graph(v, rng):
    inputs, targets = [f.name for f in v.inputs], [f.name for f in v.targets]
    edges = {(i, j) for i in inputs for j in targets if rng.random() < 0.4} | {(j, j) for j in targets}
    return Graph(tuple(inputs), tuple(targets), frozenset(edges))


def test_the_oracle_gives_a_hundred_random_graphs_back_exactly():
    rng = np.random.default_rng(0)
    for _ in range(100):
        v = variables(states=int(rng.integers(1, 7)), actions=int(rng.integers(1, 4)), n=20)
        truth = random_graph(v, rng)
        test = Oracle(truth)
        mask = decide(v, test(v), test, 1e-4)
        assert score(mask.graph, truth).shd == 0
        assert score(mask.graph, truth).f1 == 1.0


def evidence(v, p, untestable=None):
    shape = (len(v.inputs), len(v.targets))
    p = np.broadcast_to(p, shape).astype(float)
    return Evidence(p, 1 - p, 1 - p, np.zeros(shape, bool) if untestable is None else untestable, {})


def test_forced_and_forbidden_edges_override_the_evidence():
    v = variables()
    oracle = Oracle(random_graph(v, np.random.default_rng(1)))
    for p in (0.0, 1.0):
        mask = decide(v, evidence(v, p), oracle, 0.01, force=[("a0", "s1")], forbid=[("s2", "s0"), ("s1", "s1")])
        status = {(r["from"], r["to"]): r["status"] for r in mask.rows()}
        assert status["a0", "s1"] == "forced"
        assert status["s2", "s0"] == "forbidden"
        assert status["s1", "s1"] == "forbidden"  # a forbidden self-edge is not forced
        assert status["s0", "s0"] == "forced"
        assert ("s2", "s0") not in mask.graph.edges


def test_untestable_edges_are_kept_and_marked():
    v = variables()
    untestable = np.zeros((4, 3), bool)
    untestable[3, 0] = True
    mask = decide(v, evidence(v, 1.0, untestable), Oracle(random_graph(v, np.random.default_rng(0))), 0.01)
    assert mask.status[3, 0] == "untestable"
    assert mask.matrix[3, 0]
    assert mask.matrix.sum() == 4  # and the three self-edges


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({"force": [("zz", "s0")]}, "'zz' -> 's0' is unknown"),
        ({"forbid": [("s0", "a0")]}, "'s0' -> 'a0' is unknown"),
        ({"force": [("s0", "s1")], "forbid": [("s0", "s1")]}, "both forced and forbidden"),
    ],
)
def test_impossible_edges_are_refused(edges, message):
    v = variables()
    with pytest.raises(BecauseError, match=message):
        decide(v, evidence(v, 1.0), Oracle(random_graph(v, np.random.default_rng(0))), 0.01, **edges)


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1.0, 3.0])
def test_thresholds_are_p_values(threshold):
    v = variables()
    with pytest.raises(BecauseError, match="threshold"):
        decide(v, evidence(v, 1.0), Oracle(random_graph(v, np.random.default_rng(0))), threshold)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_benjamini_yekutieli_by_its_definition(values):
    p = np.array(values)
    m = len(p)
    harmonic = sum(1 / k for k in range(1, m + 1))
    order = np.sort(p)
    for value, adjusted in zip(p, benjamini_yekutieli(p), strict=True):
        later = [order[k] * m * harmonic / (k + 1) for k in range(m) if order[k] >= value]
        assert adjusted == pytest.approx(min(1.0, min(later)))


def test_masks_survive_json():
    v = variables()
    truth = random_graph(v, np.random.default_rng(3))
    mask = decide(v, Oracle(truth)(v), Oracle(truth), 0.01)
    again = CausalMask.from_dict(json.loads(json.dumps(mask.to_dict())))
    assert again.graph == mask.graph
    assert (again.p == mask.p).all()
    assert (again.status == mask.status).all()


def test_exports_hold_the_same_edges():
    v = variables()
    truth = random_graph(v, np.random.default_rng(4))
    mask = decide(v, Oracle(truth)(v), Oracle(truth), 0.01)
    expected = {(i, f"{j}'") for i, j in truth.edges}
    assert set(to_networkx(mask).edges) == expected
    assert nx.is_directed_acyclic_graph(to_networkx(mask))
    for read in (
        nx.read_graphml(io.BytesIO(to_graphml(mask).encode())),
        nx.node_link_graph(json.loads(to_node_link(mask)), edges="edges"),
    ):
        assert set(read.edges) == expected
        assert read.nodes == to_networkx(mask).nodes
        assert read.adj == to_networkx(mask).adj
    dot = to_dot(mask)
    assert dot.startswith("digraph {")
    assert all(f'"{i}" -> "{j}"' in dot for i, j in expected)


def test_exports_keep_unusual_names_and_lonely_nodes():
    quoted = 'say "a[0]"'
    graph = Graph.from_parents(("x", "x'", quoted, r"c:\d"), {"x": ("x", quoted), "x'": ()}, [("x", "x")])
    made = to_networkx(graph)
    assert set(made.edges) == {("x", "x''"), (quoted, "x''")}  # one prime is a factor's own
    assert set(made) == {*graph.inputs, "x''", "x'''"}
    assert made.edges["x", "x''"] == {"rare": True}
    assert nx.node_link_graph(json.loads(to_node_link(graph)), edges="edges").adj == made.adj
    assert nx.read_graphml(io.BytesIO(to_graphml(graph).encode())).adj == made.adj
    dot = to_dot(graph)
    assert r""""say \"a[0]\"" -> "x''" [style=solid];""" in dot
    assert r'"c:\\d" [' in dot
    if importlib.util.find_spec("pydot"):
        (parsed,) = importlib.import_module("pydot").graph_from_dot_data(dot)
        assert len(parsed.get_edge_list()) == 2


def test_variables_refuse_arrays_with_nan_or_different_lengths():
    s, a = np.zeros((10, 2)), np.zeros((10, 1))
    bad = s.copy()
    bad[3, 1] = np.nan
    with pytest.raises(BecauseError, match="next_state row 3, column 1 is nan"):
        Variables.from_arrays(spec(2), s, a, bad)
    with pytest.raises(BecauseError, match="10 states, 9 actions"):
        Variables.from_arrays(spec(2), s, a[:9], s)


# M-bar -----------------------------------------------------------------------------------------------------
def test_batches_are_whole_episodes_without_repeats():
    episode = np.repeat(np.arange(400), 5)
    batches = draw_batches(episode, 4, seed=0)
    for rows in batches:
        assert len(np.unique(rows)) == len(rows) == 200 * 5
        assert (np.bincount(episode[rows])[np.unique(episode[rows])] == 5).all()
    assert not np.array_equal(batches[0], batches[1])
    assert len(draw_batches(np.repeat(np.arange(200), 5), 1, 0)[0]) == 150 * 5
    assert len(draw_batches(np.repeat(np.arange(40), 5), 1, 0)[0]) == 40 * 5


def test_edge_weights_are_the_density_weighted_share_of_batches():
    v = variables(n=4000, episodes=400)
    truth = random_graph(v, np.random.default_rng(5))
    certain, oracle, calls = ("s0", "s0"), Oracle(truth), []

    def find_mask(rows, seed):
        calls.append(len(rows))
        graph = truth if len(calls) % 2 else Graph(truth.inputs, truth.targets, frozenset({certain}))
        return decide(rows, Oracle(graph)(rows), oracle, 0.01, self_edges=False)

    result = reweight(v, find_mask, batches=6, seed=0)
    assert calls[0] == 4000
    assert len(calls) == 7
    assert result.mask.weight[0, 0] == pytest.approx(1.0)
    uncertain = [(i, j) for i, j in truth.edges if (i, j) != certain]
    assert uncertain
    for i, j in uncertain:
        a, b = truth.inputs.index(i), truth.targets.index(j)
        assert result.mask.weight[a, b] == pytest.approx(result.batch_weight[[0, 2, 4, 6]].sum())
        assert result.low[a, b] < result.mask.weight[a, b] < result.high[a, b]
    assert result.mask.weight.min() >= 0
    assert result.mask.weight.max() <= 1 + 1e-12
    assert result.batch_weight.sum() == pytest.approx(1.0)


def test_masks_found_in_threads_are_the_same_and_in_order():
    """The mask of all rows is the last to finish."""
    v = variables(n=4000, episodes=400)
    first, reports = child_seed(0, "all"), []

    def find_mask(rows, seed):
        rng = np.random.default_rng(seed)
        time.sleep(0.05 if seed == first else 0.01 * rng.random())
        return decide(rows, Oracle(random_graph(v, rng))(rows), Oracle(random_graph(v, rng)), 0.01, self_edges=False)

    one, three = (
        reweight(v, find_mask, batches=6, threads=n, progress=lambda done, total: reports.append((done, total)))
        for n in (1, 3)
    )
    np.testing.assert_array_equal(one.mask.weight, three.mask.weight)
    np.testing.assert_array_equal(one.mask.matrix, three.mask.matrix)
    assert reports == [(n, 7) for n in range(1, 8)] * 2


def test_density_prefers_typical_actions():
    rng = np.random.default_rng(0)
    s = rng.normal(size=(2000, 2))
    a = s[:, :1] + 0.1 * rng.normal(size=(2000, 1))
    a[:100] += 1.0
    density = log_density(Variables.from_arrays(spec(2), s, a, s))
    assert density[:100].mean() < density[100:].mean() - 5
