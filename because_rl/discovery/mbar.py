"""M-bar: the batch-reweighted causal mask, equation 7 of the paper.

The equation rewrites the unconfounded transition model with one mask that no longer depends on the confounders,

    T(s' | s, a) = E_u[ phi(s, a)^T M(u_c) mu(s') pi_b(a | s, u_pi) ] / E_u[ pi_b(a | s, u_pi) ]
                 = phi(s, a)^T  M-bar(u)  mu(s'),

    M-bar(u) = E_u[ M(u_c) pi_b(a | s, u_pi) ] / E_u[ pi_b(a | s, u_pi) ],

where u_c confounds the dynamics, u_pi the behaviour policy pi_b, and M(u_c) is the mask of one batch of
trajectories. Here the expectation over u is a weighted mean over batches b,

    M-bar = sum_b w_b M_b,      w_b proportional to n_b exp( mean over the rows of b of log pi_b(a | s) ).

Each batch is a draw of whole trajectories, so it has its own mix of hidden confounders. M_b is its mask, n_b its
number of rows, and pi_b an estimated behaviour density, so a batch with typical actions counts more than one with
unusual actions. All rows together are one more batch: edges that a part of the data is too small to show are not
lost. The result is a weight in [0, 1] for every edge, with an interval that says how stable the edge is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from because_rl.discovery.mask import CausalMask
from because_rl.discovery.variables import Variables
from because_rl.rng import child_seed, stream
from because_rl.statistics import wilson

LEAST_EPISODES = 150
"""Of a batch. Masks from fewer episodes are underpowered (F1 .56 from 40 episodes of Unlock)."""


@dataclass(frozen=True)
class Reweighted:
    """The result of `reweight`."""

    mask: CausalMask
    """the verdicts on all rows, with M-bar as `weight`"""
    low: np.ndarray
    """(inputs, targets) lower end of the 95% interval of each weight"""
    high: np.ndarray
    """(inputs, targets) its upper end"""
    batch_weight: np.ndarray
    """(1 + batches,) summing to 1; the first is the weight of all rows together"""


def draw_batches(episode: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Row indices of `count` draws of whole episodes without replacement, in their logged order.

    Each draw has half of the episodes, but at least 150 (all of them when there are fewer). Drawing with replacement
    would repeat rows, and an independence test takes a repeated row for new evidence.

    Args:
        episode: (n,) the episode of each row.
        count: number of batches.
        seed: of the draws.
    """
    names = np.unique(episode)
    size = min(len(names), max(LEAST_EPISODES, len(names) // 2))
    picks = [stream(seed, "batches", b).choice(names, size, replace=False) for b in range(count)]
    return [np.flatnonzero(np.isin(episode, pick)) for pick in picks]


def spread_episodes(episode: np.ndarray, count: int | None) -> np.ndarray:
    """(rows,) which rows to take: about `count` of them, in whole episodes at even distances; None: all."""
    if count is None:
        return np.ones(len(episode), bool)
    episodes, lengths = np.unique(episode, return_counts=True)
    wanted = np.clip(round(count / lengths.mean()), 1, len(episodes))
    return np.isin(episode, episodes[np.linspace(0, len(episodes) - 1, int(wanted)).astype(int)])


def consecutive_batches(episode: np.ndarray, count: int) -> list[np.ndarray]:
    """Row indices of at most `count` batches of consecutive episodes, each of 150 or more (or one of all).

    A hidden cause that changes slowly, such as a season or the person who logged, is nearly constant in each.
    """
    first = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    parts = np.array_split(first, max(1, min(count, len(first) // LEAST_EPISODES)))
    return np.split(np.arange(len(episode)), [part[0] for part in parts[1:]])


def batch_shares(density: np.ndarray, batches: Sequence[np.ndarray]) -> np.ndarray:
    """(batches,) w_b of batches of row indices, from the log-density of the action in each row."""
    logs = np.array([density[rows].mean() for rows in batches])
    share = np.exp(logs - logs.max()) * [len(rows) for rows in batches]
    return share / share.sum()


def log_density(variables: Variables, ridge: float = 1e-3) -> np.ndarray:
    """(n,) estimated log pi_b(a | s) of each row.

    Ridge regression of the action columns on the state columns and their squares, with Gaussian residuals. A rough
    density is enough: it only ranks batches.
    """
    is_state = np.array([f.name in {t.name for t in variables.targets} for f in variables.inputs])
    state = np.concatenate([x for x, s in zip(variables.x, is_state, strict=True) if s], 1)
    action = np.concatenate([x for x, s in zip(variables.x, is_state, strict=True) if not s], 1)
    spread = state.std(0)
    state = (state - state.mean(0)) / np.where(spread > 0, spread, 1.0)
    design = np.concatenate([np.ones((len(state), 1)), state, state**2], 1)
    gram = design.T @ design + ridge * len(state) * np.eye(design.shape[1])
    residual = action - design @ np.linalg.solve(gram, design.T @ action)
    variance = np.maximum(residual.var(0), 1e-6)
    return -0.5 * (residual**2 / variance + np.log(2 * np.pi * variance)).sum(1)


def reweight(
    variables: Variables,
    find_mask: Callable[[Variables, int], CausalMask],
    *,
    batches: int = 10,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reweighted:
    """The mask of all rows, with M-bar over `batches` draws of episodes as its edge weights.

    Args:
        variables: all rows.
        find_mask: (rows, seed) -> their mask; called for all rows and for each batch.
        batches: number of draws; with 0 the weights and their intervals are 0 or 1.
        seed: of the draws, and of the seeds passed to `find_mask`.
        threads: how many masks are computed at a time; the result does not depend on it.
        progress: called with (masks computed, masks in total) after each mask.
    """
    draws = draw_batches(variables.episode, batches, seed)
    jobs = [(variables, child_seed(seed, "all"))]
    jobs += [(variables.rows(rows), child_seed(seed, "batch", b)) for b, rows in enumerate(draws)]
    masks: list[CausalMask] = []
    with ThreadPoolExecutor(threads) as pool:
        for mask in (pool.map if threads > 1 else map)(find_mask, *zip(*jobs, strict=True)):
            masks.append(mask)
            progress(len(masks), len(jobs))
    full = masks[0]
    if not batches:
        whole = full.matrix.astype(float)
        return Reweighted(full, whole, whole, np.ones(1))
    density = log_density(variables)
    share = batch_shares(density, [np.arange(len(density)), *draws])
    weight = np.einsum("b,bij->ij", share, np.array([mask.matrix for mask in masks], float))
    low, high = wilson(weight, 1.0 / (share**2).sum())  # n: the number of equal batches that these are worth
    settings = full.settings | {"batches": batches, "seed": seed}
    return Reweighted(replace(full, weight=weight, settings=settings), low, high, share)
