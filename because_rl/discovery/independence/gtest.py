"""G-test for categorical factors: permutations within strata, grow-shrink conditioning, and what the rows can show.

For a set B of inputs, rows with equal values of B form strata, and `contingency` tests G(x; y | B) by permutation,
corrected for rows of one episode that are alike. Stratifying on *all* other inputs leaves strata of one row and no
power, so for each target B is grown and shrunk to the target's parents, starting from its own last value.

- *Relations*. 'The agent is where the key is' shows in neither position alone. For two inputs of one kind (as many
  columns, at least three values in common) the indicator [x_i = x_k] is a candidate for B too. Given x_k it is a
  function of x_i, so its test given x_k is one of x_i; x_i then has the smallest of its p-values times their number.
  Where neither has one below the threshold, the rows show the relation, but not which of the two matters.
- *Effect*, for a member of B: the share of H(y | B without x) that x explains beyond chance. For others: the share of
  U = H(y | y's own last value), since a B that explains y leaves nothing of which x could explain a share.
- *Detectable*, in the C rows of those strata of B in which y ever changes: the smaller of two, divided by n U. First,
  from the null of G / 2, with mean m and variance s^2 (gamma distribution, upper quantile q at the threshold), the
  excess e with e - .84 sqrt(s^2 + 2 e) = q - m, that is, power .8; it is scaled from the rows in which x varies to
  all C. Second, where B leaves y almost no variation: x differs from its usual value in the stratum in m' rows, y in j
  rows. An effect that makes y differ in a share pi of those m' rows leaves as few as j with probability below .05
  from pi m' = chi2_{.95, 2 (j + 1)} / 2 on. If x differed in half of the rows, it would explain
  C (h(pi / 2) - h(pi) / 2) nats (h: binary entropy). With j = 0 at least about ten rows m' are needed.
- Infinite where x never varies in those strata, though it varies elsewhere (the deciding situation was never
  logged), or where most changes of y happen at [x = x_k] and that never varies there. There are two exceptions, in
  which a member of B determines x there, is taken to be the cause, and x is judged by the rows in which it does vary:
  an action that is at rest while another acts ('open' is 0 whenever 'pick' is 1), and an x of which the member is a
  function in all rows (where 'has_key' is 1 the place of the key is always 'none', and 'has_key' says no less).

Assumptions: given the parents in B, rows of different episodes are independent; those of one episode may have hidden
causes in common, unless these drive x too. Valid for: categorical and binary factors. Least n: 100, but the number of
events matters more.
"""

from __future__ import annotations

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.independence.contingency import (
    row_codes,
)
from because_rl.discovery.independence.power import Verdicts
from because_rl.discovery.independence.search import Feature, Search
from because_rl.discovery.variables import Variables


class GTest(IndependenceTest):
    """The G-test with grow-shrink conditioning.

    Args:
        alpha: p-value below which an input stays in the conditioning set.
        permutations: for a small p-value; four times as many close to the threshold.
        scan: the most while the conditioning set is grown.
        threshold: p-value below which `decide` will establish an edge.
    """

    name = "gtest"
    least_n = 100
    least_effect = 0.05
    excluding_effect = 0.05
    keeps_undetermined = True  # where values are few, what is hardly logged is what decides
    parallel_in_threads = True  # nearly all of the time is spent in NumPy, on one core

    def __init__(self, alpha: float = 0.002, permutations: int = 9999, scan: int = 499, threshold: float = 0.002):
        self.alpha, self.permutations, self.scan, self.threshold = alpha, permutations, scan, threshold

    def settings(self) -> dict:
        return {
            "test": self.name,
            "least_effect": self.least_effect,
            "alpha": self.alpha,
            "permutations": self.permutations,
            "scan": self.scan,
        }

    def for_threshold(self, threshold: float) -> GTest:
        """With enough permutations, at most 100,000: p is never below 1 / (1 + permutations)."""
        permutations = max(self.permutations, int(min(2 / threshold, 1e5)))
        return GTest(self.alpha, permutations, self.scan, threshold)

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        names = [f.name for f in variables.inputs]
        codes: dict[Feature, np.ndarray] = {
            (name,): row_codes(columns) for name, columns in zip(names, variables.x, strict=True)
        }
        codes |= _relations(names, variables.x)
        shape = (len(names), len(variables.y))
        out = Evidence(np.ones(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), {}, {})
        values = {name: columns for name, columns in zip(names, variables.x, strict=True) if columns.shape[1] <= 2}
        states = {target.name for target in variables.targets}
        rest = {
            name: (columns == 0).all(1) | (codes[name,] == np.bincount(codes[name,]).argmax())
            for name, columns in zip(names, variables.x, strict=True)
            if name not in states
        }
        for j, (target, columns) in enumerate(zip(variables.targets, variables.y, strict=True)):
            own = target.name if target.name in names else None
            changed = np.ones(len(columns), bool)
            if own is not None:
                changed = (variables.x[names.index(own)] != columns).any(1)
            search = Search(codes, row_codes(columns), target.name, own, variables.episode, seed, self)
            verdicts = Verdicts(search, changed, rest, values)
            for i, name in enumerate(names):
                verdict = verdicts.verdict(name)
                out.p[i, j], out.statistic[i, j] = verdict.p, verdict.z
                out.effect[i, j], out.detectable[i, j] = verdict.effect, verdict.detectable
                for texts, text in ((out.why, verdict.why), (out.needs, verdict.needs)):
                    if text:
                        texts[name, target.name] = text
        return out


def _relations(names: list[str], x: tuple[np.ndarray, ...]) -> dict[Feature, np.ndarray]:
    """[x_i = x_k] for every two inputs of one kind, where it varies."""
    out: dict[Feature, np.ndarray] = {}
    values = [{row.tobytes() for row in np.unique(columns, axis=0) + 0.0} for columns in x]
    for i, first in enumerate(names):
        for k in range(i):
            if x[i].shape[1] == x[k].shape[1] and len(values[i] & values[k]) >= 3:
                equal = (x[i] == x[k]).all(1).astype(np.int64)
                if equal.any() and not equal.all():
                    low, high = sorted((first, names[k]))
                    out[low, high] = equal
    return out
