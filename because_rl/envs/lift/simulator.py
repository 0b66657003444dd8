"""robosuite's Lift task as this package uses it: how it is built, and how its state is read and set.

The functions take MuJoCo's own model and data, so that the Gymnasium world (robosuite's ``step``) and the
batch (the same compiled model, our loop) share them.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from because_rl.envs.world import ROBOSUITE
from because_rl.errors import BecauseError

ARM = 7
"""Joints of the arm: the first seven positions, velocities and controls of the model."""
RATE = 20
"""Control steps per second."""
TARGET_OFFSET = 0.1
"""Distance from the hand to its target, in metres, for an action of 1."""
KP = 150.0
"""Stiffness of the operational-space controller: robosuite's, critically damped."""
GRIPPER_SPEED = 2.0
"""Change of the finger command per step, in [-1, 1]: with 2 it does not depend on the previous command."""
HALF_CUBE = 0.021
"""robosuite draws each half side from [0.020, 0.022]; we fix it."""
TABLE_TOP = 0.8
REST_HEIGHT = TABLE_TOP + HALF_CUBE - 1.0776e-4
"""Height of the cube's centre on the table, into which it sinks slightly by MuJoCo's soft contact."""
HOME = np.array([0.0, np.pi / 16, 0.0, -np.pi / 2 - np.pi / 3, 0.0, np.pi - 0.2, np.pi / 4])
"""Joint angles at reset: robosuite's, without its noise (which would be a hidden variable in the posture term)."""
RESET_OPENING = 0.020833
"""Opening of each finger at reset: robosuite's."""

JOINT_RANGE = np.array(
    [[-2.8973, 2.8973], [-1.7628, 1.7628], [-2.8973, 2.8973], [-3.0718, -0.0698]]
    + [[-2.8973, 2.8973], [-0.0175, 3.7525], [-2.8973, 2.8973]]
)
MAX_OPENING = 0.04
"""Largest opening of each finger."""
RENDER_BACKEND = "MUJOCO_GL"
"""The variable by which MuJoCo and robosuite choose their OpenGL, when they are imported."""
STATE_COLUMNS = 31
"""State columns that `read` writes: all but colour and contact."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide robosuite's log messages (private macros, optional robots) except errors."""
    logger = logging.getLogger("robosuite_logs")

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(is_error)
    try:
        yield
    finally:
        logger.removeFilter(is_error)


@contextlib.contextmanager
def _unchanged_render_backend() -> Iterator[None]:
    """Undo changes to MUJOCO_GL, which processes that we start later would inherit."""
    backend = os.environ.get(RENDER_BACKEND)
    try:
        yield
    finally:
        os.environ.pop(RENDER_BACKEND, None)
        if backend is not None:
            os.environ[RENDER_BACKEND] = backend


def _import_mujoco() -> None:
    """Import MuJoCo without OpenGL, which physics does not need: with MUJOCO_GL=egl the import would fail where there
    is no EGL. robosuite loads OpenGL itself for the first picture."""
    if "mujoco" not in sys.modules:
        with _unchanged_render_backend():
            os.environ[RENDER_BACKEND] = "disable"
            importlib.import_module("mujoco")


