import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec, GoalFactor, pack, wrapped_difference
from because_rl.graph import Graph

SPEC = FactorSpec(
    state=pack(("pos", 2, "continuous", "point"), ("mode", 3, "categorical"), ("lamps", 4, "binary")),
    action=pack(("push", 1, "continuous"), ("pick", 2, "categorical", "switch", True)),
    goal=(GoalFactor("there", 0, 2, "continuous", factor="pos", relation="at_least"),),
)


def test_json_round_trip():
    assert SPEC.to_dict()["goal"][0]["of"] == "pos"
    assert FactorSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_files_round_trip(tmp_path, suffix):
    path = tmp_path / f"factors{suffix}"
    path.write_text(json.dumps(SPEC.to_dict()))  # JSON is YAML
    assert FactorSpec.from_file(path) == SPEC


def test_roles_and_units_round_trip_and_are_shown():
    value = {
        "state": [
            {"name": "site", "columns": [0, 3], "type": "categorical", "role": "context"},
            {"name": "turn", "columns": [3, 4], "type": "angle", "unit": "degrees"},
            {"name": "swing", "columns": [4, 5], "type": "angle"},
        ],
        "action": [{"name": "push", "columns": [0, 1], "type": "continuous"}],
        "goal": [
            {"name": "up", "columns": [0, 1], "type": "angle", "unit": "degrees", "of": "turn"}
            | {"relation": "equal", "tolerance": 5.0}
        ],
    }
    spec = FactorSpec.from_dict(value)
    assert spec.to_dict() == value
    assert (spec["site"].role, spec["turn"].role) == ("context", "")
    assert (spec["turn"].period, spec["site"].period) == (360.0, None)
    assert spec["swing"].period == pytest.approx(2 * np.pi)
    assert spec["turn"].is_continuous
    assert not spec["turn"].invalid(np.array([[400.0]])).any()
    assert "context categorical" in str(spec)
    state = np.zeros((2, 5))
    state[:, 3] = 358.0, 180.0
    assert spec.reached(state, np.array([[2.0], [2.0]])).tolist() == [True, False]


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_wrapped_differences_lead_from_one_angle_to_the_other(later, earlier):
    difference = wrapped_difference(later, earlier)
    assert -np.pi - 1e-9 < difference <= np.pi + 1e-9
    assert np.cos(earlier + difference - later) == pytest.approx(1.0)
    assert wrapped_difference(3 * np.pi, 0.0) == pytest.approx(np.pi)


def test_single_columns_may_be_numbers():
    spec = FactorSpec.from_dict(
        {
            "state": [{"name": "x", "columns": 0, "type": "continuous"}],
            "action": [{"name": "a", "columns": [0, 1], "type": "binary"}],
        }
    )
    assert spec["x"].width == 1
    assert spec["x"].kind == "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": []}, "No state factor"),
        ({"state": [{"name": "x", "columns": [1, 2], "type": "continuous"}]}, "Column 0 is missing"),
        (
            {
                "state": [
                    {"name": "x", "columns": [0, 2], "type": "continuous"},
                    {"name": "y", "columns": [1, 3], "type": "continuous"},
                ]
            },
            "belongs twice",
        ),
        ({"state": [{"name": "x", "columns": [0, 1], "type": "ordinal"}]}, "type 'ordinal'"),
        ({"state": [{"name": "x", "columns": 0, "type": "binary", "role": "cause"}]}, "role 'cause'"),
        ({"state": [{"name": "x", "columns": 0, "type": "angle", "unit": "gon"}]}, "unit 'gon'"),
        ({"state": [{"name": "x", "columns": 0, "type": "continuous", "unit": "degrees"}]}, "unit only on angles"),
        (
            {"goal": [{"name": "g", "columns": [0, 2], "type": "continuous", "of": "pos", "role": "context"}]},
            "Goal 'g' has role",
        ),
        (
            {
                "state": [{"name": "x", "columns": 0, "type": "angle"}],
                "goal": [{"name": "g", "columns": 0, "type": "angle", "of": "x", "relation": "at_least"}],
            },
            "relation equal",
        ),
        ({"state": [{"name": "x", "columns": [0, 1], "type": "categorical"}]}, "one column"),
        ({"state": [{"name": "x", "columns": [2, 1], "type": "continuous"}]}, "columns"),
        ({"state": [{"name": "x", "columns": "0-3", "type": "continuous"}]}, "columns '0-3'"),
        ({"state": [{"name": "x", "columns": 0, "type": "continuous", "colour": 3}]}, "colour"),
        ({"state": [{"name": "", "columns": 0, "type": "continuous"}]}, "named ''"),
        ({"action": [{"name": "pos", "columns": 0, "type": "continuous"}]}, "used twice"),
        ({"codes": [[0.0, 1.0]]}, "codes"),
        ({"goal": [{"name": "g", "columns": 0, "type": "continuous", "of": "nothing"}]}, "is about 'nothing'"),
        ({"goal": [{"name": "g", "columns": 0, "type": "continuous", "of": "pos", "relation": "near"}]}, "near"),
    ],
)
def test_ill_formed_specs_are_refused(change, message):
    with pytest.raises(BecauseError, match=message):
        FactorSpec.from_dict(SPEC.to_dict() | change)


