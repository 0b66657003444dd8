"""The view of a run's page on factors that were read from pictures: where each is, what moves it, how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from because_rl.datasets.render import encode_png
from because_rl.discovery.mask import current_row
from because_rl.report.markup import Html, data_uri, percent, tag
from because_rl.report.model_pages import view
from because_rl.vision.views import FactorView

KINDS = {
    "mover": "{type}: which of {width} cells it is in",
    "set": "{type}: for each of {width} cells, whether it is there; things come and go",
    "still": "{type}: for each of {width} cells, whether it is there; things stay where they are until they vanish",
    "switch": "{type}: which of {width} looks its cell has",
}
GAP = 4
"""Pixels between two frames."""
LEAST_HEIGHT, MOST_HEIGHT = 128, 256
"""Of a frame on the page: small ones are enlarged by a whole number, of large ones every so many pixels are shown."""


def factors_view(views: Sequence[FactorView], graphs: Sequence[Mapping[str, Any]]) -> Html | None:
    """A figure for each factor, with its causes in the first of `graphs`; None if none was read from pictures."""
    if not views:
        return None
    text = (
        "The factors that were read from the logged pictures, without labels; names say only how they behave. On the "
        "left all cells that a factor is read from, beside it where it is in frames of one logged episode, from its "
        "beginning to its end."
    )
    return view("factors", "Factors", tag("p", text), tag("div", *(_figure(v, graphs) for v in views), class_="read"))


def _figure(factor: FactorView, graphs: Sequence[Mapping[str, Any]]) -> Html:
    words = KINDS[factor.kind].format(type=factor.type.capitalize(), width=factor.width)
    facts = [
        ("type", words),
        ("changes", f"in {percent(factor.changes)}% of the logged steps"),
        ("moved by", _causes(factor.name, graphs)),
    ]
    if factor.goal:
        facts.append(("goal", f"{factor.goal}: so it is exactly where logged episodes end by themselves"))
    alt = f"{factor.name}: its cells, and where it is in {len(factor.frames) - 1} frames of an episode"
    listed = tag("dl", *(part for name, value in facts for part in (tag("dt", name), tag("dd", value))))
    image = tag("img", src=data_uri(encode_png(_strip(factor.frames)), "image/png"), alt=alt)
    return tag("figure", tag("h3", factor.name), image, tag("figcaption", listed))


def _causes(name: str, graphs: Sequence[Mapping[str, Any]]) -> str:
    """The factors that a factor depends on, in words, without itself."""
    if not graphs:
        return "unknown: there is no graph"
    rows = [current_row(edge) for edge in graphs[0]["edges"] if edge["to"] == name and edge["from"] != name]
    causes = [
        row["from"] + " (undetermined, kept to be safe)" * (row["status"] == "undetermined")
        for row in rows
        if row["kept"]
    ]
    return ", ".join(causes) or "nothing but its own past"


def _strip(frames: np.ndarray) -> np.ndarray:
    """The frames (n, height, width, 3) side by side, with transparency between them: (height, ..., 4) uint8."""
    height = frames.shape[1]
    frames = frames[:, :: max(height // MOST_HEIGHT, 1), :: max(height // MOST_HEIGHT, 1)]
    times = max(-(-LEAST_HEIGHT // frames.shape[1]), 1)
    frames = frames.repeat(times, 1).repeat(times, 2)
    opaque = np.concatenate([frames, np.full((*frames.shape[:3], 1), 255, np.uint8)], axis=-1)
    return np.concatenate(list(np.pad(opaque, ((0, 0), (0, 0), (0, GAP), (0, 0)))), axis=1)[:, :-GAP]
