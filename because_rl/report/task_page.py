"""A task of a grid: what it looks like, who solves it how often, and which scenes stay unsolved."""

from __future__ import annotations

from because_rl.report.charts import key, line, place, plot, scene_strip
from because_rl.report.grid_data import Failure, Film, Grid, Rate, Result
from because_rl.report.markup import Html, data_uri, fold, join, percent, table, tag

ABOUT = {
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
        "The cube's colour tells on which side of the table it lies, as in the logged data.",
        "The colours of the two sides are exchanged: no logged episode looks like it.",
    ),
}


def task_id(task: str) -> str:
    return f"task-{task}"


def dataset_name(dataset: str) -> str:
    """
    >>> dataset_name("because/unlock-medium-v0")
    'unlock-medium'
    """
    return dataset.removeprefix("because/").removesuffix("-v0")


def tasks_index(grid: Grid) -> Html:
    """A card for each task, world by world."""
    parts = [
        tag("p", f"Success of {grid.focus} and of the best other method. Behind each card: films, tests, failures.")
    ]
    for world in grid.worlds:
        cards = (_card(grid, task) for task in grid.tasks if grid.one(task).world == world)
        parts += [tag("h3", world.capitalize()), tag("ul", *cards, class_="cards tasks")]
    return tag("section", tag("h2", "Tasks", tabindex=-1), *parts, class_="view", id="tasks")


def _card(grid: Grid, task: str) -> Html:
    mine, films = grid.result(grid.focus, task), grid.films.get(task, ())
    best = max((r for r in grid.of_task(task) if r.method != grid.focus), key=lambda r: r.rate, default=None)
    told = f"{grid.focus} {percent(mine.rate.value)}%" if mine else f"{grid.focus} –"
    other = tag("small", f"{best.method} {percent(best.rate.value)}%") if best else None
    words = tag("span", tag("b", task), tag("small", told), other, class_="words")
    return tag("li", tag("a", _frames(films[-1], "") if films else None, words, href=f"#{task_id(task)}"))


