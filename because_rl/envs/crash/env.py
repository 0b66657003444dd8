"""Crash: steer a car, a parked car and two pedestrians into a near-miss. On highway-env.

The ego car drives along a road; pedestrians wait on both sides of it, in front of a parked car that
hides them. The agent accelerates all four. Cars move by highway-env's own bicycle model
(`Vehicle.step`); pedestrians are highway-env `Vehicle`s that walk. Bodies pass through each other: a
near-miss sets a flag, which stays set, and has no other effect.

State (22): ego, car, ped1, ped2 x (x, y, vx, vy, heading), then flag1, flag2. Action (8): acceleration
(x, y) of the four, in [-1, 1], times `MAX_ACCELERATION`. The goal says which of the two near-misses are required.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from highway_env.road.road import Road, RoadNetwork
from highway_env.vehicle.kinematics import Vehicle

from because_rl.envs import spurious as spurious_channels
from because_rl.envs.crash.drawing import Picture, draw
from because_rl.envs.world import Hidden, World
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.graph import Graph
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
HALF_LENGTH, HALF_WIDTH = Vehicle.LENGTH / 2, Vehicle.WIDTH / 2

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


# Bodies on the road --------------------------------------------------------------------------------------
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


def near_miss(ego: Vehicle, pedestrian: Vehicle) -> bool:
    """Whether the pedestrian's centre is within NEAR_MISS of the ego's rectangle."""
    offset = pedestrian.position - ego.position
    cos, sin = ego.direction
    along, across = cos * offset[0] + sin * offset[1], cos * offset[1] - sin * offset[0]
    return bool(np.hypot(max(abs(along) - HALF_LENGTH, 0.0), max(abs(across) - HALF_WIDTH, 0.0)) < NEAR_MISS)


# The world ---------------------------------------------------------------------------------------------
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
        self._scene = scene = draw_scenes([seed], self.split, self.spurious)
        network = RoadNetwork.straight_road_network(2, start=-200.0, length=600.0, speed_limit=CAR_SPEED)
        self.road = Road(network, np_random=np.random.RandomState(0))  # never used: nothing on this road is random
        cars = [Car(self.road, row[:2], row[4], row[2]) for row in scene.bodies[0, :2]]
        walkers = [Pedestrian(self.road, row[:2], row[4], row[2:4]) for row in scene.bodies[0, 2:]]
        self.road.vehicles = [*cars, *walkers]
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
            self._flags = np.maximum(self._flags, [near_miss(ego, walker) for walker in walkers])
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
            (v.position.copy(), v.heading, v.speed, v.walk_velocity.copy() if isinstance(v, Pedestrian) else None)
            for v in self.road.vehicles
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
        flags, goal = self._flags > 0, self.exact_goal() > 0
        return draw(Picture(self.road, self._trail, flags, goal, NEAR_MISS, self._steps or 0, HORIZON))
