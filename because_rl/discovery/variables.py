"""Logged transitions in the form that independence tests take: one array per factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factors import Factor, FactorSpec


@dataclass(frozen=True)
class Variables:
    """Transitions cut into factors: d inputs and d' targets, n rows each."""

    inputs: tuple[Factor, ...]
    targets: tuple[Factor, ...]
    x: tuple[np.ndarray, ...]
    """one (n, width) float64 array per input"""
    y: tuple[np.ndarray, ...]
    """one (n, width) float64 array per target"""
    episode: np.ndarray
    """(n,) the episode of each row: rows of one episode are not independent"""

    @classmethod
    def from_arrays(
        cls,
        factors: FactorSpec,
        state: np.ndarray,
        action: np.ndarray,
        next_state: np.ndarray,
        episode: np.ndarray | None = None,
    ) -> Variables:
        """Cut the columns of n transitions into factors.

        Args:
            factors: the columns of each factor.
            state: (n, state columns), finite.
            action: (n, action columns), finite.
            next_state: (n, state columns), finite.
            episode: (n,) the episode of each row; None means that the rows are independent draws.
        """
        for name, array in (("state", state), ("action", action), ("next_state", next_state)):
            bad = ~np.isfinite(array)
            if bad.any():
                row, column = np.argwhere(bad)[0]
                raise BecauseError(
                    f"{name} row {row}, column {column} is {array[row, column]}.",
                    need="finite numbers.",
                    fix="drop or repair these rows; 'because check DATASET' finds them.",
                )
        n = len(state)
        if not len(action) == len(next_state) == n:
            raise BecauseError(
                f"Got {n} states, {len(action)} actions and {len(next_state)} next states.",
                need="as many of each.",
                fix="pass transitions (s, a, s').",
            )
        return cls(
            (*factors.state, *factors.action),
            factors.state,
            tuple(np.asarray(state[:, f.slice], np.float64) for f in factors.state)
            + tuple(np.asarray(action[:, f.slice], np.float64) for f in factors.action),
            tuple(np.asarray(next_state[:, f.slice], np.float64) for f in factors.state),
            np.arange(n) if episode is None else np.asarray(episode),
        )

    def __len__(self) -> int:
        return len(self.episode)

    def rows(self, keep: np.ndarray) -> Variables:
        """The rows at these indices (or where this boolean mask is True)."""
        return Variables(
            self.inputs,
            self.targets,
            tuple(x[keep] for x in self.x),
            tuple(y[keep] for y in self.y),
            self.episode[keep],
        )
