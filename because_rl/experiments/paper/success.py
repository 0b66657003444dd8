"""Success on the 18 tasks of every method (`table-overall`) and of BECAUSE's ablations (`table-ablation`), with
p-values and the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from because_rl.envs.tasks import BEHAVIOURS, SPLITS
from because_rl.experiments.formatting import METHOD_NAMES, markdown_table, method_name, p_value, percent
from because_rl.experiments.grid.compare import Runs, compare
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.environments import TABLE_ORACLE
from because_rl.experiments.paper.experiment import Experiment, Product, success_rows, trainings
from because_rl.experiments.paper.numbers import paper_numbers, paper_success
from because_rl.experiments.paper.scale import Scale
from because_rl.statistics import Estimate, holm, mean

FOCUS = "because"
BASELINES = tuple(METHOD_NAMES)[: tuple(METHOD_NAMES).index(FOCUS)]
ABLATIONS = ("optimism", "linear", "full")
TASKS = tuple(
    f"{world}-{split}-{policy}" for policy in BEHAVIOURS for world in ("lift", "unlock", "crash") for split in SPLITS
)
OVERALL = tuple(f"Overall-{split}" for split in SPLITS)
OVERALL_NOTE = " Overall rows are means over the available tasks (their number in brackets where it is not nine)."
LEVEL = 0.05


def _overall_jobs(scale: Scale) -> list[Job]:
    """The paper's columns, then the methods that are registered beyond them, and the oracle planner."""
    from because_rl.algorithms.registry import METHODS

    methods = dict.fromkeys([*BASELINES, FOCUS, *(m for m in METHODS if m not in ABLATIONS)])
    return trainings(scale, tuple(methods)) + TABLE_ORACLE.jobs(scale)


