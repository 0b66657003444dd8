"""Unlock: layouts, the fast batch against minigrid, the true graph by intervention, the behaviours."""

import numpy as np
import pytest

from because_rl.envs.batch import SimulatorBatch
from because_rl.envs.unlock.batch import UnlockBatch
from because_rl.envs.unlock.behaviour import UnlockBehaviour
from because_rl.envs.unlock.env import CELLS, HELD_OUT, HORIZON, OPEN, PICK, QUADRANT, RIGHT, Unlock, draw_layout
from because_rl.errors import BecauseError

SEEDS = range(400)


def layouts_and_door_quadrants(split):
    return [(draw_layout(s, split), QUADRANT[list(draw_layout(s, split).doors)]) for s in SEEDS]


def test_training_doors_are_opposite_the_key():
    assert HELD_OUT.sum() == 12
    for layout, quadrants in layouts_and_door_quadrants("I"):
        assert QUADRANT[layout.key] == layout.u_c
        assert (quadrants == 3 - layout.u_c).all()
        assert len(layout.doors) == 1
        assert not HELD_OUT[layout.doors[0]]


def test_each_split_shifts_only_what_it_states():
    for layout, quadrants in layouts_and_door_quadrants("O"):
        assert len(layout.doors) == 2
        assert (quadrants != 3 - layout.u_c).all()
    assert np.mean([HELD_OUT[list(layout.doors)].any() for layout, _ in layouts_and_door_quadrants("O")]) > 0.3
    for layout, quadrants in layouts_and_door_quadrants("O-law"):
        assert len(layout.doors) == 1
        assert quadrants[0] != 3 - layout.u_c
        assert not HELD_OUT[layout.doors[0]]
    for layout, quadrants in layouts_and_door_quadrants("O-doors"):
        assert len(layout.doors) == 2
        assert (quadrants == 3 - layout.u_c).all()
        assert not HELD_OUT[list(layout.doors)].any()
    for layout, quadrants in layouts_and_door_quadrants("O-cells"):
        assert HELD_OUT[layout.doors[0]]
        assert (quadrants == 3 - layout.u_c).all()


@pytest.mark.parametrize("split", Unlock.splits)
def test_every_layout_can_be_solved_in_time(split):
    """A noiseless shortest path takes exactly the fewest steps, and those fit the horizon."""
    batch, policy = UnlockBatch(split), UnlockBehaviour("expert", coverage=0.0)
    policy.eps = 0.0
    observation = batch.reset(SEEDS)
    policy.reset(batch, SEEDS)
    fewest, taken = batch.hidden()["fewest_steps"], np.zeros(len(SEEDS))
    while not batch.done:
        taken += ~(batch.terminated | batch.truncated)
        observation = batch.step(policy.act(observation)).observation
    greedy_is_best = "doors" not in split and split != "O"  # nearest-first may lose with two doors
    assert (fewest <= HORIZON).all()
    assert batch.terminated.mean() > (0.999 if greedy_is_best else 0.9)
    assert (taken == fewest)[batch.terminated].mean() > (0.999 if greedy_is_best else 0.8)


def compare(split, spurious, rooms, seed):
    fast, real = UnlockBatch(split, spurious), SimulatorBatch(Unlock, split, spurious)
    rng = np.random.default_rng(seed)
    seeds = rng.integers(0, 2**31, rooms)
    fast.reset(seeds)
    real.reset(seeds)
    steps = 0
    assert (fast.exact_state() == real.exact_state()).all()
    for _ in range(HORIZON):
        # On a key or door most actions are pick or open, or doors would hardly ever open.
        manipulation = np.where(rng.random(rooms) < 0.5, PICK, OPEN)
        on_object = (
            fast.exact_state()[:, :CELLS] * fast.exact_state()[:, CELLS : 3 * CELLS].reshape(rooms, 2, CELLS).sum(1)
        ).any(1)
        actions = np.where(on_object & (rng.random(rooms) < 0.7), manipulation, rng.integers(0, 6, rooms))
        fast_step, real_step = fast.step(actions), real.step(actions)
        assert (fast.exact_state() == real.exact_state()).all()
        for a, b in zip(fast_step[1:], real_step[1:], strict=True):
            assert (a == b).all()
        steps += rooms
    for name, value in fast.hidden().items():
        assert (value == real.hidden()[name]).all()
    return steps, fast.terminated.sum()


@pytest.mark.parametrize("split", Unlock.splits)
def test_batch_equals_minigrid(split):
    compare(split, 1, 40, 0)
    compare(split, 4, 20, 1)


@pytest.mark.long
def test_batch_equals_minigrid_over_100_000_steps():
    results = [
        compare(split, spurious, 850, n)
        for n, (split, spurious) in enumerate(
            [*((s, 1) for s in Unlock.splits), *((s, 8) for s in ("I", "O", "O-law"))]
        )
    ]
    assert sum(steps for steps, _ in results) >= 100_000
    assert sum(solved for _, solved in results) > 5


def test_open_needs_the_key_and_acts_on_the_own_cell():
    env = Unlock()
    env.reset(seed=0)
    doors = env.exact_state()[2 * CELLS : 3 * CELLS]
    env.intervene("agent", doors)
    env.advance(env.factors.encode_action(OPEN))
    assert env.exact_state()[2 * CELLS : 3 * CELLS].sum() == 1  # no key, no opening
    env.intervene("has_key", np.array([0.0, 1.0]))
    env.advance(env.factors.encode_action(OPEN))
    assert env.exact_state()[2 * CELLS : 3 * CELLS].sum() == 0


