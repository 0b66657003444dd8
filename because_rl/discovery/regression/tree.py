"""Regression trees (CART) with NumPy: one of all columns and one without each factor's, grown together.

Trees that may use different columns still agree on most splits. The tree without factor i departs from the tree of
all columns only where that one splits on i: there it takes the best split of the other columns, and goes on alone.
So a node is searched once for all trees that share it. Levels are grown at once, all nodes and columns of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EQUAL = 1 - 1e-9
"""Drops nearer than this are the same but for rounding: in a small node many columns part the rows alike."""


class Trees(NamedTuple):
    column: np.ndarray
    """(nodes, 2) the column that a node splits on, and the one for the tree that may not use it; -1: leaf"""
    cut: np.ndarray
    """(nodes, 2) rows with x <= cut go left"""
    left: np.ndarray
    """(nodes, 2) the left child; the right one comes next"""
    rows: np.ndarray
    """(nodes,) how many"""
    value: np.ndarray
    """(nodes, w) mean target"""
    owner: np.ndarray
    """(columns,) the factor of each column"""

    def predict(self, x: np.ndarray, without: int | None = None, least: float = 2) -> np.ndarray:
        """By the tree without a factor, as if no node with fewer than `least` rows had been split."""
        second = np.zeros(len(self.rows), int)
        if without is not None:
            second[(self.column[:, 0] >= 0) & (self.owner[self.column[:, 0]] == without)] = 1
        at = np.arange(len(self.rows)), second
        column, cut, left = self.column[at], self.cut[at], self.left[at]
        node = np.zeros(len(x), int)
        while True:
            go = np.flatnonzero((column[node] >= 0) & (self.rows[node] >= least))
            if not len(go):
                return self.value[node]
            here = node[go]
            node[go] = left[here] + (x[go, column[here]] > cut[here])


def grow(x: np.ndarray, y: np.ndarray, owner: np.ndarray | None = None, least: float = 2) -> Trees:
    """Split until nodes are pure or have fewer than `least` rows, each time at the largest drop of squared error.

    `owner` gives the factor of each column; None: each is its own.

    >>> trees = grow(np.array([[0.0, 9], [1, 8], [2, 7], [3, 7]]), np.array([[1.0], [1], [4], [6]]))
    >>> trees.predict(np.array([[0.5, 8], [2.9, 8]])).tolist()
    [[1.0], [6.0]]
    >>> trees.predict(np.array([[0.5, 8], [2.9, 7]]), without=0).tolist()
    [[1.0], [5.0]]
    """
    (n, p), w = x.shape, y.shape[1]
    owner = np.arange(p) if owner is None else np.asarray(owner)
    columns, levels, first = np.ascontiguousarray(x.T), [], 0
    # Of the level's entries (a row in a node; a row has one in each tree that has gone its own way):
    row, node = np.arange(n), np.zeros(n, np.int16)
    order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)  # (p, entries) by node, then by value
    alone, size = np.full(1, -1), np.full(1, n)  # of nodes; `alone`: the factor that its only tree goes without
    value = y.mean(0)[None]
    while True:
        starts = np.r_[0, np.cumsum(size)]
        of = np.repeat(np.arange(len(size)), size)
        here = np.take_along_axis(columns, row[order], axis=1)
        best, gain = _gains(y[row[order]], here, starts, of)
        best[owner[:, None] == alone] = -1.0
        shared = _first_of(best, best.max(0))
        others = np.where((owner[:, None] == owner[shared]) | (alone >= 0), -1.0, best)
        column, cut, left = np.full((len(size), 2), -1), np.zeros((len(size), 2)), np.zeros((len(size), 2), int)
        grown: list[tuple[np.ndarray, ...]] = []  # row, node, alone and order of the next level
        made = entries = 0
        for k, score in enumerate((best, others)):
            most = score.max(0)
            where, split = _first_of(score, most), (most > 1e-10) & (size >= least)
            if not split.any():
                continue
            hit = gain[where[of], np.arange(len(of))] >= EQUAL * best[where, np.arange(len(size))][of]
            at = np.zeros(len(size), int)
            at[of[hit][::-1]] = np.flatnonzero(hit)[::-1]  # the first best cut of each node
            low, high = here[where, at], here[where, np.minimum(at + 1, len(of) - 1)]
            middle = (low + high) / 2
            middle = np.where(middle < high, middle, low)
            child = made + 2 * (np.cumsum(split) - 1)
            column[:, k], cut[:, k] = np.where(split, where, -1), middle
            left[:, k] = np.where(split, first + len(size) + child, 0)
            alive = split[node]
            mine, home = row[alive], node[alive]
            right = columns[where[home], mine] > middle[home]
            renamed = np.cumsum(alive, dtype=np.int32) - 1 + entries
            apart = np.repeat(alone[split] if k == 0 else owner[shared[split]], 2)
            grown.append((mine, child[home] + right, apart, renamed[order[alive[order]]].reshape(p, -1)))
            made, entries = made + len(apart), entries + len(mine)
        levels.append((column, cut, left, size, value))
        if not made:
            break
        first += len(size)
        row, node, alone, order = (np.concatenate(parts, axis=-1) for parts in zip(*grown, strict=True))
        size = np.bincount(node, minlength=made)
        sums = np.stack([np.bincount(node, y[row, k], made) for k in range(w)], axis=1)
        value = sums / size[:, None]
        node = node.astype(np.int16 if made < 2**15 else np.int32)  # of 16 bits: sorted in linear time
        order = np.take_along_axis(order, np.argsort(node[order], axis=1, kind="stable"), axis=1)
    return Trees._make([*(np.concatenate(a) for a in zip(*levels, strict=True)), owner])


def _gains(y: np.ndarray, x: np.ndarray, starts: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The drop of squared error by a cut after each entry, (p, entries), and the best in each node, (p, nodes)."""
    sums = np.cumsum(y, axis=1)  # (p, entries, w)
    before = np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)[:, starts]
    total = before[0, 1:] - before[0, :-1]  # (nodes, w)
    size = np.diff(starts)
    sums -= before[:, :-1][:, of]
    done = np.arange(len(of)) - starts[:-1][of] + 1
    rest = np.maximum(size[of] - done, 1)
    gain = np.einsum("pew,pew->pe", sums, sums) / done
    sums -= total[of]
    gain += np.einsum("pew,pew->pe", sums, sums) / rest
    gain -= (np.einsum("nw,nw->n", total, total) / size)[of]
    gain[:, done == size[of]] = -1.0
    gain[:, :-1][x[:, 1:] <= x[:, :-1]] = -1.0
    return np.maximum.reduceat(gain, starts[:-1], axis=1), gain


def _first_of(scores: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The first column among equals."""
    return (scores >= EQUAL * most).argmax(0)
