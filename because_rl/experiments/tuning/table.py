"""The table of a tuning round: every trial, and which of them presets would take by one rule for all methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.experiments.formatting import csv_text, markdown_table, method_name, p_value
from because_rl.experiments.grid.cells import find_cells
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.tuning.trials import SHARED, TRIALS
from because_rl.experiments.tuning.tune import Round
from because_rl.io import write_json, write_text
from because_rl.statistics import holm, leads_over_first

LEVEL = 0.05
RULE = (
    "The rule, the same for every method. Of the trials of a method on a world, the one with the best mean success "
    "over all tasks (a behaviour policy and a split each) is taken if its lead over the preset is beyond noise, else "
    "the preset. All trials are trained on the same datasets, so leads are paired: noise is what is left of a "
    "training's success, the mean over splits, when the mean of its trial and that of its dataset, both within a "
    "policy, are taken away (two-way analysis of variance). A lead is beyond it if the one-sided t-test, with Holm's "
    f"adjustment for {TRIALS - 1} changes, has p <= {LEVEL}. With one dataset of each policy noise is unknown, and the "
    "preset stays."
)


def write_table(tuning: Round, jobs: Sequence[Job], folder: Path, any_code: bool = False) -> dict[str, Any]:
    """Write ``table.json``, ``.csv`` and ``.md`` of a round's finished cells; returns the content of the JSON.

    `jobs` are those of `tune.jobs`. The same cells give the same bytes. `any_code` is that of `find_cells`.
    """
    cells = find_cells(jobs, folder, any_code)
    heads = {key: head for job in jobs for key, head in job.cells.items()}
    trials: dict[tuple[str, str, int], list[str]] = {}
    for key, head in heads.items():
        trials.setdefault((head["method"], head["recipe"]["world"], head["trial"]), []).append(key)
    order = {name: n for n, name in enumerate([*tuning.methods, *tuning.worlds])}
    rows = [
        {"method": method, "world": world, "trial": trial, "settings": heads[keys[0]]["settings"]}
        | _success(tuning, [cells[key] for key in keys if key in cells])
        | {"cells": [key for key in keys if key in cells]}
        for (method, world, trial), keys in trials.items()
    ]
    rows.sort(key=lambda row: (order[row["method"]], order[row["world"]], row["trial"]))
    choices = [
        {"method": method, "world": world}
        | choose([row for row in rows if (row["method"], row["world"]) == (method, world)])
        for method in tuning.methods
        for world in tuning.worlds
    ]
    would_take: dict[str, dict[str, Any]] = {}
    for choice in choices:
        if choice["settings"]:
            would_take.setdefault(choice["method"], {})[choice["world"]] = choice["settings"]
    table = {"trials_of_each_method": TRIALS, "rule": RULE, "shared": SHARED, "seeds": tuning.seeds}
    table |= {name: list(getattr(tuning, name)) for name in ("policies", "dataset_seeds", "splits")}
    table |= {"episodes": tuning.episodes, "rows": rows, "choices": choices, "presets_would_take": would_take}
    table |= {"cells": len(heads), "missing": len(heads) - len(cells)}
    write_json(folder / "table.json", table)
    tasks = [f"{policy}-{split}" for policy in tuning.policies for split in tuning.splits]
    columns = ("method", "world", "trial", "settings", *tasks, "success", "held_out_error")
    csv_rows = [row | row["tasks"] | {"settings": format_settings(row["settings"])} for row in rows]
    write_text(folder / "table.csv", csv_text(csv_rows, columns))
    write_text(folder / "table.md", _markdown(tuning, table))
    return table


def _success(tuning: Round, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a trial: on each task (mean over datasets), of each training, and over all; None where a cell is missing."""
    rates = {
        (cell["recipe"]["behaviour"], cell["recipe"]["seed"], cell["split"]): float(np.mean(cell["per_seed"]))
        for cell in cells
    }
    trainings = [
        [_mean([rates.get((policy, seed, split)) for split in tuning.splits]) for seed in tuning.dataset_seeds]
        for policy in tuning.policies
    ]
    errors = [cell["held_out"]["error"] for cell in cells if cell["held_out"]]
    return {
        "tasks": {
            f"{policy}-{split}": _mean([rates.get((policy, seed, split)) for seed in tuning.dataset_seeds])
            for policy in tuning.policies
            for split in tuning.splits
        },
        "trainings": trainings,
        "success": _mean([rate for row in trainings for rate in row]),
        "held_out_error": float(np.mean(errors)) if errors else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing. Rounded, since sums of floats are not exact and ties are to be ties."""
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 9) if len(known) == len(values) else None


def choose(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which trial of a method on a world its preset would take, by `RULE`; nothing before all trials are finished.

    Args:
        rows: a trial each, with `trial`, `settings`, `success` and `trainings`, the success for each policy and, within
            it, each dataset. Trial 0 is the preset.

    Returns:
        `best`: the trial of the highest mean, the first of several; `taken`: it or the preset; `settings` of that one;
        `lead` of the best over the preset; `p`, and `noise`: None for the preset, else 'within', 'beyond' or 'unknown'.
    """
    by_trial = {row["trial"]: row for row in rows if row["success"] is not None}
    result: dict[str, Any] = {"trials": len(by_trial)}
    result |= dict.fromkeys(("best", "taken", "settings", "lead", "p", "noise"))
    if set(by_trial) != set(range(TRIALS)):
        return result
    best = max(range(TRIALS), key=lambda trial: (by_trial[trial]["success"], -trial))
    result |= {"best": best, "taken": 0, "lead": by_trial[best]["success"] - by_trial[0]["success"]}
    if best:
        rates = np.array([by_trial[trial]["trainings"] for trial in range(TRIALS)], float)
        p = holm([lead.p for lead in leads_over_first(rates)])[best - 1] if rates.shape[2] > 1 else None
        result |= {"p": p, "noise": "unknown" if p is None else "within" if p > LEVEL else "beyond"}
        result["taken"] = best if result["noise"] == "beyond" else 0
    return result | {"settings": by_trial[result["taken"]]["settings"]}


# Text --------------------------------------------------------------------------------------------------


def format_settings(settings: Mapping[str, Any] | None) -> str:
    """
    >>> format_settings({"price": 0.2, "pessimism": None}), format_settings({}), format_settings(None)
    ('price=0.2 pessimism=null', 'the preset', '-')
    """
    if settings is None:
        return "-"
    return " ".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items()) or "the preset"


