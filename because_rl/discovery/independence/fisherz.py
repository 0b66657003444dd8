"""Partial correlation (Fisher's z): the linear reference test.

For input x, target y and all other inputs z, with r their partial correlation given z,

    atanh(r) sqrt(n - |z| - 3) ~ N(0, 1),

and for factors of several columns Bartlett's -(n - 1 - |z| - (w_x + w_y + 1) / 2) log Lambda ~ chi2(w_x w_y)
with Wilks' Lambda = det Cov(y | x, z) / det Cov(y | z). One covariance matrix serves all pairs.

Assumptions: linear relations with Gaussian noise, independent rows (episodes are ignored), no hidden causes.
Valid for: continuous factors with linear dynamics; a nonlinear null is rejected once n is large enough.
Least n: 50, and twice as many rows as input columns.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from because_rl.discovery.independence.base import Evidence, IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError

REDUNDANT = 1e-6
"""An input of which the others leave less than this share unexplained (linearly) cannot be tested."""


class FisherZ(IndependenceTest):
    """See the module docstring. `effect`: share of the residual variance of y that x explains, in its best column."""

    name = "fisherz"
    least_n = 50

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        n, shape = len(variables), (len(variables.inputs), len(variables.targets))
        out = Evidence(np.ones(shape), np.zeros(shape), np.zeros(shape), np.full(shape, np.inf), {})
        blocks = [_standard(x) for x in variables.x]
        ends = np.cumsum([0] + [b.shape[1] for b in blocks])
        x = np.hstack(blocks)
        if n < 2 * x.shape[1]:
            raise BecauseError(
                f"Got {n} transitions for {x.shape[1]} input columns.",
                need="at least twice as many rows as columns for the test 'fisherz'.",
                fix="collect more episodes.",
            )
        covariance = x.T @ x / n
        precision = np.linalg.inv(covariance + 1e-10 * np.eye(len(covariance)))
        for j, target in enumerate(variables.targets):
            y = _standard(variables.y[j])
            if not y.shape[1]:
                continue
            slope = precision @ (x.T @ y / n)
            error = (y - x @ slope).T @ (y - x @ slope) / n
            for i, source in enumerate(variables.inputs):
                block = slice(ends[i], ends[i + 1])
                if ends[i] == ends[i + 1]:
                    continue
                free = np.linalg.inv(precision[block, block])  # Cov(x | z)
                if np.linalg.eigvalsh(free)[-1] < REDUNDANT:
                    out.why[source.name, target.name] = f"{source.name} is a linear function of the other inputs"
                    continue
                without = error + slope[block].T @ free @ slope[block]  # Cov(y | z)
                given = x.shape[1] - blocks[i].shape[1]
                out.statistic[i, j], out.p[i, j] = _test(error, without, n, given, blocks[i].shape[1])
                out.effect[i, j] = np.clip(1 - np.diag(error) / np.maximum(np.diag(without), 1e-300), 0, 1).max()
                out.detectable[i, j] = 0
        for i, j in np.argwhere(np.isinf(out.detectable)):
            names = variables.inputs[i].name, variables.targets[j].name
            constant = names[0] if not blocks[i].shape[1] else names[1]
            out.why.setdefault(names, f"{constant} never varies in these data")
        return out


def _standard(a: np.ndarray) -> np.ndarray:
    """The columns that vary, centred and scaled to variance 1."""
    a = a[:, np.ptp(a, axis=0) > 1e-12 * np.abs(a).max(0)]
    a = a - a.mean(0)
    return a / a.std(0)


def _test(error: np.ndarray, without: np.ndarray, n: int, given: int, width: int) -> tuple[float, float]:
    """The statistic and its p-value, from `error` = Cov(y | x, z), `without` = Cov(y | z), |z| and the width of x."""
    if error.shape == (1, 1) and width == 1:
        r = np.sqrt(np.clip(1 - error[0, 0] / max(without[0, 0], 1e-300), 0, 1 - 1e-15))
        z = float(np.arctanh(r) * np.sqrt(n - given - 3))
        return z, float(2 * stats.norm.sf(z))
    tiny = 1e-12 * np.eye(len(error))
    log_lambda = np.linalg.slogdet(error + tiny)[1] - np.linalg.slogdet(without + tiny)[1]
    statistic = max(0.0, float(-(n - 1 - given - (width + len(error) + 1) / 2) * log_lambda))
    return statistic, float(stats.chi2.sf(statistic, width * len(error)))
