"""A whole grid as one page: an overview beside the paper and the oracle, then one view for each kind of detail."""

from __future__ import annotations

from pathlib import Path

from because_rl.io import remove_leftovers, write_text
from because_rl.report.charts import legend, line, mark, plot
from because_rl.report.grid_data import Grid, Result
from because_rl.report.heat_table import SPLIT_WORDS, choices, explain, heat_table, mean_of
from because_rl.report.markup import Html, document, fold, join, percent, table, tag
from because_rl.report.model_pages import (
    costs_view,
    curves_view,
    energy_view,
    errors_view,
    graph_views,
    missing_list,
    provenance_view,
    view,
)
from because_rl.report.task_page import task_section, tasks_index

VIEWS = ("overview", "tasks", "graphs", "energy", "learning", "errors", "costs", "provenance")
NAMES = {"errors": "World models", "graphs": "Causal graphs", "energy": "Energy maps"}


def write_grid_page(folder: Path, grid: Grid) -> Path:
    """Write ``index.html``, a page without other files, into `folder`; returns its path."""
    title = "Results" if grid.name == "results" else f"Results: {grid.name}"
    links = (
        tag("a", NAMES.get(name, name.capitalize()), href=f"#{name}") for name in VIEWS if name != "energy" or grid.maps
    )
    main = tag(
        "main",
        _overview(grid),
        tasks_index(grid),
        *(task_section(grid, task) for task in grid.tasks),
        graph_views(grid),
        energy_view(grid),
        curves_view(grid),
        errors_view(grid),
        costs_view(grid),
        provenance_view(grid),
        id="main",
    )
    page = document(
        title,
        tag("a", "Skip to content", href="#overview", class_="skip"),
        tag("header", tag("h1", title), tag("p", _sizes(grid), class_="soft")),
        tag("nav", *links, class_="views", aria_label="views"),
        main,
        scripts=("page.js",),
    )
    remove_leftovers(folder)
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _sizes(grid: Grid) -> str:
    seeds = sorted({len(r.per_seed) for r in grid.results})
    scenes = sorted({len(r.outcomes[0]) for r in grid.results if r.outcomes})
    text = f"{len(grid.methods)} methods, {len(grid.tasks)} tasks, {_range(seeds)} seeds"
    return text + (f", {_range(scenes)} scenes per seed" if scenes else "")


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _overview(grid: Grid) -> Html:
    missing = fold(f"Missing from this page: {len(grid.missing)}", missing_list(grid))
    return view(
        "overview",
        "Overview",
        _cards(grid),
        tag("h3", "Success of every method on every task, in %"),
        choices(grid),
        tag("p", explain(grid), class_="soft"),
        heat_table(grid),
        _overall(grid),
        tag("h3", f"Is {grid.focus} better?"),
        _significance(grid),
        tag("div", missing, class_="missing") if grid.missing else None,
    )


# The headline ------------------------------------------------------------------------------------------


def _cards(grid: Grid) -> Html:
    cards = []
    for split in ("I", "O"):
        rate = mean_of(grid, grid.focus, split)
        tasks = [t for t in grid.tasks if grid.one(t).split == split and grid.result(grid.focus, t)]
        if rate is not None:
            text = f"{grid.focus}, mean of {len(tasks)} tasks, {SPLIT_WORDS[split]} ({split})"
            paper = [grid.paper[grid.focus, t].value for t in tasks if (grid.focus, t) in grid.paper]
            if len(paper) == len(tasks):
                text += f"; in the paper {percent(sum(paper) / len(paper))}%"
            cards.append(tag("li", tag("b", f"{percent(rate)}%"), tag("small", text)))
    pairs = sum(c["overall"]["tasks"] for c in grid.comparisons.values())
    if pairs:
        for name, words in (("better", "significantly better"), ("worse", "significantly worse")):
            n = sum(c["overall"][name] for c in grid.comparisons.values())
            text = f"pairs of a task and another method where {grid.focus} is {words} (Holm, .05)"
            cards.append(tag("li", tag("b", f"{n} of {pairs}"), tag("small", text)))
    return tag("ul", *cards, class_="cards")


# All tasks together ------------------------------------------------------------------------------------


def _overall(grid: Grid) -> Html | None:
    """Mean success by split, of the methods that have every task of it: means over different tasks do not compare."""
    parts = []
    for split in ("I", "O"):
        tasks = [t for t in grid.tasks if grid.one(t).split == split]
        means = {m: v for m in grid.methods if (v := mean_of(grid, m, split, complete=True)) is not None}
        if len(tasks) < 2 or len(means) < 2:
            continue
        lines = []
        for m in sorted(means, key=lambda m: (m != grid.focus, -means[m])):
            results: list[Result] = [r for t in tasks if (r := grid.result(m, t))]
            paper = [grid.paper[m, t].value for t in tasks if (m, t) in grid.paper]
            marks = [mark("seed", r.rate.value, title=r.task) for r in results] + [mark("dot", means[m])]
            if len(paper) == len(tasks):
                marks.append(mark("paper", sum(paper) / len(paper), title="the paper"))
            lines.append(line(m, marks, percent(means[m]), m == grid.focus))
        title = f"Mean of the {len(tasks)} tasks of split {split} ({SPLIT_WORDS[split]})"
        parts.append(tag("div", tag("h3", title), plot(lines, ("0%", "25", "50", "75", "100%"))))
    if not parts:
        return None
    entries = [("dot", "mean", True), ("seed", "one task", True)]
    entries += [("paper", "the paper", False)] if grid.paper else []
    return join([tag("div", *parts, class_="pair"), legend(*entries)])


def _significance(grid: Grid) -> Html:
    if not grid.comparisons:
        words = f"Nothing to compare: no task has results of both {grid.focus} and another method."
        return tag("p", words)
    rows = []
    for method, comparison in grid.comparisons.items():
        o = comparison["overall"]
        chance = o["probability_of_improvement"]
        rows.append(
            [
                method,
                o["tasks"],
                f"{100 * o['difference']:+.1f}",
                o["higher"],
                tag("td", tag("span", o["better"], class_="up" if o["better"] else None)),
                tag("td", tag("span", o["worse"], class_="down" if o["worse"] else None)),
                f"{chance['value']:.2f} [{chance['low']:.2f}, {chance['high']:.2f}]",
            ]
        )
    head = (
        "against",
        "tasks",
        "mean difference",
        "higher on",
        "significantly higher",
        "significantly lower",
        "probability of improvement",
    )
    text = (
        f"Over the tasks with results of both methods; differences in percentage points. The last column is the "
        f"probability that a run of {grid.focus} beats a run of the other method on the same task, with a bootstrap "
        "interval. Each task's page has its tests."
    )
    return join([tag("p", text, class_="soft"), table(f"{grid.focus} against the others", head, rows)])
