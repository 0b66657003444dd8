"""Distributions on which independence tests are studied: independent rows, and rows in episodes.

A sample has x, y and z, and with episodes the episode of each row. The question is always whether x is a cause of y
given z; in a null case it is not. Where rows come in episodes, G x T stands for G episodes of T rows each, and
AR(.9) for the stationary process e_t = .9 e_{t-1} + sqrt(1 - .81) w_t within an episode, with w_t standard normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Sample = tuple[np.ndarray, ...]
"""x (n,) or (n, columns), y (n,) or (n, columns), z (n, d), and in cases with episodes the episode (n,)"""
Draw = Callable[[np.random.Generator, int], Sample]

SHAPES = ((20, 50), (100, 10), (400, 5))
"""(episodes, rows of each) of the cases with episodes."""
SHARES = (10, 25, 50)
"""Percent of the variance of y given z that a hidden cause explains."""
TIED = 0.3
"""Share of the variance of x given z that the hidden cause explains where x is tied to it."""
MEMORY = 0.9
"""Coefficient of the autoregressive processes."""


@dataclass(frozen=True)
class Case:
    """A distribution to sample from."""

    draw: Draw
    """(rng, n) -> x, y, z or x, y, z, episode"""
    n: int
    null: bool
    """whether x is no cause of y: independent of it given z, and given the hidden cause if there is one"""
    discrete: bool = False
    """whether all columns are categories (for tests that count), not numbers"""
    own: bool = False
    """whether the first column of z is the last value of y, as for a state factor"""


def linear(d: int) -> Draw:
    """x and y are linear in d conditioning variables, with Gaussian noise of variance 1."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z = rng.standard_normal((n, d))
        a, b = rng.standard_normal((2, d)) / math.sqrt(max(d, 1))
        return z @ a + rng.standard_normal(n), z @ b + rng.standard_normal(n), z

    return draw


def nonlinear(effect: Callable[[np.ndarray, np.ndarray], Any] = lambda x, z: 0.0) -> Callable[..., Sample]:
    """x = tanh(z1 + z2 + z3) + noise / 2, y = sin(z2 + z3 + z4) + noise / 2 + effect(x, z); 18 variables."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z = rng.standard_normal((n, 18))
        x = np.tanh(z[:, :3].sum(1)) + 0.5 * rng.standard_normal(n)
        y = np.sin(z[:, 1:4].sum(1)) + 0.5 * rng.standard_normal(n)
        return x, y + effect(x, z), z

    return draw


def heteroscedastic(rng: np.random.Generator, n: int) -> Sample:
    """The nonlinear null, but each noise grows with a variable that drives the other's mean."""
    z = rng.standard_normal((n, 18))
    x = np.tanh(z[:, :3].sum(1)) + 0.5 * (0.3 + np.abs(z[:, 1])) * rng.standard_normal(n)
    y = np.sin(z[:, 1:4].sum(1)) + 0.5 * (0.3 + np.abs(z[:, 0])) * rng.standard_normal(n)
    return x, y, z


def binary(rng: np.random.Generator, n: int) -> Sample:
    """The nonlinear null with x a coin whose odds depend on z1 + z2 + z3."""
    z = rng.standard_normal((n, 18))
    x = (rng.random(n) < 1 / (1 + np.exp(-z[:, :3].sum(1)))).astype(float)
    return x, np.sin(z[:, 1:4].sum(1)) + 0.5 * rng.standard_normal(n), z


def heavy(rng: np.random.Generator, n: int) -> Sample:
    """x and y linear in five variables; all noises Student with 2 degrees of freedom (no variance)."""
    z = rng.standard_t(2, (n, 5))
    a, b = rng.standard_normal((2, 5))
    return z @ a + rng.standard_t(2, n), z @ b + rng.standard_t(2, n), z


def categorical(rng: np.random.Generator, n: int) -> Sample:
    """As in Unlock: where an agent goes depends on its cell and its move, x on its cell alone; strata are uneven."""
    cell, move = np.minimum(rng.geometric(0.12, n), 24) - 1, rng.integers(0, 4, n)
    slip = rng.random(n) < 0.15
    y = np.where(slip, cell, (cell + np.array([1, -1, 6, -6])[move]) % 24)
    x = (cell + rng.integers(0, 3, n)) % 6
    return np.eye(6)[x], np.eye(24)[y], np.hstack([np.eye(24)[cell], np.eye(4)[move]])


