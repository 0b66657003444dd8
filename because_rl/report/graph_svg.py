"""A discovered graph as interactive SVG: inputs on the left, next state on the right, evidence for edges beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from because_rl.discovery.mask import KEPT
from because_rl.report.markup import Html, fold, join, table, tag

STEP, BETWEEN = 30, 300
"""In units of the SVG's view box: height of a row, width between the two columns of names."""
READABLE = 0.7
"""Smallest size of such a unit, in pixels; where there is less room, the picture scrolls."""


def explore(graph: Mapping[str, Any]) -> Html:
    """The graph, a panel with the evidence for the selected edge or factor, and a table of all pairs.

    `graph` is the content of a graph.json, as `because discover` writes it; edges may lack p, effect and weight_ci95.
    """
    inputs, targets = graph["inputs"], graph["targets"]
    score = graph.get("score", {})
    verdicts = {tuple(edge): "a false edge" for edge in score.get("false", ())}
    verdicts |= {tuple(edge): "a missed edge" for edge in score.get("missed", ())}
    edges = [
        dict(e) | {"verdict": verdicts.get((e["from"], e["to"]), "agrees" if score else "")} for e in graph["edges"]
    ]
    name_width = 9 * max(map(len, inputs)) + 20
    rows = max(len(inputs), len(targets))
    left, right = (
        {name: STEP * (0.5 + (n + 0.5) * rows / len(names)) for n, name in enumerate(names)}
        for names in (inputs, targets)
    )
    drawn = {n: e for n, e in enumerate(edges) if e["weight"] > 0 or _kind(e) not in ("no edge", "forbidden")}
    curves = {n: _curve(name_width, left[edge["from"]], right[edge["to"]]) for n, edge in drawn.items()}
    # Wide transparent paths below all others make thin edges easy to hit.
    paths = [tag("path", class_="hit", data_edge=n, d=curve) for n, curve in curves.items()]
    paths += [_path(n, edge, curves[n]) for n, edge in drawn.items()]
    nodes = [_node(name, 0, y, name_width, "from", name not in targets) for name, y in left.items()]
    nodes += [_node(name, name_width + BETWEEN, y, name_width, "to", False) for name, y in right.items()]
    kept = sum(edge["status"] in KEPT for edge in edges)
    label = f"Causal graph of {graph['dataset']}: {kept} of {len(edges)} edges"
    width = 2 * name_width + BETWEEN
    box, narrowest = f"0 0 {width} {STEP * (rows + 1)}", f"min-width: {READABLE * width:.0f}px"
    picture = tag("svg", *paths, *nodes, viewBox=box, style=narrowest, role="group", aria_label=label)
    columns = ("from", "to", "status", "p", "weight", "weight_ci95", "effect", "why", "verdict")
    data = Html(
        json.dumps([{k: e[k] for k in columns if e.get(k) or e.get(k) == 0} for e in edges]).replace("<", "\\u003c")
    )
    hint = tag("p", "Point at an edge or a factor, or press Tab to step through the factors.", class_="soft")
    panel = tag("div", hint, class_="edge-details", aria_live="polite")
    threshold = tag(
        "label",
        "Minimum weight ",
        tag("input", type="range", min=0, max=1, step=0.05, value=0),
        tag("output", "0.00"),
        class_="menu",
    )
    return join(
        [
            tag("p", _summary(graph, kept, len(edges))),
            tag(
                "div",
                tag("div", picture, class_="scroll", tabindex=0, role="region", aria_label=label),
                tag("div", panel, threshold),
                tag("script", data, type="application/json"),
                class_="graph",
            ),
            fold(f"All {len(edges)} pairs, kept edges first", _pairs(edges)),
        ]
    )


def _summary(graph: Mapping[str, Any], kept: int, pairs: int) -> str:
    settings, score = graph.get("settings", {}), graph.get("score")
    text = f"{kept} of {pairs} possible edges are kept"
    if "test" in settings:
        text += f" by the independence test {settings['test']}"
    if "threshold" in settings:
        text += f" with p below {settings['threshold']:g}"
    if "n" in settings:
        text += f", from {settings['n']:,} transitions"
    if score:
        missed, false = len(score["missed"]), len(score["false"])
        text += f". Against the true graph: F1 {score['f1']:.3f}, {missed} missed (red, dotted), {false} false (violet)"
    text += ". Thicker edges are more stable (their weight)"
    if untestable := sum(edge["status"] == "untestable" for edge in graph["edges"]):
        text += f"; {untestable} that these data cannot test are kept and dashed"
    if unstable := sum(edge["status"] not in KEPT and edge["weight"] > 0 for edge in graph["edges"]):
        text += f"; {unstable} that only parts of the data support are thin and grey"
    return text + "."


def _kind(edge: Mapping[str, Any]) -> str:
    """How an edge is drawn: a class of the style sheet."""
    words = {"a false edge": "false", "a missed edge": "missed"}
    if edge["verdict"] in words:
        return words[edge["verdict"]]
    return "unstable" if edge["status"] not in KEPT and edge["weight"] > 0 else edge["status"]


def _curve(name_width: int, start: float, end: float) -> str:
    a, b = name_width + 4, name_width + BETWEEN - 4
    bend = (b - a) * 0.4
    return f"M{a} {start:.1f}C{a + bend:.0f} {start:.1f} {b - bend:.0f} {end:.1f} {b} {end:.1f}"


def _path(n: int, edge: Mapping[str, Any], curve: str) -> Html:
    p = f"p {_p_value(edge)}, " if "p" in edge else ""
    title = tag("title", f"{edge['from']} → {edge['to']}′: {p}weight {edge['weight']:.2f}")
    return tag("path", title, class_=_kind(edge), data_edge=n, d=curve, stroke_width=f"{1 + 2 * edge['weight']:.2f}")


def _p_value(edge: Mapping[str, Any]) -> str:
    """As text; the smallest numbers are 0 in floating point."""
    return "–" if "p" not in edge else f"{edge['p']:.2g}" if edge["p"] > 0 else "< 1e-300"


def _node(name: str, x: float, y: float, width: int, side: str, is_action: bool) -> Html:
    mark = "" if side == "from" else "′"
    text_x, anchor = (x + width - 8, "end") if side == "from" else (x + 8, "start")
    return tag(
        "g",
        tag("rect", x=x, y=f"{y - 12:.1f}", width=width, height=24, rx=5),
        tag("text", name + mark, x=text_x, y=f"{y + 4.5:.1f}", text_anchor=anchor),
        class_="node action" if is_action else "node",
        tabindex=0,
        role="button",
        aria_label=f"effects of {name}" if side == "from" else f"causes of the next {name}",
        data_side=side,
        data_name=name,
    )


def _pairs(edges: list[dict[str, Any]]) -> Html:
    head = ("edge", "status", "p", "weight", "effect", "why")
    ordered = sorted(edges, key=lambda e: (e["status"] not in KEPT, e.get("p", 1.0)))
    rows = [
        [
            f"{e['from']} → {e['to']}′",
            e["status"],
            _p_value(e),
            f"{e['weight']:.2f}",
            f"{e['effect']:.3f}" if "effect" in e else "–",
            tag("td", e.get("why", ""), class_="text"),
        ]
        for e in ordered
    ]
    return table("Every pair of factors", head, rows)
