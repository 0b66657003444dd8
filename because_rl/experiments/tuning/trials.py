"""The settings that a tuning round tries: for every method its preset, and seven changes of it.

The preset is the one before tuning, so the round stays the same after its winners have been written to
`algorithms.presets.TUNED`.

Every method has the same number of trials, whoever wrote it. A change is what its authors, its docstring or our own
doubts name as most likely to matter, and it was written here before anything was run. Where a world makes a change
pointless, that world has another in its place: Unlock's actions are discrete, so it is planned exactly, and proposals,
populations and spreads have no effect there.

What BECAUSE chose earlier on development scenes of split O is among its own trials (`feared`, the price, the jackknife
of votes, the share of warm starts, the population, widths and rates). All but `feared` is also given to all methods
that can use it, by `presets.WORLD_MODEL` and the defaults of the planner. Gates belong to masks that are means over
draws, which BECAUSE alone has; how they follow from the mask is no setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from because_rl.envs.tasks import check_world
from because_rl.errors import BecauseError

TRIALS = 8
"""Trials of each method on each world, including the preset."""


@dataclass(frozen=True)
class Times:
    """A multiple of the preset's value, which differs between worlds."""

    factor: float


class ByWorld(dict):
    """World -> settings; 'other' holds those of the worlds that are not named."""


OPPOSITE_SAMPLING = ByWorld(unlock={"greedy": False}, other={"greedy": True})
"""The preset (sample continuous actions, take the likeliest discrete one) was once chosen on evaluation scenes."""

CHANGES: dict[str, tuple[Mapping[str, Any], ...]] = {
    # Of which targets the uncertainty counts, its price, whether a vote rests on one event, and the number and kind of
    # imagined futures; Unlock, where none is imagined, learned at 1e-3 before.
    "because": (
        {"feared": "goal"},
        {"price": 0.02},
        {"price": 0.2},
        {"weights.jackknife": False},
        {"hidden": Times(2)},
        ByWorld(unlock={"world_steps": Times(2)}, other={"planner.population": Times(2)}),
        ByWorld(unlock={"rate": Times(0.5)}, other={"planner.warm_start_share": 0.0}),
    ),
    # The original has its own penalty, wider networks and no background rows.
    "mopo": (
        {"price": 0.02},
        {"price": 0.2},
        {"penalty": "max_sigma"},
        {"weights.background": 0.0},
        {"hidden": Times(2)},
        {"world_steps": Times(2)},
        ByWorld(unlock={"rate": Times(0.5)}, other={"planner.population": Times(2)}),
    ),
    # 2.5 is the original's alpha; earlier trials chose the smallest. With the table's tau, the target networks of
    # Crash lag far behind. The original learns at 3e-4, and knows no relabelling. Small data are learned by heart.
    "td3bc": (
        {"alpha": Times(0.3)},
        {"alpha": 2.5},
        ByWorld(lift={"tau": Times(0.2)}, other={"tau": Times(10)}),
        ByWorld(
            unlock={"critic_rate": 3e-4, "actor_rate": 3e-4},
            crash={"actor_rate": 3e-4},
            lift={"critic_rate": 1e-4, "actor_rate": 1e-4},
        ),
        {"relabel": 0.0},
        {"steps": Times(0.2)},
        {"hidden": Times(2)},
    ),
    # The price of a factor at which any is dropped was never known; the original draws graphs evenly. The table's rate
    # of 1e-4 on Lift and Crash is meant for 100,000 steps.
    "ccil": (
        OPPOSITE_SAMPLING,
        {"weight": Times(10)},
        {"weight": Times(100)},
        {"keep": 0.5},
        ByWorld(unlock={"rate": Times(0.3)}, other={"rate": Times(10)}),
        {"steps": Times(0.3)},
        ByWorld(unlock={"hidden": Times(4)}, other={"hidden": Times(2)}),
    ),
    # More invariance, more environments; less weight of what stands beside the policy's likelihood.
    "icil": (
        OPPOSITE_SAMPLING,
        {"fooling": 1.0},
        {"environments": 4},
        {"energy": 0.1},
        {"information": 0.1},
        {"steps": Times(0.3)},
        {"hidden": Times(2)},
    ),
    # How far messages go, networks that all factors of a kind share, and no background rows, which are ours. Lift's
    # network is the widest already.
    "gnn": (
        ByWorld(unlock={"layers": 2}, other={"layers": 1}),
        ByWorld(unlock={"layers": 3}, other={"layers": 2}),
        ByWorld(lift={"hidden": Times(0.5)}, other={"hidden": Times(2)}),
        {"rate": Times(0.3)},
        {"world_steps": Times(2)},
        {"own": False},
        {"background": 0.0},
    ),
    # The threshold of an edge; the variant with a learned mask, the only one in the paper's table, and its price of an
    # edge; the original's second step.
    "cdl": (
        {"threshold": Times(0.25)},
        {"threshold": Times(4)},
        {"variant": "regularised"},
        {"variant": "regularised", "sparsity": Times(0.1)},
        {"variant": "regularised", "sparsity": Times(10)},
        {"second_step": 0.0},
        {"world_steps": Times(2)},
    ),
    # The bound moves the model away from the data; the table's rate of the discriminator differs between worlds.
    "mnm": (
        {"joint": Times(0.1)},
        {"joint": Times(0.01)},
        {"price": 0.02},
        {"price": 0.2},
        ByWorld(unlock={"discriminator_rate": 1e-4}, other={"discriminator_rate": 1e-3}),
        {"floor": 0.1},
        {"world_steps": Times(2)},
    ),
    # The table's KL hardly restrains the hidden cause; the number of worlds decides what their disagreement can show.
    "delphic": (
        {"price": 0.02},
        {"price": 0.2},
        {"epistemic": 0.1},
        {"kl": Times(10)},
        {"kl": Times(100)},
        {"worlds": Times(2)},
        {"world_steps": Times(2)},
    ),
    # The original's weight of KL is 1; `ease` decides what is left to the chain that the agent does not use.
    "denoised-mdp": (
        {"kl": 1.0},
        {"kl": 0.01},
        {"ease": 0.75},
        {"reward": Times(3)},
        {"precision": Times(0.3)},
        {"share_rate": Times(0.3)},
        {"world_steps": Times(2)},
    ),
    # At .1 mutual information hardly matters; the reward's weight and the start keep in ar and r what would be cheaper
    # elsewhere.
    "ifactor": (
        {"kl": 1.0},
        {"kl": 0.01},
        {"ease": [1.0, 0.7, 0.7, 0.5]},
        {"rewarded": 1.0, "moved": 1.0},
        {"reward": Times(3)},
        {"start": Times(2)},
        {"world_steps": Times(2)},
    ),
}
PLANNING_CHANGES: tuple[Mapping[str, Any], ...] = (
    {"rate": Times(0.3)},
    {"rate": Times(3)},
    {"hidden": Times(0.5)},
    {"hidden": Times(2)},
    {"batch": Times(2)},
    {"world_steps": Times(0.5)},
    {"world_steps": Times(2)},
)
"""For a method that plans in a learned model and has no entry in `CHANGES`."""
SHARED = {**{name: "because" for name in ("because-paper", "optimism", "linear", "full")}, "mopo-plain": "mopo"}
"""Methods without trials of their own -> the method whose trials they share. An ablation is BECAUSE less one thing, and
would not be if it were tuned separately; because-paper and mopo-plain are what their papers say."""


