"""Level and power of independence tests: how often they reject true nulls (the level) and alternatives (ideally 1)."""

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
"""At which rejection rates are reported."""
OURS = ("residual", "gtest", "fcit", "fisherz")
"""The tests of this package that give p-values."""


@dataclass(frozen=True)
class Case:
    """A distribution to sample from."""

    draw: Callable[[np.random.Generator, int], Sample]
    """(rng, n) -> x, y, z"""
    n: int
    null: bool
    """whether x and y are independent given z"""


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
    """Variables with two input factors, x and z (with all its columns), and one target y.

    x and y are (n,) or (n, columns), z is (n, d), `episode` is (n,); without it the rows are independent draws.
    """

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


def pair_p_value(
    test: IndependenceTest | PairTest,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    episode: np.ndarray | None = None,
    seed: int = 0,
) -> float:
    """The p-value of 'x is independent of y given z'; arrays have n rows, `episode` as in `as_variables`."""
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

    Args:
        tests: name -> test.
        cases: keys of `CASES`.
        replications: data sets per test and case.
        seed: of the data; each replication has its own seed, so the result does not depend on `workers`.
        folder: where p-values are kept, a file per test and case, from which a later call continues.
        report: called with (replications done, replications in total).
        workers: processes that share the replications.
        budget: CPU seconds after which a test stops in a case, with the replications it has.

    Returns:
        JSON-ready: "rows", one per test and case, and the settings.
    """
    rows, done, total = [], 0, len(tests) * len(cases) * replications
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) if workers > 1 else contextlib.nullcontext() as pool:
        for name, test in tests.items():
            for case in cases:
                record = _resume(folder, name, case, seed)
                run = partial(_replicate, test, case, seed)
                while size := _batch(record, replications, budget, workers):
                    numbers = range(len(record["p"]), len(record["p"]) + size)
                    for p, seconds in pool.map(run, numbers) if pool else map(run, numbers):
                        record["p"].append(p)
                        record["seconds"].append(round(seconds, 5))
                    if folder is not None:
                        write_json(_file(folder, name, case, seed), record)
                    report(done + len(record["p"]), total)
                done += replications
                rows.append(_row(name, case, record, replications))
    return {"rows": rows, "levels": list(LEVELS), "replications": replications, "seed": seed}


def _batch(record: dict[str, list[float]], replications: int, budget: float, workers: int) -> int:
    """Number of replications to run before the budget is checked again; 0 to stop."""
    done, spent = len(record["p"]), sum(record["seconds"])
    if spent >= budget:
        return 0
    # Up to 10 per worker, or as many as fit in the budget at the mean cost so far; at first one per worker.
    fit = 10 if budget == math.inf else min(10.0, (budget - spent) * done / max(spent, 1e-9))
    return max(0, min(max(1, int(fit)) * workers, replications - done))


def _replicate(test: IndependenceTest | PairTest, case: str, seed: int, number: int) -> tuple[float, float]:
    """p-value and CPU seconds of one replication (wall-clock time would depend on the load of the machine)."""
    sample = CASES[case].draw(stream(seed, "calibrate", case, number), CASES[case].n)
    begin = time.process_time()
    p = pair_p_value(test, *sample, seed=child_seed(seed, "calibrate", case, number))
    return p, time.process_time() - begin


def _row(name: str, case: str, record: dict[str, list[float]], replications: int) -> dict[str, Any]:
    """Rejection rates at each level with 95% intervals, and the cost."""
    p = np.array(record["p"][:replications])
    row: dict[str, Any] = {"test": name, "case": case, "n": CASES[case].n, "null": CASES[case].null}
    for level in LEVELS:
        low, high = wilson(float((p < level).mean()), len(p))
        row[f"{level:g}"] = {"rate": float((p < level).mean()), "low95": float(low), "high95": float(high)}
    seconds = float(np.median(record["seconds"][:replications]))
    return row | {"replications": len(p), "seconds": seconds, "smallest_p": float(p.min())}


def _file(folder: Path, name: str, case: str, seed: int) -> Path:
    return Path(folder) / f"{name}--{case}--seed{seed}.json"


def _resume(folder: Path | None, name: str, case: str, seed: int) -> dict[str, list[float]]:
    """The p-values and seconds that an earlier call has kept; empty lists if there are none."""
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
    """`calibrate` by name: our tests and those of installed packages, each on the cases it is made for.

    `names` and `cases` None mean all; the other arguments are those of `calibrate`. Returns "rows" and "provenance".
    """
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
    """Whether a test is made for a case: categorical or numeric data, and not too many rows for it."""
    for_categories = name == "gtest" or name in COUNTING
    return for_categories == case.startswith("categorical") and CASES[case].n <= MOST_ROWS.get(name, math.inf)
