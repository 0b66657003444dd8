"""Discrete action factors beside continuous ones: the law of proposals, plans with a known answer, a fitted policy."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.registry import make_method
from because_rl.datasets.load import load
from because_rl.datasets.user_dataset import MOST_CODES, add_action_codes
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.behaviour_policy import ActionMixture, component_log_densities, draw_action
from because_rl.models.prepared_data import action_statistics, summarise
from because_rl.planning.proposals import no_policy_reason
from because_rl.planning.shooting import PlanningModel, ShootingConfig, first_plan, plan
from because_rl.rng import stream
from because_rl.transitions import Transitions
from tests.support import because

# A vehicle: power moves it by its gear (backwards, neutral, forwards), half as far with the brake on ----------------
VEHICLE = FactorSpec(
    pack(("x", 1, "continuous")),
    pack(("power", 1, "continuous"), ("gear", 3, "categorical"), ("brake", 1, "binary")),
    (GoalFactor("far", 0, 1, "continuous", factor="x", relation="at_least"),),
)
GEARS = np.array([-1.0, 0.0, 1.0])
BOX = jnp.asarray([0.0, 0, 0, 0, 0]), jnp.asarray([1.0, 1, 1, 1, 1])


def drive(x, action):
    return x + 0.2 * action[..., 0] * (action[..., 1:4] @ GEARS) * (1 - 0.5 * action[..., 4])


def step(p, state, action):
    after = drive(state[0], action)[None]
    return after, after, jnp.zeros(())


def any_action(p, state, goal, noise):
    gear = jax.nn.one_hot(noise[2:5].argmax(), 3)
    return jnp.concatenate([jnp.abs(noise[1:2]), gear, (noise[5:] > 0).astype(jnp.float32)])


@pytest.mark.parametrize(
    ("method", "proposals"),
    [
        ("cem", "uniform"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("mppi", "behaviour"), ("best", "uniform"))),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("cem", "behaviour"), ("mppi", "uniform"))),
    ],
)
def test_plans_have_definite_levels_and_drive_forwards(method, proposals):
    """The goal is as far as full power without the brake takes the vehicle in eight steps, less a fifth."""
    config = ShootingConfig(256, 8, pessimism=0.0, method=method, proposals=proposals, hold=4, rounds=4)
    model = PlanningModel(lambda p, state: state, step, any_action, lambda p, state, goal: 0.3 * state[0])
    program = jax.jit(lambda *rest: plan(config, VEHICLE, model, jnp.zeros(()), *rest[:4], *BOX, rest[4]))
    x, before = 0.0, first_plan(config, VEHICLE)
    for t in range(8):
        before = program(jnp.asarray([x]), jnp.asarray([1.28]), before, jnp.asarray(20), jax.random.key(t))
        actions = np.asarray(before.actions)
        assert (np.sort(actions[:, 1:4]) == [0, 0, 1]).all()
        assert np.isin(actions[:, 4], (0, 1)).all()
        x = float(drive(x, actions[0]))
    assert x >= 1.28
    assert program._cache_size() == 1


def test_levels_are_drawn_by_their_probabilities():
    action = np.array([[0.5, 1, 0, 0, 0], [0.2, 0, 1, 0, 1], [0.9, 0, 0, 1, 0]])
    actions = action_statistics(action, VEHICLE)
    assert actions.coin.tolist() == [0, 2, 2, 2, 1]
    law = np.array([0.2, 0.1, 0.7])
    mean = jnp.asarray([[0.0, *np.log(law), 1.0]], jnp.float32)
    mixture = ActionMixture(jnp.zeros(1), mean, jnp.full((1, 5), -2.0))
    logs = [
        float(component_log_densities(actions, mixture, jnp.asarray([0.5, *gear, 1.0]))[0][0]) for gear in np.eye(3)
    ]
    assert np.exp(np.array(logs) - logs[0]) == pytest.approx(law / law[0], rel=1e-4)

    class Known(SimpleNamespace):
        def __call__(self, *inputs):
            return mixture

    known = Known(levels=((1, 4),))
    draw = jax.jit(jax.vmap(lambda z: draw_action(None, actions, known, None, None, None, z)))
    drawn = np.asarray(draw(jax.random.normal(jax.random.key(0), (4000, 6))))
    assert (drawn[:, 1:4].sum(1) == 1).all()
    assert drawn[:, 1:4].mean(0) == pytest.approx(law, abs=0.03)
    assert drawn[:, 4].mean() == pytest.approx(1 / (1 + np.exp(-1)), abs=0.03)


def test_many_combinations_are_not_numbered():
    spec = FactorSpec(pack(("x", 1, "continuous")), pack(*((name, 11, "categorical") for name in "ab")), VEHICLE.goal)
    rows = np.hstack([np.eye(11)[np.arange(121) // 11], np.eye(11)[np.arange(121) % 11]])

    def codes(count):
        log = SimpleNamespace(has_whole_number_actions=False, joined=lambda name: rows[:count])
        return add_action_codes(log, spec).codes

    assert len(codes(MOST_CODES)) == MOST_CODES
    assert codes(MOST_CODES + 1) is None
    assert no_policy_reason(spec) == ""


def test_a_table_may_have_text_beside_numbers_as_action(tmp_path):
    rng, lines = stream(0, "table"), ["run,x,power,gear"]
    for row in range(240):
        lines.append(f"{row // 10},{rng.normal()},{rng.random()},{rng.choice(['back', 'neutral', 'ahead'])}")
    (tmp_path / "log.csv").write_text("\n".join(lines))
    roles = ("--state", "x", "--action", "power,gear", "--episode", "run")
    because("factors", tmp_path / "log.csv", *roles, "-o", tmp_path / "f.yaml")
    data = load(tmp_path / "log.csv", factors=tmp_path / "f.yaml")
    assert [factor.type for factor in data.factors.action] == ["continuous", "categorical"]
    assert data.factors.codes is None
    assert summarise(data).actions.coin.tolist() == [0, 2, 2, 2]
    assert no_policy_reason(replace(data.factors, goal=VEHICLE.goal)) == ""


STEPS, FAR = 10, 0.4
TINY = {"hidden": 32, "batch": 64, "rate": 5e-3, "world_steps": 600, "behaviour_steps": 200, "behaviour_hidden": 16}
TINY |= {"value_steps": 100, "members": 2, "planner.population": 128, "planner.horizon": 8}


def behave(n, rng):
    return np.hstack([rng.random((n, 1)), np.eye(3)[rng.integers(0, 3, n)], rng.integers(0, 2, (n, 1))])


@pytest.mark.long
def test_a_policy_of_mixed_actions_reaches_what_behaviour_does_not():
    rng, rows = stream(0, "vehicle"), []
    x = rng.uniform(-0.5, 0.8, 200)
    for _ in range(STEPS):
        action = behave(200, rng)
        after = drive(x, action) + 0.005 * rng.normal(size=200)
        rows.append((x[:, None], action, after[:, None]))
        x = after
    state, action, after = (np.stack(part, 1).reshape(200 * STEPS, -1) for part in zip(*rows, strict=True))
    goal = np.repeat(rng.uniform(0.0, 2 * FAR, 200), STEPS)[:, None]
    data = Transitions.from_arrays(state, action, after, np.repeat(np.arange(200), STEPS), factors=VEHICLE, goal=goal)
    agent = make_method("mopo-plain", TINY).fit(data)
    reached = {}
    for name in ("behaviour", "policy"):
        x, reached[name] = np.zeros(16), np.zeros(16, bool)
        for _ in range(STEPS):
            action = behave(16, rng) if name == "behaviour" else agent.act(x[:, None], [FAR])
            x = drive(x, action)
            reached[name] |= x >= FAR
    assert (np.sort(action[:, 1:4]) == [0, 0, 1]).all()
    assert reached["behaviour"].mean() < 0.2
    assert reached["policy"].mean() > 0.8
