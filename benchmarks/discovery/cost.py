"""Cost of a causal mask: seconds and memory of the default test and of the paper's, on data of Lift's shape."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from because_rl.discovery.independence.fcit import Fcit
from because_rl.discovery.independence.residual import ResidualTest
from because_rl.discovery.regression.threads import cores
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from because_rl.graph import Edge
from because_rl.provenance import provenance
from because_rl.rng import stream
from benchmarks.discovery.peers import fcit_as_shipped, installed, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, TREES, ORIGINAL = "residual", "fcit", "fcit (original)"
MOST_FOR_TREES = 15_000
"""Rows; with more fcit would take hours."""
ON_GPU = ("first, with compilation", "second", "third", "fourth")
"""Names of the runs on a GPU; only the first compiles."""
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#b7791f", "#718096")
"""Of the lines in the figure."""

EPISODE = 25
"""Steps of an episode."""
LIFT = FactorSpec(
    pack(
        *((name, 1, "continuous") for name in ("eef_x", "eef_y", "eef_z")),
        ("eef_quat", 4, "continuous"),
        ("joint_pos", 7, "continuous"),
        ("joint_vel", 7, "continuous"),
        *((name, 1, "continuous") for name in ("cube_x", "cube_y", "cube_z")),
        ("cube_quat", 4, "continuous"),
        *((name, 1, "continuous") for name in ("rel_x", "rel_y", "rel_z")),
        ("colour", 1, "continuous"),
        ("contact", 1, "binary"),
    ),
    pack(*((name, 1, "continuous") for name in ("dx", "dy", "dz", "gripper"))),
)
"""Lift's factors: 15 of the state (33 columns), 4 of the action."""
DEPENDENT = {f"rel_{axis}": (f"cube_{axis}", f"eef_{axis}") for axis in "xyz"}
"""Factors that are the difference of two others, as in Lift: redundant inputs for the test."""
PARENTS = 2
"""Causes of a factor besides its own last value."""


