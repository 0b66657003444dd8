"""M-bar (the paper's equation 7): masks of many batches of trajectories, averaged by behaviour density.

    M-bar = E_u[ M(u_c) pi_b(a | s, u_pi) ] / E_u[ pi_b(a | s, u_pi) ]

Each batch b is a draw of whole trajectories, so it has its own mix of hidden confounders u. Its mask
M_b is weighted by w_b, its rows times the geometric mean over them of an estimated behaviour density
pi_b(a | s): a batch whose actions are typical of the behaviour counts more than an odd one. All rows together
are one more batch: what half of them are too few to show is not lost. The result is a weight in [0, 1] for every
edge, with an interval that says how stable the edge is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from because_rl.discovery.mask import CausalMask
from because_rl.discovery.variables import Variables
from because_rl.rng import child_seed, stream
from because_rl.statistics import wilson

LEAST_EPISODES = 150
"""Masks from fewer are underpowered (F1 .56 from 40 episodes of Unlock)."""


@dataclass(frozen=True)
class Reweighted:
    """M-bar and what it was made of."""

    mask: CausalMask
    """the full-data verdicts, with M-bar as `weight`"""
    low: np.ndarray
    """95% interval of each weight, (inputs, targets)"""
    high: np.ndarray
    batch_weight: np.ndarray
    """(1 + batches,) summing to 1; the first is of all rows"""


def draw_batches(episode: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Row indices of `count` draws of whole episodes without replacement, in their logged order.

    Half of the episodes each, but at least 150 (all when there are fewer). Drawing with replacement
    would repeat rows, and an independence test takes a repeated row for new evidence.
    """
    names = np.unique(episode)
    size = min(len(names), max(LEAST_EPISODES, len(names) // 2))
    picks = [stream(seed, "batches", b).choice(names, size, replace=False) for b in range(count)]
    return [np.flatnonzero(np.isin(episode, pick)) for pick in picks]


def log_density(variables: Variables, ridge: float = 1e-3) -> np.ndarray:
    """(n,) estimated log pi_b(a | s): ridge regression of the action columns on the state columns and
    their squares, with Gaussian residuals. A rough density is enough: it only ranks batches."""
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
    verdict: Callable[[Variables, int], CausalMask],
    *,
    batches: int = 10,
    seed: int = 0,
    together: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reweighted:
    """`verdict(variables, seed)` gives the mask of some rows; it is asked for all rows and each batch.

    `together`: in so many threads, which changes nothing else.
    """
    draws = draw_batches(variables.episode, batches, seed)
    asked = [(variables, child_seed(seed, "all"))]
    asked += [(variables.rows(rows), child_seed(seed, "batch", b)) for b, rows in enumerate(draws)]
    found: list[CausalMask] = []
    with ThreadPoolExecutor(together) as pool:
        for mask in (pool.map if together > 1 else map)(verdict, *zip(*asked, strict=True)):
            found.append(mask)
            progress(len(found), len(asked))
    full, masks = found[0], [mask.matrix for mask in found]
    density = log_density(variables)
    logs = [density.mean(), *(density[rows].mean() for rows in draws)]
    rows_in = [len(density), *map(len, draws)]
    if not batches:
        whole = full.matrix.astype(float)
        return Reweighted(full, whole, whole, np.ones(1))
    share = np.exp(np.array(logs) - max(logs)) * rows_in
    share /= share.sum()
    weight = np.einsum("b,bij->ij", share, np.array(masks, float))
    low, high = wilson(weight, 1.0 / (share**2).sum())  # n: how many equal batches these are worth
    settings = full.settings | {"batches": batches, "seed": seed}
    return Reweighted(replace(full, weight=weight, settings=settings), low, high, share)
