"""The hand-written policies of Crash.

====== ============================================ ========================================
level  ego                                          pedestrians
====== ============================================ ========================================
random fixed: keeps its lane and a set throttle     wander inward at random
medium planned: meets a required pedestrian         wander inward at random
expert planned                                      wait until a hidden time, then meet ego
====== ============================================ ========================================

The parked car creeps at random in all three. u_pi confounds the actions: the cue (an AR(1) path that no
learner sees) is added with weight `cue` to the car's throttle *and* to both pedestrians' inward push,
and an expert's pedestrians share one hidden start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.behaviour import Behaviour
from because_rl.envs.crash.env import CAR_SPEED, HALF_WIDTH, HORIZON, INWARD, NEAR_MISS, REACH, WALK_SPEED
from because_rl.rng import stream

EGO, CAR, PEDS = slice(0, 2), slice(2, 4), slice(4, 8)


@dataclass(frozen=True)
class CrashSettings:
    """Pushes are in units of the largest acceleration, so 1 is all a body has."""

    cue: float = 0.3
    """weight of the hidden cue u_pi"""
    planned_ego: bool = False
    planned_walkers: bool = False
    eager: float = 0.07
    """mean inward push of a wandering pedestrian"""
    calm: float = 0.2
    """push against its own velocity, per m/s, that keeps it from running off"""
    wander: float = 0.6
    """standard deviation of its push around that, an AR(1) path of its own"""
    throttle: float = 0.1
    """standard deviation over episodes of a fixed ego's throttle"""
    noise: float = 0.15
    """standard deviation of the white noise on every push"""
    longest_wait: float = 20.25
    """steps: an expert's pedestrians set off at a hidden time in [0, longest_wait)"""


LEVELS: dict[str, CrashSettings] = {
    "random": CrashSettings(),
    "medium": CrashSettings(planned_ego=True),
    "expert": CrashSettings(planned_ego=True, planned_walkers=True),
}


class CrashBehaviour(Behaviour):
    """``CrashBehaviour("medium")``; keywords override the level's settings."""

    def __init__(self, level: str, **knobs: float):
        super().__init__(level)
        self.knobs = replace(LEVELS[level], **knobs)  # type: ignore[arg-type]

    def settings(self) -> dict[str, float | str]:
        return {"level": self.level} | {name: float(value) for name, value in asdict(self.knobs).items()}

    def reset(self, batch: BatchEnv, seeds: Sequence[int]) -> None:
        hidden = batch.hidden()
        self._cue, self._wait = hidden["u_pi"], hidden["start"] * self.knobs.longest_wait
        drawn = np.stack([stream(seed, "crash", self.level).standard_normal((HORIZON, 13)) for seed in seeds])
        self._noise, self._throttle = drawn[:, :, :8], drawn[:, 0, 8]
        self._wander = drawn[:, :, 9:].copy()
        for t in range(1, HORIZON):
            self._wander[:, t] = 0.8 * self._wander[:, t - 1] + 0.6 * self._wander[:, t]
        self._step = 0

    def act(self, observation: Observation) -> np.ndarray:
        k, t = self.knobs, self._step
        bodies = observation.state[:, :20].astype(np.float64).reshape(-1, 4, 5)
        flags, goal = observation.state[:, 20:22], observation.goal
        ego, walkers = bodies[:, 0], bodies[:, 2:]
        push = np.zeros((len(bodies), 8))
        if k.planned_ego:
            push[:, EGO] = measured(meet_walker(ego, walkers, (goal > 0.5) & (flags < 0.5)))
        else:
            push[:, EGO] = np.stack([k.throttle * self._throttle, keep_lane(ego, 0.0)], 1)
        inward = np.stack([np.zeros(2), INWARD], 1)  # (2 pedestrians, x and y)
        if k.planned_walkers:
            waiting = (t < self._wait)[:, None, None]
            walk = measured(np.where(waiting, stand_still(walkers), meet_ego(ego, walkers)))
        else:
            walk = k.eager * inward + k.wander * self._wander[:, t].reshape(-1, 2, 2) - k.calm * walkers[:, :, 2:4]
        push[:, PEDS] = (walk + k.cue * self._cue[:, t, None, None] * inward).reshape(-1, 4)
        push[:, CAR.start] = k.cue * self._cue[:, t]
        push += k.noise * self._noise[:, t]
        self._step += 1
        return np.clip(push, -1.0, 1.0).astype(np.float32)


# Plans: in closed form, of what can be seen ---------------------------------------------------------------
def measured(push: np.ndarray) -> np.ndarray:
    """A plan never asks for all a body has: at the limit, clipping would hide the cue and the noise."""
    return np.clip(push, -0.7, 0.7)


def keep_lane(car: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    """Sideways push that brings a car's y to `y`: critically damped, time constant one second."""
    return (1.0 * (y - car[:, 1]) - 2.0 * car[:, 3]) / REACH[0, 1]


def meet_walker(ego: np.ndarray, walkers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Be level with the nearest wanted pedestrian when it steps in front of the car.

    With gap g to where the pedestrian would be near, closing at speed w, it is there in T = g / w. The ego
    aims for the speed d / T that takes it the distance d to the pedestrian in that time, no faster than it
    could still brake from before it.
    """
    ahead = np.where(wanted, walkers[:, :, 0] - ego[:, None, 0], np.inf)
    ahead = np.where(ahead > -3.0, ahead, 1e3)  # one that lies behind cannot be met any more
    target = np.take_along_axis(walkers, ahead.argmin(1)[:, None, None], 1)[:, 0]
    side = np.sign(target[:, 1] - ego[:, 1])
    gap = np.maximum(np.abs(target[:, 1] - ego[:, 1]) - HALF_WIDTH - NEAR_MISS, 0.0)
    time = gap / np.maximum(-side * target[:, 3], 0.3) + 0.25
    distance = np.maximum(target[:, 0] + target[:, 2] * time - ego[:, 0], 0.0)
    brakable = np.sqrt(2 * 0.6 * REACH[0, 0] * distance)
    speed = np.minimum(np.minimum(distance / time, brakable), CAR_SPEED)
    forward = (speed - ego[:, 2]) / 0.5 / REACH[0, 0]
    return np.stack([forward, keep_lane(ego, 0.5 * side)], 1)


def stand_still(walkers: np.ndarray) -> np.ndarray:
    return -walkers[:, :, 2:4] / 0.5 / REACH[2]


def meet_ego(ego: np.ndarray, walkers: np.ndarray) -> np.ndarray:
    """Walk to the line that the ego drives on and wait there."""
    away = ego[:, None, 1] - walkers[:, :, 1]
    velocity = np.stack([np.zeros_like(away), np.clip(away, -WALK_SPEED, WALK_SPEED)], 2)
    return (velocity - walkers[:, :, 2:4]) / 0.5 / REACH[2]
