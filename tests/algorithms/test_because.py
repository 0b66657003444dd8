"""BECAUSE on a world that one can see through, and all methods by their names."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from because_rl.algorithms.because import Because, BecauseConfig, estimate_mask, feared_targets
from because_rl.algorithms.registry import METHODS, make_method
from because_rl.discovery.discover import discover
from because_rl.discovery.mask import CausalMask
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.bilinear import make_gates
from because_rl.models.prepared_data import summarise
from because_rl.planning.proposals import full_mask
from because_rl.rng import stream
from because_rl.training.run import Run
from because_rl.transitions import Transitions
from tests.algorithms.builders import untrained

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


@pytest.mark.long
def test_because_solves_the_small_world():
    data = walk(episodes=60)
    agent = make_method(
        "because", {**TINY, "world_steps": 400, "energy_steps": 50, "check_steps": 0, "batches": 0}
    ).fit(data, Run([0]))
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


CELLS, LENGTH = 8, 12


def corridor(episodes=120, elsewhere=2, seed=0):
    """A walker goes to a switch and presses, which lights a lamp; `elsewhere` times it pressed in another place."""
    rng, rows = stream(seed, "corridor"), []
    for episode in range(episodes):
        walker, switch = rng.choice(CELLS, 2, replace=False)
        for step in range(LENGTH):
            if (walker == switch and rng.random() < 0.7) or (episode < elsewhere and step == 1):
                action = 2
            else:
                action = int(switch > walker) if rng.random() < 0.85 else int(rng.integers(2))
            lit = action == 2 and walker == switch
            after = walk_on(walker, action)
            rows.append((walker, switch, action, after, lit, episode, step))
            walker = after
            if lit:
                break
    walker, switch, action, after, lit, episode, step = map(np.array, zip(*rows, strict=True))
    factors = FactorSpec(
        pack(("walker", CELLS, "categorical", "cell"), ("switch", CELLS, "categorical", "cell"), ("lamp", 1, "binary")),
        pack(("move", 2, "categorical"), ("press", 1, "binary")),
        (GoalFactor("lit", 0, 1, "binary", factor="lamp", relation="at_least"),),
        codes=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    )
    cells, n = np.eye(CELLS), len(rows)
    arrays = (
        np.hstack([cells[walker], cells[switch], np.zeros((n, 1))]),
        np.array(factors.codes)[action],
        np.hstack([cells[after], cells[switch], lit[:, None]]),
        np.ones((n, 1)),
        lit,
    )
    return Transitions(factors, *(np.asarray(a, np.float32) for a in arrays), lit, episode, step, LENGTH)


def walk_on(walker, action):
    return int(np.clip(walker + (-1, 1, 0)[action], 0, CELLS - 1))


def share_lit(agent, cases=40):
    rng, lit = stream(1, "cases"), 0
    for _ in range(cases):
        walker, switch = rng.choice(CELLS, 2, replace=False)
        for left in range(LENGTH, 0, -1):
            state = np.concatenate([np.eye(CELLS)[walker], np.eye(CELLS)[switch], [0.0]])
            action = int(agent.act(state, np.ones(1), left))
            if action == 2 and walker == switch:
                lit += 1
                break
            walker = walk_on(walker, action)
    return lit / cases


@pytest.fixture(scope="module")
def corridor_mask():
    data = corridor()
    return data, discover(data, batches=0)


def verdicts(mask, target):
    return {row["from"]: row["status"] for row in mask.rows() if row["to"] == target}


@pytest.mark.slow
def test_where_an_action_was_taken_in_one_context_the_context_is_undetermined(corridor_mask):
    _, mask = corridor_mask
    status = verdicts(mask, "lamp")
    assert status["press"] == "established"
    assert status["walker"] == status["switch"] == "undetermined"


@pytest.mark.long
def test_planner_goes_to_the_only_context_in_which_an_action_was_logged(corridor_mask):
    """As long as undetermined edges were left out, the model believed that a press works anywhere."""
    data, mask = corridor_mask
    small = {"hidden": 16, "batch": 64, "world_steps": 400, "energy_steps": 100, "check_steps": 0, "rate": 3e-3}
    assert share_lit(make_method("because", small).fit(data, 1, mask=mask)) == 1
    old_rule = small | {"undetermined": "closed", "feared": "goal"}
    assert share_lit(make_method("because", old_rule).fit(data, 1, mask=mask)) < 0.6


def mask_with(data, **statuses):
    """A mask of the corridor that keeps own pasts, with the given status of 'source_target' pairs."""
    inputs, targets = data.factors.inputs, data.factors.targets
    rows = [
        {"from": i, "to": j, "p": 0.5, "effect": 0.0, "statistic": 0.0, "detectable": None}
        | {"status": (status := "forced" if i == j else statuses.get(f"{i}_{j}", "excluded"))}
        | {"kept": status == "forced", "weight": float(status == "forced")}
        for j in targets
        for i in inputs
    ]
    return CausalMask.from_dict({"inputs": inputs, "targets": targets, "edges": rows})


def test_undetermined_edges_are_possible_and_seen_as_the_settings_say():
    data = corridor(episodes=10)
    mask = mask_with(data, press_lamp="undetermined", move_lamp="excluded")
    place = data.factors.inputs.index("press"), data.factors.targets.index("lamp")
    for setting, expected in (("kept", 0), ("open", 1), ("closed", 0)):
        edges = estimate_mask(BecauseConfig(undetermined=setting), data, Run([0]), mask)
        assert (edges.mask[place], edges.possible[place]) == (expected, 1)
        assert edges.possible.sum() == 1 + len(data.factors.targets)
    edges = estimate_mask(BecauseConfig(energy_inputs="mask"), data, Run([0]), mask)
    np.testing.assert_array_equal(edges.possible, edges.mask)


def test_energies_do_not_see_undetermined_inputs_that_no_plan_can_change():
    data = corridor(episodes=10)  # the switch stays where it is throughout an episode
    edges = estimate_mask(BecauseConfig(), data, Run([0]), mask_with(data, switch_lamp="undetermined"))
    lamp = data.factors.targets.index("lamp")
    assert edges.possible[data.factors.inputs.index("switch"), lamp] == 0
    np.testing.assert_array_equal(edges.possible, edges.mask)


def test_an_undetermined_input_can_be_as_invisible_as_an_excluded_one():
    data = corridor(episodes=10)
    place = data.factors.inputs.index("press"), data.factors.targets.index("lamp")
    both = [
        estimate_mask(BecauseConfig(undetermined="excluded"), data, Run([0]), mask_with(data, press_lamp=status))
        for status in ("undetermined", "excluded")
    ]
    assert (both[0].mask[place], both[0].possible[place], both[0].undetermined.any()) == (0, 0, False)
    for first, second in zip(*both, strict=True):
        np.testing.assert_array_equal(first, second)


def test_targets_on_the_way_to_the_goal_are_feared():
    data = corridor(episodes=10)
    layout = summarise(data).layout
    edges = estimate_mask(BecauseConfig(), data, Run([0]), mask_with(data, walker_lamp="undetermined")).possible
    assert feared_targets(BecauseConfig(), layout, edges).tolist() == [1, 0, 1]
    assert feared_targets(BecauseConfig(feared="goal"), layout, edges).tolist() == [0, 0, 1]


def test_penalty_is_the_mean_over_the_feared_targets():
    data = corridor(episodes=10)
    summary, method = summarise(data), Because(BecauseConfig(hidden=16, energy_hidden=16))
    gates = make_gates(summary.layout, full_mask(data.factors))
    p = untrained(lambda key: method.untrained(summary, key)) | {"gates": gates, "possible": gates}
    state, action = jnp.asarray(data.state[0]), jnp.asarray(data.action[0])

    @jax.jit
    def predict(feared):
        return method.predict(summary.layout, summary.stats, p | {"feared": feared}, state, action)[1]

    def penalty(feared):
        return float(predict(jnp.array(feared, float)))

    each = [penalty(row) for row in np.eye(3)]
    assert len(set(each)) == 3
    assert penalty([1.0, 1.0, 0.0]) == pytest.approx(np.mean(each[:2]))
    assert penalty([0.0, 1.0, 1.0]) == pytest.approx(np.mean(each[1:]))
    assert penalty([0.0, 0.0, 0.0]) == 0
