"""Redundant inputs: could an input that the others determine still be a cause? Then the data cannot answer.

A pair (i, j) is *redundant* when, in the rows where the target moves, the other inputs predict the input almost
exactly: the position of a hand follows from the joints, a cube's from hand and relative position, the action of a
deterministic policy from the state. Any set of inputs from which the rest follows is then as good as any other. But
not every redundant input is a candidate: a colour that follows from the first position of a cube cannot stand in for
it once the cube has moved. So inputs that predict it (its relatives) are pruned one by one, as long as the target
stays as predictable as before. If the input is not needed even then, there is no edge, and the data have answered.
If it is needed, the pair is untestable. (An input that can be dropped together with all of its relatives is not
needed whichever of them stay: this is checked first, since it is cheap.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from because_rl.discovery.regression.engine import Engine, Problem
from because_rl.discovery.regression.kernel_ridge import COLLINEAR, LearnedKernel

RELATIVES = 8
"""How many inputs may be pruned in favour of a redundant one."""
RELATIVE_MIN = 0.02
"""Share of an input's variance that another input must predict to count as its relative."""
UNEXPLAINED_MAX = 0.95
"""Target columns of which all inputs together leave more than this share unexplained are not considered."""
SMALL = 1e-4
"""Shares of variance of this order count as approximation error, not as effect."""


def loss(without: np.ndarray, error: np.ndarray) -> float:
    """Share of the error `without` an input that the input removes, in the column where it is largest.

    `without` and `error` are the (w,) errors without and with the input.
    """
    return float(np.clip((without - error) / (without + SMALL), 0, 1).max(initial=0.0))


def variation(values: np.ndarray, y: np.ndarray) -> float:
    """Variance of an input's `values` (n, columns) in the rows where y (n, w) moves, in the column where it is largest.

    1 is the variance in all rows.
    """
    weight = y * y / (y * y).sum(0)
    mean = weight.T @ values
    return float((weight.T @ values**2 - mean**2).max(initial=0.0))


def relatives(spread: np.ndarray, columns: Sequence[np.ndarray], i: int) -> list[int]:
    """The inputs that predict input i, by the share of its variance that each alone explains linearly; largest first.

    `spread` is the covariance of all columns, `columns` those of each input.
    """
    own, share = columns[i], np.zeros(len(columns))
    for k, other in enumerate(columns):
        inner = spread[np.ix_(other, other)] + COLLINEAR * np.eye(len(other))
        across = spread[np.ix_(other, own)]
        share[k] = np.trace(across.T @ np.linalg.solve(inner, across)) / len(own)
    share[i] = 0
    return [int(k) for k in np.argsort(-share, kind="stable")[:RELATIVES] if share[k] > RELATIVE_MIN]


def loss_after_pruning(
    engine: Engine,
    problem: Problem,
    kernel: LearnedKernel,
    inputs: Sequence[int],
    columns: Sequence[np.ndarray],
    prune_max: float,
    loss_max: float,
) -> list[float]:
    """For each redundant input: the loss of dropping it once its relatives are pruned.

    Args:
        engine: of the regressions.
        problem: the target on all inputs.
        kernel: learned for this problem.
        inputs: the redundant inputs.
        columns: of every input, in the engine's x.
        prune_max: a relative is pruned as long as the loss stays at most this.
        loss_max: a loss of at most this counts as none.
    """
    known: dict[frozenset[int], np.ndarray] = {}

    def errors(dropped: list[frozenset[int]]) -> list[np.ndarray]:
        new = sorted(set(dropped) - set(known), key=sorted)
        problems = []
        for drop in new:
            keep = problem.keep.copy()
            keep[[c for k in drop for c in columns[k]]] = 0
            problems.append(problem._replace(keep=keep))
        known.update(zip(new, engine.errors(problems, kernel), strict=True))
        return [known[drop] for drop in dropped]

    baseline = errors([frozenset()])[0]
    explained = baseline < UNEXPLAINED_MAX
    if not explained.any():
        return [0.0] * len(inputs)

    order = [relatives(engine.spread, columns, i) for i in inputs]
    all_dropped = errors([frozenset([i, *order[k]]) for k, i in enumerate(inputs)])
    needed = [loss(without[explained], baseline[explained]) > loss_max for without in all_dropped]
    dropped: list[frozenset[int]] = [frozenset() for _ in inputs]
    error = [baseline for _ in inputs]
    for step in range(RELATIVES):
        tried = [k for k in range(len(inputs)) if needed[k] and step < len(order[k])]
        for k, without in zip(tried, errors([dropped[k] | {order[k][step]} for k in tried]), strict=True):
            if loss(without[explained], baseline[explained]) <= prune_max:
                dropped[k] |= {order[k][step]}
                error[k] = without
    open_inputs = [k for k in range(len(inputs)) if needed[k]]
    final = dict(zip(open_inputs, errors([dropped[k] | {inputs[k]} for k in open_inputs]), strict=True))
    return [loss(final[k][explained], error[k][explained]) if k in final else 0.0 for k in range(len(inputs))]
