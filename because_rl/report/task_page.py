"""The page of one task: films of it, success of every method, tests, and the scenes that the focus fails."""

from __future__ import annotations

from because_rl.datasets.paths import short_name
from because_rl.report.charts import legend, line, mark, plot, scene_strip
from because_rl.report.grid_data import Failure, Film, Grid, Rate, Result
from because_rl.report.markup import Html, data_uri, fold, join, percent, table, tag

DESCRIPTIONS = {
    "unlock": (
        "Fetch the key, then open every door, within 15 steps. ",
        "One door, in the quadrant opposite the key's, as in the logged data.",
        "Two doors, never opposite the key, also in cells where no logged door was.",
    ),
    "crash": (
        "Steer a car, a slow car and two pedestrians into the near-misses that the goal asks for, within 30 steps. ",
        "One near-miss is asked for, and the pedestrians stand just beyond the slow car, as in the logged data.",
        "Both near-misses are asked for, and the pedestrians stand anywhere.",
    ),
    "lift": (
        "Lift the cube 10 cm off the table with a Panda arm, within 30 steps. ",
        "The cube's colour depends on the side of the table where it lies, as in the logged data.",
        "The colours of the two sides are swapped, which no logged episode shows.",
    ),
}
"""World -> (the task, how scenes are drawn in split I, and in split O)"""


def task_id(task: str) -> str:
    """The HTML id of a task's section."""
    return f"task-{task}"


def dataset_name(dataset: str) -> str:
    """The short name of a dataset id.

    >>> dataset_name("because/unlock-medium-v1")
    'unlock-medium'
    """
    return short_name(dataset)


def tasks_index(grid: Grid) -> Html:
    """The list of tasks: one card for each, by world."""
    parts = [
        tag("p", f"Success of {grid.focus} and of the best other method. Each card links to films, tests and failures.")
    ]
    for world in grid.worlds:
        cards = (_card(grid, task) for task in grid.tasks if grid.one(task).world == world)
        parts += [tag("h3", world.capitalize()), tag("ul", *cards, class_="cards tasks")]
    return tag("section", tag("h2", "Tasks", tabindex=-1), *parts, class_="view", id="tasks")


def _card(grid: Grid, task: str) -> Html:
    focus, films = grid.result(grid.focus, task), grid.films.get(task, ())
    best = max((r for r in grid.results_on(task) if r.method != grid.focus), key=lambda r: r.rate, default=None)
    success = f"{grid.focus} {percent(focus.rate.value)}%" if focus else f"{grid.focus} –"
    other = tag("small", f"{best.method} {percent(best.rate.value)}%") if best else None
    words = tag("span", tag("b", task), tag("small", success), other, class_="words")
    return tag("li", tag("a", _frames(films[-1], "") if films else None, words, href=f"#{task_id(task)}"))


def task_section(grid: Grid, task: str) -> Html:
    """The view of one task."""
    any_result, results = grid.one(task), grid.results_on(task)
    purpose, in_distribution, out_of_distribution = DESCRIPTIONS.get(any_result.world, ("", "", ""))
    name = dataset_name(any_result.dataset)
    description = purpose + (in_distribution if any_result.split == "I" else out_of_distribution)
    graph = f"#graph-{name}" if any(g["dataset"] == any_result.dataset for g in grid.graphs) else "#graphs"
    has_maps = any(group.dataset == any_result.dataset for group in grid.maps)
    maps = join([". ", tag("a", "Energy maps", href="#energy")]) if has_maps else None
    parts = [
        _menu(grid, task),
        tag("h2", task, tabindex=-1),
        tag(
            "p",
            description,
            " Trained on ",
            tag("b", name),
            ". ",
            tag("a", "Causal graph of these data", href=graph),
            maps,
        ),
        _films(grid, task),
        tag("h3", "Success"),
        _success(grid, task, results),
        _compared(grid, task),
        _subcases(grid, any_result),
        tag("h3", "Scene by scene"),
        _scenes(grid, results),
        _gallery(grid, task),
    ]
    return tag("section", *parts, class_="view", id=task_id(task), data_under="tasks")


