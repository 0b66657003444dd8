"""A mask must not predict worse than no mask where it was learned.

Each target is predicted, held-out by folds of whole episodes, from the inputs that its verdicts keep and from all
inputs. The difference of squared errors is summed over each episode; Student's t over episodes says whether it is more
than chance. If the mask loses significantly, and a share of the error that counts, its verdicts are wrong: inputs that
were excluded come back, those with the largest effect first, until there is no loss; of these, only the ones without
which there would be one stay. They are undetermined: no test
established them, and without them the mask does not suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from because_rl.discovery.regression.hidden_cause import Variation
from because_rl.discovery.regression.redundancy import loss

LEVEL = 0.01
"""p-value below which a loss is more than chance."""


class Sufficiency(NamedTuple):
    """How much worse a mask predicts one target than all inputs do."""

    loss: float
    """share of the masked prediction's error that all inputs would save, in the column where it is largest"""
    p: float
    """of 'the mask predicts as well as all inputs'"""
    reopened: tuple[int, ...] = ()
    """inputs that came back"""
    suffices: bool = True


def compare(
    y: np.ndarray, masked: np.ndarray, full: np.ndarray, starts: np.ndarray, variation: Variation
) -> Sufficiency:
    """Loss and p-value of a prediction `masked` against `full`, all (n, w); `starts` are the first rows of episodes.

    >>> rng = np.random.default_rng(0)
    >>> full, noise = rng.normal(size=(2, 400, 1))
    >>> worse = compare(full + noise, 0 * full, full, np.arange(0, 400, 10), Variation())
    >>> round(worse.loss, 1), worse.p < 1e-6
    (0.5, True)
    """
    with_mask, without = variation.centre(y - masked) ** 2, variation.centre(y - full) ** 2
    excess = np.add.reduceat(with_mask - without, starts)
    spread = excess.std(0, ddof=1)
    t = np.divide(excess.mean(0) * np.sqrt(len(starts)), spread, out=np.zeros_like(spread), where=spread > 0)
    p = float(min(1.0, stats.t.sf(t, len(starts) - 1).min(initial=1.0) * max(len(t), 1)))
    return Sufficiency(loss(with_mask.mean(0), without.mean(0)), p)


def restore(
    check: Callable[[set[int]], Sufficiency], kept: set[int], excluded: Sequence[int], least_effect: float
) -> Sufficiency:
    """Add inputs to a mask until it suffices, then drop those that it suffices without.

    Args:
        check: inputs of a mask -> how well they predict.
        kept: the inputs that the verdicts keep.
        excluded: the others, the likeliest first.
        least_effect: loss that counts.
    """

    def suffices(result: Sufficiency) -> bool:
        return result.p >= LEVEL or result.loss < least_effect

    result, reopened = check(kept), []
    for i in excluded:
        if suffices(result):
            break
        reopened.append(i)
        result = check(kept | {*reopened})
    for i in reopened[:-1]:
        without = check(kept | {*reopened} - {i})
        if suffices(without):
            reopened.remove(i)
            result = without
    return result._replace(reopened=tuple(reopened), suffices=suffices(result))
