"""Let the fitted policy drive the cart in Gymnasium, to flags and from starts that are not in the log.

python examples/drive_cartpole.py fitted
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import numpy as np
from collect_cartpole import STEPS, drive

from because_rl.runs.fit import load_policy


def compare(folder: Path, worlds: int = 10, seed: int = 1000) -> tuple[float, float]:
    """Shares of flags reached, by the policy (mean over its seeds) and by the operator who made the log."""
    policy = load_policy(folder)
    rng = np.random.default_rng(seed)
    flags, starts = rng.uniform(0.3, 0.8, worlds), rng.integers(2**31, size=worlds)
    carts = [[gymnasium.make("CartPole-v1").unwrapped for _ in flags] for _ in policy.seeds]
    state = np.array([[cart.reset(seed=int(s))[0] for cart, s in zip(row, starts, strict=True)] for row in carts])
    goal = np.broadcast_to(flags[:, None], (len(carts), worlds, 1))
    reached, fell = np.zeros((2, len(carts), worlds), bool)
    controller = policy.start(worlds, seed)
    for steps_left in range(STEPS, 0, -1):
        pushes = controller.act(state, goal, steps_left)  # (seeds, worlds, 1): one column, 0 or 1
        for k, n in np.argwhere(~reached & ~fell):
            state[k, n], _, fell[k, n], _, _ = carts[k][n].step(int(pushes[k, n, 0] > 0.5))
            reached[k, n] = state[k, n, 0] >= flags[n]
    by_operator = [_operator_reaches(flag, int(start), rng) for flag, start in zip(flags, starts, strict=True)]
    return float(reached.mean()), float(np.mean(by_operator))


def _operator_reaches(flag: float, start: int, rng: np.random.Generator) -> bool:
    cart = gymnasium.make("CartPole-v1").unwrapped
    state, _ = cart.reset(seed=start)
    for _ in range(STEPS):
        state, _, fell, _, _ = cart.step(drive(state, flag, rng))
        if state[0] >= flag or fell:
            break
    return bool(state[0] >= flag)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worlds", type=int, default=10)
    options = parser.parse_args()
    policy, operator = compare(options.folder, options.worlds)
    print(f"flags reached: policy {policy:.0%}, operator {operator:.0%}")
