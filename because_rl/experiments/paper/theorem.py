"""Theorem 1, measured (`theorem`): suboptimality of the literal algorithm in MDPs whose core is known, against every
quantity of the bound, with the slopes that the bound has beside those that are measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from because_rl.experiments.formatting import markdown_table
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.bilinear_family import BONUS, DELTA, ESTIMATORS, PER_REPETITION, Family
from because_rl.experiments.paper.experiment import Experiment, Product, untrained_job
from because_rl.experiments.paper.scale import Scale
from because_rl.report.theorem_figure import Line, Panel, draw_panels
from because_rl.rng import stream
from because_rl.statistics import Estimate, log_slope, t_interval

REFERENCE = Family()


class Sweep(NamedTuple):
    """One quantity of the bound that is varied, the others as at the reference point."""

    field: str
    values: tuple[float, ...]
    fitted: tuple[float, ...]
    """those that the slope is fitted to"""
    exponent: str
    """of the theorem"""
    noise: float = REFERENCE.noise

    def families(self) -> list[Family]:
        base: dict[str, Any] = {"noise": self.noise}
        return [replace(REFERENCE, **base | {self.field: value}) for value in self.values]


_ENTRIES = (2, 3, 4, 6, 8, 10)
_LENGTHS = (2, 4, 8, 16, 32)
_LARGE = (4.0, 16.0, 64.0)
_COVERAGES = (1.0, 0.1, 0.01, 0.001)
_STATES = (20, 40, 80, 160)
SWEEPS = {
    "sigma": Sweep("noise", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 2.0, 4.0), "1"),
    "large sigma": Sweep("noise", _LARGE, _LARGE, "0"),
    "||M||_0": Sweep("row_entries", _ENTRIES, _ENTRIES, ".5"),
    "||M||_0, sigma = 0": Sweep("row_entries", _ENTRIES, _ENTRIES, "0", noise=0.0),
    "H": Sweep("horizon", _LENGTHS, _LENGTHS, "at most 1"),
    "S": Sweep("states", _STATES, _STATES, ".5"),
    "coverage": Sweep("coverage", _COVERAGES, _COVERAGES, "-.5 to 0"),
}
"""With a large sigma the theorem's first term, which is free of sigma, is the smaller. With sigma = 0 its right side is
0 whatever ||M||_0 is. Its n(s,a) ~ n / |S||A| makes it depend on |S| where the second term is the smaller."""
CONTRASTS = tuple(2.0**-k for k in range(9))
"""The families of which the worst one counts at each n."""
KNOB_SAMPLES = (10_000, 100_000, 1_000_000)
"""The numbers of samples at which other quantities are varied."""
LEVELS = (0.2, 0.1, 0.05, 0.025)
"""Accuracies xi; the first slopes of n(xi) are for .1."""


def _families() -> list[Family]:
    worst = [replace(REFERENCE, contrast=contrast) for contrast in CONTRASTS]
    return list(dict.fromkeys([REFERENCE, *(f for sweep in SWEEPS.values() for f in sweep.families()), *worst]))


def _jobs(scale: Scale) -> list[Job]:
    modules = ["because_rl.experiments.paper.bilinear_family"]
    settings = {"samples": scale.theorem_samples, "repetitions": scale.theorem_repetitions, "seed": 0}
    return [untrained_job("theorem", "theorem", modules, family=asdict(family), **settings) for family in _families()]


# Slopes ------------------------------------------------------------------------------------------------


class Points:
    """The finished points: (family, n, estimator, measure) -> one number for each repetition."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]):
        self.cells = {Family(**cell["family"]): cell for cell in cells}
        self.samples = sorted({n for cell in self.cells.values() for n in cell["samples"]})

    def summary(self, family: Family, n: int, estimator: str) -> Mapping[str, Any]:
        return self.cells[family]["points"][str(n)][estimator]

    def values(self, family: Family, n: int, estimator: str, measure: str) -> np.ndarray:
        return np.array(self.summary(family, n, estimator)[measure].split(), float)


