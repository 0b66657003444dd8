"""The regressions of `engine` as compiled JAX programs, several problems at a time: for a GPU.

Shapes are padded (folds to a common size, targets to a power of two of columns, batches to `BATCH`), so a
program is compiled once for a size of data, not once for a pair. All of it is in double precision: smooth
kernels are too ill-conditioned for single. A problem that rounding spoils even so (its Cholesky factors become
NaN) is done again by `Engine`, which knows another way.
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
    Law,
    Rows,
    cross_fit,
    held_out_error,
    learn,
    predict,
)

BATCH = 8
ROW_STEP = 256
"""Folds are filled up to a multiple of this many rows, so that a bootstrap rarely compiles anew."""
EPISODE_STEP = 64


class Episodes(NamedTuple):
    """Of each fold: the first row of each episode, the row after its last, and the episode of each row."""

    first: np.ndarray
    last: np.ndarray
    of: np.ndarray


def _over_problems(function: Callable[..., Any], *axes: int | None) -> Callable[..., Any]:
    return jax.jit(jax.vmap(function, in_axes=axes))


def _one_learn(u, weight, target, keep, points, free, spread):
    return learn(Rows(u, weight), target, keep, Centres(points, free), spread)


def _one_error(u, weight, target, keep, points, free, spread, metric, ridge):
    return held_out_error(Rows(u, weight), target, keep, Centres(points, free), spread, metric, ridge)


def _one_fit(u, weight, target, keep, points, free, spread, metric, ridge, episodes):
    def within(k, rows):
        run = jax.numpy.concatenate([jax.numpy.zeros_like(rows[:1]), jax.numpy.cumsum(rows, axis=0)])
        first, last = episodes.first[k], episodes.last[k]
        length = jax.numpy.maximum(last - first, 1).astype(rows.dtype)
        mean = (run[last] - run[first]) / length[:, None]
        return rows - mean[episodes.of[k]] * weight[k][:, None]

    shared = keep, Centres(points, free), spread, metric, ridge
    fit, prediction = cross_fit(Rows(u, weight), target, *shared, None if episodes is None else within)
    return fit, jax.numpy.stack(prediction)


def _one_without(u, weight, plug, fit, keep):
    mixed = u * keep[None, None] + plug * (1 - keep)[None, None]
    return jax.numpy.stack(predict(fit, Rows(mixed, weight), jax.numpy.ones_like(keep)))


_learn = _over_problems(_one_learn, 0, 0, 0, 0, 0, 0, None)
_errors = _over_problems(_one_error, None, None, None, 0, None, None, None, None, None)
_fit = _over_problems(_one_fit, None, None, 0, 0, 0, 0, None, 0, 0, None)
_without = _over_problems(_one_without, None, None, None, None, 0)
_predict = jax.jit(lambda u, weight, fit: jax.numpy.stack(predict(fit, Rows(u, weight), jax.numpy.ones(u.shape[-1]))))


_gpu = threading.Lock()


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """In double precision, and one program at a time: with several threads starting programs, XLA once failed to
    record a CUDA graph, and the GPU would run them one after another anyway."""
    with _gpu, jax.enable_x64(True):
        yield


class AcceleratedEngine(Engine):
    """The same answers as `Engine`, up to rounding."""

    lanes = 4  # while the host compares one target's pairs, the GPU fits another's

    def __init__(self, x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int):
        super().__init__(x, folds, budget, seed)
        self._sizes = [f.stop - f.start for f in folds]
        self._padded = -(-max(self._sizes) // ROW_STEP) * ROW_STEP
        with _double():
            self._u = jax.numpy.asarray(self._fold(x))
            self._weight = jax.numpy.asarray(self._fold(np.ones((len(x), 1)))[..., 0])
            self._device_spread = jax.numpy.asarray(self.spread)

    def _fold(self, a: np.ndarray) -> np.ndarray:
        """(n, w) -> (K, rows, w), filled up with 0."""
        return _filled([a[f] for f in self.folds], self._padded)

    def _unfold(self, a: np.ndarray) -> np.ndarray:
        return np.concatenate([a[k, :size] for k, size in enumerate(self._sizes)])

    def _episodes(self, starts: np.ndarray) -> Episodes:
        begins = self._begins(starts)
        most = -(-max(map(len, begins)) // EPISODE_STEP) * EPISODE_STEP
        first, last = np.zeros((2, len(begins), most), int)
        of = np.zeros((len(begins), self._padded), int)
        for k, (begin, size) in enumerate(zip(begins, self._sizes, strict=True)):
            first[k, : len(begin)], last[k, : len(begin)] = begin, np.r_[begin[1:], size]
            of[k, :size] = np.repeat(np.arange(len(begin)), np.diff(np.r_[begin, size]))
        return Episodes(first, last, of)

    def learn(self, problems: Sequence[Problem]) -> list[Law]:
        laws: list[Law] = [None] * len(problems)  # type: ignore[list-item]
        for width, places in _by_width(problems):
            parts = [self._prepare(problems[k], width) for k in places]
            stacked = list(map(np.stack, zip(*parts, strict=True)))
            with _double():
                found = jax.device_get(_learn(*stacked, self._device_spread))
            for row, k in enumerate(dict.fromkeys(places)):
                laws[k] = Law(*(a[row] for a in found))
        spoilt = [k for k, law in enumerate(laws) if not np.isfinite(law.error)]
        for k, law in zip(spoilt, super().learn([problems[k] for k in spoilt]), strict=True):
            laws[k] = law
        return laws

    def _prepare(self, problem: Problem, width: int) -> tuple[np.ndarray, ...]:
        rows, target, centres = self._sample(problem, self.budget.learn_rows, self.budget.learn_centres)
        size = -(-max(map(len, target)) // ROW_STEP) * ROW_STEP
        u, t = _filled(list(rows.u), size), _wide(_filled(target, size), width)
        weight = _filled([w[:, None] for w in rows.weight or []], size)[..., 0]
        return u, weight, t, problem.keep, *centres

    def errors(self, problems: Sequence[Problem], law: Law) -> list[np.ndarray]:
        if not problems:
            return []
        rows, target, centres = self._sample(problems[0], self.budget.probe_rows, self.budget.probe_centres)
        size = -(-max(map(len, target)) // ROW_STEP) * ROW_STEP
        width = problems[0].target.shape[1]
        shared = (
            _filled(list(rows.u), size),
            _filled([w[:, None] for w in rows.weight or []], size)[..., 0],
            _wide(_filled(target, size), _power(width)),
        )
        out: list[np.ndarray] = []
        for chunk in _chunks([p.keep for p in problems]):
            rest = np.stack(chunk), *centres, self._device_spread, law.metric, law.ridge
            with _double():
                out += [a[:width] for a in np.asarray(_errors(*shared, *rest))]
        spoilt = [k for k in range(len(problems)) if not np.isfinite(out[k]).all()]
        for k, error in zip(spoilt, super().errors([problems[k] for k in spoilt], law), strict=True):
            out[k] = error
        return out[: len(problems)]

    def cross_fit(
        self, problems: Sequence[Problem], laws: Sequence[Law], starts: np.ndarray | None = None
    ) -> list[tuple[Fit, np.ndarray]]:
        episodes = None if starts is None else self._episodes(starts)
        out: list[tuple[Fit, np.ndarray]] = [None] * len(problems)  # type: ignore[list-item]
        for width, places in _by_width(problems):
            chosen = [problems[k] for k in places]
            which = (
                np.stack([_wide(self._fold(p.target), width) for p in chosen]),
                np.stack([p.keep for p in chosen]),
                np.stack([p.centres.points for p in chosen]),
                np.stack([p.centres.free for p in chosen]),
            )
            how = np.stack([laws[k].metric for k in places]), np.stack([laws[k].ridge for k in places])
            with _double():
                found = _fit(self._u, self._weight, *which, self._device_spread, *how, episodes)
                fits, predictions = jax.device_get(found)
            for row, k in enumerate(dict.fromkeys(places)):
                w = problems[k].target.shape[1]
                fit = Fit(fits.root[row], fits.points[row], fits.coefficients[row][..., :w])
                out[k] = fit, self._unfold(predictions[row])[:, :w]
        spoilt = [k for k, (_, guess) in enumerate(out) if not np.isfinite(guess).all()]
        some = [problems[k] for k in spoilt], [laws[k] for k in spoilt]
        for k, answer in zip(spoilt, super().cross_fit(*some, starts), strict=True):
            out[k] = answer
        return out

    def predict(self, fit: Fit, x: np.ndarray) -> np.ndarray:
        w = fit.coefficients.shape[-1]
        u, wide = self._fold(x), fit._replace(coefficients=_wide(fit.coefficients, _power(w)))
        with _double():
            found = np.asarray(_predict(u, self._weight, wide))
        return self._unfold(found)[:, :w]

    def without(self, problems: Sequence[Problem], fit: Fit, plug: np.ndarray) -> list[np.ndarray]:
        w, out = fit.coefficients.shape[-1], []
        fit = fit._replace(coefficients=_wide(fit.coefficients, _power(w)))
        folded = self._fold(plug)
        for chunk in _chunks([p.keep for p in problems]):
            with _double():
                found = np.asarray(_without(self._u, self._weight, folded, fit, np.stack(chunk)))
            out += [self._unfold(a)[:, :w] for a in found]
        return out[: len(problems)]


def _filled(parts: list[np.ndarray], rows: int) -> np.ndarray:
    out = np.zeros((len(parts), rows, parts[0].shape[1]))
    for k, part in enumerate(parts):
        out[k, : len(part)] = part
    return out


def _wide(a: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([a, np.zeros((*a.shape[:-1], width - a.shape[-1]))], axis=-1)


def _power(width: int) -> int:
    return 1 << (width - 1).bit_length()


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    """Batches of exactly BATCH, the last one filled up with its last item."""
    for start in range(0, len(items), BATCH):
        chunk = items[start : start + BATCH]
        yield chunk + [chunk[-1]] * (BATCH - len(chunk))


def _by_width(problems: Sequence[Problem]) -> Iterator[tuple[int, list[int]]]:
    """Batches of problems whose targets have the same power of two of columns."""
    for width in sorted({_power(p.target.shape[1]) for p in problems}):
        for chunk in _chunks([k for k, p in enumerate(problems) if _power(p.target.shape[1]) == width]):
            yield width, chunk


def make_engine(x: np.ndarray, folds: Sequence[slice], budget: Budget, seed: int) -> Engine:
    """On the GPU where JAX sees one, else on the CPU, where NumPy is the faster of the two."""
    return (Engine if jax.default_backend() == "cpu" else AcceleratedEngine)(x, folds, budget, seed)
