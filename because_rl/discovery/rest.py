"""Does the rest of a large log agree with the mask that was found from a sample of it?

The sample gives each target a regression m(x) on its kept inputs. In every chunk of the rest, r_y is what m leaves of
the target, and r_x what the other inputs leave of an input, linearly in that chunk. Where input and target are
independent given the other inputs,

    E[h r_y] = 0    for h = r_x,  h = r_x^2 and h = r_x s,

with s the target's own last value: an effect that is linear, even, or changes its sign with the target shows in one of
them. The sums of h r_y over episodes give Student's t, as in `regression.covariance`. The effect is the share of r_y's
variance that h explains, less what it explains in the sample, where m has been judged: the error of a regression is in
both. An edge that was left out comes back where p is below the level (Bonferroni over all that was tested) and the
effect is one that counts, in the whole rest or in any chunk of it: an input that moves in few episodes, or a system
that changes in the course of the log, shows there and not on average.

Where something hidden and constant in episodes shifts a target, its residuals are taken as deviations from the means of
episodes. Inputs that never change in an episode are left out as in the sample, unless their role is 'context'.

Not seen are interactions with third variables that average out over the rest, and inputs that neither the sample nor
the rest vary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.mask import CausalMask
from because_rl.discovery.mbar import spread_episodes
from because_rl.discovery.regression.covariance import FOLDS
from because_rl.discovery.regression.engine import Budget, Engine
from because_rl.discovery.regression.hidden_cause import Variation, has_hidden_cause
from because_rl.discovery.regression.kernel_ridge import Fit, kernel
from because_rl.discovery.regression.margins import FAR, columns_of, period_of
from because_rl.discovery.regression.threads import one_blas_thread, thread_map
from because_rl.errors import BecauseError
from because_rl.factor import Factor, wrapped_difference
from because_rl.transitions import Transitions

FIT_ROWS = 20_000
"""Rows of the sample that the regressions are fitted to."""
BUDGET = Budget(centres=150, learn_rows=4000, learn_centres=150)
"""Of each: what they miss is measured in the sample and taken off, so that a smaller one than discovery's will do."""
LEVEL, LEAST_EFFECT = 1e-4, ResidualTest.least_effect
LEAST_EPISODES = 25
"""Of a chunk, for a test."""
FORMS = ("linear", "even", "with the target's own value")
"""Of h."""
BLOCK = 20_000
"""Rows that are predicted at a time."""
RIDGE = 1e-6
"""Added to the inputs' variances: collinear inputs leave nothing of one another."""


class Block(NamedTuple):
    """A factor's columns, standardised as in the sample."""

    factor: Factor
    period: float | None
    mean: np.ndarray
    scale: np.ndarray
    varies: np.ndarray
    """(columns,) bool: in the sample"""

    def values(self, raw: np.ndarray) -> np.ndarray:
        """(n, columns) of the factor's (n, width) values."""
        return (columns_of(raw, self.period) - self.mean) / self.scale


