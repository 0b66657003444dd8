"""The two big tables: success on the 18 tasks of every method (`table-overall`) and of BECAUSE's parts
(`table-ablation`), with p-values and the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from because_rl.envs.tasks import BEHAVIOURS, SPLITS
from because_rl.experiments.grid.compare import Runs, compare
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.numbers import paper_numbers, reported
from because_rl.experiments.paper.study import Experiment, Product, Scale, success_rows, trainings
from because_rl.experiments.paper.text import NAMES, called, chance, percent, table
from because_rl.statistics import Alternative, Estimate, holm, mean

HERO = "because"
BASELINES = tuple(NAMES)[: tuple(NAMES).index(HERO)]
ABLATIONS = ("optimism", "linear", "full")
TASKS = tuple(
    f"{world}-{split}-{policy}" for policy in BEHAVIOURS for world in ("lift", "unlock", "crash") for split in SPLITS
)
LEVEL = 0.05
SIDES: dict[str, Alternative] = {"p": "greater", "p_worse": "less"}


def _overall_jobs(scale: Scale) -> list[Job]:
    """The paper's columns, then what is registered beyond them."""
    from because_rl.algorithms.registry import METHODS

    return trainings(scale, tuple(dict.fromkeys([*BASELINES, HERO, *(m for m in METHODS if m not in ABLATIONS)])))


