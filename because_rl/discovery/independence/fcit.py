"""The paper's test: do decision trees predict y better with x than without? (Chalupka, Perona, Eberhardt 2018)

On each of 32 random splits (10% held out) a regression tree predicts y from (x, z) and another from z; with
m_k and m'_k their held-out squared errors, a one-sided t-test asks whether the mean of m'_k / m_k exceeds 1. The
authors take 8 splits, whose 7 degrees of freedom need t = 28 for the paper's threshold of 1e-8; with 32 t = 7.5 does.
Splits share rows, so the variance of the mean is not s^2 / 32 but, as for any resampled error, about

    s^2 (1 / splits + held out / fitted)        (Nadeau and Bengio 2003),

without which more splits would reject ever more nulls.
The smallest node that may be split is chosen by cross-validation, separately for each of the two.

Assumptions: independent rows (episodes are ignored), and no hidden causes. Valid for: comparison with the paper, on
continuous or mixed factors; `residual` is faster and has more power. Least n: 50.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.regression.tree import Trees, grow
from because_rl.discovery.variables import Variables
from because_rl.rng import stream

LEAST_NODE = (2, 8, 64, 512, 0.01, 0.2, 0.4)
"""Numbers of rows, or shares of all rows, below which a node is not split."""
VALIDATIONS = 3
"""Splits on which the smallest node is chosen."""


class Fcit(IndependenceTest):
    """`splits` random splits, each with a share `held_out` of the rows held out.

    `effect`: 1 - 1 / (mean ratio of held-out errors), the share of the error that x removes.
    """

    name = "fcit"
    least_n = 50

    def __init__(self, splits: int = 32, held_out: float = 0.1):
        self.splits, self.held_out = splits, held_out

    def settings(self) -> dict[str, Any]:
        return {"test": self.name, "splits": self.splits, "held_out": self.held_out}

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        shape = (len(variables.inputs), len(variables.targets))
        out = Evidence(np.ones(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), {})
        widths = [x.shape[1] for x in variables.x]
        owner, x = np.repeat(np.arange(shape[0]), widths), np.hstack(variables.x)
        varies = np.ptp(x, axis=0) > 0
        for j, target in enumerate(variables.targets):
            y = variables.y[j] - variables.y[j].mean(0)
            y = y[:, y.std(0) > 0]
            tested = np.unique(owner[varies]) if y.shape[1] else np.zeros(0, int)
            for i in set(range(shape[0])) - set(tested):
                out.detectable[i, j] = np.inf
                names = variables.inputs[i].name, target.name
                out.why[names] = f"{names[0] if y.shape[1] else names[1]} never varies in these data"
            if not len(tested):
                continue
            full, *without = self._errors(x[:, varies], owner[varies], y / y.std(0), tested, (seed, target.name))
            for i, errors in zip(tested, without, strict=True):
                ratio = errors / np.maximum(full, 1e-12)
                out.statistic[i, j], out.p[i, j] = exceeds_one(ratio, self.held_out)
                out.effect[i, j] = np.clip(1 - 1 / max(ratio.mean(), 1e-12), 0, 1)
        return out

    def _errors(
        self, x: np.ndarray, owner: np.ndarray, y: np.ndarray, tested: np.ndarray, seed: tuple[int, str]
    ) -> np.ndarray:
        """(1 + tested, splits) held-out errors: with all factors, then without each tested factor."""
        n = len(x)
        test = max(1, round(self.held_out * n))
        least = [node if node >= 2 else max(2.0, node * n) for node in LEAST_NODE]
        splits = [
            (order[test:], order[:test])
            for k in range(VALIDATIONS + self.splits)
            for order in [stream(seed[0], "fcit", seed[1], k).permutation(n)]
        ]

        def error(trees: Trees, held: np.ndarray, without: int | None, node: float) -> float:
            return float(((trees.predict(x[held], without, node) - y[held]) ** 2).mean())

        sets = [None, *tested]
        trials = np.zeros((len(sets), len(least)))
        for fit, held in splits[:VALIDATIONS]:
            trees = grow(x[fit], y[fit], owner)
            trials += [[error(trees, held, without, node) for node in least] for without in sets]
        chosen = [least[k] for k in trials.argmin(1)]
        errors = []
        for fit, held in splits[VALIDATIONS:]:
            trees = grow(x[fit], y[fit], owner, min(chosen))
            errors.append([error(trees, held, without, node) for without, node in zip(sets, chosen, strict=True)])
        return np.array(errors).T


def exceeds_one(ratio: np.ndarray, held_out: float) -> tuple[float, float]:
    """t and one-sided p-value of 'the mean ratio exceeds 1', over splits that hold out this share of the same rows."""
    spread = ratio.std(ddof=1)
    if spread == 0:
        return 0.0, 1.0 if ratio.mean() <= 1 else 0.0
    t = float((ratio.mean() - 1) / spread / np.sqrt(1 / len(ratio) + held_out / (1 - held_out)))
    return t, float(stats.t.sf(t, len(ratio) - 1))
