"""What methods on latent blocks (`models.latent`) have in common: their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from because_rl.algorithms.proposals import PROPOSE, PlannedConfig


@dataclass(frozen=True)
class BlocksConfig(PlannedConfig):
    pessimism: float | None = 0.0
    kl: float = 0.1
    precision: float = 0.1
    """of the decoder, in units of a factor's usual change"""
    share_rate: float = 0.01
    deviation: float = 1e-3
    """weight of the squares of what sets factors of one kind apart"""
    background: float = 1.0
    """weight of the belief that events do not happen far from the data"""


PAPER: dict[str, dict[str, Any]] = {
    "lift": {"hidden": 256, **PROPOSE["lift"]},
    "unlock": {"hidden": 64, "batch": 128, "world_steps": 2500},
    "crash": {"hidden": 128},
}
"""Hidden sizes of the BECAUSE paper's table (of Denoised MDP's beliefs), by world; gradient steps and batches are those
of `because`."""
