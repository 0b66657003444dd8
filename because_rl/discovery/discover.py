"""Causal discovery in one call: transitions and a factor spec in, a causal mask out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from because_rl.discovery.independence.base import IndependenceTest
from because_rl.discovery.independence.fcit import Fcit
from because_rl.discovery.independence.fisherz import FisherZ
from because_rl.discovery.independence.gtest import GTest
from because_rl.discovery.independence.l0 import L0
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.independence.target_log import Counter, TargetLog, evidence_key
from because_rl.discovery.mask import CausalMask, decide
from because_rl.discovery.mbar import reweight
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.graph import Edge
from because_rl.transitions import Transitions

TESTS: dict[str, Callable[[], IndependenceTest]] = {
    "gtest": GTest,
    "residual": ResidualTest,
    "fcit": Fcit,
    "fisherz": FisherZ,
    "l0": L0,
}
"""Name of an independence test, as in ``--test``, to its class."""
DEFAULT_THRESHOLD = {"gtest": 2e-3, "residual": 1e-4, "l0": 0.5}
"""p-value below which an edge is kept, by test; 1e-4 for a test that is not listed."""


def choose_test(factors: FactorSpec) -> str:
    """The name of the default test: ``gtest`` if every factor is discrete, ``residual`` if one is not."""
    discrete = not any(f.is_continuous for f in (*factors.state, *factors.action))
    return "gtest" if discrete else "residual"


def make_test(name: str) -> IndependenceTest:
    """The independence test of this name (a key of `TESTS`) with its default settings."""
    if name not in TESTS:
        raise BecauseError(
            f"There is no independence test {name!r}.", need=f"one of {', '.join(TESTS)}.", fix="leave --test out."
        )
    return TESTS[name]()


def discover(
    data: Transitions,
    *,
    test: str | IndependenceTest | None = None,
    threshold: float | None = None,
    fdr: bool = False,
    batches: int = 3,
    seed: int = 0,
    force: Iterable[Edge] = (),
    forbid: Iterable[Edge] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    keep: Path | None = None,
) -> CausalMask:
    """Find the causal mask of logged transitions.

    Every input factor (state or action at t) is tested against every target factor (state at t+1): an edge is kept
    where "input and target are independent given all other inputs" is rejected, where the data cannot decide
    ("undetermined"), and from each factor to itself. With `batches` > 0 the edge weights are M-bar (see `mbar`).

    Args:
        data: logged transitions with the factors of their columns.
        test: a name in `TESTS`, or an `IndependenceTest`; None chooses by the types of the factors.
        threshold: p-value in (0, 1) below which an edge is kept; None takes the test's `DEFAULT_THRESHOLD`.
        fdr: whether p-values are adjusted to control the false discovery rate (Benjamini-Yekutieli).
        batches: number of draws of whole episodes whose masks are averaged into M-bar; 0 for one mask of all rows.
        seed: of everything random: batches, permutations, folds, kernel centres.
        force: edges (input name, target name) that are kept whatever the data say.
        forbid: edges that are left out whatever the data say, including self-edges.
        progress: called with (targets finished, targets in total) first and after each; every mask has all targets.
        keep: a folder for the evidence on finished targets, so that a discovery that was stopped continues, with the
            same result; to be removed afterwards. Only `residual` uses it, the other tests take all targets at once.

    Returns:
        The verdict on every edge, with arrays of shape (inputs, targets) and the 95% interval of each edge weight.
        Without batches weights are 0 or 1.

    Raises:
        BecauseError: for arrays that are not finite or differ in length, too few rows or episodes for the test, an
            unknown test or edge, a threshold outside (0, 1), or an edge that is both forced and forbidden.

    >>> import numpy as np
    >>> from because_rl.factors import FactorSpec, pack
    >>> factors = FactorSpec(pack(("x", 1, "continuous"), ("v", 1, "continuous")), pack(("push", 1, "continuous")))
    >>> rng = np.random.default_rng(0)
    >>> state, push, noise = rng.normal(size=(500, 2)), rng.normal(size=(500, 1)), rng.normal(size=(500, 2))
    >>> next_state = state + np.column_stack([state[:, 1], push[:, 0]]) + 0.1 * noise  # x' = x + v, v' = v + push
    >>> data = Transitions.from_arrays(state, push, next_state, np.arange(500), factors=factors)
    >>> graph = discover(data, test="fisherz", batches=0)
    >>> graph.parents("x"), graph.parents("v"), graph.matrix.astype(int).tolist()
    (('x', 'v'), ('v', 'push'), [[1, 0], [1, 1], [0, 1]])
    """
    variables = Variables.from_arrays(data.factors, data.state, data.action, data.next_state, data.episode)
    if not isinstance(test, IndependenceTest):
        test = make_test(test or choose_test(data.factors))
    level = DEFAULT_THRESHOLD.get(test.name, 1e-4) if threshold is None else threshold
    chosen, force, forbid = test.for_threshold(level), list(force), list(forbid)
    forbid += [(outcome.name, target) for outcome in data.factors.outcomes for target in data.factors.targets]

    count = Counter(progress, (batches + 1) * len(variables.targets))

    def find_mask(rows: Variables, test_seed: int) -> CausalMask:
        before = count.done
        if isinstance(chosen, ResidualTest):
            key = evidence_key(rows, chosen, test_seed) if keep is not None else ""
            evidence = chosen(rows, test_seed, TargetLog(count, keep, key))
            count(len(rows.targets) - (count.done - before))  # those that never vary
        else:
            evidence = chosen(rows, test_seed)
            count(len(rows.targets))
        return decide(rows, evidence, chosen, level, fdr=fdr, force=force, forbid=forbid)

    threads = min(os.cpu_count() or 1, 1 + batches) if chosen.parallel_in_threads else 1
    reweighted = reweight(variables, find_mask, batches=batches, seed=seed, threads=threads)
    return replace(reweighted.mask, weight_low=reweighted.low, weight_high=reweighted.high)
