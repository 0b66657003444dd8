"""Log Gymnasium's Pendulum, driven by an operator who does not hold it up, as a CSV file.

The operator pumps the pendulum up, brakes it at the top, and half of the time pushes at random. A row is a step: what
was seen (the angle as cosine and sine, the speed), the torque, the reward, and what was seen after it.

    python examples/collect_pendulum.py pendulum.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import gymnasium
import numpy as np

STATE = ("cos", "sin", "speed")


def drive(state: np.ndarray, rng: np.random.Generator) -> float:
    """The operator's torque: with the motion below, against it at the top."""
    cos, sin, speed = state
    if rng.random() < 0.5:
        return float(rng.uniform(-2, 2))
    if cos > 0.9:
        return float(np.clip(-8 * np.arctan2(sin, cos) - 2 * speed, -2, 2))
    return 1.5 * float(np.sign(speed))


def collect(path: Path, episodes: int = 60, seed: int = 0) -> None:
    """Write the log, 200 rows an episode."""
    env = gymnasium.make("Pendulum-v1")
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["episode", *STATE, "torque", "reward", *(f"next_{name}" for name in STATE)])
        for episode in range(episodes):
            state, over = env.reset(seed=int(rng.integers(2**31)))[0], False
            while not over:
                torque = drive(state, rng)
                after, reward, _, over, _ = env.step(np.array([torque], np.float32))
                rows.writerow([episode, *state, torque, reward, *after])
                state = after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", default=Path("pendulum.csv"))
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    collect(options.path, options.episodes, options.seed)
    print(f"{options.episodes} episodes in {options.path}")
