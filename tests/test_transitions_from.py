"""Transitions from a user's arrays and tables."""

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.transitions import Transitions

SPEC = FactorSpec(
    pack(("x", 1, "continuous"), ("on", 1, "binary")),
    pack(("push", 2, "categorical")),
    (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),),
    codes=((1.0, 0.0), (0.0, 1.0)),
)


def test_rows_of_an_episode_become_adjacent_and_ends_are_found():
    state = np.array([[0, 0], [5, 0], [1, 0], [6, 1.0]])
    data = Transitions.from_arrays(state, [0, 1, 1, 0], state + [1, 0], ["b", "a", "b", "a"], factors=SPEC, goal=[7])
    assert data.state[:, 0].tolist() == [0, 1, 5, 6]
    assert data.episode.tolist() == [0, 0, 1, 1]
    assert data.step.tolist() == [0, 1, 0, 1]
    assert data.action.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    assert data.terminated.tolist() == [False, False, False, True]
    assert data.reward.tolist() == [0, 0, 0, 1]
    assert data.truncated.tolist() == [False, True, False, False]
    assert data.horizon == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": np.zeros((4, 3))}, r"state has shape \(4, 3\)"),
        ({"action": [0, 1, 2, 0]}, "not one of the 2"),
        ({"next_state": np.full((4, 2), np.nan)}, "next state is not finite in row 0"),
        ({"goal": [1, 2]}, r"goal has shape \(4, 2\)"),
        ({"state": [["a", "b"]] * 4}, "cannot be read as numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    arrays = {"state": np.zeros((4, 2)), "action": [0, 1, 1, 0], "next_state": np.zeros((4, 2)), "goal": [1]} | change
    with pytest.raises(BecauseError, match=message):
        Transitions.from_arrays(episode=[0, 0, 1, 1], factors=SPEC, **arrays)


def test_a_table_with_a_row_per_time_step():
    table = {
        "run": np.array(["b", "a", "b", "a", "b"]),
        "x": np.array([0.0, 5, 1, 6, 2]),
        "lamp": np.array([0, 1, 1, 0, 1]),
        "push": np.array([0.5, -1, 0.25, 0, 9]),
    }
    data = Transitions.from_frame(table, state=["x", "lamp"], action=["push"], episode="run")
    assert [(f.name, f.type) for f in data.factors.state] == [("x", "continuous"), ("lamp", "binary")]
    assert data.state.tolist() == [[0, 0], [1, 1], [5, 1]]
    assert data.next_state.tolist() == [[1, 1], [2, 1], [6, 0]]
    assert data.action[:, 0].tolist() == [0.5, 0.25, -1]
    assert data.episode.tolist() == [0, 0, 1]
