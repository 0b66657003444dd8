"""Charts as markup: marks at a share of a line's width, so that their words stay readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from because_rl.report.markup import Html, tag


def place(kind: str, at: float, width: float | None = None, title: str = "") -> Html:
    """A mark at `at` of the track, both in [0, 1]."""
    size = "" if width is None else f"; width: {100 * width:.2f}%"
    return tag("i", class_=kind, style=f"left: {100 * min(max(at, 0.0), 1.0):.2f}%{size}", title=title or None)


def line(name: Any, marks: Sequence[Html], value: Any, own: bool = False, tells: str = "") -> Html:
    """A name, a track with marks, a number. `tells`: the marks in words, for those who do not see them."""
    track = tag("span", *marks, class_="track", role="img", aria_label=tells or f"{value}")
    return tag("div", tag("span", name), track, tag("span", value), class_="line own" if own else "line")


def plot(lines: Sequence[Html], ticks: Sequence[str]) -> Html:
    marks = [tag("span", tick, style=f"left: {100 * n / max(len(ticks) - 1, 1):.1f}%") for n, tick in enumerate(ticks)]
    axis = tag("div", tag("span"), tag("span", *marks, class_="track"), tag("span"), class_="line axis")
    return tag("div", *lines, axis, class_="plot")


def key(*entries: tuple[str, str, bool]) -> Html:
    """(kind of mark, what it means, whether it is the method's own)"""
    told = (
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
    return tag("div", *told, class_="key", aria_hidden="true")


SHADES = (0.0, 0.35, 0.65, 0.999)
"""Up to which share of seeds a scene has which shade; above them it has none."""


def scene_strip(solved: Sequence[float], order: Sequence[int]) -> Html:
    """A cell per scene, the darker the fewer seeds solve it."""
    columns: dict[int, list[int]] = {}
    for x, scene in enumerate(order):
        shade = next((n for n, most in enumerate(SHADES) if solved[scene] <= most), None)
        if shade is not None:
            columns.setdefault(shade, []).append(x)
    paths = (
        tag("path", class_=f"s{shade}", d="".join(f"M{x} 0h1v1h-1z" for x in xs))
        for shade, xs in sorted(columns.items())
    )
    return tag("svg", *paths, class_="scenes", viewBox=f"0 0 {len(order)} 1", preserveAspectRatio="none")


def curve(stage: str, steps: Sequence[float], losses: Sequence[Sequence[float]]) -> Html:
    """Loss against steps, a line per seed."""
    values = [v for row in losses for v in row if v == v and abs(v) != float("inf")]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    wide, tall = max(steps) - min(steps) or 1, high - low or 1

    def path(seed: int) -> Html:
        points = [
            f"{100 * (step - min(steps)) / wide:.2f} {60 * (high - row[seed]) / tall:.2f}"
            for step, row in zip(steps, losses, strict=True)
            if row[seed] == row[seed] and abs(row[seed]) != float("inf")
        ]
        if len(points) == 1:
            return tag("path", d=f"M50 {points[0].split()[1]}h0", class_="point")
        return tag("path", d="M" + "L".join(points) if points else "")

    ends = (f"{min(steps):,.0f} steps", f"{max(steps):,.0f}")
    said = f"{stage}: loss from {losses[0][0]:.4g} to {losses[-1][0]:.4g} (first seed)"
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
            aria_label=said,
        ),
        tag("div", *(tag("span", end) for end in ends), class_="ends"),
    )
