"""BECAUSE on a world that one can see through, and all methods by their names."""

import json

import numpy as np
import pytest

from because_rl.algorithms.registry import METHODS, make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.training.run import Run
from because_rl.transitions import Transitions

TINY = {"hidden": 16, "batch": 32, "world_steps": 60}


def walk(episodes=30, length=12, seed=0):
    """A walker on a line of six cells, who lights a lamp at the right end."""
    rng = np.random.default_rng(seed)
    rows = {name: [] for name in ("state", "action", "next_state", "terminated", "episode", "step")}
    for episode in range(episodes):
        x = int(rng.integers(0, 3))
        for step in range(length):
            right = int(rng.random() < 0.7)
            after = int(np.clip(x + (1 if right else -1), 0, 5))
            lit = after == 5
            rows["state"].append([*np.eye(6)[x], 0.0])
            rows["next_state"].append([*np.eye(6)[after], float(lit)])
            rows["action"].append(np.eye(2)[right])
            rows["terminated"].append(lit)
            rows["episode"].append(episode)
            rows["step"].append(step)
            x = after
            if lit:
                break
    goal = (GoalFactor("lit", 0, 1, "binary", factor="lamp", relation="at_least"),)
    factors = FactorSpec(
        pack(("cell", 6, "categorical"), ("lamp", 1, "binary")),
        pack(("push", 2, "categorical")),
        goal,
        codes=((1.0, 0.0), (0.0, 1.0)),
    )
    n = len(rows["state"])
    arrays = {k: np.asarray(v, np.float32) for k, v in rows.items() if k in ("state", "action", "next_state")}
    return Transitions(
        factors,
        **arrays,
        goal=np.ones((n, 1), np.float32),
        reward=np.asarray(rows["terminated"], np.float32),
        terminated=np.asarray(rows["terminated"]),
        episode=np.asarray(rows["episode"]),
        step=np.asarray(rows["step"]),
        horizon=length,
    )


@pytest.mark.slow
def test_because_solves_the_small_world():
    data = walk(episodes=60)
    agent = make_method("because", {**TINY, "world_steps": 400, "energy_steps": 50, "batches": 0}).fit(data, Run([0]))
    state = np.zeros(7, np.float32)
    state[0] = 1
    place = 0
    for left in range(12, 0, -1):
        place = int(np.clip(place + (1 if agent.act(state, np.ones(1), left) else -1), 0, 5))
        state = np.concatenate([np.eye(6)[place], [0.0]])
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
