"""Transitions prepared for regression: columns standardised, rows in a canonical order, folds of whole episodes.

Margins are robust. An angle enters as its sine and cosine and changes along the shorter way round; a continuous column
that jumps from one end of its range to the other is taken for one (`period_of`), and one that passes several turns
has its sine and cosine beside its values where these show in a target (`turns`). Changes of continuous columns are
clipped far outside of their usual range, so that neither a logged jump nor a heavy tail outweighs all other rows.
(Independence survives any function of a target, so clipping cannot make an edge.)

Everything random downstream (folds, kernel centres) is drawn on the canonical order, so the result does not
depend on the order in which rows or factors are given, nor on the units of continuous columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from because_rl.discovery.regression.turns import ROWS, candidate_periods, periods_of_columns
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factor import PERIODS, Factor, wrapped_difference
from because_rl.rng import stream

WRAPS = 5
"""Jumps from end to end that show that a column wraps."""
FEWEST = 10
"""Episodes of a fold that are kept however many rows they have."""
FAR = 10.0
"""Robust standard deviations beyond which changes are clipped."""


class Target(NamedTuple):
    """One target factor: its values and their change since the last step.

    Given its own last value, a target and its change carry the same information, so all other inputs are tested
    against the change: otherwise the last value would dominate the regression and its metric. Columns that do not
    vary are left out.
    """

    factor: Factor
    own: int | None
    """the number of the input that is its own last value"""
    level: np.ndarray
    """(n, columns) the next values"""
    change: np.ndarray | None
    """(n, columns) next value - last value; None without an input of its own"""
    persist: np.ndarray | None = None
    """(columns of the own input, columns of level): level = last value @ persist + change @ gain; None for an angle,
    whose level is its sine and cosine"""
    gain: np.ndarray | None = None
    """(columns of change, columns of level)"""
    entropy: float | None = None
    """of a discrete factor given its own last value, in nats per row"""

    @property
    def moves(self) -> np.ndarray:
        """(n, columns) what all inputs but its own are tested against."""
        return self.level if self.change is None else self.change


@dataclass(frozen=True)
class Prepared:
    """Rows sorted by fold; inputs and targets sorted by name."""

    inputs: tuple[Factor, ...]
    """those that vary"""
    columns: tuple[np.ndarray, ...]
    """of each input, the numbers of its varying columns in x"""
    x: np.ndarray
    """(n, p) the inputs, standardised"""
    targets: tuple[Target, ...]
    input_place: np.ndarray
    """of each input, its number in `Variables.inputs`"""
    target_place: np.ndarray
    """of each target, its number in `Variables.targets`"""
    starts: np.ndarray
    """the first row of each episode"""
    folds: tuple[slice, ...]
    """the rows of each fold"""


def prepare(variables: Variables, folds: int, seed: int, max_rows: int | None = None) -> Prepared:
    """Sort, standardise and split the rows into `folds` folds of whole episodes, shuffled by `seed`.

    Beyond `max_rows` rows, whole episodes are drawn (see `draw_episodes`); None: all rows are used.
    """
    input_place, inputs = _by_name(variables.inputs)
    target_place, targets = _by_name(variables.targets)
    raw_x = [np.asarray(variables.x[k], np.float64) for k in input_place]
    raw_y = [np.asarray(variables.y[k], np.float64) for k in target_place]
    for factor, values in zip((*inputs, *targets), (*raw_x, *raw_y), strict=True):
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
            raise BecauseError(
                f"Factor {factor.name!r} has a value that is not finite, in row {row}.",
                need="finite numbers.",
                fix="drop or repair these rows.",
            )
    order, starts, slices = _canonical(np.hstack(raw_x + raw_y), variables.episode, folds, seed)
    if max_rows is not None and len(order) > max_rows:
        taken, starts, slices = draw_episodes(starts, slices, max_rows)
        order = order[taken]
    raw_x, raw_y = [a[order] for a in raw_x], [a[order] for a in raw_y]

    varying = [k for k, a in enumerate(raw_x) if _varies(a).any()]
    inputs, input_place = tuple(inputs[k] for k in varying), input_place[varying]
    raw_x = [raw_x[k] for k in varying]
    after = {factor.name: y for factor, y in zip(targets, raw_y, strict=True)}
    periods = [period_of(f, a, after.get(f.name)) for f, a in zip(inputs, raw_x, strict=True)]
    blocks = [_scaled(columns_of(a, period)) for a, period in zip(raw_x, periods, strict=True)]
    out = []
    for factor, y in zip(targets, raw_y, strict=True):
        own = next((k for k, f in enumerate(inputs) if f.name == factor.name and f.width == factor.width), None)
        if own is None:
            out.append(Target(factor, None, _scaled(y), None, entropy=_entropy(factor, y)))
            continue
        period = periods[own]
        if period is not None:
            difference = wrapped_difference(y, raw_x[own], period)
            out.append(Target(factor, own, _scaled(columns_of(y, period)), _scaled(_clipped(difference))))
            continue
        difference = y - raw_x[own]
        difference[:, np.ptp(difference, axis=0) <= 1e-9 * np.ptp(y, axis=0)] = 0  # rounding
        if factor.is_continuous:
            difference = _clipped(difference)
            y = raw_x[own] + difference
        varies, moves, changes = (_varies(a) for a in (y, raw_x[own], difference))
        size = 1 / np.where(varies, y.std(0), 1)
        persist = np.diag(raw_x[own].std(0) * size)[np.ix_(moves, varies)]
        gain = np.diag(difference.std(0) * size)[np.ix_(changes, varies)]
        entropy = _entropy(factor, y, raw_x[own])
        out.append(Target(factor, own, _scaled(y), _scaled(difference), persist, gain, entropy))
    raw = [
        a if f.type == "continuous" and t is None else a[:, :0] for f, a, t in zip(inputs, raw_x, periods, strict=True)
    ]
    for k, turning in _turns(raw, blocks, out, starts, slices).items():
        blocks[k] = np.hstack([blocks[k], turning])
        for j, target in enumerate(out):
            if target.own == k and target.persist is not None:
                rest = np.zeros((turning.shape[1], target.level.shape[1]))
                out[j] = target._replace(persist=np.vstack([target.persist, rest]))
    ends = np.cumsum([0] + [b.shape[1] for b in blocks])
    columns = tuple(np.arange(a, b) for a, b in pairwise(ends))
    return Prepared(
        inputs,
        columns,
        np.hstack([np.zeros((len(order), 0)), *blocks]),
        tuple(out),
        input_place,
        target_place,
        starts,
        slices,
    )


def _by_name(factors: tuple[Factor, ...]) -> tuple[np.ndarray, tuple[Factor, ...]]:
    """The order of the factors by name, and the factors in that order."""
    place = np.array(sorted(range(len(factors)), key=lambda k: factors[k].name))
    return place, tuple(factors[k] for k in place)


def period_of(factor: Factor, values: np.ndarray, after: np.ndarray | None) -> float | None:
    """The period of an angle, or of a continuous column that wraps; None for others.

    A column wraps if it jumps by more than three quarters of its range, often enough to be no accident, and otherwise
    moves by less than a quarter. Its period is its range, or a full turn if that is as near as the rows can show.

    >>> angle = np.arange(0, 60, 0.1)[:, None] % (2 * np.pi)
    >>> period_of(Factor("a", 0, 1, "continuous"), angle[:-1], angle[1:])
    6.283185307179586
    >>> period_of(Factor("a", 0, 1, "continuous"), angle[:50], angle[1:51])
    """
    if factor.type == "angle" or not factor.is_continuous:
        return factor.period
    if after is None or values.shape[1] != 1 or after.shape[1] != 1:
        return None
    low, high = min(values.min(), after.min()), max(values.max(), after.max())
    step = np.abs(after - values) / max(high - low, 1e-300)
    if (step > 0.75).sum() < WRAPS or ((step > 0.25) & (step <= 0.75)).any():
        return None
    width = float(high - low)
    return next((turn for turn in PERIODS.values() if 0.95 * turn <= width <= turn * (1 + 1e-6)), width)


def columns_of(values: np.ndarray, period: float | None) -> np.ndarray:
    """The columns that stand for a factor: sine and cosine where it has a period, else its values."""
    if period is None:
        return values
    turn = values * (2 * np.pi / period)
    return np.hstack([np.sin(turn), np.cos(turn)])


def _turns(
    raw: list[np.ndarray],
    blocks: list[np.ndarray],
    targets: list[Target],
    starts: np.ndarray,
    folds: tuple[slice, ...],
) -> dict[int, np.ndarray]:
    """For each input that acts on a target through turns of its columns, the sines and cosines of these.

    Args:
        raw: of each input, the columns that may be unwrapped angles.
        blocks: of each input, its standardised columns.
        targets: whose moves are to be explained.
        starts: the first rows of the episodes.
        folds: of whole episodes.
    """
    places = [(k, c) for k, values in enumerate(raw) for c in range(values.shape[1]) if candidate_periods(values[:, c])]
    moves = [target.moves for target in targets if target.moves.shape[1]]
    if not places or not moves:
        return {}
    rows: np.ndarray | slice = slice(None)
    if folds[-1].stop > ROWS:
        rows, starts, folds = draw_episodes(starts, folds, ROWS)
    x = _clipped(np.hstack(blocks)[rows])
    periods = periods_of_columns([raw[k][rows, c] for k, c in places], x, [y[rows] for y in moves], starts, folds)
    out: dict[int, np.ndarray] = {}
    for (k, c), period in zip(places, periods, strict=True):
        if period is not None:
            turning = _scaled(columns_of(raw[k][:, [c]], period))
            out[k] = np.hstack([out[k], turning]) if k in out else turning
    return out


def _clipped(change: np.ndarray) -> np.ndarray:
    """Columns clipped `FAR` robust standard deviations from their median; those that mostly rest are left alone.

    >>> _clipped(np.array([[0.0], [1.0], [2.0], [900.0]])).max() < 20
    np.True_
    """
    median = np.median(change, axis=0)
    spread = 1.4826 * np.median(np.abs(change - median), axis=0)
    reach = np.where(spread > 1e-6 * np.ptp(change, axis=0), FAR * spread, np.inf)
    return np.clip(change, median - reach, median + reach)


def _entropy(factor: Factor, after: np.ndarray, *before: np.ndarray) -> float | None:
    """Nats per row of a discrete factor's values, given those before; None for a continuous one."""
    if factor.is_continuous:
        return None

    def entropy(*values: np.ndarray) -> float:
        share = np.unique(np.hstack(values), axis=0, return_counts=True)[1] / len(after)
        return -float((share * np.log(share)).sum())

    return entropy(after, *before) - (entropy(*before) if before else 0.0)


