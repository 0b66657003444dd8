"""What a tuning round found: every trial, the winner of each method and world, and how sure that is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from because_rl.experiments.grid.cells import find
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.text import called, chance, percent, table
from because_rl.experiments.tuning.development import SPLIT
from because_rl.experiments.tuning.trials import SHARED, TRIALS
from because_rl.experiments.tuning.tune import Round
from because_rl.io import write_json, write_text
from because_rl.statistics import holm, mean, welch

COLUMNS = (
    *("method", "world", "dataset", "trial", "settings", "seeds", "episodes", "success", "low95", "high95", "best"),
    *("held_out_error", "seconds", "per_seed"),
)


def write(wanted: Round, jobs: Sequence[Job], folder: Path, any_code: bool = False) -> dict[str, Any]:
    """``table.json``, ``.csv`` and ``.md`` of the cells that are there; the same cells give the same bytes.

    `any_code`: where there is none, one that another version of the source computed.
    """
    cells = find(jobs, folder, any_code)
    rows = [_row(key, cells[key]) for job in jobs for key in job.cells if key in cells]
    order = {name: n for n, name in enumerate([*wanted.methods, *wanted.worlds])}
    rows.sort(key=lambda row: (order[row["method"]], order[row["world"]], row["trial"]))
    verdicts = [
        judge([row for row in rows if (row["method"], row["world"]) == (method, world)])
        | {"method": method, "world": world}
        for method in wanted.methods
        for world in wanted.worlds
    ]
    best = {(v["method"], v["world"], v["winner"]) for v in verdicts}
    rows = [row | {"best": (row["method"], row["world"], row["trial"]) in best} for row in rows]
    told = {"trials_of_each_method": TRIALS, "split": SPLIT, "policy": wanted.policy, "shared": SHARED}
    told |= {"rows": rows, "winners": verdicts, "missing": len(jobs) - len(rows)}
    write_json(folder / "table.json", told)
    write_text(folder / "table.csv", _csv(rows))
    write_text(folder / "table.md", _markdown(wanted, told))
    return told


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


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The winner among the trials of one method on one world: the highest mean, and the preset where it is as high.

    No winner before all trials are there. `noise` tells whether the winner's lead over the preset could be that of
    seeds alone: Welch's test (is it better?), with Holm's adjustment for the three changes that might have won.
    """
    by = {row["trial"]: row for row in rows}
    told: dict[str, Any] = {"trials": len(by), "winner": None, "settings": None, "lead": None, "p": None, "noise": None}
    if set(by) != set(range(TRIALS)):
        return told
    # The first of the best, and the preset comes first; rounded, for means of shares are not exact.
    winner = max(range(TRIALS), key=lambda trial: (round(by[trial]["success"], 9), -trial))
    told |= {"winner": winner, "settings": by[winner]["settings"]}
    told["lead"] = by[winner]["success"] - by[0]["success"]
    if winner == 0:
        return told
    if len(by[0]["per_seed"]) < 2:
        return told | {"noise": "unknown"}
    p = holm([welch(by[trial]["per_seed"], by[0]["per_seed"], "greater").p for trial in range(1, TRIALS)])[winner - 1]
    return told | {"p": p, "noise": "within" if p > 0.05 else "beyond"}


def in_words(settings: Mapping[str, Any] | None) -> str:
    """
    >>> in_words({"price": 0.2, "pessimism": None}), in_words({}), in_words(None)
    ('price=0.2 pessimism=null', 'the preset', '-')
    """
    if settings is None:
        return "-"
    return " ".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items()) or "the preset"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row in rows:
        told = {**row, "settings": in_words(row["settings"]), "best": int(row["best"])}
        lines.writerow(" ".join(map(str, v)) if isinstance(v, list) else v for v in (told[c] for c in COLUMNS))
    return text.getvalue()


def _markdown(wanted: Round, told: Mapping[str, Any]) -> str:
    rows = {(row["method"], row["world"], row["trial"]): row for row in told["rows"]}
    lines, takes = [], []
    for verdict in told["winners"]:
        where = verdict["method"], verdict["world"]
        line = {"method": called(where[0]), "world": where[1]}
        for trial in range(TRIALS):
            row = rows.get((*where, trial))
            name = f"change {trial}" if trial else "preset"
            line[name] = "-" if row is None else _trial(row)
        lines.append(line | {"the preset would take": in_words(verdict["settings"])})
        if verdict["winner"]:
            noise = {"within": "within noise", "beyond": "beyond noise", "unknown": "one seed, so noise is unknown"}
            lead = f"{100 * verdict['lead']:+.1f} points, {noise[verdict['noise']]}"
            lead += f" (p = {chance(verdict['p'])})" if verdict["p"] is not None else ""
            takes.append(f"- `{where[0]}` on {where[1]}: `{in_words(verdict['settings'])}`, {lead}")
    scenes = f"{wanted.episodes} development scenes of split {SPLIT}"
    parts = [
        "# Tuning: as many trials for every method",
        f"{TRIALS} trials of each method on each world: the preset, and three changes of it, listed in "
        f"`because_rl.experiments.tuning.trials`. Success in % with the half width of its 95% interval over "
        f"{wanted.seeds} seeds, trained on {wanted.policy} data, on {scenes}, which no dataset and no "
        "evaluation holds. Best: bold.",
        table(lines),
        "## What presets would take",
        "\n".join(takes) or "Nothing else than they have, by the trials that are complete.",
        "A tie goes to the preset. Noise: Welch's test over seeds against the preset, with Holm's adjustment for three "
        "changes, at .05. Not tuned by themselves, but by the trials of another: "
        + ", ".join(f"`{name}` (`{of}`)" for name, of in SHARED.items())
        + ".",
    ]
    parts += [f"{told['missing']} of {told['missing'] + len(rows)} trials are missing."] if told["missing"] else []
    return "\n\n".join(parts) + "\n"


def _trial(row: Mapping[str, Any]) -> str:
    rate = percent(mean(row["per_seed"]), row["best"])
    return rate if not row["settings"] else f"`{in_words(row['settings'])}` {rate}"
