"""The mechanisms of regimes: for each regime and target a regression on all inputs, robust to noise of any kind.

    y_j = b(x)^T c_kj + h_j(x) s_j e,      e ~ Student's t with 4 degrees of freedom

The coefficients c belong to a regime k, and are shrunk to those of one regression for all regimes: mechanisms that
regimes share are learned from all rows. The noise does not: its size s_j and the way h_j in which it follows the inputs
are shared by all regimes, so that another noise level, a burst of outliers or noise that grows with the state makes no
regime of its own. b has the inputs themselves,
bumps along each of them and products of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from because_rl.discovery.regression.margins import period_of
from because_rl.discovery.variables import Variables
from because_rl.factor import wrapped_difference

FREEDOM = 4.0
"""Degrees of freedom of Student's t: outliers weigh little, and normal noise loses little."""
BUMPS = 4
MOST_COLUMNS = 30
"""Input columns up to which each gets bumps and pairs their product; beyond, mechanisms are linear."""
USEFUL = 50.0
"""Rows times the share of a target that a product must explain to be in the basis."""
RIDGE = 1.0, 20.0
"""Penalty on the difference between a regime's regression and one for all regimes: of linear terms, and of others."""
LEAST_SCALE = 0.3
"""Of the noise, relative to what one regression for all rows leaves: a mechanism without noise is no evidence."""
NEGLIGIBLE = 1e-3
"""Probability of a regime below which a row does not count in its regressions."""


@dataclass(frozen=True)
class Rows:
    """n rows in time order, episode after episode, ready for regressions."""

    basis: np.ndarray
    """(n, q): 1, the p inputs, their bumps and products"""
    linear: int
    """1 + p: the first columns of the basis, without bumps and products"""
    spread: np.ndarray
    """(n, 2 p + 1): 1, inputs and their squares, on which the size of the noise depends"""
    y: np.ndarray
    """(n, d) changes of the targets, in units of what one regression for all rows leaves"""
    starts: np.ndarray
    """(episodes,) first row of each episode"""

    def __len__(self) -> int:
        return len(self.y)

    def episodes(self, chosen: np.ndarray) -> tuple[Rows, np.ndarray]:
        """The rows of the episodes with these numbers, and the row numbers."""
        lengths = np.diff(np.append(self.starts, len(self)))
        keep = np.flatnonzero(np.isin(np.repeat(np.arange(len(lengths)), lengths), chosen))
        starts = np.r_[0, np.cumsum(lengths[np.sort(chosen)])[:-1]]
        return replace(self, basis=self.basis[keep], spread=self.spread[keep], y=self.y[keep], starts=starts), keep


@dataclass(frozen=True)
class Mechanisms:
    """The regressions of all regimes."""

    coefficients: np.ndarray
    """(regimes, q or fewer, d): c, for the first columns of the basis"""
    scale: np.ndarray
    """(d,) s"""
    spread: np.ndarray
    """(2 p + 1, d): log h is linear in the columns of `Rows.spread`"""

    def residuals(self, rows: Rows) -> np.ndarray:
        """(regimes, n, d)"""
        basis = rows.basis[:, : self.coefficients.shape[1]]
        return np.stack([rows.y - basis @ c for c in self.coefficients])

    def noise(self, rows: Rows) -> np.ndarray:
        """(n, d): h"""
        return np.exp(np.clip(rows.spread @ self.spread, -2, 2))

    def evidence(self, rows: Rows) -> np.ndarray:
        """(n, regimes) log-density of each row in each regime."""
        size = self.scale * self.noise(rows)
        return np.stack([student(r, size).sum(1) for r in self.residuals(rows)], axis=1)


