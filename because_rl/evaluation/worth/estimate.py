"""The worth of policies by several estimators, with joint intervals, beside that of the behaviour.

Episodes are resampled, and with the same resamples everything is estimated anew: Q is refitted on each, so that an
interval has the noise of the fit and not only that of the first states. The interval of

    DR     is its estimate -+ 1.96 standard deviations of its resamples;
    FQE    reaches from its least to its most (`table`, `features`), each with such a margin, on either side as far as
           FQE is wrong about the behaviour, whose worth is known, and, where there is a world model, from what it says
           pessimistically to what it says plainly, with its error where it imagines the logged actions.

The shorter of the two is the answer, where the effective sample allows DR at all. Differences from the behaviour have
intervals of their own, from the same resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from because_rl.evaluation.worth.doubly_robust import (
    cumulative_ratios,
    doubly_robust_terms,
    effective_sample,
    logged_terms,
    suffices,
    weighted_means,
)
from because_rl.evaluation.worth.log import FittedQ, LoggedEpisodes, Policy, resampling_weights
from because_rl.statistics import Z95, Estimate

RESAMPLES = 50
BETTER, WORSE, UNKNOWN = "better than the behaviour", "worse than the behaviour", "undetermined"


class QModel(Protocol):
    """A way to fit Q of any policy to a log: a table, or a network's features."""

    name: str

    def behaviour(self) -> Policy: ...

    def fit(self, policy: Policy, weights: np.ndarray, side: int = 0) -> FittedQ: ...


@dataclass(frozen=True)
class WorldModel:
    """What a world model says of a policy."""

    plain: float
    pessimistic: float
    error: float
    """how far it is from the logged returns where it imagines the logged actions"""


@dataclass(frozen=True)
class PolicyWorth:
    """What one estimator says of a policy."""

    worth: Estimate
    gain: Estimate
    """worth - that of the behaviour"""


@dataclass(frozen=True)
class Appraisal:
    """What is known of a policy's worth."""

    policy: str
    by: str
    """the estimator that answers: one of `estimators`"""
    estimators: dict[str, PolicyWorth]
    effective_sample: float | None
    """episodes; None where there are no propensities of the policy's actions"""
    why_no_dr: str
    """empty where DR is used"""
    model: WorldModel | None
    verdict: str
    why: str

    @property
    def answer(self) -> PolicyWorth:
        return self.estimators[self.by]


def appraise(
    log: LoggedEpisodes,
    model: QModel,
    policies: Sequence[Policy],
    world_models: Mapping[str, WorldModel] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Estimate, list[Appraisal]]:
    """The worth of the behaviour, and of each policy; `world_models`: by the names of policies."""
    weights = resampling_weights(log.episodes, resamples, seed)
    behaviour = model.behaviour()
    fits = model.fit(behaviour, weights)
    logged = weighted_means(logged_terms(log, fits), weights)
    error = abs(float(weighted_means(fits.first, weights)[0] - logged[0]))
    out = []
    for policy in policies:
        fits = model.fit(policy, weights)
        imagined = (world_models or {}).get(policy.name)
        values = weighted_means(fits.first, weights)
        low, high = (weighted_means(model.fit(policy, weights[:1], side).first, weights[:1])[0] for side in (-1, 1))
        low, high = min(low, values[0]) - error, max(high, values[0]) + error
        if imagined is not None:
            low = min(low, min(imagined.plain, imagined.pessimistic) - imagined.error)
            high = max(high, imagined.plain + imagined.error)
        estimators = {"FQE": _estimate(values, logged, low, high)}
        sample, why = None, "the actions are not numbered: those of a policy have no propensities"
        if log.number is not None:
            rows = np.arange(len(log.number))
            ratios = cumulative_ratios(log, policy.now[rows, log.number], behaviour.now[rows, log.number])
            sample, why = effective_sample(ratios), ""
            if suffices(sample, log.episodes):
                values = weighted_means(doubly_robust_terms(log, fits, ratios, weights), weights)
                estimators["DR"] = _estimate(values, logged, values[0], values[0])
            else:
                why = f"{log.episodes} episodes say as much as {sample:.1f} of the policy's own"
        by = min(estimators, key=lambda name: _width(estimators[name].worth))
        verdict = _verdict(estimators, by, float(logged[0]), imagined)
        out.append(Appraisal(policy.name, by, estimators, sample, why, imagined, *verdict))
    return _estimate(logged, logged, logged[0], logged[0]).worth, out


def _estimate(values: np.ndarray, logged: np.ndarray, low: float, high: float) -> PolicyWorth:
    """From an estimate, first, and its resamples; `low` and `high`: its least and its most."""
    gains = values - logged
    return PolicyWorth(_interval(values, low, high), _interval(gains, low - logged[0], high - logged[0]))


def _interval(values: np.ndarray, low: float, high: float) -> Estimate:
    margin = Z95 * values[1:].std(ddof=1)
    return Estimate(float(values[0]), float(low - margin), float(high + margin))


def _width(estimate: Estimate) -> float:
    return estimate.high - estimate.low


def _verdict(
    estimators: Mapping[str, PolicyWorth], by: str, logged: float, imagined: WorldModel | None
) -> tuple[str, str]:
    """In words, and why: the interval of the gain decides, unless another estimate has the other sign."""
    gain = estimators[by].gain
    if gain.low <= 0 <= gain.high:
        return UNKNOWN, f"the 95% interval of the gain by {by} includes 0"
    sign = np.sign(gain.value)
    others = {name: estimate.gain.value for name, estimate in estimators.items()}
    if imagined is not None:
        others["the world model"] = imagined.plain - logged
    if against := [name for name, value in others.items() if value * sign < 0]:
        return UNKNOWN, f"{by} and {', '.join(against)} disagree"
    side = "above" if sign > 0 else "below"
    return BETTER if sign > 0 else WORSE, f"the 95% interval of the gain by {by} is {side} 0"
