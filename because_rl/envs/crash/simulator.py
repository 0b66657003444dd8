"""highway-env's bodies and road as Crash uses them. Imports highway-env: `crash.env` imports this module on reset."""

from __future__ import annotations

import numpy as np
from highway_env.road.road import Road, RoadNetwork
from highway_env.vehicle.kinematics import Vehicle

from because_rl.envs.crash.scene import (
    CAR_SPEED,
    HALF_LENGTH,
    HALF_WIDTH,
    MAX_SIN_SLIP,
    MIN_FACING_SPEED,
    MIN_SQUARED_SPEED,
    NEAR_MISS,
    WALK_SPEED,
)


def build_road(bodies: np.ndarray) -> Road:
    """A straight road with two cars and two pedestrians, which start at `bodies` (4, 5): x, y, vx, vy, heading."""
    network = RoadNetwork.straight_road_network(2, start=-200.0, length=600.0, speed_limit=CAR_SPEED)
    road = Road(network, np_random=np.random.RandomState(0))  # never used: nothing on this road is random
    cars = [Car(road, row[:2], row[4], row[2]) for row in bodies[:2]]
    walkers = [Pedestrian(road, row[:2], row[4], row[2:4]) for row in bodies[2:]]
    road.vehicles = [*cars, *walkers]
    return road


class Car(Vehicle):
    """highway-env's bicycle model, controlled by an acceleration (x, y) instead of throttle and steering.

    With a_along, a_across the acceleration in the car's own frame, speed v and slip angle b, the bicycle
    turns at v sin b / (L/2), which accelerates it sideways by v^2 sin b / (L/2). So we set

        sin b = clip(a_across (L/2) / v^2, +- MAX_SIN_SLIP),   steering = arctan(2 tan b).
    """

    MAX_SPEED = CAR_SPEED
    MIN_SPEED = 0.0
    position: np.ndarray
    heading: float
    speed: float

    def __init__(self, road: Road, position: np.ndarray, heading: float, speed: float):
        super().__init__(road, position, heading, speed)
        self.acceleration = np.zeros(2)
        _disable_collisions(self)

    def step(self, dt: float) -> None:
        cos, sin = np.cos(self.heading), np.sin(self.heading)
        ax, ay = self.acceleration
        along, across = cos * ax + sin * ay, cos * ay - sin * ax
        slip = np.clip(across * HALF_LENGTH / max(self.speed**2, MIN_SQUARED_SPEED), -MAX_SIN_SLIP, MAX_SIN_SLIP)
        self.act({"acceleration": along, "steering": np.arctan(2 * np.tan(np.arcsin(slip)))})
        super().step(dt)
        self.speed = float(np.clip(self.speed, 0.0, CAR_SPEED))

    def set_state(self, value: np.ndarray) -> None:
        """Set (x, y, vx, vy, heading); of the velocity only the part along the heading counts."""
        self.position = np.array(value[:2], float)
        self.heading = float(value[4])
        self.speed = float(value[2] * np.cos(self.heading) + value[3] * np.sin(self.heading))
        self.on_state_update()

    def near_miss(self, pedestrian: Pedestrian) -> bool:
        """Whether the pedestrian's centre is within NEAR_MISS of this car's rectangle."""
        offset = pedestrian.position - self.position
        cos, sin = self.direction
        along, across = cos * offset[0] + sin * offset[1], cos * offset[1] - sin * offset[0]
        return bool(np.hypot(max(abs(along) - HALF_LENGTH, 0.0), max(abs(across) - HALF_WIDTH, 0.0)) < NEAR_MISS)


class Pedestrian(Vehicle):
    """A point mass: x += v dt, then v += a dt, limited to |v| <= WALK_SPEED."""

    LENGTH = WIDTH = 0.6
    MAX_SPEED = WALK_SPEED
    position: np.ndarray
    heading: float
    speed: float

    def __init__(self, road: Road, position: np.ndarray, heading: float, walk_velocity: np.ndarray):
        super().__init__(road, position, heading, float(np.hypot(*walk_velocity)))
        self.acceleration, self.walk_velocity = np.zeros(2), np.array(walk_velocity, float)
        _disable_collisions(self)

    @property
    def velocity(self) -> np.ndarray:
        return self.walk_velocity  # not speed * direction: below MIN_FACING_SPEED the heading may differ

    def step(self, dt: float) -> None:
        self.position = self.position + self.walk_velocity * dt
        walk_velocity = self.walk_velocity + self.acceleration * dt
        self.walk_velocity = walk_velocity * min(1.0, WALK_SPEED / max(np.hypot(*walk_velocity), MIN_FACING_SPEED))
        self.speed = float(np.hypot(*self.walk_velocity))
        if self.speed > MIN_FACING_SPEED:
            self.heading = float(np.arctan2(self.walk_velocity[1], self.walk_velocity[0]))
        self.on_state_update()

    def set_state(self, value: np.ndarray) -> None:
        self.position, self.walk_velocity = np.array(value[:2], float), np.array(value[2:4], float)
        self.speed, self.heading = float(np.hypot(*self.walk_velocity)), float(value[4])
        self.on_state_update()


def _disable_collisions(vehicle: Vehicle) -> None:
    """Collisions that push bodies away from each other would add edges between any two of them to the graph."""
    vehicle.solid = vehicle.check_collisions = False
