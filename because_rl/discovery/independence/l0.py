"""Iterative hard thresholding: the paper's l0-regularised least squares (its Appendix B).

For each target column y, with the inputs' columns X standardised,

    minimise  |y - X w|^2 / (2 n) + lambda |groups of w that are not 0|

by gradient steps of size t, each followed by setting to 0 every factor's group of weights whose squared norm is at
most 2 lambda t (the proximal map of the group l0 norm).

Assumptions: linear effects, independent rows (episodes are ignored), no hidden causes, columns on comparable scales
(they are standardised). Valid for: a linear reference. It gives no p-values: `p` is 0 or 1, and `statistic` is the
group's squared norm. Least n: 50; ten rows per input column are advisable.
"""

from __future__ import annotations

import numpy as np

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables


class L0(IndependenceTest):
    """`penalty` is lambda; `iterations` is the number of gradient steps."""

    name = "l0"
    least_n = 50

    def __init__(self, penalty: float = 1e-3, iterations: int = 500):
        self.penalty, self.iterations = penalty, iterations

    def settings(self) -> dict:
        return {"test": self.name, "penalty": self.penalty, "iterations": self.iterations}

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        group = np.repeat(np.arange(len(variables.x)), [x.shape[1] for x in variables.x])
        belongs = (group[:, None] == np.arange(len(variables.x))).astype(float)
        x, y = _standardise(np.concatenate(variables.x, 1)), [_standardise(y) for y in variables.y]
        gram = x.T @ x / len(x)
        step = 1.0 / max(np.linalg.eigvalsh(gram)[-1], 1e-12)
        strength = np.zeros((len(variables.x), len(y)))
        for j, target in enumerate(y):
            moment = x.T @ target / len(x)
            w = np.zeros_like(moment)
            for _ in range(self.iterations):
                w = w - step * (gram @ w - moment)
                norms = belongs.T @ (w**2).sum(1)
                w = w * (belongs @ (norms > 2 * self.penalty * step).astype(float))[:, None]
            strength[:, j] = belongs.T @ (w**2).sum(1) / max(target.shape[1], 1)
        constant = np.array([np.ptp(x, axis=0).max() == 0 for x in variables.x])
        names = [f.name for f in variables.inputs]
        return Evidence(
            p=np.where(strength > 0, 0.0, 1.0),
            statistic=strength,
            effect=np.clip(strength, 0.0, 1.0),
            detectable=np.where(constant[:, None], np.inf, np.zeros((1, len(y)))),
            why={
                (name, target.name): "it never varies"
                for name, is_constant in zip(names, constant, strict=True)
                if is_constant
                for target in variables.targets
            },
        )


def _standardise(columns: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1, or all 0 for a constant column."""
    spread = columns.std(0)
    return (columns - columns.mean(0)) / np.where(spread > 0, spread, 1.0)