def _overall(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    oracle = {(c["world"], c["split"]): c["row"]["success"] for c in cells.values() if c.get("measure") == "oracle"}
    return success_product("overall", read_scores(cells), BASELINES, oracle)


def _ablation_jobs(scale: Scale) -> list[Job]:
    return trainings(scale, (FOCUS, *ABLATIONS))


def _ablation(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    return success_product("ablation", read_scores(cells), ABLATIONS)


TABLE_OVERALL = Experiment("Success on the 18 tasks, all methods", _overall_jobs, _overall)
TABLE_ABLATION = Experiment("Success on the 18 tasks, BECAUSE and its parts", _ablation_jobs, _ablation)


# Both tables -------------------------------------------------------------------------------------------

Scores = dict[str, dict[str, Runs]]
"""Method -> task -> runs; the tasks include Overall-I and Overall-O."""


class Pair(NamedTuple):
    """BECAUSE against another method on a task: two-sided p-values, of Welch's test over seeds and of the paired test
    of `compare`, each also with Holm's adjustment."""

    difference: float
    p: float | None
    p_holm: float | None
    p_paired: float | None
    p_paired_holm: float | None


def success_product(
    which: str, scores: Scores, rivals: Sequence[str], oracle: Mapping[tuple[str, str], float] | None = None
) -> Product:
    """The table 'overall', 'ablation' or 'visual'.

    Args:
        rivals: those that the paper compares BECAUSE with in it.
        oracle: (world, split) -> success of the oracle planner.
    """
    order = [m for m in METHOD_NAMES if m in scores] + [m for m in scores if m not in METHOD_NAMES]
    if which == "ablation":
        order.sort(key=lambda method: method != FOCUS)  # first, as in the paper
    others = [m for m in order if m != FOCUS]
    family = {m: scores[m] for m in others if m in rivals}
    beyond_paper = {m: scores[m] for m in others if m not in rivals}
    pairs = compare_pairs(scores.get(FOCUS, {}), family) | compare_pairs(scores.get(FOCUS, {}), beyond_paper)
    tasks = [t for t in (*TASKS, *OVERALL) if any(t in scores[m] for m in order)]
    text = [
        "Mean over seeds of the success rate in percent, ± half of the 95% t-interval; **best**."
        + (OVERALL_NOTE if any(task in OVERALL for task in tasks) else ""),
        markdown_table([_success_row(task, order, scores) for task in tasks]),
        "## Is BECAUSE better?",
        "p of the two-sided Welch t-test over seeds; * at most .05 and BECAUSE is better, ** also with Holm's "
        "adjustment over all pairs of the table; † and ‡ the same where the other is better.",
        markdown_table([_pair_row(task, others, pairs) for task in tasks]),
        _verdict(which, pairs, family),
        "## The least of the seeds",
        _least_note(scores),
        markdown_table([_least_row(task, order, scores, oracle or {}) for task in tasks if task in TASKS]),
        "## All tasks together",
        "Interquartile mean over the runs of all common tasks, and the probability that a run of BECAUSE beats one of "
        "the other on the same task, each with a 95% stratified bootstrap interval.",
        markdown_table(_together_rows(others, scores)),
        "## Beside the paper",
        f"Ours / the paper's. {paper_numbers()['credit']} {_misprints(which)}".strip(),
        markdown_table([_beside_row(which, task, order, scores) for task in tasks]),
        markdown_table(_rank_correlations(which, order, scores)),
    ]
    return Product(_rows(which, order, tasks, scores, pairs), "\n\n".join(text))


def read_scores(cells: Mapping[str, Any]) -> Scores:
    """The success of each method on each task, the seeds of all datasets one after the other.

    The overall rows are each seed's mean over the tasks of a split.
    """
    scores: Scores = {}
    for row in sorted(success_rows(cells), key=lambda row: row.recipe["seed"]):
        if row.task in TASKS:
            before = scores.setdefault(row.label, {}).get(row.task, Runs([], []))
            joined = [*(before.outcomes or []), *(row.runs.outcomes or [])]
            runs = Runs([*before.per_seed, *row.runs.per_seed], joined or None, row.runs.draws)
            scores[row.label][row.task] = runs
    for by_task in scores.values():
        for split, name in zip(SPLITS, OVERALL, strict=True):
            rates = [runs.per_seed for task, runs in by_task.items() if task.split("-")[1] == split]
            if rates and len({len(per_seed) for per_seed in rates}) == 1:
                by_task[name] = Runs(np.mean(rates, axis=0).tolist())
    return scores


def compare_pairs(focus: Mapping[str, Runs], others: Mapping[str, Mapping[str, Runs]]) -> dict[tuple[str, str], Pair]:
    """Test the method in focus against each other method on each task: (method, task) -> p-values.

    Holm's adjustment is over all tasks of all these methods; the overall means do not count.
    """
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for method, other in others.items():
        common = [task for task in focus if task in other and _same_tasks(task, focus, other)]
        a, b = ({task: runs[task] for task in common} for runs in (focus, other))
        for row in compare(a, b, "two-sided")["rows"] if common else ():
            tests = {"difference": row["difference"], "p": row["p"], "p_paired": row["paired_p"]}
            entries[method, row["task"]] = dict.fromkeys(Pair._fields) | tests
    for test in ("p", "p_paired"):
        tested = [entry for (_, task), entry in entries.items() if task in TASKS and entry[test] is not None]
        for entry, adjusted in zip(tested, holm([entry[test] for entry in tested]), strict=True):
            entry[f"{test}_holm"] = adjusted
    return {key: Pair(**entry) for key, entry in entries.items()}


def _same_tasks(task: str, a: Mapping[str, Runs], b: Mapping[str, Runs]) -> bool:
    """Means over different tasks cannot be compared."""
    return task in TASKS or _averaged_tasks(task, a) == _averaged_tasks(task, b)


def _averaged_tasks(overall: str, by_task: Mapping[str, Runs]) -> set[str]:
    """The tasks that an overall row is the mean over."""
    return {task for task in by_task if task in TASKS and task.split("-")[1] == overall[-1]}


# Rows --------------------------------------------------------------------------------------------------


def _success(by_task: Mapping[str, Runs], task: str) -> Estimate | None:
    return mean(by_task[task].per_seed) if task in by_task else None


def _success_row(task: str, order: Sequence[str], scores: Scores) -> dict[str, str]:
    """The best of several is bold; among means only those over all nine tasks compete."""
    estimates = {m: _success(scores[m], task) for m in order}
    tasks = {m: len(_averaged_tasks(task, scores[m])) if task in OVERALL else 9 for m in order}
    comparable = [round(e.value, 6) for m, e in estimates.items() if e is not None and tasks[m] == 9]
    row = {"task": task}
    for m, e in estimates.items():
        best = e is not None and len(comparable) > 1 and tasks[m] == 9 and round(e.value, 6) == max(comparable)
        row[method_name(m)] = percent(e, best) + (f" ({tasks[m]})" if e is not None and tasks[m] != 9 else "")
    return row


def _pair_row(task: str, others: Sequence[str], pairs: Mapping[tuple[str, str], Pair]) -> dict[str, str]:
    row = {"task": task}
    for method in others:
        pair = pairs.get((method, task))
        row[method_name(method)] = "-" if pair is None else p_value(pair.p) + _marks(pair)
    return row


def _marks(pair: Pair) -> str:
    if not _significant(pair.p):
        return ""
    plain, adjusted = ("*", "**") if pair.difference > 0 else ("†", "‡")
    return f" {adjusted if _significant(pair.p_holm) else plain}"


def _significant(p: float | None) -> bool:
    return p is not None and p <= LEVEL


def _verdict(which: str, pairs: Mapping[tuple[str, str], Pair], family: Mapping[str, Any]) -> str:
    """How many of the pairs that the paper compares too are significant."""
    tested = [pair for (m, task), pair in pairs.items() if m in family and task in TASKS and pair.p is not None]

    def count(sign: int, test: str) -> int:
        return sum(_significant(getattr(pair, test)) and sign * pair.difference > 0 for pair in tested)

    ours = (
        f"BECAUSE is significantly better in {count(1, 'p')} of {len(tested)} pairs ({count(1, 'p_holm')} with Holm's "
        f"adjustment), significantly worse in {count(-1, 'p')} ({count(-1, 'p_holm')}); by the paired test better in "
        f"{count(1, 'p_paired')} ({count(1, 'p_paired_holm')}), worse in {count(-1, 'p_paired')} "
        f"({count(-1, 'p_paired_holm')})."
    )
    if which not in paper_numbers()["significant"]:
        return ours
    paper_better, paper_pairs = paper_numbers()["significant"][which]
    return f"{ours} The paper: better in {paper_better} of {paper_pairs}."


def _least_note(scores: Scores) -> str:
    own = any(runs.draws for by_task in scores.values() for runs in by_task.values())
    what = "which has a dataset, a graph and scenes of its own" if own else "in the same scenes"
    return f"Success in percent of the worst seed, {what}, and of the oracle planner, whose model is the simulator."


def _least_row(
    task: str, order: Sequence[str], scores: Scores, oracle: Mapping[tuple[str, str], float]
) -> dict[str, str]:
    world, split, _ = task.split("-")
    least = {method_name(m): f"{100 * min(scores[m][task].per_seed):.0f}" for m in order if task in scores[m]}
    ceiling = f"{100 * oracle[world, split]:.0f}" if (world, split) in oracle else "-"
    return {"task": task, "oracle planner": ceiling} | {method_name(m): "-" for m in order} | least


def _together_rows(others: Sequence[str], scores: Scores) -> list[dict[str, str]]:
    rows = []
    for method in others if FOCUS in scores else ():
        focus, other = ({t: runs for t, runs in scores[m].items() if t in TASKS} for m in (FOCUS, method))
        if set(focus) & set(other):
            overall = compare(focus, other, "two-sided")["overall"]
            row = {"against": method_name(method), "tasks": str(overall["tasks"])}
            row |= {"IQM of BECAUSE": _interval(overall["iqm_a"]), "of the other": _interval(overall["iqm_b"])}
            chance = overall["probability_of_improvement"]
            rows.append(row | {"P(BECAUSE is better)": "{value:.2f} [{low:.2f}, {high:.2f}]".format(**chance)})
    return rows


def _interval(estimate: Mapping[str, float]) -> str:
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * estimate[name] for name in ("value", "low", "high")))


