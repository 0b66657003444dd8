"""Numbered actions in continuous states: proposals follow the data's law, and plans reach what behaviour does not."""

from dataclasses import fields, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import METHODS, load_agent, make_method
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.prepared_data import prepare
from because_rl.planning.proposals import (
    PlanningConfig,
    behaviour_policy,
    fit_proposals,
    full_mask,
    no_policy_reason,
    plans_exactly,
)
from because_rl.planning.shooting import PlanningModel, ShootingConfig, first_plan, plan
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions

# A point on a line: the numbered actions push it left, leave it, push it right, and hop far to the right ----------
STEPS, FAR = 12, 0.6
PUSH = np.array([-0.1, 0.0, 0.1, 1.0])
CODES = tuple(tuple(row) for row in np.eye(4).tolist())
LINE = FactorSpec(
    pack(("x", 1, "continuous"), ("wind", 1, "continuous")),
    pack(("push", 4, "categorical")),
    (GoalFactor("there", 0, 1, "continuous", factor="x", relation="at_least"),),
    codes=CODES,
)
LAW = {"left": (0.45, 0.1, 0.45, 0.0), "right": (0.6, 0.0, 0.4, 0.0)}
"""Chances of the actions on the left (x < 0) and on the right, where nobody ever waits; nobody ever hops."""
HELD = 0.5
"""Chance that an action is kept, where it may be taken, rather than drawn anew."""


def behave(x, last, rng):
    chances = np.where((x < 0)[:, None], LAW["left"], LAW["right"])
    drawn = (rng.random(len(x))[:, None] > chances.cumsum(1)).sum(1).clip(0, 3)
    keep = (rng.random(len(x)) < HELD) & (last >= 0) & (np.take_along_axis(chances, last[:, None], 1)[:, 0] > 0)
    return np.where(keep, last, drawn)


def step(state, number, rng):
    noise = rng.normal(size=(2, len(state)))
    return np.stack([state[:, 0] + PUSH[number] + 0.005 * noise[0], 0.5 * noise[1]], 1)


def scenes(n, rng):
    return np.stack([rng.uniform(-0.4, 0.4, n), np.zeros(n)], 1)


@cache
def log(episodes=300):
    rng = stream(0, "line of numbered actions")
    state, last, rows = scenes(episodes, rng), np.full(episodes, -1), []
    for _ in range(STEPS):
        last = behave(state[:, 0], last, rng)
        rows.append((state, last, after := step(state, last, rng)))
        state = after
    state, number, after = (np.stack(part, 1).reshape(episodes * STEPS, -1) for part in zip(*rows, strict=True))
    goal = np.repeat(rng.uniform(0.0, FAR, episodes), STEPS)[:, None]
    episode = np.repeat(np.arange(episodes), STEPS)
    return Transitions.from_arrays(state, number[:, 0], after, episode, factors=LINE, goal=goal)


def reaches(act, n=40, seed=1):
    """(n,) whether the point is at `FAR` within the steps."""
    rng = stream(seed, "reach")
    state, reached, last = scenes(n, rng), np.zeros(n, bool), np.full(n, -1)
    for left in range(STEPS, 0, -1):
        last = act(state, last, left, rng)
        state = step(state, last, rng)
        reached |= state[:, 0] >= FAR
    return reached


def plans(agent, n=40):
    controller, goal = agent.start(n), np.full((1, n, 1), FAR)

    def act(state, last, left, rng):
        (numbers,) = controller.act(state[None], goal, left)
        assert np.issubdtype(numbers.dtype, np.integer)
        return numbers

    return act


TINY = {"hidden": 32, "batch": 64, "rate": 5e-3, "world_steps": 600, "energy_steps": 50, "energy_hidden": 8}
TINY |= {"check_steps": 0, "mask": "full", "behaviour_steps": 200, "behaviour_hidden": 16, "value_steps": 100}
TINY |= {"members": 2, "worlds": 2, "layers": 1, "planner.population": 32, "planner.horizon": 8}
"""Settings of a tiny method; each method takes those that its Config has."""


