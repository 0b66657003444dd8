"""Small data whose structure is known, and models that are not trained, for the tests of methods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.layout import Layout
from because_rl.models.prepared_data import statistics
from because_rl.rng import stream
from because_rl.transitions import Transitions
from tests.support import LENGTH, logged, small


def layout_and_statistics(data):
    layout = Layout(data.factors)
    return layout, statistics(layout, data.state, data.action, data.next_state)


def untrained(make):
    """The module that `make` (key) returns, with random numbers in all its arrays.

    To draw them as training does takes seconds to compile.
    """
    rng = stream(0, "untrained")

    def fill(leaf):
        is_array = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32) if is_array else leaf

    return jax.tree.map(fill, eqx.filter_eval_shape(make, jax.random.key(0)))


def confounded(episodes=300, seed=0):
    """The action follows the cause; a marker shows which of two environments the episode is in; a nuisance, nothing.

    Also returns the environment of each row, -1 or 1.
    """
    rng, n = stream(seed, "confounded"), episodes * LENGTH
    side = np.repeat(rng.choice([-1.0, 1.0], episodes), LENGTH)
    cause, nuisance = rng.normal(size=(2, n))
    marker = side + 0.3 * rng.normal(size=n)
    action = np.clip(0.5 * np.tanh(2 * cause) + 0.1 * rng.normal(size=n), -1, 1)
    state = np.stack([cause, marker, nuisance], 1)
    after = np.stack([cause + action, marker + 0.1 * side, nuisance], 1)
    factors = FactorSpec(
        pack(("cause", 1, "continuous"), ("marker", 1, "continuous"), ("nuisance", 1, "continuous")),
        pack(("push", 1, "continuous")),
        (GoalFactor("there", 0, 1, "continuous", factor="cause"),),
    )
    return logged(factors, state, action[:, None], after, np.zeros((n, 1))), side


def actions_by_cells(episodes=40):
    """Rows of the kinds of factors that Unlock has, in which two cells decide the action; and the action's numbers."""
    data, cell = small("unlock", episodes), np.arange(4)
    agent, key = data.state[:, :4] @ cell, data.state[:, 4:8] @ cell
    number = np.where(data.state[:, 4:8].any(1), (agent + key) % 3, 2).astype(int)
    return Transitions(**(vars(data) | {"action": data.factors.encode_action(number).astype(np.float32)})), number


def actions_on_first_rows(agent, data, rows=200):
    """What every seed does in the states of the first rows, (seeds, rows[, columns])."""
    state, goal = (np.stack([part[:rows]] * len(agent.seeds)) for part in (data.state, data.goal))
    return agent.start(rows).act(state, goal, LENGTH)


ROOM = ("hand", "weather", "bird", "plane")
"""State factors of `room`. The action moves hand and bird; the reward depends on hand and weather."""


def room(episodes=150):
    """A hand draws the curtain and scares a bird, the weather is as it is, and a plane flies by."""
    rng, n = stream(0, "room"), episodes * LENGTH
    state, noise, push = rng.normal(size=(n, 4)), rng.normal(size=(n, 4)), rng.normal(size=(n, 1))
    after = 0.6 * state + push * [1, 0, -1, 0] + noise * [0.3, 0.5, 0.3, 0.5]
    numbers = pack(*((name, 1, "continuous", "number") for name in ROOM))
    goal = (GoalFactor("light", 0, 1, "continuous", factor="hand", relation="at_least"),)
    data = logged(FactorSpec(numbers, pack(("push", 1, "continuous")), goal), state, push, after, np.zeros((n, 1)))
    return Transitions(**(vars(data) | {"reward": data.next_state[:, :2].sum(1)}))


HARBOUR = ("boat", "tide", "spray", "radio", "clock")
"""State factors of `harbour`. The action moves boat and spray; the reward depends on boat and tide."""


def harbour(episodes=150, current=0.0):
    """Another `room`: a boat of two columns is steered, spray follows it, and the tide drives it by `current`.

    Sizes, memories, noises and couplings are not those of `room`.
    """
    rng, n = stream(0, "harbour"), episodes * LENGTH
    boat, spray, clock, push = rng.normal(size=(4, n, 2))
    tide, radio = rng.normal(size=(2, n, 1))
    noise = rng.normal(size=(n, 8))
    after = [
        0.8 * boat + 0.7 * push + current * tide,
        0.3 * tide,
        0.4 * spray + 0.8 * push[:, ::-1] * [1, -1] + 0.3 * boat,
        0.9 * radio,
        0.5 * clock[:, ::-1],
    ]
    after = np.hstack(after) + noise * [0.2, 0.2, 0.6, 0.3, 0.3, 0.4, 0.5, 0.5]
    widths = zip(HARBOUR, (2, 1, 2, 1, 2), strict=True)
    parts = pack(*((name, width, "continuous", name) for name, width in widths))
    goal = (GoalFactor("out", 0, 2, "continuous", factor="boat", relation="at_least"),)
    state = np.hstack([boat, tide, spray, radio, clock])
    factors = FactorSpec(parts, pack(("push", 2, "continuous")), goal)
    data = logged(factors, state, push, after, np.zeros((n, 2)))
    return Transitions(
        **(vars(data) | {"reward": data.next_state[:, 0] - data.next_state[:, 1] + data.next_state[:, 2]})
    )


LINE = FactorSpec(
    pack(("x", 1, "continuous")),
    pack(("push", 1, "continuous")),
    (GoalFactor("there", 0, 1, "continuous", factor="x"),),
)


def line(x, push, after):
    """Transitions of a point on a line that is pushed."""
    return logged(LINE, x[:, None], push[:, None], after[:, None], np.zeros((len(x), 1)))
