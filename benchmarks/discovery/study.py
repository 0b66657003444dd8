"""How often independence tests reject: true nulls (should be the level) and alternatives (should be 1)."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.discovery.discover import make_test
from because_rl.discovery.independence.base import IndependenceTest
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import Factor
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance
from because_rl.rng import child_seed, stream
from because_rl.statistics import wilson
from benchmarks.discovery.peers import COUNTING, MOST_ROWS, PairTest, installed, versions

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]
"""x (n,), y (n,), z (n, d)"""
Report = Callable[[int, int], None]

LEVELS = (0.05, 0.01, 1e-4)
OURS = ("residual", "gtest", "fcit", "fisherz")
"""Those of our tests that give p-values."""


@dataclass(frozen=True)
class Case:
    """`draw(rng, n)` gives x, y, z; `null` says whether x and y are independent given z."""

    draw: Callable[[np.random.Generator, int], Sample]
    n: int
    null: bool


def linear(d: int) -> Callable[[np.random.Generator, int], Sample]:
    """x and y are linear in d conditioning variables, with Gaussian noise of variance 1."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z = rng.standard_normal((n, d))
        a, b = rng.standard_normal((2, d)) / math.sqrt(max(d, 1))
        return z @ a + rng.standard_normal(n), z @ b + rng.standard_normal(n), z

    return draw


def nonlinear(effect: Callable[[np.ndarray, np.ndarray], Any] = lambda x, z: 0.0) -> Callable[..., Sample]:
    """x = tanh(z1 + z2 + z3) + noise / 2, y = sin(z2 + z3 + z4) + noise / 2 + effect(x, z); 18 variables."""

    def draw(rng: np.random.Generator, n: int) -> Sample:
        z = rng.standard_normal((n, 18))
        x = np.tanh(z[:, :3].sum(1)) + 0.5 * rng.standard_normal(n)
        y = np.sin(z[:, 1:4].sum(1)) + 0.5 * rng.standard_normal(n)
        return x, y + effect(x, z), z

    return draw


def heteroscedastic(rng: np.random.Generator, n: int) -> Sample:
    """The nonlinear null, but each noise grows with a variable that drives the other's mean."""
    z = rng.standard_normal((n, 18))
    x = np.tanh(z[:, :3].sum(1)) + 0.5 * (0.3 + np.abs(z[:, 1])) * rng.standard_normal(n)
    y = np.sin(z[:, 1:4].sum(1)) + 0.5 * (0.3 + np.abs(z[:, 0])) * rng.standard_normal(n)
    return x, y, z


def binary(rng: np.random.Generator, n: int) -> Sample:
    """The nonlinear null with x a coin whose odds depend on z1 + z2 + z3."""
    z = rng.standard_normal((n, 18))
    x = (rng.random(n) < 1 / (1 + np.exp(-z[:, :3].sum(1)))).astype(float)
    return x, np.sin(z[:, 1:4].sum(1)) + 0.5 * rng.standard_normal(n), z


def heavy(rng: np.random.Generator, n: int) -> Sample:
    """x and y linear in five variables; all noises Student with 2 degrees of freedom (no variance)."""
    z = rng.standard_t(2, (n, 5))
    a, b = rng.standard_normal((2, 5))
    return z @ a + rng.standard_t(2, n), z @ b + rng.standard_t(2, n), z


def categorical(rng: np.random.Generator, n: int) -> Sample:
    """As in Unlock: where an agent goes depends on its cell and its move, x on its cell alone; strata are uneven."""
    cell, move = np.minimum(rng.geometric(0.12, n), 24) - 1, rng.integers(0, 4, n)
    slip = rng.random(n) < 0.15
    y = np.where(slip, cell, (cell + np.array([1, -1, 6, -6])[move]) % 24)
    x = (cell + rng.integers(0, 3, n)) % 6
    return np.eye(6)[x], np.eye(24)[y], np.hstack([np.eye(24)[cell], np.eye(4)[move]])


CASES: dict[str, Case] = {
    **{f"linear-{d}-{n}": Case(linear(d), n, True) for n in (500, 1000) for d in (0, 1, 5, 18)},
    "nonlinear-1000": Case(nonlinear(), 1000, True),
    "nonlinear-4000": Case(nonlinear(), 4000, True),
    "heteroscedastic-1000": Case(heteroscedastic, 1000, True),
    "binary-1000": Case(binary, 1000, True),
    "heavy-1000": Case(heavy, 1000, True),
    "categorical-2800": Case(categorical, 2800, True),
    "effect-1000": Case(nonlinear(lambda x, z: 0.5 * x), 1000, False),
    "effect-4000": Case(nonlinear(lambda x, z: 0.5 * x), 4000, False),
    "interaction-4000": Case(nonlinear(lambda x, z: 0.5 * x * z[:, 4]), 4000, False),
    "square-4000": Case(nonlinear(lambda x, z: 0.5 * (x * x - 1)), 4000, False),
}


def as_variables(x: np.ndarray, y: np.ndarray, z: np.ndarray, episode: np.ndarray | None = None) -> Variables:
    """One input factor x, one input factor z (all its columns) and one target y."""

    def factor(name: str, values: np.ndarray) -> Factor:
        kind = "binary" if np.isin(values, (0.0, 1.0)).all() else "continuous"
        return Factor(name, 0, values.shape[1], kind)  # type: ignore[arg-type]

    blocks = {"x": x.reshape(len(x), -1), "z": z.reshape(len(x), -1)}
    blocks = {name: np.asarray(values, np.float64) for name, values in blocks.items() if values.shape[1]}
    target = np.asarray(y, np.float64).reshape(len(y), -1)
    return Variables(
        tuple(factor(name, values) for name, values in blocks.items()),
        (factor("y", target),),
        tuple(blocks.values()),
        (target,),
        np.arange(len(x)) if episode is None else np.asarray(episode),
    )


