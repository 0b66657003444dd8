"""Regression trees (CART) with NumPy: one tree on all columns and one without each factor, grown together.

Trees that may use different columns still agree on most splits. The tree without factor i differs from the tree on
all columns only where that one splits on i: there it takes the best split on the other columns, and continues as a
branch of its own. So a node is searched once for all trees that share it. Trees grow level by level, all nodes and
columns of a level at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EQUAL = 1 - 1e-9
"""Gains within this ratio are equal up to rounding: in a small node many columns separate the rows in the same way."""


class Trees(NamedTuple):
    """The nodes of all trees. In arrays (nodes, 2) the second entry is for the tree that may not use the first."""

    column: np.ndarray
    """(nodes, 2) the column that a node splits on; -1 for a leaf"""
    cut: np.ndarray
    """(nodes, 2) rows with x <= cut go left"""
    left: np.ndarray
    """(nodes, 2) the left child; the right child has the next number"""
    rows: np.ndarray
    """(nodes,) number of rows"""
    value: np.ndarray
    """(nodes, w) mean target"""
    owner: np.ndarray
    """(columns,) the factor of each column"""

    def predict(self, x: np.ndarray, without: int | None = None, least: float = 2) -> np.ndarray:
        """(n, w) predictions for x (n, columns) by the tree without a factor (None: the tree on all columns).

        Nodes with fewer than `least` rows are taken as leaves.
        """
        second = np.zeros(len(self.rows), int)
        if without is not None:
            second[(self.column[:, 0] >= 0) & (self.owner[self.column[:, 0]] == without)] = 1
        at = np.arange(len(self.rows)), second
        column, cut, left = self.column[at], self.cut[at], self.left[at]
        node = np.zeros(len(x), int)
        while True:
            inner = np.flatnonzero((column[node] >= 0) & (self.rows[node] >= least))
            if not len(inner):
                return self.value[node]
            here = node[inner]
            node[inner] = left[here] + (x[inner, column[here]] > cut[here])


def grow(x: np.ndarray, y: np.ndarray, owner: np.ndarray | None = None, least: float = 2) -> Trees:
    """Split until nodes are pure or have fewer than `least` rows, each time at the largest gain in squared error.

    Args:
        x: (n, columns) inputs.
        y: (n, w) targets.
        owner: (columns,) the factor of each column; None: each column is a factor of its own.
        least: rows below which a node is not split.

    >>> trees = grow(np.array([[0.0, 9], [1, 8], [2, 7], [3, 7]]), np.array([[1.0], [1], [4], [6]]))
    >>> trees.predict(np.array([[0.5, 8], [2.9, 8]])).tolist()
    [[1.0], [6.0]]
    >>> trees.predict(np.array([[0.5, 8], [2.9, 7]]), without=0).tolist()
    [[1.0], [5.0]]
    """
    (n, p), w = x.shape, y.shape[1]
    owner = np.arange(p) if owner is None else np.asarray(owner)
    columns, levels, first = np.ascontiguousarray(x.T), [], 0
    # A level has entries: pairs of a row and a node that it is in. A row has one entry in each branch that it is in.
    row, node = np.arange(n), np.zeros(n, np.int16)
    order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)  # (p, entries) by node, then by value
    # Per node: the factor that its tree may not use (-1 where the node is shared), its rows and its mean.
    excluded, size = np.full(1, -1), np.full(1, n)
    value = y.mean(0)[None]
    while True:
        starts = np.r_[0, np.cumsum(size)]
        sorted_node = np.repeat(np.arange(len(size)), size)  # of the entries in the order of `order`
        here = np.take_along_axis(columns, row[order], axis=1)
        best, gain = _gains(y[row[order]], here, starts, sorted_node)
        best[owner[:, None] == excluded] = -1.0
        shared = _first_best(best, best.max(0))
        others = np.where((owner[:, None] == owner[shared]) | (excluded >= 0), -1.0, best)
        column, cut, left = np.full((len(size), 2), -1), np.zeros((len(size), 2)), np.zeros((len(size), 2), int)
        grown: list[tuple[np.ndarray, ...]] = []  # row, node, excluded and order of the next level
        made = entries = 0
        for k, score in enumerate((best, others)):
            most = score.max(0)
            where, split = _first_best(score, most), (most > 1e-10) & (size >= least)
            if not split.any():
                continue
            best_here = best[where, np.arange(len(size))]
            is_best = gain[where[sorted_node], np.arange(len(sorted_node))] >= EQUAL * best_here[sorted_node]
            at = np.zeros(len(size), int)
            at[sorted_node[is_best][::-1]] = np.flatnonzero(is_best)[::-1]  # the first best cut of each node
            low, high = here[where, at], here[where, np.minimum(at + 1, len(sorted_node) - 1)]
            middle = (low + high) / 2
            middle = np.where(middle < high, middle, low)
            child = made + 2 * (np.cumsum(split) - 1)
            column[:, k], cut[:, k] = np.where(split, where, -1), middle
            left[:, k] = np.where(split, first + len(size) + child, 0)
            in_split = split[node]
            split_row, parent = row[in_split], node[in_split]
            right = columns[where[parent], split_row] > middle[parent]
            new_entry = np.cumsum(in_split, dtype=np.int32) - 1 + entries
            child_excluded = np.repeat(excluded[split] if k == 0 else owner[shared[split]], 2)
            child_order = new_entry[order[in_split[order]]].reshape(p, -1)
            grown.append((split_row, child[parent] + right, child_excluded, child_order))
            made, entries = made + len(child_excluded), entries + len(split_row)
        levels.append((column, cut, left, size, value))
        if not made:
            break
        first += len(size)
        row, node, excluded, order = (np.concatenate(parts, axis=-1) for parts in zip(*grown, strict=True))
        size = np.bincount(node, minlength=made)
        sums = np.stack([np.bincount(node, y[row, k], made) for k in range(w)], axis=1)
        value = sums / size[:, None]
        node = node.astype(np.int16 if made < 2**15 else np.int32)  # 16 bits are sorted in linear time
        order = np.take_along_axis(order, np.argsort(node[order], axis=1, kind="stable"), axis=1)
    return Trees._make([*(np.concatenate(a) for a in zip(*levels, strict=True)), owner])


def _gains(y: np.ndarray, x: np.ndarray, starts: np.ndarray, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best gain in each node, (p, nodes), and the gain of a cut after each entry, (p, entries).

    A gain is the drop in squared error. y (p, entries, w) and x (p, entries) are sorted by node, then by value; `node`
    is the node of each entry, and `starts` has the first entry of each node and the number of entries.
    """
    sums = np.cumsum(y, axis=1)  # (p, entries, w)
    before = np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)[:, starts]
    total = before[0, 1:] - before[0, :-1]  # (nodes, w)
    size = np.diff(starts)
    sums -= before[:, :-1][:, node]
    left_size = np.arange(len(node)) - starts[:-1][node] + 1
    right_size = np.maximum(size[node] - left_size, 1)
    gain = np.einsum("pew,pew->pe", sums, sums) / left_size
    sums -= total[node]
    gain += np.einsum("pew,pew->pe", sums, sums) / right_size
    gain -= (np.einsum("nw,nw->n", total, total) / size)[node]
    gain[:, left_size == size[node]] = -1.0
    gain[:, :-1][x[:, 1:] <= x[:, :-1]] = -1.0
    return np.maximum.reduceat(gain, starts[:-1], axis=1), gain


def _first_best(scores: np.ndarray, most: np.ndarray) -> np.ndarray:
    """(nodes,) the first column whose score equals the largest one up to rounding."""
    return (scores >= EQUAL * most).argmax(0)
