"""The interface of an independence test: logged transitions in, evidence for every possible edge out.

A test answers, for each input factor i (state or action at t) and each target factor j (state at t+1),
whether x_i and y_j are independent given all other inputs. Tests take all pairs at once because the
costly part, regressing each column on the inputs, is shared by all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError


@dataclass(frozen=True)
class Evidence:
    """What a test says of every pair; all arrays have the shape (inputs, targets)."""

    p: np.ndarray
    """p-value of 'x_i is independent of y_j given the other inputs'"""
    statistic: np.ndarray
    effect: np.ndarray
    """size of the dependence in [0, 1], comparable between pairs (such as a share of y_j's variance)"""
    untestable: np.ndarray
    """True where the data cannot answer (no positivity, a redundant or constant input)"""
    why: dict[tuple[str, str], str]
    """(input, target) -> the reason, for untestable pairs and echoes"""
    echo: np.ndarray | None = None
    """True where only an assumption distinguishes the input from a hidden cause: no edge, unless forced"""


class IndependenceTest(ABC):
    """One file per test. Its module docstring states the equation, the assumptions, the use and the least n."""

    name: ClassVar[str]
    least_n: ClassVar[int]
    """least number of transitions"""
    least_effect: ClassVar[float] = 0.0
    """least `Evidence.effect` of an edge: at large n any bias is significant"""
    parallel_in_threads: ClassVar[bool] = False
    """whether several tests in threads are faster than one after the other"""

    @abstractmethod
    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        """Test every input against every target; `seed` determines everything random."""

    def for_threshold(self, threshold: float) -> IndependenceTest:
        """This test, with settings that allow p-values below the threshold."""
        return self

    def check_size(self, variables: Variables) -> None:
        """Raise an error if there are fewer than `least_n` transitions."""
        if len(variables) < self.least_n:
            raise BecauseError(
                f"Got {len(variables)} transitions.",
                need=f"at least {self.least_n} for the test '{self.name}'.",
                fix="collect more episodes or choose another test with --test.",
            )

    def settings(self) -> dict[str, Any]:
        """The test's name and parameters, for provenance."""
        return {"test": self.name}
