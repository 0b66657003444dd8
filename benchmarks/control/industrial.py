"""The industrial benchmark (Hein et al. 2017) as an environment of Gymnasium: a plant with hidden and delayed effects.

Its package of the index, industrial-benchmark-python 2.0, is of 2020: its own wrapper needs gym, and its equations name
``np.float``, which NumPy no longer has. So the equations are used without the wrapper, and the name is put back::

    pip install --no-deps --target rddl industrial-benchmark-python==2.0
    PYTHONPATH=rddl python -m benchmarks control --keep work/control --problem industrial

Seen are velocity, gain, shift, fatigue and consumption; operational cost of the last ten steps, the hidden state of the
fatigue and the domain of the shift are not.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack

ID = "IndustrialBenchmark-v0"
SETPOINT, STEPS = 70, 100
NAMES = ("velocity", "gain", "shift", "fatigue", "consumption")
STEERINGS = ("turn velocity", "turn gain", "turn shift")
FACTORS = FactorSpec(
    pack(*((name, 1, "continuous") for name in NAMES)), pack(*((name, 1, "continuous") for name in STEERINGS))
)


def steer_to_quarter(observed: np.ndarray) -> np.ndarray:
    """A mediocre operator: velocity, gain and shift to 25, as in Swazinna et al. 2021."""
    return np.clip((25.0 - np.asarray(observed[:3])) / np.array([1.0, 10.0, 5.75]), -1, 1).astype(np.float32)


class IndustrialBenchmark(gymnasium.Env):
    """Episodes of `STEPS` steps at one setpoint. The package draws from NumPy's global generator, each state of which
    is kept here, so that environments do not disturb each other."""

    observation_space = spaces.Box(-np.inf, np.inf, (len(NAMES),), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (len(STEERINGS),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        outer = np.random.get_state()  # noqa: NPY002
        self._plant = _equations()(SETPOINT, inital_seed=int(self.np_random.integers(2**31)))
        self._random, self._steps = np.random.get_state(), 0  # noqa: NPY002
        np.random.set_state(outer)  # noqa: NPY002
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        outer = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._random)  # noqa: NPY002
        self._plant.step(np.clip(np.asarray(action, float), -1, 1))
        self._random, self._steps = np.random.get_state(), self._steps + 1  # noqa: NPY002
        np.random.set_state(outer)  # noqa: NPY002
        return self._observe(), -float(self._plant.state["cost"]), False, self._steps >= STEPS, {}

    def _observe(self) -> np.ndarray:
        return np.array([float(self._plant.state[name]) for name in "vghfc"])


def register() -> None:
    """Make the environment known to Gymnasium."""
    _equations()
    if ID not in gymnasium.registry:
        gymnasium.register(ID, lambda **kwargs: IndustrialBenchmark())


def _equations() -> Any:
    vars(np).setdefault("float", float)
    try:
        from industrial_benchmark_python.IDS import IDS  # type: ignore[import-not-found]
    except ImportError as error:
        raise BecauseError(
            f"The industrial benchmark cannot be imported ({error}).",
            need="industrial-benchmark-python 2.0.",
            fix="install it as the docstring of benchmarks/control/industrial.py says.",
        ) from error
    return IDS
