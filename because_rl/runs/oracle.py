"""Success of the oracle planner, by world and split: the ceiling for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from because_rl.envs.tasks import SPLITS, WORLDS
from because_rl.evaluation.oracle_planner import oracle_outcome
from because_rl.provenance import provenance
from because_rl.statistics import wilson

EPISODES = {"unlock": 200, "crash": 100, "lift": 30}
"""per split; fewer where planning is slow"""


def oracle(
    worlds: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    episodes: int | Mapping[str, int] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Evaluate the oracle planner in every world and split.

    Args:
        worlds: None: all.
        splits: None: I and O.
        episodes: per world and split: one number, or one for each world; None: EPISODES.
        report: called with (world-split pairs done, pairs in all).

    Returns:
        "rows" of world, split, episodes, success with a 95% interval (Wilson's), mean steps to success, seconds; and
        the "provenance".
    """
    worlds, splits = list(worlds or WORLDS), list(splits or SPLITS)
    if isinstance(episodes, int):
        episodes = dict.fromkeys(worlds, episodes)
    counts = {world: (episodes or EPISODES)[world] for world in worlds}
    cells = [(world, split) for world in worlds for split in splits]
    rows = []
    for done, (world, split) in enumerate(cells):
        report(done, len(cells))
        begin = time.perf_counter()
        outcome = oracle_outcome(world, split, counts[world])
        share = float(outcome.success.mean())
        low, high = wilson(share, counts[world])
        rows.append(
            {
                "world": world,
                "split": split,
                "episodes": counts[world],
                "success": round(share, 4),
                "low95": round(float(low), 4),
                "high95": round(float(high), 4),
                "steps": round(float(outcome.steps[outcome.success].mean()), 2) if share else None,
                "seconds": round(time.perf_counter() - begin, 1),
            }
        )
    report(len(cells), len(cells))
    return {"rows": rows, "provenance": provenance(episodes=counts, splits=splits, seed=0)}
