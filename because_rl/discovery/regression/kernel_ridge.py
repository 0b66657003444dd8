"""Kernel ridge regression with a learned metric, which finds the few directions that matter among many inputs.

    f(u) = a + b'u + sum_c alpha_c k(u, c),    k(u, c) = 1 / (1 + (u - c)' M (u - c))

with centres c among the data, the linear part free and the kernel part penalised. The metric M is the average
outer product of the gradients of the previous fit (starting from the identity), so directions in which f does
not change get little weight: in 18 dimensions this makes the error small enough for a test that multiplies two
residuals. Fits are cross-fitted: each fold is predicted from the rows and centres of the other folds only.

The functions are pure and take NumPy or JAX arrays. Shapes do not depend on which columns a problem uses
(`keep` is a vector of 0 and 1), so JAX compiles once for all problems.

Sizes: n rows, p input columns, m centres, K folds, w target columns, P = 1 + p + m features.
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
"""How often the metric is updated."""
FLOOR = 0.02
"""Share of the metric spread evenly over all kept directions, so that none is ever lost."""
JITTER = 1e-11
"""Added to the diagonal of every system that is solved."""
COLLINEAR = 1e-8
"""Added to the inputs' variances, so that collinear inputs can be regressed on."""
GRADIENT_ROWS = 300
"""Rows per fold whose gradients are averaged."""

Array = Any


class Rows(NamedTuple):
    """The inputs of a regression, in K folds."""

    u: Sequence[Array]
    """K times (rows, p)"""
    weight: Sequence[Array] | None = None
    """K times (rows,): a row's squared error is multiplied by its weight squared (0 for padding); None is all 1"""


class Centres(NamedTuple):
    """Where the kernel functions are centred."""

    points: Array
    """(m, p)"""
    free: Array
    """(K, m): 1 where the centre is not from that fold"""


class LearnedKernel(NamedTuple):
    """The metric and the penalty with the least held-out error."""

    metric: Array
    """(p, p), scaled by `unit`"""
    ridge: Array
    """one of `RIDGES`"""
    error: Array
    """share of the held-out variance that stays unexplained, summed over the target columns"""


class Fit(NamedTuple):
    """A cross-fitted regression."""

    root: Array
    """(p, p) of the metric, see `root_of`"""
    points: Array
    """(m, p) centres"""
    coefficients: Array
    """(K, 1 + p + m, w): fold k's were fitted on the other folds"""


def _positive(a: Array) -> Array:
    """At least 1e-12, for a divisor: without inputs, or in a padded column, 0 / 0 becomes 0."""
    xp = a.__array_namespace__()
    return xp.maximum(a, xp.full_like(a, 1e-12))


def kernel(a: Array, b: Array) -> Array:
    """1 / (1 + |a - b|^2) for all pairs of rows of a (m, p) and b (n, p), from one matrix product: (m, n)."""
    xp = a.__array_namespace__()
    right = xp.concat([b.T, xp.ones_like(b.T[:1]), xp.linalg.vecdot(b, b)[None]], axis=0)
    return 1 / (_against_rows(a) @ right)


def _against_rows(a: Array) -> Array:
    """(m, p + 2): the left factor that gives 1 + |a - b|^2 when multiplied with the columns [b, 1, |b|^2]."""
    xp = a.__array_namespace__()
    return xp.concat([-2 * a, xp.linalg.vecdot(a, a)[:, None] + 1, xp.ones_like(a[:, :1])], axis=1)


def unit(metric: Array, spread: Array) -> Array:
    """The metric (p, p), scaled so that the mean squared distance of two rows is 1.

    `spread` is the covariance of the inputs. (Scaling to trace 1 would not do: collinear inputs have huge slopes along
    directions in which the data hardly vary.)
    """
    return metric / _positive(2 * metric.__array_namespace__().trace(metric @ spread))