def student(residual: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Log-density of Student's t with `FREEDOM` degrees of freedom, scaled by `size`.

    >>> from scipy.stats import t
    >>> bool(np.isclose(student(np.array(0.7), np.array(2.0)), t.logpdf(0.7, 4, scale=2)))
    True
    """
    constant = gammaln((FREEDOM + 1) / 2) - gammaln(FREEDOM / 2) - 0.5 * np.log(FREEDOM * np.pi)
    return constant - np.log(size) - (FREEDOM + 1) / 2 * np.log1p((residual / size) ** 2 / FREEDOM)


def refit(rows: Rows, mechanisms: Mechanisms, posterior: np.ndarray, shape: bool = False) -> Mechanisms:
    """One maximisation step: regressions weighted by the probability of the regime, less where a residual is large.

    With `shape` the way in which the noise follows the inputs is fitted, too.
    """
    noise, width = mechanisms.noise(rows), mechanisms.coefficients.shape[1]
    residuals = mechanisms.residuals(rows)
    targets = range(rows.y.shape[1])
    grams = np.empty((len(residuals), len(targets), width, width))
    moments = np.empty((len(residuals), len(targets), width))
    for k, share in enumerate(posterior.T):
        use = np.flatnonzero(share > NEGLIGIBLE)
        basis = rows.basis[use, :width]
        weight = share[use, None] * _robust(residuals[k, use], mechanisms.scale * noise[use]) / noise[use] ** 2
        for j in targets:
            weighted = basis * weight[:, j, None]
            grams[k, j], moments[k, j] = weighted.T @ basis, weighted.T @ rows.y[use, j]
    penalty = np.diag(np.where(np.arange(width) < rows.linear, *RIDGE))
    shared = np.linalg.solve(grams.sum(0) + np.eye(width), moments.sum(0)[..., None])
    coefficients = np.linalg.solve(grams + penalty, moments[..., None] + penalty @ shared)[..., 0].transpose(0, 2, 1)
    after = replace(mechanisms, coefficients=coefficients)
    residuals, spread = after.residuals(rows), mechanisms.spread
    if shape:
        logs = sum(p[:, None] * np.log(r**2 + 1e-2) / 2 for p, r in zip(posterior.T, residuals, strict=True))
        gram = rows.spread.T @ rows.spread + 10 * np.eye(rows.spread.shape[1])
        spread = np.linalg.solve(gram, rows.spread.T @ (logs - logs.mean(0)))
        noise = replace(after, spread=spread).noise(rows)
    squares = sum(
        (p[:, None] * _robust(r, mechanisms.scale * noise) * (r / noise) ** 2).sum(0)
        for p, r in zip(posterior.T, residuals, strict=True)
    )
    return replace(after, spread=spread, scale=np.maximum(np.sqrt(squares / len(rows)), LEAST_SCALE))


def _robust(residual: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The weight of a row in a fit by Student's likelihood: less than 1 for outliers."""
    return (FREEDOM + 1) / (FREEDOM + (residual / size) ** 2)


def widen(mechanisms: Mechanisms, width: int) -> Mechanisms:
    """Linear mechanisms with room for the rest of the basis, whose coefficients are 0."""
    regimes, linear, targets = mechanisms.coefficients.shape
    more = np.zeros((regimes, width - linear, targets))
    return replace(mechanisms, coefficients=np.concatenate([mechanisms.coefficients, more], axis=1))


def one_mechanism(rows: Rows) -> Mechanisms:
    """Linear mechanisms for all rows together, to start from."""
    d = rows.y.shape[1]
    start = Mechanisms(np.zeros((1, rows.linear, d)), np.ones(d), np.zeros((rows.spread.shape[1], d)))
    for _ in range(5):
        start = refit(rows, start, np.ones((len(rows), 1)))
    return start


def make_rows(variables: Variables) -> Rows:
    """The rows of these variables; without targets (d = 0) where no continuous state factor changes."""
    after = {factor.name: y for factor, y in zip(variables.targets, variables.y, strict=True)}
    columns, changes = [], []
    for factor, values in zip(variables.inputs, variables.x, strict=True):
        then = after.get(factor.name)
        period = period_of(factor, values, then)
        turn = values * (2 * np.pi / period) if period else values
        columns.append(np.hstack([np.sin(turn), np.cos(turn)]) if period else values)
        if then is not None and factor.is_continuous:
            changes.append(wrapped_difference(then, values, period) if period else then - values)
    n = len(variables)
    x = np.clip(_standard(np.hstack(columns)), -4, 4)
    y = _standard(np.hstack([np.zeros((n, 0)), *changes]))
    blocks = [np.ones((n, 1)), x]
    if x.shape[1] <= MOST_COLUMNS:
        knots = np.quantile(x, (np.arange(BUMPS) + 0.5) / BUMPS, axis=0)
        blocks += [np.exp(-2 * (x - knot) ** 2) - np.exp(-2 * (x - knot) ** 2).mean(0) for knot in knots]
    spread = np.hstack([np.ones((n, 1)), x, np.minimum(x**2, 9)])
    starts = np.flatnonzero(np.append(True, variables.episode[1:] != variables.episode[:-1]))
    rows = Rows(np.hstack(blocks), 1 + x.shape[1], spread, y, starts)
    if not y.shape[1]:
        return rows
    products = _useful_products(x, rows) if x.shape[1] <= MOST_COLUMNS else np.zeros((n, 0))
    return replace(rows, basis=np.hstack([rows.basis, products]), y=y / one_mechanism(rows).scale)


def _useful_products(x: np.ndarray, rows: Rows) -> np.ndarray:
    """(n, products) products of two inputs that explain some of what the basis leaves of a target, at most 2 p."""
    first, second = np.triu_indices(x.shape[1], 1)
    products = x[:, first] * x[:, second]
    gram = rows.basis.T @ rows.basis + np.eye(rows.basis.shape[1])
    left = [a - rows.basis @ np.linalg.solve(gram, rows.basis.T @ a) for a in (products, rows.y)]
    spread = np.quantile(np.abs(left[1]), 0.5, axis=0)
    left[1] = np.clip(left[1], -5 * spread, 5 * spread)
    sizes = [np.sqrt((a**2).sum(0)) + 1e-300 for a in left]
    share = ((left[0].T @ left[1] / sizes[0][:, None] / sizes[1]) ** 2).max(1)
    chosen = np.argsort(-share, kind="stable")[: 2 * x.shape[1]]
    return _standard(products[:, chosen[len(rows) * share[chosen] > USEFUL]])


def _standard(values: np.ndarray) -> np.ndarray:
    """The columns that vary, each with mean 0 and variance 1."""
    varies = np.ptp(values, axis=0) > 1e-9 * np.abs(values).max(0, initial=0)
    values = values[:, varies]
    return (values - values.mean(0)) / values.std(0)