def test_walls_stop_the_agent():
    env = Unlock()
    env.reset(seed=0)
    env.intervene("agent", np.eye(CELLS)[5])
    env.advance(env.factors.encode_action(RIGHT))
    assert env.exact_state()[:CELLS].argmax() == 5


def sample_transitions(env, rng, count):
    """Snapshots, states and actions along episodes of the medium behaviour, in which keys and doors are used."""
    policy = UnlockBehaviour("medium", coverage=0.5)
    while count:
        seed = int(rng.integers(2**31))
        batch = SimulatorBatch(Unlock, env.split, env.spurious)
        batch.envs = [env]
        observation = batch.reset([seed])
        policy.reset(batch, [seed])
        while not batch.done and count:
            action = policy.act(observation)
            yield env.snapshot(), env.exact_state(), env.factors.encode_action(action[0])
            count -= 1
            observation = batch.step(action).observation


def check_interventions_match_the_graph(split, spurious, count):
    """Swap one factor at a time for its value in another sample; the factors that then change are its children."""
    env, rng = Unlock(split, spurious), np.random.default_rng(0)
    factors, graph = env.factors, env.true_graph()
    samples = list(sample_transitions(env, rng, count))
    changes = np.zeros((len(factors.inputs), len(factors.targets)), int)
    for snapshot, _, action in samples:
        env.restore(snapshot)
        env._advance(action)
        unswapped = env.exact_state()
        _, other_state, other_action = samples[rng.integers(len(samples))]
        for i, name in enumerate(factors.inputs):
            factor, swapped = factors[name], action.copy()
            env.restore(snapshot)
            if factor in factors.action:
                swapped[factor.slice] = other_action[factor.slice]
            else:
                try:
                    env.intervene(name, other_state[factor.slice])
                except BecauseError:
                    continue  # that cell holds another object
                if name == "agent":  # few random cells hold an object: choose one that does in half of the swaps
                    objects = np.flatnonzero(env.exact_state()[CELLS : 3 * CELLS].reshape(2, CELLS).any(0))
                    if len(objects) and rng.random() < 0.5:
                        env.intervene(name, np.eye(CELLS)[rng.choice(objects)])
            before = env.exact_state()
            env._advance(swapped)
            after = env.exact_state()
            env.restore(snapshot)
            start = env.exact_state()
            for j, target in enumerate(factors.state):
                assert target.name == name or (before[target.slice] == start[target.slice]).all()  # only one swapped
                changes[i, j] += (after[target.slice] != unswapped[target.slice]).any()
    true = graph.matrix
    assert not changes[~true].any(), changes
    assert (changes[true] > 0).all(), changes
    assert graph.rare == frozenset()
    assert (changes[true] / count).min() > 1e-3


@pytest.mark.parametrize(("split", "spurious"), [("I", 1), ("O", 4)])
def test_interventions_on_minigrid_match_the_graph(split, spurious):
    check_interventions_match_the_graph(split, spurious, 300)


@pytest.mark.long
@pytest.mark.parametrize(("split", "spurious", "count"), [("I", 1, 1500), ("O", 4, 700)])
def test_many_interventions_on_minigrid_match_the_graph(split, spurious, count):
    check_interventions_match_the_graph(split, spurious, count)


def test_snapshot_and_restore_are_exact():
    env = Unlock("O", 4)
    env.reset(seed=3)
    snapshot, state = env.snapshot(), env.exact_state()
    for action in (0, 1, 2, PICK, OPEN):
        env.intervene("agent", state[CELLS : 2 * CELLS])
        env.advance(env.factors.encode_action(action))
    assert (env.exact_state() != state).any()
    env.restore(snapshot)
    assert (env.exact_state() == state).all()


def test_cues_follow_the_scene_in_training_only():
    def agreement(split):
        batch = UnlockBatch(split, 8)
        batch.reset(range(500))
        cues = batch.exact_state()[:, 110:].reshape(500, 7, 4).argmax(2)
        return (cues[:, ::2] == batch.hidden()["u_c"][:, None]).mean()

    assert agreement("I") > 0.85
    assert agreement("O") < 0.35


@pytest.mark.parametrize(("level", "paper"), [("random", 0.21), ("medium", 0.46), ("expert", 0.87)])
def test_behaviours_succeed_as_often_as_in_the_paper(level, paper):
    batch, policy, seeds = UnlockBatch(), UnlockBehaviour(level), range(4000)
    observation = batch.reset(seeds)
    policy.reset(batch, seeds)
    while not batch.done:
        observation = batch.step(policy.act(observation)).observation
    assert abs(batch.terminated.mean() - paper) < 0.04


def test_coverage_is_the_share_of_attempts_without_key():
    def tried(coverage):
        batch, policy, seeds = UnlockBatch(), UnlockBehaviour("expert", coverage), range(500)
        observation, count = batch.reset(seeds), np.zeros(500, bool)
        policy.reset(batch, seeds)
        while not batch.done:
            action, state = policy.act(observation), observation.state
            at_door = (state[:, :CELLS] * state[:, 2 * CELLS : 3 * CELLS]).any(1)
            count |= (action == OPEN) & at_door & (state[:, 3 * CELLS] > 0)
            observation = batch.step(action).observation
        return count.mean()

    assert tried(0.0) < 0.02
    assert 0.4 < tried(0.5) < 0.6
