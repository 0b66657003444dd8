"""What carries the result: each departure of `because` from the paper taken back, alone and one after the other.

`SWITCHES` are settings of `because` that take one departure back each, in the order of the ladder that leads to the
paper; `PAPER` are its last steps, and `ALONE` are switches that lead elsewhere. All are trained on development data and
judged on development scenes, as the trials of a tuning round are (`tuning.tune`).

Two departures cannot be taken back alone. The mask can be on the core only where the prediction is bilinear, so that
switch stands for both. And features can be tested only where they are the paper's, so alternation is a step of
`because-paper`, which can also estimate its mask first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from because_rl.algorithms.presets import WORLD_SETTINGS
from because_rl.envs.tasks import check_world
from because_rl.experiments.formatting import csv_text, markdown_table
from because_rl.experiments.grid.cells import find_cells
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.scale import make_scale
from because_rl.experiments.tuning.table import format_settings
from because_rl.experiments.tuning.trials import ByWorld
from because_rl.experiments.tuning.tune import Round, development_jobs
from because_rl.io import write_json, write_text
from because_rl.report.graph_figure import save
from because_rl.report.paper_figures import draw_attribution
from because_rl.statistics import stratified_t_interval

OURS = "because"


class Switch(NamedTuple):
    name: str
    settings: Mapping[str, Any]
    """of `OURS`, or of `method`"""
    worlds: tuple[str, ...] = ("lift", "crash", "unlock")
    """where it changes anything"""
    method: str = OURS


_PAPER_TEST = ("threshold", "mask_rows")
CONTINUOUS = ("lift", "crash")
SWITCHES: tuple[Switch, ...] = (
    Switch("constants of an episode are tested", {"echo_rule": False}),
    Switch("no edge comes back", {"check_steps": 0}),
    Switch(
        "the paper's tests and thresholds",
        ByWorld(
            {
                world: {name: settings[name] for name in _PAPER_TEST if name in settings}
                | ({"test": "fcit"} if world in CONTINUOUS else {})
                for world, settings in WORLD_SETTINGS["because-paper"].items()
            }
        ),
    ),
    Switch("no background rows", {"weights.background": 0.0}, ("crash", "unlock")),
    Switch("voters see all episodes", {"weights.jackknife": False}, CONTINUOUS),
    Switch("mean vote", {"vote": "mean"}, ("crash",)),
    Switch("no mixed rows for the energy", {"energy.support": False}),
    Switch("energy of the goal's factors only", {"feared": "goal"}),
    Switch("energies see the mask only", {"energy_inputs": "mask"}),
    Switch("no representation loss", {"weights.representation": 0.0}),
    Switch("proposals and value see all", {"proposal_mask": "full"}, CONTINUOUS),
    Switch("bilinear prediction", {"prediction": "gated-score"}),
    Switch("bilinear prediction, mask on the core", {"prediction": "score"}),
)
"""Lift's goal hangs on no binary factor and Unlock's binary factors are on slots, so neither has votes that count;
Unlock is planned without proposals."""
PAPER: tuple[Switch, ...] = (
    Switch(
        "the paper's energy, sizes and budget",
        ByWorld(unlock={}, other={"alternate": False}),
        method="because-paper",
    ),
    Switch("features and mask alternate", {}, CONTINUOUS, "because-paper"),
)
"""Steps after `SWITCHES`; the elements of Unlock are levels, which rounds do not change, so its tests need no features.
"""
ALONE: tuple[Switch, ...] = (
    Switch("undetermined edges are excluded", {"undetermined": "excluded"}),
    Switch("one mask instead of M-bar", {"batches": 0}),
    Switch("pessimism 0", {"pessimism": 0.0}),
    Switch("every edge (linear)", {"mask": "full"}),
    Switch("every edge, proposals gated", {"mask": "full", "proposal_mask": "discovered"}, CONTINUOUS),
)
"""Undetermined edges are no step of the ladder: fcit leaves no edge undetermined, and `because-paper` keeps those of
the G-test in the mask."""
TINY = Round(
    worlds=("unlock",),
    policies=("medium",),
    episodes=4,
    ratio=0.1,
    given={
        "because": {"world_steps": 20, "hidden": 8, "batch": 16, "energy_steps": 20, "check_steps": 20, "batches": 0},
        "because-paper": {"world_steps": 10, "hidden": 8, "batch": 16, "energy_steps": 20, "energy_hidden": 8},
    },
)


def make_size(
    tiny: bool = False, grid: str = "paper", worlds: Sequence[str] = (), policies: Sequence[str] = ()
) -> Round:
    """The worlds and policies to take, and the size of each training; arguments as in `scale.make_scale`."""
    chosen, size = make_scale(tiny, grid, (), worlds, policies).grid, TINY if tiny else Round()
    names = [name for name, given in (("worlds", worlds), ("policies", policies)) if given]
    if grid != "paper":
        names = ["worlds", "policies", "dataset_seeds", "seeds", "episodes"]
    return replace(size, **{name: getattr(chosen, name) for name in names})


class Entry(NamedTuple):
    """A training of the table on one world."""

    kind: str
    """'ours', 'switch' or 'ladder'"""
    name: str
    method: str
    settings: Mapping[str, Any] | None
    """None: as the entry before it on the ladder, or as ours"""


def entries(world: str) -> list[Entry]:
    """What is trained on a world: ours, each switch by itself, and the ladder to the paper."""

    def of_world(switch: Switch) -> Mapping[str, Any] | None:
        settings = switch.settings
        if isinstance(settings, ByWorld):
            settings = settings[world] if world in settings else settings["other"]
        return settings if world in switch.worlds else None

    singles = [Entry("switch", s.name, s.method, of_world(s)) for s in (*SWITCHES, *ALONE)]
    ladder: list[Entry] = []
    thrown: dict[str, Any] = {}
    for switch in SWITCHES:
        settings = of_world(switch)
        thrown = {**thrown, **(settings or {})}
        ladder.append(Entry("ladder", switch.name, switch.method, None if settings is None else thrown))
    ladder += [Entry("ladder", s.name, s.method, of_world(s)) for s in PAPER]
    return [Entry("ours", "BECAUSE", OURS, {}), *singles, *ladder]


def jobs(size: Round) -> list[Job]:
    """One job for each training, each once; a world's entries in their order, ours first."""
    return list({job.key: job for _, _, trainings in _entry_jobs(size) for job in trainings}.values())


