"""The page that explains one choice of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from because_rl.io import write_text
from because_rl.report.charts import legend, line, mark, plot
from because_rl.report.markup import Html, document, fold, join, table, tag

MOST = 15
"""Lines of a chart; the rest is folded away."""


def write_explanation(folder: Path, result: Mapping[str, Any], title: str) -> Path:
    """Write ``explain-ROW.html``, a page without other files; returns its path."""
    row, choice = result["row"], _words(result["choice"])
    heading = f"{title}: why {choice} in row {row}?"
    state = {**result["state"], **{f"goal: {name}": value for name, value in result["goal"].items()}}
    where = f"Episode {result['episode']}, step {result['step']}; {result['steps_left']} steps are planned for."
    page = document(
        heading,
        tag("header", tag("h1", heading), tag("p", where)),
        tag(
            "main",
            _section("What the model expects", _futures(result["futures"])),
            _section("What the choice depends on", _depends_on(result)),
            _section("The state", table("The state", ("factor", "value"), [(n, _text(v)) for n, v in state.items()])),
            id="main",
        ),
    )
    path = folder / f"explain-{row}.html"
    write_text(path, page)
    return path


def _section(title: str, *inside: Any) -> Html:
    return tag("section", tag("h2", title), *inside, class_="view")


def _words(action: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in action.items())


def _text(words: str) -> Html:
    return tag("td", words, class_="text")


def _futures(futures: Sequence[Mapping[str, Any]]) -> Html:
    rewards = "reward" in futures[0]
    head = ("", "first action", "mean uncertainty", *(("reward",) if rewards else ()), "then")
    rows = [
        (
            future["name"],
            _text(_words(future["action"])),
            f"{future['uncertainty']:.2f}",
            *((f"{future['reward']:.4g}",) if rewards else ()),
            _text(future["end"]),
        )
        for future in futures
    ]
    text = (
        "Imagined step by step with the agent acting after the first action. Uncertainty is the world model's, from 0 "
        "to 1; plans pay a penalty for it."
    )
    return join([tag("p", text), table("Futures", head, rows), *(_steps(future) for future in futures)])


def _steps(future: Mapping[str, Any]) -> Html:
    rows = [
        (k, _text(_words(step["action"])), f"{step['uncertainty']:.2f}")
        + ((f"{step['reward']:.4g}",) if "reward" in step else ())
        + (_text(_words(step["changes"])),)
        for k, step in enumerate(future["steps"], 1)
    ]
    rewards = ("reward",) if "reward" in future["steps"][0] else ()
    head = ("step", "action", "uncertainty", *rewards, "what changes")
    return fold(f"Step by step: {future['name']}", table(f"Steps: {future['name']}", head, rows))


def _depends_on(result: Mapping[str, Any]) -> Html:
    text = (
        "Factors take values of other logged steps, one factor at a time, and edges of the causal graph are cut: how "
        f"much does the choice change ({result['measure']})? The ring is the change when nothing is changed, since "
        "plans are drawn at random; what is not clearly beyond it did not carry the choice."
    )
    inputs = [(row["factor"], row, f"{_words(row['action'])} at {row['value']}") for row in result["inputs"]]
    edges = [(f"{row['from']} → {row['to']}", row, "") for row in result["edges"]]
    parts: list[Any] = [tag("p", text), tag("h3", "Factors of the state"), _chart(inputs, result["unchanged"])]
    if edges:
        parts += [tag("h3", "Edges of the graph"), _chart(edges, result["unchanged"])]
    return join(
        [*parts, legend(("dot", "clear", True), ("dot", "not clear", False), ("ring", "nothing changed", False))]
    )


def _chart(rows: Sequence[tuple[str, Mapping[str, Any], str]], unchanged: float) -> Html:
    scale = max([row["change"] for _, row, _ in rows] + [unchanged, 1e-9])
    lines = [
        line(
            name,
            [mark("ring", unchanged / scale), mark("dot", row["change"] / scale, title=words)],
            f"{row['change']:.2f}",
            row["clear"],
            f"{name}: {row['change']:.2f}{', clear' if row['clear'] else ''}{'; ' + words if words else ''}",
        )
        for name, row, words in rows
    ]
    ticks = ("0", f"{scale / 2:.2g}", f"{scale:.2g}")
    rest = fold(f"{len(lines) - MOST} more", plot(lines[MOST:], ticks)) if len(lines) > MOST else None
    return join([plot(lines[:MOST], ticks), rest])
