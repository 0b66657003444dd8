"""G-test for categorical factors: within-stratum permutations, grow-shrink conditioning.

For a set B of inputs, rows with equal values of B form strata, and

    G(x; y | B) = 2 sum_{b,x,y} n_bxy log( n_bxy n_b / (n_bx n_by) ).

Under the null (x independent of y given B) the x of a stratum's rows may be shuffled without changing
the law of G, so the permutation p-value is exact at any n and any sparsity; the chi-square law is not
used. Stratifying on *all* other inputs leaves strata of one row and no power, so for each target B is
grown and shrunk to the target's parents, beginning with the target's own past.

Assumptions: given the parents in B, the rows' next values are independent of each other (a Markov
environment). Least n: 100, but what counts is how often things happen: an edge that acts in under about
10 transitions is not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import gamma

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.rng import stream


def levels(columns: np.ndarray) -> np.ndarray:
    """Rows (n, width) -> (n,) integers, equal where the rows are equal."""
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def joint(*codes: np.ndarray) -> np.ndarray:
    """Several integer codes -> one, equal where all are equal."""
    out = np.zeros(len(codes[0]), np.int64)
    for code in codes:
        out = np.unique(out * (int(code.max()) + 1) + code, return_inverse=True)[1]
    return out


@dataclass(frozen=True)
class PairResult:
    p: float
    z: float
    """(G - its mean under permutation) / its standard deviation under permutation"""
    effect: float
    """share of the entropy H(y | B) that x removes beyond what a shuffled x removes"""
    extreme: bool
    """no shuffle did strictly better: the data could not have spoken more clearly"""


NOTHING = PairResult(1.0, 0.0, 0.0, False)


def permutation_test(
    x: np.ndarray,
    y: np.ndarray,
    strata: np.ndarray,
    rng: np.random.Generator,
    permutations: int = 999,
    stop_after: int = 20,
) -> PairResult:
    """Test x independent of y within strata (all (n,) integer codes).

    Stops early once `stop_after` shuffles have beaten the data (Besag and Clifford's sequential p-value:
    valid, and most nulls cost a few dozen shuffles), and when after 999 shuffles the data stand ten
    standard deviations above them all: there the gamma law with the shuffles' mean and variance gives p.
    """
    keep = _varies(x, strata) & _varies(y, strata)
    if not keep.any():
        return NOTHING
    entropy = _entropy_given(y, strata)  # of all rows: how much there was to explain
    x, y, strata = x[keep], y[keep], joint(strata[keep])
    strata = np.argsort(np.argsort(np.bincount(strata), kind="stable"))[strata]  # numbered by size
    order = np.argsort(strata, kind="stable")
    x, y, strata = x[order], y[order], strata[order]
    # n_bx and n_by do not change under shuffling: only sum n log n over the cells (b, x, y) does.
    bx, by = joint(strata, x), joint(strata, y)
    y_local = by - np.minimum.reduceat(by, np.searchsorted(strata, np.arange(strata[-1] + 1)))[strata]
    y_width = int(y_local.max()) + 1
    fixed = _sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(bx)) - _sum_n_log_n(np.bincount(by))
    observed = _sum_n_log_n(np.bincount(bx * y_width + y_local)) + fixed
    cells = (int(bx.max()) + 1) * y_width
    shuffler, n_log_n = _Shuffler(strata, y_local), _n_log_n(np.arange(len(x) + 1))
    shuffled: list[np.ndarray] = []
    beaten, better, done, batch = 0, 0, 0, 19
    most = max(1, 4_000_000 // max(cells, len(x)))
    while done < permutations and beaten < stop_after and not (done >= CLEAR and _far(observed, shuffled)):
        batch = min(batch, most, permutations - done)
        index = shuffler(rng, batch)
        index += bx * y_width
        index += cells * np.arange(batch)[:, None]
        counts = np.bincount(index.reshape(-1), minlength=batch * cells).reshape(batch, cells)
        value = n_log_n[counts].sum(-1) + fixed
        shuffled.append(value)
        beaten += int((value >= observed - 1e-9).sum())
        better += int((value > observed + 1e-9).sum())
        done, batch = done + batch, 4 * batch
    null = np.concatenate(shuffled)
    excess = observed - null.mean()
    # Ties are common in sparse tables; a random rank among them makes the level exact, not conservative.
    p = (1 + better + int(rng.integers(0, beaten - better + 1))) / (1 + done)
    if done >= CLEAR and _far(observed, shuffled):
        mean, variance = null.mean(), null.var()
        p = min(p, float(gamma.sf(observed, mean**2 / variance, scale=variance / mean)))
    return PairResult(
        p=p,
        z=float(excess / max(null.std(), 1e-12)),
        effect=float(np.clip(excess / max(entropy, 1e-12), 0.0, 1.0)),
        extreme=better == 0,
    )


CLEAR = 999


def _far(observed: float, shuffled: list[np.ndarray]) -> bool:
    null = np.concatenate(shuffled)
    return bool(null.std() > 0 and observed > null.max() and observed > null.mean() + 10 * null.std())


class _Shuffler:
    """Shuffles y within strata, which are sorted and come by size: all strata of one size are shuffled at once."""

    def __init__(self, strata: np.ndarray, y: np.ndarray):
        size, count = np.unique(np.bincount(strata), return_counts=True)
        ends = np.cumsum([0, *(size * count)])
        self._y, self._size, self._ends = y, size.tolist(), list(pairwise(ends.tolist()))

    def __call__(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        """(batch, n)"""
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
    strata = joint(strata)
    width = int(code.max()) + 1
    pairs = np.unique(strata * width + code) // width
    return (np.bincount(pairs, minlength=strata.max() + 1) > 1)[strata]


def _entropy_given(y: np.ndarray, strata: np.ndarray) -> float:
    """n H(y | strata)."""
    strata = joint(strata)
    return float(_sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(joint(strata, y))))


class GTest(IndependenceTest):
    """`alpha` decides membership while growing and shrinking; the mask's threshold is applied later."""

    name = "gtest"
    least_n = 100
    threads = True  # nearly all of its time is spent in NumPy, on one core

    def __init__(self, alpha: float = 0.002, permutations: int = 9999, scan: int = 499):
        self.alpha, self.permutations, self.scan = alpha, permutations, scan

    def settings(self) -> dict:
        return {"test": self.name, "alpha": self.alpha, "permutations": self.permutations, "scan": self.scan}

    def fine_enough(self, threshold: float) -> GTest:
        """With so many shuffles that p, never under 1 / (1 + shuffles), can fall below the threshold (or 100,000)."""
        return GTest(self.alpha, max(self.permutations, int(min(2 / threshold, 1e5))), self.scan)

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        x = [levels(columns) for columns in variables.x]
        names = [f.name for f in variables.inputs]
        shape = (len(x), len(variables.y))
        p, z, effect = np.ones(shape), np.zeros(shape), np.zeros(shape)
        untestable, why = np.zeros(shape, bool), {}
        for j, (target, columns) in enumerate(zip(variables.targets, variables.y, strict=True)):
            own = names.index(target.name) if target.name in names else None
            search = _Search(x, levels(columns), own, stream(seed, "gtest", target.name), self)
            for i, result in enumerate(search.results()):
                p[i, j], z[i, j], effect[i, j] = result.p, result.z, result.effect
            changed = np.ones(len(columns), bool) if own is None else (variables.x[own] != columns).any(1)
            for i in search.outside():
                if reason := _blind(x, i, search.blanket, changed):
                    untestable[i, j], why[names[i], target.name] = True, reason
            for i in search.faint:
                untestable[i, j] = True
                why[names[i], target.name] = "too few cases for a small p-value, but all of them speak for the edge"
        return Evidence(p, z, effect, untestable, why)


