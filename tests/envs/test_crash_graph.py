"""Crash's true graph, checked by swapping one factor at a time in highway-env."""

import numpy as np
import pytest

from because_rl.envs.crash.batch import CrashBatch, crash_step
from because_rl.envs.crash.behaviour import CrashBehaviour
from because_rl.envs.crash.env import Crash

GRAPH = Crash.make_true_graph(1)
RARE = {(f"push_{body}", f"flag{i}") for i in (1, 2) for body in ("ego", f"ped{i}")}


def transitions(level, split, episodes, spurious=1):
    """States, actions, slopes and seeds of the transitions of a behaviour."""
    batch, behaviour, seeds = CrashBatch(split, spurious), CrashBehaviour(level), range(7000, 7000 + episodes)
    observation = batch.reset(seeds)
    behaviour.reset(batch, seeds)
    slope = batch.hidden()["slope"]
    states, actions, slopes, seed_of_row = [], [], [], []
    while not batch.done:
        active = ~(batch.terminated | batch.truncated)
        action = behaviour.act(observation)
        states.append(batch.exact_state()[active])
        actions.append(action[active].astype(float))
        slopes.append(slope[active])
        seed_of_row.append(np.array(seeds)[active])
        observation = batch.step(action).observation
    return tuple(np.concatenate(x) for x in (states, actions, slopes, seed_of_row))


def set_state(env, state):
    for factor in env.factors.state:
        env.intervene(factor.name, state[factor.slice])


def swap_in_highway_env(split, count, seed, spurious=1):
    """How often swapping each input for another transition's value changed each factor of the next state."""
    rng = np.random.default_rng(seed)
    pools = [transitions(level, split, 100, spurious) for level in ("random", "medium", "expert")]
    states, actions, _, seed_of_row = (np.concatenate(x) for x in zip(*pools, strict=True))
    env = Crash(split, spurious)
    changes = {(i, j): 0 for i in env.factors.inputs for j in env.factors.targets}
    # Half of the transitions have a pedestrian on the road, or flags would hardly ever change.
    on_road = np.flatnonzero((np.abs(states[:, [11, 16]]) < 3).any(1))
    for k in range(count):
        row = rng.choice(on_road) if k % 2 else rng.integers(len(states))
        other = rng.choice(on_road) if k % 4 < 2 else rng.integers(len(states))
        env.reset(seed=int(seed_of_row[row]))  # sets the hidden u_c of this episode, which all swaps keep
        set_state(env, states[row])
        snapshot = env.snapshot()
        env._advance(actions[row])
        unswapped = env.exact_state()
        for name in env.factors.inputs:
            factor, action = env.factors[name], actions[row].copy()
            env.restore(snapshot)
            if factor in env.factors.state:
                env.intervene(name, states[other][factor.slice])
            else:
                action[factor.slice] = actions[other][factor.slice]
            env._advance(action)
            changed = env.exact_state() != unswapped
            for target in env.factors.state:
                changes[name, target.name] += bool(changed[target.slice].any())
    return changes


def check_edges(changes, graph):
    """All effects of swaps are edges, and all edges but the rare ones have an effect."""
    edges = {edge for edge, count in changes.items() if count}
    assert edges <= graph.edges, sorted(edges - graph.edges)
    missing = graph.edges - graph.rare - edges
    assert not missing, sorted(missing)


def test_graph_has_the_eighteen_edges():
    assert len(GRAPH.edges) == 18
    assert GRAPH.rare == RARE
    assert GRAPH.matrix.shape == (10, 6)
    assert GRAPH.parents("flag2") == ("ego", "ped2", "flag2", "push_ego", "push_ped2")
    assert len(Crash.make_true_graph(4).edges) == 21


@pytest.mark.slow
@pytest.mark.parametrize(("split", "spurious"), [("I", 2), ("O", 1)])
def test_swaps_in_highway_env_match_the_graph(split, spurious):
    check_edges(swap_in_highway_env(split, 250, 0, spurious), Crash.make_true_graph(spurious))


@pytest.mark.long
@pytest.mark.parametrize("split", ["I", "O"])
def test_three_thousand_swaps_in_highway_env_match_the_graph(split):
    changes = swap_in_highway_env(split, 3000, 1)
    print({f"{i}->{j}": count for (i, j), count in changes.items() if count})
    check_edges(changes, GRAPH)


def rows_at_the_boundary(rng, size=40_000):
    """States with pedestrians about a metre from the ego's rectangle, where a push can decide a flag."""
    states, actions, _, _ = transitions("medium", "I", 40)
    rows = rng.integers(len(states), size=size)
    states, actions = states[rows].copy(), actions[rows].copy()
    states[:, 20:22] = 0
    edge = rng.uniform(0, 2 * np.pi, (size, 2, 1))
    ring = np.concatenate([np.cos(edge), np.sin(edge)], 2) * rng.uniform(0.7, 1.8, (size, 2, 1))
    states[:, [10, 11]] = states[:, :2] + ring[:, 0] + np.sign(ring[:, 0]) * [2.5, 1.0]
    states[:, [15, 16]] = states[:, :2] + ring[:, 1] + np.sign(ring[:, 1]) * [2.5, 1.0]
    return states, actions


def test_rare_edges_have_effects_in_highway_env():
    """The fast batch selects transitions where a push, which acts from the second frame on, decides the flag."""
    rng, env = np.random.default_rng(3), Crash("I")
    states, actions = rows_at_the_boundary(rng)
    slope = np.full(len(states), 0.3)
    unswapped = crash_step(states, actions, slope)
    shuffled = actions[rng.permutation(len(actions))]
    seed = next(s for s in range(100) if env.reset(seed=s)[1]["u_c"] == 1)
    for source, target in sorted(RARE):
        columns, flag = env.factors[source].slice, env.factors[target].start
        swapped = actions.copy()
        swapped[:, columns] = shuffled[:, columns]
        decided = np.flatnonzero(crash_step(states, swapped, slope)[:, flag] != unswapped[:, flag])
        assert len(decided) >= 10, (source, target)
        for row in decided[:10]:
            flags = []
            for action in (actions[row], swapped[row]):
                env.reset(seed=seed)
                set_state(env, states[row])
                env._advance(action)
                flags.append(env.exact_state()[20:22])
            changed = flags[0] != flags[1]
            assert changed[flag - 20]


@pytest.mark.parametrize("level", ["random", "medium", "expert"])
def test_rare_edges_are_rare(level):
    states, actions, slope, _ = transitions(level, "I", 2000)
    unswapped = crash_step(states, actions, slope[:, 0], slope[:, 1])
    shuffled = actions[np.random.default_rng(0).permutation(len(actions))]
    for source, target in sorted(RARE):
        factors = Crash.make_factors(1)
        swapped = actions.copy()
        swapped[:, factors[source].slice] = shuffled[:, factors[source].slice]
        moved = (
            crash_step(states, swapped, slope[:, 0], slope[:, 1])[:, factors[target].start]
            != unswapped[:, factors[target].start]
        )
        assert moved.mean() < 0.003, (source, target, moved.mean())
