"""Lift: pick the cube up from the table. On robosuite (Panda arm, MuJoCo).

An action sets the target of the hand up to 0.1 m away along x, y, z, and opens (<= 0) or closes (> 0)
the gripper; robosuite's operational-space controller moves the arm there, at 20 Hz for 30 steps. The task
is solved when the cube is 0.1 m above its resting height.

State (33): hand position and quaternion, joint angles, joint velocities, cube position and quaternion,
cube minus hand, colour, contact (both finger pads touch the cube). As in the paper, the opening of the fingers
is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from because_rl.envs import spurious as spurious_channels
from because_rl.envs.lift import simulator
from because_rl.envs.lift.camera import Camera
from because_rl.envs.lift.simulator import ARM
from because_rl.envs.world import Hidden, World, caption
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.graph import Graph
from because_rl.rng import stream

HORIZON = 30
GOAL_HEIGHT = simulator.REST_HEIGHT + 0.1
SIDE_Y, SIDE_NOISE = 0.12, 0.015
"""The hidden u_c = +-1 puts the cube near y = +-SIDE_Y."""
X_RANGE, Y_RANGE, YAW_RANGE = 0.1, 0.15, np.pi / 4
WAIT_RANGE = (6, 15)
"""Smallest and largest value of the hidden u_pi: random steps at the start of the medium behaviour."""

COLOUR, CONTACT = simulator.STATE_COLUMNS, simulator.STATE_COLUMNS + 1
"""The columns after the simulator's 31; extra colour channels follow contact."""


@dataclass(frozen=True)
class Scene:
    """All that the seed of an episode determines, observed or hidden."""

    x: float
    y: float
    yaw: float
    colours: np.ndarray
    """(spurious,): the colour of the cube, then the extra channels"""
    u_c: float
    u_pi: int

    @property
    def cube(self) -> np.ndarray:
        """The cube's seven MuJoCo positions: place, then quaternion w, x, y, z."""
        return simulator.cube_pose(self.x, self.y, self.yaw)


def draw_scene(seed: int, split: str, spurious: int) -> Scene:
    """The scene of a seed: u_c decides the side of the table and, through it, the colour.

    y = 0.12 u_c + N(0, 0.015), clipped to +-0.15; colour = 0.5 + 0.4 y / 0.12 in split I and
    0.5 - 0.4 y / 0.12 in split O. x and yaw are uniform and independent.
    """
    rng = stream(seed, "lift", "scene")
    u_c = float(rng.choice((-1.0, 1.0)))
    y = float(np.clip(SIDE_Y * u_c + rng.normal(0.0, SIDE_NOISE), -Y_RANGE, Y_RANGE))
    x = float(rng.uniform(-X_RANGE, X_RANGE))
    yaw = float(rng.uniform(-YAW_RANGE, YAW_RANGE))
    signal = y / SIDE_Y
    colour = np.clip(0.5 + 0.4 * (signal if split == "I" else -signal), 0.0, 1.0)
    extra = spurious_channels.scalar_channels(seed, spurious, float(np.clip(signal, -1.0, 1.0)), split)
    u_pi = int(stream(seed, "lift", "u_pi").integers(WAIT_RANGE[0], WAIT_RANGE[1] + 1))
    return Scene(x, y, yaw, np.append(colour, extra), u_c, u_pi)


class _Snapshot(NamedTuple):
    physics: np.ndarray
    finger_command: np.ndarray
    colours: np.ndarray
    hidden: Hidden
    steps: int | None
    done: bool


