"""Systems whose true graph is known: classic control, stepped in Gymnasium's own environments.

The parents of every next-state factor follow from the equations of motion, as written in each `System`; a test
perturbs the inputs one at a time and sees which next-state factors move. Angles are logged either as cosine and sine
or as raw numbers in [-pi, pi], which jump by 2 pi where they wrap.

In the forms with cosine and sine the two are factors of their own. On the circle each is known from the other up to
its sign, so the parents are those of the equations in which an angle only enters as cos(a + b) = cos a cos b -
sin a sin b and sin(a + b) = sin a cos b + cos a sin b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from because_rl.factors import FactorSpec, pack
from because_rl.graph import Graph
from because_rl.transitions import Transitions

BEHAVIOURS = ("random", "confounded")
"""'random': actions do not depend on the state; 'confounded': on the state, noise, and a hidden constant of the
episode."""
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""state (n, columns), action (n, columns), next state (n, columns), episode (n,)"""
Log = Callable[[np.random.Generator, str, int, int], Rows]
"""(rng, behaviour, rows, most rows of an episode) -> rows"""
DRIFT = 0.95
"""Coefficient of the autoregressive sensor that `with_drift` adds."""


@dataclass(frozen=True)
class System:
    """A way to log transitions, and the graph that generates them."""

    factors: FactorSpec
    parents: Mapping[str, tuple[str, ...]]
    """target -> its causes"""
    log: Log

    @property
    def graph(self) -> Graph:
        """The true graph."""
        edges = frozenset((source, target) for target, sources in self.parents.items() for source in sources)
        return Graph(self.factors.inputs, self.factors.targets, edges)

    def transitions(self, rng: np.random.Generator, behaviour: str, rows: int, length: int) -> Transitions:
        """`rows` transitions in episodes of at most `length` rows."""
        state, action, after, episode = self.log(rng, behaviour, rows, length)
        return Transitions.from_arrays(state, action, after, episode, factors=self.factors, name="system")


@dataclass(frozen=True)
class Control:
    """A Gymnasium environment with an internal state, and two behaviours."""

    id: str
    low: tuple[float, ...]
    """least internal state at the start of an episode; greatest: -low, unless `high` is given"""
    random: Callable[[np.random.Generator], float]
    confounded: Callable[[np.ndarray, float, np.random.Generator], float]
    """(internal state, hidden constant of the episode, rng) -> action; the constant is standard normal"""
    encode: Callable[[float], Any]
    """action as logged -> action of the environment"""
    observe: Callable[[np.ndarray], np.ndarray] = lambda state: state
    """internal states (n, d) -> logged columns (n, columns)"""
    high: tuple[float, ...] | None = None
    ends: bool = False
    """whether an episode ends where the environment says so"""


def step_control(env: Any, state: np.ndarray, action: Any) -> tuple[np.ndarray, bool]:
    """The next internal state of an unwrapped environment, and whether the episode is over."""
    env.state = np.array(state)
    over = bool(env.step(action)[2])
    return np.array(env.state, np.float64), over


def log_control(control: Control, rng: np.random.Generator, behaviour: str, rows: int, length: int) -> Rows:
    """Step the environment from random states until there are `rows` transitions."""
    env: Any = gymnasium.make(control.id).unwrapped
    low = np.array(control.low)
    high = -low if control.high is None else np.array(control.high)
    logged: list[tuple[np.ndarray, float, np.ndarray, int]] = []
    number, over, since = -1, True, 0
    state, hidden = low, 0.0
    while len(logged) < rows:
        if over or since == length:
            env.reset(seed=0)
            state, hidden, number, since = rng.uniform(low, high), rng.standard_normal(), number + 1, 0
        value = control.random(rng) if behaviour == "random" else control.confounded(state, hidden, rng)
        after, over = step_control(env, state, control.encode(value))
        logged.append((state, value, after, number))
        state, over, since = after, over and control.ends, since + 1
    before, actions, then, episodes = (np.array(column) for column in zip(*logged, strict=True))
    return control.observe(before), actions[:, None], control.observe(then), episodes


def wrapped(angle: np.ndarray) -> np.ndarray:
    """The angle in [-pi, pi).

    >>> wrapped(np.array([3 * np.pi, 0.5])).round(3).tolist()
    [-3.142, 0.5]
    """
    return (angle + np.pi) % (2 * np.pi) - np.pi


def circles(state: np.ndarray, angles: int) -> np.ndarray:
    """(n, angles + rest) -> (n, 2 angles + rest): cosine and sine of each angle, then the rest."""
    pairs = [f(state[:, k]) for k in range(angles) for f in (np.cos, np.sin)]
    return np.column_stack([*pairs, state[:, angles:]])


