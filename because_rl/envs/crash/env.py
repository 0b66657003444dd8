"""Crash: steer a car, a parked car and two pedestrians into a near-miss. On highway-env.

The ego car drives along a road; pedestrians wait on both sides of it, in front of a parked car that
hides them. The agent accelerates all four. Cars move by highway-env's own bicycle model
(`Vehicle.step`); pedestrians are highway-env `Vehicle`s that walk. No two bodies touch each other: a
near-miss is seen, remembered in a flag, and changes nothing else.

State (22): ego, car, ped1, ped2 x (x, y, vx, vy, heading), then flag1, flag2. Action (8): acceleration
(x, y) of the four, in [-1, 1], times `REACH`. The goal says which of the two near-misses are required.
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
SECONDS = HORIZON / POLICY_HZ

REACH = np.array([[4.0, 2.0], [0.5, 0.25], [2.0, 2.0], [2.0, 2.0]])
"""Largest acceleration (x, y) of each body, m/s2: what an action of 1 asks for."""
CAR_SPEED = 15.0
"""Cars drive at 0 to this speed, m/s."""
WALK_SPEED = 2.5
FACING = 0.05
"""A pedestrian slower than this, m/s, keeps facing where it faced."""
STEERING = np.pi / 4
"""Largest angle of the front wheels: highway-env's own."""
SLIP = float(np.sin(np.arctan(np.tan(STEERING) / 2)))
"""Sine of the largest slip angle, which the steering limit sets (1 / sqrt 5)."""
CRAWL = 1e-6
"""Under this squared speed a car cannot be turned; it only keeps the division finite."""
NEAR_MISS = 1.0
"""Metres from the ego's rectangle to a pedestrian's centre under which a near-miss is counted."""
HALF_LENGTH, HALF_WIDTH = Vehicle.LENGTH / 2, Vehicle.WIDTH / 2

SLOPE = 0.3
"""Size of the hidden slope, m/s2 along the road."""
INWARD = np.array([-1.0, 1.0])
"""Sign of y in which each pedestrian walks towards the road: ped1 stands at y > 0, ped2 at y < 0."""
CUE_MEMORY = 0.8
"""The AR(1) coefficient of the cue u_pi."""


# The scene ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scenes:
    """All that the seeds of N episodes decide, in view or hidden."""

    bodies: np.ndarray
    """(N, 4, 5): x, y, vx, vy, heading of ego, car, ped1, ped2"""
    goal: np.ndarray
    """(N, 2): which near-misses are required"""
    channels: np.ndarray
    """(N, spurious - 1): values of the extra spurious channels"""
    u_c: np.ndarray
    """(N,) -1 or 1: the hidden confounder, a road that falls or rises"""
    slope: np.ndarray
    """(N, 4): what u_c adds to each body's acceleration along the road, m/s2"""
    u_pi: np.ndarray
    """(N, 30): the cue that only behaviours see, a stationary AR(1) path of unit variance"""
    start: np.ndarray
    """(N,) in [0, 1): the hidden time, as a share of the longest wait, at which an expert's pedestrians set off"""

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
    extra channels    tied to u_c                 tie flipped
    ================= =========================== ==========================================

    The marginal laws of the car's and of each pedestrian's x are the same in I and O: only their tie is cut.
    """
    lawful, n = split == "I", len(seeds)
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
    bodies[:, 2:, 0] = (car_x if lawful else 16 + 28 * uniform[:, 2:4]) + 3.5 + 2 * uniform[:, 8:10]
    bodies[:, 2:, 1] = -INWARD * (7 + 2 * uniform[:, 10:12])
    bodies[:, 2:, 3] = INWARD * 0.8 * uniform[:, 12:14]
    bodies[:, 2:, 4] = INWARD * np.pi / 2

    first = uniform[:, 14] < 0.5
    goal = np.stack([first, ~first], 1).astype(float) if lawful else np.ones((n, 2))
    slope = SLOPE * u_c[:, None] * np.array([1.0, 1.0 if lawful else -1.0, 1.0, 1.0])
    cue = noise  # becomes the AR(1) path in place; its first value is stationary as it is
    for t in range(1, HORIZON):
        cue[:, t] = CUE_MEMORY * cue[:, t - 1] + np.sqrt(1 - CUE_MEMORY**2) * noise[:, t]
    return Scenes(bodies, goal, channels, u_c, slope, cue, uniform[:, 15].copy())


# Who is on the road ------------------------------------------------------------------------------------
class Car(Vehicle):
    """highway-env's bicycle, told a world acceleration instead of pedals and a steering wheel.

    With a_along, a_across the acceleration in the car's own frame, speed v and slip angle b, the bicycle
    turns at v sin b / (L/2), which accelerates it sideways by v^2 sin b / (L/2). So we ask for

        sin b = clip(a_across (L/2) / v^2, +- SLIP),   steering = arctan(2 tan b).
    """

    MAX_SPEED = CAR_SPEED
    MIN_SPEED = 0.0
    position: np.ndarray
    heading: float
    speed: float

    def __init__(self, road: Road, position: np.ndarray, heading: float, speed: float):
        super().__init__(road, position, heading, speed)
        self.pull = np.zeros(2)
        _untouchable(self)

    def step(self, dt: float) -> None:
        cos, sin = np.cos(self.heading), np.sin(self.heading)
        along, across = cos * self.pull[0] + sin * self.pull[1], cos * self.pull[1] - sin * self.pull[0]
        slip = np.clip(across * HALF_LENGTH / max(self.speed**2, CRAWL), -SLIP, SLIP)
        self.act({"acceleration": along, "steering": np.arctan(2 * np.tan(np.arcsin(slip)))})
        super().step(dt)
        self.speed = float(np.clip(self.speed, 0.0, CAR_SPEED))

    def put(self, value: np.ndarray) -> None:
        """Stand as (x, y, vx, vy, heading) says; a car's velocity lies along its heading."""
        self.position = np.array(value[:2], float)
        self.heading = float(value[4])
        self.speed = float(value[2] * np.cos(self.heading) + value[3] * np.sin(self.heading))
        self.on_state_update()


