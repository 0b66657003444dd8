"""The settings that a tuning round tries: for every method its preset, and three changes of it.

The preset is the one before tuning, so the round stays the same when `algorithms.tuned` has taken what it found.

Every method has as many trials as any other, whoever wrote it. A change is what its authors, its docstring or our own
doubts (docs/roadmap.md) name as most likely to matter, one at a time, and written here before anything was run.
Where a world makes a change pointless (Unlock's actions are discrete: it is planned exactly, and proposals, populations
and spreads do nothing there), that world has another in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from because_rl.envs.tasks import check_world
from because_rl.errors import BecauseError

TRIALS = 4
"""of each method on each world, the preset among them"""


@dataclass(frozen=True)
class Times:
    """So many times what the preset has, which is not the same in every world."""

    factor: float


class By(dict):
    """World -> settings; 'other': of the worlds that are not named."""


OTHERWISE_DRAWN = By(unlock={"greedy": False}, other={"greedy": True})
"""The rule (draw continuous actions, take the likeliest discrete one) was once chosen on evaluation scenes."""

CHANGES: dict[str, tuple[Mapping[str, Any], ...]] = {
    # What uncertainty costs, and how many futures are imagined.
    "because": (
        {"price": 0.02},
        {"price": 0.2},
        By(unlock={"world_steps": Times(2)}, other={"planner.population": Times(2)}),
    ),
    # The original's own penalty; of discrete factors it is the other one, so Unlock has BECAUSE's rate instead.
    "mopo": (
        {"price": 0.02},
        {"price": 0.2},
        By(unlock={"rate": Times(2)}, other={"penalty": "max_sigma"}),
    ),
    # Earlier trials ended at the least alpha. The table's tau lets slow copies of Crash go 63% of the way, at most.
    "td3bc": (
        {"alpha": Times(0.3)},
        {"alpha": Times(3)},
        By(lift={"steps": Times(2)}, other={"tau": Times(10)}),
    ),
    # The table's rate of 1e-4 on Lift and Crash goes with 100,000 steps.
    "ccil": (
        OTHERWISE_DRAWN,
        {"weight": Times(10)},
        By(unlock={"hidden": Times(4)}, other={"rate": Times(10)}),
    ),
    # More invariance; less of a hand on the policy.
    "icil": (OTHERWISE_DRAWN, {"fooling": 1.0}, {"energy": 0.1}),
    # Lift's network is the widest already.
    "gnn": (
        By(unlock={"layers": 2}, other={"layers": 1}),
        By(lift={"hidden": Times(0.5)}, other={"hidden": Times(2)}),
        {"rate": Times(0.3)},
    ),
    # What makes an edge was never tuned; the rival with a learned mask is all that the paper's table has on CDL.
    "cdl": ({"threshold": Times(0.25)}, {"threshold": Times(4)}, {"variant": "regularised"}),
    "mnm": ({"joint": Times(0.1)}, {"price": 0.02}, {"price": 0.2}),
    # The table's weight of the penalty is next to none on our scale, so all three set it by the price, as others do.
    "delphic": ({"pessimism": None}, {"pessimism": None, "price": 0.2}, {"pessimism": None, "epistemic": 0.1}),
    # The original's weight of KL is 1; the ease decides what is pushed out of sight.
    "denoised-mdp": ({"kl": 1.0}, {"kl": 0.01}, {"ease": 0.75}),
    # At .1 mutual information hardly matters; the reward keeps in sight what is cheaper elsewhere.
    "ifactor": ({"kl": 0.01}, {"rewarded": 1.0, "moved": 1.0}, {"reward": Times(3)}),
}
SHARED = {name: "because" for name in ("because-paper", "optimism", "linear", "full")}
"""Not tuned by themselves. An ablation is BECAUSE less one thing, and would not be if it were tuned apart;
because-paper is what the paper says."""


def trials(method: str, world: str, given: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The settings of each trial on a world's data, for `make_method`; the first is the preset, {}.

    `given` are settings that all trials have.

    >>> trials("td3bc", "lift")[:3]
    [{}, {'alpha': 0.3}, {'alpha': 3.0}]
    """
    from because_rl.algorithms.registry import METHODS, make_method

    tried = CHANGES.get(SHARED.get(method, method))
    if method not in METHODS or tried is None:
        raise BecauseError(
            f"There are no trials for the method {method!r}.",
            need=f"one of {', '.join(CHANGES)}.",
            fix="correct the name, or write its trials in experiments/trials.py.",
        )
    preset = make_method(method, given, check_world(world), tuned=False).config
    wanted = [change.get(world, change.get("other", {})) if isinstance(change, By) else change for change in tried]
    return [{}] + [{name: _value(preset, name, value) for name, value in change.items()} for change in wanted]


def _value(preset: Any, name: str, value: Any) -> Any:
    if not isinstance(value, Times):
        return value
    now = reduce(getattr, name.split("."), preset)
    return type(now)(float(f"{now * value.factor:.6g}"))  # .3, and not what floats make of it
