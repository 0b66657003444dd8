"""A discovered graph to explore: causes on the left, the next state on the right, what each edge rests on beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from because_rl.report.markup import Html, fold, join, table, tag

KEPT = ("edge", "untestable", "forced")
STEP, BETWEEN = 30, 300
"""In the picture's own units: the height of a row, the width of what lies between the names."""


def explore(graph: Mapping[str, Any]) -> Html:
    """The picture, a panel that tells of the chosen edge or factor, and all pairs as a table."""
    inputs, targets = graph["inputs"], graph["targets"]
    score = graph.get("score", {})
    verdicts = {tuple(edge): "a false edge" for edge in score.get("false", ())}
    verdicts |= {tuple(edge): "a missed edge" for edge in score.get("missed", ())}
    edges = [
        dict(e) | {"verdict": verdicts.get((e["from"], e["to"]), "agrees" if score else "")} for e in graph["edges"]
    ]
    room = 9 * max(map(len, inputs)) + 20  # for a name
    rows = max(len(inputs), len(targets))
    left, right = (
        {name: STEP * (0.5 + (n + 0.5) * rows / len(names)) for n, name in enumerate(names)}
        for names in (inputs, targets)
    )
    paths = [
        _path(n, edge, room, left[edge["from"]], right[edge["to"]])
        for n, edge in enumerate(edges)
        if edge["status"] in KEPT or edge["verdict"] == "a missed edge"
    ]
    nodes = [_node(name, 0, y, room, "from", name not in targets) for name, y in left.items()]
    nodes += [_node(name, room + BETWEEN, y, room, "to", False) for name, y in right.items()]
    kept = sum(edge["status"] in KEPT for edge in edges)
    said = f"Causal graph of {graph['dataset']}: {kept} of {len(edges)} edges"
    box = f"0 0 {2 * room + BETWEEN} {STEP * (rows + 1)}"
    picture = tag("svg", *paths, *nodes, viewBox=box, role="group", aria_label=said)
    told = ("from", "to", "status", "p", "weight", "weight_ci95", "effect", "why", "verdict")
    data = Html(
        json.dumps([{k: e[k] for k in told if e.get(k) or e.get(k) == 0} for e in edges]).replace("<", "\\u003c")
    )
    hint = tag("p", "Point at an edge or a factor, or walk through the factors with the tab key.", class_="soft")
    panel = tag("div", hint, class_="told-edge", aria_live="polite")
    least = tag(
        "label",
        "Least weight ",
        tag("input", type="range", min=0, max=1, step=0.05, value=0),
        tag("output", "0.00"),
        class_="menu",
    )
    return join(
        [
            tag("p", _summary(graph, kept, len(edges))),
            tag(
                "div",
                tag("div", picture, class_="scroll", tabindex=0, role="region", aria_label=said),
                tag("div", panel, least),
                tag("script", data, type="application/json"),
                class_="graph",
            ),
            fold(f"All {len(edges)} pairs, the strongest first", _pairs(edges)),
        ]
    )


def _summary(graph: Mapping[str, Any], kept: int, pairs: int) -> str:
    settings, score = graph.get("settings", {}), graph.get("score")
    told = f"{kept} of {pairs} possible edges are kept"
    if "test" in settings:
        told += f" by the test {settings['test']}"
    if "threshold" in settings:
        told += f" where p is below {settings['threshold']:g}"
    if "n" in settings:
        told += f", from {settings['n']:,} transitions"
    if score:
        missed, false = len(score["missed"]), len(score["false"])
        told += f". Against the true graph: F1 {score['f1']:.3f}, {missed} missed (red, dotted), {false} false (violet)"
    return told + ". Thick edges are the stable ones, dashed ones cannot be tested on these data."


def _path(n: int, edge: Mapping[str, Any], room: int, start: float, end: float) -> Html:
    words = {"a false edge": "false", "a missed edge": "missed"}
    kind = words.get(edge["verdict"], edge["status"])
    a, b = room + 4, room + BETWEEN - 4
    bend = (b - a) * 0.4
    title = tag("title", f"{edge['from']} → {edge['to']}′: p = {edge['p']:.2g}, weight {edge['weight']:.2f}")
    return tag(
        "path",
        title,
        class_=kind,
        data_edge=n,
        d=f"M{a} {start:.1f}C{a + bend:.0f} {start:.1f} {b - bend:.0f} {end:.1f} {b} {end:.1f}",
        stroke_width=f"{1 + 2 * edge['weight']:.2f}",
    )


def _node(name: str, x: float, y: float, room: int, side: str, action: bool) -> Html:
    mark = "" if side == "from" else "′"
    at, anchor = (x + room - 8, "end") if side == "from" else (x + 8, "start")
    return tag(
        "g",
        tag("rect", x=x, y=f"{y - 12:.1f}", width=room, height=24, rx=5),
        tag("text", name + mark, x=at, y=f"{y + 4.5:.1f}", text_anchor=anchor),
        class_="node action" if action else "node",
        tabindex=0,
        role="button",
        aria_label=f"{name}: what it drives" if side == "from" else f"next {name}: what it listens to",
        data_side=side,
        data_name=name,
    )


def _pairs(edges: list[dict[str, Any]]) -> Html:
    head = ("edge", "status", "p", "weight", "effect", "why")
    ordered = sorted(edges, key=lambda e: (e["status"] not in KEPT, e["p"]))
    rows = [
        [f"{e['from']} → {e['to']}′", e["status"], f"{e['p']:.2g}", f"{e['weight']:.2f}", f"{e['effect']:.3f}"]
        + [tag("td", e.get("why", ""), class_="text")]
        for e in ordered
    ]
    return table("Every pair of factors", head, rows)
