"""What an independence test is: logged transitions in, evidence for every possible edge out.

A test answers, for each input factor i (state or action at t) and each target factor j (state at t+1),
whether x_i and y_j are independent given all other inputs. Tests look at all pairs at once because the
costly part, regressing each column on the inputs, is shared by all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """(n,) which episode a row belongs to: rows of one episode are not independent"""

    @classmethod
    def from_arrays(
        cls,
        factors: FactorSpec,
        state: np.ndarray,
        action: np.ndarray,
        next_state: np.ndarray,
        episode: np.ndarray | None = None,
    ) -> Variables:
        """`episode` None means that the rows are independent draws."""
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
        """A subset (or bootstrap) of the rows."""
        return Variables(
            self.inputs,
            self.targets,
            tuple(x[keep] for x in self.x),
            tuple(y[keep] for y in self.y),
            self.episode[keep],
        )


@dataclass(frozen=True)
class Evidence:
    """What a test found, each (d, d')."""

    p: np.ndarray
    """p-value of 'x_i independent of y_j given the other inputs'"""
    statistic: np.ndarray
    effect: np.ndarray
    """size of the dependence in [0, 1], comparable between pairs (say, share of y_j's variance)"""
    untestable: np.ndarray
    """True where the data cannot answer (no positivity, a redundant or constant input)"""
    why: dict[tuple[str, str], str]
    """(input, target) -> the reason, for untestable pairs and echoes"""
    echo: np.ndarray | None = None
    """True where the input can be told from a hidden cause only by assumption: no edge, unless forced"""


class IndependenceTest(ABC):
    """One file per test. Its docstring states the equation, the assumptions and the least n."""

    name: ClassVar[str]
    least_n: ClassVar[int]
    least_effect: ClassVar[float] = 0.0
    """an edge must also be this strong (see `Evidence.effect`): at large n any bias is significant"""

    threads: ClassVar[bool] = False
    """several at a time, in threads, are faster than one after the other"""

    @abstractmethod
    def __call__(self, variables: Variables, seed: int = 0) -> Evidence: ...

    def fine_enough(self, threshold: float) -> IndependenceTest:
        """This test, able to give p-values below the threshold."""
        return self

    def check_size(self, variables: Variables) -> None:
        if len(variables) < self.least_n:
            raise BecauseError(
                f"Got {len(variables)} transitions.",
                need=f"at least {self.least_n} for the test '{self.name}'.",
                fix="collect more episodes or choose another test with --test.",
            )

    def settings(self) -> dict[str, Any]:
        """For provenance."""
        return {"test": self.name}
