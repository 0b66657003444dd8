"""Tables of counts within strata: codes, entropies, and the permutation test of conditional independence.

For rows with codes x, y in strata b,

    G(x; y | b) = 2 sum_{b,x,y} n_bxy log( n_bxy n_b / (n_bx n_by) ).

If rows are independent given b, shuffling y within the strata leaves the distribution of G under the null as it is, at
any n and any sparsity. Rows of one episode need not be independent: x may stay the same for long, and y may have a
hidden cause that does. With r_x(c), r_y(c) the correlation of x and of y over pairs of rows of one episode (at lag c)
and d_b = (values of x in b - 1)(values of y in b - 1), the covariance V of the cells of all tables satisfies

    tr V   = sum_b d_b D_b,                    D_b = 1 + sum_{pairs in b} 2 r_x r_y / n_b      (design effect)
    tr V^2 = sum_b d_b D_b^2 + sum_{b != b'} (r_x r_y m_bb')^2 sqrt(d_b d_b') / (n_b n_b'),

with m_bb' the pairs of rows of one episode in b and b'. For independent rows both are sum_b d_b. As in Rao and Scott's
correction of second order, the null of G is taken to have the permutations' mean times tr V / sum d_b and their
variance times tr V^2 / sum d_b: G is replaced by the value with the same tail probability under the gamma
distribution of the permutations' moments as G has under that of the corrected moments. r_x and r_y are estimated
separately, as under the null, so a true dependence does not inflate the correction. Between strata they are taken to be
the mean of those within: a hidden cause may make y take other values in another stratum, but ties it no less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import gammaincc, gammainccinv

LAGS = 16
"""Lags within an episode that have a correlation of their own; longer ones share one."""
STAGES = (19, 99, 499, 999)
"""Numbers of permutations after which the test may stop."""
FAR = 7.0
"""Standard deviations above the mean, and above all of 999 permutations, at which G is clear without more."""


def row_codes(columns: np.ndarray) -> np.ndarray:
    """Rows (n, width) -> (n,) integers, equal where the rows are equal."""
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def joint_codes(*codes: np.ndarray) -> np.ndarray:
    """Several (n,) integer codes -> one, equal where all of them are equal."""
    out = np.zeros(len(codes[0]), np.int64)
    for code in codes:
        out = np.unique(out * (int(code.max()) + 1) + code, return_inverse=True)[1]
    return out


def varies(code: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Rows whose stratum holds more than one value of `code`."""
    strata = joint_codes(strata)
    width = int(code.max()) + 1
    pairs = np.unique(strata * width + code) // width
    return (np.bincount(pairs, minlength=strata.max() + 1) > 1)[strata]


def off_mode(code: np.ndarray, strata: np.ndarray) -> int:
    """Number of rows whose code is not the most frequent one of their stratum."""
    if not len(code):
        return 0
    cell = joint_codes(strata, code)
    count, most = np.bincount(cell), np.zeros(int(strata.max()) + 1, np.int64)
    np.maximum.at(most, strata, count[cell])
    return int(len(code) - most.sum())


def entropy_given(y: np.ndarray, strata: np.ndarray) -> float:
    """n H(y | strata), in nats."""
    if not len(y):
        return 0.0
    strata = joint_codes(strata)
    return float(_sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(joint_codes(strata, y))))


def _n_log_n(counts: np.ndarray) -> np.ndarray:
    n = counts.astype(np.float64)
    return n * np.log(np.maximum(n, 1.0))


def _sum_n_log_n(counts: np.ndarray) -> np.ndarray:
    return _n_log_n(counts).sum(-1)


@dataclass(frozen=True)
class PairResult:
    """The test of one input against one target within strata."""

    p: float
    z: float
    """(G - its mean under the null) / its standard deviation under the null"""
    excess: float
    """G / 2 less its mean under the null: the nats of y's entropy that x explains beyond chance"""
    left: float
    """n H(y | strata), over all rows, in nats"""
    null_mean: float
    """of G / 2, with the correction for episodes"""
    null_variance: float
    extreme: bool
    """no permutation had a strictly larger G"""


