"""Doubly robust estimates: fitted Q evaluation, corrected by what importance sampling says of its errors.

    Gamma_i = V_H(s_0) + sum_t gamma^t w_t (r_t + gamma V_{H-t-1}(s_{t+1}) - Q_{H-t}(s_t, a_t)),
    w_t = rho_{0:t} / (mean of rho_{0:t} over episodes),     rho_{0:t} = prod_{u <= t} pi(a_u|s_u) / pi_b(a_u|s_u)

(Jiang and Li 2016; weighted as by Thomas and Brunskill 2016). The mean of Gamma is right where Q or the propensities
pi_b are. An episode that has ended keeps its last rho.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from because_rl.evaluation.worth.log import FittedQ, LoggedEpisodes

LEAST_PROPENSITY = 1e-3
"""A logged action was never less likely than this: what has happened is no miracle."""
LEAST_SAMPLE, LEAST_SHARE = 20.0, 0.05
"""Effective episodes, and their share of all, below which importance sampling is not used: its few large weights hide
how little it knows."""


def cumulative_ratios(log: LoggedEpisodes, chosen: np.ndarray, propensity: np.ndarray) -> np.ndarray:
    """(E, H) rho_{0:t}; after the end of an episode its last one.

    `chosen`, `propensity`: (n,) probability of the logged action by the policy and by the behaviour.
    """
    ratio = np.ones((log.episodes, log.horizon))
    ratio[log.episode, log.step] = chosen / np.maximum(propensity, LEAST_PROPENSITY)
    return np.cumprod(ratio, axis=1)


def effective_sample(ratios: np.ndarray) -> float:
    """(sum rho)^2 / sum rho^2 over whole episodes: as many episodes of the policy itself would say as much.

    >>> effective_sample(np.array([[1.0], [1.0], [0.0], [2.0]])).__round__(3)
    2.667
    """
    whole = ratios[:, -1]
    return float(whole.sum() ** 2 / max((whole**2).sum(), 1e-300))


def suffices(sample: float, episodes: int) -> bool:
    """Whether importance sampling is used.

    >>> suffices(30.0, 500), suffices(30.0, 5000)
    (True, False)
    """
    return sample >= max(LEAST_SAMPLE, LEAST_SHARE * episodes)


def doubly_robust_terms(
    log: LoggedEpisodes, fits: FittedQ, ratios: np.ndarray, weights: np.ndarray
) -> Float[np.ndarray, "fits episodes"]:
    """Gamma of each episode, for each fit with its weights of episodes."""
    mean = np.maximum(weights @ ratios / weights.sum(1, keepdims=True), 1e-12)  # (fits, H)
    share = ratios[log.episode, log.step][None] / mean[:, log.step]
    correction = fits.surprise * share * log.discounts
    added = np.add.reduceat(correction, log.first, axis=1)
    return fits.first + added


def logged_terms(log: LoggedEpisodes, fits: FittedQ) -> Float[np.ndarray, "fits episodes"]:
    """The behaviour's own: the logged return, and for the rest of an episode that was cut off early what V says."""
    return log.returns + fits.rest * log.discounts[log.last]


def weighted_means(terms: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(fits,) the mean of each fit's terms (fits, E) under its weights of episodes."""
    return (terms * weights).sum(1) / weights.sum(1)
