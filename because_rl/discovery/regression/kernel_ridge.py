"""Regression that finds the few directions that matter among many: kernel ridge with a learned metric.

    f(u) = a + b'u + sum_c alpha_c k(u, c),    k(u, c) = 1 / (1 + (u - c)' M (u - c))

with centres c among the data, the linear part free and the kernel part penalised. The metric M is the average
outer product of the gradients of the previous fit (starting from the identity), so directions in which f does
not change fade: in 18 dimensions this is what makes the error small enough for a test that multiplies two
residuals. Fits are cross-fitted: each fold is predicted from the rows and centres of the other folds only.

The functions are pure and take NumPy or JAX arrays. Shapes do not depend on which columns a problem uses
(`keep` is a vector of 0 and 1), so JAX compiles once for all problems.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrs

RIDGES = tuple(10.0**e for e in (-8, -7, -6, -5, -4, -3.25, -2.5, -1.75))
"""Penalties tried, relative to the mean squared kernel feature."""
STEPS = 3
"""How often the metric is learned anew."""
FLOOR = 0.02
"""Share of the metric spread evenly over all kept directions: none is ever lost for good."""
JITTER = 1e-11
COLLINEAR = 1e-8
"""Added to the inputs' variances, so that collinear ones can be regressed on."""
GRADIENT_ROWS = 300
"""Rows per fold whose gradients are averaged."""

Array = Any


class Rows(NamedTuple):
    """The inputs of a regression, in K folds."""

    u: Sequence[Array]
    """K times (rows, p)"""
    weight: Sequence[Array] | None = None
    """K times (rows,): each row's equation counts times its weight squared (0 fills a fold up); None is all 1"""


class Centres(NamedTuple):
    points: Array
    """(m, p)"""
    free: Array
    """(K, m): 1 where the centre is not from that fold"""


class Law(NamedTuple):
    """A learned unit metric, its penalty, and the share of held-out variance left unexplained."""

    metric: Array
    ridge: Array
    error: Array


class Fit(NamedTuple):
    root: Array
    points: Array
    coefficients: Array
    """(K, 1 + p + m, w): fold k's were fitted on the other folds"""


def _positive(a: Array) -> Array:
    """A divisor that is never 0: without inputs, or in a column that only fills up, 0 / 0 is to be 0."""
    xp = a.__array_namespace__()
    return xp.maximum(a, xp.full_like(a, 1e-12))


def kernel(a: Array, b: Array) -> Array:
    """1 / (1 + |a - b|^2) for all pairs of rows, from one matrix product."""
    xp = a.__array_namespace__()
    right = xp.concat([b.T, xp.ones_like(b.T[:1]), xp.linalg.vecdot(b, b)[None]], axis=0)
    return 1 / (_against_rows(a) @ right)


def _against_rows(a: Array) -> Array:
    """(m, p + 2): what gives 1 + |a - b|^2 when multiplied with the columns [b, 1, |b|^2]."""
    xp = a.__array_namespace__()
    return xp.concat([-2 * a, xp.linalg.vecdot(a, a)[:, None] + 1, xp.ones_like(a[:, :1])], axis=1)


def unit(metric: Array, spread: Array) -> Array:
    """Scaled so that the mean squared distance of two rows is 1 (not to trace 1: collinear inputs have huge
    slopes along directions in which the data hardly spread)."""
    return metric / _positive(2 * metric.__array_namespace__().trace(metric @ spread))


def root_of(metric: Array, keep: Array, spread: Array) -> Array:
    """R with R R' = the unit metric as the kept columns see it, a little of it spread over all of them.

    A dropped column counts through its linear prediction by the kept ones, so that dropping one of several
    that say the same costs nothing.
    """
    xp = metric.__array_namespace__()
    kept = spread * (keep[:, None] * keep[None, :]) + xp.diag(1 - keep) + COLLINEAR * xp.eye(len(keep))
    told = xp.diag(keep) + (1 - keep)[:, None] * xp.linalg.solve(kept, keep[:, None] * spread).T * keep[None, :]
    metric = unit(told.T @ metric @ told, spread)
    metric = unit((1 - FLOOR) * metric + FLOOR * unit(xp.diag(keep), spread), spread)
    values, vectors = xp.linalg.eigh(metric)
    return vectors * xp.sqrt(xp.maximum(values, xp.zeros_like(values)))[None, :]