class PermutationTest:
    """Test of 'x is independent of y within strata'; results for more permutations continue those for fewer.

    Args:
        x, y, strata: (n,) integer codes.
        rng: of the permutations.
        episode: (n,) the episode of each row, in logged order; None if rows are independent.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        strata: np.ndarray,
        rng: np.random.Generator,
        episode: np.ndarray | None = None,
    ):
        self.left = entropy_given(y, strata)
        keep = varies(x, strata) & varies(y, strata)
        self._empty = not keep.any()
        if self._empty:
            return
        x, y, strata = x[keep], y[keep], joint_codes(strata[keep])
        self._rows = (x, y, strata, None if episode is None else episode[keep])
        self._design: tuple[float, float] | None = None
        strata = np.argsort(np.argsort(np.bincount(strata), kind="stable"))[strata]  # numbered by size
        order = np.argsort(strata, kind="stable")
        x, y, strata = x[order], y[order], strata[order]
        # n_bx and n_by do not change under shuffling: only sum n log n over the cells (b, x, y) does.
        self._bx, by = joint_codes(strata, x), joint_codes(strata, y)
        y_local = by - np.minimum.reduceat(by, np.searchsorted(strata, np.arange(strata[-1] + 1)))[strata]
        self._width = int(y_local.max()) + 1
        self._fixed = (
            _sum_n_log_n(np.bincount(strata)) - _sum_n_log_n(np.bincount(self._bx)) - _sum_n_log_n(np.bincount(by))
        )
        self._cells = (int(self._bx.max()) + 1) * self._width
        self.observed = float(_sum_n_log_n(np.bincount(self._bx * self._width + y_local)) + self._fixed)
        self._shuffler, self._lookup = _Shuffler(strata, y_local), _n_log_n(np.arange(len(x) + 1))
        self._rng, self._null = rng, np.zeros(0)

    @property
    def design(self) -> tuple[float, float]:
        """By how much episodes raise the mean and the variance of G under the null; see the module docstring."""
        if self._design is None:
            self._design = design_effects(*self._rows)
        return self._design

    def scan(self, permutations: int, weakest: float = 0.0) -> PairResult:
        """Quick: ends with the first permutation that reaches the observed G, and below z = `weakest`."""
        return self._run(permutations, lambda result, count, done: count >= 1 or (done >= 99 and result.z < weakest))

    def result(self, permutations: int, threshold: float) -> PairResult:
        """The p-value, from more permutations the closer it is to the threshold.

        A p-value of at least .08 needs at most 499 permutations, and one above 4 times the threshold at most 999.
        Within a factor of 4 of the threshold it gets 4 times `permutations`. A tie counts as one half: that is the
        mean over random ranks among ties.
        """

        def enough(result: PairResult, count: int, done: int) -> bool:
            if done < 999:
                return result.p >= 0.08 and count >= 20
            return result.p > 4 * threshold or (done >= permutations and result.p < threshold / 4)

        return self._run(4 * permutations, enough, (permutations,))

    def _run(
        self, permutations: int, enough: Callable[[PairResult, int, int], bool], stages: tuple[int, ...] = ()
    ) -> PairResult:
        if self._empty:
            return PairResult(1.0, 0.0, 0.0, self.left, 0.0, 0.0, False)
        summary = None
        for stage in sorted({*STAGES, *stages, permutations}):
            if stage > permutations:
                break
            self._extend(stage)
            summary, count, far = self._summary(stage)
            if far or enough(summary, count, stage):
                break
        assert summary is not None
        return summary

    def _extend(self, total: int) -> None:
        """Make permutations until there are `total`."""
        most = max(1, 4_000_000 // max(self._cells, len(self._bx)))  # bounds the memory
        values = [self._null]
        missing = total - len(self._null)
        while missing > 0:
            batch = min(most, missing)
            index = self._shuffler(self._rng, batch)
            index += self._bx * self._width
            index += self._cells * np.arange(batch)[:, None]
            counts = np.bincount(index.reshape(-1), minlength=batch * self._cells).reshape(batch, self._cells)
            values.append(self._lookup[counts].sum(-1) + self._fixed)
            missing -= batch
        self._null = np.concatenate(values)

    def _summary(self, done: int) -> tuple[PairResult, int, bool]:
        """The result of the first `done` permutations, how many reach G, and whether G is far above all of them."""
        null = self._null[:done]
        mean, variance, value = float(null.mean()), float(null.var()), self.observed
        larger, as_large = _counts(null, value)
        extreme = larger == 0
        raise_mean, raise_variance = 1.0, 1.0
        if done >= 99 and (1 + larger) / (1 + done) < 0.2 and variance > 0:
            raise_mean, raise_variance = self.design
        tail = 1.0
        if raise_mean > 1 or raise_variance > 1:
            tail = upper_tail(value, mean * raise_mean, variance * raise_variance)
            matched = upper_quantile(tail, mean, variance) if tail > 0 else np.inf
            value = min(value, matched)
            larger, as_large = _counts(null, value)
        far = done >= 999 and variance > 0 and larger == as_large == 0 and value > mean + FAR * variance**0.5
        p = (1 + (larger + as_large) / 2) / (1 + done)
        if far:
            p = min(p, tail, upper_tail(value, mean, variance))
        mean, variance = mean * raise_mean, variance * raise_variance
        excess = self.observed - mean
        z = excess / max(variance**0.5, 1e-12)
        return PairResult(p, z, excess, self.left, mean, variance, extreme), as_large, far


def _counts(null: np.ndarray, value: float) -> tuple[int, int]:
    """How many are larger than the value, and how many are as large."""
    return int((null > value + 1e-9).sum()), int((null >= value - 1e-9).sum())


def upper_tail(value: float, mean: float, variance: float) -> float:
    """P(X > value) for X with a gamma distribution of this mean and variance."""
    return float(gammaincc(mean**2 / variance, value * mean / variance))


def upper_quantile(p: float, mean: float, variance: float) -> float:
    """The value that X exceeds with probability p, for X with a gamma distribution of this mean and variance."""
    return float(gammainccinv(mean**2 / variance, p)) * variance / mean


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


def design_effects(x: np.ndarray, y: np.ndarray, strata: np.ndarray, episode: np.ndarray | None) -> tuple[float, float]:
    """(tr V, tr V^2) / sum_b d_b of the module docstring, each at least 1.

    x, y, strata, episode: (n,), rows in logged order.
    """
    if episode is None or len(np.unique(episode)) == len(episode):
        return 1.0, 1.0
    episode = joint_codes(episode)
    order = np.argsort(episode, kind="stable")
    strata, episode = strata[order], episode[order]
    clusters = [_Clusters(code[order], strata, episode) for code in (x, y)]
    n_b, cell = np.bincount(strata), joint_codes(episode, strata)
    d_b = clusters[0].freedom * clusters[1].freedom
    # Pairs in one stratum, by lag, and those at longer lags together.
    pairs = [2.0 * np.bincount(strata[:-lag][_same(cell, lag)], minlength=len(n_b)) for lag in range(1, LAGS + 1)]
    total = np.bincount(strata[np.unique(cell, return_index=True)[1]], np.bincount(cell) ** 2.0) - n_b
    pairs.append(total - sum(pairs))
    alike = np.stack([c.correlations(cell, pairs) for c in clusters])
    design_b = 1 + sum(r * count for r, count in zip(alike.prod(0), pairs, strict=True)) / n_b
    raised = float((d_b * design_b).sum() / d_b.sum())
    if raised <= 1:
        raised, design_b = 1.0, np.ones(len(n_b))
    # Pairs in different strata.
    table = csr_matrix((np.ones(len(x)), (episode, strata)))
    meet = (table.T @ table).tocoo()
    other = meet.row != meet.col
    row, column, meets = meet.row[other], meet.col[other], meet.data[other]
    across = 0.0
    if len(meets):
        mean = np.clip(alike @ [count.sum() for count in pairs] / max(total.sum(), 1.0), 0.0, 1.0)
        link = meets * mean.prod()
        across = float((link**2 / (n_b[row] * n_b[column]) * np.sqrt(d_b[row] * d_b[column])).sum())
    return raised, max(raised, float(((d_b * np.maximum(design_b, 0) ** 2).sum() + across) / d_b.sum()))


def _same(cell: np.ndarray, lag: int) -> np.ndarray:
    return cell[lag:] == cell[:-lag]


class _Clusters:
    """How alike the values of one code are in rows of one episode.

    With f_i the indicator of row i's value less its mean in the row's stratum, the correlation over pairs of rows is
    the mean of f_i . f_k over the pairs, relative to the mean of f_i . f_i, each less the mean of f_i . f_k over rows
    of one stratum and different episodes (which is slightly negative).
    """

    def __init__(self, code: np.ndarray, strata: np.ndarray, episode: np.ndarray):
        self.code, self.strata, self.episode = joint_codes(code), strata, episode
        count = csr_matrix((np.ones(len(code)), (strata, self.code)))
        self.n_b = np.bincount(strata)
        self.freedom = np.asarray((count > 0).sum(1)).reshape(-1) - 1.0
        self.share = csr_matrix(count.multiply(1.0 / self.n_b[:, None]))  # (strata, values)
        self.p = np.asarray(self.share[strata, self.code]).reshape(-1)  # of each row's value in its stratum
        self.square = np.asarray(self.share.multiply(self.share).sum(1)).reshape(-1)

    def correlations(self, cell: np.ndarray, pairs: list[np.ndarray]) -> np.ndarray:
        """(lags + 1,) in one stratum; `cell` is (episode, stratum), `pairs` the ordered pairs by lag and stratum."""
        n_cell, inside = np.bincount(cell), joint_codes(cell, self.code)
        stratum = self.strata[np.unique(cell, return_index=True)[1]]
        squares = np.bincount(cell[np.unique(inside, return_index=True)[1]], np.bincount(inside) ** 2.0)
        squares += n_cell**2 * self.square[stratum] - 2 * n_cell * np.bincount(cell, self.p)
        one_episode = np.bincount(stratum, squares)  # sum of f_i . f_k, with i = k
        diagonal = self.n_b * (1 - self.square)
        between = self.n_b**2.0 - sum(pairs) - self.n_b
        chance = np.where(between > 0, -one_episode / np.maximum(between, 1), 0.0)
        products = []
        for lag in range(1, LAGS + 1):
            alike = (
                (self.code[lag:] == self.code[:-lag]) - self.p[lag:] - self.p[:-lag] + self.square[self.strata[lag:]]
            )
            products.append(2.0 * alike[_same(cell, lag)].sum())
        products.append((one_episode - diagonal).sum() - sum(products))
        expected = np.array([(count * chance).sum() for count in pairs])
        room = np.array([(count * (diagonal / self.n_b - chance)).sum() for count in pairs])
        return np.where(room > 1e-9, (np.array(products) - expected) / np.maximum(room, 1e-9), 0.0)
