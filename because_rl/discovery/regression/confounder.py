"""A hidden cause that is constant in an episode, estimated from what it does to every step of it.

Such a confounder u_c (a slope under all bodies of a scene, say) makes pooled tests accept false edges: the
speed of one body tells about the slope, and so about the next speed of another. The estimate for step t is

    u_t = v' mean over the other steps s of the episode of r_s,      r = y - f(x)

with v the leading direction of the covariance of residuals between different steps of one episode. Step t's
own noise is not in u_t, so conditioning on it is as sound as conditioning on an observed covariate.

f must not explain u_c away through its proxies. So it is first fitted on differences inside episodes, which
know nothing of constants, and then, with the first estimate as an input held at 0, on all of the data.

Assumes: the effect of u_c on the next state is mostly a shift; several steps per episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from because_rl.discovery.regression.engine import Budget, Engine, Problem
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.margins import Prepared
from because_rl.discovery.regression.threads import each

LEAST_SHARE = 0.4
"""Of the residual variance along a direction that is constant in episodes; less counts as approximation error."""
MOST = 3
"""Directions."""
PASSES = 2
"""Over all of the data, each starting from the estimate of the one before."""
CAUTION = 10.0
"""Extra penalty of the fit inside episodes, where the inputs vary less."""


def hidden_causes(data: Prepared, budget: Budget, seed: int) -> np.ndarray:
    """(n, r) estimates of hidden causes, each of variance 1; r is 0 where none is found.

    One from all targets together, and one from each target that is shifted, whose errors are its own.
    """
    none = np.zeros((len(data.x), 0))
    targets = [(t.factor.name, t.moves) for t in data.targets if t.moves.shape[1]]
    starts, budget = data.starts, replace(budget, learn_rows=budget.learn_rows // 2)
    if 2 * len(starts) > len(data.x) or not targets:
        return none

    engine = make_engine(data.x, data.folds, budget, seed)
    problems = _on_all_inputs(engine, targets)
    laws = [law._replace(ridge=CAUTION * law.ridge) for law in engine.learn(problems)]
    answers = engine.cross_fit(problems, laws, starts)
    residuals = [p.target - guess for p, (_, guess) in zip(problems, answers, strict=True)]
    found = leading(np.hstack(residuals), starts, most=MOST)
    for _ in range(PASSES):
        if not found.shape[1]:
            return none
        x = np.hstack([data.x, found])
        engine = make_engine(x, data.folds, budget, seed)
        problems = _on_all_inputs(engine, targets)
        answers = engine.cross_fit(problems, engine.learn(problems))
        x = np.hstack([data.x, np.zeros_like(found)])
        residuals = [p.target - engine.predict(fit, x) for p, (fit, _) in zip(problems, answers, strict=True)]
        found = leading(np.hstack(residuals), starts, most=MOST)
    return np.hstack([found[:, :1]] + [leading(r, starts, most=1) for r in residuals])


def _on_all_inputs(engine: Engine, targets: Sequence[tuple[str, np.ndarray]]) -> list[Problem]:
    keep = np.ones(engine.x.shape[1])
    return each(lambda target: engine.problem(target[0], target[1], keep), targets)


def leading(residual: np.ndarray, starts: np.ndarray, most: int) -> np.ndarray:
    """(n, r): the mean residual of the other steps along the directions that are constant in episodes."""
    length = np.diff(np.r_[starts, len(residual)])
    scale = np.sqrt((residual**2).mean(0))
    r = (residual - residual.mean(0)) / np.where(scale > 0, scale, 1)
    total = np.add.reduceat(r, starts)
    between = (total.T @ total - r.T @ r) / max((length * (length - 1.0)).sum(), 1)
    values, vectors = np.linalg.eigh(between)
    values, vectors = values[::-1][:most], vectors[:, ::-1][:, :most]
    variance = ((r @ vectors) ** 2).mean(0)
    vectors = vectors[:, values > LEAST_SHARE * np.maximum(variance, 1e-12)]
    # As in factor analysis, a column counts by the inverse of what is its own.
    vectors = vectors / np.maximum((r * r).mean(0) - np.diag(between), 0.05)[:, None]
    # What n steps tell of a cause with variance s and noise e is their mean times n / (n + e/s): a short episode
    # tells less. The mean is n times the mean, over n + e/s.
    others = (np.repeat(total, length, axis=0) - r) @ vectors
    signal = np.maximum(((vectors.T @ between) * vectors.T).sum(1), 1e-12)
    noise = np.maximum(((r @ vectors) ** 2).mean(0) - signal, 0)
    found = others / (np.repeat(length - 1, length)[:, None] + np.maximum(noise / signal, 1e-12))
    found -= found.mean(0)
    spread = found.std(0)
    return found[:, spread > 0] / spread[spread > 0]