def _overall(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    return _product("overall", cells, BASELINES)


def _ablation_jobs(scale: Scale) -> list[Job]:
    return trainings(scale, (HERO, *ABLATIONS))


def _ablation(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    return _product("ablation", cells, ABLATIONS)


TABLE_OVERALL = Experiment("Success on the 18 tasks, all methods", _overall_jobs, _overall)
TABLE_ABLATION = Experiment("Success on the 18 tasks, BECAUSE and its parts", _ablation_jobs, _ablation)


# Both tables -------------------------------------------------------------------------------------------

Scores = dict[str, dict[str, Runs]]
"""method -> task -> runs; tasks include Overall-I and Overall-O"""


class Pair(NamedTuple):
    """BECAUSE against another method on a task: one-sided p-values, over seeds (Welch) and over scenes (paired)."""

    p: float | None
    p_holm: float | None
    p_worse: float | None
    p_worse_holm: float | None
    p_scenes: float | None


def _product(which: str, cells: Mapping[str, Any], rivals: Sequence[str]) -> Product:
    scores = read_scores(cells)
    order = [m for m in NAMES if m in scores] + [m for m in scores if m not in NAMES]
    if which == "ablation":
        order.sort(key=lambda method: method != HERO)  # first, as in the paper
    others = [m for m in order if m != HERO]
    family = {m: scores[m] for m in others if m in rivals}
    pairs = judge(scores.get(HERO, {}), family) | judge(
        scores.get(HERO, {}), {m: scores[m] for m in others if m not in rivals}
    )
    tasks = [t for t in (*TASKS, *_OVERALL) if any(t in scores[m] for m in order)]
    text = [
        "Mean over seeds of the success rate in percent, ± half of the 95% t-interval; **best**. "
        "Overall rows are means over the tasks that are there (their number in brackets where it is not nine).",
        table([_success_row(task, order, scores) for task in tasks]),
        "## Is BECAUSE better?",
        "One-sided Welch t-test over seeds, p of BECAUSE > the other; * at most .05, ** also with Holm's adjustment "
        "over all pairs of the table. † p of BECAUSE < the other is at most .05: the other wins.",
        table([_pair_row(task, others, pairs) for task in tasks]),
        _verdict(which, pairs, family),
        "## Beside the paper",
        f"Ours / the paper's. {paper_numbers()['credit']} {_slip(which)}".strip(),
        table([_beside_row(which, task, order, scores) for task in tasks]),
        table(_likeness(which, order, scores)),
    ]
    return Product(_rows(which, order, tasks, scores, pairs), "\n\n".join(text))


_OVERALL = tuple(f"Overall-{split}" for split in SPLITS)


def read_scores(cells: Mapping[str, Any]) -> Scores:
    """By method and task; the overall rows are each seed's mean over the tasks of a split."""
    scores: Scores = {}
    for row in success_rows(cells):
        if row.task in TASKS:
            scores.setdefault(row.label, {})[row.task] = row.runs
    for mine in scores.values():
        for split, name in zip(SPLITS, _OVERALL, strict=True):
            each = [runs.per_seed for task, runs in mine.items() if task.split("-")[1] == split]
            if each and len({len(seeds) for seeds in each}) == 1:
                mine[name] = Runs(np.mean(each, axis=0).tolist())
    return scores


def judge(hero: Mapping[str, Runs], others: Mapping[str, Mapping[str, Runs]]) -> dict[tuple[str, str], Pair]:
    """(method, task) -> p-values; Holm's adjustment is over all tasks of all these methods, not over means."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for method, theirs in others.items():
        common = [task for task in hero if task in theirs and _same_tasks(task, hero, theirs)]
        for side, alternative in SIDES.items():
            mine, their = ({task: runs[task] for task in common} for runs in (hero, theirs))
            told = compare(mine, their, alternative) if common else {}
            for row in told.get("rows", ()):
                entry = found.setdefault((method, row["task"]), dict.fromkeys(Pair._fields))
                entry |= {side: row["p"]} | ({"p_scenes": row["paired_p"]} if side == "p" else {})
    for side in SIDES:
        counted = [entry for (_, task), entry in found.items() if task in TASKS and entry[side] is not None]
        for entry, adjusted in zip(counted, holm([entry[side] for entry in counted]), strict=True):
            entry[f"{side}_holm"] = adjusted
    return {key: Pair(**entry) for key, entry in found.items()}


def _same_tasks(task: str, a: Mapping[str, Runs], b: Mapping[str, Runs]) -> bool:
    """Means over different tasks cannot be compared."""
    return task in TASKS or _counted(task, a) == _counted(task, b)


def _counted(overall: str, mine: Mapping[str, Runs]) -> set[str]:
    return {task for task in mine if task in TASKS and task.split("-")[1] == overall[-1]}


# Rows --------------------------------------------------------------------------------------------------


def _success(mine: Mapping[str, Runs], task: str) -> Estimate | None:
    return mean(mine[task].per_seed) if task in mine else None


def _success_row(task: str, order: Sequence[str], scores: Scores) -> dict[str, str]:
    """The best of several is bold; among means only those over all nine tasks compete."""
    told = {m: _success(scores[m], task) for m in order}
    tasks = {m: len(_counted(task, scores[m])) if task in _OVERALL else 9 for m in order}
    fair = [round(e.value, 6) for m, e in told.items() if e is not None and tasks[m] == 9]
    row = {"task": task}
    for m, e in told.items():
        best = e is not None and len(fair) > 1 and tasks[m] == 9 and round(e.value, 6) == max(fair)
        row[called(m)] = percent(e, best) + (f" ({tasks[m]})" if e is not None and tasks[m] != 9 else "")
    return row


def _pair_row(task: str, others: Sequence[str], pairs: Mapping[tuple[str, str], Pair]) -> dict[str, str]:
    row = {"task": task}
    for method in others:
        pair = pairs.get((method, task))
        row[called(method)] = "-" if pair is None else chance(pair.p) + _marks(pair)
    return row


def _marks(pair: Pair) -> str:
    if _at_most(pair.p_worse):
        return " †"
    return " **" if _at_most(pair.p_holm) else " *" if _at_most(pair.p) else ""


def _at_most(p: float | None) -> bool:
    return p is not None and p <= LEVEL


def _verdict(which: str, pairs: Mapping[tuple[str, str], Pair], family: Mapping[str, Any]) -> str:
    """How many pairs are significant, of those that the paper compares too."""
    counted = [pair for (m, task), pair in pairs.items() if m in family and task in TASKS and pair.p is not None]
    better, surely = (
        (sum(map(_at_most, told)) for told in zip(*((p.p, p.p_holm) for p in counted), strict=True))
        if counted
        else (0, 0)
    )
    worse = sum(_at_most(pair.p_worse) for pair in counted)
    worse_holm = sum(_at_most(pair.p_worse_holm) for pair in counted)
    theirs, of = paper_numbers()["significant"][which]
    return (
        f"BECAUSE is significantly better in {better} of {len(counted)} pairs ({surely} with Holm's adjustment), "
        f"significantly worse in {worse} ({worse_holm}). The paper: better in {theirs} of {of}."
    )


def _beside_row(which: str, task: str, order: Sequence[str], scores: Scores) -> dict[str, str]:
    row = {"task": task}
    for m in order:
        ours, theirs = _success(scores[m], task), reported(which, m, task)
        row[called(m)] = f"{f'{100 * ours.value:.1f}' if ours else '-'} / {theirs.mean if theirs else '-'}"
    return row


def _likeness(which: str, order: Sequence[str], scores: Scores) -> list[dict[str, Any]]:
    """Do our easy tasks and the paper's agree? Spearman's rank correlation over tasks, for each method."""
    rows = []
    for m in order:
        both = [
            (mean(scores[m][t].per_seed).value, told.mean)
            for t in TASKS
            if t in scores[m] and (told := reported(which, m, t))
        ]
        ours, theirs = zip(*both, strict=True) if both else ((), ())
        varied = len(set(ours)) > 1 and len(set(theirs)) > 1 and len(both) > 2
        value = f"{stats.spearmanr(ours, theirs).statistic:.2f}" if varied else "-"
        rows.append({"method": called(m), "tasks": len(both), "rank correlation with the paper": value})
    return rows


def _slip(which: str) -> str:
    return " ".join(slip["why"] for slip in paper_numbers()["slips"]) if which == "overall" else ""


def _rows(
    which: str, order: Sequence[str], tasks: Sequence[str], scores: Scores, pairs: Mapping[tuple[str, str], Pair]
) -> list[dict[str, Any]]:
    rows = []
    for task in tasks:
        for m in order:
            if (told := _success(scores[m], task)) is None:
                continue
            theirs, pair = reported(which, m, task), pairs.get((m, task))
            row = {"task": task, "method": m, "success": told.value, "low95": max(told.low, 0.0)}
            row |= {"high95": min(told.high, 1.0), "seeds": len(scores[m][task].per_seed)}
            row |= {f"because_{name}": value for name, value in (pair._asdict() if pair else {}).items()}
            rows.append(
                row | {"paper_percent": theirs.mean if theirs else "", "paper_half": theirs.half if theirs else ""}
            )
    return rows
