"""Success of all methods on all tasks as a table of shades, with the paper, the oracle and the tests in it."""

from __future__ import annotations

from typing import Any

from because_rl.report.grid_data import Grid, Rate
from because_rl.report.markup import Html, percent, table, tag
from because_rl.report.task_page import interval, p_value, task_id

SPLIT_WORDS = {"I": "the law of the logged data", "O": "that law broken"}


def mean_of(grid: Grid, method: str, split: str, complete: bool = False) -> float | None:
    """Over the tasks of a split that the method has; `complete`: only if it has all."""
    found = [grid.result(method, t) for t in grid.tasks if grid.one(t).split == split]
    rates = [r.rate.value for r in found if r is not None]
    return None if not rates or (complete and len(rates) < len(found)) else sum(rates) / len(rates)


def choices(grid: Grid) -> Html:
    boxes = [("intervals", "95% intervals")] + ([("paper", "the paper's numbers")] if grid.paper else [])
    labels = (
        tag("label", tag("input", type="checkbox", checked=True, data_toggle=name, data_of="heat"), words)
        for name, words in boxes
    )
    return tag("fieldset", tag("legend", "What the table shows", class_="unseen"), *labels, class_="choices")


def explain(grid: Grid) -> str:
    told = f"▲ {grid.focus} is significantly better than this method on this task, ▼ significantly worse (Welch's test "
    told += "over seeds, Holm's adjustment over tasks). "
    if grid.oracle:
        told += "The oracle planner is the same planner with the simulator as its model: a ceiling for the models. "
    if grid.paper:
        told += "The paper's numbers are means of each trial's best performance; ours are of the last. "
    return told


def heat_table(grid: Grid) -> Html:
    anchors = [name for name, there in (("oracle", grid.oracle), ("logged", grid.behaviour)) if there]
    heads = {"oracle": "oracle planner", "logged": "logging policy"}
    first = [grid.focus] if grid.focus in grid.methods else []
    others = grid.methods[len(first) :]
    head = ["", *first, *(heads[name] for name in anchors), *others]
    marks = {(method, row["task"]): row for method, found in grid.comparisons.items() for row in found["rows"]}
    rows: list[Any] = []
    group = ""
    for task in grid.tasks:
        r = grid.one(task)
        if (now := f"{r.world.capitalize()} {r.split}: {SPLIT_WORDS[r.split]}") != group:
            group = now
            rows.append(tag("tr", tag("th", group, scope="rowgroup", colspan=len(head)), class_="world"))
        told = {"oracle": grid.oracle.get((r.world, r.split)), "logged": grid.behaviour.get(r.dataset)}
        cells = [_cell(grid, method, task, marks.get((method, task))) for method in first]
        cells += [_none("–") if (rate := told[name]) is None else _rate(rate) for name in anchors]
        cells += [_cell(grid, method, task, marks.get((method, task))) for method in others]
        name = tag("a", task.removeprefix(f"{r.world}-{r.split}-"), href=f"#{task_id(task)}", aria_label=task)
        rows.append([name, *cells])
    for split in ("I", "O"):
        tasks = [t for t in grid.tasks if grid.one(t).split == split]
        if len(tasks) > 1:
            means = {method: _mean_cell(grid, method, split, tasks) for method in grid.methods}
            row = [*(means[m] for m in first), *(_none("") for _ in anchors), *(means[m] for m in others)]
            rows.append(tag("tr", tag("th", f"mean {split}", scope="row"), *row, class_="mean"))
    box = table("Success of every method on every task, in %", head, rows, class_="heat")
    return tag("div", box, id="heat")


def _cell(grid: Grid, method: str, task: str, found: Any) -> Html:
    result = grid.result(method, task)
    paper = grid.paper.get((method, task))
    if result is None:
        return (
            _none("–") if paper is None else _none(tag("small", f"paper {percent(paper.value)}", class_="from-paper"))
        )
    sign = None
    if found and found["p_holm"] is not None:
        if found["p_holm"] <= 0.05:
            sign = tag("i", "▲", class_="up", title=f"{grid.focus} is better: p = {p_value(found['p_holm'])} (Holm)")
        elif found["p_holm_worse"] <= 0.05:
            told = f"{grid.focus} is worse: p = {p_value(found['p_holm_worse'])} (Holm)"
            sign = tag("i", "▼", class_="down", title=told)
    return _rate(result.rate, paper, sign, method == grid.focus)


def _rate(rate: Rate, paper: Rate | None = None, sign: Html | None = None, focus: bool = False) -> Html:
    told = tag("small", f"{100 * rate.low:.0f} – {100 * rate.high:.0f}", class_="interval")
    beside = tag("small", f"paper {percent(paper.value)}", class_="from-paper") if paper else None
    value = tag("span", tag("b", percent(rate.value)), sign)
    kind = "rate focus" if focus else "rate"
    return tag("td", value, told, beside, class_=kind, style=f"--v: {100 * rate.value:.0f}", title=interval(rate))


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