class _Search:
    """Grow-shrink for one target. `blanket` always holds the target's own past, where that is an input."""

    def __init__(self, x: list[np.ndarray], y: np.ndarray, own: int | None, rng: np.random.Generator, test: GTest):
        self.x, self.y, self.rng, self.test = x, y, rng, test
        self.past = set() if own is None else {own}
        self.blanket = set(self.past)
        self.faint: set[int] = set()
        """members that explain what is left, in too few rows to reach alpha"""
        self._grow()
        self._shrink()
        self._add_faint()

    def outside(self) -> list[int]:
        return [i for i in range(len(self.x)) if i not in self.blanket]

    def strata(self, given: set[int]) -> np.ndarray:
        return joint(np.zeros(len(self.y), np.int64), *(self.x[k] for k in sorted(given)))

    def pair(self, i: int, given: set[int], permutations: int, stop_after: int = 20) -> PairResult:
        return permutation_test(self.x[i], self.y, self.strata(given - {i}), self.rng, permutations, stop_after)

    def explained(self) -> bool:
        return _entropy_given(self.y, self.strata(self.blanket)) == 0

    def _grow(self) -> None:
        """Add the strongest candidate until none is left.

        A candidate is looked at given the blanket, and given the blanket and one more input: 'the agent
        is where the key is' shows in neither position alone. A look counts when no shuffle of the scan
        beats the data; shrinking then asks for alpha.
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
        while members := self.blanket - self.past:
            weakest, i = max(
                ((self.pair(i, self.blanket, self.test.permutations), i) for i in members),
                key=lambda result: (result[0].p, -result[0].z),
            )
            if weakest.p < self.test.alpha:
                return
            self.blanket.remove(i)

    def _add_faint(self) -> None:
        """What is still unexplained may hang on an input that varies too rarely there to be proven."""
        while not self.explained():
            results = [(self.pair(i, self.blanket, self.test.scan), i) for i in self.outside()]
            hints = [(r.z, i) for r, i in results if r.p < 0.05 and r.extreme and r.effect > 0.5]
            if not hints:
                return
            self.faint.add(max(hints)[1])
            self.blanket.add(max(hints)[1])

    def results(self) -> list[PairResult]:
        return [self.pair(i, self.blanket, self.test.permutations) for i in range(len(self.x))]


def _blind(x: list[np.ndarray], i: int, blanket: set[int], changed: np.ndarray) -> str:
    """Why the data cannot tell whether input i matters, or '' when they can.

    Look at the strata of the blanket in which the target ever changes. If x_i never varies there, though
    it varies with each single member of the blanket held at the values it has there, then the one
    situation that would tell was never logged. (If a single member already pins x_i down, the two are
    redundant and the blanket speaks for both.)
    """
    if len(np.unique(x[i])) == 1:
        return "it never varies"
    strata = joint(np.zeros(len(changed), np.int64), *(x[k] for k in sorted(blanket)))
    there = np.isin(strata, strata[changed])
    if not blanket or not there.any() or _varies(x[i], strata)[there].any():
        return ""
    for k in blanket:
        near = np.isin(x[k], x[k][there])
        if not _varies(x[i][near], x[k][near]).any():
            return ""
    return "it never varies in the situations in which the target changes"
