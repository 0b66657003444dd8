"""Where an input has no variation of its own, could it still be a cause? Then the data cannot answer.

A pair (i, j) is *redundant* when, in the rows where the target moves, the other inputs tell the input almost
exactly: the position of a hand follows from the joints, a cube's from hand and relative position, the action of
a deterministic policy from the state. Any set of inputs from which the rest follows is then as good as any
other. But not every redundant input is a candidate: a colour that follows from the first position of a cube
cannot stand in for it once the cube has moved. So the input gets its best chance: drop the inputs that tell
about it, one by one, as long as the target stays as predictable as it was; if the input is not needed even
then, it is no edge, and the data have answered. If it is, the pair is untestable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.discovery.engine import Engine, Problem
from because_rl.discovery.regression import Law

RELATIVES = 5
"""How many inputs may be dropped in favour of a redundant one."""
LEAST_PART = 0.02
"""Of an input's metric, for another input to count as telling about it."""
SMALL = 1e-4
"""Shares of variance of this order count as approximation error, not as effect."""


def loss(without: np.ndarray, error: np.ndarray) -> float:
    """The share of what is unexplained `without` something that it explains, in the column where that is largest."""
    return float(np.clip((without - error) / (without + SMALL), 0, 1).max(initial=0.0))


def own_variation(residual: np.ndarray, y: np.ndarray) -> float:
    """The variance of an input given the others (of 1), in the rows where y moves; the freest of its columns."""
    weight = y * y
    return float((weight.T @ residual**2 / weight.sum(0)[:, None]).max(initial=0.0))


def relatives(law: Law, spread: np.ndarray, columns: Sequence[np.ndarray], self_: int) -> list[int]:
    """The inputs that tell most about an input, whose law this is, foremost first."""
    part = np.diag(law.metric) * np.diag(spread)
    parts = np.array([part[c].sum() for c in columns]) / max(part.sum(), 1e-300)
    parts[self_] = 0
    return [int(k) for k in np.argsort(-parts, kind="stable")[:RELATIVES] if parts[k] > LEAST_PART]


def could_matter(
    engine: Engine,
    problem: Problem,
    law: Law,
    inputs: Sequence[int],
    laws: Sequence[Law],
    columns: Sequence[np.ndarray],
    gate: float,
    borrow: float,
) -> list[bool]:
    """For each of the redundant `inputs`: is it needed for this target once its relatives are dropped?"""

    def errors(dropped: list[set[int]]) -> list[np.ndarray]:
        problems, metrics = [], []
        for drop in dropped:
            keep, metric = problem.keep.copy(), law.metric
            for k in sorted(drop):
                keep[columns[k]] = 0
                metric = metric + borrow * laws[k].metric
            problems.append(problem._replace(keep=keep))
            metrics.append(law._replace(metric=metric))
        return engine.errors(problems, metrics)

    order = [relatives(laws[i], engine.spread, columns, i) for i in inputs]
    dropped: list[set[int]] = [set() for _ in inputs]
    everything = errors([set()])[0]
    error = [everything for _ in inputs]
    for step in range(RELATIVES):
        tried = [k for k in range(len(inputs)) if step < len(order[k])]
        for k, found in zip(tried, errors([dropped[k] | {order[k][step]} for k in tried]), strict=True):
            if loss(found, everything) <= gate:
                dropped[k].add(order[k][step])
                error[k] = found
    final = errors([dropped[k] | {i} for k, i in enumerate(inputs)])
    return [loss(without, error[k]) > gate for k, without in enumerate(final)]