def fit(name):
    known = {field.name for field in fields(METHODS[name].config)}
    return make_method(name, {key: value for key, value in TINY.items() if key.partition(".")[0] in known}).fit(log())


@pytest.fixture(scope="module")
def agent():
    """Of the method that compiles fastest; the proposals are the same for all."""
    return fit("mopo-plain")


def check_success(agent):
    behaviour, planner = reaches(lambda state, last, left, rng: behave(state[:, 0], last, rng)), reaches(plans(agent))
    assert behaviour.mean() < 0.3
    assert planner.mean() > behaviour.mean() + 0.5


def test_planning_reaches_far_more_often_than_behaviour(agent):
    check_success(agent)


@pytest.mark.long
@pytest.mark.parametrize("name", ["because", "optimism", "gnn", "mopo"])
def test_so_does_planning_by_other_methods(name):
    check_success(fit(name))


def test_proposals_follow_the_law_of_the_data():
    data = log()
    c, prepared = (
        PlanningConfig(behaviour_steps=600, behaviour_hidden=16, value_steps=1, batch=128, rate=5e-3),
        prepare(data),
    )
    proposals = fit_proposals(c, prepared, Run([0]), full_mask(data.factors))
    one_seed = jax.tree.map(lambda a: a[0], proposals)
    noise = jax.random.normal(jax.random.key(0), (4000, 1))
    draw = jax.jit(jax.vmap(behaviour_policy(prepared.summary), (None, None, None, 0)))
    for side, x in (("left", -0.3), ("right", 0.3)):
        drawn = np.asarray(draw(one_seed, jnp.asarray([x, 0.5]), jnp.asarray([FAR]), noise))
        assert np.isin(drawn, (0, 1)).all()
        logged = data.action[np.abs(data.state[:, 0] - x) < 0.1].mean(0)  # held actions make it differ from `LAW`
        assert drawn.mean(0) == pytest.approx(logged, abs=0.1)
        never = np.equal(LAW[side], 0)
        assert drawn.mean(0)[never].max() < 0.02
    assert float(one_seed["persistence"].component) == pytest.approx(HELD, abs=0.12)


def test_no_policy_gives_the_reason():
    real, cells = pack(("x", 1, "continuous")), pack(("x", 3, "categorical"))
    far = (GoalFactor("far", 0, 1, "continuous", factor="x"),)
    push, pick = pack(("push", 1, "continuous")), pack(("pick", 2, "categorical"))
    codes = ((1.0, 0.0), (0.0, 1.0))
    assert no_policy_reason(FactorSpec(real, push, far)) == ""
    assert no_policy_reason(FactorSpec(real, pick, far, codes)) == ""
    assert "no goal" in no_policy_reason(FactorSpec(real, push))
    assert no_policy_reason(FactorSpec(real, pick, far)) == ""
    absent = pack(("pick", 2, "categorical", "", True))
    assert "'pick' is optional" in no_policy_reason(FactorSpec(real, absent, far))
    wanted = (GoalFactor("far", 0, 3, "categorical", factor="x"),)
    assert plans_exactly(FactorSpec(cells, pick, wanted, codes))
    assert not plans_exactly(FactorSpec(real, pick, far, codes))


# A known point mass: x' = x + v', v' = v + push / 10, whose pushes have the numbers 0, 1 and 2 -------------------
MASS = FactorSpec(
    pack(("x", 1, "continuous"), ("v", 1, "continuous")),
    pack(("push", 1, "continuous")),
    (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),),
    codes=((0.0,), (1.0,), (-1.0,)),
)


def mass_step(penalty, state, action):
    v = state[1] + 0.1 * action[0]
    after = jnp.stack([state[0] + v, v])
    return after, after, penalty


def coin(penalty, state, goal, noise):
    return jnp.asarray(MASS.codes, jnp.float32)[jnp.where(noise[0] < 0, 1, 2)]


BOX = jnp.zeros(1), jnp.zeros(1)
"""The range of a log's actions, which decides nothing where there are codes."""
POINT = PlanningModel(lambda p, state: state, mass_step, coin, lambda p, state, goal: jnp.zeros(()))


