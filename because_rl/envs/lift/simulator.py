"""robosuite's Lift task as this package uses it: how it is built, and how its state is read.

Everything here takes MuJoCo's own model and data, so that the Gymnasium world (robosuite's ``step``)
and the batch (the same compiled model, our loop) read one state with one function.
"""

from __future__ import annotations

import contextlib
import logging
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from because_rl.errors import BecauseError

ARM = 7
"""Joints of the arm: the first seven positions, velocities and controls of the model."""
RATE = 20
"""Control steps per second."""
REACH = 0.1
"""How far ahead of the hand, in metres, a full action puts the target."""
KP = 150.0
"""Stiffness of the operational-space controller: robosuite's, critically damped."""
GRIPPER_SPEED = 2.0
"""Change of the finger command per step, out of [-1, 1]: 2 makes the command forget the last one."""
HALF_CUBE = 0.021
"""robosuite draws each half side from [0.020, 0.022]; we fix it."""
TABLE_TOP = 0.8
REST_HEIGHT = TABLE_TOP + HALF_CUBE - 1.0776e-4
"""Height of the cube's centre on the table, into which MuJoCo's soft contact lets it sink a little."""
HOME = np.array([0.0, np.pi / 16, 0.0, -np.pi / 2 - np.pi / 3, 0.0, np.pi - 0.2, np.pi / 4])
"""Joint angles at reset: robosuite's, without its noise (which would hide in the posture term)."""
OPENING = 0.020833
"""Each finger's opening at reset: robosuite's."""

JOINT_RANGE = np.array(
    [[-2.8973, 2.8973], [-1.7628, 1.7628], [-2.8973, 2.8973], [-3.0718, -0.0698]]
    + [[-2.8973, 2.8973], [-0.0175, 3.7525], [-2.8973, 2.8973]]
)
WIDE = 0.04
"""Each finger's opening at most."""
COLUMNS = 31
"""State columns that `read` writes: all but colour and contact."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop robosuite's advice (private macros, optional robots) but not its errors, and its change to the environment:
    processes that we start later could not import MuJoCo where there is no EGL."""
    logger, drawing = logging.getLogger("robosuite_logs"), os.environ.get("MUJOCO_GL")

    def serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(serious)
    try:
        yield
    finally:
        logger.removeFilter(serious)
        if drawing is None:
            os.environ.pop("MUJOCO_GL", None)


@cache
def _robosuite() -> Any:
    """robosuite, imported on first use: it takes seconds and is an optional extra."""
    try:
        with _quiet():
            import robosuite
            from robosuite.environments.manipulation.lift import Lift
            from robosuite.models.grippers import register_gripper
            from robosuite.models.grippers.panda_gripper import PandaGripper
    except ImportError as error:
        raise BecauseError(
            f"Lift needs robosuite, which cannot be imported ({error}).",
            need="robosuite 1.5.2 with mujoco 3.3 to 3.9.",
            fix="pip install --no-deps robosuite==1.5.2 (its own pins exclude numpy 2).",
        ) from error

    # robosuite finds environments and grippers by class name, in its own registries.
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
        """The Panda gripper, whose command does not remember the steps before."""

        @property
        def speed(self) -> float:
            return GRIPPER_SPEED

    return robosuite


