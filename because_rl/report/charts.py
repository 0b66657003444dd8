"""Charts as HTML: marks are placed at a percentage of the track's width, so that labels stay readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from because_rl.report.markup import Html, tag


def mark(kind: str, at: float, width: float | None = None, title: str = "") -> Html:
    """A mark of CSS class `kind` on a track; `at` (its left end) and `width` are fractions of the track in [0, 1]."""
    size = "" if width is None else f"; width: {100 * width:.2f}%"
    return tag("i", class_=kind, style=f"left: {100 * min(max(at, 0.0), 1.0):.2f}%{size}", title=title or None)


def line(name: Any, marks: Sequence[Html], value: Any, own: bool = False, label: str = "") -> Html:
    """One line of a plot: a name, a track with marks, a number.

    `own` highlights the line of the method in focus. `label` describes the marks for screen readers.
    """
    track = tag("span", *marks, class_="track", role="img", aria_label=label or f"{value}")
    return tag("div", tag("span", name), track, tag("span", value), class_="line own" if own else "line")


def plot(lines: Sequence[Html], ticks: Sequence[str]) -> Html:
    """Lines above a common axis; `ticks` are spread evenly from the left end to the right."""
    labels = [tag("span", tick, style=f"left: {100 * n / max(len(ticks) - 1, 1):.1f}%") for n, tick in enumerate(ticks)]
    axis = tag("div", tag("span"), tag("span", *labels, class_="track"), tag("span"), class_="line axis")
    return tag("div", *lines, axis, class_="plot")


def legend(*entries: tuple[str, str, bool]) -> Html:
    """Entries of (kind of mark, its meaning, whether it has the colour of the method in focus)."""
    items = (
        tag(
            "span",
            tag(
                "span",
                tag("i", class_=kind, style="width: 1.2rem; left: 0" if kind == "span" else None),
                class_="track",
            ),
            words,
            class_="own" if own else None,
        )
        for kind, words, own in entries
    )
    return tag("div", *items, class_="key", aria_hidden="true")


SHADES = (0.0, 0.35, 0.65, 0.999)
"""Upper limits of the share of seeds that solve a scene, darkest shade first; above the last there is no shade."""


def scene_strip(solved: Sequence[float], order: Sequence[int]) -> Html:
    """One cell per scene, darker the fewer seeds solve it; `solved` is the share of seeds by scene."""
    columns: dict[int, list[int]] = {}
    for x, scene in enumerate(order):
        shade = next((n for n, limit in enumerate(SHADES) if solved[scene] <= limit), None)
        if shade is not None:
            columns.setdefault(shade, []).append(x)
    paths = (
        tag("path", class_=f"s{shade}", d="".join(f"M{x} 0h1v1h-1z" for x in xs))
        for shade, xs in sorted(columns.items())
    )
    return tag("svg", *paths, class_="scenes", viewBox=f"0 0 {len(order)} 1", preserveAspectRatio="none")


def curve(stage: str, steps: Sequence[float], losses: Sequence[Sequence[float]]) -> Html:
    """Loss against steps, one line per seed; `losses` has one row per step and one column per seed."""
    values = [v for row in losses for v in row if isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    width, height = max(steps) - min(steps) or 1, high - low or 1

    def path(seed: int) -> Html:
        points = [
            f"{100 * (step - min(steps)) / width:.2f} {60 * (high - row[seed]) / height:.2f}"
            for step, row in zip(steps, losses, strict=True)
            if isfinite(row[seed])
        ]
        if len(points) == 1:
            return tag("path", d=f"M50 {points[0].split()[1]}h0", class_="point")
        return tag("path", d="M" + "L".join(points) if points else "")

    ends = (f"{min(steps):,.0f} steps", f"{max(steps):,.0f}")
    return tag(
        "figure",
        tag("b", stage),
        tag("div", f"loss {low:.3g} to {high:.3g}", class_="soft"),
        tag(
            "svg",
            *(path(seed) for seed in range(len(losses[0]))),
            viewBox="0 0 100 60",
            preserveAspectRatio="none",
            role="img",
            aria_label=f"{stage}: loss from {losses[0][0]:.4g} to {losses[-1][0]:.4g} (first seed)",
        ),
        tag("div", *(tag("span", end) for end in ends), class_="ends"),
    )
