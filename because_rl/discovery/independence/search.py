"""Grow-shrink: the inputs, and relations of inputs, given which a target is independent of all others."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from because_rl.discovery.independence.contingency import (
    PairResult,
    PermutationTest,
    entropy_given,
    joint_codes,
    varies,
)
from because_rl.rng import stream

Feature = tuple[str, ...]
"""(input,), or (input, other input) for the indicator that the two are equal; names in alphabetical order."""


class Settings(Protocol):
    """Of the test; see `GTest`."""

    alpha: float
    permutations: int
    scan: int
    threshold: float
    least_effect: ClassVar[float]


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
        test: Settings,
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
        self._swap()

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
        """Replace members by features that explain more with no more strata, or as much with fewer; whether any was.

        Of two inputs that nearly stand in for each other (an agent that does not pick, moves) the permutations' noise
        may have chosen the one that explains less, or the one with values that make no difference.
        """

        def rank(features: frozenset[Feature]) -> tuple[float, int]:
            strata = self.strata(features)
            return round(entropy_given(self.y, strata), 9), int(strata.max())

        swapped = False
        while True:
            now = rank(self.blanket)
            sets = {self.blanket - {f} | {g} for f in self.blanket - self.past for g in self.outside()}
            ranked = sorted((*rank(s), sorted(s)) for s in sets if rank(s)[1] <= now[1])
            if not ranked or ranked[0][:2] >= now:
                return swapped
            self.blanket, swapped = frozenset(ranked[0][2]), True

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