def trials(method: str, world: str, given: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The settings of each trial of a method on a world, as `make_method` takes them; the first is the preset, {}.

    `given` are settings that all trials have.

    >>> trials("td3bc", "lift")[:3]
    [{}, {'alpha': 0.3}, {'alpha': 2.5}]
    """
    from because_rl.algorithms.registry import METHODS, make_method
    from because_rl.planning.proposals import PlanningConfig

    if method in SHARED:
        raise BecauseError(
            f"{method} is not tuned by itself.",
            need=f"one of {', '.join(CHANGES)}.",
            fix=f"tune {SHARED[method]}, whose trials it shares.",
        )
    changes = CHANGES.get(method)
    if changes is None and method in METHODS and issubclass(METHODS[method].config, PlanningConfig):
        changes = PLANNING_CHANGES
    if changes is None:
        raise BecauseError(
            f"There are no trials for the method {method!r}.",
            need=f"one of {', '.join(CHANGES)}.",
            fix="correct the name, or write its trials in experiments/tuning/trials.py.",
        )
    preset = make_method(method, given, check_world(world), tuned=False).config
    of_world = [c.get(world, c.get("other", {})) if isinstance(c, ByWorld) else c for c in changes]
    return [{}] + [{name: _value(preset, name, value) for name, value in change.items()} for change in of_world]


def _value(preset: Any, name: str, value: Any) -> Any:
    if not isinstance(value, Times):
        return value
    old = reduce(getattr, name.split("."), preset)
    return type(old)(float(f"{old * value.factor:.6g}"))  # rounded: 0.3, not 0.30000000000000004
