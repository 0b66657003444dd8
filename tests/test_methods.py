"""What every method must do, on a small world of discrete and one of continuous actions."""

import json

import numpy as np
import pytest

from because_rl.algorithms.agent import Data
from because_rl.algorithms.registry import METHODS, make_method
from because_rl.algorithms.run import Run
from because_rl.factors import FactorSpec, GoalFactor, pack

TINY = {"hidden": 16, "batch": 32, "world_steps": 60}
CONTINUOUS = {"behaviour_steps": 40, "value_steps": 40, "planner.population": 16, "planner.horizon": 6}
SETTINGS = {
    "because": TINY | {"energy_steps": 30, "mask": "full"},
    "mopo": TINY | {"members": 2},
}


def walk(discrete, episodes=30, length=12, seed=0):
    """A walker on a line of six cells (or a stretch of it), who lights a lamp at the right end; a tag says nothing."""
    rng = np.random.default_rng(seed)
    rows = {name: [] for name in ("state", "action", "next_state", "terminated", "episode", "step")}
    for episode in range(episodes):
        x, tag = float(rng.integers(0, 3)), float(rng.random())
        for step in range(length):
            push = rng.choice([-1.0, 1.0], p=[0.3, 0.7]) if discrete else rng.uniform(-0.6, 1.0)
            after = float(np.clip(x + push, 0, 5))
            lit = after >= 5
            if discrete:
                place, then, act = np.eye(6)[int(x)], np.eye(6)[int(after)], np.eye(2)[int(push > 0)]
            else:
                place, then, act = [x, tag], [after, tag], [push]
            rows["state"].append([*place, 0.0])
            rows["next_state"].append([*then, float(lit)])
            rows["action"].append(act)
            rows["terminated"].append(lit)
            rows["episode"].append(episode)
            rows["step"].append(step)
            x = after
            if lit:
                break
    goal = (GoalFactor("lit", 0, 1, "binary", of="lamp", relation="at_least"),)
    if discrete:
        factors = FactorSpec(
            pack(("cell", 6, "categorical"), ("lamp", 1, "binary")),
            pack(("push", 2, "categorical")),
            goal,
            codes=((1.0, 0.0), (0.0, 1.0)),
        )
    else:
        state = pack(("x", 1, "continuous"), ("tag", 1, "continuous"), ("lamp", 1, "binary"))
        factors = FactorSpec(state, pack(("push", 1, "continuous")), goal)
    n = len(rows["state"])
    arrays = {k: np.asarray(v, np.float32) for k, v in rows.items() if k in ("state", "action", "next_state")}
    return Data(
        factors,
        **arrays,
        goal=np.ones((n, 1), np.float32),
        reward=np.asarray(rows["terminated"], np.float32),
        terminated=np.asarray(rows["terminated"]),
        episode=np.asarray(rows["episode"]),
        step=np.asarray(rows["step"]),
        horizon=length,
    )


def acts(agent, data):
    agent.begin(5, seed=3)
    state, goal = np.stack([data.state[:5]] * 2), np.ones((2, 5, 1), np.float32)
    return np.stack([agent.act(state, goal, left) for left in (12, 11)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "discrete"), [("because", False), ("mopo", True)])
def test_fits_acts_and_comes_back_from_disk(name, discrete, tmp_path):
    data = walk(discrete)
    method = make_method(name, SETTINGS[name] | ({} if discrete else CONTINUOUS))
    run = Run([0, 1], tmp_path, chunk=20)
    agent = method.fit(data, run)
    for stage, history in run.history.items():
        if stage != "value":  # whose target moves
            assert (history["loss"][-1] < history["loss"][0]).all(), stage
    first = acts(agent, data)
    assert first.shape[:3] == (2, 2, 5)
    if discrete:
        assert np.isin(first, (0, 1)).all()
    else:
        assert first.shape[3] == 1
        assert (first >= data.action.min()).all()
        assert (first <= data.action.max()).all()
    np.testing.assert_array_equal(first, acts(agent, data))  # begin forgets
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.npz")}
    again = make_method(name, SETTINGS[name] | ({} if discrete else CONTINUOUS)).fit(
        data, Run([0, 1], tmp_path, chunk=20)
    )
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.npz")} == before  # nothing was trained again
    np.testing.assert_array_equal(first, acts(again, data))


@pytest.mark.slow
def test_because_solves_the_small_world():
    data = walk(discrete=True, episodes=60)
    agent = make_method("because", {**TINY, "world_steps": 400, "energy_steps": 50, "batches": 0}).fit(data, Run([0]))
    agent.begin(1, 0)
    state = np.zeros((1, 1, 7), np.float32)
    state[0, 0, 0] = 1
    place = 0
    for left in range(12, 0, -1):
        place = int(np.clip(place + (1 if agent.act(state, np.ones((1, 1, 1)), left)[0, 0] else -1), 0, 5))
        state = np.concatenate([np.eye(6)[place], [0.0]]).reshape(1, 1, 7).astype(np.float32)
        if place == 5:
            break
    assert place == 5
    assert left >= 7  # five steps straight to the lamp


def test_every_name_makes_a_method_whose_config_is_plain_data():
    for name, entry in METHODS.items():
        method = make_method(name, world="unlock")
        assert isinstance(method.config, entry.config)
        json.dumps(method.config, default=vars)
    assert make_method("linear").config.mask == "full"
    assert make_method("full").config.batches == 0
    assert make_method("optimism").config.planner.proposals == "uniform"
    assert make_method("optimism").config.pessimism == 0
