"""A mask for each regime, and which edges are stable: those of a mechanism that no change of regime touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from because_rl.discovery.discover import discover
from because_rl.discovery.mask import CausalMask
from because_rl.discovery.regimes.find import Regimes, find_regimes
from because_rl.discovery.variables import Variables
from because_rl.graph import Edge
from because_rl.transitions import Transitions


@dataclass(frozen=True)
class RegimeMasks:
    """The masks of all regimes, the regime with most rows first."""

    regimes: Regimes
    masks: tuple[CausalMask, ...]
    data: Transitions

    @property
    def edges(self) -> dict[Edge, str]:
        """Every edge that some regime keeps -> how it depends on the regime.

        'stable': kept in all regimes; 'bound': kept in some, and not in another where the edge is excluded (or
        forbidden), or where an effect as large as its least established one would have shown with probability .8;
        'open': kept in some, and undetermined in the others.
        """
        first = self.masks[0]
        kept, status, effect, detectable = (
            np.stack([getattr(mask, name) for mask in self.masks])
            for name in ("kept", "status", "effect", "detectable")
        )
        least = np.where(kept & (status == "established"), effect, np.inf).min(0)
        absent = np.isin(status, ("excluded", "forbidden")) | ((detectable <= least) & np.isfinite(least))
        verdict = np.where(kept.all(0), "stable", np.where((absent & ~kept).any(0), "bound", "open"))
        return {(first.inputs[i], first.targets[j]): str(verdict[i, j]) for i, j in np.argwhere(kept.any(0))}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: regimes of the rows as runs, edges, and what chose the number of regimes."""
        label, regimes = self.regimes.label, self.regimes
        change = np.append(True, (label[1:] != label[:-1]) | (self.data.episode[1:] != self.data.episode[:-1]))
        first = np.flatnonzero(change)
        lengths = np.diff(np.append(first, len(label)))
        runs = [
            [int(self.data.episode[t]), int(self.data.step[t]), int(length), int(label[t]) + 1]
            for t, length in zip(first, lengths, strict=True)
        ]
        return {
            "regimes": [
                {
                    "regime": k + 1,
                    "rows": int((label == k).sum()),
                    "rows_tested": int(regimes.rows(k).sum()),
                    "episodes": len(np.unique(self.data.episode[label == k])),
                    "kept": int(mask.kept.sum()),
                }
                for k, mask in enumerate(self.masks)
            ],
            "edges": [
                {
                    "from": source,
                    "to": target,
                    "verdict": verdict,
                    "regimes": [k + 1 for k, mask in enumerate(self.masks) if (source, target) in mask.graph.edges],
                }
                for (source, target), verdict in self.edges.items()
            ],
            "runs": runs,
            "scores": list(regimes.scores),
        }


def discover_regimes(
    data: Transitions,
    regimes: int | str = "auto",
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **settings: Any,
) -> RegimeMasks:
    """Find regimes, and the mask of each from the rows that are surely in it.

    With one regime the mask is that of `discover`. Otherwise rows near a change of regime are left out of the tests,
    and episodes keep their numbers, since rows of one episode stay dependent.

    Args:
        data: logged transitions; the rows of an episode in time order.
        regimes: their number, or 'auto' (see `find`).
        seed: of everything random.
        progress: called with (targets finished, targets in all regimes).
        settings: further keyword arguments of `discover`.
    """
    variables = Variables.from_arrays(data.factors, data.state, data.action, data.next_state, data.episode)
    result = find_regimes(variables, regimes, seed)

    def report(regime: int) -> Callable[[int, int], None]:
        def one(done: int, total: int) -> None:
            if done or not regime:
                progress(regime * total + done, result.count * total)

        return one

    masks = tuple(
        discover(data if result.count == 1 else data.rows(result.rows(k)), seed=seed, progress=report(k), **settings)
        for k in range(result.count)
    )
    return RegimeMasks(result, masks, data)
