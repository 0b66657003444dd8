"""Constraints: what they say, how plans rank them before rewards, and a policy that stays below a limit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import load_agent, make_method
from because_rl.constraints import Constraint
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import action_statistics, statistics
from because_rl.planning.limits import RISK, action_box, preference, violation
from because_rl.planning.shooting import PlanningModel, ShootingConfig, first_plan, plan
from because_rl.planning.value_iteration import Successors, ValueIteration
from because_rl.rng import stream
from because_rl.transitions import Transitions
from tests.support import lamps

PLANT = FactorSpec(
    pack(("temp", 1, "continuous"), ("alarm", 1, "binary"), ("mode", 3, "categorical"), ("turn", 1, "angle")),
    pack(("heat", 1, "continuous"), ("valve", 1, "binary")),
)


def limited(*texts, spec=PLANT):
    return FactorSpec.from_dict(spec.to_dict() | {"constraints": list(texts)})


# What constraints say ----------------------------------------------------------------------------------
def test_constraints_are_part_of_a_factor_file():
    spec = limited("temp<=80", " temp >= -1e1", "mode != 2", "alarm<=0", "heat<=0.5")
    assert FactorSpec.from_dict(spec.to_dict()) == spec
    assert spec.to_dict()["constraints"] == ["temp<=80", "temp>=-10", "mode!=2", "alarm<=0", "heat<=0.5"]
    rows = [[85, 1, 0, 0, 1, 0], [-11, 0, 0, 1, 0, 0], [80, 0, 1, 0, 0, 0]]
    broken = spec.violated(np.array(rows, float), np.array([[0.2, 1], [0.6, 0], [0.5, 0]]))
    assert broken.astype(int).tolist() == [[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temp<80", "NAME<=NUMBER"),
        ("temp", "NAME<=NUMBER"),
        ("temp<=hot", "limit 'hot'.*finite number"),
        ("temp<=inf", "finite number"),
        ("pressure<=80", "names no factor.*temp, alarm"),
        ("temp==80", "is continuous.*temp<=NUMBER"),
        ("turn<=1", "an angle has none"),
        ("mode<=1", "mode==LEVEL"),
        ("mode==3", "No level of 'mode'"),
        (80, "NAME<=NUMBER"),
    ],
)
def test_an_unusable_constraint_says_what_is_needed(text, message):
    with pytest.raises(BecauseError, match=message):
        limited(text)


def test_a_step_counts_by_its_probability_and_excess():
    """A prediction of 78 with deviation 2 is beyond 80 with probability .16, one of 90 always, by 10 of its units."""
    state = np.zeros((50, PLANT.state_size))
    state[:, 0], state[:, 2] = np.linspace(-2, 2, 50) / np.std(np.linspace(-2, 2, 50)), 1
    action = np.stack([np.linspace(0, 1, 50), np.zeros(50)], 1)
    layout = Layout(PLANT)
    stats = statistics(layout, state, action, state)._replace(change=jnp.ones(PLANT.state_size))

    def value(text, after, votes=(-9.0, -9.0), logits=(9.0, 0.0, 0.0), act=(0.0, 0.0), scale=1.0):
        outputs = []
        for family in layout.families:
            out = {
                "binary": jnp.asarray(votes)[None, :, None],
                "categorical": jnp.asarray([logits]),
            }.get(family.type, jnp.zeros((1, 1)))
            outputs.append(Outputs(jnp.zeros((1, 0)), out, jnp.full((1, 1), jnp.log(2.0))))
        vectors = jnp.full(PLANT.state_size, scale), outputs, jnp.zeros(PLANT.state_size).at[0].set(after)
        return float(violation(Layout(limited(text)), stats, *vectors, jnp.asarray(act)))

    assert value("temp<=80", 78.0) == pytest.approx(0.1587 - RISK, abs=1e-3)
    assert value("temp<=80", 78.0, scale=2.0) == pytest.approx(0.3085 - RISK, abs=1e-3)
    assert value("temp<=80", 76.0) == 0.0
    assert value("temp<=80", 90.0) == pytest.approx((1 - RISK) * 11, rel=1e-3)
    assert value("temp>=80", 90.0) == 0.0
    assert value("alarm<=0", 0.0, votes=(-9.0, 0.0)) == pytest.approx(0.5 - RISK, abs=1e-3)  # the worst of two counts
    assert value("alarm>=1", 0.0, votes=(9.0, 0.0)) == pytest.approx(0.5 - RISK, abs=1e-3)
    assert value("mode!=1", 0.0, logits=(1.0, 1.0, -9.0)) == pytest.approx(0.5 - RISK, abs=1e-3)
    assert value("mode==1", 0.0) == pytest.approx(1 - RISK, abs=1e-3)
    assert value("valve!=1", 0.0, act=(0.0, 1.0)) == pytest.approx(1 - RISK)
    assert value("valve!=1", 0.0) == 0.0
    low, high = action_box(limited("heat<=0.5"), action_statistics(action))
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [0.5, 0.0])


# Plans -------------------------------------------------------------------------------------------------
def test_preference_ranks_violations_before_scores():
    scores, broken = jnp.asarray([9.0, 1.0, 2.0, 1e9]), jnp.asarray([0.2, 0.0, 0.0, 0.1])
    assert jnp.argsort(-preference(scores, broken)).tolist() == [2, 1, 3, 0]


LINE = FactorSpec(pack(("x", 1, "continuous")), pack(("push", 1, "continuous")))
LIMIT = 1.0


def push(p, state, action):
    after = state + 0.3 * action
    return after, after, jnp.zeros(())


RICH = PlanningModel(
    begin=lambda p, state: state,
    advance=push,
    behaviour_policy=lambda p, state, goal, noise: noise[1:],
    terminal_value=lambda p, state, goal: 1e6 * state[0],
    outcome=lambda p, state: (1e6 * state[0], jnp.zeros(())),
)
LIMITED = RICH._replace(violation=lambda p, state, action: jnp.maximum(push(p, state, action)[0][0] - LIMIT, 0.0))


@pytest.mark.parametrize("method", ["best", *(pytest.param(m, marks=pytest.mark.long) for m in ("cem", "mppi"))])
def test_no_reward_buys_a_violation(method):
    config = ShootingConfig(128, 6, pessimism=0.0, proposals="uniform", hold=1, method=method)

    def farthest(model, x):
        program = jax.jit(lambda *rest: plan(config, LINE, model, jnp.zeros(()), *rest))
        state, before, most = jnp.asarray([x]), first_plan(config, LINE), -jnp.inf
        for t in range(8):
            box = -jnp.ones(1), jnp.ones(1)
            before = program(state, jnp.zeros(0), before, jnp.asarray(20), *box, jax.random.key(t))
            state = push(0.0, state, before.actions[0])[0]
            most = jnp.maximum(most, state[0])
        return float(most), float(state[0])

    assert farthest(RICH, 0.5)[0] > LIMIT + 0.5
    most, end = farthest(LIMITED, 0.5)
    assert 0.7 < end <= most <= LIMIT
    assert farthest(LIMITED, 1.6)[1] <= LIMIT + 0.05  # begins beyond it and comes back


def test_value_iteration_keeps_out_of_forbidden_cells():
    """From cell 0 the short way to cell 4 leads over cell 1, which is forbidden, the long one over 2 and 3."""
    spec = FactorSpec(
        pack(("cell", 5, "categorical")),
        pack(("go", 2, "categorical")),
        (GoalFactor("there", 0, 5, "categorical", factor="cell"),),
        codes=((1.0, 0.0), (0.0, 1.0)),
    )
    ways, cells = np.array([[1, 2], [4, 4], [3, 3], [4, 4], [4, 4]]), np.eye(5, dtype=np.float32)

    def act(forbidden, at):
        def model(state, action):
            after = ways[state.argmax(1), action.argmax(1)]
            zeros = np.zeros(len(after))
            return Successors(cells[after], zeros + 1, zeros, np.isin(after, forbidden) * 1.0)

        return ValueIteration(model, spec, 4).act(cells[[at]], cells[[4]], 4)[0]

    assert act([], 0) == 0
    assert act([1], 0) == 1
    assert act([1, 2, 3], 0) == 0  # of two ways that break it, the one that does so less


# A heater: more reward lies beyond the limit -----------------------------------------------------------
STEPS, HOT = 12, 80.0
HEATER = FactorSpec(pack(("temp", 1, "continuous")), pack(("heat", 1, "continuous"))).with_outcomes("yield", False)
TINY = {"hidden": 32, "batch": 64, "rate": 5e-3, "world_steps": 600, "behaviour_steps": 200, "behaviour_hidden": 16}
TINY |= {"value_steps": 200, "members": 2, "planner.population": 32, "planner.horizon": 5}
TINY |= {"pessimism": 0.0, "discount": 0.8, "planner.discount": 0.8}


def heat_up(temp, heat, rng):
    return temp + 8.0 * (heat - 0.4) + 0.5 * rng.normal(size=temp.shape)


def heater_log(episodes=200):
    rng = stream(0, "heater")
    temp, rows = rng.uniform(40, 95, episodes), []
    for _ in range(STEPS):
        heat = rng.random(episodes)
        after = heat_up(temp, heat, rng)
        rows.append((temp, heat, after))
        temp = after
    temp, heat, after = (np.stack(part, 1).reshape(-1, 1) for part in zip(*rows, strict=True))
    reward = after / 100
    state, next_state = np.hstack([temp, np.full_like(temp, reward.mean())]), np.hstack([after, reward])
    spec = limited(f"temp<={HOT:g}", spec=HEATER)
    episode = np.repeat(np.arange(episodes), STEPS)
    return Transitions.from_arrays(state, heat, next_state, episode, factors=spec, reward=reward[:, 0])


def share_too_hot(agent, n=16):
    rng, temp, hot = stream(1, "drive"), np.full(n, 65.0), []
    for _ in range(STEPS):
        temp = heat_up(temp, agent.act(temp[:, None])[:, 0], rng)
        hot.append(temp > HOT)
    return np.mean(hot[4:]), temp.mean()


@pytest.mark.long
def test_a_policy_stays_below_the_limit_where_more_reward_lies(tmp_path):
    agent = make_method("mopo-plain", TINY).fit(heater_log())
    agent.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    assert loaded.factors.constraints == (Constraint("temp", "<=", HOT),)
    free = {name: array for name, array in agent.arrays().items() if "error_scale" not in name}
    bold = agent.method.restore(replace(agent.factors, constraints=()), agent.horizon, agent.seeds, free)
    assert share_too_hot(bold)[0] > 0.8
    share, last = share_too_hot(loaded)
    assert share <= 2 * RISK
    assert last > 70  # it is not afraid of warmth


@pytest.mark.long
def test_numbered_actions_in_discrete_states_keep_a_constraint():
    """The goal is the lamp's second level, which the constraint forbids."""
    data = lamps(60)
    data = replace(data, factors=limited("lamp!=1", spec=data.factors))
    small = {"hidden": 16, "batch": 64, "rate": 1e-2, "world_steps": 400, "members": 2, "pessimism": 0.0}
    agent = make_method("mopo-plain", small).fit(data)
    assert agent.exact
    free = {name: array for name, array in agent.arrays().items() if "error_scale" not in name}
    bold = agent.method.restore(replace(data.factors, constraints=()), agent.horizon, agent.seeds, free)
    off, wanted = np.array([1.0, 0, 1, 0]), np.array([0.0, 1.0])
    lit = [agent.predict(off, one.act(off, wanted)).next_state[1] for one in (bold, agent)]
    assert lit == [1.0, 0.0]