def _row(axis: str, where: str, estimator: str, measure: str, exponent: str, slope: Estimate) -> dict[str, Any]:
    numbers = {name: None if np.isnan(value) else round(value, 4) for name, value in slope._asdict().items()}
    row: dict[str, Any] = {"axis": axis, "where": where, "estimator": estimator, "measure": measure}
    return row | {"theorem": exponent, "slope": numbers["value"], "low95": numbers["low"], "high95": numbers["high"]}


def slopes(points: Points) -> list[dict[str, Any]]:
    """One row for each axis, estimator and measure: the exponent that is measured and the theorem's."""
    rows = []
    middle = len(points.samples) // 2
    ranges = (points.samples[: middle + 1], points.samples[middle:], points.samples[-3:])
    noiseless = replace(REFERENCE, noise=0.0)
    worst = [replace(REFERENCE, contrast=contrast) for contrast in CONTRASTS]
    for estimator in ESTIMATORS:
        for measure in PER_REPETITION:
            for family, name in ((REFERENCE, ""), (noiseless, "sigma = 0, ")):
                if family not in points.cells:
                    continue
                for part in ranges:
                    values = [points.values(family, n, estimator, measure) for n in part]
                    where = f"{name}n = {part[0]:,} to {part[-1]:,}"
                    rows.append(_row("n", where, estimator, measure, "-.5", log_slope(part, values)))
            if all(family in points.cells for family in worst):
                for part in ranges:
                    cube = [[points.values(f, n, estimator, measure) for f in worst] for n in part]
                    where = f"worst contrast, n = {part[0]:,} to {part[-1]:,}"
                    rows.append(_row("n", where, estimator, measure, "-.5", log_slope(part, cube)))
            for axis, sweep in SWEEPS.items():
                pairs = list(zip(sweep.values, sweep.families(), strict=True))
                fitted = [(x, f) for x, f in pairs if x in sweep.fitted and f in points.cells]
                for n in (n for n in KNOB_SAMPLES if n in points.samples and len(fitted) > 1):
                    values = [points.values(family, n, estimator, measure) for _, family in fitted]
                    slope = log_slope([x for x, _ in fitted], values)
                    rows.append(_row(axis, f"n = {n:,}", estimator, measure, sweep.exponent, slope))
    return rows


# Samples that are needed -------------------------------------------------------------------------------


def samples_needed(samples: Iterable[int], gaps: np.ndarray, level: float) -> np.ndarray:
    """The n from which on the quantile 1 - delta of the suboptimality is at most `level`, interpolated in logarithms.

    `gaps` is (numbers of samples, ..., repetitions), the result (...). nan where that n is not between the first and
    the last one.
    """
    high = np.quantile(gaps, 1 - DELTA, axis=-1)
    return np.apply_along_axis(_last_crossing, 0, np.log(np.maximum(high, 1e-9)), np.log(list(samples)), np.log(level))


def _last_crossing(y: np.ndarray, logs: np.ndarray, level: float) -> float:
    above = np.nonzero(y > level)[0]
    if not len(above) or above[-1] == len(logs) - 1:
        return float("nan")
    k = above[-1]
    return float(np.exp(logs[k] + (level - y[k]) / (y[k + 1] - y[k]) * (logs[k + 1] - logs[k])))


def complexity(points: Points) -> list[dict[str, Any]]:
    """The n that each accuracy and each quantity of the bound needs."""
    rows = []
    cases = [("xi", level, REFERENCE, level) for level in LEVELS]
    for axis, sweep in SWEEPS.items():
        scale = REFERENCE.size if sweep.field == "row_entries" else 1
        cases += [(axis, x * scale, f, 0.1) for x, f in zip(sweep.values, sweep.families(), strict=True)]
    for axis, x, family, level in cases:
        if family not in points.cells:
            continue
        for estimator in ESTIMATORS:
            row: dict[str, Any] = {"axis": axis, "value": x, "xi": level, "estimator": estimator}
            for name, measure in (("n", "gap"), ("n_greedy", "greedy_gap")):
                (needed,) = _resampled_needed(points, estimator, measure, 0, family, level)
                row[name] = None if np.isnan(needed) else float(f"{needed:.3g}")
            rows.append(row)
    return rows