def _menu(grid: Grid, task: str) -> Html:
    index = grid.tasks.index(task)
    options = (tag("option", t, value=f"#{task_id(t)}", selected=t == task) for t in grid.tasks)
    before, after = grid.tasks[index - 1], grid.tasks[(index + 1) % len(grid.tasks)]
    return tag(
        "div",
        tag("a", "← previous", href=f"#{task_id(before)}", aria_label=f"previous task: {before}"),
        tag("select", *options, data_menu=True, aria_label="task"),
        tag("a", "next →", href=f"#{task_id(after)}", aria_label=f"next task: {after}"),
        class_="menu",
    )


def _films(grid: Grid, task: str) -> Html:
    films = list(dict.fromkeys(grid.films.get(task, ())))
    if not films:
        return tag("p", "Pictures are missing: ", tag("code", "because report RESULTS --pictures 600"), class_="soft")
    return tag("div", *(film_figure(film) for film in films), class_="films")


def film_figure(film: Film) -> Html:
    """A film with its player and caption."""
    last = film.picture.frames - 1
    player = tag(
        "div",
        tag("button", "Play", type="button"),
        tag("input", type="range", min=0, max=last, value=0, step=1, aria_label="step of the film"),
        class_="player",
    )
    return tag("figure", _frames(film, film.caption), player, tag("figcaption", film.caption))


def _frames(film: Film, alt: str) -> Html:
    width, height = film.picture.size
    return tag(
        "img",
        class_="film" if alt else "film still",
        src=data_uri(film.picture.data),
        alt=alt,
        data_frames=film.picture.frames,
        style=f"aspect-ratio: {width} / {height}",
    )


def _success(grid: Grid, task: str, results: list[Result]) -> Html:
    any_result = results[0]
    oracle = grid.oracle.get((any_result.world, any_result.split))
    logged = grid.behaviour.get(any_result.dataset)
    lines = []
    for r in results:
        paper = grid.paper.get((r.method, task))
        marks = [mark("seed", rate) for rate in r.per_seed]
        marks += [mark("rule logged", logged.value, title="logging policy")] if logged else []
        marks += [mark("rule", oracle.value, title="oracle planner")] if oracle else []
        marks += [mark("span", r.rate.low, r.rate.high - r.rate.low), mark("dot", r.rate.value)]
        marks += [mark("paper", paper.value, title=f"in the paper {percent(paper.value)}")] if paper else []
        label = f"{r.method}: {interval(r.rate)}" + (f", in the paper {percent(paper.value)}" if paper else "")
        lines.append(line(r.method, marks, percent(r.rate.value), r.method == grid.focus, label))
    entries = [("dot", "mean over seeds", True), ("span", "95% interval", True), ("seed", "one seed", True)]
    entries += [("paper", "the paper", False)] if any((r.method, task) in grid.paper for r in results) else []
    entries += [("rule", f"oracle planner {percent(oracle.value)}", False)] if oracle else []
    entries += [("rule logged", f"logging policy {percent(logged.value)}", False)] if logged else []
    return join([plot(lines, ("0%", "25", "50", "75", "100%")), legend(*entries)])


def interval(rate: Rate) -> str:
    """A rate with its interval, in percent.

    >>> interval(Rate(0.5, 0.4, 0.6))
    '50.0% [40.0, 60.0]'
    """
    return f"{percent(rate.value)}% [{percent(rate.low)}, {percent(rate.high)}]"


