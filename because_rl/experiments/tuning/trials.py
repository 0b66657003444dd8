"""The settings that a tuning round tries: for every method its preset, and three changes of it.

The preset is the one before tuning, so the round stays the same after its winners have been written to
`algorithms.presets.TUNED`.

Every method has the same number of trials, whoever wrote it. A change is what its authors, its docstring or our own
doubts name as most likely to matter, one at a time, and it was written here before anything was run.
Where a world makes a change pointless, that world has another in its place: Unlock's actions are discrete, so it is
planned exactly, and proposals, populations and spreads have no effect there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from because_rl.envs.tasks import check_world
from because_rl.errors import BecauseError

TRIALS = 4
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
    # The price of uncertainty, and the number of imagined futures.
    "because": (
        {"price": 0.02},
        {"price": 0.2},
        ByWorld(unlock={"world_steps": Times(2)}, other={"planner.population": Times(2)}),
    ),
    # The original's own penalty.
    "mopo": ({"price": 0.02}, {"price": 0.2}, {"penalty": "max_sigma"}),
    # Earlier trials chose the smallest alpha. With the table's tau, the target networks of Crash cover at most 63% of
    # the way to the trained ones.
    "td3bc": (
        {"alpha": Times(0.3)},
        {"alpha": Times(3)},
        ByWorld(lift={"steps": Times(2)}, other={"tau": Times(10)}),
    ),
    # The table's rate of 1e-4 on Lift and Crash is meant for 100,000 steps.
    "ccil": (
        OPPOSITE_SAMPLING,
        {"weight": Times(10)},
        ByWorld(unlock={"hidden": Times(4)}, other={"rate": Times(10)}),
    ),
    # More invariance; less weight of the energy on the policy.
    "icil": (OPPOSITE_SAMPLING, {"fooling": 1.0}, {"energy": 0.1}),
    # Lift's network is the widest already.
    "gnn": (
        ByWorld(unlock={"layers": 2}, other={"layers": 1}),
        ByWorld(lift={"hidden": Times(0.5)}, other={"hidden": Times(2)}),
        {"rate": Times(0.3)},
    ),
    # The threshold of an edge was never tuned; the variant with a learned mask is the only one in the paper's table.
    "cdl": ({"threshold": Times(0.25)}, {"threshold": Times(4)}, {"variant": "regularised"}),
    "mnm": ({"joint": Times(0.1)}, {"price": 0.02}, {"price": 0.2}),
    "delphic": ({"price": 0.02}, {"price": 0.2}, {"epistemic": 0.1}),
    # The original's weight of KL is 1; `ease` decides what is left to the chain that the agent does not use.
    "denoised-mdp": ({"kl": 1.0}, {"kl": 0.01}, {"ease": 0.75}),
    # At .1 mutual information hardly matters; the reward's weight keeps in ar and r what would be cheaper elsewhere.
    "ifactor": ({"kl": 0.01}, {"rewarded": 1.0, "moved": 1.0}, {"reward": Times(3)}),
}
PLANNING_CHANGES: tuple[Mapping[str, Any], ...] = (
    {"rate": Times(0.3)},
    {"hidden": Times(2)},
    {"world_steps": Times(2)},
)
"""For a method that plans in a learned model and has no entry in `CHANGES`."""
SHARED = {name: "because" for name in ("because-paper", "optimism", "linear", "full")}
"""Methods without trials of their own -> the method whose trials they share. An ablation is BECAUSE less one thing, and
would not be if it were tuned separately; because-paper has the paper's settings."""


def trials(method: str, world: str, given: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The settings of each trial of a method on a world, as `make_method` takes them; the first is the preset, {}.

    `given` are settings that all trials have.

    >>> trials("td3bc", "lift")[:3]
    [{}, {'alpha': 0.3}, {'alpha': 3.0}]
    """
    from because_rl.algorithms.registry import METHODS, make_method
    from because_rl.planning.proposals import PlanningConfig

    changes = CHANGES.get(SHARED.get(method, method))
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
