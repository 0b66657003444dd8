"""Operational-space control of the arm: robosuite's ``OSC_POSITION`` law as one compiled function.

With joint angles q, mass matrix M, hand Jacobian J = [Jp; Jr], hand position x and rotation R
(Khatib, 1987; critically damped, kd = 2 sqrt(kp)):

    force    = (Jp M^-1 Jp')^-1 [kp (x* - x)   - kd Jp qd]
    moment   = (Jr M^-1 Jr')^-1 [kp turn(R*, R) - kd Jr qd]
    torque   = J' [force; moment] + bias(q, qd) + N' M u
    u        = kn (q0 - q) - 2 sqrt(kn) qd
    N        = I - M^-1 J' (J M^-1 J')^-1 J

`turn` is half the sum of the cross products of the axes. The last term pulls the arm to its rest posture
q0 without moving the hand; since N' M u = M u - J' (J M^-1 J')^-1 J u, no matrix need be inverted.
"""

from __future__ import annotations

import numba
import numpy as np

from because_rl.envs.lift.simulator import ARM, KP

KP_POSTURE = 10.0
"""robosuite's stiffness of the pull to the rest posture."""


@numba.njit(cache=True, nogil=True)
def _cholesky(a: np.ndarray, n: int, low: np.ndarray) -> None:
    """low low' = a, for the symmetric positive definite a[:n, :n]."""
    for i in range(n):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= low[i, k] * low[j, k]
            low[i, j] = np.sqrt(total) if i == j else total / low[j, j]


@numba.njit(cache=True, nogil=True)
def _forward(low: np.ndarray, n: int, b: np.ndarray) -> None:
    """b <- low^-1 b"""
    for i in range(n):
        for k in range(i):
            b[i] -= low[i, k] * b[k]
        b[i] /= low[i, i]


@numba.njit(cache=True, nogil=True)
def _solve(a: np.ndarray, b: np.ndarray) -> None:
    """b <- a^-1 b"""
    n = len(b)
    low = np.empty((n, n))
    _cholesky(a, n, low)
    _forward(low, n, b)
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            b[i] -= low[k, i] * b[k]
        b[i] /= low[i, i]


# nogil lets the threads of `LiftBatch` run side by side; plain loops beat LAPACK at this size tenfold.
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

    `mass`, the Jacobians, `qvel` and `bias` are those of the whole model, of which the arm is the head.
    """
    kd = 2.0 * np.sqrt(KP)
    wanted = np.empty(6)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        turn = 0.0
        for axis in range(3):
            turn += rotation[j, axis] * goal_rotation[k, axis] - rotation[k, axis] * goal_rotation[j, axis]
        speed, spin = 0.0, 0.0
        for joint in range(ARM):
            speed += jac_pos[i, joint] * qvel[joint]
            spin += jac_rot[i, joint] * qvel[joint]
        wanted[i] = KP * (goal_position[i] - position[i]) - kd * speed
        wanted[3 + i] = KP * 0.5 * turn - kd * spin

    # With M = LL' and B = L^-1 J', the mobility J M^-1 J' is B'B.
    low = np.empty((ARM, ARM))
    _cholesky(mass, ARM, low)
    half = np.empty((6, ARM))
    for i in range(3):
        half[i], half[3 + i] = jac_pos[i, :ARM], jac_rot[i, :ARM]
    jac = half.copy()
    for i in range(6):
        _forward(low, ARM, half[i])
    mobility = np.empty((6, 6))
    for i in range(6):
        for j in range(6):
            total = 0.0
            for joint in range(ARM):
                total += half[i, joint] * half[j, joint]
            mobility[i, j] = total

    u = np.empty(ARM)
    for joint in range(ARM):
        u[joint] = KP_POSTURE * (rest[joint] - qpos[joint]) - 2.0 * np.sqrt(KP_POSTURE) * qvel[joint]
    posture = np.empty(6)
    for i in range(6):
        posture[i] = 0.0
        for joint in range(ARM):
            posture[i] += jac[i, joint] * u[joint]
    _solve(mobility[:3, :3], wanted[:3])
    _solve(mobility[3:, 3:], wanted[3:])
    _solve(mobility, posture)

    for joint in range(ARM):
        total = bias[joint]
        for i in range(6):
            total += jac[i, joint] * (wanted[i] - posture[i])
        for k in range(ARM):
            total += mass[joint, k] * u[k]
        torque[joint] = min(max(total, limits[joint, 0]), limits[joint, 1])
