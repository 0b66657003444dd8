"""A discovered graph as interactive SVG: inputs on the left, next state on the right, evidence for edges beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from because_rl.discovery.mask import current_row, sufficiency_text
from because_rl.report.markup import Html, fold, join, table, tag

STEP, BETWEEN = 30, 300
"""In units of the SVG's view box: height of a row, width between the two columns of names."""
READABLE = 0.7
"""Smallest size of such a unit, in pixels; where there is less room, the picture scrolls."""
KINDS = {
    "established": "established",
    "forced": "forced, as a factor's own past is",
    "undetermined": "undetermined, kept to be safe",
    "omitted": "undetermined, left out",
    "unstable": "left out, though parts of the data support it",
    "false": "a false edge",
    "missed": "a missed edge",
}
"""How an edge is drawn (a class of the style sheet) -> its meaning, in the order of the legend."""


def explore(graph: Mapping[str, Any]) -> Html:
    """The graph, a panel with the evidence for the selected edge or factor, and a table of all pairs.

    `graph` is the content of a graph.json, as `because discover` writes it, of this version or an older one; edges may
    lack p, effect, detectable and weight_ci95.
    """
    inputs, targets = graph["inputs"], graph["targets"]
    score = graph.get("score") or {}
    mistakes = {tuple(edge): "a false edge" for edge in score.get("false", ())}
    mistakes |= {tuple(edge): "a missed edge" for edge in score.get("missed", ())}
    edges = [
        current_row(e) | {"truth": mistakes.get((e["from"], e["to"]), "agrees" if score else "")}
        for e in graph["edges"]
    ]
    name_width = 9 * max(map(len, inputs)) + 20
    rows = max(len(inputs), len(targets))
    left, right = (
        {name: STEP * (0.5 + (n + 0.5) * rows / len(names)) for n, name in enumerate(names)}
        for names in (inputs, targets)
    )
    drawn = {n: e for n, e in enumerate(edges) if _kind(e) in KINDS}
    curves = {n: _curve(name_width, left[edge["from"]], right[edge["to"]]) for n, edge in drawn.items()}
    # Wide transparent paths below all others make thin edges easy to hit.
    paths = [tag("path", class_="hit", data_edge=n, d=curve) for n, curve in curves.items()]
    paths += [_path(n, edge, curves[n]) for n, edge in drawn.items()]
    nodes = [_node(name, 0, y, name_width, "from", name not in targets) for name, y in left.items()]
    nodes += [_node(name, name_width + BETWEEN, y, name_width, "to", False) for name, y in right.items()]
    kept = sum(edge["kept"] for edge in edges)
    label = f"Causal graph of {graph.get('dataset') or 'these data'}: {kept} of {len(edges)} edges"
    width = 2 * name_width + BETWEEN
    box, narrowest = f"0 0 {width} {STEP * (rows + 1)}", f"min-width: {READABLE * width:.0f}px"
    picture = tag("svg", *paths, *nodes, viewBox=box, style=narrowest, role="group", aria_label=label)
    columns = ("from", "to", "status", "kept", "p", "weight", "weight_ci95", "effect", "why", "needs", "truth")
    shown = [{k: e[k] for k in columns if k in e} | {"detectable": _power(e)} for e in edges]
    data = Html(json.dumps(shown).replace("<", "\\u003c"))
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
            tag("p", _summary(graph, edges)),
            tag(
                "div",
                tag("div", picture, class_="scroll", tabindex=0, role="region", aria_label=label),
                tag("div", panel, threshold, _legend(list(drawn.values()))),
                tag("script", data, type="application/json"),
                class_="graph",
            ),
            fold(f"All {len(edges)} pairs, kept edges first", _pairs(edges)),
        ]
    )


