"""Rewards and a goal together, and a goal to hold: what plans do, what values learn, what a log must have."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.datasets.user_dataset import complete_spec, prepare_log
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.value import Returns, logged_returns, rewards_ahead
from because_rl.planning.proposals import no_policy_reason, plans_exactly
from because_rl.planning.shooting import PlanningModel, ShootingConfig, first_plan, plan
from because_rl.transitions import Transitions
from tests.support import arrays

THERE = GoalFactor("there", 0, 1, "continuous", factor="x", relation="at_least")
NEAR = GoalFactor("near", 0, 1, "continuous", factor="x", relation="equal", tolerance=0.2)
LINE = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 1, "continuous")))


def with_goal(goal, spec=LINE):
    return replace(spec, goal=(goal,))


def push(p, state, action):
    after = state + 0.3 * action
    return after, after, jnp.zeros(())


def drive(spec, outcome, goal, steps=9):
    """Where plans take the point, step by step."""
    model = PlanningModel(
        begin=lambda p, state: state,
        advance=push,
        behaviour_policy=lambda p, state, goal, noise: noise[1:],
        terminal_value=lambda p, state, goal: jnp.zeros(()),
        outcome=outcome,
    )
    config = ShootingConfig(128, 6, pessimism=0.0, proposals="uniform", hold=2, discount=0.9)
    program = jax.jit(lambda *rest: plan(config, spec, model, jnp.zeros(()), *rest))
    state, before, path = jnp.zeros(1), first_plan(config, spec), []
    for t in range(steps):
        box = -jnp.ones(1), jnp.ones(1)
        before = program(state, jnp.asarray([goal]), before, jnp.asarray(20), *box, jax.random.key(t))
        state = push(0.0, state, before.actions[0])[0]
        path.append(float(state[0]))
    return np.array(path)


def test_a_goal_to_hold_is_stayed_at():
    """The reward alone drives the point past the goal, and is not worth leaving it."""
    path = drive(with_goal(replace(NEAR, hold=True)), lambda p, state: (0.005 * state[0], jnp.zeros(())), 0.6)
    assert (np.abs(path[3:] - 0.6) <= 0.2).all()


@pytest.mark.long
@pytest.mark.parametrize(("cost", "reaches"), [(0.01, True), (1.0, False)])
def test_rewards_decide_whether_a_goal_is_worth_reaching(cost, reaches):
    path = drive(with_goal(THERE), lambda p, state: (-cost * jnp.abs(state[0]), jnp.zeros(())), 0.7)
    assert (path.max() >= 0.7) == reaches


def small_log(goal, outcomes=True):
    """Two episodes that pass x = 1, the first in its second step and the second in its last."""
    x = np.array([0.0, 0.5, 1.0, 1.5, 0.0, 0.0, 0.5, 1.0])
    rows = np.array([0, 1, 2, 4, 5, 6])
    spec, state, after = with_goal(goal), x[rows, None], x[rows + 1, None]
    reward = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    if outcomes:
        spec = spec.with_outcomes("reward", has_ends=False)
        state, after = np.hstack([state, np.zeros((6, 1))]), np.hstack([after, reward[:, None]])
    episode, goals = np.repeat([0, 1], 3), np.ones((6, 1))
    action = np.zeros((6, 1))
    return Transitions.from_arrays(state, action, after, episode, factors=spec, goal=goals, reward=reward)


def test_values_count_rewards_until_the_goal_and_what_it_pays():
    returns = Returns(*(jnp.asarray(v) for v in (10.0, 0.0, 1.0, 0.0)))
    ahead = rewards_ahead(small_log(THERE), returns, 0.5, steps=3)
    assert ahead["reward_ahead"].tolist() == [1 + (2 + 10) / 2, 12.0, 13.0, 4 + 5 / 2 + 16 / 4, 5 + 16 / 2, 16.0]
    assert (ahead["discount_ahead"] == 0).all()
    held = rewards_ahead(small_log(replace(THERE, hold=True)), returns, 0.5, steps=1)
    assert held["reward_ahead"].tolist() == [1.0, 2 + 5, 3 + 5, 4.0, 5.0, 6 + 5]
    assert (held["discount_ahead"] == 0.5).all()
    alone = small_log(replace(THERE, hold=True), outcomes=False)
    returns = logged_returns(alone, 0.5)
    assert [float(value) for value in returns] == [1.0, 0.0, 1.0, 0.0]
    assert rewards_ahead(alone, returns, 0.5, steps=1)["reward_ahead"].tolist() == [0, 0.5, 0.5, 0, 0, 0.5]


def test_the_objective_decides_what_a_log_becomes():
    rows = arrays(24, 6)
    log = read_log(rows | {"rewards": rows["next_observations"][:, 1], "terminals": np.arange(144) % 12 == 5})
    spec = FactorSpec(pack(("x", 1, "continuous"), ("on", 1, "binary")), pack(("push", 1, "continuous")), (THERE,))
    only, reward, both = (complete_spec(log, spec, objective) for objective in ("", "reward", "both"))
    assert (only.maximises_reward, reward.maximises_reward, both.maximises_reward) == (False, True, True)
    assert (reward.goal, both.goal) == ((), spec.goal)
    assert both.targets == (*spec.targets, "reward", "end")
    held = replace(spec, goal=(replace(THERE, hold=True),))
    assert FactorSpec.from_dict(held.to_dict()) == held
    assert held.maximises_reward
    assert not plans_exactly(held)
    assert no_policy_reason(held) == ""
    own, last = np.arange(24) % 2 == 0, rows["next_observations"][5::6, 0] >= 0.5

    def ends(factors):
        return [bool(e["terminations"][-1]) for e in prepare_log(log, factors, [0.5]).episodes]

    assert ends(only) == last.tolist()
    assert ends(both) == (own | last).tolist()
    assert ends(held) == ends(replace(held, goal=held.goal)) == own.tolist()
    for spec_, objective, message in (
        (replace(spec, goal=()), "both", "there is no goal"),
        (spec, "profit", "goal, reward or both"),
    ):
        with pytest.raises(BecauseError, match=message):
            complete_spec(log, spec_, objective)
    with pytest.raises(BecauseError, match="no reward is logged"):
        complete_spec(read_log(rows), spec, "both")
    with pytest.raises(BecauseError, match="some are to be held"):
        replace(spec, goal=(THERE, GoalFactor("lit", 1, 2, "binary", factor="on", hold=True)))
