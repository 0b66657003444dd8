"""Three policies that lift the cube.

- *expert*: a function of the state alone. Move over the cube, down around it, close, and lift on contact.
- *medium*: a hidden number u_pi of random steps, then the expert. With a large u_pi the time runs out.
- *random*: the expert until the fingers hold the cube, then random arm actions, each held for a few steps,
  with the gripper closed; if the cube is lost, the expert again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.envs.batch import BatchEnv, Observation
from because_rl.envs.behaviour import Behaviour
from because_rl.envs.lift.env import HORIZON, Lift
from because_rl.rng import stream

GAIN = 25.0
"""Action per metre of distance: 1 from 4 cm on."""
HOVER = 0.06
"""Height above the cube, in metres, at which the hand moves horizontally."""
ALIGNED = 0.02
"""Horizontal distance, in metres, below which the hand goes down."""
AROUND = 0.012
"""Vertical distance, in metres, below which the fingers close."""
SPREAD = {"random": 1.0, "medium": 0.8}
"""Random arm actions are uniform on [-spread, spread]."""
HOLD = {"random": 3, "medium": 1}
"""Steps for which a random action is held."""

_FACTORS = Lift.make_factors(1)
_RELATIVE = slice(_FACTORS["rel_x"].start, _FACTORS["rel_z"].stop)
_CONTACT = _FACTORS["contact"].start


def expert(state: np.ndarray) -> np.ndarray:
    """Actions (N, 4) for states (N, state_size): GAIN times the offset from hand to target, clipped to [-1, 1]."""
    relative, contact = state[:, _RELATIVE].astype(np.float64), state[:, _CONTACT] > 0.5
    aligned = np.hypot(relative[:, 0], relative[:, 1]) < ALIGNED
    around = aligned & (abs(relative[:, 2]) < AROUND)
    target = relative + np.where(aligned, 0.0, HOVER)[:, None] * (0.0, 0.0, 1.0)
    arm = np.where(contact[:, None], (0.0, 0.0, 1.0), np.clip(GAIN * target, -1.0, 1.0))
    return np.column_stack([arm, np.where(contact | around, 1.0, -1.0)])


class LiftBehaviour(Behaviour):
    def __init__(self, level: str, spread: float | None = None, hold: int | None = None):
        super().__init__(level)
        self.spread = SPREAD.get(level, 0.0) if spread is None else float(spread)
        self.hold = HOLD.get(level, 1) if hold is None else int(hold)

    def reset(self, batch: BatchEnv, seeds: Sequence[int]) -> None:
        draws = np.stack([stream(seed, "lift", "behaviour").uniform(-1.0, 1.0, (HORIZON, 4)) for seed in seeds])
        self._noise = draws[:, np.arange(HORIZON) // self.hold * self.hold]
        self._noise[:, :, :3] = np.clip(self.spread * self._noise[:, :, :3], -1.0, 1.0)
        self._wait = batch.hidden()["u_pi"]
        self._step = 0

    def act(self, observation: Observation) -> np.ndarray:
        action, noise = expert(observation.state), self._noise[:, self._step]
        if self.level == "medium":
            action = np.where((self._step < self._wait)[:, None], noise, action)
        elif self.level == "random":
            contact = observation.state[:, _CONTACT] > 0.5
            action[contact, :3] = noise[contact, :3]
        self._step += 1
        return action.astype(np.float32)

    def settings(self) -> dict[str, float | str]:
        policy = {
            "expert": "over the cube, down, close, up",
            "medium": "u_pi random steps, then the expert",
            "random": "the expert to the grasp, then random moves",
        }[self.level]
        return {"policy": policy, "gain": GAIN, "hover": HOVER, "spread": self.spread, "hold": self.hold}
