"""The hand-written policies of Crash.

====== ============================================ ========================================
level  ego                                          pedestrians
====== ============================================ ========================================
random fixed: keeps its lane and a set throttle     wander inward at random
medium planned: meets a required pedestrian         wander inward at random
expert planned                                      wait until a hidden time, then meet ego
====== ============================================ ========================================

The parked car creeps at random in all three. u_pi confounds the actions: the cue (an AR(1) path that no
learner observes) is added with weight `cue` to the car's throttle *and* to both pedestrians' inward push,
and an expert's pedestrians share one hidden start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.behaviour import Behaviour
from because_rl.envs.crash.scene import CAR_SPEED, HALF_WIDTH, HORIZON, INWARD, MAX_ACCELERATION, NEAR_MISS, WALK_SPEED
from because_rl.rng import stream

EGO, CAR, PEDS = slice(0, 2), slice(2, 4), slice(4, 8)


@dataclass(frozen=True)
class CrashSettings:
    """Pushes are actions: in units of a body's largest acceleration."""

    cue: float = 0.3
    """weight of the hidden cue u_pi"""
    planned_ego: bool = False
    planned_walkers: bool = False
    eager: float = 0.07
    """mean inward push of a wandering pedestrian"""
    calm: float = 0.2
    """push against its own velocity, per m/s, which damps its motion"""
    wander: float = 0.6
    """standard deviation of its random push, an independent AR(1) path"""
    throttle: float = 0.1
    """standard deviation over episodes of a fixed ego's throttle"""
    noise: float = 0.15
    """standard deviation of the white noise on every push"""
    longest_wait: float = 20.25
    """steps: an expert's pedestrians start at a hidden time in [0, longest_wait)"""


LEVELS: dict[str, CrashSettings] = {
    "random": CrashSettings(),
    "medium": CrashSettings(planned_ego=True),
    "expert": CrashSettings(planned_ego=True, planned_walkers=True),
}


class CrashBehaviour(Behaviour):
    """``CrashBehaviour("medium")``; keywords override the level's settings."""

    def __init__(self, level: str, **overrides: float):
        super().__init__(level)
        self.config = replace(LEVELS[level], **overrides)  # type: ignore[arg-type]

    def settings(self) -> dict[str, float | str]:
        return {"level": self.level} | {name: float(value) for name, value in asdict(self.config).items()}

    def reset(self, batch: BatchEnv, seeds: Sequence[int]) -> None:
        hidden = batch.hidden()
        self._cue, self._wait = hidden["u_pi"], hidden["start"] * self.config.longest_wait
        drawn = np.stack([stream(seed, "crash", self.level).standard_normal((HORIZON, 13)) for seed in seeds])
        self._noise, self._throttle = drawn[:, :, :8], drawn[:, 0, 8]
        self._wander = drawn[:, :, 9:].copy()
        for t in range(1, HORIZON):
            self._wander[:, t] = 0.8 * self._wander[:, t - 1] + 0.6 * self._wander[:, t]
        self._step = 0

    def act(self, observation: Observation) -> np.ndarray:
        config, t = self.config, self._step
        bodies = observation.state[:, :20].astype(np.float64).reshape(-1, 4, 5)
        flags, goal = observation.state[:, 20:22], observation.goal
        ego, walkers = bodies[:, 0], bodies[:, 2:]
        push = np.zeros((len(bodies), 8))
        if config.planned_ego:
            push[:, EGO] = limit_push(meet_walker(ego, walkers, (goal > 0.5) & (flags < 0.5)))
        else:
            push[:, EGO] = np.stack([config.throttle * self._throttle, keep_lane(ego, 0.0)], 1)
        inward = np.stack([np.zeros(2), INWARD], 1)  # (2 pedestrians, x and y)
        if config.planned_walkers:
            waiting = (t < self._wait)[:, None, None]
            walk = limit_push(np.where(waiting, stand_still(walkers), meet_ego(ego, walkers)))
        else:
            walk = (
                config.eager * inward
                + config.wander * self._wander[:, t].reshape(-1, 2, 2)
                - config.calm * walkers[:, :, 2:4]
            )
        push[:, PEDS] = (walk + config.cue * self._cue[:, t, None, None] * inward).reshape(-1, 4)
        push[:, CAR.start] = config.cue * self._cue[:, t]
        push += config.noise * self._noise[:, t]
        self._step += 1
        return np.clip(push, -1.0, 1.0).astype(np.float32)


# Planned pushes: closed-form functions of the observation --------------------------------------------------
def limit_push(push: np.ndarray) -> np.ndarray:
    """Limit a planned push to 0.7: clipping to 1 after cue and noise are added would hide them in a larger one."""
    return np.clip(push, -0.7, 0.7)


def keep_lane(car: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    """Sideways push that brings a car's y to `y`: critically damped, time constant one second."""
    return (1.0 * (y - car[:, 1]) - 2.0 * car[:, 3]) / MAX_ACCELERATION[0, 1]


def meet_walker(ego: np.ndarray, walkers: np.ndarray, required: np.ndarray) -> np.ndarray:
    """Push (N, 2) that brings the ego next to the nearest required pedestrian when that one reaches its path.

    A pedestrian that is a gap g away from a near-miss and approaches at speed w is there after T = g / w. The
    ego aims for the speed d / T that takes it the distance d to the pedestrian in that time, limited to the
    speed from which it can still brake before the pedestrian.
    """
    ahead = np.where(required, walkers[:, :, 0] - ego[:, None, 0], np.inf)
    ahead = np.where(ahead > -3.0, ahead, 1e3)  # the ego cannot go back to one that is behind
    target = np.take_along_axis(walkers, ahead.argmin(1)[:, None, None], 1)[:, 0]
    side = np.sign(target[:, 1] - ego[:, 1])
    gap = np.maximum(np.abs(target[:, 1] - ego[:, 1]) - HALF_WIDTH - NEAR_MISS, 0.0)
    time = gap / np.maximum(-side * target[:, 3], 0.3) + 0.25
    distance = np.maximum(target[:, 0] + target[:, 2] * time - ego[:, 0], 0.0)
    brakable = np.sqrt(2 * 0.6 * MAX_ACCELERATION[0, 0] * distance)
    speed = np.minimum(np.minimum(distance / time, brakable), CAR_SPEED)
    forward = (speed - ego[:, 2]) / 0.5 / MAX_ACCELERATION[0, 0]
    return np.stack([forward, keep_lane(ego, 0.5 * side)], 1)


def stand_still(walkers: np.ndarray) -> np.ndarray:
    """Push (N, 2 pedestrians, 2) that stops them, with a time constant of half a second."""
    return -walkers[:, :, 2:4] / 0.5 / MAX_ACCELERATION[2]


def meet_ego(ego: np.ndarray, walkers: np.ndarray) -> np.ndarray:
    """Push (N, 2 pedestrians, 2) that takes them to the ego's y and stops them there."""
    away = ego[:, None, 1] - walkers[:, :, 1]
    velocity = np.stack([np.zeros_like(away), np.clip(away, -WALK_SPEED, WALK_SPEED)], 2)
    return (velocity - walkers[:, :, 2:4]) / 0.5 / MAX_ACCELERATION[2]