def _varies(values: np.ndarray) -> np.ndarray:
    """(columns,) bool: whether a column varies by more than rounding."""
    return np.ptp(values, axis=0) > 1e-12 * np.abs(values).max(0)


def _scaled(values: np.ndarray) -> np.ndarray:
    """The columns that vary, each centred and scaled to variance 1."""
    varies = _varies(values)
    values = values[:, varies] - values[:, varies].mean(0)
    values = values / np.abs(values).max(0, initial=1e-300)  # against over- and underflow
    return values / values.std(0)


def _canonical(
    columns: np.ndarray, episode: np.ndarray, folds: int, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[slice, ...]]:
    """The order of rows (by fold, then episode, then content), the first row of each episode, and the folds.

    Content is compared by ranks folded at the median, so that neither units nor signs of the columns matter.
    """
    n = len(episode)
    folded = np.abs(2 * rankdata(columns, axis=0) - (n + 1))
    by_content = np.lexsort(folded.T[::-1])
    _, first, label = np.unique(episode[by_content], return_index=True, return_inverse=True)
    label = np.argsort(np.argsort(first))[label]  # episodes numbered by their first row
    count = np.bincount(label)
    # Whole episodes in random order, cut where the number of rows is nearest to equal shares.
    shuffled = stream(seed, "discovery", "folds").permutation(len(count))
    rank = np.argsort(shuffled)
    starts = np.r_[0, np.cumsum(count[shuffled])]
    cuts = starts[[int(np.argmin(np.abs(starts - n * k / folds))) for k in range(folds + 1)]]
    order = by_content[np.argsort(rank[label], kind="stable")]
    return order, starts[:-1], tuple(slice(int(a), int(b)) for a, b in pairwise(cuts))