def _beside_row(which: str, task: str, order: Sequence[str], scores: Scores) -> dict[str, str]:
    row = {"task": task}
    for m in order:
        ours, theirs = _success(scores[m], task), paper_success(which, m, task)
        row[method_name(m)] = f"{f'{100 * ours.value:.1f}' if ours else '-'} / {theirs.mean if theirs else '-'}"
    return row


def _rank_correlations(which: str, order: Sequence[str], scores: Scores) -> list[dict[str, Any]]:
    """Whether the same tasks are easy here and in the paper: Spearman's correlation over tasks, for each method."""
    rows = []
    for m in order:
        both = [
            (mean(scores[m][t].per_seed).value, number.mean)
            for t in TASKS
            if t in scores[m] and (number := paper_success(which, m, t))
        ]
        ours, theirs = zip(*both, strict=True) if both else ((), ())
        varied = len(set(ours)) > 1 and len(set(theirs)) > 1 and len(both) > 2
        value = f"{stats.spearmanr(ours, theirs).statistic:.2f}" if varied else "-"
        rows.append({"method": method_name(m), "tasks": len(both), "rank correlation with the paper": value})
    return rows


def _misprints(which: str) -> str:
    return " ".join(misprint["why"] for misprint in paper_numbers()["slips"]) if which == "overall" else ""


def _rows(
    which: str, order: Sequence[str], tasks: Sequence[str], scores: Scores, pairs: Mapping[tuple[str, str], Pair]
) -> list[dict[str, Any]]:
    rows = []
    for task in tasks:
        for m in order:
            if (success := _success(scores[m], task)) is None:
                continue
            theirs, pair = paper_success(which, m, task), pairs.get((m, task))
            row = {"task": task, "method": m, "success": success.value, "low95": max(success.low, 0.0)}
            row |= {"high95": min(success.high, 1.0), "seeds": len(scores[m][task].per_seed)}
            row["worst"] = min(scores[m][task].per_seed)
            row |= {f"because_{name}": value for name, value in (pair._asdict() if pair else {}).items()}
            rows.append(
                row | {"paper_percent": theirs.mean if theirs else "", "paper_half": theirs.half if theirs else ""}
            )
    return rows
