"""A family of finite bilinear SCM-MDPs whose core is known, for Theorem 1: T(s'|s,a) = phi(s,a)^T M mu(s').

phi(s,a) is a point of the simplex, each row of the sparse M a distribution over the columns of mu, and each column of
mu a distribution over states: T is a distribution whatever their entries. An episode ends with reward 1 when it reaches
the goal, so all values are in [0, 1], as the theorem assumes. Every array has the repetitions as its first axis.

The logged regression target is that of equation 5 with the exogenous noise of the proof's Step 4:
y = K_mu^-1 mu(s') + sigma e with e ~ N(0, I), whose mean is M^T phi(s,a).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from because_rl.errors import BecauseError
from because_rl.rng import stream

ALPHA = 0.01
"""level of the test of each entry of the core"""
DELTA = 0.1
"""the theorem's delta"""
BONUS = 0.17
"""The theorem's constant C_s, which it leaves open: at the reference point the lemma's event then has at least the
probability 1 - delta (chosen on the draws of seed 1; the study has seed 0)."""
OWN_BLOCK = 0.9
"""share of a column of mu on its own block of states; the rest is uniform over all states"""


@dataclass(frozen=True)
class Family:
    """The sizes of an MDP. The defaults are the reference point of the study."""

    states: int = 40
    actions: int = 4
    size: int = 10
    """d = d', the number of rows and columns of M"""
    row_entries: int = 2
    """nonzero entries of each row of M, so that its l0 norm is size x row_entries"""
    noise: float = 1.0
    """sigma"""
    horizon: int = 8
    contrast: float = 1.0
    """how much the chance of success differs between states: 1 for a goal, 0 for none"""
    coverage: float | None = None
    """If given, the last action has a feature of its own, and is logged with this share of its ordinary frequency."""

    def __post_init__(self) -> None:
        if self.states % self.size or not 1 <= self.row_entries <= self.size:
            raise BecauseError(
                f"Got {self.states} states and {self.row_entries} entries in rows of size {self.size}.",
                need="a multiple of the size, and 1 to the size.",
                fix="change one of them.",
            )


class Instances(NamedTuple):
    """R draws of an MDP and of a behaviour policy."""

    phi: np.ndarray
    """(R, S, A, d)"""
    core: np.ndarray
    """M, (R, d, d)"""
    mu: np.ndarray
    """(R, d, S): each row a distribution over states"""
    goal: np.ndarray
    """(S,): the chance that an episode ends with success in a state"""
    behaviour: np.ndarray
    """pi_beta(a|s), (R, S, A)"""
    horizon: int

    @property
    def transitions(self) -> np.ndarray:
        """T(s'|s,a), (R, S, A, S)"""
        return np.einsum("rsad,rde,ret->rsat", self.phi, self.core, self.mu, optimize=True)

    @property
    def targets(self) -> np.ndarray:
        """K_mu^-1 mu(s'), (R, d, S)"""
        return np.linalg.solve(self.mu @ self.mu.swapaxes(1, 2), self.mu)