def draw_episodes(
    starts: np.ndarray, folds: tuple[slice, ...], max_rows: int
) -> tuple[np.ndarray, np.ndarray, tuple[slice, ...]]:
    """At most about `max_rows` rows of whole episodes, the same number from each fold.

    Each fold keeps its first episodes, which are in random order. At least `FEWEST` episodes of a fold are kept, since
    episodes are the units of replication; where these have more rows, each keeps the same share of its rows.

    Returns:
        The numbers of the rows taken, in their order; among them, the first row of each episode, and the folds.

    >>> rows, starts, folds = draw_episodes(np.arange(0, 120, 2), (slice(0, 60), slice(60, 120)), 48)
    >>> len(rows), starts.tolist()[:3], folds
    (48, [0, 2, 4], (slice(0, 24, None), slice(24, 48, None)))
    """
    stops, share = np.r_[starts[1:], folds[-1].stop], max_rows // len(folds)
    taken: list[np.ndarray] = []
    counts: list[int] = []
    for fold in folds:
        own = np.flatnonzero((starts >= fold.start) & (starts < fold.stop))
        ends = stops[own] - fold.start
        own = own[: max(FEWEST, int(np.searchsorted(ends, share, side="right")))]
        step = max(1, -(-int(ends[: len(own)][-1]) // max(share, 1))) if len(own) <= FEWEST else 1
        taken += [np.arange(starts[k], stops[k], step) for k in own]
        counts.append(len(own))
    lengths = np.array([len(rows) for rows in taken])
    first = np.r_[0, np.cumsum(lengths)]
    cuts = first[np.r_[0, np.cumsum(counts)]]
    return np.concatenate(taken), first[:-1], tuple(slice(int(a), int(b)) for a, b in pairwise(cuts))
