"""The regressions of `engine` as compiled JAX programs, several problems at a time: for a GPU.

Shapes are padded (folds to a common size, target columns to a power of two, batches to `BATCH` problems), so a
program is compiled once per size of data, not once per pair. Everything is in double precision: smooth kernels are
too ill-conditioned for single precision. A problem whose Cholesky factors still become NaN by rounding is solved
again by `Engine`, which falls back to LU factors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from because_rl.discovery.regression.engine import Budget, Engine, Problem
from because_rl.discovery.regression.kernel_ridge import (
    Centres,
    Fit,
    LearnedKernel,
    Rows,
    cross_fit,
    held_out_error,
    learn,
    predict,
)

BATCH = 8
"""Problems per program."""
ROW_STEP = 256
"""Folds are padded to a multiple of this many rows, so that another draw of the data rarely needs compiling."""
EPISODE_STEP = 64
"""The same for the number of episodes per fold."""


class Episodes(NamedTuple):
    """Where the episodes of each fold are, in padded folds."""

    first: np.ndarray
    """(K, episodes) the first row of each episode"""
    stop: np.ndarray
    """(K, episodes) the row after its last"""
    episode_of_row: np.ndarray
    """(K, rows)"""


def _over_problems(function: Callable[..., Any], *axes: int | None) -> Callable[..., Any]:
    """Compiled, and mapped over a leading axis of the arguments whose entry in `axes` is 0."""
    return jax.jit(jax.vmap(function, in_axes=axes))


def _one_learn(u, weight, target, keep, points, free, spread):
    return learn(Rows(u, weight), target, keep, Centres(points, free), spread)


def _one_error(u, weight, target, keep, points, free, spread, metric, ridge):
    return held_out_error(Rows(u, weight), target, keep, Centres(points, free), spread, metric, ridge)


def _one_fit(u, weight, target, keep, points, free, spread, metric, ridge, episodes):
    def within(k, rows):
        total = jax.numpy.concatenate([jax.numpy.zeros_like(rows[:1]), jax.numpy.cumsum(rows, axis=0)])
        first, stop = episodes.first[k], episodes.stop[k]
        length = jax.numpy.maximum(stop - first, 1).astype(rows.dtype)
        mean = (total[stop] - total[first]) / length[:, None]
        return rows - mean[episodes.episode_of_row[k]] * weight[k][:, None]

    shared = keep, Centres(points, free), spread, metric, ridge
    fit, prediction = cross_fit(Rows(u, weight), target, *shared, None if episodes is None else within)
    return fit, jax.numpy.stack(prediction)


def _one_substituted(u, weight, substitute, fit, keep):
    mixed = u * keep[None, None] + substitute * (1 - keep)[None, None]
    return jax.numpy.stack(predict(fit, Rows(mixed, weight), jax.numpy.ones_like(keep)))


_learn = _over_problems(_one_learn, 0, 0, 0, 0, 0, 0, None)
_errors = _over_problems(_one_error, None, None, None, 0, None, None, None, None, None)
_fit = _over_problems(_one_fit, None, None, 0, 0, 0, 0, None, 0, 0, None)
_predict_substituted = _over_problems(_one_substituted, None, None, None, None, 0)
_predict = jax.jit(lambda u, weight, fit: jax.numpy.stack(predict(fit, Rows(u, weight), jax.numpy.ones(u.shape[-1]))))


_gpu_lock = threading.Lock()


@contextlib.contextmanager
def _double_precision() -> Iterator[None]:
    """In double precision, and one program at a time.

    With several threads starting programs XLA once failed to record a CUDA graph, and the GPU would run them one
    after another anyway.
    """
    with _gpu_lock, jax.enable_x64(True):
        yield


class AcceleratedEngine(Engine):
    """Gives the same results as `Engine`, up to rounding."""

    def __init__(self, x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int):
        super().__init__(x, folds, budget, seed)
        self.concurrent_targets = 4  # while the host compares one target's pairs, the GPU fits another's
        self._sizes = [f.stop - f.start for f in folds]
        self._padded = -(-max(self._sizes) // ROW_STEP) * ROW_STEP
        with _double_precision():
            self._u = jax.numpy.asarray(self._fold(x))
            self._weight = jax.numpy.asarray(self._fold(np.ones((len(x), 1)))[..., 0])
            self._device_spread = jax.numpy.asarray(self.spread)

    def _fold(self, a: np.ndarray) -> np.ndarray:
        """(n, w) -> (K, rows, w), padded with 0."""
        return _pad_rows([a[f] for f in self.folds], self._padded)

    def _unfold(self, a: np.ndarray) -> np.ndarray:
        """(K, rows, w) -> (n, w): the inverse of `_fold`."""
        return np.concatenate([a[k, :size] for k, size in enumerate(self._sizes)])

    def _episodes(self, starts: np.ndarray) -> Episodes:
        fold_starts = self._fold_starts(starts)
        padded = -(-max(map(len, fold_starts)) // EPISODE_STEP) * EPISODE_STEP
        first, stop = np.zeros((2, len(fold_starts), padded), int)
        episode_of_row = np.zeros((len(fold_starts), self._padded), int)
        for k, (start, size) in enumerate(zip(fold_starts, self._sizes, strict=True)):
            first[k, : len(start)], stop[k, : len(start)] = start, np.r_[start[1:], size]
            episode_of_row[k, :size] = np.repeat(np.arange(len(start)), np.diff(np.r_[start, size]))
        return Episodes(first, stop, episode_of_row)

    def learn(self, problems: Sequence[Problem]) -> list[LearnedKernel]:
        kernels: list[LearnedKernel] = [None] * len(problems)  # type: ignore[list-item]
        for width, places in _by_width(problems):
            parts = [self._learn_arguments(problems[k], width) for k in places]
            stacked = list(map(np.stack, zip(*parts, strict=True)))
            with _double_precision():
                learned = jax.device_get(_learn(*stacked, self._device_spread))
            for row, k in enumerate(dict.fromkeys(places)):
                kernels[k] = LearnedKernel(*(a[row] for a in learned))
        failed = [k for k, kernel in enumerate(kernels) if not np.isfinite(kernel.error)]
        for k, kernel in zip(failed, super().learn([problems[k] for k in failed]), strict=True):
            kernels[k] = kernel
        return kernels

    def _learn_arguments(self, problem: Problem, width: int) -> tuple[np.ndarray, ...]:
        """What `_one_learn` takes before `spread`, padded to `width` target columns."""
        rows, target, centres = self._sample(problem, self.budget.learn_rows, self.budget.learn_centres)
        size = -(-max(map(len, target)) // ROW_STEP) * ROW_STEP
        u, t = _pad_rows(list(rows.u), size), _pad_columns(_pad_rows(target, size), width)
        weight = _pad_rows([w[:, None] for w in rows.weight or []], size)[..., 0]
        return u, weight, t, problem.keep, *centres

    def errors(self, problems: Sequence[Problem], kernel: LearnedKernel) -> list[np.ndarray]:
        if not problems:
            return []
        rows, target, centres = self._sample(problems[0], self.budget.probe_rows, self.budget.probe_centres)
        size = -(-max(map(len, target)) // ROW_STEP) * ROW_STEP
        width = problems[0].target.shape[1]
        shared = (
            _pad_rows(list(rows.u), size),
            _pad_rows([w[:, None] for w in rows.weight or []], size)[..., 0],
            _pad_columns(_pad_rows(target, size), _power_of_two(width)),
        )
        out: list[np.ndarray] = []
        for chunk in _chunks([p.keep for p in problems]):
            rest = np.stack(chunk), *centres, self._device_spread, kernel.metric, kernel.ridge
            with _double_precision():
                out += [a[:width] for a in np.asarray(_errors(*shared, *rest))]
        failed = [k for k in range(len(problems)) if not np.isfinite(out[k]).all()]
        for k, error in zip(failed, super().errors([problems[k] for k in failed], kernel), strict=True):
            out[k] = error
        return out[: len(problems)]

    def cross_fit(
        self, problems: Sequence[Problem], kernels: Sequence[LearnedKernel], starts: np.ndarray | None = None
    ) -> list[tuple[Fit, np.ndarray]]:
        episodes = None if starts is None else self._episodes(starts)
        out: list[tuple[Fit, np.ndarray]] = [None] * len(problems)  # type: ignore[list-item]
        for width, places in _by_width(problems):
            chosen = [problems[k] for k in places]
            stacked = (
                np.stack([_pad_columns(self._fold(p.target), width) for p in chosen]),
                np.stack([p.keep for p in chosen]),
                np.stack([p.centres.points for p in chosen]),
                np.stack([p.centres.free for p in chosen]),
            )
            metric, ridge = np.stack([kernels[k].metric for k in places]), np.stack([kernels[k].ridge for k in places])
            with _double_precision():
                result = _fit(self._u, self._weight, *stacked, self._device_spread, metric, ridge, episodes)
                fits, predictions = jax.device_get(result)
            for row, k in enumerate(dict.fromkeys(places)):
                w = problems[k].target.shape[1]
                fit = Fit(fits.root[row], fits.points[row], fits.coefficients[row][..., :w])
                out[k] = fit, self._unfold(predictions[row])[:, :w]
        failed = [k for k, (_, prediction) in enumerate(out) if not np.isfinite(prediction).all()]
        again = [problems[k] for k in failed], [kernels[k] for k in failed]
        for k, fit_and_prediction in zip(failed, super().cross_fit(*again, starts), strict=True):
            out[k] = fit_and_prediction
        return out

    def predict(self, fit: Fit, x: np.ndarray) -> np.ndarray:
        w = fit.coefficients.shape[-1]
        u, padded = self._fold(x), fit._replace(coefficients=_pad_columns(fit.coefficients, _power_of_two(w)))
        with _double_precision():
            prediction = np.asarray(_predict(u, self._weight, padded))
        return self._unfold(prediction)[:, :w]

    def predict_substituted(self, problems: Sequence[Problem], fit: Fit, substitute: np.ndarray) -> list[np.ndarray]:
        w, out = fit.coefficients.shape[-1], []
        fit = fit._replace(coefficients=_pad_columns(fit.coefficients, _power_of_two(w)))
        folded = self._fold(substitute)
        for chunk in _chunks([p.keep for p in problems]):
            with _double_precision():
                predictions = np.asarray(_predict_substituted(self._u, self._weight, folded, fit, np.stack(chunk)))
            out += [self._unfold(a)[:, :w] for a in predictions]
        return out[: len(problems)]


def _pad_rows(parts: list[np.ndarray], rows: int) -> np.ndarray:
    """K times (any rows, w) -> (K, rows, w), padded with 0."""
    out = np.zeros((len(parts), rows, parts[0].shape[1]))
    for k, part in enumerate(parts):
        out[k, : len(part)] = part
    return out


def _pad_columns(a: np.ndarray, width: int) -> np.ndarray:
    """(..., w) -> (..., width), padded with 0."""
    return np.concatenate([a, np.zeros((*a.shape[:-1], width - a.shape[-1]))], axis=-1)


def _power_of_two(width: int) -> int:
    """The smallest power of two that is at least `width`."""
    return 1 << (width - 1).bit_length()


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    """Lists of exactly `BATCH` items, the last one padded with its last item."""
    for start in range(0, len(items), BATCH):
        chunk = items[start : start + BATCH]
        yield chunk + [chunk[-1]] * (BATCH - len(chunk))


def _by_width(problems: Sequence[Problem]) -> Iterator[tuple[int, list[int]]]:
    """(width, indices of `BATCH` problems) with target columns padded to a common power of two."""
    for width in sorted({_power_of_two(p.target.shape[1]) for p in problems}):
        for chunk in _chunks([k for k, p in enumerate(problems) if _power_of_two(p.target.shape[1]) == width]):
            yield width, chunk


def make_engine(x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int) -> Engine:
    """An engine on the GPU where JAX has one, else with NumPy, which is faster than JAX on a CPU."""
    return (Engine if jax.default_backend() == "cpu" else AcceleratedEngine)(x, folds, budget, seed)
