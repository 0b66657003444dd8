"""The page of one run: success beside the behaviour and the oracle, films of its policy, its graph and its models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from because_rl.io import remove_leftovers, write_text
from because_rl.report.charts import legend, line, mark, plot, scene_strip
from because_rl.report.factor_pages import factors_view
from because_rl.report.graph_svg import explore
from because_rl.report.grid_data import Grid, Rate, Result
from because_rl.report.heat_table import SPLIT_WORDS
from because_rl.report.markup import Html, document, fold, join, percent, table, tag
from because_rl.report.model_pages import curves_view, energy_view, graph_score, missing_list, view
from because_rl.report.task_page import DESCRIPTIONS, film_figure, interval
from because_rl.vision.views import FactorView


@dataclass(frozen=True)
class RunReport:
    """The content of a run's page."""

    title: str
    grid: Grid
    """a grid of one method on one dataset: results by split, oracle, behaviour, graph, curves, maps, films"""
    warnings: Sequence[str] = ()
    """what to worry about, which comes first"""
    facts: Sequence[tuple[str, str]] = ()
    """(quantity, its value in words), for the overview"""
    seeds: Sequence[int] = ()
    film_notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """task -> why a film is not there"""
    factors: Sequence[FactorView] = ()
    """that were read from pictures"""
    accuracy: Sequence[Mapping[str, Any]] = ()
    """the rows of `evaluation.held_out.held_out_accuracy`; empty where there is no world model"""
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    """of `evaluation.held_out.imagined_steps`"""
    events: Sequence[Mapping[str, Any]] = ()
    """of the same"""
    thin: Sequence[Mapping[str, str]] = ()
    """contexts in which an action was hardly tried, in words"""
    worth: Mapping[str, Any] = field(default_factory=dict)
    """the content of worth.json; empty where nothing is known"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """title -> plain data, shown as JSON"""


def write_run_page(folder: Path, run: RunReport) -> Path:
    """Write ``index.html``, a page without other files, into `folder`; returns its path."""
    views = {
        "Overview": _overview(run),
        "Factors": factors_view(run.factors, run.grid.graphs),
        "Causal graph": _graph(run.grid),
        "World model": _world_model(run),
        "Energy maps": energy_view(run.grid),
        "Learning": curves_view(run.grid) if run.grid.curves else None,
        "Provenance": _provenance(run),
    }
    ids = ("overview", "factors", "graph", "errors", "energy", "learning", "provenance")
    links = (tag("a", name, href=f"#{id_}") for id_, (name, part) in zip(ids, views.items(), strict=True) if part)
    page = document(
        run.title,
        tag("a", "Skip to content", href="#overview", class_="skip"),
        tag("header", tag("h1", run.title)),
        tag("nav", *links, class_="views", aria_label="views"),
        tag("main", *views.values(), id="main"),
        scripts=("page.js",),
    )
    remove_leftovers(folder)
    write_text(folder / "index.html", page)
    return folder / "index.html"


# Overview ----------------------------------------------------------------------------------------------


def _overview(run: RunReport) -> Html:
    grid = run.grid
    missing = fold(f"Missing from this page: {len(grid.missing)}", missing_list(grid))
    results = [grid.one(task) for task in grid.tasks]
    return view(
        "overview",
        "Overview",
        tag(
            "div",
            tag("h3", "What to worry about"),
            tag("ul", *(tag("li", text) for text in run.warnings)),
            class_="missing",
        )
        if run.warnings
        else None,
        _worth(run.worth) if run.worth else None,
        _cards(run, results),
        tag("div", *(_split(run, result) for result in results), class_="pair") if results else None,
        _thin(run.thin),
        tag("h3", "The run") if run.facts else None,
        table("The run", ("", ""), [(name, tag("td", words, class_="text")) for name, words in run.facts])
        if run.facts
        else None,
        tag("div", missing, class_="missing") if grid.missing else None,
    )


def _thin(rows: Sequence[Mapping[str, str]]) -> Html | None:
    if not rows:
        return None
    text = (
        "Actions that the log tries in a context at least five times less often than elsewhere. Of what they do there "
        "the model can only guess; to know it, try them there."
    )
    cells = [[tag("td", part, class_="text") if n else part for n, part in enumerate(row.values())] for row in rows]
    listed = table("Hardly tried", list(rows[0]), cells[:MOST_THIN])
    return join([tag("h3", "Hardly tried"), tag("p", text), listed])


MOST_THIN = 30


def _worth(worth: Mapping[str, Any]) -> Html:
    """The policies beside the behaviour, on one axis."""
    rows = [("behaviour", "", worth["behaviour"])]
    rows += [(policy["policy"], policy["by"], policy["worth"]) for policy in worth["policies"]]
    low, high = min(row["low"] for *_, row in rows), max(row["high"] for *_, row in rows)
    span = high - low or 1.0

    def at(value: float) -> float:
        return (value - low) / span

    lines = []
    for name, by, row in rows:
        value, least, most = (f"{row[part]:.4g}" for part in ("value", "low", "high"))
        marks = [mark("span", at(row["low"]), (row["high"] - row["low"]) / span), mark("dot", at(row["value"]))]
        label = f"{name}: {value}, 95% interval {least} to {most}" + (f", by {by}" if by else "")
        lines.append(line(name, marks, value, bool(by), label))
    verdicts = [
        tag(
            "p",
            tag("b", f"{policy['policy'][:1].upper()}{policy['policy'][1:]}: {policy['verdict']}"),
            f" – {policy['why']}.",
        )
        for policy in worth["policies"]
    ]
    ticks = [f"{value:.4g}" for value in (low, low + span / 2, high)]
    key = legend(("dot", "estimate", True), ("span", "95% interval", True))
    about = tag("p", f"{worth['quantity'][:1].upper()}{worth['quantity'][1:]}.", class_="soft")
    doubt = "Q is learned by features, whose own error is in no interval."
    care = tag("p", doubt, class_="soft") if worth.get("q_model") == "features" else None
    return tag("div", tag("h3", "Worth of the policy"), *verdicts, about, care, plot(lines, ticks), key)


def _cards(run: RunReport, results: Sequence[Result]) -> Html | None:
    cards = []
    for r in results:
        scenes = f" of {len(r.outcomes[0])} scenes" if r.outcomes else " of the scenes"
        text = f"{scenes} solved, {SPLIT_WORDS[r.split]} ({r.split}); 95% interval over seeds {_bounds(r.rate)}"
        cards.append((f"{percent(r.rate.value)}%", text.strip()))
    for graph in run.grid.graphs:
        if "score" in graph:
            score = graph["score"]
            words = f"of the causal graph: {len(score['missed'])} edges missed, {len(score['false'])} false"
            cards.append((f"F1 {score['f1']:.2f}", words))
        else:
            cards.append((graph_score(graph), "in the causal graph"))
    if run.uncertainty:
        held, mixed = (run.uncertainty[name] for name in ("held_out", "mixed"))
        words = f"uncertainty of the world model on held-out steps; {mixed:.2f} on steps mixed from several"
        cards.append((f"{held:.2f}", words))
    if not cards:
        return None
    return tag("ul", *(tag("li", tag("b", number), tag("small", words)) for number, words in cards), class_="cards")


def _bounds(rate: Rate) -> str:
    return f"{100 * rate.low:.0f} to {100 * rate.high:.0f}"


def _split(run: RunReport, result: Result) -> Html:
    """Success, scenes and films of one split."""
    purpose, *by_split = DESCRIPTIONS.get(result.world, ("", "", ""))
    description = purpose + by_split[result.split == "O"]
    films = [film_figure(film) for film in run.grid.films.get(result.task, ())]
    words = SPLIT_WORDS[result.split].capitalize()
    return tag(
        "div",
        tag("h3", f"{words} ({result.split})"),
        tag("p", description) if description else None,
        _success(run.grid, result),
        tag("div", *films, class_="films") if films else None,
        *(tag("p", note, class_="soft") for note in run.film_notes.get(result.task, ())),
        _scenes(run, result),
    )


def _success(grid: Grid, result: Result) -> Html:
    oracle = grid.oracle.get((result.world, result.split))
    logged = grid.behaviour.get(result.dataset) if result.split == "I" else None
    rates = [(result.method, result.rate), ("oracle planner", oracle), ("logging policy", logged)]
    lines = []
    for name, rate in rates:
        if rate is None:
            continue
        own = rate is result.rate
        marks = [mark("seed", value) for value in result.per_seed] if own else []
        marks += [mark("span", rate.low, rate.high - rate.low), mark("dot", rate.value)]
        lines.append(line(name, marks, percent(rate.value), own, f"{name}: {interval(rate)}"))
    entries = [("dot", "success", True), ("span", "95% interval", True), ("seed", "one seed", True)]
    return join([plot(lines, ("0%", "50", "100%")), legend(*entries)])


def _scenes(run: RunReport, result: Result) -> Html | None:
    """One line per seed: which scenes it solved."""
    if not result.outcomes:
        return None
    order = sorted(range(len(result.solved)), key=lambda scene: result.solved[scene])
    names = run.seeds or range(len(result.outcomes))
    lines = []
    for seed, outcomes in zip(names, result.outcomes, strict=True):
        solved = [float(outcome) for outcome in outcomes]
        label = f"seed {seed}: {outcomes.count('0')} of {len(outcomes)} scenes failed"
        lines.append(
            line(f"seed {seed}", [scene_strip(solved, order)], percent(sum(solved) / len(solved)), label=label)
        )
    text = f"The {len(order)} scenes of the evaluation, the hardest on the left; failed ones are red."
    return fold("Scene by scene", tag("p", text, class_="soft"), plot(lines, ("hard", "easy")))


# The models --------------------------------------------------------------------------------------------


def _graph(grid: Grid) -> Html | None:
    if not grid.graphs:
        return None
    text = (
        "Which factors the next value of each factor depends on, as discovered in the logged data. The world model "
        "uses these edges and no others."
    )
    return view("graph", "Causal graph", tag("p", text), *map(explore, grid.graphs))


def _world_model(run: RunReport) -> Html | None:
    """How well each factor is predicted on held-out episodes."""
    if not run.accuracy:
        return None
    lines, measures = [], {row["measure"] for row in run.accuracy}
    for row in run.accuracy:
        value, unchanged = row["value"], row["unchanged"]
        if value is None:
            lines.append(line(row["factor"], [], "constant", label="never changes in the held-out episodes"))
            continue
        marks = [mark("ring", unchanged, title=f"no change: {unchanged:.3f}")]
        marks += [mark("seed", seed) for seed in row["per_seed"]] + [mark("dot", value)]
        label = f"{row['factor']}, {row['measure']}: {value:.3f}; if nothing changed {unchanged:.3f}"
        lines.append(line(row["factor"], marks, f"{round(value, 3) + 0.0:.3f}", True, label))
    text = (
        f"One-step predictions on {run.accuracy[0]['rows']:,} steps of held-out episodes, which no network was trained "
        "on. " + " ".join(_MEASURES[name] for name in sorted(_MEASURES) if name in measures)
    )
    if run.uncertainty:
        text += (
            f" Uncertainty, from 0 to 1: {run.uncertainty['held_out']:.2f} on these steps and "
            f"{run.uncertainty['mixed']:.2f} on steps whose parts come from several, where it should be larger."
        )
    entries = [("dot", "mean over seeds", True), ("seed", "one seed", True)]
    entries.append(("ring", "a model that predicts no change", False))
    charts = plot(lines, ("0", "0.5", "1")), legend(*entries)
    return view(
        "errors", "World model", tag("h3", "Held-out accuracy, by factor"), tag("p", text), *charts, _events(run.events)
    )


def _events(rows: Sequence[Mapping[str, Any]]) -> Html | None:
    """How well switches of binary factors are foreseen."""
    if not rows:
        return None
    text = (
        "Switches of binary factors on the same steps. Recall: share of the switches that are given a chance above one "
        "half; in plans, where the most sceptical of several networks counts, it is lower. Precision: share of the "
        "steps with such a chance in which the factor switches. Foreseen: the sum of all chances divided by the number "
        "of switches, 1 if calibrated. The last columns compare how often the factor switches in the held-out steps "
        "with the mean chance of it on mixed steps."
    )
    head = ("factor", "switches", "recall", "in plans", "precision", "foreseen", "rate held out", "chance mixed")
    cells = [
        (row["factor"], row["switches"], f"{row['recall']:.2f}", f"{row['planned']:.2f}")
        + ("–" if row["precision"] is None else f"{row['precision']:.2f}", f"{row['foreseen']:.2f}")
        + (f"{row['switches'] / row['rows']:.4f}", f"{row['mixed']:.4f}")
        for row in rows
    ]
    return join([tag("h3", "Events"), tag("p", text), table("Events", head, cells)])


_MEASURES = {
    "predicted correctly": "Discrete factors: the share of steps predicted correctly.",
    "change predicted (R²)": "Continuous factors: the explained share of the variance of the change (R²).",
}


# Provenance --------------------------------------------------------------------------------------------


def run_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run.json says of settings and origin, by title."""
    return {
        "Settings of the method": record["config"],
        "Factors": record["factors"],
        "Data and seeds": {name: record[name] for name in ("dataset", "data_sha256", "seeds", "rounds", "chunk")},
        "Revision, machine and versions": record["provenance"],
    }


def _provenance(run: RunReport) -> Html:
    parts = [fold(title, tag("pre", json.dumps(value, indent=1), tabindex=0)) for title, value in run.settings.items()]
    return view("provenance", "Provenance", *parts)