def format_choice(choice: Mapping[str, Any]) -> str:
    """What came of the trials of a method on a world, as a sentence without its end."""
    if choice["best"] is None:
        return f"open: {choice['trials']} of {TRIALS} trials are complete"
    if choice["best"] == 0:
        return "the preset, which no change beats"
    noise = {"within": "within noise", "beyond": "beyond noise", "unknown": "noise unknown"}[choice["noise"]]
    p = "" if choice["p"] is None else f", p = {p_value(choice['p'])}"
    lead = f"the best mean leads by {100 * choice['lead']:.1f} points, {noise}{p}"
    return f"{format_settings(choice['settings'])}; {lead}"


def _markdown(tuning: Round, table: Mapping[str, Any]) -> str:
    chosen = {(choice["method"], choice["world"], choice["taken"]) for choice in table["choices"]}
    tables = []
    for world in tuning.worlds:
        lines = [
            {"method": method_name(row["method"]), "trial": _trial(row)}
            | {task: _percent(rate) for task, rate in row["tasks"].items()}
            | {"mean": _percent(row["success"], (row["method"], world, row["trial"]) in chosen)}
            for row in table["rows"]
            if row["world"] == world
        ]
        tables += [f"## {world}", markdown_table(lines)]
    results = [f"- `{c['method']}` on {c['world']}: {format_choice(c)}." for c in table["choices"]]
    seeds = " and ".join(map(str, tuning.dataset_seeds))
    shared = ", ".join(f"`{name}` (`{tuned}`)" for name, tuned in SHARED.items())
    parts = [
        "# Tuning: the same number of trials for every method",
        f"{TRIALS} trials of each method on each world: the preset, and {TRIALS - 1} changes of it, listed in "
        "`because_rl.experiments.tuning.trials` before any was run. Success in %, for each behaviour policy of the "
        f"data and each split: the mean over development datasets (seeds {seeds}), with {tuning.seeds} training "
        f"seed{'s' if tuning.seeds > 1 else ''} each and {tuning.episodes} development scenes, which no dataset and no "
        "evaluation contains. Bold: what the preset would take.",
        RULE,
        "## What presets would take",
        "\n".join(results),
        f"Not tuned themselves; they share the trials of another method: {shared}.",
        *tables,
    ]
    parts += [f"{table['missing']} of {table['cells']} cells are missing."] if table["missing"] else []
    return "\n\n".join(parts) + "\n"


def _percent(rate: float | None, bold: bool = False) -> str:
    text = "-" if rate is None else f"{100 * rate:.1f}"
    return f"**{text}**" if bold else text


def _trial(row: Mapping[str, Any]) -> str:
    return f"`{format_settings(row['settings'])}`" if row["trial"] else "preset"
