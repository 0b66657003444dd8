"""Crash's true graph, found by swapping one factor at a time in highway-env."""

import numpy as np
import pytest

from because_rl.envs.crash.batch import CrashBatch, crash_step
from because_rl.envs.crash.behaviour import CrashBehaviour
from because_rl.envs.crash.env import Crash

GRAPH = Crash.make_true_graph(1)
RARE = {(f"push_{body}", f"flag{i}") for i in (1, 2) for body in ("ego", f"ped{i}")}


def transitions(level, split, episodes, spurious=1):
    """States, actions and slopes that a behaviour visits."""
    batch, behaviour, seeds = CrashBatch(split, spurious), CrashBehaviour(level), range(7000, 7000 + episodes)
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    slope = batch.hidden()["slope"]
    states, actions, slopes, origin = [], [], [], []
    while not batch.done:
        on = ~(batch.terminated | batch.truncated)
        action = behaviour.act(observation)
        states.append(batch.exact_state()[on])
        actions.append(action[on].astype(float))
        slopes.append(slope[on])
        origin.append(np.array(seeds)[on])
        observation = batch.step(action).observation
    return tuple(np.concatenate(x) for x in (states, actions, slopes, origin))


def put(env, state):
    for factor in env.factors.state:
        env.intervene(factor.name, state[factor.slice])


def swap_in_highway_env(split, count, seed, spurious=1):
    """How often each (input, next factor) pair moved when the input took another transition's value."""
    rng = np.random.default_rng(seed)
    pools = [transitions(level, split, 100, spurious) for level in ("random", "medium", "expert")]
    states, actions, _, origin = (np.concatenate(x) for x in zip(*pools, strict=True))
    env = Crash(split, spurious)
    moved = {(i, j): 0 for i in env.factors.inputs for j in env.factors.targets}
    # Half of the transitions have a pedestrian on the road, or flags would hardly ever move.
    on_road = np.flatnonzero((np.abs(states[:, [11, 16]]) < 3).any(1))
    for k in range(count):
        row = rng.choice(on_road) if k % 2 else rng.integers(len(states))
        other = rng.choice(on_road) if k % 4 < 2 else rng.integers(len(states))
        env.reset(seed=int(origin[row]))  # the hidden u_c of this episode, held fixed through all swaps
        put(env, states[row])
        moment = env.snapshot()
        env._advance(actions[row])
        calm = env.exact_state()
        for name in env.factors.inputs:
            factor, action = env.factors[name], actions[row].copy()
            env.restore(moment)
            if factor in env.factors.state:
                env.intervene(name, states[other][factor.slice])
            else:
                action[factor.slice] = actions[other][factor.slice]
            env._advance(action)
            changed = env.exact_state() != calm
            for target in env.factors.state:
                moved[name, target.name] += bool(changed[target.slice].any())
    return moved


def check(moved, graph, rare):
    edges = {edge for edge, times in moved.items() if times}
    assert edges <= graph.edges, sorted(edges - graph.edges)
    missing = graph.edges - rare - edges
    assert not missing, sorted(missing)


def test_graph_has_the_eighteen_edges():
    assert len(GRAPH.edges) == 18
    assert GRAPH.rare == RARE
    assert GRAPH.matrix.shape == (10, 6)
    assert GRAPH.parents("flag2") == ("ego", "ped2", "flag2", "push_ego", "push_ped2")
    assert len(Crash.make_true_graph(4).edges) == 21


def test_swaps_find_no_edge_outside_the_graph():
    moved = swap_in_highway_env("I", 60, 0, spurious=2)
    edges = {edge for edge, times in moved.items() if times}
    graph = Crash.make_true_graph(2)
    assert edges <= graph.edges
    bodies = {(i, j) for i, j in graph.edges if not j.startswith("flag")}
    assert bodies <= edges


@pytest.mark.slow
@pytest.mark.parametrize("split", ["I", "O"])
def test_swaps_in_highway_env_find_the_graph(split):
    moved = swap_in_highway_env(split, 3000, 1)
    print({f"{i}->{j}": times for (i, j), times in moved.items() if times})
    check(moved, GRAPH, RARE)


def rows_at_the_boundary(rng, size=40_000):
    """Pedestrians about a metre from the ego's rectangle, where a push decides: twin-found, for highway-env."""
    states, actions, _, _ = transitions("medium", "I", 40)
    rows = rng.integers(len(states), size=size)
    states, actions = states[rows].copy(), actions[rows].copy()
    states[:, 20:22] = 0
    edge = rng.uniform(0, 2 * np.pi, (size, 2, 1))
    ring = np.concatenate([np.cos(edge), np.sin(edge)], 2) * rng.uniform(0.7, 1.8, (size, 2, 1))
    states[:, [10, 11]] = states[:, :2] + ring[:, 0] + np.sign(ring[:, 0]) * [2.5, 1.0]
    states[:, [15, 16]] = states[:, :2] + ring[:, 1] + np.sign(ring[:, 1]) * [2.5, 1.0]
    return states, actions


def test_rare_edges_act_in_highway_env_at_the_boundary():
    """A push moves a body from the second frame on; the search looks where that decides the flag."""
    rng, env = np.random.default_rng(3), Crash("I")
    states, actions = rows_at_the_boundary(rng)
    slope = np.full(len(states), 0.3)
    calm = crash_step(states, actions, slope)
    shuffled = actions[rng.permutation(len(actions))]
    seed = next(s for s in range(100) if env.reset(seed=s)[1]["u_c"] == 1)
    for source, target in sorted(RARE):
        columns, flag = env.factors[source].slice, env.factors[target].start
        swapped = actions.copy()
        swapped[:, columns] = shuffled[:, columns]
        decided = np.flatnonzero(crash_step(states, swapped, slope)[:, flag] != calm[:, flag])
        assert len(decided) >= 10, (source, target)
        for row in decided[:10]:
            flags = []
            for action in (actions[row], swapped[row]):
                env.reset(seed=seed)
                put(env, states[row])
                env._advance(action)
                flags.append(env.exact_state()[20:22])
            changed = flags[0] != flags[1]
            assert changed[flag - 20]


@pytest.mark.parametrize("level", ["random", "medium", "expert"])
def test_rare_edges_are_rare(level):
    states, actions, slope, _ = transitions(level, "I", 2000)
    calm = crash_step(states, actions, slope[:, 0], slope[:, 1])
    shuffled = actions[np.random.default_rng(0).permutation(len(actions))]
    for source, target in sorted(RARE):
        factors = Crash.make_factors(1)
        swapped = actions.copy()
        swapped[:, factors[source].slice] = shuffled[:, factors[source].slice]
        moved = (
            crash_step(states, swapped, slope[:, 0], slope[:, 1])[:, factors[target].start]
            != calm[:, factors[target].start]
        )
        assert moved.mean() < 0.003, (source, target, moved.mean())
