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

from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError


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
