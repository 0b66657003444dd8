"""The constants of Crash, and the scenes that its seeds determine. Imports no simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from because_rl.envs import spurious as spurious_channels
from because_rl.envs.world import Hidden
from because_rl.rng import stream

BODIES = ("ego", "car", "ped1", "ped2")
HORIZON = 30
POLICY_HZ = 4
FRAMES = 3
"""Simulated frames per policy step: 12 Hz."""
DT = 1.0 / (POLICY_HZ * FRAMES)
EPISODE_SECONDS = HORIZON / POLICY_HZ

MAX_ACCELERATION = np.array([[4.0, 2.0], [0.5, 0.25], [2.0, 2.0], [2.0, 2.0]])
"""Acceleration (x, y) of each body for an action of 1, m/s2."""
CAR_SPEED = 15.0
"""Largest speed of a car, m/s; the smallest is 0."""
WALK_SPEED = 2.5
"""Largest speed of a pedestrian, m/s."""
MIN_FACING_SPEED = 0.05
"""A pedestrian slower than this, m/s, keeps its heading."""
MAX_STEERING = np.pi / 4
"""Largest angle of the front wheels: highway-env's."""
MAX_SIN_SLIP = float(np.sin(np.arctan(np.tan(MAX_STEERING) / 2)))
"""Sine of the largest slip angle, which the steering limit sets (1 / sqrt 5)."""
MIN_SQUARED_SPEED = 1e-6
"""Lower bound of a car's squared speed in the division that gives its slip angle."""
NEAR_MISS = 1.0
"""A near-miss: a pedestrian's centre is less than this many metres from the ego's rectangle."""
HALF_LENGTH, HALF_WIDTH = 2.5, 1.0
"""Of a car, in metres: highway-env's `Vehicle`."""

SLOPE = 0.3
"""Size of the hidden slope, m/s2 along the road."""
INWARD = np.array([-1.0, 1.0])
"""Sign of the y direction towards the road for each pedestrian: ped1 stands at y > 0, ped2 at y < 0."""
CUE_MEMORY = 0.8
"""The AR(1) coefficient of the cue u_pi."""


# The scene ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scenes:
    """All that the seeds of N episodes determine, observed or hidden."""

    bodies: np.ndarray
    """(N, 4, 5): x, y, vx, vy, heading of ego, car, ped1, ped2"""
    goal: np.ndarray
    """(N, 2): which near-misses are required"""
    channels: np.ndarray
    """(N, spurious - 1): values of the extra spurious channels"""
    u_c: np.ndarray
    """(N,) -1 or 1: the hidden confounder, the sign of the road's slope"""
    slope: np.ndarray
    """(N, 4): the acceleration along the road that u_c adds to each body, m/s2"""
    u_pi: np.ndarray
    """(N, 30): the cue that only behaviours observe, a stationary AR(1) path of unit variance"""
    start: np.ndarray
    """(N,) in [0, 1): hidden time at which an expert's pedestrians start, as a share of the longest wait"""

    def hidden(self) -> Hidden:
        return {"u_c": self.u_c, "u_pi": self.u_pi, "start": self.start, "slope": self.slope}


def draw_scenes(seeds: Sequence[int], split: str, spurious: int) -> Scenes:
    """The scenes of these seeds; each depends on its own seed alone. `U(a, b)` is uniform.

    In both splits: ego x 0, y U(-.3, .3), speed U(7, 10); car x U(16, 44), y 4 + U(-.3, .3), speed
    U(0, 1); ped1 at y U(7, 9) and ped2 at y -U(7, 9), walking inward with U(0, .8). u_c is -1 or 1 with
    equal chance.

    ================= =========================== ==========================================
    what              I (training)                O
    ================= =========================== ==========================================
    goal              one flag, a fair draw       both flags
    pedestrian x      car x + 2.5 + U(1, 3)       U(16, 44) + 2.5 + U(1, 3), own draw each
    slope of ego, ped .3 u_c                      .3 u_c
    slope of car      .3 u_c                      -.3 u_c
    extra channels    follow u_c                  follow -u_c
    ================= =========================== ==========================================

    The marginal distributions of the car's and of each pedestrian's x are the same in I and O; only in I are they
    dependent.
    """
    training, n = split == "I", len(seeds)
    uniform, noise = np.empty((n, 16)), np.empty((n, HORIZON))
    channels = np.empty((n, spurious - 1))
    u_c = np.empty(n)
    for row, seed in enumerate(seeds):
        rng = stream(seed, "crash", "scene")
        uniform[row], noise[row] = rng.random(16), rng.standard_normal(HORIZON)
        u_c[row] = 1.0 if uniform[row, 0] < 0.5 else -1.0
        if spurious > 1:
            channels[row] = spurious_channels.scalar_channels(seed, spurious, u_c[row], split)

    car_x = 16 + 28 * uniform[:, 1:2]
    bodies = np.zeros((n, 4, 5))
    bodies[:, 0, 1] = 0.6 * uniform[:, 4] - 0.3
    bodies[:, 0, 2] = 7 + 3 * uniform[:, 5]
    bodies[:, 1, 0] = car_x[:, 0]
    bodies[:, 1, 1] = 4 + 0.6 * uniform[:, 6] - 0.3
    bodies[:, 1, 2] = uniform[:, 7]
    bodies[:, 2:, 0] = (car_x if training else 16 + 28 * uniform[:, 2:4]) + 3.5 + 2 * uniform[:, 8:10]
    bodies[:, 2:, 1] = -INWARD * (7 + 2 * uniform[:, 10:12])
    bodies[:, 2:, 3] = INWARD * 0.8 * uniform[:, 12:14]
    bodies[:, 2:, 4] = INWARD * np.pi / 2

    first = uniform[:, 14] < 0.5
    goal = np.stack([first, ~first], 1).astype(float) if training else np.ones((n, 2))
    slope = SLOPE * u_c[:, None] * np.array([1.0, 1.0 if training else -1.0, 1.0, 1.0])
    cue = noise  # becomes the AR(1) path in place; its first value already has the stationary variance
    for t in range(1, HORIZON):
        cue[:, t] = CUE_MEMORY * cue[:, t - 1] + np.sqrt(1 - CUE_MEMORY**2) * noise[:, t]
    return Scenes(bodies, goal, channels, u_c, slope, cue, uniform[:, 15].copy())
