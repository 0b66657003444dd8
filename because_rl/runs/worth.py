"""What the policy of a fit is worth, before it acts: its folder and, if wanted, another policy -> ``worth.json``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from because_rl.algorithms.registry import load_agent
from because_rl.datasets.load import load
from because_rl.errors import BecauseError
from because_rl.evaluation.worth.estimate import RESAMPLES, UNKNOWN, Appraisal, QModel, WorldModel, appraise
from because_rl.evaluation.worth.features import FeatureModel
from because_rl.evaluation.worth.given_policy import Function, policy_of_function, policy_of_rows, read_policy
from because_rl.evaluation.worth.imitation import Imitation, ask, imitate, with_plans
from because_rl.evaluation.worth.log import LoggedEpisodes, Policy
from because_rl.evaluation.worth.model import imagined_worth, replayed_worth
from because_rl.evaluation.worth.table import TableModel
from because_rl.factors import FactorSpec
from because_rl.io import exclusive, write_json
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.proposals import no_policy_reason
from because_rl.provenance import provenance
from because_rl.runs.fit import DATASET, read_fit
from because_rl.runs.fit_page import WORTH, write_fit_page
from because_rl.statistics import Estimate
from because_rl.transitions import Transitions
from because_rl.vision.agent import without_encoder

LEAST_AGREEMENT = 0.8
"""Below it a network that stands for a policy in some logged states says nothing of the policy."""
FITTED = "the fitted policy"
STATES = 5000
"""Logged states in which the fitted policy plans, to be imitated."""
Report = Callable[[str, int, int, dict[str, float]], None]
"""Called with (stage, done, total, nothing)."""


def worth(
    fitted: str | Path,
    policy: str | Path | ArrayLike | Function | None = None,
    *,
    discount: float = 1.0,
    resamples: int = RESAMPLES,
    states: int = STATES,
    report: Report = lambda stage, done, total, metrics: None,
) -> dict[str, Any]:
    """Estimate what policies are worth from the log of a fit alone.

    The worth is the expected sum of rewards of an episode that begins like the logged ones and lasts at most as long as
    the longest of them; without rewards, the probability of reaching the goal.

    Args:
        fitted: the folder of a fit.
        policy: another policy beside the fitted one: a file or an array of what it does in each logged row, or a
            function of (observed states) or (observed states, goals); see `evaluation.worth.given_policy`.
        discount: gamma; 1: rewards count alike.
        resamples: of the episodes, for intervals.
        states: logged states in which the fitted policy is asked, at most.
        report: called with (stage, done, total, {}).

    Returns:
        What is in ``worth.json``: quantity, behaviour, policies (worth, gain, estimators, verdict), provenance.
    """
    begin, folder = time.monotonic(), Path(fitted)
    if not 0 < discount <= 1:
        raise BecauseError(f"Got discount={discount}.", need="above 0 and at most 1.", fix="leave it out for 1.")
    if resamples < 20:
        raise BecauseError(f"Got {resamples} resamples.", need="at least 20.", fix="leave it out.")
    record = read_fit(folder)
    data = load(DATASET, folder, FactorSpec.from_dict(record["asked"]["factors"]))
    if not (data.factors.goal or data.factors.outcomes):
        raise BecauseError(
            "The log has neither rewards nor a goal.",
            need="something that a policy can be worth.",
            fix="fit it with --reward COLUMN, or with a goal in the factor spec.",
        )
    agent = without_encoder(load_agent(folder))
    assert isinstance(agent, PlannerAgent)
    log = LoggedEpisodes.from_transitions(data, discount)
    report("learning", 0, 1, {})
    model: QModel = TableModel.of_log(log) or FeatureModel(log)
    report("learning", 1, 1, {})
    policies, imitations = _policies(agent, data, log, policy, states, report)
    if not policies:
        raise BecauseError(
            f"This fit has no policy: {no_policy_reason(data.factors)}.",
            need="a policy.",
            fix="hand one over with --policy FILE.",
        )
    models = _by_model(agent, data, log, imitations, report)
    report("resampling", 0, 1, {})
    behaviour, appraisals = appraise(log, model, policies, models, resamples)
    bounds = (-np.inf, np.inf) if data.factors.maximises_reward else (0.0, 1.0)
    report("resampling", 1, 1, {})
    appraisals = [_doubt_imitation(a, imitations.get(a.policy), len(data)) for a in appraisals]
    result: dict[str, Any] = {
        "quantity": quantity(data, log),
        "episodes": log.episodes,
        "horizon": log.horizon,
        "discount": discount,
        "q_model": model.name,
        "behaviour": _numbers(behaviour, bounds),
        "policies": [
            appraisal_dict(a, bounds) | {"imitated": imitated(imitations.get(a.policy), data.factors)}
            for a in appraisals
        ],
        "seconds": round(time.monotonic() - begin, 1),
    }
    given = None if policy is None else policy.__name__ if callable(policy) else _given_name(policy)
    with exclusive(folder.parent / f".{folder.name}.lock", f"working in {folder}"):
        settings = {"discount": discount, "resamples": resamples, "states": states, "policy": given}
        write_json(folder / WORTH, result | {"provenance": provenance(**settings)})
        if "result" in record:
            write_fit_page(folder, record["result"])
    return {"folder": str(folder)} | result


def quantity(data: Transitions, log: LoggedEpisodes) -> str:
    """What a number of the result means, in words."""
    what = "probability of reaching the goal in"
    if data.factors.maximises_reward:
        what = "expected sum of rewards of" if data.factors.outcomes else "expected number of steps at the goal in"
    discounted = "" if log.discount == 1 else f", discounted by {log.discount:g}"
    return f"{what} an episode that begins like the logged ones, within {log.horizon} steps{discounted}"


def _given_name(policy: Any) -> str:
    return Path(policy).name if isinstance(policy, str | Path) else "the given policy"


def _policies(
    agent: PlannerAgent, data: Transitions, log: LoggedEpisodes, policy: Any, states: int, report: Report
) -> tuple[list[Policy], dict[str, Imitation]]:
    """The fitted policy and the one handed over, and networks that imitate them."""
    policies, imitations = [], {}
    if not no_policy_reason(data.factors):

        def act(state: np.ndarray, goal: np.ndarray) -> np.ndarray:
            return agent.act(state, goal if data.factors.goal else None)

        def done(k: int, n: int) -> None:
            report("planning", k, n, {})

        planned = ask(act, data, states, done)
        imitations[FITTED] = imitate(agent.summary, data, *planned)
        policies.append(with_plans(imitations[FITTED].at_log(FITTED, data), log, *planned))
    if callable(policy):
        policies.append(policy_of_function(log, data, policy, policy.__name__))
    elif policy is not None:
        rows = read_policy(Path(policy)) if isinstance(policy, str | Path) else np.asarray(policy)
        policies.append(policy_of_rows(log, rows, _given_name(policy)))
    return policies, imitations


def _by_model(
    agent: PlannerAgent, data: Transitions, log: LoggedEpisodes, imitations: dict[str, Imitation], report: Report
) -> dict[str, WorldModel]:
    """The worth of imitated policies inside the world model, and how wrong it is about the behaviour."""
    if not imitations:
        return {}
    error = abs(replayed_worth(agent, data, log.horizon, log.discount) - float(log.returns.mean()))
    out = {}
    for k, (name, imitation) in enumerate(imitations.items()):
        report("imagining", k, len(imitations), {})
        out[name] = WorldModel(*imagined_worth(agent, data, imitation.draw, log.horizon, log.discount), error)
    report("imagining", len(imitations), len(imitations), {})
    return out


def _doubt_imitation(appraisal: Appraisal, imitation: Imitation | None, rows: int) -> Appraisal:
    """No verdict where a network that imitates badly stands for the policy in logged states."""
    if imitation is None or imitation.asked == rows or imitation.agreement >= LEAST_AGREEMENT:
        return appraisal
    why = f"a network imitates its plans badly ({imitation.agreement:.0%}): plan in more states with --states"
    return replace(appraisal, verdict=UNKNOWN, why=why)


def imitated(imitation: Imitation | None, factors: FactorSpec) -> dict[str, Any] | None:
    """How well a network imitates a policy, as JSON; None where the policy itself is evaluated."""
    if imitation is None:
        return None
    measure = "same action" if factors.codes is not None else "explained variance of the action"
    return {"measure": measure, "agreement": imitation.agreement, "states": imitation.asked}


def _numbers(estimate: Estimate, bounds: tuple[float, float] = (-np.inf, np.inf)) -> dict[str, float]:
    return {name: float(np.clip(value, *bounds)) for name, value in estimate._asdict().items()}


def appraisal_dict(appraisal: Appraisal, bounds: tuple[float, float]) -> dict[str, Any]:
    """As JSON; what an episode is worth lies within `bounds`."""
    return {
        "policy": appraisal.policy,
        "verdict": appraisal.verdict,
        "why": appraisal.why,
        "by": appraisal.by,
        "worth": _numbers(appraisal.answer.worth, bounds),
        "gain": _numbers(appraisal.answer.gain),
        "estimators": {
            name: {"worth": _numbers(e.worth, bounds), "gain": _numbers(e.gain)}
            for name, e in appraisal.estimators.items()
        },
        "effective_sample": appraisal.effective_sample,
        "why_no_dr": appraisal.why_no_dr or None,
        "world_model": None if appraisal.model is None else asdict(appraisal.model),
    }