def binary_target(rng: np.random.Generator, n: int) -> Sample:
    """y is a coin with log odds 1.5 (z2 + z3 + z4) / sqrt(3), x = tanh(z1 + z2 + z3) + noise / 2; 5 variables."""
    z = rng.standard_normal((n, 5))
    x = np.tanh(z[:, :3].sum(1)) + 0.5 * rng.standard_normal(n)
    odds = 1.5 * z[:, 1:4].sum(1) / math.sqrt(3)
    return x, (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(float), z


def episodes(n: int, length: int) -> np.ndarray:
    """(n,) the episode of each row, `length` rows each."""
    return np.arange(n) // length


def autoregressive(rng: np.random.Generator, n: int, length: int, d: int = 1, memory: float = MEMORY) -> np.ndarray:
    """(n, d) processes of variance 1 that start anew, from their stationary distribution, in each episode."""
    noise = rng.standard_normal((n // length, length, d))
    noise[:, 1:] *= math.sqrt(1 - memory**2)
    for t in range(1, length):
        noise[:, t] += memory * noise[:, t - 1]
    return noise.reshape(n, d)


def persistent_linear(length: int, white: bool = False) -> Draw:
    """x = z a + e, y = z b + e' with all of z (5), e and e' AR(.9); `white`: e' is white noise."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z, (e, f) = autoregressive(rng, n, length, 5), _noises(rng, n, length, white)
        a, b = rng.standard_normal((2, 5)) / math.sqrt(5)
        return z @ a + e, z @ b + f, z, episodes(n, length)

    return draw


def persistent_nonlinear(length: int, white: bool = False) -> Draw:
    """x = tanh(z1 + z2 + z3) + e / 2, y = sin(z2 + z3 + z4) + e' / 2, with processes as in `persistent_linear`."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z, (e, f) = autoregressive(rng, n, length, 5), _noises(rng, n, length, white)
        return np.tanh(z[:, :3].sum(1)) + e / 2, np.sin(z[:, 1:4].sum(1)) + f / 2, z, episodes(n, length)

    return draw


def _noises(rng: np.random.Generator, n: int, length: int, white: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the noise of x, AR(.9), and that of y, AR(.9) or white; both of variance 1."""
    e, f = autoregressive(rng, n, length, 2).T
    return e, rng.standard_normal(n) if white else f


def hidden_cause(length: int, share: float, tied: bool) -> Draw:
    """y = sin(z2 + z3 + z4) + u + e' / 2 with u normal, constant in an episode, and white z (5) and e'.

    Var u / (Var u + 1/4) = share. x = tanh(z1 + z2 + z3) + c u + e / 2 with c = 0, or where x is `tied` to u such that
    c u is the share `TIED` of the variance of x given z. A test that leaves u out sees dependence in the tied case;
    in the free one x and y are independent given z, but the rows of y are not independent of each other.
    """

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z, (e, f) = rng.standard_normal((n, 5)), rng.standard_normal((2, n))
        episode = episodes(n, length)
        u = rng.standard_normal(n // length)[episode]
        x = np.tanh(z[:, :3].sum(1)) + 0.5 * e + tied * 0.5 * math.sqrt(TIED / (1 - TIED)) * u
        y = np.sin(z[:, 1:4].sum(1)) + 0.5 * f + 0.5 * math.sqrt(share / (1 - share)) * u
        return x, y, z, episode

    return draw


def sticky(length: int, change: float = 0.02) -> Draw:
    """x (3 levels) and a hidden u (3 levels), independent of each other, are redrawn with probability `change` a row.

    z has 4 levels, redrawn in each row. y is z + u modulo 3 with probability .7, else uniform over 3 levels.
    """

    def draw(rng: np.random.Generator, n: int) -> Sample:
        episode = episodes(n, length)
        x, u = (_held(rng, n, length, 3, change) for _ in range(2))
        z = rng.integers(0, 4, n)
        y = np.where(rng.random(n) < 0.7, (z + u) % 3, rng.integers(0, 3, n))
        return np.eye(3)[x], np.eye(3)[y], np.eye(4)[z], episode

    return draw


def _held(rng: np.random.Generator, n: int, length: int, levels: int, change: float) -> np.ndarray:
    """(n,) levels that start anew in each episode and are redrawn with probability `change` in each later row."""
    fresh = rng.random((n // length, length)) < change
    fresh[:, 0] = True
    drawn = np.maximum.accumulate(np.where(fresh.reshape(-1), np.arange(n), 0))  # the row that each level comes from
    return rng.integers(0, levels, n)[drawn]


def product(length: int, factor: float = 0.3) -> Draw:
    """s' = s + factor a b + .3 e with white a, b and e: x is a, y is s' and z is (s, b); s starts at a normal value."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        a, b, e = rng.standard_normal((3, n))
        change = factor * a * b + 0.3 * e
        total = np.cumsum(change.reshape(-1, length), axis=1)
        after = (total + rng.standard_normal((n // length, 1))).reshape(-1)
        return a, after, np.column_stack([after - change, b]), episodes(n, length)

    return draw


def _in_episodes(
    name: str, make: Callable[[int], Draw], shapes: Iterable[tuple[int, int]] = SHAPES, **settings: Any
) -> dict[str, Case]:
    """'name-GxT' -> case, for each shape; `make`: rows of an episode -> how to draw."""
    null = {"null": True} | settings
    return {f"{name}-{count}x{length}": Case(make(length), count * length, **null) for count, length in shapes}


CASES: dict[str, Case] = {
    **{f"linear-{d}-{n}": Case(linear(d), n, True) for n in (500, 1000) for d in (0, 1, 5, 18)},
    "nonlinear-1000": Case(nonlinear(), 1000, True),
    "nonlinear-4000": Case(nonlinear(), 4000, True),
    "heteroscedastic-1000": Case(heteroscedastic, 1000, True),
    "binary-1000": Case(binary, 1000, True),
    "binary-y-1000": Case(binary_target, 1000, True),
    "heavy-1000": Case(heavy, 1000, True),
    "categorical-2800": Case(categorical, 2800, True, discrete=True),
    "effect-1000": Case(nonlinear(lambda x, z: 0.5 * x), 1000, False),
    "effect-4000": Case(nonlinear(lambda x, z: 0.5 * x), 4000, False),
    "interaction-4000": Case(nonlinear(lambda x, z: 0.5 * x * z[:, 4]), 4000, False),
    "square-4000": Case(nonlinear(lambda x, z: 0.5 * (x * x - 1)), 4000, False),
    **_in_episodes("ar-linear", persistent_linear),
    **_in_episodes("ar-nonlinear", persistent_nonlinear),
    **_in_episodes("ar-white-linear", partial(persistent_linear, white=True)),
    **_in_episodes("ar-white-nonlinear", partial(persistent_nonlinear, white=True)),
    **{
        name: case
        for kind in ("tied", "free")
        for share in SHARES
        for name, case in _in_episodes(
            f"hidden-{share}-{kind}", partial(hidden_cause, share=share / 100, tied=kind == "tied")
        ).items()
    },
    **_in_episodes("sticky", sticky, discrete=True),
    **_in_episodes("product", product, [(count, 100) for count in (20, 30, 50)], null=False, own=True),
}
"""Name -> case; in the names of cases with episodes, GxT: G episodes of T rows."""

EFFECTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)
"""Of the power curves: the share of the variance of y given z that x explains."""
POWER_ROWS = (1000, 3000)
POWER_SHAPES = ((30, 50), (200, 15))
POWER_EPISODES = (20, 25, 30, 40, 50)


def _ratio(effect: float) -> float:
    """The standard deviation of x's part of y, relative to that of the noise, at which x has this effect."""
    return math.sqrt(effect / (1 - effect))


def _power_cases() -> dict[str, Case]:
    """'added-E-N': `nonlinear` with y += c x (both noises: 1/2), N independent rows; 'product-E-GxT': `product` with
    c a b; c such that the effect is E."""
    cases: dict[str, Case] = {}
    for effect in EFFECTS:
        ratio = _ratio(effect)
        draw = nonlinear(lambda x, z, c=ratio: c * x)  # type: ignore[misc]
        cases |= {f"added-{effect:g}-{n}": Case(draw, n, null=effect == 0) for n in POWER_ROWS}
        make = partial(product, factor=0.3 * ratio)
        cases |= _in_episodes(f"product-{effect:g}", make, POWER_SHAPES, null=effect == 0, own=True)
    return cases | _in_episodes("product", product, [(g, 100) for g in POWER_EPISODES], null=False, own=True)


POWER_CASES = _power_cases()
"""Name -> case, of the power curves."""
ALL_CASES = CASES | POWER_CASES
