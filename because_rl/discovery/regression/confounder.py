"""Hidden causes that are constant in an episode, estimated from their effect on every step of it.

Such a confounder u_c (a slope under all bodies of a scene, say) makes pooled tests accept false edges: the speed of
one body is informative about the slope, and so about the next speed of another. The estimate for step t is

    u_t = v' mean over the other steps s of the episode of r_s,      r = y - f(x)

with v the leading direction of the covariance of residuals between different steps of one episode. Step t's own
noise is not in u_t, so conditioning on it is as sound as conditioning on an observed covariate.

f must not explain u_c away through its proxies. So it is first fitted on differences within episodes, which do not
depend on constants, and then, with the first estimate as an input held at 0, on all of the data.

Assumptions: the effect of u_c on the next state is mostly a shift; several steps per episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from because_rl.discovery.regression.engine import Budget, Engine, Problem
from because_rl.discovery.regression.gpu_engine import make_engine
from because_rl.discovery.regression.margins import Prepared
from because_rl.discovery.regression.threads import thread_map

LEAST_SHARE = 0.4
"""Share of the residual variance along a direction that must be constant in episodes; less is approximation error."""
MAX_DIRECTIONS = 3
PASSES = 2
"""Fits on all of the data, each starting from the estimate of the one before."""
WITHIN_PENALTY = 10.0
"""Factor on the penalty of the fit within episodes, where the inputs vary less."""


def hidden_causes(data: Prepared, budget: Budget, seed: int) -> np.ndarray:
    """(n, r) estimates of hidden causes, each of variance 1; r is 0 where there are none.

    One comes from all targets together, and one from each target that is shifted, with errors of its own.
    """
    none = np.zeros((len(data.x), 0))
    targets = [(t.factor.name, t.moves) for t in data.targets if t.moves.shape[1]]
    starts, budget = data.starts, replace(budget, learn_rows=budget.learn_rows // 2)
    if 2 * len(starts) > len(data.x) or not targets:
        return none

    engine = make_engine(data.x, data.folds, budget, seed)
    problems = _on_all_inputs(engine, targets)
    kernels = [kernel._replace(ridge=WITHIN_PENALTY * kernel.ridge) for kernel in engine.learn(problems)]
    fits = engine.cross_fit(problems, kernels, starts)
    residuals = [p.target - prediction for p, (_, prediction) in zip(problems, fits, strict=True)]
    causes = episode_constants(np.hstack(residuals), starts, MAX_DIRECTIONS)
    for _ in range(PASSES):
        if not causes.shape[1]:
            return none
        x = np.hstack([data.x, causes])
        engine = make_engine(x, data.folds, budget, seed)
        problems = _on_all_inputs(engine, targets)
        fits = engine.cross_fit(problems, engine.learn(problems))
        x = np.hstack([data.x, np.zeros_like(causes)])
        residuals = [p.target - engine.predict(fit, x) for p, (fit, _) in zip(problems, fits, strict=True)]
        causes = episode_constants(np.hstack(residuals), starts, MAX_DIRECTIONS)
    return np.hstack([causes[:, :1]] + [episode_constants(r, starts, 1) for r in residuals])


def _on_all_inputs(engine: Engine, targets: Sequence[tuple[str, np.ndarray]]) -> list[Problem]:
    """The problem of regressing each (name, values) on all columns."""
    keep = np.ones(engine.x.shape[1])
    return thread_map(lambda target: engine.problem(target[0], target[1], keep), targets)


def episode_constants(residual: np.ndarray, starts: np.ndarray, max_directions: int) -> np.ndarray:
    """(n, r): the mean residual of an episode's other steps along the directions that are constant in episodes.

    `residual` is (n, w), `starts` are the first rows of the episodes; r is at most `max_directions`.
    """
    length = np.diff(np.r_[starts, len(residual)])
    scale = np.sqrt((residual**2).mean(0))
    r = (residual - residual.mean(0)) / np.where(scale > 0, scale, 1)
    total = np.add.reduceat(r, starts)
    between = (total.T @ total - r.T @ r) / max((length * (length - 1.0)).sum(), 1)
    values, vectors = np.linalg.eigh(between)
    values, vectors = values[::-1][:max_directions], vectors[:, ::-1][:, :max_directions]
    variance = ((r @ vectors) ** 2).mean(0)
    vectors = vectors[:, values > LEAST_SHARE * np.maximum(variance, 1e-12)]
    # As in factor analysis, a column is weighted by the inverse of its own (unshared) variance.
    vectors = vectors / np.maximum((r * r).mean(0) - np.diag(between), 0.05)[:, None]
    # The best estimate of a cause with variance s from n steps with noise e is their mean times n / (n + e/s), which is
    # their sum over n + e/s: the estimate of a short episode is shrunk more.
    others = (np.repeat(total, length, axis=0) - r) @ vectors
    signal = np.maximum(((vectors.T @ between) * vectors.T).sum(1), 1e-12)
    noise = np.maximum(((r @ vectors) ** 2).mean(0) - signal, 0)
    causes = others / (np.repeat(length - 1, length)[:, None] + np.maximum(noise / signal, 1e-12))
    causes -= causes.mean(0)
    spread = causes.std(0)
    return causes[:, spread > 0] / spread[spread > 0]