@cache
def _robosuite() -> Any:
    """robosuite, imported on first use: it takes seconds and is an optional extra."""
    try:
        _import_mujoco()
        with _quiet(), _unchanged_render_backend(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its source, the first time that Python 3.12 compiles it
            import robosuite
            from robosuite.environments.manipulation.lift import Lift
            from robosuite.models.grippers import register_gripper
            from robosuite.models.grippers.panda_gripper import PandaGripper
    except ImportError as error:
        raise BecauseError(
            f"Lift needs robosuite, which cannot be imported ({error}).",
            need="robosuite 1.5.2 with mujoco 3.3 to 3.9.",
            fix=f"pip install 'because-rl[lift]', then {ROBOSUITE}.",
        ) from error

    # robosuite looks environments and grippers up by class name, in its own registries.
    class BecauseLift(Lift):
        """Lift with a cube of fixed size."""

        def edit_model_xml(self, xml_str: str) -> str:
            tree = ElementTree.fromstring(super().edit_model_xml(xml_str))
            for geom in tree.iter("geom"):
                if geom.get("name") in ("cube_g0", "cube_g0_vis"):
                    geom.set("size", " ".join([str(HALF_CUBE)] * 3))
            return ElementTree.tostring(tree, encoding="unicode")

    @register_gripper
    class BecauseGripper(PandaGripper):
        """The Panda gripper, whose command does not depend on earlier steps."""

        @property
        def speed(self) -> float:
            return GRIPPER_SPEED

    return robosuite


def build() -> Any:
    """A new robosuite environment: Panda, 20 Hz, operational-space position control, soft resets."""
    robosuite = _robosuite()
    with _quiet():
        control = robosuite.load_composite_controller_config(robot="Panda")
        control["body_parts"]["right"] |= {
            "type": "OSC_POSITION",
            "output_max": [TARGET_OFFSET] * 3,
            "output_min": [-TARGET_OFFSET] * 3,
            "kp": KP,
        }
        return robosuite.make(
            "BecauseLift",
            robots="Panda",
            gripper_types="BecauseGripper",
            controller_configs=control,
            initialization_noise=None,
            control_freq=RATE,
            hard_reset=False,
            ignore_done=True,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            renderer="mujoco",
            seed=0,
        )


@dataclass(frozen=True)
class ModelIndices:
    """Ids and array positions in the compiled model. Arm joints come first, then two fingers, then the cube."""

    hand_site: int
    hand_body: int
    base_site: int
    cube_body: int
    cube_geom: int
    pads: tuple[int, int]
    fingers: slice
    cube: slice
    """seven positions: place, then quaternion w, x, y, z"""
    cube_speed: slice

    @classmethod
    def from_model(cls, model: Any) -> ModelIndices:
        """Look the indices up in an `mujoco.MjModel`."""
        cube = int(model.joint("cube_joint0").qposadr[0])
        speed = int(model.joint("cube_joint0").dofadr[0])
        finger = int(model.joint("gripper0_right_finger_joint1").qposadr[0])
        if (finger, cube, speed) != (ARM, ARM + 2, ARM + 2) or model.na:
            raise BecauseError(
                f"robosuite's model has its fingers at position {finger} and its cube at {cube}.",
                need="arm, fingers and cube in this order, and no actuator state.",
                fix="pip install --no-deps robosuite==1.5.2",
            )
        pads = tuple(int(model.geom(f"gripper0_right_finger{k}_pad_collision").id) for k in (1, 2))
        return cls(
            hand_site=int(model.site("gripper0_right_grip_site").id),
            hand_body=int(model.body("gripper0_right_eef").id),
            base_site=int(model.site("robot0_right_center").id),
            cube_body=int(model.body("cube_main").id),
            cube_geom=int(model.geom("cube_g0").id),
            pads=(pads[0], pads[1]),
            fingers=slice(finger, finger + 2),
            cube=slice(cube, cube + 7),
            cube_speed=slice(speed, speed + 6),
        )


def cube_pose(x: float, y: float, yaw: float) -> np.ndarray:
    """The seven positions (place, then quaternion w, x, y, z) of a cube that lies on the table."""
    return np.array([x, y, REST_HEIGHT, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def set_start(data: Any, indices: ModelIndices, cube: np.ndarray) -> None:
    """Set `data`, which has just been reset, to the start of an episode with this `cube` pose (7,)."""
    data.qpos[:ARM] = HOME
    data.qpos[indices.fingers] = RESET_OPENING, -RESET_OPENING
    data.qpos[indices.cube] = cube


def get_state(model: Any, data: Any) -> np.ndarray:
    """MuJoCo's integration state: time, positions, velocities, controls and the solver's warm start."""
    import mujoco

    row = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    return row


def set_state(model: Any, data: Any, row: np.ndarray) -> None:
    """Set what `get_state` returned."""
    import mujoco

    mujoco.mj_setState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)


def update_kinematics(model: Any, data: Any) -> None:
    """Compute body poses and contacts from the joint positions; has no effect on later steps."""
    import mujoco

    mujoco.mj_fwdPosition(model, data)


def is_grasped(data: Any, indices: ModelIndices) -> bool:
    """Whether both finger pads touch the cube (robosuite's own definition of a grasp)."""
    touching = _touching(data, indices)
    return indices.pads[0] in touching and indices.pads[1] in touching


def _touching(data: Any, indices: ModelIndices) -> set[int]:
    """Ids of the shapes in contact with the cube."""
    pairs = data.contact.geom
    return set(pairs[(pairs == indices.cube_geom).any(1)].ravel().tolist()) - {indices.cube_geom}


def read(data: Any, indices: ModelIndices, out: np.ndarray) -> None:
    """Write the first 31 state columns into `out`: hand, joints, cube, cube minus hand.

    Call `update_kinematics` first. Quaternions are x, y, z, w, as in robosuite's observations. Since q and -q are
    the same rotation, the sign is chosen such that the hand's x is positive and the cube's w is not negative, where
    they usually stay during an episode.
    """
    hand, cube = data.site_xpos[indices.hand_site], data.qpos[indices.cube]
    out[0:3] = hand
    out[3:7] = _signed(data.xquat[indices.hand_body], 1)
    out[7:14] = data.qpos[:ARM]
    out[14:21] = data.qvel[:ARM]
    out[21:24] = cube[:3]
    out[24:28] = _signed(cube[3:], 0)
    out[28:31] = cube[:3] - hand


def _signed(wxyz: np.ndarray, positive: int) -> np.ndarray:
    """The same rotation as x, y, z, w, with the sign that makes entry `positive` of `wxyz` positive."""
    sign = -1.0 if wxyz[positive] < 0 else 1.0
    return sign * wxyz[[1, 2, 3, 0]]


def move_hand(model: Any, data: Any, indices: ModelIndices, position: np.ndarray, xyzw: np.ndarray) -> None:
    """Move the joints, as little as possible, until the hand has this pose (Gauss-Newton, least norm)."""
    import mujoco

    target = xyzw[[3, 0, 1, 2]] / np.linalg.norm(xyzw)
    jac, turn, inverse, error = np.empty((6, model.nv)), np.empty(4), np.empty(4), np.empty(6)
    for _ in range(50):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        error[:3] = position - data.site_xpos[indices.hand_site]
        mujoco.mju_negQuat(inverse, data.xquat[indices.hand_body])
        mujoco.mju_mulQuat(turn, target, inverse)
        mujoco.mju_quat2Vel(error[3:], turn, 1.0)
        if np.abs(error).max() < 1e-12:
            break
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], indices.hand_site)
        data.qpos[:ARM] += np.linalg.pinv(jac[:, :ARM], rcond=1e-6) @ error
    if np.abs(error).max() > 1e-9 or (np.abs(data.qpos[:ARM] - JOINT_RANGE.mean(1)) > np.ptp(JOINT_RANGE, 1) / 2).any():
        raise BecauseError(
            f"The arm cannot bring the hand to {position.tolist()}, {xyzw.tolist()}.",
            need="a pose within its reach.",
            fix="choose one nearer to the hand's pose, and restore a snapshot first: the joints have already moved.",
        )


def set_contact(model: Any, data: Any, indices: ModelIndices, hold: bool) -> None:
    """Close each finger until its pad touches the cube, or open both wide."""
    signs = (1.0, -1.0)
    for finger, sign in enumerate(signs):
        data.qpos[indices.fingers][finger] = sign * MAX_OPENING
    data.qvel[indices.fingers] = 0.0
    update_kinematics(model, data)
    for finger, sign in enumerate(signs if hold else ()):
        for opening in np.arange(MAX_OPENING, 0.0, -2e-4):
            data.qpos[indices.fingers][finger] = sign * opening
            update_kinematics(model, data)
            if indices.pads[finger] in _touching(data, indices):
                break
    if is_grasped(data, indices) != hold:
        raise BecauseError(
            f"The fingers cannot {'hold' if hold else 'let go of'} the cube from where the hand is.",
            need="a cube between the fingers that is no wider than their opening.",
            fix="intervene at another step, and restore a snapshot first: the fingers have already moved.",
        )