def test_a_spec_must_be_a_mapping():
    with pytest.raises(BecauseError, match="list"):
        FactorSpec.from_dict([1, 2])


@given(st.integers(0, 2), st.lists(st.booleans(), min_size=4, max_size=4))
def test_values_of_the_right_type_are_valid(level, lamps):
    assert not SPEC["mode"].invalid(np.eye(3)[[level]]).any()
    assert not SPEC["lamps"].invalid(np.array([lamps], float)).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", [0, 0, 0]), ("mode", [1, 1, 0]), ("mode", [0.5, 0.5, 0]), ("lamps", [0, 0, 2, 0]), ("pos", [0, np.nan])],
)
def test_values_of_the_wrong_type_are_invalid(name, value):
    assert SPEC[name].invalid(np.array([value], float)).all()


def test_optional_factors_may_be_absent_but_not_double():
    pick = SPEC["pick"]
    assert not pick.invalid(np.zeros((1, 2))).any()
    assert pick.invalid(np.ones((1, 2))).all()


def test_reached_in_numpy_and_jax():
    state = np.zeros((3, 9), np.float32)
    state[:, :2] = [[1, 1], [1, 0], [2, 3]]
    goal = np.ones((3, 2), np.float32)
    expected = [True, False, True]
    assert SPEC.reached(state, goal).tolist() == expected
    assert SPEC.reached(jnp.asarray(state), jnp.asarray(goal)).tolist() == expected


def test_discrete_actions_become_columns():
    spec = FactorSpec(
        pack(("x", 1, "continuous")), pack(("a", 2, "binary")), codes=((0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
    )
    assert spec.encode_action(np.array([2, 0])).tolist() == [[1, 1], [0, 1]]


def test_prints_as_a_table():
    lines = str(SPEC).splitlines()
    assert lines[0].split() == ["group", "factor", "columns", "width", "type", "kind"]
    assert len(lines) == 1 + 3 + 2 + 1


def test_graph_round_trip_and_relations():
    graph = Graph.from_parents(("x", "y", "a"), {"x": ("x", "a"), "y": ("x",)}, rare=[("x", "y")])
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
    assert graph.children("x") == ("x", "y")
    assert graph.matrix.tolist() == [[True, True], [False, False], [True, False]]
    with pytest.raises(BecauseError, match="not in the graph"):
        Graph.from_parents(("x",), {"x": ("z",)})


def test_factor_knows_its_slice():
    assert Factor("f", 2, 5, "continuous").slice == slice(2, 5)
