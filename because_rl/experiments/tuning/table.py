"""The table of a tuning round: every trial, and the winner of each method and world with its significance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from because_rl.experiments.formatting import csv_text, markdown_table, method_name, p_value, percent
from because_rl.experiments.grid.cells import find_cells
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.tuning.development import SPLIT
from because_rl.experiments.tuning.trials import SHARED, TRIALS
from because_rl.experiments.tuning.tune import Round
from because_rl.io import write_json, write_text
from because_rl.statistics import holm, mean, welch

COLUMNS = (
    *("method", "world", "dataset", "trial", "settings", "seeds", "episodes", "success", "low95", "high95", "best"),
    *("held_out_error", "seconds", "per_seed"),
)


def write_table(tuning: Round, jobs: Sequence[Job], folder: Path, any_code: bool = False) -> dict[str, Any]:
    """Write ``table.json``, ``.csv`` and ``.md`` of a round's finished cells; returns the content of the JSON.

    The same cells give the same bytes. `any_code` is that of `find_cells`.
    """
    cells = find_cells(jobs, folder, any_code)
    rows = [_row(key, cells[key]) for job in jobs for key in job.cells if key in cells]
    order = {name: n for n, name in enumerate([*tuning.methods, *tuning.worlds])}
    rows.sort(key=lambda row: (order[row["method"]], order[row["world"]], row["trial"]))
    winners = [
        find_winner([row for row in rows if (row["method"], row["world"]) == (method, world)])
        | {"method": method, "world": world}
        for method in tuning.methods
        for world in tuning.worlds
    ]
    best = {(w["method"], w["world"], w["winner"]) for w in winners}
    rows = [row | {"best": (row["method"], row["world"], row["trial"]) in best} for row in rows]
    table = {"trials_of_each_method": TRIALS, "split": SPLIT, "policy": tuning.policy, "shared": SHARED}
    table |= {"rows": rows, "winners": winners, "missing": len(jobs) - len(rows)}
    write_json(folder / "table.json", table)
    csv_rows = [row | {"settings": format_settings(row["settings"]), "best": int(row["best"])} for row in rows]
    write_text(folder / "table.csv", csv_text(csv_rows, COLUMNS))
    write_text(folder / "table.md", _markdown(tuning, table))
    return table


def _row(key: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    success = mean(cell["per_seed"])
    return {
        **{name: cell[name] for name in ("method", "dataset", "trial", "settings", "seeds", "per_seed")},
        "world": cell["recipe"]["world"],
        "episodes": cell["scenes"],
        "success": success.value,
        "low95": max(success.low, 0.0),
        "high95": min(success.high, 1.0),
        "held_out_error": cell["held_out"] and cell["held_out"]["error"],
        "seconds": round(sum(cell["seconds"].values()), 2),
        "cell": key,
    }


def find_winner(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The winner among the trials of one method on one world: the highest mean success; a tie goes to the preset.

    There is no winner before all trials are finished. `noise` says whether the winner's lead over the preset is within
    the noise of seeds: Welch's test that it is better, with Holm's adjustment for three changes that might have won.
    """
    by_trial = {row["trial"]: row for row in rows}
    result: dict[str, Any] = {"trials": len(by_trial)}
    result |= dict.fromkeys(("winner", "settings", "lead", "p", "noise"))
    if set(by_trial) != set(range(TRIALS)):
        return result
    # The first of the best; the preset is trial 0. Rounded, because sums of floats are not exact.
    winner = max(range(TRIALS), key=lambda trial: (round(by_trial[trial]["success"], 9), -trial))
    result |= {"winner": winner, "settings": by_trial[winner]["settings"]}
    result["lead"] = by_trial[winner]["success"] - by_trial[0]["success"]
    if winner == 0:
        return result
    rates = [by_trial[trial]["per_seed"] for trial in range(TRIALS)]
    if len(rates[0]) < 2:
        return result | {"noise": "unknown"}
    p = holm([welch(rates[trial], rates[0], "greater").p for trial in range(1, TRIALS)])[winner - 1]
    return result | {"p": p, "noise": "within" if p > 0.05 else "beyond"}


def format_settings(settings: Mapping[str, Any] | None) -> str:
    """
    >>> format_settings({"price": 0.2, "pessimism": None}), format_settings({}), format_settings(None)
    ('price=0.2 pessimism=null', 'the preset', '-')
    """
    if settings is None:
        return "-"
    return " ".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items()) or "the preset"


def _markdown(tuning: Round, table: Mapping[str, Any]) -> str:
    rows = {(row["method"], row["world"], row["trial"]): row for row in table["rows"]}
    lines, changes = [], []
    for winner in table["winners"]:
        method, world = winner["method"], winner["world"]
        line = {"method": method_name(method), "world": world}
        for trial in range(TRIALS):
            row = rows.get((method, world, trial))
            line[f"change {trial}" if trial else "preset"] = "-" if row is None else _trial(row)
        lines.append(line | {"the preset would take": format_settings(winner["settings"])})
        if winner["winner"]:
            noise = {"within": "within noise", "beyond": "beyond noise", "unknown": "one seed, so noise is unknown"}
            lead = f"{100 * winner['lead']:+.1f} points, {noise[winner['noise']]}"
            lead += f" (p = {p_value(winner['p'])})" if winner["p"] is not None else ""
            changes.append(f"- `{method}` on {world}: `{format_settings(winner['settings'])}`, {lead}")
    shared = ", ".join(f"`{name}` (`{tuned}`)" for name, tuned in SHARED.items())
    parts = [
        "# Tuning: the same number of trials for every method",
        f"{TRIALS} trials of each method on each world: the preset, and three changes of it, listed in "
        f"`because_rl.experiments.tuning.trials`. Success in % with the half width of its 95% interval over "
        f"{tuning.seeds} seeds, trained on {tuning.policy} data, on {tuning.episodes} development scenes of split "
        f"{SPLIT}, which no dataset and no evaluation contains. Best: bold.",
        markdown_table(lines),
        "## Changes that presets would take",
        "\n".join(changes) or "None, by the trials that are complete.",
        "A tie goes to the preset. Noise: Welch's test over seeds against the preset, with Holm's adjustment for three "
        f"changes, at .05. Not tuned themselves; they share the trials of another method: {shared}.",
    ]
    total = table["missing"] + len(rows)
    parts += [f"{table['missing']} of {total} trials are missing."] if table["missing"] else []
    return "\n\n".join(parts) + "\n"


def _trial(row: Mapping[str, Any]) -> str:
    rate = percent(mean(row["per_seed"]), row["best"])
    return rate if not row["settings"] else f"`{format_settings(row['settings'])}` {rate}"