def _summary(graph: Mapping[str, Any], edges: list[dict[str, Any]]) -> str:
    settings = {name: value for name, value in graph.get("settings", {}).items() if value is not None}
    score = graph.get("score")
    text = f"{sum(e['kept'] for e in edges)} of {len(edges)} possible edges are kept"
    if "test" in settings:
        text += f" by the independence test {settings['test']}"
    if "threshold" in settings:
        text += f" with p below {settings['threshold']:g}"
    if "n" in settings:
        text += f", from {settings['n']:,} transitions"
    if score:
        missed, false = len(score["missed"]), len(score["false"])
        text += f". Against the true graph: F1 {score['f1']:.3f}, {missed} missed, {false} false"
    text += ". Thicker edges are more stable (their weight)."
    counts = {status: sum(e["status"] == status for e in edges) for status in ("excluded", "undetermined")}
    text += f" The data exclude {counts['excluded']} pairs, which are not drawn"
    if counts["undetermined"]:
        omitted = sum(e["status"] == "undetermined" and not e["kept"] for e in edges)
        text += f", and leave {counts['undetermined']} undetermined"
        text += f", of which {omitted} are left out" if omitted else ""
    return f"{text}. {sufficiency_text(graph.get('sufficiency', {}))}".rstrip()


def _legend(drawn: list[dict[str, Any]]) -> Html:
    """The kinds of edges in the picture, each with a piece of its line."""
    kinds = {_kind(edge) for edge in drawn}
    return tag(
        "ul",
        *(tag("li", tag("i", class_=kind), f" {meaning}") for kind, meaning in KINDS.items() if kind in kinds),
        class_="edge-kinds",
    )


def _kind(edge: Mapping[str, Any]) -> str:
    """How an edge is drawn: a class of the style sheet; a status that is not in `KINDS` is not drawn."""
    if edge["truth"] in ("a false edge", "a missed edge"):
        return str(edge["truth"]).split()[1]
    if edge["kept"]:
        return str(edge["status"])
    return "unstable" if edge["weight"] > 0 else "omitted" if edge["status"] == "undetermined" else edge["status"]


def _curve(name_width: int, start: float, end: float) -> str:
    a, b = name_width + 4, name_width + BETWEEN - 4
    bend = (b - a) * 0.4
    return f"M{a} {start:.1f}C{a + bend:.0f} {start:.1f} {b - bend:.0f} {end:.1f} {b} {end:.1f}"


def _path(n: int, edge: Mapping[str, Any], curve: str) -> Html:
    p = f"p {_p_value(edge)}, " if "p" in edge else ""
    why = f"; {edge['why']}" if edge.get("why") else ""
    text = f"{edge['from']} → {edge['to']}′: {edge['status']}, {p}weight {edge['weight']:.2f}{why}"
    width = f"{1 + 2 * edge['weight']:.2f}"
    return tag("path", tag("title", text), class_=_kind(edge), data_edge=n, d=curve, stroke_width=width)


def _p_value(edge: Mapping[str, Any]) -> str:
    """As text; the smallest numbers are 0 in floating point."""
    return "–" if "p" not in edge else f"{edge['p']:.2g}" if edge["p"] > 0 else "< 1e-300"


def _power(edge: Mapping[str, Any]) -> str:
    """The least effect that the data would have shown, as text; some tests and older versions do not say."""
    if not edge.get("detectable", 0):
        return "none" if "detectable" in edge and edge["detectable"] is None else "–"
    return f"{edge['detectable']:.2g}"


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
    head = ("edge", "verdict", "kept", "p", "weight", "effect", "detectable", "why", "what would decide")
    ordered = sorted(edges, key=lambda e: (not e["kept"], e.get("p", 1.0)))
    rows = [
        [
            f"{e['from']} → {e['to']}′",
            e["status"],
            "yes" if e["kept"] else "no",
            _p_value(e),
            f"{e['weight']:.2f}",
            f"{e['effect']:.3f}" if "effect" in e else "–",
            _power(e),
            tag("td", e.get("why", ""), class_="text"),
            tag("td", e.get("needs", ""), class_="text"),
        ]
        for e in ordered
    ]
    note = (
        "An effect is the share of what the other inputs leave unexplained that this input explains; detectable is the "
        "least effect that these data would have shown with probability 0.8."
    )
    return join([tag("p", note, class_="soft"), table("Every pair of factors", head, rows)])
