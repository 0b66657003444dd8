"""Crash: steer a car, a parked car and two pedestrians into a near-miss. On highway-env.

The ego car drives along a road; pedestrians wait on both sides of it, in front of a parked car that
hides them. The agent accelerates all four. Cars move by highway-env's own bicycle model
(`Vehicle.step`); pedestrians are highway-env `Vehicle`s that walk. Bodies pass through each other: a
near-miss sets a flag, which stays set, and has no other effect.

State (22): ego, car, ped1, ped2 x (x, y, vx, vy, heading), then flag1, flag2. Action (8): acceleration
(x, y) of the four, in [-1, 1], times `MAX_ACCELERATION`. The goal says which of the two near-misses are required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from gymnasium import spaces

from because_rl.envs import spurious as spurious_channels
from because_rl.envs.crash.scene import (
    BODIES,
    CAR_SPEED,
    DT,
    EPISODE_SECONDS,
    FRAMES,
    HALF_LENGTH,
    HORIZON,
    MAX_ACCELERATION,
    MAX_SIN_SLIP,
    NEAR_MISS,
    SLOPE,
    WALK_SPEED,
    Scenes,
    draw_scenes,
)
from because_rl.envs.world import Hidden, World, needs_extra
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.graph import Graph

if TYPE_CHECKING:
    from highway_env.road.road import Road


@dataclass(frozen=True)
class _Snapshot:
    scene: Scenes
    bodies: tuple[tuple[np.ndarray, float, float, np.ndarray | None], ...]
    """position, heading, speed and (for pedestrians) velocity in the simulator"""
    flags: np.ndarray
    channels: np.ndarray
    trail: tuple[np.ndarray, ...]
    steps: int | None
    done: bool


class Crash(World):
    """``gymnasium.make("because/Crash-v1", split="I")``"""

    name: ClassVar[str] = "crash"
    horizon: ClassVar[int] = HORIZON
    road: Road

    @classmethod
    def make_factors(cls, spurious: int) -> FactorSpec:
        state = pack(
            *((body, 5, "continuous", "body") for body in BODIES),
            *((flag, 1, "binary", "flag") for flag in ("flag1", "flag2")),
        )
        action = pack(*((f"push_{body}", 2, "continuous", "acceleration") for body in BODIES))
        goal = tuple(
            GoalFactor(f"near_miss{i + 1}", i, i + 1, "binary", "flag", factor=f"flag{i + 1}", relation="at_least")
            for i in range(2)
        )
        return FactorSpec(spurious_channels.extend(state, "marker", spurious), action, goal)

    @classmethod
    def state_bounds(cls, spurious: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds on the bodies' motion in an episode, from initial ranges, speed limits and largest accelerations.

        A car turns at v sin b / (L/2), where sin b <= min(MAX_SIN_SLIP, a (L/2) / v^2): at most
        sqrt(a MAX_SIN_SLIP / (L/2)).
        """
        acceleration = np.hypot(MAX_ACCELERATION[:, 0] + SLOPE, MAX_ACCELERATION[:, 1])
        limit = np.array([CAR_SPEED, CAR_SPEED, WALK_SPEED, WALK_SPEED])
        speed = np.minimum(limit, np.array([10, 1, 0.8, 0.8]) + acceleration * EPISODE_SECONDS)
        turn = np.where(limit == CAR_SPEED, np.sqrt(acceleration * MAX_SIN_SLIP / HALF_LENGTH) * EPISODE_SECONDS, np.pi)
        distance = speed * EPISODE_SECONDS
        start_low = np.array([[0, -0.3], [16, 3.7], [19.5, 7], [19.5, -9]])
        start_high = np.array([[0, 0.3], [44, 4.3], [49.5, 9], [49.5, -7]])
        rest = np.stack([speed, speed, turn], 1)
        low = np.concatenate([start_low - distance[:, None], -rest], 1).reshape(-1)
        high = np.concatenate([start_high + distance[:, None], rest], 1).reshape(-1)
        return np.append(low, np.zeros(1 + spurious)), np.append(high, np.ones(1 + spurious))

    @classmethod
    def goal_bounds(cls) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(2), np.ones(2)

    @classmethod
    def make_action_space(cls) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (8,), np.float32)

    @classmethod
    def make_true_graph(cls, spurious: int) -> Graph:
        parents: dict[str, tuple[str, ...]] = {body: (body, f"push_{body}") for body in BODIES}
        for i in (1, 2):
            parents[f"flag{i}"] = (f"flag{i}", "ego", f"ped{i}", "push_ego", f"push_ped{i}")
        parents |= {marker: (marker,) for marker in spurious_channels.names("marker", spurious)}
        # Velocity moves a body from the first of the three frames on, its push only from the second. So a push
        # decides a flag in 0.1 to 2 of 1,000 transitions, depending on behaviour and body.
        rare = [(f"push_{body}", f"flag{i}") for i in (1, 2) for body in ("ego", f"ped{i}")]
        return Graph.from_parents(cls.make_factors(spurious).inputs, parents, rare)

    # The simulator -------------------------------------------------------------------------------------
    def _place(self, seed: int) -> None:
        with needs_extra("crash"):
            from because_rl.envs.crash.simulator import build_road
        self._scene = scene = draw_scenes([seed], self.split, self.spurious)
        self.road = build_road(scene.bodies[0])
        self._flags, self._channels = np.zeros(2), scene.channels[0].copy()
        self._trail: tuple[np.ndarray, ...] = (self._positions(),)

    def _advance(self, columns: np.ndarray) -> None:
        accelerations = columns.reshape(4, 2) * MAX_ACCELERATION
        accelerations[:, 0] += self._scene.slope[0]
        for vehicle, acceleration in zip(self.road.vehicles, accelerations, strict=True):
            vehicle.acceleration = acceleration
        for _ in range(FRAMES):
            self.road.step(DT)
            ego, _, *walkers = self.road.vehicles
            self._flags = np.maximum(self._flags, [ego.near_miss(walker) for walker in walkers])
        if self.render_mode is not None:
            self._trail = (*self._trail, self._positions())

    def exact_state(self) -> np.ndarray:
        bodies = [np.array([*v.position, *v.velocity, v.heading]) for v in self.road.vehicles]
        return np.concatenate([*bodies, self._flags, self._channels])

    def exact_goal(self) -> np.ndarray:
        return self._scene.goal[0].copy()

    def hidden(self) -> Hidden:
        return {name: value[0].copy() for name, value in self._scene.hidden().items()}

    def _positions(self) -> np.ndarray:
        return np.array([vehicle.position for vehicle in self.road.vehicles])

    def snapshot(self) -> _Snapshot:
        bodies = tuple(
            (v.position.copy(), v.heading, v.speed, v.walk_velocity.copy() if body.startswith("ped") else None)
            for body, v in zip(BODIES, self.road.vehicles, strict=True)
        )
        done = self._steps is not None and self._done
        return _Snapshot(self._scene, bodies, self._flags.copy(), self._channels.copy(), self._trail, self._steps, done)

    def restore(self, snapshot: _Snapshot) -> None:
        self._scene = snapshot.scene
        for vehicle, (position, heading, speed, walk_velocity) in zip(self.road.vehicles, snapshot.bodies, strict=True):
            vehicle.position, vehicle.heading, vehicle.speed = position.copy(), heading, speed
            if walk_velocity is not None:
                vehicle.walk_velocity = walk_velocity.copy()
            vehicle.on_state_update()
        self._flags, self._channels = snapshot.flags.copy(), snapshot.channels.copy()
        self._trail, self._steps, self._done = snapshot.trail, snapshot.steps, snapshot.done

    def intervene(self, factor: str, value: np.ndarray) -> None:
        value = np.asarray(value, np.float64).reshape(self.factors[factor].width)
        if factor in BODIES:
            self.road.vehicles[BODIES.index(factor)].set_state(value)
        elif factor in ("flag1", "flag2"):
            self._flags[("flag1", "flag2").index(factor)] = value[0]
        else:
            self._channels[self.factors[factor].start - 22] = value[0]

    def picture(self) -> np.ndarray:
        from because_rl.envs.crash.drawing import Picture, draw

        flags, goal = self._flags > 0, self.exact_goal() > 0
        return draw(Picture(self.road, self._trail, flags, goal, NEAR_MISS, self._steps or 0, HORIZON))