def _compared(grid: Grid, task: str) -> Html | None:
    rows = []
    for method, comparison in grid.comparisons.items():
        row = next((row for row in comparison["rows"] if row["task"] == task), None)
        if row is None:
            continue
        span = "–" if row["p"] is None else f"[{100 * row['low95']:+.1f}, {100 * row['high95']:+.1f}]"
        shown = ("p", "p_holm", "paired_p", "paired_p_holm")
        rows.append([method, f"{100 * row['difference']:+.1f}", span, *(p_value(row[name]) for name in shown)])
    if not rows:
        return None
    head = ("against", "difference", "95% interval", "p (seeds)", "Holm", "p (scenes)", "Holm")
    return fold(
        f"Is {grid.focus} better? Tests against every other method",
        tag(
            "p",
            f"Success of {grid.focus} minus that of the other method, in percentage points. Welch's test over seeds "
            "and a paired test over scenes; Holm's adjustment is over tasks.",
            class_="soft",
        ),
        table(f"{grid.focus} against the others on {task}", head, rows),
    )


def p_value(p: float | None) -> str:
    """A p-value as text; a dash where there is none."""
    return "–" if p is None else "< .0001" if p < 1e-4 else f"{p:.2g}"


def _subcases(grid: Grid, any_result: Result) -> Html | None:
    """Success on the splits that differ from I in one way each, where the world has them."""
    tasks = [t for t in grid.subcases if grid.one(t).dataset == any_result.dataset]
    if any_result.split == "I" or not tasks:
        return None
    methods = [m for m in grid.methods if any(grid.result(m, t) for t in tasks)]
    rows = [
        [m, *(percent(r.rate.value) if (r := grid.result(m, t)) else "–" for t in [any_result.task, *tasks])]
        for m in methods
    ]
    head = ("", "O", *(grid.one(t).split for t in tasks))
    return join([tag("h3", "One change at a time"), table("Success on the sub-cases of split O, in %", head, rows)])


def _scenes(grid: Grid, results: list[Result]) -> Html:
    known = [r for r in results if r.outcomes]
    if not known:
        return tag("p", "These cells do not record which scenes were solved.")
    scenes = min(len(r.outcomes[0]) for r in known)
    shares = [r.solved for r in known]
    order = sorted(range(scenes), key=lambda k: sum(s[k] for s in shares))
    lines = [
        line(
            r.method,
            [scene_strip(share, order)],
            percent(sum(share) / len(share)),
            r.method == grid.focus,
            f"{r.method}: {sum(s == 0 for s in share)} of {len(share)} scenes are solved by no seed",
        )
        for r, share in zip(known, shares, strict=True)
    ]
    text = (
        f"The {scenes} scenes of the evaluation, the hardest on the left: red where no seed solves a scene, paler "
        "where more do, empty where all do."
    )
    return join([tag("p", text), plot(lines, ("hard", "easy"))])


def _gallery(grid: Grid, task: str) -> Html | None:
    failures, result = grid.failures.get(task), grid.result(grid.focus, task)
    if result is None or not result.outcomes:
        return None
    if not any(share < 1 for share in result.solved):
        return tag("p", f"No seed of {grid.focus} failed any scene.")
    if not failures:
        command = "because report RESULTS --pictures 600"
        return tag("p", "Pictures of the failed scenes are missing: ", tag("code", command))
    others = [r for r in grid.results_on(task) if r.method != grid.focus and r.outcomes]
    figures = [_failure(grid, failure, others) for failure in failures]
    title = f"Scenes that {grid.focus} fails most often, before the first step"
    return join([tag("h3", title), tag("div", *figures, class_="films")])


def _failure(grid: Grid, failure: Failure, others: list[Result]) -> Html:
    rates = [(r.solved[failure.scene], r.method) for r in others if failure.scene < len(r.solved)]
    caption = f"Scene {failure.scene}: {failure.solved} of {failure.seeds} seeds of {grid.focus} solve it"
    best = max(rates, default=None)
    caption += f"; of the others, {best[1]} does most often ({percent(best[0])}%)." if best and best[0] > 0 else "."
    caption += " No seed of another method does." if best and best[0] == 0 else ""
    width, height = failure.picture.size
    image = tag(
        "img",
        class_="film",
        src=data_uri(failure.picture.data),
        alt=f"Start of scene {failure.scene}",
        style=f"aspect-ratio: {width} / {height}",
    )
    return tag("figure", image, tag("figcaption", caption))
