"""The hidden Markov chain of regimes along each episode: which regime each row is in, given how well each explains it.

An episode starts in any regime alike, stays in it with probability 1 - r per step, and otherwise moves to any of the
others alike. With one number r there is no rare regime that a few odd rows could claim.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEAVE = 1e-4, 0.1
"""Least and largest probability r: a regime lasts ten rows or more on average."""


class Smoothed(NamedTuple):
    """What the chain says about the rows."""

    posterior: np.ndarray
    """(n, regimes) probability of each regime, given the whole episode"""
    log_likelihood: np.ndarray
    """(episodes,) log-density of each episode"""
    leave: float
    """the estimate of r that follows from the posterior"""


def smooth(evidence: np.ndarray, starts: np.ndarray, leave: float) -> Smoothed:
    """The forward-backward algorithm, all episodes at once.

    Args:
        evidence: (n, regimes) log-density of each row in each regime; rows of an episode adjacent and in time order.
        starts: (episodes,) first row of each episode.
        leave: r.

    >>> evidence = np.log([[0.9, 0.1], [0.5, 0.5], [0.9, 0.1]])
    >>> smooth(evidence, np.array([0]), 0.1).posterior[:, 0].round(2).tolist()
    [0.97, 0.95, 0.97]
    """
    n, count = evidence.shape
    top = evidence.max(1)
    lengths = np.diff(np.append(starts, n))
    if count == 1:
        return Smoothed(np.ones((n, 1)), np.add.reduceat(top, starts), leave)
    step = np.arange(n) - np.repeat(starts, lengths)
    episode = np.repeat(np.arange(len(starts)), lengths)
    density = np.ones((lengths.max(), len(starts), count))  # 1 behind the end of an episode, where it changes nothing
    density[step, episode] = np.exp(evidence - top[:, None])
    move = leave / (count - 1)
    keep = 1 - leave - move

    def spread(share: np.ndarray) -> np.ndarray:
        return keep * share + move * share.sum(1, keepdims=True)

    forward, scale = np.empty_like(density), np.empty(density.shape[:2])
    now = np.full(density.shape[1:], 1 / count)
    for t, here in enumerate(density):
        now = (spread(now) if t else now) * here
        scale[t] = now.sum(1)
        now = now / scale[t][:, None]
        forward[t] = now
    backward = np.ones_like(density)
    for t in range(len(density) - 2, -1, -1):
        backward[t] = spread(density[t + 1] * backward[t + 1] / scale[t + 1][:, None])
    stays = (1 - leave) * forward[:-1] * density[1:] * backward[1:] / scale[1:, :, None]
    inside = np.arange(1, len(density))[:, None] < lengths
    pairs = int(inside.sum())
    switches = pairs - stays.sum(2)[inside].sum()
    posterior = (forward * backward)[step, episode]
    total = np.log(scale).sum(0) + np.add.reduceat(top, starts)
    estimate = float(np.clip((switches + 1) / (pairs + 20), *LEAVE))
    return Smoothed(posterior / posterior.sum(1, keepdims=True), total, estimate)
