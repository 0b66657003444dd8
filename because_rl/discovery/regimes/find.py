"""Regimes of logged episodes: rows whose changes follow the same mechanisms, and how many regimes there are.

Expectation-maximisation over a hidden Markov chain (`chain`) with a robust regression for each regime and target
(`mechanisms`):

1. *Starts.* Episodes are cut into windows, each with a linear mechanism of its own, and windows are drawn that the ones
   drawn before explain badly (as in k-means++). Windows and mechanisms are then assigned to each other in turns.
2. *EM*, linear, from each start; the start with the largest likelihood goes on with nonlinear mechanisms.
3. *Number.* Two halves of the episodes; each is scored by the regimes of the other. One regime more is accepted where
   the log-density of whole held-out episodes rises, by three standard errors over episodes and by a least gain per row.

A regime is another mechanism and not another noise level. Something hidden and constant in an episode that takes many
values looks like many regimes: the number found is then that of its coarse levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from because_rl.discovery.regimes.chain import Smoothed, smooth
from because_rl.discovery.regimes.mechanisms import Mechanisms, Rows, make_rows, one_mechanism, refit, student, widen
from because_rl.discovery.regression.threads import one_blas_thread
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.rng import stream
from because_rl.transitions import MIN_EPISODES

MOST = 6
"""The largest number of regimes that 'auto' tries, or that may be asked for."""
WINDOW, MOST_WINDOWS = 30, 200
STARTS, LINEAR_ROUNDS, ROUNDS = 4, 12, 8
LEAVE = 0.02
"""Probability with which a regime ends in a step, before it is estimated."""
MOST_ROWS = 20_000
"""Rows, in whole episodes, from which mechanisms are learned; regimes are then found in all rows."""
LEAST_GAIN, ERRORS = 0.02, 3.0
"""Of one regime more: nats per held-out row, and standard errors over episodes."""
LEAST_LENGTH, LEAST_ROWS = 10, 100
"""Rows of an episode on average, and of a regime."""
SURE = 0.9
"""Probability of a regime from which on a row is tested with it; the others lie where regimes change."""


@dataclass(frozen=True)
class Regimes:
    """The regimes of n rows, the largest first."""

    posterior: np.ndarray
    """(n, regimes) probability of each regime"""
    scores: tuple[dict[str, Any], ...]
    """of each number tried: held-out nats per row, and the gain over one regime less with its standard error"""

    @property
    def count(self) -> int:
        """Number of regimes."""
        return self.posterior.shape[1]

    @property
    def label(self) -> np.ndarray:
        """(n,) the most probable regime of each row, from 0"""
        return self.posterior.argmax(1)

    def rows(self, regime: int) -> np.ndarray:
        """(n,) bool: the rows that are surely in this regime"""
        return self.posterior[:, regime] > SURE if self.count > 1 else np.ones(len(self.posterior), bool)


@dataclass(frozen=True)
class Fitted:
    """Mechanisms and chain."""

    mechanisms: Mechanisms
    leave: float

    def smooth(self, rows: Rows) -> Smoothed:
        return smooth(self.mechanisms.evidence(rows), rows.starts, self.leave)


def find_regimes(variables: Variables, regimes: int | str = "auto", seed: int = 0) -> Regimes:
    """The regimes of these rows, which must be in time order within each episode.

    Args:
        variables: the rows; changes of continuous state factors show the regime.
        regimes: their number, or 'auto'.
        seed: of starts and halves.
    """
    number = parse_regimes(regimes)
    if number == 1:
        return Regimes(np.ones((len(variables), 1)), ())
    with one_blas_thread():
        rows = make_rows(variables)
        _check(rows)
        rng = stream(seed, "discovery", "regimes")
        per_episode = len(rows) / len(rows.starts)
        chosen = rng.permutation(len(rows.starts))[: max(MIN_EPISODES, int(MOST_ROWS / per_episode))]
        learning, _ = rows.episodes(chosen)
        scores: list[dict[str, Any]] = []
        if number is None:
            number, scores = _choose(learning, seed)
        asked = regimes != "auto"
        while True:
            smoothed = _fit(learning, number, seed, "all").smooth(rows)
            posterior = smoothed.posterior[:, np.argsort(-smoothed.posterior.sum(0), kind="stable")]
            out = Regimes(posterior, tuple(scores))
            problem = _too_small(out, rows)
            if not problem:
                return out
            if asked:
                raise BecauseError(
                    f"Of {number} regimes {problem}.",
                    need=f"at least {LEAST_ROWS} rows in {MIN_EPISODES} episodes for each regime.",
                    fix="ask for fewer regimes or 'auto', or collect more episodes.",
                )
            number -= 1


def parse_regimes(regimes: int | str) -> int | None:
    """The number of regimes; None for 'auto'.

    >>> parse_regimes("3"), parse_regimes("auto")
    (3, None)
    """
    if regimes == "auto":
        return None
    text = str(regimes)
    if text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MOST:
        return int(text)
    raise BecauseError(f"Got regimes {regimes!r}.", need=f"'auto' or a number from 1 to {MOST}.", fix="try auto.")


def _check(rows: Rows) -> None:
    episodes = len(rows.starts)
    if not rows.y.shape[1]:
        raise BecauseError(
            "No continuous state factor changes, so that nothing shows a regime.",
            need="at least one continuous state factor that varies.",
            fix="leave --regimes out, or give continuous factors.",
        )
    if episodes < MIN_EPISODES:
        raise BecauseError(
            f"Got {episodes} episodes.", need=f"at least {MIN_EPISODES} to find regimes.", fix="collect more episodes."
        )
    if len(rows) < LEAST_LENGTH * episodes:
        raise BecauseError(
            f"Episodes have {len(rows) / episodes:.1f} rows on average.",
            need=f"at least {LEAST_LENGTH}: a regime shows in rows that follow one another.",
            fix="leave --regimes out, or name the episode of each row.",
        )


def _too_small(regimes: Regimes, rows: Rows) -> str:
    """Which regime has too few rows or episodes for a test; '' if none has."""
    if regimes.count == 1:
        return ""
    for k in range(regimes.count):
        keep = regimes.rows(k)
        episodes = int((np.add.reduceat(keep.astype(int), rows.starts) > 0).sum())
        if keep.sum() < LEAST_ROWS or episodes < MIN_EPISODES:
            return f"number {k + 1} has {int(keep.sum())} rows in {episodes} episodes"
    return ""


def _choose(rows: Rows, seed: int) -> tuple[int, list[dict[str, Any]]]:
    """The number of regimes by held-out episodes, and the scores of the numbers that were tried."""
    shuffled = stream(seed, "discovery", "regimes", "halves").permutation(len(rows.starts))
    halves = [rows.episodes(half)[0] for half in np.array_split(shuffled, 2)]
    scores: list[dict[str, Any]] = []
    last = np.zeros(0)
    for number in range(1, MOST + 1):
        parts = [
            _fit(train, number, seed, f"half {k}").smooth(test).log_likelihood
            for k, (train, test) in enumerate((halves, halves[::-1]))
        ]
        now = np.concatenate(parts)
        score: dict[str, Any] = {"regimes": number, "log_likelihood": float(now.sum() / len(rows))}
        if number > 1:
            difference = now - last
            error = difference.std(ddof=1) * np.sqrt(len(difference))
            gain = float(difference.sum() / len(rows))
            score |= {"gain": gain, "standard_error": float(error / len(rows))}
            score["accepted"] = bool(gain > max(LEAST_GAIN, ERRORS * score["standard_error"]))
        scores.append(score)
        if not score.get("accepted", True):
            return number - 1, scores
        last = now
    return MOST, scores


def _fit(rows: Rows, number: int, seed: int, what: str) -> Fitted:
    """Mechanisms of `number` regimes: linear from several starts, then nonlinear from the best."""
    pooled = one_mechanism(rows)
    best, most = Fitted(pooled, LEAVE), -np.inf
    if number > 1:
        windows = _Windows(rows, pooled, stream(seed, "discovery", "windows", what))
        for start in range(STARTS):
            label = windows.assign(number, stream(seed, "discovery", "start", what, number, start))
            first = Mechanisms(np.repeat(pooled.coefficients, number, axis=0), pooled.scale, pooled.spread)
            for _ in range(2):
                first = refit(rows, first, np.eye(number)[label])
            fitted, likelihood = _iterate(rows, Fitted(first, LEAVE), LINEAR_ROUNDS, shape=False)
            if likelihood > most:
                best, most = fitted, likelihood
    wide = widen(best.mechanisms, rows.basis.shape[1])
    return _iterate(rows, Fitted(wide, best.leave), ROUNDS, shape=True)[0]


def _iterate(rows: Rows, fitted: Fitted, rounds: int, shape: bool) -> tuple[Fitted, float]:
    """EM, and the log-density of all rows before its last step."""
    likelihood = -np.inf
    for _ in range(rounds):
        smoothed = fitted.smooth(rows)
        fitted = Fitted(refit(rows, fitted.mechanisms, smoothed.posterior, shape), smoothed.leave)
        before, likelihood = likelihood, float(smoothed.log_likelihood.sum())
        if not shape and likelihood - before < 1e-4 * len(rows):
            break
    return fitted, likelihood


class _Windows:
    """Pieces of episodes, and how well the mechanism of each explains all others."""

    def __init__(self, rows: Rows, pooled: Mechanisms, rng: np.random.Generator):
        lengths = np.diff(np.append(rows.starts, len(rows)))
        counts = np.maximum(1, np.round(lengths / WINDOW)).astype(int)
        self.starts = np.concatenate(
            [first + np.arange(k) * length // k for first, length, k in zip(rows.starts, lengths, counts, strict=True)]
        )
        self.lengths = np.diff(np.append(self.starts, len(rows)))
        chosen = np.sort(rng.permutation(len(self.starts))[:MOST_WINDOWS])
        linear = rows.basis[:, : rows.linear]
        residual = pooled.residuals(rows)[0]
        weight = 1 / (1 + (residual / pooled.scale) ** 2 / 4)
        self.fit = np.empty((len(chosen), len(self.starts)))
        """of the window c's mechanism to each window: log-density"""
        for c, place in enumerate(chosen):
            here = slice(self.starts[place], self.starts[place] + self.lengths[place])
            change = np.zeros(pooled.coefficients.shape[1:])
            for j in range(rows.y.shape[1]):
                weighted = linear[here] * weight[here, j, None]
                gram = weighted.T @ linear[here] + 2 * np.eye(rows.linear)
                change[:, j] = np.linalg.solve(gram, weighted.T @ residual[here, j])
            density = student(residual - linear @ change, pooled.scale).sum(1)
            self.fit[c] = np.add.reduceat(density, self.starts)
        self.own = self.fit.max(0)

    def assign(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """(n,) a regime for each row: that of the drawn window whose mechanism explains its window best."""
        drawn = [int(rng.integers(len(self.fit)))]
        while len(drawn) < number:
            deficit = np.maximum(self.own - self.fit[drawn].max(0), 0) ** 2 + 1e-9
            worst = rng.choice(len(self.own), p=deficit / deficit.sum())
            drawn.append(int(self.fit[:, worst].argmax()))
        label = self.fit[drawn].argmax(0)
        for _ in range(5):  # the window that explains the windows of a regime best stands for it
            drawn = [
                int(self.fit[:, label == k].sum(1).argmax()) if (label == k).any() else drawn[k] for k in range(number)
            ]
            label = self.fit[drawn].argmax(0)
        return np.repeat(label, self.lengths)