def draw_instances(rng: np.random.Generator, family: Family, repetitions: int) -> Instances:
    """Random features, cores and behaviour policies.

    The largest entry of a row of M is .5, the others share the rest, so that more entries do not make its rows alike.
    The same generator gives nested supports for more entries of a row.
    """
    r, s, a, d = repetitions, family.states, family.actions, family.size
    phi = _normalise(rng.gamma(0.3, size=(r, s, a, d)) + 1e-9)
    if family.coverage is not None:
        phi[..., :-1, -1], phi[..., -1, :-1], phi[..., -1, -1] = 0.0, phi[..., -1, :-1] / 10, 1.0
        phi = _normalise(phi)
    largest = rng.permuted(np.tile(np.arange(d), (r, 1)), axis=1)[..., None]
    keys = rng.random((r, d, d))
    np.put_along_axis(keys, largest, -1.0, 2)
    entries = rng.exponential(size=(r, d, d)) + 0.2
    entries[..., family.row_entries :] = 0.0
    entries[..., 0] = np.maximum(entries[..., 1:].sum(2), 1e-9)
    core = np.zeros((r, d, d))
    np.put_along_axis(core, keys.argsort(2), _normalise(entries), 2)
    block = np.arange(s) // (s // d) == np.arange(d)[:, None]
    own = _normalise(np.where(block, rng.gamma(5.0, size=(r, d, s)), 0.0))
    mu = OWN_BLOCK * own + (1 - OWN_BLOCK) / s
    behaviour = 0.2 / a + 0.8 * _normalise(rng.exponential(size=(r, s, a)))
    if family.coverage is not None:
        behaviour[..., -1] *= family.coverage
        behaviour = _normalise(behaviour)
    reached = (np.arange(s) < (s // d + 1) // 2).astype(float)
    goal = family.contrast * reached + (1 - family.contrast) * reached.mean()
    return Instances(phi, core, mu, goal, behaviour, family.horizon)


def _normalise(x: np.ndarray) -> np.ndarray:
    return x / x.sum(-1, keepdims=True)


# Dynamic programming -----------------------------------------------------------------------------------


def backup(mdp: Instances, core: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(B V)(s,a) = phi(s,a)^T M sum_s' mu(s') (g(s') + (1 - g(s')) V(s')), with this core. (R, S) -> (R, S, A)"""
    ahead = mdp.goal + (1 - mdp.goal) * value
    return np.einsum("rsad,rd->rsa", mdp.phi, np.einsum("rde,res,rs->rd", core, mdp.mu, ahead, optimize=True))


class Plan(NamedTuple):
    policy: np.ndarray
    """action, (H, R, S)"""
    values: np.ndarray
    """of the model, (H + 1, R, S); the last are 0"""


def plan(mdp: Instances, core: np.ndarray, bonus: np.ndarray | float = 0.0) -> Plan:
    """Equation 9: Q = B V - bonus, V = max_a Q within [0, 1]. With the true core and no bonus the optimum."""
    value = np.zeros(mdp.phi.shape[:2])
    values, policy = [value], []
    for _ in range(mdp.horizon):
        q = backup(mdp, core, value) - bonus
        policy.append(q.argmax(2))
        value = np.clip(q.max(2), 0.0, 1.0)
        values.append(value)
    return Plan(np.array(policy[::-1]), np.array(values[::-1]))


def evaluate(mdp: Instances, policy: np.ndarray) -> np.ndarray:
    """V_1^pi of a policy (H, R, S) in the true MDP, (R, S)."""
    value = np.zeros(mdp.phi.shape[:2])
    for actions in policy[::-1]:
        value = np.take_along_axis(backup(mdp, mdp.core, value), actions[..., None], 2)[..., 0]
    return value


def visits(mdp: Instances, policy: np.ndarray) -> np.ndarray:
    """Chance to be in (s, a) at each step under a policy (H, R, S, A) from a uniform start, (H, R, S, A)."""
    state = np.full(mdp.phi.shape[:2], 1 / mdp.phi.shape[1])
    steps = []
    for choice in policy:
        steps.append(state[..., None] * choice)
        latent = np.einsum("rsa,rsad->rd", steps[-1], mdp.phi)
        state = np.einsum("rd,rde,res->rs", latent, mdp.core, mdp.mu, optimize=True) * (1 - mdp.goal)
    return np.array(steps)


# Data and estimators -----------------------------------------------------------------------------------


class Log(NamedTuple):
    """What least squares needs of n logged transitions."""

    n: int
    counts: np.ndarray
    """n(s,a), (R, S, A)"""
    gram: np.ndarray
    """sum of phi phi^T, (R, d, d)"""
    cross: np.ndarray
    """sum of phi y^T, (R, d, d)"""
    squares: np.ndarray
    """sum of y^2, (R, d)"""


def draw_log(rng: np.random.Generator, mdp: Instances, n: int, noise: float) -> Log:
    """n transitions of the behaviour policy: (s,a) from where it goes, s' and the noise independent given (s,a).

    Only sums over the transitions of each (s,a) are drawn, which have the same law as the sums of single draws.
    """
    r, s, a, d = mdp.phi.shape
    where = visits(mdp, np.broadcast_to(mdp.behaviour, (mdp.horizon, r, s, a))).sum(0).reshape(r, s * a)
    counts = rng.multinomial(n, _normalise(where))
    arrivals = rng.multinomial(counts, _normalise(mdp.transitions.reshape(r, s * a, s)))
    targets = mdp.targets.swapaxes(1, 2)
    total, square = arrivals @ targets, arrivals @ targets**2
    # The noise e of a pair's n(s,a) rows: its sum, its part along the targets' deviations from their mean, the rest.
    k = counts[..., None]
    along_ones, along_targets = rng.standard_normal((2, r, s * a, d)) * np.array([k > 0, k > 1])
    rest = 2 * rng.standard_gamma(np.maximum(counts - 2, 0).sum(1)[:, None] / 2, (r, d))
    root = np.sqrt(np.maximum(k, 1))
    deviations = np.sqrt(np.maximum(square - (total / root) ** 2, 0.0))
    mixed = (total / root * along_ones + deviations * along_targets).sum(1)
    squares = square.sum(1) + 2 * noise * mixed + noise**2 * ((along_ones**2 + along_targets**2).sum(1) + rest)
    phi = mdp.phi.reshape(r, s * a, d)
    gram = phi.swapaxes(1, 2) @ (phi * k)
    cross = phi.swapaxes(1, 2) @ (total + noise * root * along_ones)
    return Log(n, counts.reshape(r, s, a), gram, cross, squares)


class Fit(NamedTuple):
    core: np.ndarray
    """(R, d, d)"""
    mask: np.ndarray
    """(R, d, d) bool"""
    deviation: np.ndarray
    """of the residuals, per target, (R, d)"""


def fit_core(log: Log, mask: np.ndarray) -> Fit:
    """Least squares of each column of the core on its rows in the mask (R, d, d); 0 elsewhere."""
    d = log.gram.shape[-1]
    kept = mask.swapaxes(1, 2)[..., None]
    gram = np.where(kept & kept.swapaxes(2, 3), log.gram[:, None], 0.0) + 1e-9 * log.n * np.eye(d)
    gram += np.where(kept, 0.0, 1.0) * np.eye(d)
    right = np.where(kept, log.cross.swapaxes(1, 2)[..., None], 0.0)
    core = np.linalg.solve(gram, right)[..., 0].swapaxes(1, 2)
    left = np.maximum(log.squares - (core * log.cross).sum(1), 0.0)
    return Fit(core, mask, np.sqrt(left / np.maximum(log.n - mask.sum(1), 1)))


def significant_entries(log: Log, alpha: float = ALPHA) -> np.ndarray:
    """The entries of the core that differ from 0 by a t-test of their coefficients among all features, (R, d, d)."""
    d = log.gram.shape[-1]
    fit = fit_core(log, np.ones(log.gram.shape, bool))
    inverse = np.linalg.inv(log.gram + 1e-9 * log.n * np.eye(d))
    error = np.sqrt(np.diagonal(inverse, axis1=1, axis2=2)[..., None]) * fit.deviation[:, None]
    return np.abs(fit.core) > stats.t.ppf(1 - alpha / 2, max(log.n - d, 1)) * error


def pessimism(fit: Fit, log: Log, constant: float = BONUS) -> np.ndarray:
    """The lemma's second term, C_s sigma sqrt(||M||_0 log(1/delta) / n(s,a)), with the model's own sigma and mask, at
    most 1; (R, S, A)."""
    sigma = np.sqrt((fit.deviation**2).mean(1))
    scale = constant * sigma * np.sqrt(fit.mask.sum((1, 2)) * np.log(1 / DELTA))
    return np.where(log.counts > 0, np.minimum(scale[:, None, None] / np.sqrt(np.maximum(log.counts, 1)), 1.0), 1.0)


ESTIMATORS = ("because", "true mask", "dense", "normalised")


def estimate(name: str, mdp: Instances, log: Log) -> tuple[Fit, Instances]:
    """The fit of an estimator, and the MDP with the features that it plans with.

    because: the mask by tests, which is the algorithm; true mask; dense: no mask. Their rows phi^T M mu(.) need not sum
    to 1. normalised: as because, with each row divided by its sum.
    """
    if name == "dense":
        mask = np.ones(mdp.core.shape, bool)
    else:
        mask = mdp.core > 0 if name == "true mask" else significant_entries(log)
    fit = fit_core(log, mask)
    if name != "normalised":
        return fit, mdp
    sums = np.einsum("rsad,rde->rsa", mdp.phi, fit.core)
    return fit, mdp._replace(phi=mdp.phi / np.maximum(sums, 0.1)[..., None])


# One point of the study --------------------------------------------------------------------------------


def measure_point(family: Family, n: int, repetitions: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Estimator -> measure -> one number for each repetition (R,), at n logged transitions.

    - gap: V* - V^pi of the pessimistic plan, mean over the initial states; greedy_gap: of the plan without a bonus.
    - value_error: |V - V*| at the initial states, V being the model's value without a bonus.
    - bellman_error: the largest error of a model's backup of its own values, the quantity that the lemma bounds.
    - constant: the least C_s for which the lemma's event holds at the pairs that were logged, at most 9.
    - bound: twice the sum over h of E_pi*[bonus], the bound that the theorem is derived from, with our constant.
    - value_sum: the sum of V* over states, which the lemma takes to be at most 1.
    - missed, false: entries of the core that the mask lacks, and those that it should lack.
    """
    mdp = draw_instances(stream(seed, "theorem", "family"), family, repetitions)
    log = draw_log(stream(seed, "theorem", "log", n), mdp, n, family.noise)
    best = plan(mdp, mdp.core)
    optimum = evaluate(mdp, best.policy)
    chosen = np.arange(family.actions) == best.policy[..., None]
    optimal_visits = visits(mdp, chosen.astype(float))
    points = {}
    for name in ESTIMATORS:
        fit, model = estimate(name, mdp, log)
        bonus = pessimism(fit, log)
        unit = np.maximum(pessimism(fit, log, 1e-6) * 1e6, 1e-9)
        cautious, greedy = plan(model, fit.core, bonus), plan(model, fit.core)
        errors = [np.abs(backup(model, fit.core, v) - backup(mdp, mdp.core, v)) for v in greedy.values[1:]]
        error = np.max(errors, axis=0)
        points[name] = {
            "gap": (optimum - evaluate(mdp, cautious.policy)).mean(1),
            "greedy_gap": (optimum - evaluate(mdp, greedy.policy)).mean(1),
            "value_error": np.abs(greedy.values[0] - optimum).mean(1),
            "bellman_error": error.max((1, 2)),
            "constant": np.where(log.counts > 0, np.minimum(error / unit, 9.0), 0.0).max((1, 2)),
            "bound": 2 * (optimal_visits * bonus).sum((0, 2, 3)),
            "value_sum": best.values[0].sum(1),
            "missed": (mdp.core.astype(bool) & ~fit.mask).sum((1, 2)),
            "false": (fit.mask & (mdp.core == 0)).sum((1, 2)),
        }
    return points


PER_REPETITION = ("gap", "greedy_gap", "value_error", "bellman_error")


def summarise_point(family: Family, n: int, repetitions: int, seed: int) -> dict[str, dict[str, Any]]:
    """As plain data: the measures that slopes are fitted to of every repetition, as text with three digits; of the
    others the means, the share of repetitions in which the lemma's event holds, and the 90% quantile of its constant.
    """
    summary: dict[str, dict[str, Any]] = {}
    for estimator, measures in measure_point(family, n, repetitions, seed).items():
        summary[estimator] = {name: " ".join(f"{value:.3g}" for value in measures[name]) for name in PER_REPETITION}
        summary[estimator] |= {name: float(measures[name].mean()) for name in ("bound", "value_sum", "missed", "false")}
        constant = measures["constant"]
        summary[estimator] |= {
            "covered": float((constant <= BONUS).mean()),
            "constant90": float(np.quantile(constant, 0.9)),
        }
    return summary
