"""A whole grid as one page: the overview against the paper and the oracle, then a view for everything behind it."""

from __future__ import annotations

from pathlib import Path

from because_rl.io import write_text
from because_rl.report.charts import key, line, place, plot
from because_rl.report.energy_page import energy_view
from because_rl.report.grid_data import Grid, Result
from because_rl.report.heat_table import SPLIT_WORDS, choices, explain, heat_table, mean_of
from because_rl.report.markup import Html, document, join, percent, table, tag
from because_rl.report.model_pages import costs_view, curves_view, errors_view, graph_views, provenance_view, view
from because_rl.report.task_page import task_section, tasks_index

VIEWS = ("overview", "tasks", "graphs", "energy", "learning", "errors", "costs", "provenance")
NAMES = {"errors": "World models", "graphs": "Causal graphs", "energy": "Energy maps"}


def write_grid_page(folder: Path, grid: Grid) -> Path:
    """``index.html``, which needs nothing else."""
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
        tag("a", "To the content", href="#overview", class_="skip"),
        tag("header", tag("h1", title), tag("p", _sizes(grid), class_="soft")),
        tag("nav", *links, class_="views", aria_label="views"),
        main,
        scripts=("page.js",),
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _sizes(grid: Grid) -> str:
    seeds = sorted({len(r.per_seed) for r in grid.results})
    scenes = sorted({len(r.outcomes[0]) for r in grid.results if r.outcomes})
    told = f"{len(grid.methods)} methods, {len(grid.tasks)} tasks, {_range(seeds)} seeds"
    return told + (f", {_range(scenes)} scenes per seed" if scenes else "")


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _overview(grid: Grid) -> Html:
    missing = [tag("li", what, ": ", tag("code", command)) for what, command in grid.missing]
    told = tag("details", tag("summary", f"Not on this page yet: {len(missing)} things"), tag("ul", *missing))
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
        tag("div", told, class_="missing") if missing else None,
    )


# The headline ------------------------------------------------------------------------------------------


def _cards(grid: Grid) -> Html:
    cards = []
    for split in ("I", "O"):
        rate = mean_of(grid, grid.focus, split)
        tasks = [t for t in grid.tasks if grid.one(t).split == split and grid.result(grid.focus, t)]
        if rate is not None:
            told = f"{grid.focus}, mean of {len(tasks)} tasks, {SPLIT_WORDS[split]} ({split})"
            paper = [grid.paper[grid.focus, t].value for t in tasks if (grid.focus, t) in grid.paper]
            if len(paper) == len(tasks):
                told += f"; the paper has {percent(sum(paper) / len(paper))}%"
            cards.append(tag("li", tag("b", f"{percent(rate)}%"), tag("small", told)))
    pairs = sum(c["overall"]["tasks"] for c in grid.comparisons.values())
    if pairs:
        for name, words in (("significant", "significantly better"), ("worse", "significantly worse")):
            n = sum(c["overall"][name] for c in grid.comparisons.values())
            told = f"pairs of task and other method where {grid.focus} is {words} (Holm, .05)"
            cards.append(tag("li", tag("b", f"{n} of {pairs}"), tag("small", told)))
    return tag("ul", *cards, class_="cards")


# All tasks together ------------------------------------------------------------------------------------


def _overall(grid: Grid) -> Html | None:
    """Only methods that have every task of a split: means over other tasks would say nothing."""
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
            marks = [place("seed", r.rate.value, title=r.task) for r in results] + [place("dot", means[m])]
            if len(paper) == len(tasks):
                marks.append(place("told", sum(paper) / len(paper), title="the paper"))
            lines.append(line(m, marks, percent(means[m]), m == grid.focus))
        title = f"Mean of the {len(tasks)} tasks of split {split}: {SPLIT_WORDS[split]}"
        parts.append(tag("div", tag("h3", title), plot(lines, ("0%", "25", "50", "75", "100%"))))
    if not parts:
        return None
    entries = [("dot", "mean", True), ("seed", "a task", True)] + ([("told", "the paper", False)] if grid.paper else [])
    return join([tag("div", *parts, class_="pair"), key(*entries)])


def _significance(grid: Grid) -> Html:
    if not grid.comparisons:
        words = f"There is nothing to compare: results of {grid.focus} and of another method on the same task."
        return tag("p", words)
    rows = []
    for method, found in grid.comparisons.items():
        o = found["overall"]
        chance = o["probability_of_improvement"]
        rows.append(
            [
                method,
                o["tasks"],
                f"{100 * o['difference']:+.1f}",
                o["higher"],
                tag("td", tag("span", o["significant"], class_="up" if o["significant"] else None)),
                tag("td", tag("span", o["worse"], class_="down" if o["worse"] else None)),
                f"{chance['value']:.2f} [{chance['low']:.2f}, {chance['high']:.2f}]",
            ]
        )
    head = (
        "against",
        "tasks",
        "difference",
        "higher on",
        "significantly higher",
        "significantly lower",
        "beats it with chance",
    )
    told = (
        "On the tasks that both have. The last column: the probability that a run of the method beats a run of the "
        "other on the same task, with a bootstrap interval. Every test is on the page of its task."
    )
    return join([tag("p", told, class_="soft"), table(f"{grid.focus} against the others", head, rows)])
