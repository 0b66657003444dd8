"""Let the fitted policy drive the pendulum in Gymnasium, from starts that are not in the log, beside the operator.

python examples/drive_pendulum.py fitted
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import numpy as np
from collect_pendulum import drive

import because_rl as br


def compare(folder: Path, episodes: int = 10, seed: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Returns of the policy and of the operator who made the log, from the same starts."""
    env, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    policy = br.load_agent(folder).rollout(env, episodes, first_seed=seed).returns
    operator = np.zeros(episodes)
    for k in range(episodes):
        state, over = env.reset(seed=seed + k)[0], False
        while not over:
            state, reward, _, over, _ = env.step(np.array([drive(state, rng)], np.float32))
            operator[k] += float(reward)
    return policy, operator


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=10)
    options = parser.parse_args()
    policy, operator = compare(options.folder, options.episodes)
    print(f"mean return of {options.episodes} episodes: policy {policy.mean():.0f}, operator {operator.mean():.0f}")
