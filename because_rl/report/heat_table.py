"""The table of success rates by method and task, shaded by rate, with the paper's, the oracle and significance."""

from __future__ import annotations

from typing import Any

from because_rl.report.grid_data import Grid, Rate
from because_rl.report.markup import Html, percent, table, tag
from because_rl.report.task_page import interval, p_value, task_id

SPLIT_WORDS = {"I": "in distribution", "O": "out of distribution"}


def mean_of(grid: Grid, method: str, split: str, complete: bool = False) -> float | None:
    """Mean success over the tasks of a split for which the method has a result.

    None if it has none or, with `complete`, if it lacks any.
    """
    results = [grid.result(method, t) for t in grid.tasks if grid.one(t).split == split]
    rates = [r.rate.value for r in results if r is not None]
    return None if not rates or (complete and len(rates) < len(results)) else sum(rates) / len(rates)


def choices(grid: Grid) -> Html:
    """Check boxes that show and hide parts of the table."""
    boxes = [("intervals", "95% intervals")] + ([("paper", "the paper's numbers")] if grid.paper else [])
    labels = (
        tag("label", tag("input", type="checkbox", checked=True, data_toggle=name, data_target="heat"), words)
        for name, words in boxes
    )
    return tag("fieldset", tag("legend", "What the table shows", class_="unseen"), *labels, class_="choices")


def explain(grid: Grid) -> str:
    """The caption of the table."""
    text = (
        "In distribution (I): scenes are drawn as in the logged data. Out of distribution (O): the dependence that "
        f"the hidden confounder caused in the data no longer holds. ▲ {grid.focus} is significantly better than this "
        "method on this task, ▼ significantly worse (Welch's test over seeds, Holm's adjustment over tasks). "
    )
    if grid.oracle:
        text += "The oracle planner is the same planner with the simulator as its model: an upper bound for learned "
        text += "models. "
    if grid.paper:
        text += "The paper's numbers are means of each trial's best performance; ours are of the last checkpoint. "
    return text


def heat_table(grid: Grid) -> Html:
    """One row per task and one column per method; the focus first, then the references, then the other methods."""
    references = [name for name, rates in (("oracle", grid.oracle), ("logged", grid.behaviour)) if rates]
    heads = {"oracle": "oracle planner", "logged": "logging policy"}
    first = [grid.focus] if grid.focus in grid.methods else []
    others = grid.methods[len(first) :]
    head = ["", *first, *(heads[name] for name in references), *others]
    tests = {(method, row["task"]): row for method, other in grid.comparisons.items() for row in other["rows"]}
    rows: list[Any] = []
    group = ""
    for task in grid.tasks:
        r = grid.one(task)
        if (heading := f"{r.world.capitalize()} {r.split}: {SPLIT_WORDS[r.split]}") != group:
            group = heading
            rows.append(tag("tr", tag("th", group, scope="rowgroup", colspan=len(head)), class_="world"))
        reference = {"oracle": grid.oracle.get((r.world, r.split)), "logged": grid.behaviour.get(r.dataset)}
        cells = [_cell(grid, method, task, tests.get((method, task))) for method in first]
        cells += [_none("–") if (rate := reference[name]) is None else _rate(rate) for name in references]
        cells += [_cell(grid, method, task, tests.get((method, task))) for method in others]
        name = tag("a", task.removeprefix(f"{r.world}-{r.split}-"), href=f"#{task_id(task)}", aria_label=task)
        rows.append([name, *cells])
    for split in ("I", "O"):
        tasks = [t for t in grid.tasks if grid.one(t).split == split]
        if len(tasks) > 1:
            means = {method: _mean_cell(grid, method, split, tasks) for method in grid.methods}
            row = [*(means[m] for m in first), *(_none("") for _ in references), *(means[m] for m in others)]
            rows.append(tag("tr", tag("th", f"mean {split}", scope="row"), *row, class_="mean"))
    box = table("Success of every method on every task, in %", head, rows, class_="heat")
    return tag("div", box, id="heat")


def _cell(grid: Grid, method: str, task: str, test: Any) -> Html:
    result = grid.result(method, task)
    paper = grid.paper.get((method, task))
    if result is None:
        return (
            _none("–") if paper is None else _none(tag("small", f"paper {percent(paper.value)}", class_="from-paper"))
        )
    sign = None
    if test and test["p_holm"] is not None and test["p_holm"] <= 0.05:
        mark, kind, word = ("▲", "up", "better") if test["difference"] > 0 else ("▼", "down", "worse")
        title = f"{grid.focus} is {word}: p = {p_value(test['p_holm'])} (Holm)"
        sign = tag("i", mark, class_=kind, title=title)
    return _rate(result.rate, paper, sign, method == grid.focus)


def _rate(rate: Rate, paper: Rate | None = None, sign: Html | None = None, focus: bool = False) -> Html:
    bounds = tag("small", f"{100 * rate.low:.0f} – {100 * rate.high:.0f}", class_="interval")
    beside = tag("small", f"paper {percent(paper.value)}", class_="from-paper") if paper else None
    value = tag("span", tag("b", percent(rate.value)), sign)
    kind = "rate focus" if focus else "rate"
    return tag("td", value, bounds, beside, class_=kind, style=f"--v: {100 * rate.value:.0f}", title=interval(rate))


def _none(inside: Any) -> Html:
    return tag("td", inside, class_="none")


def _mean_cell(grid: Grid, method: str, split: str, tasks: list[str]) -> Html:
    mean = mean_of(grid, method, split, complete=True)
    paper = [grid.paper[method, t].value for t in tasks if (method, t) in grid.paper]
    beside = None
    if len(paper) == len(tasks):
        beside = tag("small", f"paper {percent(sum(paper) / len(paper))}", class_="from-paper")
    if mean is None:
        have = sum(grid.result(method, t) is not None for t in tasks)
        return tag("td", tag("small", f"{have} of {len(tasks)}"), beside, class_="none")
    style = f"--v: {100 * mean:.0f}"
    return tag(
        "td", tag("b", percent(mean)), beside, class_="rate focus" if method == grid.focus else "rate", style=style
    )
