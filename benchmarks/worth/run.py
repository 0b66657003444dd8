"""Can the estimates of `because worth` be trusted? Many logs, ten policies each, and the true worth of each policy.

    coverage     share of the 95% intervals that contain the truth
    rank         mean over logs of Spearman's correlation of the ten estimates with the ten truths
    regret@1     mean over logs of what the policy that looks best loses against the truly best
    false        share of 'better than the behaviour' among the appraisals of policies that are truly worse

as the DOPE benchmark has them (Fu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from because_rl.errors import BecauseError
from because_rl.evaluation.worth.estimate import BETTER, RESAMPLES, Appraisal, appraise
from because_rl.evaluation.worth.log import Policy
from because_rl.io import file_sha256, read_json, write_json
from because_rl.provenance import provenance
from because_rl.rng import stream
from because_rl.statistics import Estimate, wilson
from benchmarks.worth.case import Case, Source
from benchmarks.worth.tabular import TabularWorld, icu_sepsis, random_world
from benchmarks.worth.unlock import UnlockSource

EPISODES = {"random": 100, "icu-sepsis": 5000, "unlock": 200}
"""of a log"""


class TabularSource:
    """Logs of a tabular world; the truth is by dynamic programming."""

    def __init__(self, name: str, world: TabularWorld):
        self.name, self.world = name, world
        self.truth = {policy: world.value(chance) for policy, chance in world.policies.items()}

    def draw(self, seed: int) -> Case:
        model = self.world.draw_log(EPISODES[self.name], stream(seed, "worth", self.name))
        policies = [
            Policy(name, chance[model.state], chance[model.next_state]) for name, chance in self.world.policies.items()
        ]
        return Case(model.log, model, policies, {})


def make_source(world: str, dynamics: Path | None) -> Source:
    if world == "unlock":
        return UnlockSource(EPISODES[world])
    if world == "random":
        return TabularSource(world, random_world())
    if world == "icu-sepsis":
        if dynamics is None:
            raise BecauseError(
                "Got no table of dynamics of ICU-Sepsis.",
                need="the file icu_sepsis/envs/assets/dynamics.npz of its wheel.",
                fix="pip download --no-deps icu-sepsis, unzip the wheel, and pass the file with --dynamics.",
            )
        return TabularSource(world, icu_sepsis(dynamics))
    raise BecauseError(f"There is no world {world!r}.", need=f"one of {', '.join(EPISODES)}.", fix="correct it.")


def calibrate(
    world: str,
    keep: Path,
    logs: int = 200,
    first: int = 500,
    dynamics: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Appraise ten policies from each of many logs.

    Args:
        world: random, icu-sepsis or unlock.
        keep: a folder with a file for each log; what is there is not computed again.
        logs: how many.
        first: log k is of seed first + k.
        dynamics: of ICU-Sepsis.
        report: called with (logs finished, logs in all).

    Returns:
        The quantities above, in all and by policy, and the provenance.
    """
    source, rows = make_source(world, dynamics), []
    for k in range(logs):
        report(k, logs)
        file = keep / f"{world}-{EPISODES[world]}" / f"{first + k}.json"
        if not file.exists():
            write_json(file, _row(source.draw(first + k)))
        rows.append(read_json(file))
    report(logs, logs)
    data = {} if dynamics is None else {"dynamics_sha256": file_sha256(dynamics)}
    settings = {
        "world": world,
        "logs": logs,
        "first": first,
        "episodes": EPISODES[world],
        "resamples": RESAMPLES,
        **data,
    }
    return summarise(source.truth, rows) | {"provenance": provenance(**settings, **data)}


def _row(case: Case) -> dict[str, Any]:
    behaviour, appraisals = appraise(*case)
    return {
        "rows": len(case.log.reward),
        "behaviour": list(behaviour),
        "policies": {a.policy: appraisal_row(a) for a in appraisals},
    }


def appraisal_row(appraisal: Appraisal) -> dict[str, Any]:
    """As JSON."""
    return {
        "by": appraisal.by,
        "estimators": {
            name: {"worth": list(e.worth), "gain": list(e.gain)} for name, e in appraisal.estimators.items()
        },
        "effective_sample": appraisal.effective_sample,
        "world_model": None if appraisal.model is None else appraisal.model.plain,
        "verdict": appraisal.verdict,
    }


def summarise(truth: dict[str, float], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The quantities of this file's head; `rows` as `_row` makes them, one for each log."""
    names, base = list(rows[0]["policies"]), truth["behaviour"]
    true = np.array([truth[name] for name in names])
    of_all: list[tuple[float, Estimate]] = []
    by_policy, ranks, regrets, false = [], [], [], []
    for name in names:
        here = [row["policies"][name] for row in rows]
        answers = [Estimate(*r["estimators"][r["by"]]["worth"]) for r in here]
        pairs = [(truth[name], answer) for answer in answers]
        of_all += pairs
        better = np.array([r["verdict"] == BETTER for r in here])
        if truth[name] < base:
            false.append(better)
        by_policy.append(
            {
                "policy": name,
                "truth": truth[name],
                "estimate": float(np.mean([a.value for a in answers])),
                "width": float(np.mean([a.high - a.low for a in answers])),
                "coverage": _coverage(pairs),
                "by": {by: sum(r["by"] == by for r in here) for by in sorted({r["by"] for r in here})},
                "coverage_by_estimator": {
                    by: {"logs": len(known), "coverage": _coverage([(truth[name], Estimate(*w)) for w in known])}
                    for by in ("FQE", "DR")
                    if (known := [r["estimators"][by]["worth"] for r in here if by in r["estimators"]])
                },
                "verdicts": {v: sum(r["verdict"] == v for r in here) for v in sorted({r["verdict"] for r in here})},
            }
        )
    for row in rows:
        parts = (row["policies"][name] for name in names)
        values = np.array([p["estimators"][p["by"]]["worth"][0] for p in parts])
        ranks.append(float(stats.spearmanr(values, true).statistic))
        regrets.append(float(true.max() - true[values.argmax()]))
    covered, wrong = _coverage(of_all), np.concatenate(false) if false else np.zeros(0)
    gained = [
        (truth[n] - base, Estimate(*p["estimators"][p["by"]]["gain"])) for r in rows for n, p in r["policies"].items()
    ]
    return {
        "logs": len(rows),
        "mean_rows": float(np.mean([row["rows"] for row in rows])),
        "coverage": covered,
        "coverage_of_gain": _coverage(gained),
        "coverage_of_behaviour": _coverage([(base, Estimate(*row["behaviour"])) for row in rows]),
        "rank_correlation": float(np.mean(ranks)),
        "regret_at_1": float(np.mean(regrets)),
        "false_better": float(wrong.mean()) if len(wrong) else None,
        "false_better_ci95": [float(x) for x in wilson(wrong.mean(), len(wrong))] if len(wrong) else None,
        "rows": by_policy,
    }


def _coverage(pairs: Sequence[tuple[float, Estimate]]) -> float:
    return float(np.mean([e.low <= truth <= e.high for truth, e in pairs]))