def _features(
    u: Array, weight: Array | None, keep: Array, points: Array, root: Array, out: np.ndarray | None = None
) -> Array:
    """(P, rows): the constant and the inputs, then the kernel features, P = 1 + p + m; with NumPy into `out`."""
    xp, p = u.__array_namespace__(), len(keep)
    if out is None:
        linear = xp.concat([xp.ones_like(u[:, :1]), u * keep[None, :]], axis=1)
        out = xp.concat([linear.T, kernel(points @ root, u @ root)], axis=0)
        return out if weight is None else out * weight[None, :]
    out[0] = 1
    np.multiply(u.T, keep[:, None], out=out[1 : 1 + p])
    right, bumps = np.empty((p + 2, len(u))), out[1 + p :]  # as in `kernel`, without copies
    seen = np.matmul(root.T, u.T, out=right[:p])
    right[p] = 1
    np.einsum("ij,ij->j", seen, seen, out=right[p + 1])
    np.reciprocal(np.matmul(_against_rows(points @ root), right, out=bumps), out=bumps)
    return out if weight is None else np.multiply(out, weight, out=out)


_thread = threading.local()


def _all_features(rows: Rows, keep: Array, points: Array, root: Array) -> list[Array]:
    """Fold by fold. With NumPy they stay good until this thread asks again: one piece of memory serves all
    problems, since fresh pages would take a quarter of the time."""
    weights = [None] * len(rows.u) if rows.weight is None else rows.weight
    out: list[np.ndarray | None] = [None] * len(rows.u)
    if root.__array_namespace__() is np:
        size = 1 + len(keep) + len(points)
        ends = size * np.cumsum([0, *map(len, rows.u)])
        if len(getattr(_thread, "scratch", ())) < ends[-1]:
            _thread.scratch = np.empty(ends[-1])
        out = [_thread.scratch[a:b].reshape(size, -1) for a, b in pairwise(ends)]
    return [_features(u, w, keep, points, root, o) for u, w, o in zip(rows.u, weights, out, strict=True)]


def _moments(features: list[Array], target: Sequence[Array]) -> tuple[Array, Array]:
    """Per fold: features' features (K, P, P) and features' target (K, P, w)."""
    xp = features[0].__array_namespace__()
    gram, cross = [f @ f.T for f in features], [f @ t for f, t in zip(features, target, strict=True)]
    return xp.stack(gram), xp.stack(cross)


def _penalty(points: Array, root: Array) -> Array:
    xp = root.__array_namespace__()
    (m, p), c = points.shape, points @ root
    corner, edge = xp.zeros((1 + p, 1 + p), dtype=root.dtype), xp.zeros((1 + p, m), dtype=root.dtype)
    return xp.concat([xp.concat([corner, edge], axis=1), xp.concat([edge.T, kernel(c, c)], axis=1)], axis=0)


def _solve(gram: Array, cross: Array, penalty: Array, ridge: Array, free: Array) -> Array:
    """Coefficients of the features that are free; the others' are 0. Moments are means over rows."""
    xp = gram.__array_namespace__()
    if xp is np:
        return _solve_one_by_one(gram, cross, penalty, ridge, free)
    both = free[..., :, None] * free[..., None, :]
    eye = xp.eye(gram.shape[-1], dtype=gram.dtype).reshape((1,) * (gram.ndim - 2) + gram.shape[-2:])
    left = (gram + ridge * penalty) * both + eye * (1 - free + JITTER)[..., None]
    right = xp.broadcast_to(cross * free[..., None], (*left.shape[:-1], cross.shape[-1]))
    return _cho_solve(left, right)