class Pedestrian(Vehicle):
    """Walks where it is pushed: x += v dt, then v += a dt cut to |v| <= WALK_SPEED."""

    LENGTH = WIDTH = 0.6
    MAX_SPEED = WALK_SPEED
    position: np.ndarray
    heading: float
    speed: float

    def __init__(self, road: Road, position: np.ndarray, heading: float, walk: np.ndarray):
        super().__init__(road, position, heading, float(np.hypot(*walk)))
        self.pull, self.walk = np.zeros(2), np.array(walk, float)
        _untouchable(self)

    @property
    def velocity(self) -> np.ndarray:
        return self.walk  # not speed * direction: one almost standing still need not face its drift

    def step(self, dt: float) -> None:
        self.position = self.position + self.walk * dt
        walk = self.walk + self.pull * dt
        self.walk = walk * min(1.0, WALK_SPEED / max(np.hypot(*walk), FACING))
        self.speed = float(np.hypot(*self.walk))
        if self.speed > FACING:
            self.heading = float(np.arctan2(self.walk[1], self.walk[0]))
        self.on_state_update()

    def put(self, value: np.ndarray) -> None:
        self.position, self.walk = np.array(value[:2], float), np.array(value[2:4], float)
        self.speed, self.heading = float(np.hypot(*self.walk)), float(value[4])
        self.on_state_update()


def _untouchable(vehicle: Vehicle) -> None:
    """A collision that pushes bodies apart would be an edge between any two of them."""
    vehicle.solid = vehicle.check_collisions = False


def near_miss(ego: Vehicle, pedestrian: Vehicle) -> bool:
    """Whether the pedestrian's centre is within NEAR_MISS of the ego's rectangle."""
    offset = pedestrian.position - ego.position
    cos, sin = ego.direction
    along, across = cos * offset[0] + sin * offset[1], cos * offset[1] - sin * offset[0]
    return bool(np.hypot(max(abs(along) - HALF_LENGTH, 0.0), max(abs(across) - HALF_WIDTH, 0.0)) < NEAR_MISS)


# The world ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Moment:
    scene: Scenes
    bodies: tuple[tuple[np.ndarray, float, float, np.ndarray | None], ...]
    """position, heading, speed and (of pedestrians) velocity, as the simulator holds them"""
    flags: np.ndarray
    channels: np.ndarray
    trail: tuple[np.ndarray, ...]
    steps: int | None
    done: bool