class Target(NamedTuple):
    """The change of a factor since the last step, standardised and clipped as in the sample."""

    own: Block
    low: np.ndarray
    high: np.ndarray
    scale: np.ndarray

    def change(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """(n, width) of its (n, width) values at t and t+1."""
        period = self.own.period
        change = after - before if period is None else wrapped_difference(after, before, period)
        return np.clip(change, self.low, self.high) / self.scale


@dataclass
class Sums:
    """Over episodes and rows, for each column of the inputs (P) and of the targets (Q)."""

    episodes: int
    rows: int
    product: np.ndarray
    """(forms, P, Q) of h r_y"""
    square: np.ndarray
    """the same, of the squares of the episodes' sums of h r_y"""
    power: np.ndarray
    """the same, of h^2"""
    error: np.ndarray
    """(Q,) of r_y^2"""
    change: np.ndarray
    """(Q,) of the squared change of the target itself"""

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def p(self) -> np.ndarray:
        """(forms, P, Q) p-values of no dependence."""
        mean = self.product / self.episodes
        spread = np.sqrt(np.maximum(self.square / self.episodes - mean**2, 0) / max(self.episodes - 1, 1))
        t = np.divide(np.abs(mean), spread, out=np.zeros_like(mean), where=spread > 0)
        return 2 * stats.t.sf(t, max(self.episodes - 1, 1))

    def share(self) -> np.ndarray:
        """(forms, P, Q) the share of r_y's square that h explains."""
        both = self.power * self.error
        return np.divide(self.product**2, both, out=np.zeros_like(both), where=both > 0)

    def unexplained(self) -> np.ndarray:
        """(Q,) share of the change that the kept inputs leave."""
        return np.divide(self.error, self.change, out=np.zeros_like(self.error), where=self.change > 0)


class RestCheck:
    """Regressions of the sample, and the sums of the chunks that they are applied to."""

    def __init__(self, mask: CausalMask, data: Transitions, seed: int = 0):
        rows = data.rows(spread_episodes(data.episode, FIT_ROWS)) if len(data) > FIT_ROWS else data
        self.mask, self.inputs = mask, (*data.factors.state, *data.factors.action)
        raw, after = self._raw(rows)
        self.blocks = [_block(f, v, after.get(f.name)) for f, v in zip(self.inputs, raw, strict=True)]
        ends = np.cumsum([0, *(len(block.mean) for block in self.blocks)])
        self.columns = [slice(a, b) for a, b in pairwise(ends)]
        self.targets = [_target(block, v, after[block.factor.name]) for block, v in self._state(raw)]
        self.widths = [len(target.scale) for target in self.targets]
        """columns of each target"""
        x, y = self._x(raw), self._y(raw, after)
        starts = np.flatnonzero(np.diff(rows.episode, prepend=rows.episode[0] - 1))
        self.echoes = np.array([f.role != "context" for f in self.inputs]) & self._constant(x, starts)
        cuts = starts[np.linspace(0, len(starts), FOLDS + 1).astype(int)[:-1]]
        folds = [slice(int(a), int(b)) for a, b in pairwise([*cuts, len(x)])]
        engine = Engine(x, folds, BUDGET, seed)
        kept = mask.kept | (mask.weight > 0)
        keeps = [self._keep(kept[:, j]) for j in range(len(self.targets))]
        names = [f"rest {target.own.factor.name}" for target in self.targets]
        problems = thread_map(engine.problem, names, y, keeps)
        fitted = engine.cross_fit(problems, engine.learn(problems))
        self.fits = [(fit, keep) for (fit, _), keep in zip(fitted, keeps, strict=True)]
        residuals = [target - prediction for target, (_, prediction) in zip(y, fitted, strict=True)]
        episodic = len(starts) * 2 <= len(x)
        self.within = [episodic and has_hidden_cause(r, r, starts) for r in residuals]
        self.of_sample = self._sums(x, np.hstack(y), np.hstack(residuals), starts)

    def _raw(self, data: Transitions) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The values of each input, and after the step those of each state factor."""
        state, action = data.factors.state, data.factors.action
        raw = [np.asarray(data.state[:, f.slice], float) for f in state]
        raw += [np.asarray(data.action[:, f.slice], float) for f in action]
        return raw, {f.name: np.asarray(data.next_state[:, f.slice], float) for f in state}

    def _state(self, raw: list[np.ndarray]) -> list[tuple[Block, np.ndarray]]:
        return list(zip(self.blocks, raw, strict=True))[: len(self.mask.targets)]

    def _x(self, raw: list[np.ndarray]) -> np.ndarray:
        return np.hstack([block.values(values) for block, values in zip(self.blocks, raw, strict=True)])

    def _y(self, raw: list[np.ndarray], after: dict[str, np.ndarray]) -> list[np.ndarray]:
        pairs = zip(self.targets, raw, strict=False)
        return [target.change(values, after[target.own.factor.name]) for target, values in pairs]

    def _keep(self, inputs: np.ndarray) -> np.ndarray:
        """(p,) 1 for the columns of these inputs."""
        wanted = np.concatenate([np.full(len(b.mean), float(k)) for b, k in zip(self.blocks, inputs, strict=True)])
        return wanted * np.concatenate([block.varies for block in self.blocks])

    def _constant(self, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """(inputs,) bool: those that never change in an episode."""
        if len(starts) == len(x):
            return np.zeros(len(self.inputs), bool)
        same = np.maximum.reduceat(x, starts) == np.minimum.reduceat(x, starts)
        return np.array([bool(same[:, columns].all()) for columns in self.columns])

    def sums(self, data: Transitions) -> Sums:
        """Those of the rows of other episodes."""
        raw, after = self._raw(data)
        x, y = self._x(raw), self._y(raw, after)
        residuals = thread_map(lambda target, fit: target - _predict(fit, x), y, self.fits)
        starts = np.flatnonzero(np.diff(data.episode, prepend=data.episode[0] - 1))
        return self._sums(x, np.hstack(y), np.hstack(residuals), starts)

    def by_factor(self, best: np.ndarray) -> np.ndarray:
        """(..., inputs, targets) the largest of (..., P, Q)."""
        first = [columns.start for columns in self.columns], np.cumsum([0, *self.widths[:-1]])
        return np.maximum.reduceat(np.maximum.reduceat(best, first[0], axis=-2), first[1], axis=-1)

    def _sums(self, x: np.ndarray, y: np.ndarray, residuals: np.ndarray, starts: np.ndarray) -> Sums:
        within = np.repeat(self.within, self.widths)
        centre = Variation(starts).centre
        r = residuals - residuals.mean(0)
        r[:, within] = centre(r[:, within])
        change = y - y.mean(0)
        change[:, within] = centre(change[:, within])
        left = self._residuals_of_inputs(x - x.mean(0))
        even = left**2 - (left**2).mean(0)
        own = np.stack([x[:, self.columns[j]].mean(1) for j in range(len(self.targets))], 1).repeat(self.widths, 1)
        product, square, power = np.zeros((3, len(FORMS), x.shape[1], r.shape[1]))
        for k, (h, weighted) in enumerate(((left, r), (even, r), (left, r * own))):
            for a, b in pairwise([*starts.tolist(), len(x)]):
                of_episode = h[a:b].T @ weighted[a:b]
                product[k] += of_episode
                square[k] += of_episode**2
        for k, h in enumerate((left, even)):
            power[k] = np.where(within, (centre(h) ** 2).sum(0)[:, None], (h**2).sum(0)[:, None])
        power[2] = (left**2).T @ own**2
        return Sums(len(starts), len(x), product, square, power, (r**2).sum(0), (change**2).sum(0))

    def _residuals_of_inputs(self, x: np.ndarray) -> np.ndarray:
        """(n, p) what the other inputs leave of each, linearly, from the inverse of the covariance."""
        spread = np.maximum((x**2).mean(0), 0)
        inverse = np.linalg.inv(x.T @ x / len(x) + RIDGE * np.diag(spread + RIDGE))
        out = np.empty_like(x)
        for columns in self.columns:
            out[:, columns] = x @ (inverse[:, columns] @ np.linalg.inv(inverse[columns, columns]))
        return out


def _block(factor: Factor, values: np.ndarray, after: np.ndarray | None) -> Block:
    period = period_of(factor, values, after)
    columns = columns_of(values, period)
    scale = columns.std(0)
    varies = scale > 1e-12 * np.abs(columns).max(0, initial=1.0)
    return Block(factor, period, columns.mean(0), np.where(varies, scale, 1.0), varies)


def _target(own: Block, before: np.ndarray, after: np.ndarray) -> Target:
    change = after - before if own.period is None else wrapped_difference(after, before, own.period)
    reach = np.full(change.shape[1], np.inf)
    median = np.median(change, axis=0)
    if own.factor.is_continuous:
        spread = 1.4826 * np.median(np.abs(change - median), axis=0)
        reach = np.where(spread > 1e-6 * np.ptp(change, axis=0), FAR * spread, np.inf)
    change = np.clip(change, median - reach, median + reach)
    scale = change.std(0)
    return Target(own, median - reach, median + reach, np.where(scale > 1e-12, scale, 1.0))


def _predict(fitted: tuple[Fit, np.ndarray], x: np.ndarray) -> np.ndarray:
    """(n, w) the mean of the fits of all folds at other rows."""
    (root, points, coefficients), keep = fitted
    c = coefficients.mean(0)
    constant, linear, centres = c[0], keep[:, None] * c[1 : 1 + len(keep)], points @ root
    blocks = (x[a : a + BLOCK] for a in range(0, len(x), BLOCK))
    return np.concatenate([constant + u @ linear + kernel(centres, u @ root).T @ c[1 + len(keep) :] for u in blocks])


def check_rest(
    mask: CausalMask,
    data: Transitions,
    progress: Callable[[int, int], None] = lambda done, total: None,
    seed: int = 0,
) -> CausalMask:
    """The mask of a sample, with the edges that the rest of the log reopens.

    Args:
        mask: discovered from `data`.
        data: a sample, with its `rest`.
        progress: called with (chunks finished, chunks in total).
        seed: of the choice of the regressions' centres.

    Returns:
        The mask, in which reopened edges are undetermined and kept. ``settings["rest"]`` says how many rows and chunks
        were read, which edges came back and where, which undetermined edges the rest supports, and how well the kept
        inputs predict each target in the sample, in the rest, and in the chunk where they do worst.
    """
    if data.rest is None:
        raise BecauseError(
            "These transitions are no sample.", need="a log of more rows than are read.", fix="lower --sample-rows."
        )
    total = len(data.rest)
    progress(0, total)
    with one_blas_thread():
        check = RestCheck(mask, data, seed)
        chunks, places = [], []
        for done, chunk in enumerate(data.rest, 1):
            chunks.append(check.sums(chunk))
            places.append(chunk.metadata.get("rows", [0, 0]))
            progress(done, total)
    return _with_reopened(mask, check, chunks, places)


def _with_reopened(mask: CausalMask, check: RestCheck, chunks: list[Sums], places: list[list[int]]) -> CausalMask:
    whole, names = sum(chunks[1:], chunks[0]), (mask.inputs, mask.targets)
    large = [n for n, sums in enumerate(chunks) if sums.episodes >= LEAST_EPISODES]
    tested, where = [whole, *(chunks[n] for n in large)], [[places[0][0], places[-1][1]], *(places[n] for n in large)]
    base, level = check.of_sample.share(), LEVEL / (len(tested) * whole.product.size)
    shares = np.stack([sums.share() - base for sums in tested])  # (tests, forms, P, Q)
    counts = (np.stack([sums.p() for sums in tested]) < level) & (shares >= LEAST_EFFECT)
    effect = check.by_factor(np.where(counts, shares, 0))  # (tests, forms, inputs, targets)
    largest = effect.max((0, 1))
    back = (largest > 0) & (mask.status != "forbidden") & ~check.echoes[:, None] & ~mask.kept
    supported = (effect[0].max(0) > 0) & (mask.status == "undetermined") & mask.kept
    status, weight, why = mask.status.copy(), np.where(back, 1.0, mask.weight), dict(mask.why)
    status[back] = "undetermined"
    reopened = []
    for i, j in np.argwhere(back):
        test, form = np.unravel_index(int(effect[:, :, i, j].argmax()), effect.shape[:2])
        edge = {"from": names[0][i], "to": names[1][j], "effect": float(largest[i, j]), "form": FORMS[form]}
        reopened.append(edge | {"rows": where[test]})
        why[names[0][i], names[1][j]] = (
            f"excluded by the sample, but in rows {where[test][0]:,} to {where[test][1]:,} it has an effect of"
            f" {largest[i, j]:.2g} ({FORMS[form]})"
        )
    first = np.cumsum([0, *check.widths[:-1]])
    left = np.stack([np.maximum.reduceat(s.unexplained(), first) for s in (check.of_sample, whole, *chunks)])
    worst = left[2:].argmax(0)
    unexplained = {
        name: {"sample": float(left[0, j]), "rest": float(left[1, j])}
        | {"worst": float(left[2 + worst[j], j]), "worst_rows": places[worst[j]]}
        for j, name in enumerate(mask.targets)
    }
    rest: dict[str, Any] = {"chunks": len(chunks), "episodes": whole.episodes, "rows": whole.rows}
    rest |= {"level": level, "least_effect": LEAST_EFFECT, "reopened": reopened, "unexplained": unexplained}
    rest["supported"] = [[names[0][i], names[1][j]] for i, j in np.argwhere(supported)]
    settings = mask.settings | {"rest": rest}
    return replace(mask, status=status, kept=mask.kept | back, weight=weight, why=why, settings=settings)