def _entry_jobs(size: Round) -> list[tuple[str, Entry, list[Job]]]:
    """(world, entry, its trainings), entry by entry."""
    by_world = {world: entries(check_world(world)) for world in size.worlds}
    listed = [
        (world, entry)
        for row in zip(*by_world.values(), strict=True)
        for world, entry in zip(by_world, row, strict=True)
    ]
    return [
        (world, entry, [] if entry.settings is None else development_jobs(size, entry.method, world, entry.settings))
        for world, entry in listed
    ]


# The table ---------------------------------------------------------------------------------------------


def write_table(size: Round, folder: Path, any_code: bool = False) -> dict[str, Any]:
    """Write ``table.json``, ``.csv``, ``.md`` and the picture of all finished cells; returns the content of the JSON.

    `any_code` is that of `find_cells`.
    """
    all_jobs = jobs(size)
    cells = find_cells(all_jobs, folder, any_code)
    rows: list[dict[str, Any]] = []
    ours: dict[str, dict] = {}
    for world, entry, entry_jobs in _entry_jobs(size):
        rates = _rates(entry_jobs, cells)
        ours.setdefault(world, rates)  # the first entry
        row: dict[str, Any] = {"world": world, **entry._asdict(), "datasets": len({place[:2] for place in rates})}
        for split in size.splits:
            own = {place: rate for place, rate in rates.items() if place[2] == split}
            changes = {place: rate - ours[world][place] for place, rate in own.items() if place in ours[world]}
            row |= _with_interval(f"success_{split}", own) | _with_interval(f"change_{split}", changes)
        tasks = [(policy, split) for policy in size.policies for split in size.splits]
        for policy, split in tasks:
            own_rates = [rate for place, rate in rates.items() if (place[0], place[2]) == (policy, split)]
            row[f"{policy}_{split}"] = float(np.mean(own_rates)) if own_rates else None
        rows.append(row)
    order = {world: n for n, world in enumerate(size.worlds)}
    rows.sort(key=lambda row: order[row["world"]])
    heads = {key for job in all_jobs for key in job.cells}
    table = {"rows": rows, "cells": len(heads), "missing": len(heads - cells.keys()), "trainings": len(all_jobs)}
    table |= {name: list(getattr(size, name)) for name in ("worlds", "policies", "dataset_seeds", "splits")}
    table |= {"seeds": size.seeds, "episodes": size.episodes}
    write_json(folder / "table.json", table)
    write_text(folder / "table.csv", csv_text([row | {"settings": format_settings(row["settings"])} for row in rows]))
    write_text(folder / "table.md", _markdown(size, table))
    if any(row["datasets"] for row in rows):
        figure = draw_attribution(rows, size.splits)
        for suffix in (".svg", ".png"):
            save(figure, folder / f"attribution{suffix}")
    return table