def root_of(metric: Array, keep: Array, spread: Array) -> Array:
    """R (p, p) with R R' = the unit metric in terms of the kept columns, with a share `FLOOR` spread over all of them.

    A dropped column counts through its linear prediction by the kept ones, so that dropping one of several
    equivalent columns costs nothing.
    """
    xp = metric.__array_namespace__()
    kept = spread * (keep[:, None] * keep[None, :]) + xp.diag(1 - keep) + COLLINEAR * xp.eye(len(keep))
    projection = xp.diag(keep) + (1 - keep)[:, None] * xp.linalg.solve(kept, keep[:, None] * spread).T * keep[None, :]
    metric = unit(projection.T @ metric @ projection, spread)
    metric = unit((1 - FLOOR) * metric + FLOOR * unit(xp.diag(keep), spread), spread)
    values, vectors = xp.linalg.eigh(metric)
    return vectors * xp.sqrt(xp.maximum(values, xp.zeros_like(values)))[None, :]


def _features(
    u: Array, weight: Array | None, keep: Array, points: Array, root: Array, out: np.ndarray | None = None
) -> Array:
    """(P, rows): the constant, the kept inputs, then the kernel features; written into `out` (NumPy) where given."""
    xp, p = u.__array_namespace__(), len(keep)
    if out is None:
        linear = xp.concat([xp.ones_like(u[:, :1]), u * keep[None, :]], axis=1)
        out = xp.concat([linear.T, kernel(points @ root, u @ root)], axis=0)
        return out if weight is None else out * weight[None, :]
    out[0] = 1
    np.multiply(u.T, keep[:, None], out=out[1 : 1 + p])
    right, values = np.empty((p + 2, len(u))), out[1 + p :]  # as in `kernel`, without copies
    mapped = np.matmul(root.T, u.T, out=right[:p])
    right[p] = 1
    np.einsum("ij,ij->j", mapped, mapped, out=right[p + 1])
    np.reciprocal(np.matmul(_against_rows(points @ root), right, out=values), out=values)
    return out if weight is None else np.multiply(out, weight, out=out)


_thread = threading.local()


def _all_features(rows: Rows, keep: Array, points: Array, root: Array) -> list[Array]:
    """Features fold by fold, K times (P, rows).

    With NumPy they are valid until this thread calls again: one buffer per thread serves all problems, since
    allocating fresh pages would take a quarter of the time.
    """
    weights = [None] * len(rows.u) if rows.weight is None else rows.weight
    out: list[np.ndarray | None] = [None] * len(rows.u)
    if root.__array_namespace__() is np:
        size = 1 + len(keep) + len(points)
        ends = size * np.cumsum([0, *map(len, rows.u)])
        if len(getattr(_thread, "buffer", ())) < ends[-1]:
            _thread.buffer = np.empty(ends[-1])
        out = [_thread.buffer[a:b].reshape(size, -1) for a, b in pairwise(ends)]
    return [_features(u, w, keep, points, root, o) for u, w, o in zip(rows.u, weights, out, strict=True)]


def _moments(features: list[Array], target: Sequence[Array]) -> tuple[Array, Array]:
    """Per fold: the products of features with features (K, P, P) and of features with the target (K, P, w)."""
    xp = features[0].__array_namespace__()
    gram, cross = [f @ f.T for f in features], [f @ t for f, t in zip(features, target, strict=True)]
    return xp.stack(gram), xp.stack(cross)


def _penalty(points: Array, root: Array) -> Array:
    """(P, P): the kernel matrix of the centres; 0 for the constant and the linear part, which are not penalised."""
    xp = root.__array_namespace__()
    (m, p), c = points.shape, points @ root
    corner, edge = xp.zeros((1 + p, 1 + p), dtype=root.dtype), xp.zeros((1 + p, m), dtype=root.dtype)
    return xp.concat([xp.concat([corner, edge], axis=1), xp.concat([edge.T, kernel(c, c)], axis=1)], axis=0)