def _cho_solve(left: Array, right: Array) -> Array:
    """With JAX, by Cholesky factors; NaN where rounding spoils them, which the callers look for."""
    from jax.scipy.linalg import cho_solve

    return cho_solve((left.__array_namespace__().linalg.cholesky(left), True), right)


def _solve_one_by_one(gram: Array, cross: Array, penalty: Array, ridge: Array, free: Array) -> Array:
    """`_solve` by Cholesky factors of the free part alone: for each fold all penalties, or a single one."""
    size, width = cross.shape[-2:]
    batch = np.broadcast_shapes(gram.shape[:-2], np.shape(ridge)[:-2])
    penalty, ridges = penalty.reshape(size, size), np.ravel(ridge)
    folds = [a.reshape(-1, *a.shape[-2:]) for a in (gram, cross)]
    out = np.zeros((len(folds[0]), len(ridges), size, width))
    for g, c, may, o in zip(*folds, free.reshape(-1, size), out, strict=True):
        places = np.flatnonzero(may)
        some_g, some_penalty = (a[places].take(places, 1) for a in (g, penalty))
        for k, r in enumerate(ridges):
            left = r * some_penalty
            left += some_g
            left.flat[:: len(left) + 1] += JITTER
            o[k, places] = _solve_positive(left, c[places])
    return out.reshape(*batch, size, width)


