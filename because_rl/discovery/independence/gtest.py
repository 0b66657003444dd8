"""G-test for categorical factors: permutations within strata, grow-shrink conditioning.

For a set B of inputs, rows with equal values of B form strata, and

    G(x; y | B) = 2 sum_{b,x,y} n_bxy log( n_bxy n_b / (n_bx n_by) ).

Under the null (x independent of y given B) shuffling x within the strata does not change the distribution of G, so
the permutation p-value is exact at any n and any sparsity; the chi-square distribution is not used. Stratifying on
*all* other inputs leaves strata of one row and no power, so for each target B is grown and shrunk to the target's
parents, starting from the target's own last value.

Assumptions: given the parents in B, the next values of different rows are independent of each other (a Markov
environment). Valid for: categorical and binary factors. Least n: 100, but the number of events matters more: an
edge that acts in fewer than about 10 transitions is not detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import gamma

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.rng import stream


def row_codes(columns: np.ndarray) -> np.ndarray:
    """Rows (n, width) -> (n,) integers, equal where the rows are equal."""
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def joint_codes(*codes: np.ndarray) -> np.ndarray:
    """Several (n,) integer codes -> one, equal where all of them are equal."""
    out = np.zeros(len(codes[0]), np.int64)
    for code in codes:
        out = np.unique(out * (int(code.max()) + 1) + code, return_inverse=True)[1]
    return out


@dataclass(frozen=True)
class PairResult:
    """The test of one input against one target within strata."""

    p: float
    z: float
    """(G - its mean under permutation) / its standard deviation under permutation"""
    effect: float
    """share of the entropy H(y | B) that x removes beyond what a shuffled x removes"""
    extreme: bool
    """no permutation had a strictly larger G"""


NO_VARIATION = PairResult(1.0, 0.0, 0.0, False)
"""Where x or y is constant within every stratum."""
CLEAR = 999
"""Permutations after which a G far above all of them ends the test (see `_is_far`)."""


def permutation_test(
    x: np.ndarray,
    y: np.ndarray,
    strata: np.ndarray,
    rng: np.random.Generator,
    permutations: int = 999,
    stop_after: int = 20,
) -> PairResult:
    """Test 'x is independent of y within strata'.

    Stops early once `stop_after` permutations have reached the observed G (Besag and Clifford's sequential p-value:
    valid, and most nulls cost a few dozen permutations). It also stops when after 999 permutations the observed G
    lies above all of them and ten standard deviations above their mean: p then comes from the gamma distribution
    with the permutations' mean and variance.

    Args:
        x, y, strata: (n,) integer codes.
        rng: of the permutations and of the rank among ties.
        permutations: the most that are made.
        stop_after: permutations with at least the observed G after which to stop.
    """
    keep = _varies(x, strata) & _varies(y, strata)
    if not keep.any():
        return NO_VARIATION
    entropy = _entropy_given(y, strata)  # over all rows, including those that are dropped next
    x, y, strata = x[keep], y[keep], joint_codes(strata[keep])
    strata = np.argsort(np.argsort(np.bincount(strata), kind="stable"))[strata]  # numbered by size
    order = np.argsort(strata, kind="stable")
    x, y, strata = x[order], y[order], strata[order]
    # n_bx and n_by do not change under shuffling: only sum n log n over the cells (b, x, y) does.
    bx, by = joint_codes(strata, x), joint_codes(strata, y)
    y_local = by - np.minimum.reduceat(by, np.searchsorted(strata, np.arange(strata[-1] + 1)))[strata]
    y_width = int(y_local.max()) + 1
    fixed = _sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(bx)) - _sum_n_log_n(np.bincount(by))
    observed = _sum_n_log_n(np.bincount(bx * y_width + y_local)) + fixed  # G / 2
    cells = (int(bx.max()) + 1) * y_width
    shuffler, n_log_n = _Shuffler(strata, y_local), _n_log_n(np.arange(len(x) + 1))
    shuffled: list[np.ndarray] = []
    as_large, larger, done, batch = 0, 0, 0, 19
    max_batch = max(1, 4_000_000 // max(cells, len(x)))  # bounds the memory
    while done < permutations and as_large < stop_after and not (done >= CLEAR and _is_far(observed, shuffled)):
        batch = min(batch, max_batch, permutations - done)
        index = shuffler(rng, batch)
        index += bx * y_width
        index += cells * np.arange(batch)[:, None]
        counts = np.bincount(index.reshape(-1), minlength=batch * cells).reshape(batch, cells)
        value = n_log_n[counts].sum(-1) + fixed
        shuffled.append(value)
        as_large += int((value >= observed - 1e-9).sum())
        larger += int((value > observed + 1e-9).sum())
        done, batch = done + batch, 4 * batch
    null = np.concatenate(shuffled)
    excess = observed - null.mean()
    # Ties are common in sparse tables; a random rank among them makes the level exact, not conservative.
    p = (1 + larger + int(rng.integers(0, as_large - larger + 1))) / (1 + done)
    if done >= CLEAR and _is_far(observed, shuffled):
        mean, variance = null.mean(), null.var()
        p = min(p, float(gamma.sf(observed, mean**2 / variance, scale=variance / mean)))
    return PairResult(
        p=p,
        z=float(excess / max(null.std(), 1e-12)),
        effect=float(np.clip(excess / max(entropy, 1e-12), 0.0, 1.0)),
        extreme=larger == 0,
    )


def _is_far(observed: float, shuffled: list[np.ndarray]) -> bool:
    """Whether the observed G lies above all permutations and ten standard deviations above their mean."""
    null = np.concatenate(shuffled)
    return bool(null.std() > 0 and observed > null.max() and observed > null.mean() + 10 * null.std())


class _Shuffler:
    """Permutes y within strata. Strata come sorted by size, and all strata of one size are permuted at once."""

    def __init__(self, strata: np.ndarray, y: np.ndarray):
        size, count = np.unique(np.bincount(strata), return_counts=True)
        ends = np.cumsum([0, *(size * count)])
        self._y, self._size, self._ends = y, size.tolist(), list(pairwise(ends.tolist()))

    def __call__(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        """(batch, n) permutations of y."""
        out = np.empty((batch, len(self._y)), np.int64)
        for size, (a, b) in zip(self._size, self._ends, strict=True):
            block = np.tile(self._y[a:b], batch).reshape(-1, size)
            out[:, a:b] = rng.permuted(block, axis=1, out=block).reshape(batch, -1)
        return out


def _n_log_n(counts: np.ndarray) -> np.ndarray:
    n = counts.astype(np.float64)
    return n * np.log(np.maximum(n, 1.0))


def _sum_n_log_n(counts: np.ndarray) -> np.ndarray:
    return _n_log_n(counts).sum(-1)


def _varies(code: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Rows whose stratum holds more than one value of `code`."""
    strata = joint_codes(strata)
    width = int(code.max()) + 1
    pairs = np.unique(strata * width + code) // width
    return (np.bincount(pairs, minlength=strata.max() + 1) > 1)[strata]


