"""A regression tree (CART), grown level by level with NumPy: all nodes of a level and all columns at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tree(NamedTuple):
    column: np.ndarray
    """(nodes,) the column that a node splits on, -1 for a leaf"""
    cut: np.ndarray
    """(nodes,) rows with x <= cut go left"""
    left: np.ndarray
    """(nodes,) the left child; the right one comes next"""
    rows: np.ndarray
    """(nodes,) how many"""
    value: np.ndarray
    """(nodes, w) mean target"""

    def predict(self, x: np.ndarray, least: float = 2) -> np.ndarray:
        """As if no node with fewer than `least` rows had been split."""
        node = np.zeros(len(x), int)
        while True:
            go = np.flatnonzero((self.column[node] >= 0) & (self.rows[node] >= least))
            if not len(go):
                return self.value[node]
            at = node[go]
            node[go] = self.left[at] + (x[go, self.column[at]] > self.cut[at])


def grow(x: np.ndarray, y: np.ndarray) -> Tree:
    """Split until nodes are pure, each time at the largest drop of squared error.

    >>> tree = grow(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1.0], [1.0], [5.0], [5.0]]))
    >>> tree.predict(np.array([[0.5], [2.5]])).tolist()
    [[1.0], [5.0]]
    """
    n, p = x.shape
    order = np.argsort(x, axis=0, kind="stable")
    node, first = np.zeros(n, int), 0  # the level's nodes are numbered from `first` on
    column, cut, left = [np.full(1, -1)], [np.zeros(1)], [np.zeros(1, int)]
    count, value = [np.full(1, n)], [y.mean(0)[None]]
    while True:
        level = len(count[-1])
        rows = np.take_along_axis(order, np.argsort(node[order], axis=0, kind="stable"), axis=0)
        starts = np.r_[0, np.cumsum(np.bincount(node[rows[:, 0]] - first, minlength=level))]
        of = np.repeat(np.arange(level), np.diff(starts))
        sums = np.cumsum(y[rows], axis=0)  # (rows, p, w)
        before = np.concatenate([np.zeros_like(sums[:1]), sums])[starts]
        total, sums = before[1:] - before[:-1], sums - before[:-1][of]
        size = np.diff(starts)[of]
        done = np.arange(len(of)) - starts[:-1][of] + 1
        rest = np.maximum(size - done, 1)
        gain = (sums**2).sum(-1) / done[:, None] + ((total[of] - sums) ** 2).sum(-1) / rest[:, None]
        gain -= (total**2).sum(-1)[of] / size[:, None]
        value_here = np.take_along_axis(x, rows, axis=0)
        after = np.concatenate([value_here[1:], value_here[-1:]])
        gain[(done == size)[:, None] | (after <= value_here)] = -1.0
        best = np.maximum.reduceat(gain, starts[:-1], axis=0)
        where = best.argmax(1)
        split = best[np.arange(level), where] > 1e-10
        if not split.any():
            break
        chosen = where[of]
        hit = gain[np.arange(len(of)), chosen] == best[of, chosen]
        at = np.zeros(level, int)
        at[of[hit][::-1]] = np.flatnonzero(hit)[::-1]  # the first best cut of each node
        threshold = (value_here[at, where] + after[at, where]) / 2
        threshold = np.where(threshold < after[at, where], threshold, value_here[at, where])
        child = first + level + 2 * (np.cumsum(split) - 1)
        column[-1], cut[-1], left[-1] = np.where(split, where, -1), threshold, np.where(split, child, 0)
        mine = rows[:, 0]
        alive = split[of]
        mine, owner = mine[alive], of[alive]
        node[mine] = child[owner] + (x[mine, where[owner]] > threshold[owner])
        first += level
        still = np.zeros(n, bool)
        still[mine] = True
        order = order.T[still[order.T]].reshape(p, -1).T  # rows of finished nodes drop out
        sizes = np.bincount(node[mine] - first, minlength=2 * int(split.sum()))
        means = np.zeros((len(sizes), y.shape[1]))
        np.add.at(means, node[mine] - first, y[mine])
        column.append(np.full(len(sizes), -1))
        cut.append(np.zeros(len(sizes)))
        left.append(np.zeros(len(sizes), int))
        count.append(sizes)
        value.append(means / sizes[:, None])
    return Tree(*(np.concatenate(a) for a in (column, cut, left, count, value)))