@pytest.mark.parametrize(
    ("method", "proposals"),
    [
        ("best", "behaviour"),
        ("cem", "uniform"),
        ("mppi", "behaviour"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("best", "uniform"), ("cem", "behaviour"))),
        pytest.param("mppi", "uniform", marks=pytest.mark.long),
    ],
)
def test_plans_consist_of_codes_and_reach_the_goal(method, proposals):
    config = ShootingConfig(64, 8, pessimism=0.0, method=method, proposals=proposals, hold=4, habit=0.8)
    program = jax.jit(lambda *rest: plan(config, MASS, POINT, jnp.zeros(()), *rest[:4], *BOX, rest[4]))
    state, goal, before = jnp.zeros(2), jnp.asarray([1.5]), first_plan(config, MASS)
    for t in range(8):
        before = program(state, goal, before, jnp.asarray(8 - t), jax.random.key(t))
        assert np.isin(before.actions, np.asarray(MASS.codes)[1:] if proposals == "behaviour" else MASS.codes).all()
        state = mass_step(0.0, state, before.actions[0])[0]
    assert state[0] >= 1.5
    assert program._cache_size() == 1


def test_uniform_draws_take_every_code_alike_and_hold_it():
    config = ShootingConfig(4, 8, pessimism=0.0, proposals="uniform", hold=4)
    goal, first = jnp.asarray([1e6]), first_plan(config, MASS)
    draw = jax.jit(
        jax.vmap(lambda k: plan(config, MASS, POINT, jnp.zeros(()), jnp.zeros(2), goal, first, jnp.asarray(8), *BOX, k))
    )
    actions = np.asarray(draw(jax.random.split(jax.random.key(0), 600)).actions)[:, :, 0]
    assert (actions[:, :4] == actions[:, :1]).all()
    assert [np.mean(actions[:, ::4] == code) for (code,) in MASS.codes] == pytest.approx([1 / 3] * 3, abs=0.06)


# Acting ----------------------------------------------------------------------------------------------------------
def test_act_takes_a_row_or_many_and_refuses_others(agent):
    state, goal = np.array([[-0.3, 0.0], [0.1, 0.2], [0.3, 0.5]]), np.full(1, FAR)
    numbers = agent.act(state, goal)
    assert numbers.shape == (3,)
    assert np.issubdtype(numbers.dtype, np.integer)
    assert agent.act(state[0], goal).shape == ()
    assert agent.act(state[0].tolist(), [FAR], 3) in range(4)
    for arguments, message in (
        (([0.1, np.nan], goal), "column 1 is nan"),
        (([[0.1, 0.0], [np.inf, 0.0]], goal), "column 0 of row 1 is inf"),
        ((state[:, :1], goal), r"a state of shape \(3, 1\)"),
        ((state[None], goal), r"a state of shape \(1, 3, 2\)"),
        ((state[:0], goal), r"a state of shape \(0, 2\)"),
        ((["left", "right"], goal), "no array of numbers"),
        ((state,), "no goal.*'there'"),
        ((state, [np.nan]), "goal that is not finite"),
    ):
        with pytest.raises(BecauseError, match=message):
            agent.act(*arguments)


def test_a_saved_agent_has_its_proposals_and_without_them_only_predicts(agent, tmp_path):
    agent.save(tmp_path / "agent")
    state, goal = np.array([[-0.3, 0.0], [0.1, 0.2], [0.2, 0.3]]), np.full(1, FAR)
    np.testing.assert_array_equal(load_agent(tmp_path / "agent").act(state, goal), agent.act(state, goal))
    proposals = "['behaviour']", "['value']", "['gate']", "['persistence']"
    arrays = {name: array for name, array in agent.arrays().items() if not name.startswith(proposals)}
    for factors, message in ((LINE, "an earlier version fitted it"), (replace(LINE, goal=()), "factors name no goal")):
        other = agent.method.restore(factors, STEPS, (0,), arrays)
        assert other.predict(state, np.full(3, 2)).next_state[:, 0] == pytest.approx(state[:, 0] + 0.1, abs=0.04)
        with pytest.raises(BecauseError, match=message):
            other.act(state, goal if factors.goal else None)