def _entropy_given(y: np.ndarray, strata: np.ndarray) -> float:
    """n H(y | strata)."""
    strata = joint_codes(strata)
    return float(_sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(joint_codes(strata, y))))


class GTest(IndependenceTest):
    """The G-test with grow-shrink conditioning.

    Args:
        alpha: p-value below which an input stays in the conditioning set; the mask's threshold is applied later.
        permutations: the most for a final p-value.
        scan: the most while the conditioning set is grown.
    """

    name = "gtest"
    least_n = 100
    parallel_in_threads = True  # nearly all of the time is spent in NumPy, on one core

    def __init__(self, alpha: float = 0.002, permutations: int = 9999, scan: int = 499):
        self.alpha, self.permutations, self.scan = alpha, permutations, scan

    def settings(self) -> dict:
        return {"test": self.name, "alpha": self.alpha, "permutations": self.permutations, "scan": self.scan}

    def for_threshold(self, threshold: float) -> GTest:
        """With enough permutations, at most 100,000: p is never below 1 / (1 + permutations)."""
        return GTest(self.alpha, max(self.permutations, int(min(2 / threshold, 1e5))), self.scan)

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        x = [row_codes(columns) for columns in variables.x]
        names = [f.name for f in variables.inputs]
        shape = (len(x), len(variables.y))
        p, z, effect = np.ones(shape), np.zeros(shape), np.zeros(shape)
        detectable, why = np.zeros(shape), {}
        for j, (target, columns) in enumerate(zip(variables.targets, variables.y, strict=True)):
            own = names.index(target.name) if target.name in names else None
            search = _Search(x, row_codes(columns), own, stream(seed, "gtest", target.name), self)
            for i, result in enumerate(search.results()):
                p[i, j], z[i, j], effect[i, j] = result.p, result.z, result.effect
            changed = np.ones(len(columns), bool) if own is None else (variables.x[own] != columns).any(1)
            for i in search.outside():
                if reason := _untestable_reason(x, i, search.blanket, changed):
                    detectable[i, j], why[names[i], target.name] = np.inf, reason
            for i in search.unproven:
                detectable[i, j] = np.inf
                why[names[i], target.name] = "too few cases for a small p-value, but all of them support the edge"
        return Evidence(p, z, effect, detectable, why)


