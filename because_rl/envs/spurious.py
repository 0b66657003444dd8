"""More confounders: extra state channels that echo the hidden u_c and cause nothing.

At spurious level k a world shows k - 1 extra factors, constant within an episode. In training (split
I) each repeats, up to noise, the signal that u_c put into the scene, with alternating sign, so a model
that may look at them will. In split O the tie is broken: scalar channels flip sign, categorical ones
become independent of the scene.
"""

from __future__ import annotations

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import Factor
from because_rl.graph import Edge
from because_rl.rng import stream

LEVELS = (1, 2, 4, 8)
NOISE = 0.02
"""Standard deviation of a scalar channel around its tie: small, but no two channels are equal."""
SLIP = 0.1
"""Chance that a categorical channel shows a uniform level instead of the tied one."""


def check_level(level: int) -> int:
    if level not in LEVELS:
        raise BecauseError(
            f"Got spurious={level!r}.", need="1, 2, 4 or 8 (1 is the paper's plain task).", fix="pass spurious=1."
        )
    return level


def names(name: str, level: int) -> tuple[str, ...]:
    return tuple(f"{name}_{k}" for k in range(2, level + 1))


def extend(factors: tuple[Factor, ...], name: str, level: int, levels: int | None = None) -> tuple[Factor, ...]:
    """`factors` followed by the extra channels: one column each, or `levels` one-hot columns each."""
    extra, column = [], max(f.stop for f in factors)
    for channel in names(name, level):
        width = levels or 1
        extra.append(Factor(channel, column, column + width, "categorical" if levels else "continuous", name))
        column += width
    return factors + tuple(extra)


def self_edges(name: str, level: int) -> frozenset[Edge]:
    return frozenset((channel, channel) for channel in names(name, level))


def scalar_channels(seed: int, level: int, signal: float, split: str) -> np.ndarray:
    """Values in [0, 1] of the level - 1 extra channels, tied to `signal` in [-1, 1]."""
    sign = np.where(np.arange(level - 1) % 2 == 0, -1.0, 1.0) * (-1.0 if split != "I" else 1.0)
    noise = stream(seed, "spurious").normal(0.0, NOISE, level - 1)
    return np.clip(0.5 + 0.4 * sign * signal + noise, 0.0, 1.0)


def categorical_channels(seed: int, level: int, signals: tuple[int, int], levels: int, split: str) -> np.ndarray:
    """One-hot columns of the extra channels; even ones show `signals[0]`, odd ones `signals[1]`."""
    rng = stream(seed, "spurious")
    slip, other = rng.random(level - 1) < SLIP, rng.integers(0, levels, level - 1)
    tied = np.array([signals[k % 2] for k in range(level - 1)], int)
    value = np.where(slip | (split != "I"), other, tied)
    return np.eye(levels)[value].reshape(-1)
