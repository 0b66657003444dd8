"""Value iteration in a corridor whose values are known."""

from dataclasses import replace

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.planning import value_iteration
from because_rl.planning.value_iteration import Successors, ValueIteration

# A corridor of six cells: action 0 steps left, action 1 steps right ------------------------------------
CELLS = 6
CORRIDOR = FactorSpec(
    pack(("cell", CELLS, "categorical")),
    pack(("move", 2, "categorical")),
    (GoalFactor("wanted", 0, CELLS, "categorical", factor="cell"),),
    codes=((1.0, 0.0), (0.0, 1.0)),
)
EYE = np.eye(CELLS, dtype=np.float32)


def corridor(state, action):
    cell = state.argmax(1)
    after = np.clip(cell + np.where(action[:, 1] > 0, 1, -1), 0, CELLS - 1)
    return Successors(EYE[after], np.ones(len(cell)), np.zeros(len(cell)))


def value_of(planner, cell, goal, steps):
    return planner.values[steps, planner._enter(EYE[[cell]], EYE[[goal]])[0]]


def test_value_iteration_finds_the_known_values():
    planner = ValueIteration(corridor, CORRIDOR, horizon=4, discount=0.9)
    planner.plan(EYE[:-1], EYE[[5] * 5])
    for cell in range(5):
        distance = 5 - cell
        for steps in range(5):
            expected = 0.9 ** (distance - 1) if distance <= steps else 0.0
            assert value_of(planner, cell, 5, steps) == pytest.approx(expected), (cell, steps)


def test_each_goal_has_its_own_values():
    planner = ValueIteration(corridor, CORRIDOR, horizon=5)
    np.testing.assert_array_equal(planner.act(EYE[[2, 2, 4]], EYE[[0, 5, 3]], 5), [0, 1, 0])


def two_ways(penalty, chance):
    """From cell 0: action 0 leaps to the goal in cell 5, action 1 goes there over cell 1."""

    def model(state, action):
        cell, leap = state.argmax(1), action[:, 0] > 0
        after = np.where(cell == 1, 5, np.where(cell == 0, np.where(leap, 5, 1), cell))
        risky = (cell == 0) & leap
        return Successors(EYE[after], np.where(risky, chance, 1.0), np.where(risky, penalty, 0.0))

    return model


@pytest.mark.parametrize(
    ("penalty", "chance", "pessimism", "choice"),
    [(1.0, 1.0, 0.0, 0), (1.0, 1.0, 0.5, 1), (0.0, 0.3, 0.0, 1), (0.01, 1.0, 0.5, 0)],
)
def test_penalties_and_probabilities_change_the_choice(penalty, chance, pessimism, choice):
    planner = ValueIteration(two_ways(penalty, chance), CORRIDOR, horizon=5, pessimism=pessimism)
    assert planner.act(EYE[[0]], EYE[[5]], 5) == choice


def test_predictions_are_kept_and_unpredicted_states_are_planned_for():
    planner = ValueIteration(two_ways(0.0, 0.3), CORRIDOR, horizon=5)
    assert planner.act(EYE[[0]], EYE[[5]], 5) == 1
    asked = planner.calls
    planner.act(EYE[[1]], EYE[[5]], 4)
    planner.act(EYE[[5]], EYE[[5]], 3)
    assert planner.calls == asked
    # The model leads from 0 only to 1 and 5; now the world stands in 3, which the model did not predict.
    planner.act(EYE[[3]], EYE[[5]], 3)
    assert planner.calls > asked
    # Earlier plans stand.
    assert planner.act(EYE[[0]], EYE[[5]], 5) == 1


def test_a_goal_that_was_not_predicted_may_be_reached():
    def still(state, action):
        return Successors(state, np.ones(len(state)), np.zeros(len(state)))

    planner = ValueIteration(still, CORRIDOR, horizon=4)
    planner.act(EYE[[0]], EYE[[5]], 4)
    assert planner.act(EYE[[5]], EYE[[5]], 3).shape == (1,)


def test_a_state_met_early_is_explored_further():
    planner = ValueIteration(corridor, CORRIDOR, horizon=4)
    planner.act(EYE[[0]], EYE[[5]], 3)  # lists cells 0 to 3, and one step beyond 2
    assert value_of(planner, 2, 5, 3) == 0.0
    assert planner.act(EYE[[2]], EYE[[5]], 3) == 1
    assert value_of(planner, 2, 5, 3) == pytest.approx(0.99**2)


def test_too_many_states_are_refused_after_old_ones_are_dropped(monkeypatch):
    planner = ValueIteration(corridor, CORRIDOR, horizon=5)
    monkeypatch.setattr(value_iteration, "MOST_STATES", 7)
    planner.act(EYE[[2]], EYE[[5]], 5)
    assert planner.act(EYE[[4]], EYE[[0]], 5) == 0  # 12 pairs of state and goal, but 6 once the first are forgotten
    monkeypatch.setattr(value_iteration, "MOST_STATES", 3)
    planner.forget()
    with pytest.raises(BecauseError, match="more than 3 states"):
        planner.act(EYE[[2]], EYE[[5]], 5)


def test_hashes_of_round_numbers_use_all_bits():
    planner = ValueIteration(corridor, CORRIDOR, horizon=1)
    names = planner._names(EYE, np.zeros((CELLS, CELLS), np.float32))
    assert len(np.unique(names)) == CELLS
    assert len(np.unique(names % 2**20)) == CELLS
    np.testing.assert_array_equal(planner._names(-EYE * 0, EYE), planner._names(EYE * 0, EYE))


def test_value_iteration_needs_discrete_actions():
    with pytest.raises(BecauseError, match="discrete actions"):
        ValueIteration(corridor, replace(CORRIDOR, codes=None), horizon=5)
