"""Discovery in one call: transitions and a factor spec in, a causal mask out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np

from because_rl.discovery.independence.base import IndependenceTest
from because_rl.discovery.independence.fcit import Fcit
from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.gtest import GTest
from because_rl.discovery.independence.l0 import L0
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import CausalMask, decide
from because_rl.discovery.mbar import Reweighted, reweight
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.graph import Edge

TESTS: dict[str, Callable[[], IndependenceTest]] = {
    "gtest": GTest,
    "residual": ResidualTest,
    "fcit": Fcit,
    "fisherz": FisherZ,
    "l0": L0,
}
DEFAULT_THRESHOLD = {"gtest": 2e-3, "residual": 1e-4, "l0": 0.5}


def choose_test(factors: FactorSpec) -> str:
    """The default: counts where everything is discrete, regression where something is continuous."""
    discrete = all(f.type != "continuous" for f in (*factors.state, *factors.action))
    return "gtest" if discrete else "residual"


def make_test(name: str) -> IndependenceTest:
    if name not in TESTS:
        raise BecauseError(
            f"There is no independence test {name!r}.", need=f"one of {', '.join(TESTS)}.", fix="leave --test out."
        )
    return TESTS[name]()


def discover(
    factors: FactorSpec,
    state: np.ndarray,
    action: np.ndarray,
    next_state: np.ndarray,
    episode: np.ndarray | None = None,
    *,
    test: str | IndependenceTest | None = None,
    threshold: float | None = None,
    fdr: bool = False,
    batches: int = 0,
    seed: int = 0,
    force: Iterable[Edge] = (),
    forbid: Iterable[Edge] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reweighted:
    """The mask of these transitions; `batches` > 0 also gives edge weights (M-bar) and their intervals."""
    variables = Variables.from_arrays(factors, state, action, next_state, episode)
    if not isinstance(test, IndependenceTest):
        test = make_test(test or choose_test(factors))
    level = DEFAULT_THRESHOLD.get(test.name, 1e-4) if threshold is None else threshold
    chosen, force, forbid = test.fine_enough(level), list(force), list(forbid)

    def verdict(rows: Variables, draw: int) -> CausalMask:
        return decide(rows, chosen(rows, draw), chosen, level, fdr=fdr, force=force, forbid=forbid)

    progress(0, batches + 1)
    together = min(os.cpu_count() or 1, 1 + batches) if chosen.threads else 1
    return reweight(variables, verdict, batches=batches, seed=seed, together=together, progress=progress)
