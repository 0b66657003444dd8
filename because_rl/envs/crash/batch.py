"""Crash, many scenes at once, in NumPy. A test compares it with highway-env step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from because_rl.envs.batch import BatchEnv
from because_rl.envs.crash.env import Crash
from because_rl.envs.crash.scene import (
    CAR_SPEED,
    DT,
    FRAMES,
    HALF_LENGTH,
    HALF_WIDTH,
    MAX_ACCELERATION,
    MAX_SIN_SLIP,
    MIN_FACING_SPEED,
    MIN_SQUARED_SPEED,
    NEAR_MISS,
    WALK_SPEED,
    draw_scenes,
)
from because_rl.envs.world import Hidden


def crash_step(state: Any, action: Any, slope: Any, car_slope: Any = None) -> Any:
    """One policy step (three frames) of Crash: highway-env's equations on NumPy or JAX arrays; may be jitted.

    `state` (..., 22 or more; columns from 22 on are passed through), `action` (..., 8) in [-1, 1], `slope`
    (...) in m/s2, and `car_slope` (...) where the car's differs (split O). Returns the next state, same shape.
    """
    xp = state.__array_namespace__()
    action = xp.asarray(action, dtype=state.dtype)
    zeros = xp.zeros_like(state[..., 0])
    slope, car_slope = zeros + slope, zeros + (slope if car_slope is None else car_slope)

    # Two bodies at a time, as (2, ...): contiguous, where a slice of the state would not be.
    def pair(first: int, second: int) -> Any:
        return xp.stack([state[..., first], state[..., second]])

    def accelerations(first: int, second: int) -> Any:
        scale = MAX_ACCELERATION.reshape(-1)
        return xp.stack([action[..., first] * float(scale[first]), action[..., second] * float(scale[second])])

    # Cars, whose velocity lies along their heading.
    car_ax, car_ay = accelerations(0, 2) + xp.stack([slope, car_slope]), accelerations(1, 3)
    x, y, heading = pair(0, 5), pair(1, 6), pair(4, 9)
    cos, sin = xp.cos(heading), xp.sin(heading)
    speed = pair(2, 7) * cos + pair(3, 8) * sin
    # Pedestrians.
    walk_ax, walk_ay = accelerations(4, 6) + xp.stack([slope, slope]), accelerations(5, 7)
    px, py, pvx, pvy, facing = (pair(10 + k, 15 + k) for k in range(5))
    flags = pair(20, 21)

    for _ in range(FRAMES):
        along, across = cos * car_ax + sin * car_ay, cos * car_ay - sin * car_ax
        slip = xp.clip(across * HALF_LENGTH / xp.maximum(speed * speed, MIN_SQUARED_SPEED), -MAX_SIN_SLIP, MAX_SIN_SLIP)
        straight = xp.sqrt(1 - slip * slip)
        x, y = x + speed * (cos * straight - sin * slip) * DT, y + speed * (sin * straight + cos * slip) * DT
        heading = heading + speed * slip * (DT / HALF_LENGTH)
        speed = xp.clip(speed + along * DT, 0.0, CAR_SPEED)
        cos, sin = xp.cos(heading), xp.sin(heading)

        px, py = px + pvx * DT, py + pvy * DT
        pvx, pvy = pvx + walk_ax * DT, pvy + walk_ay * DT
        walk_speed = xp.sqrt(pvx * pvx + pvy * pvy)
        limit = xp.minimum(WALK_SPEED / xp.maximum(walk_speed, MIN_FACING_SPEED), 1.0)
        pvx, pvy = pvx * limit, pvy * limit
        facing = xp.where(walk_speed > MIN_FACING_SPEED, xp.arctan2(pvy, pvx), facing)

        dx, dy, ego_cos, ego_sin = px - x[:1], py - y[:1], cos[:1], sin[:1]
        beyond = xp.maximum(xp.abs(ego_cos * dx + ego_sin * dy) - HALF_LENGTH, 0.0)
        beside = xp.maximum(xp.abs(ego_cos * dy - ego_sin * dx) - HALF_WIDTH, 0.0)
        flags = xp.where(beyond * beyond + beside * beside < NEAR_MISS**2, 1.0, flags)

    vx, vy = speed * cos, speed * sin
    moved = [q[i] for i in range(2) for q in (x, y, vx, vy, heading)]
    moved += [q[i] for i in range(2) for q in (px, py, pvx, pvy, facing)]
    return xp.concatenate([xp.stack([*moved, flags[0], flags[1]], axis=-1), state[..., 22:]], axis=-1)


class CrashBatch(BatchEnv):
    world = Crash

    def _place(self, seeds: Sequence[int]) -> None:
        self._scenes = scenes = draw_scenes(seeds, self.split, self.spurious)
        n = len(seeds)
        self._state = np.concatenate([scenes.bodies.reshape(n, 20), np.zeros((n, 2)), scenes.channels], axis=1)

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        slope = self._scenes.slope
        moved = crash_step(self._state, columns, slope[:, 0], slope[:, 1])
        self._state = np.where(active[:, None], moved, self._state)

    def exact_state(self) -> np.ndarray:
        return self._state.copy()

    def exact_goal(self) -> np.ndarray:
        return self._scenes.goal.copy()

    def hidden(self) -> Hidden:
        return {name: value.copy() for name, value in self._scenes.hidden().items()}
