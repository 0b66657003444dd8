"""Where an input has no variation of its own, could it still be a cause? Then the data cannot answer.

A pair (i, j) is *redundant* when, in the rows where the target moves, the other inputs tell the input almost
exactly: the position of a hand follows from the joints, a cube's from hand and relative position, the action of
a deterministic policy from the state. Any set of inputs from which the rest follows is then as good as any
other. But not every redundant input is a candidate: a colour that follows from the first position of a cube
cannot stand in for it once the cube has moved. So the input gets a last chance: drop the inputs that tell
about it, one by one, as long as the target stays as predictable as it was; if the input is not needed even
then, it is no edge, and the data have answered. If it is, the pair is untestable. (An input that could be dropped
together with all of its relatives is not needed whichever of them stay: that is asked first, since it is cheap.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.discovery.regression.engine import Engine, Problem
from because_rl.discovery.regression.kernel_ridge import COLLINEAR, Law

RELATIVES = 8
"""How many inputs may be dropped in favour of a redundant one."""
LEAST_TOLD = 0.02
"""Of an input's variance, for another input to count as its relative."""
HOPELESS = 0.95
"""Columns of a target of which more than this stays unexplained by everything say nothing here."""
SMALL = 1e-4
"""Shares of variance of this order count as approximation error, not as effect."""


def loss(without: np.ndarray, error: np.ndarray) -> float:
    """The share of what is unexplained `without` something that it explains, in the column where that is largest."""
    return float(np.clip((without - error) / (without + SMALL), 0, 1).max(initial=0.0))


def variation(values: np.ndarray, y: np.ndarray) -> float:
    """The variance of an input in the rows where y moves (1 is that in all rows), in its freest column."""
    weight = y * y / (y * y).sum(0)
    mean = weight.T @ values
    return float((weight.T @ values**2 - mean**2).max(initial=0.0))


def relatives(spread: np.ndarray, columns: Sequence[np.ndarray], i: int) -> list[int]:
    """The inputs that go with input i, by the share of its variance that each alone tells linearly; most first."""
    mine, told = columns[i], np.zeros(len(columns))
    for k, other in enumerate(columns):
        inner = spread[np.ix_(other, other)] + COLLINEAR * np.eye(len(other))
        across = spread[np.ix_(other, mine)]
        told[k] = np.trace(across.T @ np.linalg.solve(inner, across)) / len(mine)
    told[i] = 0
    return [int(k) for k in np.argsort(-told, kind="stable")[:RELATIVES] if told[k] > LEAST_TOLD]


def last_chance(
    engine: Engine,
    problem: Problem,
    law: Law,
    inputs: Sequence[int],
    columns: Sequence[np.ndarray],
    gate: float,
    doubt: float,
) -> list[float]:
    """For each of the redundant `inputs`: the loss of dropping it too, once its relatives are dropped.

    A relative is dropped as long as that costs at most `gate`; a loss of at most `doubt` is none.
    """
    known: dict[frozenset[int], np.ndarray] = {}

    def errors(dropped: list[frozenset[int]]) -> list[np.ndarray]:
        new = sorted(set(dropped) - set(known), key=sorted)
        problems = []
        for drop in new:
            keep = problem.keep.copy()
            keep[[c for k in drop for c in columns[k]]] = 0
            problems.append(problem._replace(keep=keep))
        known.update(zip(new, engine.errors(problems, law), strict=True))
        return [known[drop] for drop in dropped]

    everything = errors([frozenset()])[0]
    clear = everything < HOPELESS
    if not clear.any():
        return [0.0] * len(inputs)

    order = [relatives(engine.spread, columns, i) for i in inputs]
    alone = errors([frozenset([i, *order[k]]) for k, i in enumerate(inputs)])
    needed = [loss(without[clear], everything[clear]) > doubt for without in alone]
    dropped: list[frozenset[int]] = [frozenset() for _ in inputs]
    error = [everything for _ in inputs]
    for step in range(RELATIVES):
        tried = [k for k in range(len(inputs)) if needed[k] and step < len(order[k])]
        for k, found in zip(tried, errors([dropped[k] | {order[k][step]} for k in tried]), strict=True):
            if loss(found[clear], everything[clear]) <= gate:
                dropped[k] |= {order[k][step]}
                error[k] = found
    left = [k for k in range(len(inputs)) if needed[k]]
    final = dict(zip(left, errors([dropped[k] | {inputs[k]} for k in left]), strict=True))
    return [loss(final[k][clear], error[k][clear]) if k in final else 0.0 for k in range(len(inputs))]
