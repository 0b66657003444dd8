"""The interface of an independence test: logged transitions in, evidence for every possible edge out.

A test answers, for each input factor i (state or action at t) and each target factor j (state at t+1),
whether x_i and y_j are independent given all other inputs. Tests take all pairs at once because the
costly part, regressing each column on the inputs, is shared by all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
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
    """size of the dependence in [0, 1]: the share of what the other inputs leave unexplained that x_i explains"""
    detectable: np.ndarray
    """the least effect that these rows would have shown with probability .8; inf where they cannot decide and the edge
    is kept (no positivity, a redundant or constant input, a mask that does not suffice)"""
    why: dict[tuple[str, str], str]
    """(input, target) -> why the data cannot decide, or what assumption does"""
    needs: dict[tuple[str, str], str] = field(default_factory=dict)
    """(input, target) -> what would decide: how many rows of which kind"""
    echo: np.ndarray | None = None
    """True where only an assumption distinguishes the input from a hidden cause: not kept, unless forced"""
    sufficiency: dict[str, dict[str, Any]] = field(default_factory=dict)
    """target -> how much worse its kept inputs predict it than all inputs: "loss" (a share of the error), "p",
    "reopened" (names of inputs that are undetermined for that reason), and whether a "hidden_cause" that is constant in
    episodes shifts the target; empty where the test does not ask"""
    rows_used: int | None = None
    """where the test drew a part of the rows; None: all"""


class IndependenceTest(ABC):
    """One file per test. Its module docstring states the equation, the assumptions, the use and the least n."""

    name: ClassVar[str]
    least_n: ClassVar[int]
    """least number of transitions"""
    least_effect: ClassVar[float] = 0.0
    """least `Evidence.effect` that counts: at large n any bias is significant; 0 where p alone decides, and the test
    says nothing of its power (`Evidence.detectable` is 0 or inf)"""
    excluding_effect: ClassVar[float] = 0.0
    """largest `Evidence.detectable` of a pair that is excluded"""
    keeps_undetermined: ClassVar[bool] = False
    """whether every undetermined edge is kept, also where rows are merely too few"""
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
        self.check_count(len(variables))

    def check_count(self, transitions: int) -> None:
        """The same, by their number."""
        if transitions < self.least_n:
            raise BecauseError(
                f"Got {transitions} transitions.",
                need=f"at least {self.least_n} for the test '{self.name}'.",
                fix="collect more episodes or choose another test with --test.",
            )

    def settings(self) -> dict[str, Any]:
        """The test's name and parameters, for provenance."""
        return {"test": self.name}
