"""Everything around the independence tests: masks, thresholds, background knowledge, M-bar, exports."""

import importlib.util
import io
import json
import time
from dataclasses import replace

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


def evidence(v, p, detectable=0.0):
    shape = (len(v.inputs), len(v.targets))
    p = np.broadcast_to(p, shape).astype(float)
    return Evidence(p, 1 - p, 1 - p, np.broadcast_to(detectable, shape).astype(float), {})


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


def test_edges_that_the_data_cannot_show_are_kept_and_marked():
    v = variables()
    detectable = np.zeros((4, 3))
    detectable[3, 0] = np.inf
    for p in (0.0, 1.0):
        mask = decide(v, evidence(v, p, detectable), Oracle(random_graph(v, np.random.default_rng(0))), 0.01)
        assert mask.status[3, 0] == "undetermined"
        assert mask.matrix[3, 0]
        assert mask.status[3, 1] == ("excluded" if p else "established")
        assert mask.matrix.sum() == (4 if p else 12)  # with the three self-edges
    assert mask.rows()[3]["detectable"] is None
    assert mask.rows()[2]["detectable"] == 0


class Gated(Oracle):
    """A test with a least effect that counts."""

    least_effect = 0.02
    excluding_effect = 0.03


@pytest.mark.parametrize(
    ("p", "effect", "detectable", "verdict"),
    [
        (1e-9, 0.5, 0.01, "established"),
        (1e-9, 0.02, 0.5, "established"),  # however little power: it was shown
        (1e-9, 0.5, np.inf, "undetermined"),
        (1e-9, 0.001, 0.01, "excluded"),  # significant, but smaller than what counts
        (1e-9, 0.001, 0.1, "undetermined"),
        (0.7, 0.001, 0.01, "excluded"),
        (0.7, 0.001, 0.02, "excluded"),
        (0.7, 0.001, 0.03, "excluded"),
        (0.7, 0.001, 0.04, "undetermined"),
        (0.7, 0.001, np.inf, "undetermined"),
        (0.7, 0.5, 0.01, "undetermined"),  # a large effect is never excluded, however large its p
        (1.0, 0.02, 0.0, "undetermined"),
    ],
)
def test_verdicts_follow_from_p_effect_and_power(p, effect, detectable, verdict):
    v = variables(states=1)
    shape = np.zeros((2, 1))
    given = Evidence(shape + p, shape, shape + effect, shape + detectable, {("a0", "s0"): "b"}, {("a0", "s0"): "c"})
    mask = decide(v, given, Gated(random_graph(v, np.random.default_rng(0))), 1e-4)
    row = mask.rows()[1]
    assert row["status"] == verdict
    assert row["kept"] == mask.matrix[1, 0] == (verdict == "established" or np.isinf(detectable))
    assert row["weight"] == float(row["kept"])
    assert (row["why"], row["needs"]) == ("b", "c")


def test_inputs_that_repeat_a_hidden_cause_are_not_kept_unless_forced():
    v = variables()
    oracle = Gated(random_graph(v, np.random.default_rng(0)))
    p, effect = np.full((4, 3), 1e-9), np.full((4, 3), 0.5)
    echo = np.zeros((4, 3), bool)
    echo[3] = True
    given = Evidence(p, p, effect, np.zeros((4, 3)), {}, echo=echo)
    mask = decide(v, given, oracle, 1e-4)
    assert list(mask.status[3]) == ["undetermined"] * 3
    assert not mask.matrix[3].any()
    assert mask.matrix[:3].all()
    assert all(row["from"] != "a0" for row in mask.edges)
    forced = decide(v, given, oracle, 1e-4, force=[("a0", "s2")])
    assert list(forced.matrix[3]) == [False, False, True]
    assert forced.status[3, 2] == "forced"


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
    mixed = replace(mask, detectable=np.where(mask.matrix, np.inf, 0.25), needs={("a0", "s0"): "rows"})
    again = CausalMask.from_dict(json.loads(json.dumps(mixed.to_dict(), allow_nan=False)))
    assert (again.detectable == mixed.detectable).all()
    assert again.needs == mixed.needs


def test_masks_of_older_versions_are_read():
    """Their rows have other words, and neither `kept` nor `detectable`."""
    rows = [
        {"from": source, "to": "x", "status": status, "p": 0.5, "effect": 0.1, "weight": 1.0, "statistic": 2.0} | more
        for source, status, more in (
            ("x", "forced", {}),
            ("a", "edge", {}),
            ("b", "no edge", {}),
            ("c", "untestable", {"why": "c never varies in these data"}),
            ("d", "no edge", {"why": "d never changes in an episode"}),
            ("e", "forbidden", {}),
        )
    ]
    mask = CausalMask.from_dict({"inputs": list("xabcde"), "targets": ["x"], "edges": rows, "settings": {}})
    expected = ["forced", "established", "excluded", "undetermined", "undetermined", "forbidden"]
    assert list(mask.status[:, 0]) == expected
    assert mask.graph.parents("x") == ("x", "a", "c")
    assert mask.why["d", "x"] == "d never changes in an episode"
    assert {row["detectable"] for row in mask.rows()} == {None}
    assert [row["status"] for row in CausalMask.from_dict(json.loads(json.dumps(mask.to_dict()))).rows()] == expected


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


def test_exports_say_what_the_data_could_show():
    v = variables()
    truth = Graph.from_parents(("s0", "s1", "s2", "a0"), {"s0": ("s0", "a0"), "s1": ("s1", "a0"), "s2": ("s2",)})
    detectable = np.full((4, 3), 0.25)
    detectable[3, 1] = np.inf
    mask = replace(decide(v, Oracle(truth)(v), Oracle(truth), 0.01), detectable=detectable)
    status = mask.status.copy()
    status[3, 1] = "undetermined"
    mask = replace(mask, status=status)
    for read in (
        to_networkx(mask),
        nx.read_graphml(io.BytesIO(to_graphml(mask).encode())),
        nx.node_link_graph(json.loads(to_node_link(mask)), edges="edges"),
    ):
        assert read.edges["a0", "s0'"]["detectable"] == 0.25
        assert "detectable" not in read.edges["a0", "s1'"]
        assert read.edges["a0", "s1'"]["status"] == "undetermined"
    lines = {line.split(" [")[0].strip(): line for line in to_dot(mask).splitlines()}
    assert "style=dashed" in lines['"a0" -> "s1\'"']
    assert "style=solid" in lines['"a0" -> "s0\'"']
    assert "established, p = 0" in lines['"a0" -> "s0\'"']


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