def complexity_slopes(points: Points, resamples: int = 300) -> list[dict[str, Any]]:
    """The exponents of n(xi), with intervals by a bootstrap over repetitions."""
    rows = []
    for axis, exponent in {"xi": "-2", "sigma": "2", "||M||_0": "1", "H": "2"}.items():
        cases = [(level, REFERENCE, level) for level in LEVELS]
        if axis != "xi":
            sweep = SWEEPS[axis]
            pairs = zip(sweep.values, sweep.families(), strict=True)
            cases = [(x, family, 0.1) for x, family in pairs if x in sweep.fitted]
        cases = [case for case in cases if case[1] in points.cells]
        for estimator in ESTIMATORS:
            for measure in ("gap", "greedy_gap"):
                asked = (points, estimator, measure, resamples)
                needed = np.array([_resampled_needed(*asked, family, level) for _, family, level in cases])
                known = ~np.isnan(needed).any(1)
                if known.sum() < 2:
                    continue
                x = np.log([case[0] for case in cases])[known]
                lines = np.polyfit(x, np.log(needed[known]), 1)[0]
                slope = Estimate(float(lines[0]), *map(float, np.quantile(lines[1:], [0.025, 0.975])))
                where = f"{known.sum()} of {len(cases)} values"
                rows.append(_row(f"n({axis})", where, estimator, measure, exponent, slope))
    return rows


def _resampled_needed(
    points: Points, estimator: str, measure: str, resamples: int, family: Family, level: float
) -> np.ndarray:
    """n(xi) of the repetitions, and of resampled ones: (1 + resamples,)."""
    gaps = np.array([points.values(family, n, estimator, measure) for n in points.samples])
    repetitions = np.arange(gaps.shape[1])
    picks = stream(0, "bootstrap", "theorem").choice(repetitions, (resamples, len(repetitions)))
    return samples_needed(points.samples, gaps[:, np.vstack([repetitions, picks])], level)


# Files -------------------------------------------------------------------------------------------------


def _point_rows(points: Points) -> list[dict[str, Any]]:
    rows = []
    for family in points.cells:
        for n in points.samples:
            for estimator in ESTIMATORS:
                summary = points.summary(family, n, estimator)
                row: dict[str, Any] = asdict(family) | {"n": n, "estimator": estimator}
                for measure in PER_REPETITION:
                    values = points.values(family, n, estimator, measure)
                    low, high = t_interval(values)
                    ends = {"": values.mean(), "_low95": low, "_high95": high, "_median": np.median(values)}
                    row |= {f"{measure}{end}": f"{value:.4g}" for end, value in ends.items()}
                    if "gap" in measure:
                        row[f"{measure}_zeros"] = round(float((values <= 0).mean()), 4)
                names = ("bound", "value_sum", "covered", "constant90", "missed", "false")
                rows.append(row | {name: f"{summary[name]:.4g}" for name in names})
    return rows


def _bonus_verdict(rows: list[dict[str, Any]]) -> str:
    """At how many points, below and from 10,000 samples on, the intervals with and without the bonus do not overlap."""
    parts = []
    for title, group in (
        ("below n = 10,000", [row for row in rows if row["n"] < 10_000]),
        ("from n = 10,000 on", [row for row in rows if row["n"] >= 10_000]),
    ):
        better = sum(float(row["gap_high95"]) < float(row["greedy_gap_low95"]) for row in group)
        worse = sum(float(row["gap_low95"]) > float(row["greedy_gap_high95"]) for row in group)
        parts.append(f"{title} better at {better} and worse at {worse} of {len(group)} points")
    least = min(float(row["bound"]) / max(float(row["gap"]), 1e-12) for row in rows)
    return (
        f"With the bonus the mean suboptimality is, by 95% intervals that do not overlap, {'; '.join(parts)}. The "
        f"bound is at least {least:.1f} times the mean suboptimality at every point."
    )


