"""Operational-space control of the arm: robosuite's ``OSC_POSITION`` controller as one compiled function.

With joint angles q, mass matrix M, hand Jacobian J = [Jp; Jr], hand position x and rotation R
(Khatib, 1987; critically damped, kd = 2 sqrt(kp)):

    force    = (Jp M^-1 Jp')^-1 [kp (x* - x)   - kd Jp qd]
    moment   = (Jr M^-1 Jr')^-1 [kp turn(R*, R) - kd Jr qd]
    torque   = J' [force; moment] + bias(q, qd) + N' M u
    u        = kn (q0 - q) - 2 sqrt(kn) qd
    N        = I - M^-1 J' (J M^-1 J')^-1 J

`turn` is half the sum of the cross products of the axes. The last term moves the arm to its rest posture
q0 without moving the hand; since N' M u = M u - J' (J M^-1 J')^-1 J u, no matrix need be inverted.
"""

from __future__ import annotations

import numba
import numpy as np

from because_rl.envs.lift.simulator import ARM, KP

KP_POSTURE = 10.0
"""Stiffness with which the arm returns to its rest posture: robosuite's."""


@numba.njit(cache=True, nogil=True)
def _cholesky(a: np.ndarray, n: int, lower: np.ndarray) -> None:
    """lower lower' = a, for the symmetric positive definite a[:n, :n]."""
    for i in range(n):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]


@numba.njit(cache=True, nogil=True)
def _forward(lower: np.ndarray, n: int, b: np.ndarray) -> None:
    """b <- lower^-1 b"""
    for i in range(n):
        for k in range(i):
            b[i] -= lower[i, k] * b[k]
        b[i] /= lower[i, i]


@numba.njit(cache=True, nogil=True)
def _solve(a: np.ndarray, b: np.ndarray) -> None:
    """b <- a^-1 b"""
    n = len(b)
    lower = np.empty((n, n))
    _cholesky(a, n, lower)
    _forward(lower, n, b)
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            b[i] -= lower[k, i] * b[k]
        b[i] /= lower[i, i]


# nogil lets the threads of `LiftBatch` run in parallel; at this size plain loops are ten times as fast as LAPACK.
@numba.njit(cache=True, nogil=True)
def osc(
    mass: np.ndarray,
    jac_pos: np.ndarray,
    jac_rot: np.ndarray,
    position: np.ndarray,
    rotation: np.ndarray,
    goal_position: np.ndarray,
    goal_rotation: np.ndarray,
    rest: np.ndarray,
    qpos: np.ndarray,
    qvel: np.ndarray,
    bias: np.ndarray,
    limits: np.ndarray,
    torque: np.ndarray,
) -> None:
    """Write the arm's torques, clipped to `limits` (ARM, 2), into ``torque[:ARM]``.

    `mass` (nv, nv), the Jacobians (3, nv), `qpos`, `qvel` and `bias` are those of the whole model, whose first ARM
    joints are the arm. `rotation` and `goal_rotation` are (3, 3); `rest` (ARM,) is the rest posture.
    """
    kd = 2.0 * np.sqrt(KP)
    desired = np.empty(6)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        turn = 0.0
        for axis in range(3):
            turn += rotation[j, axis] * goal_rotation[k, axis] - rotation[k, axis] * goal_rotation[j, axis]
        speed, spin = 0.0, 0.0
        for joint in range(ARM):
            speed += jac_pos[i, joint] * qvel[joint]
            spin += jac_rot[i, joint] * qvel[joint]
        desired[i] = KP * (goal_position[i] - position[i]) - kd * speed
        desired[3 + i] = KP * 0.5 * turn - kd * spin

    # With M = LL' and B = L^-1 J', the mobility J M^-1 J' is B'B.
    lower = np.empty((ARM, ARM))
    _cholesky(mass, ARM, lower)
    scaled_jac = np.empty((6, ARM))
    for i in range(3):
        scaled_jac[i], scaled_jac[3 + i] = jac_pos[i, :ARM], jac_rot[i, :ARM]
    jac = scaled_jac.copy()
    for i in range(6):
        _forward(lower, ARM, scaled_jac[i])
    mobility = np.empty((6, 6))
    for i in range(6):
        for j in range(6):
            total = 0.0
            for joint in range(ARM):
                total += scaled_jac[i, joint] * scaled_jac[j, joint]
            mobility[i, j] = total

    u = np.empty(ARM)
    for joint in range(ARM):
        u[joint] = KP_POSTURE * (rest[joint] - qpos[joint]) - 2.0 * np.sqrt(KP_POSTURE) * qvel[joint]
    posture = np.empty(6)
    for i in range(6):
        posture[i] = 0.0
        for joint in range(ARM):
            posture[i] += jac[i, joint] * u[joint]
    _solve(mobility[:3, :3], desired[:3])
    _solve(mobility[3:, 3:], desired[3:])
    _solve(mobility, posture)

    for joint in range(ARM):
        total = bias[joint]
        for i in range(6):
            total += jac[i, joint] * (desired[i] - posture[i])
        for k in range(ARM):
            total += mass[joint, k] * u[k]
        torque[joint] = min(max(total, limits[joint, 0]), limits[joint, 1])
