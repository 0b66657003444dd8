"""The paper's test: do decision trees predict y better with x than without? (Chalupka, Perona, Eberhardt 2018)

On each of 8 random splits (10% held out) a regression tree predicts y from (x, z) and another from z; with
m_k and m'_k their held-out squared errors, a one-sided t-test asks whether the mean of m'_k / m_k exceeds 1.
The smallest node that may be split is chosen by cross-validation, separately for each of the two.

Assumptions: independent rows (episodes are ignored), and splits treated as independent although they share
their rows: the level is not exact. It is here for parity with the paper. Least n: 50.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from because_rl.discovery.independence import Evidence, IndependenceTest, Variables
from because_rl.discovery.tree import grow
from because_rl.rng import stream

LEAST_NODE = (2, 8, 64, 512, 0.01, 0.2, 0.4)
"""Numbers of rows, or shares of all rows, below which a node is not split."""
VALIDATIONS = 3


class Fcit(IndependenceTest):
    name = "fcit"
    least_n = 50

    def __init__(self, splits: int = 8, held_out: float = 0.1):
        self.splits, self.held_out = splits, held_out

    def settings(self) -> dict[str, Any]:
        return {"test": self.name, "splits": self.splits, "held_out": self.held_out}

    def __call__(self, variables: Variables, seed: int = 0) -> Evidence:
        self.check_size(variables)
        shape = (len(variables.inputs), len(variables.targets))
        out = Evidence(np.ones(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), {})
        widths = [x.shape[1] for x in variables.x]
        owner, x = np.repeat(np.arange(shape[0]), widths), np.hstack(variables.x)
        varies = np.ptp(x, axis=0) > 0
        for j, target in enumerate(variables.targets):
            y = variables.y[j] - variables.y[j].mean(0)
            y = y[:, y.std(0) > 0]
            if y.shape[1]:
                y = y / y.std(0)
                full = self._errors(x[:, varies], y, seed, target.name)
            for i, source in enumerate(variables.inputs):
                names = source.name, target.name
                if not y.shape[1] or not varies[owner == i].any():
                    out.untestable[i, j] = True
                    out.why[names] = f"{names[1] if not y.shape[1] else names[0]} never varies in these data"
                    continue
                without = self._errors(x[:, varies & (owner != i)], y, seed, target.name)
                ratio = without / np.maximum(full, 1e-12)
                out.statistic[i, j], out.p[i, j] = _exceeds_one(ratio)
                out.effect[i, j] = np.clip(1 - 1 / max(ratio.mean(), 1e-12), 0, 1)
        return out

    def _errors(self, x: np.ndarray, y: np.ndarray, seed: int, name: str) -> np.ndarray:
        """The held-out error of each split; the splits are the same for every set of inputs."""
        n = len(x)
        test = max(1, round(self.held_out * n))
        least = [node if node >= 2 else max(2.0, node * n) for node in LEAST_NODE]
        orders = [stream(seed, "fcit", name, k).permutation(n) for k in range(VALIDATIONS + self.splits)]
        trials = np.zeros(len(least))
        for order in orders[:VALIDATIONS]:
            tree = _fit(x[order[test:]], y[order[test:]])
            trials += [((tree(x[order[:test]], node) - y[order[:test]]) ** 2).mean() for node in least]
        node = least[int(trials.argmin())]
        return np.array(
            [
                ((_fit(x[order[test:]], y[order[test:]])(x[order[:test]], node) - y[order[:test]]) ** 2).mean()
                for order in orders[VALIDATIONS:]
            ]
        )


def _fit(x: np.ndarray, y: np.ndarray) -> Any:
    if x.shape[1]:
        return grow(x, y).predict
    return lambda x, node: np.broadcast_to(y.mean(0), (len(x), y.shape[1]))


def _exceeds_one(ratio: np.ndarray) -> tuple[float, float]:
    spread = ratio.std(ddof=1)
    if spread == 0:
        return 0.0, 1.0 if ratio.mean() <= 1 else 0.0
    t = float((ratio.mean() - 1) / spread * np.sqrt(len(ratio)))
    return t, float(stats.t.sf(t, len(ratio) - 1))