class Lift(World):
    """``gymnasium.make("because/Lift-v1", split="I")``"""

    metadata = {"render_modes": ["rgb_array"], "render_fps": simulator.RATE}  # noqa: RUF012  (as in World)
    name: ClassVar[str] = "lift"
    horizon: ClassVar[int] = HORIZON
    robot: Any
    """robosuite's environment, built at the first reset"""
    _camera: Camera | None = None

    @classmethod
    def make_factors(cls, spurious: int) -> FactorSpec:
        state = pack(
            ("eef_x", 1, "continuous", "position"),
            ("eef_y", 1, "continuous", "position"),
            ("eef_z", 1, "continuous", "position"),
            ("eef_quat", 4, "continuous", "quaternion"),
            ("joint_pos", 7, "continuous"),
            ("joint_vel", 7, "continuous"),
            ("cube_x", 1, "continuous", "position"),
            ("cube_y", 1, "continuous", "position"),
            ("cube_z", 1, "continuous", "position"),
            ("cube_quat", 4, "continuous", "quaternion"),
            ("rel_x", 1, "continuous", "offset"),
            ("rel_y", 1, "continuous", "offset"),
            ("rel_z", 1, "continuous", "offset"),
            ("colour", 1, "continuous"),
            ("contact", 1, "binary"),
        )
        action = pack(
            ("dx", 1, "continuous", "move"),
            ("dy", 1, "continuous", "move"),
            ("dz", 1, "continuous", "move"),
            ("gripper", 1, "continuous"),
        )
        goal = (GoalFactor("height", 0, 1, "continuous", "position", factor="cube_z", relation="at_least"),)
        return FactorSpec(spurious_channels.extend(state, "colour", spurious), action, goal)

    @classmethod
    def state_bounds(cls, spurious: int) -> tuple[np.ndarray, np.ndarray]:
        """The hand is within its links' total length (1.5 m) of the arm's base; joints are within their range plus
        0.5 rad, since their limits are soft; 50 rad/s and 10 m are beyond what the motors can reach in 1.5 s."""
        hand = np.array([-2.1, -1.5, -0.6]), np.array([1.0, 1.5, 2.5])
        cube = np.array([-10.0, -10.0, -1.0]), np.array([10.0, 10.0, 10.0])
        low, high = simulator.JOINT_RANGE.T + [[-0.5], [0.5]]
        one, fast, colours = np.ones(4), np.full(ARM, 50.0), np.ones(spurious - 1)
        return (
            np.concatenate([hand[0], -one, low, -fast, cube[0], -one, cube[0] - hand[1], [0, 0], 0 * colours]),
            np.concatenate([hand[1], one, high, fast, cube[1], one, cube[1] - hand[0], [1, 1], colours]),
        )

    @classmethod
    def goal_bounds(cls) -> tuple[np.ndarray, np.ndarray]:
        return np.array([simulator.TABLE_TOP]), np.array([simulator.TABLE_TOP + 1.0])

    @classmethod
    def make_action_space(cls) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (4,), np.float32)

    @classmethod
    def make_true_graph(cls, spurious: int) -> Graph:
        """Edges whose effect in the simulator is at least of a stated size.

        Hand, joints, cube and relative position are functions of one another, so which of them is *the*
        parent is a convention: each factor is its own parent, the joints are the parents of the hand's motion,
        and the relative position is a parent of the effects of touch. Given that, i -> j is an edge when swapping
        i changes the next j by at least 2% of j's own mean-square change in a step (5% for the cube's quaternion
        and contact, which grasps make chaotic). ``tests/envs/test_lift_graph.py`` measures it in robosuite.
        """
        arm = ("joint_pos", "joint_vel", "dx", "dy", "dz")
        touch = ("joint_pos", "joint_vel", "contact")
        parents: dict[str, tuple[str, ...]] = {
            "eef_x": ("eef_x", "joint_pos", "joint_vel", "dx"),
            "eef_y": ("eef_y", "joint_pos", "joint_vel", "dy"),
            "eef_z": ("eef_z", "joint_pos", "joint_vel", "dz"),
            "eef_quat": ("eef_quat", *arm),
            "joint_pos": arm,
            "joint_vel": arm,
            "cube_x": ("cube_x", *touch, "dx", "dz", "gripper"),
            "cube_y": ("cube_y", "cube_z", *touch, "dy", "dz", "gripper"),
            "cube_z": ("cube_z", *touch, "dz", "gripper"),
            "cube_quat": (
                *("eef_quat", "joint_vel", "cube_z", "cube_quat", "rel_x", "rel_y", "rel_z", "contact"),
                *("dx", "dy", "dz", "gripper"),
            ),
            "rel_x": ("rel_x", *touch, "dx"),
            "rel_y": ("rel_y", *touch, "dy"),
            "rel_z": ("rel_z", *touch, "dz", "gripper"),
            "colour": ("colour",),
            "contact": (
                *("eef_quat", "joint_vel", "cube_z", "cube_quat", "rel_x", "rel_y", "rel_z", "contact"),
                *("dx", "dy", "dz", "gripper"),
            ),
        }
        parents |= {name: (name,) for name in spurious_channels.names("colour", spurious)}
        return Graph.from_parents(cls.make_factors(spurious).inputs, parents)

    # The simulator -----------------------------------------------------------------------------------
    def _place(self, seed: int) -> None:
        if not hasattr(self, "robot"):
            self.robot = simulator.build()
            self._model, self._data = self.robot.sim.model._model, self.robot.sim.data._data
            self._indices = simulator.ModelIndices.from_model(self._model)
        scene = draw_scene(seed, self.split, self.spurious)
        self.robot.reset()  # soft: clears the data and builds the controllers anew
        simulator.set_start(self._data, self._indices, scene.cube)
        self._colours = scene.colours.copy()
        self._hidden = {"u_c": scene.u_c, "u_pi": scene.u_pi}
        self._refresh()

    def _advance(self, columns: np.ndarray) -> None:
        # robosuite keeps the last finger command on exactly 0, so we never send it.
        self.robot.step(np.append(columns[:3], 1.0 if columns[3] > 0 else -1.0))
        self._refresh()

    def _refresh(self) -> None:
        """Recompute what depends on the positions, which robosuite leaves one physics step behind."""
        simulator.update_kinematics(self._model, self._data)
        for controller in self.robot.robots[0].part_controllers.values():
            # Otherwise the first command after a reset uses the arm's state from when the controllers were built.
            controller.new_update = True

    def exact_state(self) -> np.ndarray:
        state = np.empty(self.factors.state_size)
        simulator.read(self._data, self._indices, state)
        state[COLOUR] = self._colours[0]
        state[CONTACT] = self.robot._check_grasp(self.robot.robots[0].gripper["right"], self.robot.cube)
        state[CONTACT + 1 :] = self._colours[1:]
        return state

    def exact_goal(self) -> np.ndarray:
        return np.array([GOAL_HEIGHT])

    def hidden(self) -> Hidden:
        return dict(self._hidden)

    def snapshot(self) -> _Snapshot:
        return _Snapshot(
            simulator.get_state(self._model, self._data),
            np.copy(self.robot.robots[0].gripper["right"].current_action),
            self._colours.copy(),
            self.hidden(),
            self._steps,
            self._steps is not None and self._done,
        )

    def restore(self, snapshot: _Snapshot) -> None:
        simulator.set_state(self._model, self._data, snapshot.physics)
        self.robot.robots[0].gripper["right"].current_action = snapshot.finger_command.copy()
        self._colours, self._hidden = snapshot.colours.copy(), dict(snapshot.hidden)
        self._steps, self._done = snapshot.steps, snapshot.done
        self._refresh()

    def intervene(self, factor: str, value: np.ndarray) -> None:
        """do(factor = value), realised in the simulator.

        Joint angles and velocities, the cube's pose and the colours are set and nothing else changes. The
        other factors are functions of these and cannot change alone; they are changed by the smallest
        physical change that sets them:

        - ``eef_x``, ``eef_y``, ``eef_z``, ``eef_quat``: the joints move (inverse kinematics, least
          norm) and the rest of the hand's pose stays; cube minus hand follows.
        - ``rel_x``, ``rel_y``, ``rel_z``: the cube moves.
        - ``contact``: the fingers close until both touch the cube, or open wide.
        """
        value = np.asarray(value, np.float64).reshape(-1)
        model, data, indices = self._model, self._data, self._indices
        part, _, axis = factor.partition("_")
        if factor == "joint_pos":
            data.qpos[:ARM] = value
        elif factor == "joint_vel":
            data.qvel[:ARM] = value
        elif factor == "cube_quat":
            data.qpos[indices.cube][3:] = (value / np.linalg.norm(value))[[3, 0, 1, 2]]
        elif part == "cube":
            data.qpos[indices.cube]["xyz".index(axis)] = value[0]
        elif part == "rel":
            row = "xyz".index(axis)
            data.qpos[indices.cube][row] = data.site_xpos[indices.hand_site, row] + value[0]
        elif factor == "eef_quat":
            simulator.move_hand(model, data, indices, data.site_xpos[indices.hand_site].copy(), value)
        elif part == "eef":
            target = data.site_xpos[indices.hand_site].copy()
            target["xyz".index(axis)] = value[0]
            simulator.move_hand(model, data, indices, target, data.xquat[indices.hand_body][[1, 2, 3, 0]])
        elif factor == "contact":
            simulator.set_contact(model, data, indices, bool(value[0]))
        elif part == "colour":
            self._colours[int(axis or 1) - 1] = value[0]
        else:
            raise BecauseError(
                f"Got the factor {factor!r}.", need=f"one of {list(self.factors.targets)}.", fix="correct the name."
            )
        self._refresh()

    def picture(self) -> np.ndarray:
        if self._camera is None:
            physics = simulator.get_state(self._model, self._data)  # creating a renderer advances the physics
            self._camera = Camera(self.robot.sim)
            simulator.set_state(self._model, self._data, physics)
            self._refresh()
        height = self._data.qpos[self._indices.cube][2] - simulator.REST_HEIGHT
        text = f"step {self._steps}/{HORIZON}   cube {100 * height:.1f} cm up   colour {self._colours[0]:.2f}"
        return caption(self._camera.frame(self._colours[0]), text)

    def close(self) -> None:
        self._camera = None
