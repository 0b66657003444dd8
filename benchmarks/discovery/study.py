"""Level and power of independence tests: how often they reject true nulls (the level) and alternatives (ideally 1).

Beside the p-value, the verdict that `decide` gives at the test's default threshold is counted: where a test cannot hold
its level, as with strong dependence within few episodes, its verdict should be "undetermined".
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from because_rl.discovery.discover import DEFAULT_THRESHOLD, make_test
from because_rl.discovery.independence.base import IndependenceTest
from because_rl.discovery.mask import STATUSES, decide
from because_rl.discovery.variables import Variables
from because_rl.errors import BecauseError
from because_rl.factors import Factor
from because_rl.io import read_json, write_json
from because_rl.provenance import provenance
from because_rl.rng import child_seed, stream
from because_rl.statistics import wilson
from benchmarks.discovery.cases import ALL_CASES, CASES
from benchmarks.discovery.peers import COUNTING, MOST_ROWS, PairTest, installed, versions

Record = dict[str, list[Any]]
""""p", "verdict", "kept" and "seconds" of the replications that are done, in their order"""
Report = Callable[[int, int], None]

LEVELS = (0.05, 0.01, 1e-4)
"""At which rejection rates are reported."""
DEFAULT = 1e-4
"""p-value below which an edge is kept, for tests without a default of their own."""
OURS = ("residual", "gtest", "fcit", "fisherz")
"""The tests of this package that give p-values."""


class Outcome(NamedTuple):
    """What a test says of one data set."""

    p: float
    verdict: str | None
    """one of `STATUSES`; None for tests of other packages, which give a p-value alone"""
    kept: bool
    """whether the mask has the edge x -> y; for tests of other packages, whether p is below 1e-4"""


def as_variables(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, episode: np.ndarray | None = None, own: bool = False
) -> Variables:
    """Variables with two input factors, x and z (with all its columns), and one target y.

    x and y are (n,) or (n, columns), z is (n, d), `episode` is (n,); without it the rows are independent draws. With
    `own`, the first column of z is a factor y: the last value of the target.
    """

    def factor(name: str, values: np.ndarray) -> Factor:
        kind = "binary" if np.isin(values, (0.0, 1.0)).all() else "continuous"
        return Factor(name, 0, values.shape[1], kind)  # type: ignore[arg-type]

    given = z.reshape(len(x), -1)
    blocks = {"x": x.reshape(len(x), -1)} | ({"y": given[:, :1], "z": given[:, 1:]} if own else {"z": given})
    blocks = {name: np.asarray(values, np.float64) for name, values in blocks.items() if values.shape[1]}
    target = np.asarray(y, np.float64).reshape(len(y), -1)
    return Variables(
        tuple(factor(name, values) for name, values in blocks.items()),
        (factor("y", target),),
        tuple(blocks.values()),
        (target,),
        np.arange(len(x)) if episode is None else np.asarray(episode),
    )


def examine(
    test: IndependenceTest | PairTest,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    episode: np.ndarray | None = None,
    seed: int = 0,
    own: bool = False,
) -> Outcome:
    """The p-value of 'x is independent of y given z' and the verdict on x -> y; arguments as in `as_variables`.

    Tests of other packages take no episodes.
    """
    if not isinstance(test, IndependenceTest):
        p = float(test(x, y, z, seed))
        return Outcome(p, None, p < DEFAULT)
    variables, threshold = as_variables(x, y, z, episode, own), DEFAULT_THRESHOLD.get(test.name, DEFAULT)
    chosen = test.for_threshold(threshold)
    evidence = chosen(variables, seed)
    mask = decide(variables, evidence, chosen, threshold, self_edges=False)
    return Outcome(float(evidence.p[0, 0]), str(mask.status[0, 0]), bool(mask.kept[0, 0]))


def pair_p_value(
    test: IndependenceTest | PairTest,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    episode: np.ndarray | None = None,
    seed: int = 0,
) -> float:
    """The p-value of 'x is independent of y given z'; arrays have n rows, `episode` as in `as_variables`."""
    return examine(test, x, y, z, episode, seed).p


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
        cases: keys of `ALL_CASES`.
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
                    for outcome, seconds in pool.map(run, numbers) if pool else map(run, numbers):
                        for key, value in (*outcome._asdict().items(), ("seconds", round(seconds, 5))):
                            record[key].append(value)
                    if folder is not None:
                        write_json(_file(folder, name, case, seed), record)
                    report(done + len(record["p"]), total)
                done += replications
                rows.append(_row(name, case, record, replications))
    return {"rows": rows, "levels": list(LEVELS), "replications": replications, "seed": seed}


def _batch(record: Record, replications: int, budget: float, workers: int) -> int:
    """Number of replications to run before the budget is checked again; 0 to stop."""
    done, spent = len(record["p"]), sum(record["seconds"])
    if spent >= budget:
        return 0
    # Up to 10 per worker, or as many as fit in the budget at the mean cost so far; at first one per worker.
    fit = 10 if budget == math.inf else min(10.0, (budget - spent) * done / max(spent, 1e-9))
    return max(0, min(max(1, int(fit)) * workers, replications - done))


def _replicate(test: IndependenceTest | PairTest, case: str, seed: int, number: int) -> tuple[Outcome, float]:
    """Outcome and CPU seconds of one replication (wall-clock time would depend on the load of the machine)."""
    x, y, z, *episode = ALL_CASES[case].draw(stream(seed, "calibrate", case, number), ALL_CASES[case].n)
    begin, test_seed = time.process_time(), child_seed(seed, "calibrate", case, number)
    outcome = examine(test, x, y, z, episode[0] if episode else None, test_seed, ALL_CASES[case].own)
    return outcome, time.process_time() - begin


def _row(name: str, case: str, record: Record, replications: int) -> dict[str, Any]:
    """Rejection rates at each level with 95% intervals, the share of each verdict, and the cost."""
    p = np.array(record["p"][:replications])
    row: dict[str, Any] = {"test": name, "case": case, "n": ALL_CASES[case].n, "null": ALL_CASES[case].null}
    for level in LEVELS:
        low, high = wilson(float((p < level).mean()), len(p))
        row[f"{level:g}"] = {"rate": float((p < level).mean()), "low95": float(low), "high95": float(high)}
    if verdicts := [verdict for verdict in record["verdict"][:replications] if verdict]:
        row["verdicts"] = {status: verdicts.count(status) / len(verdicts) for status in STATUSES if status in verdicts}
        row["kept"] = float(np.mean([k for k in record["kept"][:replications] if k is not None]))
    seconds = float(np.median(record["seconds"][:replications]))
    return row | {"replications": len(p), "seconds": seconds, "smallest_p": float(p.min())}


def _file(folder: Path, name: str, case: str, seed: int) -> Path:
    return Path(folder) / f"{name}--{case}--seed{seed}.json"


def _resume(folder: Path | None, name: str, case: str, seed: int) -> Record:
    """What an earlier call has kept; empty lists if there is nothing, and no verdicts in files without them."""
    record: Record = {"p": [], "seconds": []}
    if folder is not None and _file(folder, name, case, seed).exists():
        record = read_json(_file(folder, name, case, seed))
    return {"verdict": [None] * len(record["p"]), "kept": [None] * len(record["p"])} | record


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

    `names` and `cases` None mean all tests and all `CASES`; a case may be a pattern such as "ar-*-20x50". The other
    arguments are those of `calibrate`. Returns "rows" and "provenance".
    """
    available: dict[str, IndependenceTest | PairTest] = {name: make_test(name) for name in OURS} | installed()
    if unknown := [name for name in names or () if name not in available]:
        raise BecauseError(
            f"There is no test {unknown[0]!r} here.",
            need=f"one of {', '.join(available)}.",
            fix="install it or drop it.",
        )
    selected = [case for case in ALL_CASES if any(fnmatchcase(case, pattern) for pattern in cases or CASES)]
    if unknown := [pattern for pattern in cases or () if not any(fnmatchcase(case, pattern) for case in ALL_CASES)]:
        raise BecauseError(f"There is no case {unknown[0]!r}.", need=f"one of {', '.join(CASES)}.", fix="drop it.")
    chosen = {name: test for name, test in available.items() if not names or name in names}
    rows: list[dict[str, Any]] = []
    for name, test in chosen.items():
        fitting = [case for case in selected if _fits(name, case)]
        rows += calibrate({name: test}, fitting, replications, seed, folder, report, workers, budget)["rows"]
    settings = {"tests": list(chosen), "replications": replications, "seed": seed, "peers": versions()}
    if budget < math.inf:
        settings["seconds_per_test_and_case"] = budget
    return {"rows": rows, "provenance": provenance(**settings)}


def _fits(name: str, case: str) -> bool:
    """Whether a test is made for a case: categorical or numeric data, and not too many rows for it."""
    for_categories = name == "gtest" or name in COUNTING
    return for_categories == ALL_CASES[case].discrete and ALL_CASES[case].n <= MOST_ROWS.get(name, math.inf)