def task_section(grid: Grid, task: str) -> Html:
    any_result, results = grid.one(task), grid.of_task(task)
    about, law, broken = ABOUT.get(any_result.world, ("", "", ""))
    name = dataset_name(any_result.dataset)
    said = about + (law if any_result.split == "I" else broken)
    graph = f"#graph-{name}" if any(g["dataset"] == any_result.dataset for g in grid.graphs) else "#graphs"
    mapped = any(told.dataset == any_result.dataset for told in grid.maps)
    maps = join([". ", tag("a", "Where the energy model is sure", href="#energy")]) if mapped else None
    parts = [
        _menu(grid, task),
        tag("h2", task, tabindex=-1),
        tag(
            "p",
            said,
            " Learned from ",
            tag("b", name),
            ". ",
            tag("a", "The causal graph of these data", href=graph),
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
    place_ = grid.tasks.index(task)
    options = (tag("option", t, value=f"#{task_id(t)}", selected=t == task) for t in grid.tasks)
    before, after = grid.tasks[place_ - 1], grid.tasks[(place_ + 1) % len(grid.tasks)]
    return tag(
        "div",
        tag("a", "← before", href=f"#{task_id(before)}", aria_label=f"task before: {before}"),
        tag("select", *options, data_menu=True, aria_label="task"),
        tag("a", "next →", href=f"#{task_id(after)}", aria_label=f"next task: {after}"),
        class_="menu",
    )


def _films(grid: Grid, task: str) -> Html:
    films = list(dict.fromkeys(grid.films.get(task, ())))
    if not films:
        return tag("p", "No pictures yet: ", tag("code", "because report RESULTS --pictures 600"), class_="soft")
    return tag("div", *(_film(film) for film in films), class_="films")


def _film(film: Film) -> Html:
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
        told = grid.paper.get((r.method, task))
        marks = [place("seed", rate) for rate in r.per_seed]
        marks += [place("rule logged", logged.value, title="the logging policy")] if logged else []
        marks += [place("rule", oracle.value, title="oracle planner")] if oracle else []
        marks += [place("span", r.rate.low, r.rate.high - r.rate.low), place("dot", r.rate.value)]
        marks += [place("told", told.value, title=f"in the paper {percent(told.value)}")] if told else []
        words = f"{r.method}: {interval(r.rate)}" + (f", in the paper {percent(told.value)}" if told else "")
        lines.append(line(r.method, marks, percent(r.rate.value), r.method == grid.focus, words))
    entries = [("dot", "mean over seeds", True), ("span", "95% interval", True), ("seed", "a seed", True)]
    entries += [("told", "the paper", False)] if any((r.method, task) in grid.paper for r in results) else []
    entries += [("rule", f"oracle planner {percent(oracle.value)}", False)] if oracle else []
    entries += [("rule logged", f"the policy that logged {percent(logged.value)}", False)] if logged else []
    return join([plot(lines, ("0%", "25", "50", "75", "100%")), key(*entries)])


def interval(rate: Rate) -> str:
    """
    >>> interval(Rate(0.5, 0.4, 0.6))
    '50.0% [40.0, 60.0]'
    """
    return f"{percent(rate.value)}% [{percent(rate.low)}, {percent(rate.high)}]"


def _compared(grid: Grid, task: str) -> Html | None:
    rows = []
    for method, found in grid.comparisons.items():
        row = next((row for row in found["rows"] if row["task"] == task), None)
        if row is None:
            continue
        span = "–" if row["p"] is None else f"[{100 * row['low95']:+.1f}, {100 * row['high95']:+.1f}]"
        shown = ("p", "p_holm", "paired_p", "paired_p_holm")
        rows.append([method, f"{100 * row['difference']:+.1f}", span, *(p_value(row[name]) for name in shown)])
    if not rows:
        return None
    head = ("", f"{grid.focus} minus it", "95%", "p", "Holm", "p by scene", "its Holm")
    return fold(
        f"Is {grid.focus} better? Tests against every other method",
        tag(
            "p",
            "Welch's test over seeds, and a paired one over scenes; Holm's adjustment is over tasks.",
            class_="soft",
        ),
        table(f"{grid.focus} against the others on {task}", head, rows),
    )


def p_value(p: float | None) -> str:
    return "–" if p is None else "< .0001" if p < 1e-4 else f"{p:.2g}"


def _subcases(grid: Grid, any_result: Result) -> Html | None:
    """Split O in its parts, where the world has them."""
    tasks = [t for t in grid.subcases if grid.one(t).dataset == any_result.dataset]
    if any_result.split == "I" or not tasks:
        return None
    methods = [m for m in grid.methods if any(grid.result(m, t) for t in tasks)]
    rows = [
        [m, *(percent(r.rate.value) if (r := grid.result(m, t)) else "–" for t in [any_result.task, *tasks])]
        for m in methods
    ]
    head = ("", "O", *(grid.one(t).split for t in tasks))
    return join([tag("h3", "One broken thing at a time"), table("Success on the parts of split O, in %", head, rows)])


def _scenes(grid: Grid, results: list[Result]) -> Html:
    known = [r for r in results if r.outcomes]
    if not known:
        return tag("p", "These cells do not say which scenes were solved.")
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
    words = f"The {scenes} scenes of the evaluation, the hardest on the left: red where no seed solves a scene, "
    return join([tag("p", words + "paler where more do, empty where all do."), plot(lines, ("hard", "easy"))])


def _gallery(grid: Grid, task: str) -> Html | None:
    failures, result = grid.failures.get(task), grid.result(grid.focus, task)
    if result is None or not result.outcomes:
        return None
    if not any(share < 1 for share in result.solved):
        return tag("p", f"No seed of {grid.focus} failed any scene.")
    if not failures:
        return tag("p", "The failed scenes are not drawn yet: ", tag("code", "because report RESULTS --pictures 600"))
    others = [r for r in grid.of_task(task) if r.method != grid.focus and r.outcomes]
    figures = [_failure(grid, failure, others) for failure in failures]
    return join(
        [tag("h3", f"Where {grid.focus} fails most, before the first step"), tag("div", *figures, class_="films")]
    )


def _failure(grid: Grid, failure: Failure, others: list[Result]) -> Html:
    better = [(r.solved[failure.scene], r.method) for r in others if failure.scene < len(r.solved)]
    told = f"Scene {failure.scene}: {failure.solved} of {failure.seeds} seeds of {grid.focus} solve it"
    best = max(better, default=None)
    told += f"; of the others, {best[1]} most often ({percent(best[0])}%)." if best and best[0] > 0 else "."
    told += " No seed of another method does." if best and best[0] == 0 else ""
    width, height = failure.picture.size
    image = tag(
        "img",
        class_="film",
        src=data_uri(failure.picture.data),
        alt=f"Start of scene {failure.scene}",
        style=f"aspect-ratio: {width} / {height}",
    )
    return tag("figure", image, tag("figcaption", told))
