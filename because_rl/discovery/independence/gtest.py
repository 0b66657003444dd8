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
events matters more. Levels are right for ten or more episodes per value of x, where x hardly changes in an episode.
"""

from __future__ import annotations

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.independence.contingency import (
    PairResult,
    PermutationTest,
    entropy_given,
    joint_codes,
    row_codes,
    varies,
)
from because_rl.discovery.independence.power import Verdicts
from because_rl.discovery.variables import Variables
from because_rl.rng import stream

Feature = tuple[str, ...]
"""(input,), or (input, other input) for the indicator that the two are equal; names in alphabetical order."""


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


class Search:
    """Grow-shrink for one target: finds its Markov blanket among the inputs and their relations.

    Every test has a random stream of its own, named by what it tests, and is made once: no result depends on the
    order of factors or of tests. The blanket always contains the target's own last value, where that is an input.

    Args:
        codes: (n,) codes of every feature.
        y: (n,) codes of the target.
        target: its name.
        own: the input that is its last value, if there is one.
        episode: (n,) the episode of each row.
        seed: of all permutations.
        test: with the settings.
    """

    def __init__(
        self,
        codes: dict[Feature, np.ndarray],
        y: np.ndarray,
        target: str,
        own: str | None,
        episode: np.ndarray,
        seed: int,
        test: GTest,
    ):
        self.codes, self.y, self.target, self.own, self.test = codes, y, target, own, test
        self._episode, self._seed = episode, seed
        self._tests: dict[tuple[Feature, frozenset[Feature]], PermutationTest] = {}
        self._strata: dict[frozenset[Feature], np.ndarray] = {}
        self.relations = sorted(f for f in codes if len(f) == 2)
        self.past: frozenset[Feature] = frozenset() if own is None else frozenset({(own,)})
        self.blanket = self.past
        self.unproven: set[Feature] = set()
        """members that explain the remaining entropy, but in too few rows for p < alpha"""
        self._grow()
        self._shrink()
        if self._swap():
            self._shrink()
        self._add_unproven()

    def strata(self, given: frozenset[Feature]) -> np.ndarray:
        """(n,) codes, equal where all of the given features are."""
        if given not in self._strata:
            columns = (self.codes[feature] for feature in sorted(given))
            self._strata[given] = joint_codes(np.zeros(len(self.y), np.int64), *columns)
        return self._strata[given]

    def _test(self, feature: Feature, given: frozenset[Feature]) -> PermutationTest:
        given = given - {feature}
        if (feature, given) not in self._tests:
            path = ["gtest", self.target, "=".join(feature), *("=".join(f) for f in sorted(given))]
            rng = stream(self._seed, *path)
            table = self.codes[feature], self.y, self.strata(given)
            self._tests[feature, given] = PermutationTest(*table, rng, self._episode)
        return self._tests[feature, given]

    def result(self, feature: Feature, given: frozenset[Feature]) -> PairResult:
        """The test of a feature against the target given the others in `given`."""
        return self._test(feature, given).result(self.test.permutations, self.test.threshold)

    def explained(self) -> bool:
        """Whether the blanket determines the target."""
        return entropy_given(self.y, self.strata(self.blanket)) == 0

    def outside(self) -> list[Feature]:
        """Features that are not in the blanket; of a relation, at most one input is in it."""
        members = {f[0] for f in self.blanket if len(f) == 1}
        return sorted(f for f in self.codes if f not in self.blanket and not set(f) <= members)

    def _level(self, feature: Feature) -> float:
        """p-value at which a feature stays; all relations together have the level of one input."""
        return self.test.alpha / (1 if len(feature) == 1 else len(self.relations))

    def _grow(self) -> None:
        """Add the strongest candidate until none is left.

        An input is tested given the blanket, and given the blanket and one more input. A candidate counts when no
        permutation of the scan reaches the observed G; shrinking then requires a small p-value.
        """
        while not self.explained():
            strongest: tuple[float, Feature] | None = None
            for feature in self.outside():
                sets = [self.blanket]
                if len(feature) == 1:
                    sets += [self.blanket | {f} for f in self.outside() if len(f) == 1 and f != feature]
                for given in sets:
                    result = self._test(feature, given).scan(self.test.scan, strongest[0] / 2 if strongest else 0.0)
                    if result.p <= 1 / (self.test.scan + 1) and (strongest is None or result.z > strongest[0]):
                        strongest = result.z, feature
            if strongest is None:
                return
            self.blanket |= {strongest[1]}

    def _shrink(self) -> None:
        """Remove the weakest member until all have a small p-value; inputs before relations, where equal."""
        while members := self.blanket - self.past:
            results = {f: self.result(f, self.blanket) for f in members}
            weakest = max(members, key=lambda f: (results[f].p / self._level(f) >= 1, results[f].p, -len(f), f))
            if results[weakest].p < self._level(weakest):
                return
            self.blanket -= {weakest}

    def _swap(self) -> bool:
        """Replace members by features that explain more with no more strata; whether any was.

        Of two inputs that nearly stand in for each other (an agent that does not pick, moves) the permutations' noise
        may have chosen the one that explains less.
        """
        swapped, better = False, True
        while better:
            left = entropy_given(self.y, self.strata(self.blanket))
            sets = {self.blanket - {f} | {g} for f in self.blanket - self.past for g in self.outside()}
            sets = {s for s in sets if self.strata(s).max() <= self.strata(self.blanket).max()}
            ranked = sorted((entropy_given(self.y, self.strata(s)), int(self.strata(s).max()), sorted(s)) for s in sets)
            better = bool(ranked) and ranked[0][0] < left - 1e-9
            if better:
                self.blanket, swapped = frozenset(ranked[0][2]), True
        return swapped

    def _add_unproven(self) -> None:
        """Add features that may explain the remaining entropy but vary too rarely for a small p-value."""
        while not self.explained():
            results = {f: self.result(f, self.blanket) for f in self.outside()}
            hints = {f: r for f, r in results.items() if r.p < 0.05 and r.extreme and r.excess > 0.5 * r.left}
            if not hints:
                return
            best = max(hints, key=lambda f: (hints[f].z, f))
            self.unproven.add(best)
            self.blanket |= {best}

    def given(self, name: str) -> frozenset[Feature]:
        """What an input is tested given: the blanket without it; a relation with it leaves the other input."""
        rest = {f for f in self.blanket if name not in f}
        return frozenset(rest | {self.partner(f, name) for f in self.blanket if name in f and len(f) == 2})

    @staticmethod
    def partner(relation: Feature, name: str) -> Feature:
        """The other input of a relation."""
        return ((relation[1] if relation[0] == name else relation[0]),)

    def best(self, name: str) -> PairResult:
        """The test of an input, by itself or by a relation in the blanket; p for as many tests as were made."""
        tried = [(name,), *(f for f in sorted(self.blanket) if len(f) == 2 and name in f)]
        results = [self.result(feature, self.given(name)) for feature in tried]
        smallest = min(results, key=lambda r: (r.p, -r.z))
        return PairResult(**(vars(smallest) | {"p": min(1.0, smallest.p * len(results))}))

    def constant(self, feature: Feature, rows: np.ndarray) -> bool:
        """Whether a feature never varies within the strata of the blanket at these rows."""
        return not varies(self.codes[feature], self.strata(self.blanket - {feature}))[rows].any()