def pair(
    test: IndependenceTest | PairTest,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    episode: np.ndarray | None = None,
    seed: int = 0,
) -> float:
    """The p-value of 'x independent of y given z'."""
    if isinstance(test, IndependenceTest):
        return float(test(as_variables(x, y, z, episode), seed).p[0, 0])
    return float(test(x, y, z, seed))


def calibrate(
    tests: Mapping[str, IndependenceTest | PairTest],
    cases: Sequence[str] = tuple(CASES),
    replications: int = 2000,
    seed: int = 0,
    folder: Path | None = None,
    report: Report = lambda done, total: None,
    workers: int = 1,
    budget: float = math.inf,
) -> dict[str, Any]:
    """Rejection rates of each test in each case, all tests on the same data.

    With `folder` the p-values are kept there, a file per test and case, and a later call goes on from them.
    `workers` processes share the replications; each replication has its own seed, so the answer is the same.
    A test that has spent `budget` CPU seconds in a case stops there with the replications it has.
    """
    rows, done, total = [], 0, len(tests) * len(cases) * replications
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) if workers > 1 else contextlib.nullcontext() as pool:
        for name, test in tests.items():
            for case in cases:
                found = _resume(folder, name, case, seed)
                run = partial(_replicate, test, case, seed)
                while size := _batch(found, replications, budget, workers):
                    numbers = range(len(found["p"]), len(found["p"]) + size)
                    for p, seconds in pool.map(run, numbers) if pool else map(run, numbers):
                        found["p"].append(p)
                        found["seconds"].append(round(seconds, 5))
                    if folder is not None:
                        write_json(_file(folder, name, case, seed), found)
                    report(done + len(found["p"]), total)
                done += replications
                rows.append(_row(name, case, found, replications))
    return {"rows": rows, "levels": list(LEVELS), "replications": replications, "seed": seed}


def _batch(found: dict[str, list[float]], replications: int, budget: float, workers: int) -> int:
    """How many replications to do before the next look at the clock."""
    done, spent = len(found["p"]), sum(found["seconds"])
    if spent >= budget:
        return 0
    # In rounds of 10, or as many as seem to fit in the budget; before the first one, who knows.
    fit = 10 if budget == math.inf else min(10.0, (budget - spent) * done / max(spent, 1e-9))
    return max(0, min(max(1, int(fit)) * workers, replications - done))


def _replicate(test: IndependenceTest | PairTest, case: str, seed: int, number: int) -> tuple[float, float]:
    """p and CPU seconds (which do not depend on what else the machine does) of one replication."""
    sample = CASES[case].draw(stream(seed, "calibrate", case, number), CASES[case].n)
    begin = time.process_time()
    p = pair(test, *sample, seed=child_seed(seed, "calibrate", case, number))
    return p, time.process_time() - begin


def _row(name: str, case: str, found: dict[str, list[float]], replications: int) -> dict[str, Any]:
    p = np.array(found["p"][:replications])
    row: dict[str, Any] = {"test": name, "case": case, "n": CASES[case].n, "null": CASES[case].null}
    for level in LEVELS:
        low, high = wilson(float((p < level).mean()), len(p))
        row[f"{level:g}"] = {"rate": float((p < level).mean()), "low95": float(low), "high95": float(high)}
    seconds = float(np.median(found["seconds"][:replications]))
    return row | {"replications": len(p), "seconds": seconds, "smallest_p": float(p.min())}


def _file(folder: Path, name: str, case: str, seed: int) -> Path:
    return Path(folder) / f"{name}--{case}--seed{seed}.json"


def _resume(folder: Path | None, name: str, case: str, seed: int) -> dict[str, list[float]]:
    if folder is not None and _file(folder, name, case, seed).exists():
        return read_json(_file(folder, name, case, seed))
    return {"p": [], "seconds": []}


def study(
    names: Sequence[str] | None,
    cases: Sequence[str] | None,
    replications: int,
    seed: int = 0,
    folder: Path | None = None,
    report: Report = lambda done, total: None,
    workers: int = 1,
    budget: float = math.inf,
) -> dict[str, Any]:
    """`calibrate` by name: our tests and the installed peers, each on the cases it is made for."""
    available: dict[str, IndependenceTest | PairTest] = {name: make_test(name) for name in OURS} | installed()
    if unknown := [name for name in names or () if name not in available]:
        raise BecauseError(
            f"There is no test {unknown[0]!r} here.",
            need=f"one of {', '.join(available)}.",
            fix="install it or drop it.",
        )
    if unknown := [case for case in cases or () if case not in CASES]:
        raise BecauseError(f"There is no case {unknown[0]!r}.", need=f"one of {', '.join(CASES)}.", fix="drop it.")
    chosen = {name: test for name, test in available.items() if not names or name in names}
    rows: list[dict[str, Any]] = []
    for name, test in chosen.items():
        fitting = [case for case in cases or CASES if _fits(name, case)]
        rows += calibrate({name: test}, fitting, replications, seed, folder, report, workers, budget)["rows"]
    settings = {"tests": list(chosen), "replications": replications, "seed": seed, "peers": versions()}
    if budget < math.inf:
        settings["seconds_per_test_and_case"] = budget
    return {"rows": rows, "provenance": provenance(**settings)}


def _fits(name: str, case: str) -> bool:
    """Counting tests are for categories, the others for numbers, and some cannot take many rows."""
    counts = name == "gtest" or name in COUNTING
    return counts == case.startswith("categorical") and CASES[case].n <= MOST_ROWS.get(name, math.inf)