def _panels(points: Points) -> list[Panel]:
    def lines(families: list[Family], x: Iterable[float], n: int, measure: str) -> list[Line]:
        known = [(at, f) for at, f in zip(x, families, strict=True) if f in points.cells]
        at = [a for a, _ in known]
        return [Line(e, at, [points.values(f, n, e, measure) for _, f in known]) for e in ESTIMATORS if known]

    def against_n(measure: str) -> list[Line]:
        return [
            Line(e, points.samples, [points.values(REFERENCE, n, e, measure) for n in points.samples])
            for e in ESTIMATORS
            if REFERENCE in points.cells
        ]

    worst = [family for family in (replace(REFERENCE, contrast=c) for c in CONTRASTS) if family in points.cells]
    hardest = [
        max((points.values(f, n, "because", "greedy_gap") for f in worst), key=np.mean) for n in points.samples if worst
    ]
    gap, error, n = "suboptimality", "largest error of B V", KNOB_SAMPLES[-2]
    n = n if n in points.samples else points.samples[-1]
    greedy = against_n("greedy_gap")
    if hardest:
        greedy.append(Line("worst", points.samples, hardest))
    panels = [
        Panel("Suboptimality against n", "n", gap, against_n("gap"), -0.5),
        Panel("Without the bonus", "n", gap, greedy, -0.5),
        Panel("What the lemma bounds", "n", error, against_n("bellman_error"), -0.5),
    ]
    at_n = f"n = {n:.0e}".replace("e+0", "e")
    for axis, title, label, guide in (
        ("sigma", "Noise", "sigma", 1.0),
        ("||M||_0", "Sparsity", "||M||_0", 0.5),
        ("H", "Horizon", "H", 1.0),
        ("S", "States", "|S|", 0.5),
    ):
        sweep = SWEEPS[axis]
        x = [value * (REFERENCE.size if axis == "||M||_0" else 1) for value in sweep.values]
        panels.append(Panel(f"{title}, {at_n}", label, gap, lines(sweep.families(), x, n, "gap"), guide))
    sweep = SWEEPS["||M||_0"]
    x = [value * REFERENCE.size for value in sweep.values]
    error_lines = lines(sweep.families(), x, n, "bellman_error")
    panels.append(Panel(f"What the lemma bounds, {at_n}", "||M||_0", error, error_lines, 0.5))
    sweep = SWEEPS["coverage"]
    covered = [*lines(sweep.families(), sweep.values, n, "gap")[:3]]
    covered += [Line("greedy", x, v) for name, x, v in lines(sweep.families(), sweep.values, n, "greedy_gap")[1:2]]
    panels.append(Panel(f"A rare action, {at_n}", "how often it is logged", gap, covered))
    return panels


def _interval(row: Mapping[str, Any] | None) -> str:
    return (
        "-" if row is None or row["slope"] is None else f"{row['slope']:.2f} [{row['low95']:.2f}, {row['high95']:.2f}]"
    )


def _slope_table(rows: list[dict[str, Any]], measures: Mapping[str, str], estimators: Iterable[str]) -> str:
    shown = []
    for axis, where in dict.fromkeys((row["axis"], row["where"]) for row in rows):
        same = [row for row in rows if (row["axis"], row["where"]) == (axis, where)]
        group = {(row["estimator"], row["measure"]): row for row in same}
        cells = {
            f"{estimator}: {name}": _interval(group.get((estimator, measure)))
            for measure, name in measures.items()
            for estimator in estimators
        }
        shown.append({"axis": axis, "where": where, "theorem": next(iter(group.values()))["theorem"]} | cells)
    return markdown_table(shown)


