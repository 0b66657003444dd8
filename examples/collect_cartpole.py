"""Log Gymnasium's CartPole, driven by a sloppy operator.

The operator wants the cart at a flag to its right and keeps the pole upright on the way; one push in three is made at
random. Each step is one row of an HDF5 file. An episode ends at the flag, when the pole falls, or after
80 steps.

    python examples/collect_cartpole.py cartpole.hdf5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import h5py
import numpy as np

STEPS = 80


def drive(state: np.ndarray, flag: float, rng: np.random.Generator) -> int:
    """The operator's action, 1 to push right and 0 to push left: lean towards the flag, and keep under the pole."""
    position, speed, angle, spin = state
    if rng.random() < 1 / 3:
        return int(rng.integers(2))
    lean = 0.06 * np.clip(flag + 0.3 - position, -1, 1) - 0.04 * speed
    return int(8 * (angle - lean) + spin > 0)


def collect(path: Path, episodes: int = 120, seed: int = 0) -> None:
    """Write the log: observations, actions, next_observations, goals, terminations, truncations."""
    env = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(seed)
    names = ("observations", "actions", "next_observations", "goals", "terminations", "truncations")
    rows: dict[str, list] = {name: [] for name in names}
    for _ in range(episodes):
        flag = float(rng.uniform(0.3, 0.8))
        state, _ = env.reset(seed=int(rng.integers(2**31)))
        for step in range(STEPS):
            push = drive(state, flag, rng)
            after, _, fell, _, _ = env.step(push)
            reached = bool(after[0] >= flag)
            values = (state, push, after, [flag], fell or reached, step == STEPS - 1)
            for name, value in zip(names, values, strict=True):
                rows[name].append(value)
            state = after
            if fell or reached:
                break
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.asarray(values)
        file["observations"].attrs["names"] = ["position", "speed", "angle", "spin"]
        file["actions"].attrs["names"] = ["push"]
        file["goals"].attrs["names"] = ["flag"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", default=Path("cartpole.hdf5"))
    parser.add_argument("--episodes", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    collect(options.path, options.episodes, options.seed)
    print(f"{options.episodes} episodes in {options.path}")
