"""What a log never shows: actions that were not tried in some contexts, where a model of them can only guess.

A context is a level of one discrete state factor, or the lower, middle or upper third of the logged values of another
one. Actions that are no levels are thirds of the logged range. A pair of both is thin where the action was taken five
times less often than in other contexts, with 95% confidence: what it does there is known from elsewhere at best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import beta

from because_rl.factor import Factor
from because_rl.transitions import Transitions

LESS = 5.0
"""times less often than elsewhere"""
LEAST_ROWS = 30
"""Of a context."""
CONFIDENCE = 0.95
FEW_VALUES = 6
"""Distinct values of a factor, up to which each is a context of its own."""
THIRDS = ("lower third", "middle third", "upper third")


def thin_contexts(data: Transitions) -> list[dict[str, Any]]:
    """A row for each action and context that is thin, those first for which most rows are missing.

    action, level: what was hardly taken; factor, context: where; rows: of the context; tried: how often the action was
    taken there; at_most: the upper limit of the chance that it is; elsewhere: that chance in other contexts.
    """
    actions = [part for f in data.factors.action for part in _levels(f, data.action[:, f.slice], by_range=True)]
    observed = [f for f in data.factors.state if f.role not in ("reward", "end")]
    contexts = [part for f in observed for part in _levels(f, data.state[:, f.slice], by_range=False)]
    if not actions or not contexts:
        return []
    taken, there = (np.stack([rows for _, _, rows in parts]).astype(float) for parts in (actions, contexts))
    tried, size, n = taken @ there.T, there.sum(1), len(data)
    elsewhere = (taken.sum(1)[:, None] - tried) / np.maximum(n - size, 1)
    at_most = beta.ppf(CONFIDENCE, tried + 1, np.maximum(size - tried, 1e-9))
    thin = (size >= LEAST_ROWS) & (n - size >= LEAST_ROWS) & (at_most < elsewhere / LESS)
    missing = elsewhere * size - tried
    places = sorted(zip(*np.nonzero(thin), strict=True), key=lambda place: -missing[place])
    return [
        {
            "action": actions[a][0],
            "level": actions[a][1],
            "factor": contexts[c][0],
            "context": contexts[c][1],
            "rows": int(size[c]),
            "tried": int(tried[a, c]),
            "at_most": float(at_most[a, c]),
            "elsewhere": float(elsewhere[a, c]),
        }
        for a, c in places
    ]


def _levels(factor: Factor, values: np.ndarray, by_range: bool) -> Iterator[tuple[str, str, np.ndarray]]:
    """(factor, level in words, rows that have it) for each level that a factor's values have.

    Of real numbers thirds: of the range of all but the most extreme hundredth if `by_range`, else of the rows.
    """
    for k in range(values.shape[1]):
        column, name = values[:, k], factor.name if values.shape[1] == 1 else f"{factor.name}[{k}]"
        distinct = np.unique(column)
        if factor.type == "categorical":
            yield factor.name, f"level {k}", column > 0.5
        elif factor.type == "binary":
            yield name, "yes", column > 0.5
            yield name, "no", column <= 0.5
        elif len(distinct) <= FEW_VALUES:
            yield from ((name, f"{value:.3g}", column == value) for value in distinct)
        else:
            low, high = np.quantile(column, (0.01, 0.99))
            ends = (low + (high - low) / 3, high - (high - low) / 3)
            ends = ends if by_range else tuple(np.quantile(column, (1 / 3, 2 / 3)))
            for words, rows in zip(
                THIRDS, (column <= ends[0], (column > ends[0]) & (column <= ends[1]), column > ends[1]), strict=True
            ):
                yield name, words, rows
