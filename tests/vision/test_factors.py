"""Factors and goals from codes of cells, in small worlds whose answer is known."""

import numpy as np
import pytest

from because_rl.errors import BecauseError
from because_rl.vision.codes import choose_codes, nearest
from because_rl.vision.factors import fewest_events, find_factors, find_goal, from_records, to_records

EMPTY, WALKER, STONE, ON_STONE, WALL, LAMP = range(6)
SIDE, LENGTH, EPISODES = 4, 40, 40
FRAMES = np.arange(EPISODES * LENGTH)
FIRST = FRAMES[::LENGTH]
BEFORE = FRAMES[(FRAMES + 1) % LENGTH > 0]
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])


def walk(rng, stones=2):
    """An episode, (LENGTH, SIDE, SIDE + 1): a walker takes stones; a lamp in the wall is lit when it has one."""
    start, *lying = rng.choice(SIDE * SIDE, stones + 1, replace=False).tolist()
    place, left = np.array(divmod(start, SIDE)), set(lying)
    frames = np.full((LENGTH, SIDE, SIDE + 1), WALL)
    for frame in frames:
        cell, room = int(place @ (SIDE, 1)), np.zeros(SIDE * SIDE, int)
        room[list(left)] = STONE
        room[cell] += WALKER
        frame[:, :SIDE] = room.reshape(SIDE, SIDE)
        frame[0, SIDE] = LAMP if len(left) < stones else WALL
        if cell in left and rng.random() < 0.3:
            left.discard(cell)
        else:
            place = np.clip(place + MOVES[rng.integers(4)], 0, SIDE - 1)
    return frames


@pytest.fixture(scope="module")
def frames():
    rng = np.random.default_rng(0)
    return np.concatenate([walk(rng) for _ in range(EPISODES)])


@pytest.fixture(scope="module")
def parts(frames):
    return find_factors(frames, BEFORE, FIRST)


def test_a_walker_stones_and_a_lamp_are_three_factors(parts):
    walker, stones, lamp = parts
    assert (walker.kind, walker.codes) == ("mover", (WALKER, ON_STONE))
    assert (stones.kind, stones.codes) == ("still", (STONE, ON_STONE))
    assert (lamp.kind, lamp.codes, lamp.cells) == ("switch", (WALL, LAMP), (SIDE,))
    assert len(walker.cells) == SIDE * SIDE
    assert from_records(to_records([walker, stones, lamp])) == [walker, stones, lamp]


def test_columns_say_where_a_layer_is(frames, parts):
    walker, stones, lamp = parts
    flat = frames.reshape(len(frames), -1)
    assert (walker.columns(flat).sum(1) == 1).all()
    assert (stones.columns(flat).sum(1) == np.isin(flat, (STONE, ON_STONE)).sum(1)).all()
    assert (lamp.columns(flat)[:, 1] == (frames[:, 0, SIDE] == LAMP)).all()


def test_two_movers_that_meet_are_two_layers():
    rng, cells, rows = np.random.default_rng(1), 8, (EPISODES, LENGTH)
    a, b = ((np.cumsum(rng.choice([-1, 1], rows), 1) + rng.integers(cells, size=(EPISODES, 1))) % cells for _ in "ab")
    frames = np.zeros((len(FRAMES), 1, cells), int)
    frames[FRAMES, 0, a.reshape(-1)] += 1
    frames[FRAMES, 0, b.reshape(-1)] += 2
    first, second = find_factors(frames, BEFORE, FIRST)
    assert {(first.kind, first.codes), (second.kind, second.codes)} == {("mover", (1, 3)), ("mover", (2, 3))}


def test_codes_that_never_share_a_cell_stay_single_layers():
    steps = np.zeros((3, 3))
    steps[0, 1] = steps[1, 0] = 50
    steps[0, 2] = steps[2, 0] = 20
    assert fewest_events(steps, np.zeros((1, 3), int), 0) == [frozenset(), frozenset({1}), frozenset({2})]


def test_the_goal_is_what_holds_exactly_at_the_ends(frames, parts):
    flat, after = frames.reshape(len(frames), -1), BEFORE + 1
    gone = (parts[1].columns(flat)[after] == 0).all(1)
    assert gone.any()
    goal = find_goal(parts, flat, after, gone)
    assert goal.factor == "still_1"
    assert goal.value == (0.0,) * SIDE * SIDE
    assert goal.accuracy == 1.0
    lit = flat[after, SIDE] == LAMP
    assert find_goal(parts, flat, after, lit).factor == "switch_1"
    assert find_goal(parts, flat, after, np.random.default_rng(0).random(len(after)) < 0.5) is None
    assert find_goal(parts, flat, after, np.zeros(len(after), bool)) is None


def test_still_pictures_are_refused():
    with pytest.raises(BecauseError, match="ever changes"):
        find_factors(np.zeros((5, 2, 2), int), np.arange(4), np.array([0]))


def test_codes_are_as_many_as_leave_the_largest_gap():
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(5, 16))
    label = rng.integers(0, 5, 400)
    noisy = centres[label] + 0.1 * rng.normal(size=(400, 16))
    chosen = choose_codes(noisy, np.ones(400))
    assert len(chosen) == 5
    matched = nearest(noisy, chosen)
    assert len(np.unique(np.stack([label, matched]), axis=1).T) == 5
    assert len(choose_codes(rng.normal(size=(400, 16)), np.ones(400))) == 1