def _check_table(points: Points) -> str:
    """Suboptimality, share of zeros, coverage of the lemma's event and the bound along n and each quantity."""
    cases = [(f"n = {n:,}", REFERENCE, n) for n in points.samples]
    n = KNOB_SAMPLES[1] if KNOB_SAMPLES[1] in points.samples else points.samples[-1]
    for axis, sweep in SWEEPS.items():
        for x, family in zip(sweep.values, sweep.families(), strict=True):
            value = x * REFERENCE.size if sweep.field == "row_entries" else x
            cases.append((f"{axis}: {value:g}, n = {n:,}", family, n))
    shown = []
    for title, family, n in cases:
        if family not in points.cells:
            continue
        row: dict[str, Any] = {"point": title}
        for estimator, name in (("because", "because"), ("true mask", "true mask"), ("dense", "dense")):
            summary, gap = points.summary(family, n, estimator), points.values(family, n, estimator, "gap")
            greedy = points.values(family, n, estimator, "greedy_gap")
            row |= {f"{name}: V* - V": f"{gap.mean():.4f}", f"{name}, no bonus": f"{greedy.mean():.4f}"}
            if estimator == "because":
                row |= {"zeros": f"{100 * (gap <= 0).mean():.0f}%", "bound": f"{summary['bound']:.3g}"}
                row |= {"zeros, no bonus": f"{100 * (greedy <= 0).mean():.0f}%"}
                row |= {"event holds": f"{100 * summary['covered']:.0f}%", "C_s needed": f"{summary['constant90']:.3f}"}
                row |= {"missed": f"{summary['missed']:.1f}", "false": f"{summary['false']:.1f}"}
        shown.append(row)
    return markdown_table(shown)


def _make(scale: Scale, jobs: list[Job], cells: Mapping[str, Any]) -> Product:
    points = Points(cells.values())
    if not points.cells:
        return Product([], "Nothing yet.", None, {"slopes": [], "complexity": []})
    rows = _point_rows(points)
    fitted, needed = slopes(points), complexity(points)
    exponents = complexity_slopes(points)
    by_measure = [
        f"## {title}\n\n{_slope_table(fitted, {measure: name}, ESTIMATORS)}"
        for title, measure, name in (
            ("Slopes of the suboptimality", "gap", "V* - V"),
            ("Without the bonus", "greedy_gap", "V* - V"),
            ("Slopes of the error that the lemma bounds", "bellman_error", "error"),
            ("Slopes of the error of V", "value_error", "error"),
        )
    ]
    parts = [
        f"MDPs T(s'|s,a) = phi(s,a)^T M mu(s') with known features. Reference point: {REFERENCE}; delta = {DELTA}, "
        f"C_s = {BONUS}; {scale.theorem_repetitions} repetitions, each with its own MDP and data. because: mask by "
        "tests; true mask; dense: none; normalised: mask by tests, rows of the model divided by their sum. "
        "Slopes are of log mean against log x, with 95% intervals by a bootstrap over repetitions.",
        *by_measure,
        "## Points\n\nZeros: share of repetitions whose suboptimality is exactly 0. Event: the lemma's, with C_s as "
        "above; needed: the least constant with which it holds in 90%, at most 9. Bound: twice the theorem's sum with "
        "that C_s, mean. Missed and false: entries of the mask, mean.",
        _check_table(points),
        _bonus_verdict(rows),
        "## Samples needed\n\nThe n from which on 90% of the repetitions have a suboptimality of at most xi ('-': not "
        "between the least and the largest n).",
        _needed_table(needed),
        "Exponents of this n:",
        _slope_table(exponents, {"gap": "n", "greedy_gap": "n, no bonus"}, ESTIMATORS),
    ]
    text = "\n\n".join(parts)
    tables = {"slopes": fitted + exponents, "complexity": needed}
    return Product(rows, text, draw_panels(_panels(points)), tables)


def _needed_table(rows: list[dict[str, Any]]) -> str:
    shown: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        head = {"axis": row["axis"], "value": f"{row['value']:g}", "xi": row["xi"]}
        line = shown.setdefault((row["axis"], row["value"]), head)
        for name, title in (("n", ""), ("n_greedy", ", no bonus")):
            line[row["estimator"] + title] = "-" if row[name] is None else f"{row[name]:,.0f}"
    return markdown_table(list(shown.values()))


THEOREM = Experiment("Theorem 1, measured", _jobs, _make)