def _solve(gram: Array, cross: Array, penalty: Array, ridge: Array, free: Array) -> Array:
    """(..., P, w) coefficients of the features that are `free` (..., P), 0 for others. Moments are means over rows."""
    xp = gram.__array_namespace__()
    if xp is np:
        return _solve_one_by_one(gram, cross, penalty, ridge, free)
    both = free[..., :, None] * free[..., None, :]
    eye = xp.eye(gram.shape[-1], dtype=gram.dtype).reshape((1,) * (gram.ndim - 2) + gram.shape[-2:])
    left = (gram + ridge * penalty) * both + eye * (1 - free + JITTER)[..., None]
    right = xp.broadcast_to(cross * free[..., None], (*left.shape[:-1], cross.shape[-1]))
    return _cho_solve(left, right)


def _cho_solve(left: Array, right: Array) -> Array:
    """With JAX, by Cholesky factors; NaN where rounding makes them fail, which the callers check for."""
    from jax.scipy.linalg import cho_solve

    return cho_solve((left.__array_namespace__().linalg.cholesky(left), True), right)


def _solve_one_by_one(gram: Array, cross: Array, penalty: Array, ridge: Array, free: Array) -> Array:
    """`_solve` with NumPy, by Cholesky factors of the free part alone, for each fold and each penalty."""
    size, width = cross.shape[-2:]
    batch = np.broadcast_shapes(gram.shape[:-2], np.shape(ridge)[:-2])
    penalty, ridges = penalty.reshape(size, size), np.ravel(ridge)
    folds = [a.reshape(-1, *a.shape[-2:]) for a in (gram, cross)]
    out = np.zeros((len(folds[0]), len(ridges), size, width))
    for g, c, is_free, o in zip(*folds, free.reshape(-1, size), out, strict=True):
        places = np.flatnonzero(is_free)
        free_gram, free_penalty = (a[places].take(places, 1) for a in (g, penalty))
        for k, r in enumerate(ridges):
            left = r * free_penalty
            left += free_gram
            left.flat[:: len(left) + 1] += JITTER
            o[k, places] = _solve_positive(left, c[places])
    return out.reshape(*batch, size, width)