class _Search:
    """Grow-shrink for one target: finds its Markov blanket among the inputs.

    `x` are the codes of the inputs, `y` of the target. The blanket always contains the target's own last value, where
    that is an input (number `own`).
    """

    def __init__(self, x: list[np.ndarray], y: np.ndarray, own: int | None, rng: np.random.Generator, test: GTest):
        self.x, self.y, self.rng, self.test = x, y, rng, test
        self.past = set() if own is None else {own}
        self.blanket = set(self.past)
        self.unproven: set[int] = set()
        """members that explain the remaining entropy, but in too few rows for p < alpha"""
        self._grow()
        self._shrink()
        self._add_unproven()

    def outside(self) -> list[int]:
        """Inputs that are not in the blanket."""
        return [i for i in range(len(self.x)) if i not in self.blanket]

    def strata(self, given: set[int]) -> np.ndarray:
        """(n,) codes, equal where all of the given inputs are."""
        return joint_codes(np.zeros(len(self.y), np.int64), *(self.x[k] for k in sorted(given)))

    def pair(self, i: int, given: set[int], permutations: int, stop_after: int = 20) -> PairResult:
        """Test input i against the target given the others in `given`."""
        return permutation_test(self.x[i], self.y, self.strata(given - {i}), self.rng, permutations, stop_after)

    def explained(self) -> bool:
        """Whether the blanket determines the target."""
        return _entropy_given(self.y, self.strata(self.blanket)) == 0

    def _grow(self) -> None:
        """Add the strongest candidate until none is left.

        A candidate is tested given the blanket, and given the blanket and one more input: 'the agent is where the key
        is' shows in neither position alone. It counts when no permutation of the scan reaches the observed G;
        shrinking then requires p < alpha.
        """
        while not self.explained():
            strongest, best = 0.0, None
            for i in self.outside():
                for given in (self.blanket, *(self.blanket | {k} for k in self.outside() if k != i)):
                    result = self.pair(i, given, self.test.scan, stop_after=1)
                    if result.p <= 1 / (self.test.scan + 1) and result.z > strongest:
                        strongest, best = result.z, i
            if best is None:
                return
            self.blanket.add(best)

    def _shrink(self) -> None:
        """Remove the weakest member until all have p < alpha."""
        while members := self.blanket - self.past:
            weakest, i = max(
                ((self.pair(i, self.blanket, self.test.permutations), i) for i in members),
                key=lambda result: (result[0].p, -result[0].z),
            )
            if weakest.p < self.test.alpha:
                return
            self.blanket.remove(i)

    def _add_unproven(self) -> None:
        """Add inputs that may explain the remaining entropy but vary too rarely for p < alpha."""
        while not self.explained():
            results = [(self.pair(i, self.blanket, self.test.scan), i) for i in self.outside()]
            hints = [(r.z, i) for r, i in results if r.p < 0.05 and r.extreme and r.effect > 0.5]
            if not hints:
                return
            self.unproven.add(max(hints)[1])
            self.blanket.add(max(hints)[1])

    def results(self) -> list[PairResult]:
        """The final test of every input given the blanket."""
        return [self.pair(i, self.blanket, self.test.permutations) for i in range(len(self.x))]


def _untestable_reason(x: list[np.ndarray], i: int, blanket: set[int], changed: np.ndarray) -> str:
    """Why the data cannot decide whether input i matters, or '' when they can.

    Consider the strata of the blanket in which the target ever changes (`changed`, (n,) bool). If x_i never varies
    there, though it varies with each single member of the blanket held at the values it has there, then the
    situation that would decide was never logged. (If a single member already determines x_i, the two are redundant
    and the test of that member covers both.)
    """
    if len(np.unique(x[i])) == 1:
        return "it never varies"
    strata = joint_codes(np.zeros(len(changed), np.int64), *(x[k] for k in sorted(blanket)))
    there = np.isin(strata, strata[changed])
    if not blanket or not there.any() or _varies(x[i], strata)[there].any():
        return ""
    for k in blanket:
        near = np.isin(x[k], x[k][there])
        if not _varies(x[i][near], x[k][near]).any():
            return ""
    return "it never varies in the situations in which the target changes"