PENDULUM = Control(
    "Pendulum-v1",
    (-np.pi, -4.0),
    lambda rng: float(rng.uniform(-2, 2)),
    lambda s, u, rng: float(np.clip(0.8 * u - np.sin(s[0]) + 0.2 * s[1] + 0.5 * rng.standard_normal(), -2, 2)),
    lambda value: np.array([value]),
)
CARTPOLE = Control(
    "CartPole-v1",
    (-0.5, -0.5, -0.1, -0.5),
    lambda rng: float(rng.integers(0, 2)),
    lambda s, u, rng: float(4 * s[2] + s[3] + 0.1 * (s[0] + s[1]) + 0.1 * u + 0.3 * rng.standard_normal() > 0),
    int,
    ends=True,
)
ACROBOT = Control(
    "Acrobot-v1",
    (-np.pi, -np.pi, -2.0, -4.0),
    lambda rng: float(rng.integers(-1, 2)),
    lambda s, u, rng: float(np.clip(np.round(0.7 * u - 0.3 * s[2] + 0.7 * rng.standard_normal()), -1, 1)),
    lambda value: int(value) + 1,
)
CAR = Control(
    "MountainCarContinuous-v0",
    (-1.1, -0.05),
    lambda rng: float(rng.uniform(-1, 1)),
    lambda s, u, rng: float(np.clip(0.4 * u + 8 * s[1] + 0.4 * rng.standard_normal(), -1, 1)),
    lambda value: np.array([value]),
    high=(0.3, 0.05),
    ends=True,
)


def _system(
    control: Control, states: tuple[str, ...], action: str, parents: Mapping[str, tuple[str, ...]], kind: str
) -> System:
    """A system with one column per factor; `kind`: the type of the action."""
    factors = FactorSpec(pack(*((name, 1, "continuous") for name in states)), pack((action, 1, kind)))
    return System(factors, parents, partial(log_control, control))


def _everything(states: tuple[str, ...], action: str) -> dict[str, tuple[str, ...]]:
    """Every input is a cause of every target."""
    return {name: (*states, action) for name in states}


_BOB = ("cos", "sin", "speed")
_LINKS = ("angle1", "angle2", "speed1", "speed2")
_LINK_CIRCLES = ("cos1", "sin1", "cos2", "sin2", "speed1", "speed2")
_POLE = ("position", "velocity", "angle", "rotation")

CLASSIC: dict[str, System] = {
    # speed' = speed + (15 sin + 3 torque) dt;  angle' = angle + speed' dt
    "pendulum": _system(
        replace(PENDULUM, observe=partial(circles, angles=1)),
        _BOB,
        "torque",
        _everything(_BOB, "torque") | {"speed": ("sin", "speed", "torque")},
        "continuous",
    ),
    "pendulum-raw": _system(
        replace(PENDULUM, observe=lambda s: np.column_stack([wrapped(s[:, 0]), s[:, 1]])),
        ("angle", "speed"),
        "torque",
        _everything(("angle", "speed"), "torque"),
        "continuous",
    ),
    # Euler steps: positions move by velocities; accelerations depend on angle, rotation and push.
    "cartpole": _system(
        CARTPOLE,
        _POLE,
        "push",
        {
            "position": ("position", "velocity"),
            "velocity": ("velocity", "angle", "rotation", "push"),
            "angle": ("angle", "rotation"),
            "rotation": ("angle", "rotation", "push"),
        },
        "binary",
    ),
    # One Runge-Kutta step of .2 s mixes everything.
    "acrobot": _system(
        replace(ACROBOT, observe=partial(circles, angles=2)),
        _LINK_CIRCLES,
        "torque",
        _everything(_LINK_CIRCLES, "torque"),
        "continuous",
    ),
    "acrobot-raw": _system(ACROBOT, _LINKS, "torque", _everything(_LINKS, "torque"), "continuous"),
    # velocity' = velocity + .0015 force - .0025 cos(3 position);  position' = position + velocity'
    "mountaincar": _system(
        CAR, ("position", "velocity"), "force", _everything(("position", "velocity"), "force"), "continuous"
    ),
}
"""Name -> system; '-raw': angles as numbers that wrap."""


def with_drift(system: System) -> System:
    """The system with one more state factor: an AR(.95) sensor that starts anew in each episode and causes nothing.

    In several systems every input is a cause of every target, so that without it no false edge is possible.
    """
    size, drift = system.factors.state_size, pack(("drift", 1, "continuous"))[0]
    state = (*system.factors.state, replace(drift, start=size, stop=size + 1))

    def log(rng: np.random.Generator, behaviour: str, rows: int, length: int) -> Rows:
        before, action, after, episode = system.log(rng, behaviour, rows, length)
        now, then = np.zeros((2, rows))
        for t, noise in enumerate(rng.standard_normal((rows, 2))):
            now[t] = then[t - 1] if t and episode[t] == episode[t - 1] else noise[0]
            then[t] = DRIFT * now[t] + np.sqrt(1 - DRIFT**2) * noise[1]
        return np.column_stack([before, now]), action, np.column_stack([after, then]), episode

    return System(replace(system.factors, state=state), {**system.parents, "drift": ("drift",)}, log)
