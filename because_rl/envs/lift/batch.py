"""Lift, many scenes at once: robosuite's own compiled model, stepped by robosuite's control law.

A world is one row of MuJoCo's *integration state* (positions, velocities, solver warm start, ...),
which determines the future exactly; stepping it means loading the row into one of a few `MjData`,
running the 25 physics steps of a control step, and saving the row. So a world takes only 241 numbers of
memory, and the result does not depend on which thread stepped it. A test compares it with robosuite's own
``step``.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from because_rl.envs.batch import BatchEnv
from because_rl.envs.lift import simulator
from because_rl.envs.lift.env import COLOUR, CONTACT, GOAL_HEIGHT, Lift, draw_scene
from because_rl.envs.lift.osc import osc
from because_rl.envs.lift.simulator import ARM
from because_rl.envs.world import Hidden


def _thread_count() -> int:
    """Threads to use: one per available core, but one inside a worker process, whose siblings use the other cores."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def _compiled_model() -> Any:
    """The model that `robosuite.make` compiles. It is read only, so all threads and batches share one."""
    return simulator.build().sim.model._model


class _Stepper:
    """What one thread needs: an MjData and the buffers of the controller."""

    def __init__(self, model: Any, indices: simulator.ModelIndices):
        import mujoco

        self.mujoco, self.model, self.indices = mujoco, model, indices
        self.data = data = mujoco.MjData(model)
        self.spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self.size = mujoco.mj_stateSize(model, self.spec)
        self.substeps = round(1 / (simulator.RATE * model.opt.timestep))
        self.limits = model.actuator_ctrlrange[:ARM].copy()
        self.mass = np.empty((model.nv, model.nv))
        self.jac_pos, self.jac_rot = np.empty((3, model.nv)), np.empty((3, model.nv))
        # Views of arrays in the data, which stay valid.
        self.position, self.rotation = (
            data.site_xpos[indices.hand_site],
            data.site_xmat[indices.hand_site].reshape(3, 3),
        )

    def start(self, cube: np.ndarray, row: np.ndarray) -> None:
        """Write the start of an episode with this `cube` pose into `row`."""
        self.mujoco.mj_resetData(self.model, self.data)
        simulator.set_start(self.data, self.indices, cube)
        self.mujoco.mj_getState(self.model, self.data, row, self.spec)

    def advance(self, row: np.ndarray, action: np.ndarray) -> None:
        """One control step with `action` (4,) of the world saved in `row`, in place."""
        mujoco, model, data = self.mujoco, self.model, self.data
        mujoco.mj_setState(model, data, row, self.spec)
        qpos, qvel, bias, ctrl, mass_entries = data.qpos, data.qvel, data.qfrc_bias, data.ctrl, data.qM
        fingers = (0.0, 0.0) if action[3] > 0 else model.actuator_ctrlrange[ARM:, 0] + model.actuator_ctrlrange[ARM:, 1]
        for substep in range(self.substeps):
            mujoco.mj_step1(model, data)
            if substep == 0:  # the target is fixed in the world for the whole control step
                goal_position = self.position + simulator.TARGET_OFFSET * action[:3]
                goal_rotation = self.rotation.copy()
                ctrl[ARM:] = fingers
            mujoco.mj_jacSite(model, data, self.jac_pos, self.jac_rot, self.indices.hand_site)
            mujoco.mj_fullM(model, self.mass, mass_entries)
            osc(
                self.mass, self.jac_pos, self.jac_rot, self.position, self.rotation, goal_position, goal_rotation,
                simulator.HOME, qpos, qvel, bias, self.limits, ctrl,
            )  # fmt: skip
            mujoco.mj_step2(model, data)
        mujoco.mj_getState(model, data, row, self.spec)

    def read(self, row: np.ndarray, state: np.ndarray) -> None:
        """Write the simulator's columns and contact of the world saved in `row` into `state`."""
        self.mujoco.mj_setState(self.model, self.data, row, self.spec)
        self.mujoco.mj_fwdPosition(self.model, self.data)
        simulator.read(self.data, self.indices, state)
        state[CONTACT] = simulator.is_grasped(self.data, self.indices)


class LiftBatch(BatchEnv):
    """`workers` threads step the worlds; by default one per core, or one inside a worker process."""

    world = Lift

    def __init__(self, split: str = "I", spurious: int = 1, workers: int | None = None):
        super().__init__(split, spurious)
        self.workers = workers or _thread_count()
        model = _compiled_model()
        indices = simulator.ModelIndices.from_model(model)
        self._steppers = [_Stepper(model, indices) for _ in range(self.workers)]
        self._pool = ThreadPoolExecutor(self.workers) if self.workers > 1 else None

    def _place(self, seeds: Sequence[int]) -> None:
        scenes = [draw_scene(seed, self.split, self.spurious) for seed in seeds]
        self._rows = np.empty((len(seeds), self._steppers[0].size))
        self._state = np.empty((len(seeds), self.factors.state_size))
        for scene, row, state in zip(scenes, self._rows, self._state, strict=True):
            self._steppers[0].start(scene.cube, row)
            self._steppers[0].read(row, state)
            state[COLOUR], state[CONTACT + 1 :] = scene.colours[0], scene.colours[1:]
        self._hidden = {
            "u_c": np.array([scene.u_c for scene in scenes]),
            "u_pi": np.array([scene.u_pi for scene in scenes]),
        }

    def _advance(self, columns: np.ndarray, active: np.ndarray) -> None:
        worlds = np.flatnonzero(active)

        def work(share: int) -> None:
            stepper = self._steppers[share]
            for world in worlds[share :: self.workers]:
                stepper.advance(self._rows[world], columns[world])
                stepper.read(self._rows[world], self._state[world])

        if self._pool is None:
            work(0)
        else:
            list(self._pool.map(work, range(self.workers)))

    def exact_state(self) -> np.ndarray:
        return self._state.copy()

    def exact_goal(self) -> np.ndarray:
        return np.full((len(self._state), 1), GOAL_HEIGHT)

    def hidden(self) -> Hidden:
        return dict(self._hidden)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