def lift_shaped(n: int, seed: int = 0) -> tuple[Variables, frozenset[Edge]]:
    """n transitions in episodes of 25, and the true edges.

    Next value = .9 last value + .3 tanh(random mixes of the parents) + .3 hidden cause + .1 noise; the colour is the
    hidden cause and some noise, constant in an episode; contact is 1 where two parents' mix is positive.
    """
    rng = stream(seed, "discovery", "cost")
    names = [f.name for f in (*LIFT.state, *LIFT.action)]
    free = [f for f in LIFT.state if f.name not in DEPENDENT and f.name != "colour"]
    causes = [name for name in names if name not in DEPENDENT and name != "colour"]
    parents, mix = {}, {}
    for factor in free:
        others = [name for name in causes if name != factor.name]
        parents[factor.name] = sorted(rng.choice(others, PARENTS, replace=False))
        width = sum(_widths()[name] for name in parents[factor.name])
        mix[factor.name] = rng.standard_normal((width, factor.width)) / np.sqrt(width)
    edges = {(cause, name) for name, causes_of_name in parents.items() for cause in causes_of_name}
    edges |= {(name, name) for name in (*mix, "colour")}
    for name, pair in DEPENDENT.items():  # causes of the two terms are causes of their difference
        edges |= {(cause, name) for term in pair for cause in (term, *parents[term])}

    episodes = -(-n // EPISODE)
    hidden = rng.standard_normal((episodes, 1))
    now = {f.name: rng.standard_normal((episodes, f.width)) for f in free}
    now["contact"] = (now["contact"] > 0).astype(float)
    colour = hidden + 0.5 * rng.standard_normal((episodes, 1))
    state, action, after = [], [], []
    for _ in range(EPISODE):
        act = {f.name: rng.standard_normal((episodes, 1)) for f in LIFT.action}
        inputs, then = now | act, {}
        for factor in free:
            mixed = np.hstack([inputs[name] for name in parents[factor.name]]) @ mix[factor.name]
            noise = rng.standard_normal(mixed.shape)
            if factor.name == "contact":
                then[factor.name] = (mixed + now[factor.name] - 0.5 + 0.5 * noise > 0).astype(float)
            else:
                shift = 0.3 * hidden if factor.name.startswith("cube") else 0.0
                then[factor.name] = 0.9 * now[factor.name] + 0.3 * np.tanh(2 * mixed) + shift + 0.1 * noise
        state.append(_state(now, colour))
        action.append(np.hstack([act[f.name] for f in LIFT.action]))
        after.append(_state(then, colour))
        now = then
    # (step, episode, column) -> rows in the order of episodes
    s, a, s_next = (np.stack(part, 1).reshape(episodes * EPISODE, -1)[:n] for part in (state, action, after))
    episode = np.repeat(np.arange(episodes), EPISODE)[:n]
    return Variables.from_arrays(LIFT, s, a, s_next, episode), frozenset(edges)


def cost(
    sizes: Sequence[int],
    pairs: int = 6,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Seconds and memory of a whole mask, for each number of rows, with the default test and with fcit.

    Each measurement has a process of its own. fcit's seconds are scaled from `pairs` pairs to all of them; our
    implementation measures all pairs of a target at once and runs on one core, the original, where it is installed,
    on all cores. Where JAX has a GPU, several runs are measured, and the first, which compiles, is named as such.

    Args:
        sizes: numbers of rows.
        pairs: for fcit; 0 leaves it out.
        seed: of the data.
        report: called with (measurements done, measurements in total).

    Returns:
        JSON-ready: "rows" (see `measure`), "times_faster", "growth" and "provenance".
    """
    if small := [n for n in sizes if n < 20 * EPISODE]:
        raise BecauseError(f"Got {small[0]} rows.", need=f"at least {20 * EPISODE}.", fix="pass --n 2000.")
    tests = [OURS, TREES] + [name for name in installed() if name == ORIGINAL]
    jobs = [(test, n) for n in sorted(sizes) for test in tests if test == OURS or (pairs and n <= MOST_FOR_TREES)]
    rows: list[dict[str, Any]] = []
    for done, (test, n) in enumerate(jobs):
        report(done, len(jobs))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            rows += fresh.submit(measure, test, n, pairs, seed).result()
    report(len(jobs), len(jobs))
    settings = {"n": sorted(sizes), "pairs": pairs, "seed": seed, "threads": cores(), "peers": versions()}
    return {
        "rows": rows,
        "times_faster": times_faster(rows),
        "growth": growth(rows),
        "provenance": provenance(**settings),
    }


def measure(test: str, n: int, pairs: int, seed: int) -> list[dict[str, Any]]:
    """One row per run of a test on n rows. To be called in a fresh process, so that the peak memory is its own."""
    import jax

    variables, _ = lift_shaped(n, seed)
    whole, device = len(variables.inputs) * len(variables.targets), jax.default_backend()
    rows = []
    for run in ("only",) if test != OURS or device == "cpu" else ON_GPU:
        load, wall, cpu = os.getloadavg()[0], time.perf_counter(), _cpu_seconds()
        if test == OURS:
            ResidualTest()(variables, seed)
            scale, measured = 1.0, whole
        else:
            scale, measured = _time_pairs(test, variables, pairs, seed)
        wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
        rows.append(
            {
                "test": test,
                "n": n,
                "run": run,
                "device": device if test == OURS else "cpu",
                "pairs": measured,
                "wall_seconds": round(wall, 2),
                "cpu_seconds": round(cpu, 2),
                "mask_seconds": round(wall * scale, 1),
                "mask_cpu_seconds": round(cpu * scale, 1),
                "peak_gb": round(_peak_bytes() / 1e9, 2),
                "load_before": round(load, 2),
            }
        )
    return rows


def _time_pairs(test: str, variables: Variables, pairs: int, seed: int) -> tuple[float, int]:
    """Test about `pairs` pairs with fcit; returns the work of a whole mask relative to that, and their number."""
    rng = stream(seed, "discovery", "cost pairs")
    inputs, targets = len(variables.inputs), len(variables.targets)
    if test == TREES:  # all pairs of a target are tested together
        chosen = rng.choice(targets, -(-pairs // inputs), replace=False)
        names, values = tuple(variables.targets[j] for j in chosen), tuple(variables.y[j] for j in chosen)
        Fcit()(replace(variables, targets=names, y=values), seed)
        return targets / len(chosen), inputs * len(chosen)
    for pair in rng.choice(inputs * targets, pairs, replace=False):
        i, j = divmod(int(pair), targets)
        rest = np.hstack([x for k, x in enumerate(variables.x) if k != i])
        fcit_as_shipped(variables.x[i], variables.y[j], rest, seed)
    _end_processes()
    return inputs * targets / pairs, pairs


def _end_processes() -> None:
    """End the processes that the original fcit has started: only then does their time count as this process's."""
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-not-found]

    get_reusable_executor().shutdown(wait=True)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had before this process began
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _last(rows: Sequence[dict[str, Any]], test: str) -> dict[int, dict[str, Any]]:
    """Number of rows -> the last run of a test."""
    return {row["n"]: row for row in rows if row["test"] == test}


def times_faster(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times faster than fcit the default test is at the same n, by wall-clock and by CPU seconds."""
    ours = _last(rows, OURS)
    return [
        {
            "n": n,
            "than": test,
            "wall": round(row["mask_seconds"] / max(ours[n]["mask_seconds"], 0.1), 1),
            "cpu": round(row["mask_cpu_seconds"] / max(ours[n]["mask_cpu_seconds"], 0.1), 1),
        }
        for test in (ORIGINAL, TREES)
        for n, row in _last(rows, test).items()
    ]


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exponent of n in the default test's seconds, between consecutive sizes: 1 is linear."""
    ours = sorted(_last(rows, OURS).items())
    return [
        {"from": a, "to": b}
        | {
            kind: round(float(np.log(then[f"mask{key}"] / now[f"mask{key}"]) / np.log(b / a)), 2)
            for kind, key in (("wall", "_seconds"), ("cpu", "_cpu_seconds"))
        }
        for (a, now), (b, then) in pairwise(ours)
    ]


def draw_cost(rows: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Seconds against rows, both on log axes: one line per test (and run, if several); linear growth in grey."""
    from matplotlib.figure import Figure  # here, so that it is not part of the memory that `measure` reports
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name = row["test"] if row["run"] == "only" else f"{row['test']} ({row['run']})"
        scaled = "" if row["mask_seconds"] == round(row["wall_seconds"], 1) else ", scaled from a few pairs"
        lines.setdefault(name + scaled, []).append((row["n"], row["mask_seconds"]))
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        axes.plot(*zip(*sorted(points), strict=True), marker="o", color=colour, label=name, linewidth=1.6, markersize=5)
    first = sorted(next(iter(lines.values())))
    if len(first) > 1:
        (start, seconds), (end, _) = first[0], first[-1]
        guide = [seconds, seconds * end / start]
        axes.plot([start, end], guide, color="#a0aec0", linestyle="--", linewidth=1.2, label="linear in n")
    axes.set(xscale="log", yscale="log", xlabel="transitions n", ylabel="seconds for the whole mask")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:,g}"))
    axes.grid(True, which="major", color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(title or "Cost of a mask on data of Lift's shape (285 pairs, 70 columns)", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _widths() -> dict[str, int]:
    """Factor name -> number of columns."""
    return {f.name: f.width for f in (*LIFT.state, *LIFT.action)}


def _state(values: dict[str, np.ndarray], colour: np.ndarray) -> np.ndarray:
    """(episodes, state columns) in the order of `LIFT.state`."""
    values = values | {name: values[a] - values[b] for name, (a, b) in DEPENDENT.items()} | {"colour": colour}
    return np.hstack([values[f.name] for f in LIFT.state])
