"""What a mask costs: seconds and memory of the default test and of the paper's, on data of Lift's shape."""

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
from typing import Any

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

OURS, TREES, ORIGINAL = "residual", "fcit", "fcit (original)"
MOST_FOR_TREES = 15_000
"""Rows; beyond that fcit would take hours."""
ON_GPU = ("first, with compilation", "second", "third", "fourth")
"""Runs: those after the first are alike."""

EPISODE = 25
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
"""The difference of two others, as in Lift: the test then has redundant inputs to worry about."""
PARENTS = 2
"""Causes of a factor beside its own past."""


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
    edges = {(parent, name) for name, found in parents.items() for parent in found}
    edges |= {(name, name) for name in (*mix, "colour")}
    edges |= {edge for name, pair in DEPENDENT.items() for of in pair for edge in _inherited(of, name, parents)}

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
    """Seconds and memory of a whole mask, for each number of rows: the default test, and fcit from some pairs.

    Each measurement has a process of its own. fcit's seconds are scaled from `pairs` pairs (ours: all of a target)
    to all of them; ours runs on one core, the original, where it is installed, on all of them as it comes. Where
    JAX sees a GPU the first run, which compiles, and later ones are told apart.
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
    """In a fresh process, so that the peak memory is this test's own."""
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
            scale, measured = _some_pairs(test, variables, pairs, seed)
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


def _some_pairs(test: str, variables: Variables, pairs: int, seed: int) -> tuple[float, int]:
    """Test some pairs with fcit: how many times their work a whole mask is, and how many they were."""
    rng = stream(seed, "discovery", "cost pairs")
    inputs, targets = len(variables.inputs), len(variables.targets)
    if test == TREES:  # a target's pairs come together
        some = rng.choice(targets, -(-pairs // inputs), replace=False)
        names, values = tuple(variables.targets[j] for j in some), tuple(variables.y[j] for j in some)
        Fcit()(replace(variables, targets=names, y=values), seed)
        return targets / len(some), inputs * len(some)
    for pair in rng.choice(inputs * targets, pairs, replace=False):
        i, j = divmod(int(pair), targets)
        rest = np.hstack([x for k, x in enumerate(variables.x) if k != i])
        fcit_as_shipped(variables.x[i], variables.y[j], rest, seed)
    _let_go()
    return inputs * targets / pairs, pairs


def _let_go() -> None:
    """End the processes that the original has started: only then is their time counted as this one's."""
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-not-found]

    get_reusable_executor().shutdown(wait=True)


def _cpu_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had before this process began
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _last(rows: Sequence[dict[str, Any]], test: str) -> dict[int, dict[str, Any]]:
    """n -> the last run of a test."""
    return {row["n"]: row for row in rows if row["test"] == test}


def times_faster(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Than fcit at the same n, by wall clock and by CPU seconds."""
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
    """The exponent of n in the default test's seconds, from each size to the next: 1 is linear."""
    ours = sorted(_last(rows, OURS).items())
    return [
        {"from": a, "to": b}
        | {
            kind: round(float(np.log(then[f"mask{key}"] / now[f"mask{key}"]) / np.log(b / a)), 2)
            for kind, key in (("wall", "_seconds"), ("cpu", "_cpu_seconds"))
        }
        for (a, now), (b, then) in pairwise(ours)
    ]


def _widths() -> dict[str, int]:
    return {f.name: f.width for f in (*LIFT.state, *LIFT.action)}


def _inherited(of: str, name: str, parents: dict[str, list[str]]) -> list[Edge]:
    """What drives a factor drives what is computed from it."""
    return [(cause, name) for cause in (of, *parents[of])]


def _state(values: dict[str, np.ndarray], colour: np.ndarray) -> np.ndarray:
    values = values | {name: values[a] - values[b] for name, (a, b) in DEPENDENT.items()} | {"colour": colour}
    return np.hstack([values[f.name] for f in LIFT.state])