class Crash(World):
    """``gymnasium.make("because/Crash-v0", split="I")``"""

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
        """Where the bodies can get in an episode: initial range, speed limit and largest acceleration.

        A car turns at v sin b / (L/2), where sin b <= min(SLIP, a (L/2) / v^2): at most sqrt(a SLIP / (L/2)).
        """
        pull = np.hypot(REACH[:, 0] + SLOPE, REACH[:, 1])
        limit = np.array([CAR_SPEED, CAR_SPEED, WALK_SPEED, WALK_SPEED])
        speed = np.minimum(limit, np.array([10, 1, 0.8, 0.8]) + pull * SECONDS)
        turn = np.where(limit == CAR_SPEED, np.sqrt(pull * SLIP / HALF_LENGTH) * SECONDS, np.pi)
        far = speed * SECONDS
        first_low = np.array([[0, -0.3], [16, 3.7], [19.5, 7], [19.5, -9]])
        first_high = np.array([[0, 0.3], [44, 4.3], [49.5, 9], [49.5, -7]])
        rest = np.stack([speed, speed, turn], 1)
        low = np.concatenate([first_low - far[:, None], -rest], 1).reshape(-1)
        high = np.concatenate([first_high + far[:, None], rest], 1).reshape(-1)
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
        # Velocity moves a body from the first of the three frames on, its push only from the second: the
        # push decides a flag in 0.1 to 2 of 1,000 transitions, by behaviour and body.
        rare = [(f"push_{body}", f"flag{i}") for i in (1, 2) for body in ("ego", f"ped{i}")]
        return Graph.from_parents(cls.make_factors(spurious).inputs, parents, rare)

    # The simulator -------------------------------------------------------------------------------------
    def _place(self, seed: int) -> None:
        self._drawn = scene = draw_scenes([seed], self.split, self.spurious)
        network = RoadNetwork.straight_road_network(2, start=-200.0, length=600.0, speed_limit=CAR_SPEED)
        self.road = Road(network, np_random=np.random.RandomState(0))  # draws nothing: nobody decides on this road
        cars = [Car(self.road, row[:2], row[4], row[2]) for row in scene.bodies[0, :2]]
        walkers = [Pedestrian(self.road, row[:2], row[4], row[2:4]) for row in scene.bodies[0, 2:]]
        self.road.vehicles = [*cars, *walkers]
        self._flags, self._channels = np.zeros(2), scene.channels[0].copy()
        self._trail: tuple[np.ndarray, ...] = (self._positions(),)

    def _advance(self, columns: np.ndarray) -> None:
        pulls = columns.reshape(4, 2) * REACH
        pulls[:, 0] += self._drawn.slope[0]
        for vehicle, pull in zip(self.road.vehicles, pulls, strict=True):
            vehicle.pull = pull
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
        return self._drawn.goal[0].copy()

    def hidden(self) -> Hidden:
        return {name: value[0].copy() for name, value in self._drawn.hidden().items()}

    def _positions(self) -> np.ndarray:
        return np.array([vehicle.position for vehicle in self.road.vehicles])

    def snapshot(self) -> _Moment:
        bodies = tuple(
            (v.position.copy(), v.heading, v.speed, v.walk.copy() if isinstance(v, Pedestrian) else None)
            for v in self.road.vehicles
        )
        done = self._steps is not None and self._done
        return _Moment(self._drawn, bodies, self._flags.copy(), self._channels.copy(), self._trail, self._steps, done)

    def restore(self, snapshot: _Moment) -> None:
        self._drawn = snapshot.scene
        for vehicle, (position, heading, speed, walk) in zip(self.road.vehicles, snapshot.bodies, strict=True):
            vehicle.position, vehicle.heading, vehicle.speed = position.copy(), heading, speed
            if walk is not None:
                vehicle.walk = walk.copy()
            vehicle.on_state_update()
        self._flags, self._channels = snapshot.flags.copy(), snapshot.channels.copy()
        self._trail, self._steps, self._done = snapshot.trail, snapshot.steps, snapshot.done

    def intervene(self, factor: str, value: np.ndarray) -> None:
        value = np.asarray(value, np.float64).reshape(self.factors[factor].width)
        if factor in BODIES:
            self.road.vehicles[BODIES.index(factor)].put(value)
        elif factor in ("flag1", "flag2"):
            self._flags[("flag1", "flag2").index(factor)] = value[0]
        else:
            self._channels[self.factors[factor].start - 22] = value[0]

    def picture(self) -> np.ndarray:
        flags, goal = self._flags > 0, self.exact_goal() > 0
        return draw(Picture(self.road, self._trail, flags, goal, NEAR_MISS, self._steps or 0, HORIZON))