def _solve_positive(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    try:
        return dpotrs(np.linalg.cholesky(left).T, right)[0]
    except np.linalg.LinAlgError:  # rounding
        return np.linalg.solve(left, right)


def _count(rows: Rows) -> Array:
    """(K,) rows per fold, by weight."""
    if rows.weight is None:
        return np.array([float(len(u)) for u in rows.u])
    return rows.u[0].__array_namespace__().stack([(w * w).sum() for w in rows.weight])


def _held_out(rows: Rows, gram: Array, cross: Array, centres: Centres) -> tuple[Array, Array, Array]:
    """For each fold the mean moments of the others, and which features are free."""
    xp, count = gram.__array_namespace__(), _count(rows)
    others = (count.sum() - count)[:, None, None]
    linear = xp.ones((len(count), gram.shape[-1] - centres.free.shape[1]), dtype=gram.dtype)
    free = xp.concat([linear, centres.free], axis=1)
    return (gram.sum(0)[None] - gram) / others, (cross.sum(0)[None] - cross) / others, free


def _errors(power: Array, gram: Array, cross: Array, c: Array) -> Array:
    """Held-out squared error, summed over rows: (tried, w), from moments alone."""
    xp = gram.__array_namespace__()
    of_fold = [
        p[None] - 2 * (a * b[None]).sum(1) + (a * (g[None] @ a)).sum(1)
        for p, g, b, a in zip(power, gram, cross, c, strict=True)
    ]
    return xp.stack(of_fold).sum(0)


def learn(rows: Rows, target: Sequence[Array], keep: Array, centres: Centres, spread: Array) -> Law:
    """The metric and the penalty with the least held-out error of `target` (all its columns together).

    `spread` is the covariance of the inputs.
    """
    xp, points = spread.__array_namespace__(), centres.points
    power = xp.stack([(t * t).sum(0) for t in target])  # (K, w)
    scale = _positive(power.sum(0))
    ridges, near = xp.asarray(RIDGES, dtype=spread.dtype), xp.asarray([-1, 0, 1])
    tried = xp.arange(len(RIDGES))
    everywhere = xp.ones(1 + points.shape[1] + points.shape[0], dtype=spread.dtype)
    metric, laws = unit(xp.diag(keep), spread), []
    for step in range(STEPS + 1):
        root = root_of(metric, keep, spread)
        gram, cross = _moments(_all_features(rows, keep, points, root), target)
        penalty = _penalty(points, root)
        others, others_cross, free = _held_out(rows, gram, cross, centres)
        ridge = ridges[tried][None, :, None, None]
        c = _solve(others[:, None], others_cross[:, None], penalty[None, None], ridge, free[:, None])
        error = (_errors(power, gram, cross, c) / scale[None]).sum(-1)  # (tried,)
        error = xp.where(xp.isnan(error), xp.full_like(error, xp.inf), error)  # too small a penalty
        chosen = error.argmin()
        best = tried[chosen]
        tried = xp.clip(best + near, 0, len(RIDGES) - 1)  # from now on only the neighbours
        laws.append(Law(metric, ridges[best], error[chosen]))
        if step < STEPS:
            count = _count(rows).sum()
            c = _solve(gram.sum(0) / count, cross.sum(0) / count, penalty, ridges[best], everywhere)
            metric = unit(_gradient_products(rows, c / xp.sqrt(scale)[None], keep, points, root), spread)
    errors = xp.stack([law.error for law in laws])
    last = len(laws) - 1 - (errors <= 1.01 * errors.min())[::-1].argmax()  # of two as good, the one learned longer
    return Law(*(xp.stack(values)[last] for values in zip(*laws, strict=True)))


def held_out_error(
    rows: Rows, target: Sequence[Array], keep: Array, centres: Centres, spread: Array, metric: Array, ridge: Array
) -> Array:
    """(w,) the share of each target column's square that stays unexplained in held-out folds."""
    xp = spread.__array_namespace__()
    root = root_of(metric, keep, spread)
    gram, cross = _moments(_all_features(rows, keep, centres.points, root), target)
    others, others_cross, free = _held_out(rows, gram, cross, centres)
    c = _solve(others, others_cross, _penalty(centres.points, root)[None], ridge, free)
    power = xp.stack([(t * t).sum(0) for t in target])
    return _errors(power, gram, cross, c[:, None])[0] / _positive(power.sum(0))


def _gradient_products(rows: Rows, c: Array, keep: Array, points: Array, root: Array) -> Array:
    """(p, p): the sum of the outer products of the gradients, over some rows of all folds and all columns of c."""
    xp, p = c.__array_namespace__(), len(keep)
    u = xp.concat([fold[:GRADIENT_ROWS] for fold in rows.u], axis=0)
    part = -(kernel(u @ root, points @ root) ** 2)[None] * c[1 + p :].T[:, None]  # (w, rows, m)
    gradient = 2 * (u[None] * part.sum(2)[..., None] - part @ points) @ (root @ root.T)
    gradient = gradient + (c[1 : 1 + p].T * keep[None])[:, None]
    if rows.weight is not None:
        weight = xp.concat([fold[:GRADIENT_ROWS] for fold in rows.weight], axis=0)
        gradient = gradient * weight[None, :, None]
    gradient = gradient.reshape((-1, p))
    return gradient.T @ gradient


def cross_fit(
    rows: Rows,
    target: Sequence[Array],
    keep: Array,
    centres: Centres,
    spread: Array,
    metric: Array,
    ridge: Array,
    within: Callable[[int, Array], Array] | None = None,
) -> tuple[Fit, list[Array]]:
    """Fit each fold from the others, and predict it: K times (rows, w).

    `within(k, a)`, where given, takes the mean of each episode from the rows `a` of fold k: the fit then rests
    on differences inside episodes only, and whatever is constant in one stays in the residual.
    """
    root = root_of(metric, keep, spread)
    features = _all_features(rows, keep, centres.points, root)
    if within is None:
        gram, cross = _moments(features, target)
    else:
        centred = [within(k, f.T).T for k, f in enumerate(features)]
        gram, cross = _moments(centred, [within(k, t) for k, t in enumerate(target)])
    others, others_cross, free = _held_out(rows, gram, cross, centres)
    c = _solve(others, others_cross, _penalty(centres.points, root)[None], ridge, free)
    return Fit(root, centres.points, c), [f.T @ c[k] for k, f in enumerate(features)]


def predict(fit: Fit, rows: Rows, keep: Array) -> list[Array]:
    """The fit at other inputs, fold by fold."""
    return [f.T @ fit.coefficients[k] for k, f in enumerate(_all_features(rows, keep, fit.points, fit.root))]
