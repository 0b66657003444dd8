"""The sizes of the experiments: as in the paper, or tiny."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from because_rl.envs.tasks import BEHAVIOURS, SPLITS, check_world
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import Grid, read_grid
from because_rl.runs.oracle import EPISODES as ORACLE_EPISODES


@dataclass(frozen=True)
class Scale:
    """The sizes of all experiments. The defaults are the paper's where it gives them."""

    grid: Grid = field(default_factory=Grid)
    """worlds, policies, seeds and episodes of the tables, and of the other experiments unless a field here differs"""
    only: tuple[str, ...] = ()
    """the methods to include; empty: all"""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """method -> its settings"""
    knob_policies: tuple[str, ...] = ("medium",)
    """behaviour policies of the figures that vary one property of the data"""
    knob_splits: tuple[str, ...] = SPLITS
    ratios: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    levels: tuple[int, ...] = (1, 2, 4, 8)
    coverages: tuple[float | None, ...] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
    mismatch_policies: tuple[str, ...] = ("expert", "medium", "random")
    mismatch_scenes: int = 500
    """per seed and split; ten seeds make 5,000 episodes"""
    energy_points: int = 40
    """points on a learning curve"""
    graph_shares: Mapping[str, float] = field(default_factory=lambda: {"lift": 1.0, "unlock": 1.0, "crash": 1.0})
    """world -> share of the offline data that a graph is discovered from"""
    oracle_episodes: Mapping[str, int] = field(default_factory=lambda: ORACLE_EPISODES)
    visual_draws: tuple[int, ...] = tuple(range(10))
    """seeds of the datasets of visual Unlock, each with `visual_seeds` seeds of training"""
    visual_seeds: int = 1
    pictured: tuple[str, ...] = ("lift", "unlock", "crash")
    theorem_samples: tuple[int, ...] = (100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
    theorem_repetitions: int = 60

    def methods(self, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The wanted methods that are registered and included, with their settings."""
        from because_rl.algorithms.registry import METHODS

        return {m: dict(self.settings.get(m, {})) for m in wanted if m in METHODS and (not self.only or m in self.only)}


_SMALL = {"world_steps": 100, "hidden": 8, "batch": 32, "rate": 1e-2}
_SMALL_BECAUSE = _SMALL | {"energy_steps": 100, "check_steps": 0, "batches": 0}
TINY = Scale(
    grid=Grid(worlds=("unlock",), policies=("expert",), subcases=False, seeds=2, episodes=8, ratios=(0.2,), chunk=10),
    only=("because", "linear", "mopo", "td3bc"),
    settings={name: _SMALL_BECAUSE for name in ("because", "linear")}
    | {"mopo": _SMALL | {"members": 2}, "td3bc": {"steps": 100}},
    knob_policies=("expert",),
    knob_splits=("O",),
    ratios=(0.1, 0.2),
    levels=(1, 2),
    coverages=(0.0, None),
    mismatch_policies=("expert",),
    mismatch_scenes=10,
    energy_points=10,  # so that all runs have the same chunk, hence the same programs
    graph_shares={"unlock": 0.2, "crash": 0.02},
    oracle_episodes={"unlock": 20, "crash": 2},
    visual_draws=(0,),
    theorem_samples=(100, 1000, 10_000),
    theorem_repetitions=4,
)


def make_scale(
    tiny: bool = False,
    grid: str = "paper",
    methods: Sequence[str] = (),
    worlds: Sequence[str] = (),
    policies: Sequence[str] = (),
) -> Scale:
    """The paper's sizes or tiny ones, with the fields of a grid file and only the given methods, worlds and policies.

    An empty sequence leaves that choice as it is.
    """
    from because_rl.algorithms.registry import METHODS

    scale = TINY if tiny else Scale()
    if grid != "paper":
        chosen_grid = read_grid(grid)
        named = chosen_grid.methods if isinstance(chosen_grid.methods, dict) else {}
        if renamed := [label for label in named if label not in METHODS]:
            raise BecauseError(
                f"{grid} has a row {renamed[0]!r}.",
                need="methods by their own names.",
                fix="tabulate it with 'because sweep'.",
            )
        scale = replace(scale, grid=chosen_grid, settings=named or scale.settings, only=tuple(named) or scale.only)
    for method in methods:
        if method not in METHODS:
            raise BecauseError(
                f"There is no method {method!r}.", need=f"one of {', '.join(METHODS)}.", fix="correct it."
            )
    if methods:
        scale = replace(scale, only=tuple(methods))
    if worlds:
        kept = {check_world(world) for world in worlds}
        scale = replace(
            scale,
            grid=replace(scale.grid, worlds=tuple(worlds)),
            graph_shares={world: share for world, share in scale.graph_shares.items() if world in kept},
            oracle_episodes={world: episodes for world, episodes in scale.oracle_episodes.items() if world in kept},
            pictured=tuple(worlds),
        )
    if bad := [policy for policy in policies if policy not in BEHAVIOURS]:
        raise BecauseError(
            f"There is no policy {bad[0]!r}.", need=f"one of {', '.join(BEHAVIOURS)}.", fix="correct it."
        )
    if policies:
        chosen = tuple(policies)
        scale = replace(
            scale, grid=replace(scale.grid, policies=chosen), knob_policies=chosen, mismatch_policies=chosen
        )
    return scale