def build() -> Any:
    """A robosuite environment: Panda, 20 Hz, operational-space position control, soft resets."""
    robosuite = _robosuite()
    with _quiet():
        control = robosuite.load_composite_controller_config(robot="Panda")
        control["body_parts"]["right"] |= {
            "type": "OSC_POSITION",
            "output_max": [REACH] * 3,
            "output_min": [-REACH] * 3,
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
class Anatomy:
    """Where things are in the compiled model. Arm joints come first, then two fingers, then the cube."""

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
    def of(cls, model: Any) -> Anatomy:
        cube = int(model.joint("cube_joint0").qposadr[0])
        speed = int(model.joint("cube_joint0").dofadr[0])
        finger = int(model.joint("gripper0_right_finger_joint1").qposadr[0])
        if (finger, cube, speed) != (ARM, ARM + 2, ARM + 2) or model.na:
            raise BecauseError(
                f"robosuite's model puts its fingers at {finger} and its cube at {cube}.",
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
    """The seven positions of a cube that lies on the table."""
    return np.array([x, y, REST_HEIGHT, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def place(data: Any, anatomy: Anatomy, cube: np.ndarray) -> None:
    """The start of an episode, in `data` that has been reset."""
    data.qpos[:ARM] = HOME
    data.qpos[anatomy.fingers] = OPENING, -OPENING
    data.qpos[anatomy.cube] = cube


def save(model: Any, data: Any) -> np.ndarray:
    """MuJoCo's integration state: time, positions, velocities, controls and the solver's warm start."""
    import mujoco

    row = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    return row


def load(model: Any, data: Any, row: np.ndarray) -> None:
    import mujoco

    mujoco.mj_setState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)


def locate(model: Any, data: Any) -> None:
    """Compute places, rotations and contacts from the positions; changes nothing that steps read."""
    import mujoco

    mujoco.mj_fwdPosition(model, data)


def grasped(data: Any, anatomy: Anatomy) -> bool:
    """Whether both finger pads touch the cube (robosuite's own definition of a grasp)."""
    touching = _touching(data, anatomy)
    return anatomy.pads[0] in touching and anatomy.pads[1] in touching


def _touching(data: Any, anatomy: Anatomy) -> set[int]:
    """Shapes in contact with the cube."""
    pairs = data.contact.geom
    return set(pairs[(pairs == anatomy.cube_geom).any(1)].ravel().tolist()) - {anatomy.cube_geom}


def read(data: Any, anatomy: Anatomy, out: np.ndarray) -> None:
    """Write the 31 columns up to the relative position: hand, joints, cube, cube minus hand.

    Needs `locate` since the last step. q and -q are one rotation: the hand's quaternion has
    x > 0 and the cube's w >= 0, which is where each spends its episodes. Quaternions are x, y, z, w,
    as in robosuite's observations.
    """
    hand, cube = data.site_xpos[anatomy.hand_site], data.qpos[anatomy.cube]
    out[0:3] = hand
    out[3:7] = _signed(data.xquat[anatomy.hand_body], 1)
    out[7:14] = data.qpos[:ARM]
    out[14:21] = data.qvel[:ARM]
    out[21:24] = cube[:3]
    out[24:28] = _signed(cube[3:], 0)
    out[28:31] = cube[:3] - hand


def _signed(wxyz: np.ndarray, positive: int) -> np.ndarray:
    sign = -1.0 if wxyz[positive] < 0 else 1.0
    return sign * wxyz[[1, 2, 3, 0]]


def reach(model: Any, data: Any, anatomy: Anatomy, position: np.ndarray, xyzw: np.ndarray) -> None:
    """Move the joints, as little as possible, until the hand is there (Gauss-Newton, least norm)."""
    import mujoco

    wanted = xyzw[[3, 0, 1, 2]] / np.linalg.norm(xyzw)
    jac, turn, inverse, error = np.empty((6, model.nv)), np.empty(4), np.empty(4), np.empty(6)
    for _ in range(50):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        error[:3] = position - data.site_xpos[anatomy.hand_site]
        mujoco.mju_negQuat(inverse, data.xquat[anatomy.hand_body])
        mujoco.mju_mulQuat(turn, wanted, inverse)
        mujoco.mju_quat2Vel(error[3:], turn, 1.0)
        if np.abs(error).max() < 1e-12:
            break
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], anatomy.hand_site)
        data.qpos[:ARM] += np.linalg.pinv(jac[:, :ARM], rcond=1e-6) @ error
    if np.abs(error).max() > 1e-9 or (np.abs(data.qpos[:ARM] - JOINT_RANGE.mean(1)) > np.ptp(JOINT_RANGE, 1) / 2).any():
        raise BecauseError(
            f"The arm cannot bring the hand to {position.tolist()}, {xyzw.tolist()}.",
            need="a pose within its reach.",
            fix="choose one nearer to where the hand is; the simulator is left in between, so restore a snapshot.",
        )


def squeeze(model: Any, data: Any, anatomy: Anatomy, hold: bool) -> None:
    """Close each finger until its pad touches the cube, or open both wide."""
    signs = (1.0, -1.0)
    for finger, sign in enumerate(signs):
        data.qpos[anatomy.fingers][finger] = sign * WIDE
    data.qvel[anatomy.fingers] = 0.0
    locate(model, data)
    for finger, sign in enumerate(signs if hold else ()):
        for opening in np.arange(WIDE, 0.0, -2e-4):
            data.qpos[anatomy.fingers][finger] = sign * opening
            locate(model, data)
            if anatomy.pads[finger] in _touching(data, anatomy):
                break
    if grasped(data, anatomy) != hold:
        raise BecauseError(
            f"The fingers cannot {'hold' if hold else 'let go of'} the cube from where the hand is.",
            need="a cube between the fingers, no wider than they open.",
            fix="intervene at another moment; the simulator is left in between, so restore a snapshot.",
        )