def _solve_positive(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """By Cholesky factors, or by LU factors where rounding makes the matrix indefinite."""
    try:
        return dpotrs(np.linalg.cholesky(left).T, right)[0]
    except np.linalg.LinAlgError:
        return np.linalg.solve(left, right)


def _count(rows: Rows) -> Array:
    """(K,) the weight of the rows of each fold; their number without weights."""
    if rows.weight is None:
        return np.array([float(len(u)) for u in rows.u])
    return rows.u[0].__array_namespace__().stack([(w * w).sum() for w in rows.weight])


def _held_out(rows: Rows, gram: Array, cross: Array, centres: Centres) -> tuple[Array, Array, Array]:
    """For each fold the mean moments of the others, and the features that are free (K, P): 0 if centred in the fold."""
    xp, count = gram.__array_namespace__(), _count(rows)
    others = (count.sum() - count)[:, None, None]
    linear = xp.ones((len(count), gram.shape[-1] - centres.free.shape[1]), dtype=gram.dtype)
    free = xp.concat([linear, centres.free], axis=1)
    return (gram.sum(0)[None] - gram) / others, (cross.sum(0)[None] - cross) / others, free


def _errors(power: Array, gram: Array, cross: Array, c: Array) -> Array:
    """(tried, w) held-out squared error of coefficients c (K, tried, P, w), summed over rows, from moments alone."""
    xp = gram.__array_namespace__()
    fold_errors = [
        p[None] - 2 * (a * b[None]).sum(1) + (a * (g[None] @ a)).sum(1)
        for p, g, b, a in zip(power, gram, cross, c, strict=True)
    ]
    return xp.stack(fold_errors).sum(0)


def learn(rows: Rows, target: Sequence[Array], keep: Array, centres: Centres, spread: Array) -> LearnedKernel:
    """The metric and the penalty with the least held-out error of `target` (all its columns together).

    Args:
        rows: the inputs, K folds of (rows, p).
        target: K folds of (rows, w), times the rows' weights.
        keep: (p,) 1 for the input columns that are used, 0 for the others.
        centres: of the kernel functions.
        spread: (p, p) the covariance of the inputs.
    """
    xp, points = spread.__array_namespace__(), centres.points
    power = xp.stack([(t * t).sum(0) for t in target])  # (K, w)
    scale = _positive(power.sum(0))
    ridges, near = xp.asarray(RIDGES, dtype=spread.dtype), xp.asarray([-1, 0, 1])
    tried = xp.arange(len(RIDGES))
    everywhere = xp.ones(1 + points.shape[1] + points.shape[0], dtype=spread.dtype)
    metric, candidates = unit(xp.diag(keep), spread), []
    for step in range(STEPS + 1):
        root = root_of(metric, keep, spread)
        gram, cross = _moments(_all_features(rows, keep, points, root), target)
        penalty = _penalty(points, root)
        others, others_cross, free = _held_out(rows, gram, cross, centres)
        ridge = ridges[tried][None, :, None, None]
        c = _solve(others[:, None], others_cross[:, None], penalty[None, None], ridge, free[:, None])
        error = (_errors(power, gram, cross, c) / scale[None]).sum(-1)  # (tried,)
        error = xp.where(xp.isnan(error), xp.full_like(error, xp.inf), error)  # the penalty is too small
        chosen = error.argmin()
        best = tried[chosen]
        tried = xp.clip(best + near, 0, len(RIDGES) - 1)  # from now on only the neighbours
        candidates.append(LearnedKernel(metric, ridges[best], error[chosen]))
        if step < STEPS:
            count = _count(rows).sum()
            c = _solve(gram.sum(0) / count, cross.sum(0) / count, penalty, ridges[best], everywhere)
            metric = unit(_gradient_products(rows, c / xp.sqrt(scale)[None], keep, points, root), spread)
    errors = xp.stack([candidate.error for candidate in candidates])
    # Of those that are as good as the best, the one learned last.
    last = len(candidates) - 1 - (errors <= 1.01 * errors.min())[::-1].argmax()
    return LearnedKernel(*(xp.stack(values)[last] for values in zip(*candidates, strict=True)))


def held_out_error(
    rows: Rows, target: Sequence[Array], keep: Array, centres: Centres, spread: Array, metric: Array, ridge: Array
) -> Array:
    """(w,) the share of each target column's square that stays unexplained in held-out folds.

    Arguments as for `learn`, with a given metric (p, p) and penalty.
    """
    xp = spread.__array_namespace__()
    root = root_of(metric, keep, spread)
    gram, cross = _moments(_all_features(rows, keep, centres.points, root), target)
    others, others_cross, free = _held_out(rows, gram, cross, centres)
    c = _solve(others, others_cross, _penalty(centres.points, root)[None], ridge, free)
    power = xp.stack([(t * t).sum(0) for t in target])
    return _errors(power, gram, cross, c[:, None])[0] / _positive(power.sum(0))


def _gradient_products(rows: Rows, c: Array, keep: Array, points: Array, root: Array) -> Array:
    """(p, p) sum of outer products of gradients, over `GRADIENT_ROWS` rows per fold and all columns of c (P, w)."""
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
    """Fit each fold from the others, and predict it.

    Args:
        rows, target, keep, centres, spread: as for `learn`.
        metric, ridge: from `learn`.
        within: `within(k, a)` subtracts from the rows `a` of fold k the mean of their episode. With it the fit uses
            only differences within episodes, and whatever is constant in an episode stays in the residual.

    Returns:
        The fit, and the predictions, K times (rows, w).
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
    """The fit at other inputs, each fold by the fit without it: K times (rows, w)."""
    return [f.T @ fit.coefficients[k] for k, f in enumerate(_all_features(rows, keep, fit.points, fit.root))]
