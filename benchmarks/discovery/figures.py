"""Pictures of docs/discovery.md, from the files that the other commands wrote: calibration and power.

Colours are Okabe and Ito's, which colour-blind readers distinguish; lines also differ in style.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation
from scipy.stats import binom

from because_rl.discovery.independence.residual import ResidualTest
from because_rl.errors import BecauseError
from because_rl.io import read_json
from because_rl.statistics import wilson
from benchmarks.discovery.cases import ALL_CASES, EFFECTS, POWER_EPISODES, POWER_ROWS, POWER_SHAPES, SHAPES

BLUE, ORANGE, GREEN, PINK, BLACK, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#1a202c", "#718096"
VERDICTS = {"established": (GREEN, "-", "o"), "undetermined": (ORANGE, "--", "s"), "excluded": (BLUE, "-.", "^")}
"""Verdict -> colour, line style and marker."""
KEPT = "in the mask"
SHIFT = 2.5
"""Points between the markers of two verdicts."""
STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."))
IN_EPISODES = {f"{count} episodes of {length}": f"-{count}x{length}" for count, length in SHAPES}
PANELS: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (
    (
        "residual, independent rows",
        {
            "linear": ("linear-*",),
            "nonlinear, uneven noise": ("nonlinear-1000", "heteroscedastic-1000"),
            "binary cause or target": ("binary-*",),
        },
    ),
    ("residual, rows that persist", {name: (f"ar-*{end}",) for name, end in IN_EPISODES.items()}),
    ("residual, hidden cause of y alone", {name: (f"hidden-*-free{end}",) for name, end in IN_EPISODES.items()}),
    ("residual, hidden cause of x and y", {name: (f"hidden-*-tied{end}",) for name, end in IN_EPISODES.items()}),
    (
        "gtest",
        {
            "uneven strata": ("categorical-*",),
            "persistent, 20 episodes of 50": ("sticky-20x50",),
            "persistent, 100 episodes of 10": ("sticky-100x10",),
        },
    ),
)
"""Title -> label of a line -> patterns of null cases, a line each; a title begins with the name of the test."""
LEAST_LEVEL = 0.005


def read_p_values(folder: Path) -> dict[tuple[str, str], np.ndarray]:
    """(test, case) -> p-values, from the files that `python -m benchmarks discovery --keep FOLDER` wrote."""
    p_values = {}
    for path in sorted(Path(folder).glob("*--seed*.json")):
        test, case, _ = path.stem.split("--")
        if case in ALL_CASES and ALL_CASES[case].null:
            p_values[test, case] = np.array(read_json(path)["p"])
    if not p_values:
        raise BecauseError(
            f"There are no p-values of null cases in {folder}.",
            need="the folder of a calibration.",
            fix="run 'python -m benchmarks discovery --keep FOLDER' first.",
        )
    return p_values


def draw_calibration(p_values: Mapping[tuple[str, str], np.ndarray]) -> Figure:
    """Share of true nulls rejected against the level, one line per case.

    The band is where 95% of the shares of a test that holds its level are, with as many data sets as the least of the
    panel's cases.
    """
    figure = Figure(figsize=(10.2, 6.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    levels = np.geomspace(LEAST_LEVEL, 1, 80)
    for panel, (title, groups) in zip(axes, PANELS, strict=False):
        test, least = title.split(",")[0], np.inf
        for (colour, line), (label, patterns) in zip(STYLES, groups.items(), strict=True):
            cases = [c for t, c in p_values if t == test and any(fnmatchcase(c, pattern) for pattern in patterns)]
            for k, case in enumerate(cases):
                p = np.sort(p_values[test, case])
                share = np.searchsorted(p, levels) / len(p)
                panel.plot(
                    levels, share, color=colour, linestyle=line, linewidth=1, alpha=0.8, label=label if not k else None
                )
                least = min(least, len(p))
        if np.isfinite(least):
            low, high = (binom.ppf(q, least, levels) / least for q in (0.025, 0.975))
            panel.fill_between(levels, low, high, color="#e2e8f0", zorder=0, label=f"95% of {least:,} uniform p-values")
            panel.legend(frameon=False, fontsize=7.5, loc="upper left")
        panel.plot([LEAST_LEVEL, 1], [LEAST_LEVEL, 1], color=BLACK, linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlim=(LEAST_LEVEL, 1), ylim=(LEAST_LEVEL, 1))
        panel.set_title(title, fontsize=10)
        _finish(panel)
    for panel in (axes[2], axes[3], axes[4]):
        panel.set_xlabel("level")
        panel.tick_params(labelbottom=True)
    for panel in (axes[0], axes[3]):
        panel.set_ylabel("share of true nulls rejected")
    for panel in axes:
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[5].set_visible(False)
    return figure


def draw_power(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Share of each verdict with 95% intervals: against the effect, and against the number of episodes.

    `rows` are those of a study of `POWER_CASES` with the residual test; a panel without any is left out.
    """
    by_case = {row["case"]: row for row in rows if "verdicts" in row}
    choices: dict[str, tuple[str, Sequence[float]]] = {
        f"y += c x, {n:,} independent rows": (f"added-{{:g}}-{n}", EFFECTS) for n in POWER_ROWS
    }
    choices |= {
        f"s' = s + c a b, {count} episodes of {length}": (f"product-{{:g}}-{count}x{length}", EFFECTS)
        for count, length in POWER_SHAPES
    }
    choices["s' = s + .3 a b, episodes of 100"] = ("product-{:g}x100", POWER_EPISODES)
    panels = {}
    for title, (name, values) in choices.items():
        if present := [(value, by_case[name.format(value)]) for value in values if name.format(value) in by_case]:
            panels[title] = values is EFFECTS, present
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns, 0.4 + 3.1 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for panel, (title, (by_effect, present)) in zip(axes, panels.items(), strict=False):
        _draw_shares(panel, present)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("effect" if by_effect else "episodes")
        if by_effect:
            panel.set_xscale("symlog", linthresh=EFFECTS[1], linscale=0.5)
            panel.set_xticks([0, 0.01, 0.03, 0.1, 0.3])
            panel.set_xlim(-EFFECTS[1] / 2, EFFECTS[-1] * 1.3)
            panel.axvspan(ResidualTest.least_effect, ResidualTest.excluding_effect, color="#e2e8f0", zorder=0)
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.xaxis.set_minor_locator(NullLocator())
        panel.set_ylim(-0.03, 1.03)
        _finish(panel)
    for panel in axes[::columns]:
        panel.set_ylabel("share of data sets")
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, fontsize=9, loc="outside lower center", ncols=len(VERDICTS) + 1)
    return figure


def _draw_shares(panel: Axes, present: Sequence[tuple[float, Mapping[str, Any]]]) -> None:
    """A line per verdict with Wilson's intervals, shifted a little so that none hides another."""
    x = np.array([value for value, _ in present], float)
    count = np.array([row["replications"] for _, row in present])
    for k, (verdict, (colour, line, marker)) in enumerate(VERDICTS.items()):
        share = np.array([row["verdicts"].get(verdict, 0.0) for _, row in present])
        low, high = wilson(share, count)
        shifted = panel.transData + ScaledTranslation(SHIFT * (k - 1) / 72, 0, panel.figure.dpi_scale_trans)
        panel.errorbar(
            x,
            share,
            np.maximum([share - low, high - share], 0),
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=4.5,
            linewidth=1.4,
            elinewidth=1,
            capsize=2,
            label=verdict,
            transform=shifted,
        )
    panel.plot(x, [row["kept"] for _, row in present], color=GREY, linestyle=":", linewidth=1.6, label=KEPT)


def _finish(panel: Axes) -> None:
    panel.grid(True, which="major", color="#edf2f7", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
