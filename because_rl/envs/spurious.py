"""Spurious channels: extra state factors that reflect the hidden u_c and have no effect.

At spurious level k a world shows k - 1 extra factors, constant within an episode. In training (split
I) each repeats, up to noise, the signal of u_c in the scene, with alternating sign, so that an unrestricted
model will use them. In split O the correlation is broken: scalar channels flip sign, categorical ones become
independent of the scene.
"""

from __future__ import annotations

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import Factor
from because_rl.rng import stream

LEVELS = (1, 2, 4, 8)
NOISE = 0.02
"""Standard deviation of a scalar channel around its signal: small, but no two channels are equal."""
SLIP = 0.1
"""Probability that a categorical channel shows a uniformly drawn value instead of its signal."""


def check_level(level: int) -> int:
    """`level`, if it is one of `LEVELS`; raises a `BecauseError` otherwise."""
    if level not in LEVELS:
        raise BecauseError(
            f"Got spurious={level!r}.", need="1, 2, 4 or 8 (1 is the paper's plain task).", fix="pass spurious=1."
        )
    return level


def names(name: str, level: int) -> tuple[str, ...]:
    """Names of the level - 1 extra channels: ``name_2`` to ``name_{level}``."""
    return tuple(f"{name}_{k}" for k in range(2, level + 1))


def extend(factors: tuple[Factor, ...], name: str, level: int, levels: int | None = None) -> tuple[Factor, ...]:
    """`factors` followed by the extra channels: one column each, or `levels` one-hot columns each."""
    extra, column = [], max(f.stop for f in factors)
    for channel in names(name, level):
        width = levels or 1
        extra.append(Factor(channel, column, column + width, "categorical" if levels else "continuous", name))
        column += width
    return factors + tuple(extra)


def scalar_channels(seed: int, level: int, signal: float, split: str) -> np.ndarray:
    """Values (level - 1,) in [0, 1] of the extra channels, which follow `signal` in [-1, 1]."""
    sign = np.where(np.arange(level - 1) % 2 == 0, -1.0, 1.0) * (-1.0 if split != "I" else 1.0)
    noise = stream(seed, "spurious").normal(0.0, NOISE, level - 1)
    return np.clip(0.5 + 0.4 * sign * signal + noise, 0.0, 1.0)


def categorical_channels(seed: int, level: int, signals: tuple[int, int], levels: int, split: str) -> np.ndarray:
    """One-hot columns ((level - 1) * levels,) of the extra channels, which follow `signals[0]` and `[1]` in turn."""
    rng = stream(seed, "spurious")
    slip, uniform = rng.random(level - 1) < SLIP, rng.integers(0, levels, level - 1)
    signal = np.array([signals[k % 2] for k in range(level - 1)], int)
    value = np.where(slip | (split != "I"), uniform, signal)
    return np.eye(levels)[value].reshape(-1)