def _rates(entry_jobs: Sequence[Job], cells: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int, str], float]:
    """(policy, dataset seed, split) -> success, of the finished cells."""
    finished = [cells[key] for job in entry_jobs for key in job.cells if key in cells]
    return {
        (cell["recipe"]["behaviour"], cell["recipe"]["seed"], cell["split"]): float(np.mean(cell["per_seed"]))
        for cell in finished
    }


def _with_interval(name: str, values: Mapping[tuple[str, int, str], float]) -> dict[str, Any]:
    """The mean over policies, which are fixed, with an interval over datasets, which are draws."""
    by_policy: dict[str, list[float]] = {}
    for (policy, _, _), value in values.items():
        by_policy.setdefault(policy, []).append(value)
    if not values:
        return dict.fromkeys((name, f"{name}_low95", f"{name}_high95"))
    low, high = stratified_t_interval(list(by_policy.values()))
    return {name: (low + high) / 2, f"{name}_low95": low, f"{name}_high95": high}


def _markdown(size: Round, table: Mapping[str, Any]) -> str:
    seeds, scenes = " and ".join(map(str, size.dataset_seeds)), f"{size.episodes} development scenes"
    parts = [
        "# What carries the result",
        f"`because`, and steps from it towards `because-paper`. Success in %, the mean over development datasets "
        f"(seeds {seeds}; {', '.join(size.policies)}), with {size.seeds} training seed{'s' if size.seeds > 1 else ''} "
        f"each and {scenes} of each split, which no dataset and no evaluation contains. "
        "In brackets the number of datasets where some are missing; '=': the switch changes nothing there.",
        "## One switch at a time",
        "The change from BECAUSE in points, ± half of the 95% t-interval over the datasets of each policy, paired.",
        _table(size, table["rows"], ("ours", "switch"), "change"),
        "## One after the other",
        "Each row has all switches of the rows above it, and the last is the paper's algorithm; ± half of the 95% "
        "t-interval over the datasets of each policy.",
        _table(size, table["rows"], ("ours", "ladder"), "success"),
    ]
    parts += [f"{table['missing']} of {table['cells']} cells are missing."] if table["missing"] else []
    return "\n\n".join(parts) + "\n"


def _table(size: Round, rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], value: str) -> str:
    lines: dict[str, dict[str, str]] = {}
    every = len(size.policies) * len(size.dataset_seeds)
    for row in (row for row in rows if row["kind"] in kinds):
        for split in size.splits:
            name = "success" if row["kind"] == "ours" else value
            text = _cell(row, f"{name}_{split}", name == "change", every)
            lines.setdefault(row["name"], {"switch": row["name"]})[f"{row['world']} {split}"] = text
    return markdown_table(list(lines.values()))


def _cell(row: Mapping[str, Any], name: str, signed: bool, every: int) -> str:
    if row["settings"] is None:
        return "="
    if row[name] is None:
        return "-"
    value = round(100 * row[name], 1) + 0.0  # and not -0.0
    number = f"{value:+.1f}" if signed else f"{value:.1f}"
    half = 50 * (row[f"{name}_high95"] - row[f"{name}_low95"])
    number += f" ± {half:.1f}" if row["datasets"] > 1 else ""
    return number if row["datasets"] == every else f"{number} ({row['datasets']})"
