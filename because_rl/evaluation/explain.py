"""Why an agent chose its action in a state.

The planner itself is asked again, with one thing changed at a time:

- `futures`: what the model expects to follow the choice, what is chosen without the penalty on
  uncertainty, and another action;
- `inputs`: a factor of the state takes values that it has in other logged steps;
- `edges`: an edge of the causal mask is cut, so that the model sees the average of the cause in its place.

Planners draw candidates at random. Asked again with nothing changed they choose a little differently; this is
reported as `unchanged`, and what changes the choice no more than that did not carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.factor import Factor
from because_rl.factors import FactorSpec
from because_rl.models.bilinear import Gates
from because_rl.models.layout import Layout
from because_rl.planning.agent import PlannerAgent
from because_rl.rng import stream
from because_rl.training.method import encode_actions, vote

AT_ONCE = 8
"""Worlds of one call of the planner, always the same number, so that one program is compiled."""
CLEAR = 2.0
"""standard errors by which a change must exceed that of asking again"""
Report = Callable[[int, int], None]
"""(questions asked of the planner, questions in all)"""


@dataclass(frozen=True)
class Situation:
    """One row of the observed state, its goal, and the number of steps until the episode ends."""

    state: np.ndarray
    goal: np.ndarray
    steps_left: int


def explain_choice(
    agent: PlannerAgent,
    situation: Situation,
    others: np.ndarray,
    logged: np.ndarray | int | None = None,
    *,
    steps: int = 10,
    seed: int = 0,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """What a choice rests on, as plain data.

    Args:
        agent: with a policy; all its seeds vote.
        situation: in which it acts.
        others: (n, state columns) states of other logged steps, from which changed values are drawn.
        logged: the action that was logged in this state; its future is shown too.
        steps: how far futures are imagined, at most.
        seed: of what is drawn.
        report: called before every question.
    """
    if not isinstance(agent, PlannerAgent):
        raise BecauseError(
            "This agent does not plan.", need="a method that plans in a learned model.", fix="fit 'because', say."
        )
    edges = _edges(agent)
    questions = 2 + sum(not _is_outcome(factor) for factor in agent.factors.state) + len(edges)
    asked = 0

    def ask(asking: PlannerAgent, states: np.ndarray) -> np.ndarray:
        """The actions in a few states, one of which is asked for as often as there is room."""
        nonlocal asked
        report(asked, questions)
        asked += 1
        rows = states[np.arange(AT_ONCE) % len(states)]
        goals = np.broadcast_to(situation.goal, (AT_ONCE, len(situation.goal)))
        return asking.act(rows, goals if agent.factors.goal_size else None, situation.steps_left)

    own = situation.state[None]
    unchanged = ask(agent, own)
    choice = vote(unchanged[:, None], discrete=agent.factors.codes is not None)[0]
    change = ChoiceChange(agent, choice, unchanged)
    unpenalised_agent = agent.variant(agent.given, np.zeros_like(agent.pessimism), agent.seeds)
    unpenalised = vote(ask(unpenalised_agent, own)[:, None], discrete=agent.factors.codes is not None)[0]
    first = _first_actions(
        {"the choice": choice, "without the penalty on uncertainty": unpenalised, "as logged": logged}
    )

    inputs = []
    for factor, states in changed_states(agent, situation.state, others, seed):
        actions = ask(agent, states)
        most = int(change.each(actions).argmax())
        inputs.append(
            {"factor": factor.name}
            | change.summary(actions)
            | {"value": value_in_words(factor, states[most % len(states)])}
            | {"action": action_in_words(agent, actions[most])}
        )
    cuts = [{"from": i, "to": j} | change.summary(ask(without_edge(agent, i, j), own)) for i, j in edges]
    futures = _futures(agent, situation, first, steps)
    report(questions, questions)
    return {
        "state": {f.name: value_in_words(f, situation.state) for f in agent.factors.state if not _is_outcome(f)},
        "goal": {f.name: value_in_words(f, situation.goal) for f in agent.factors.goal},
        "steps_left": situation.steps_left,
        "choice": action_in_words(agent, choice),
        "measure": change.measure,
        "unchanged": change.summary(unchanged)["change"],
        "futures": futures,
        "inputs": sorted(inputs, key=lambda row: -row["change"]),
        "edges": sorted(cuts, key=lambda row: -row["change"]),
    }


class ChoiceChange:
    """How far actions are from the choice: 0 or 1 of numbered ones, else the mean share of the logged range."""

    def __init__(self, agent: PlannerAgent, choice: np.ndarray, unchanged: np.ndarray):
        self.choice, self.numbered = choice, agent.factors.codes is not None
        self._range = np.maximum(agent.summary.actions.high - agent.summary.actions.low, 1e-9)
        self.measure = "share of other actions" if self.numbered else "mean change, as a share of the logged range"
        self._unchanged = self.each(unchanged)

    def each(self, actions: np.ndarray) -> np.ndarray:
        """(n,) the change of each action."""
        if self.numbered:
            return (actions != self.choice).astype(float)
        return (np.abs(actions - self.choice) / self._range).mean(1)

    def summary(self, actions: np.ndarray) -> dict[str, Any]:
        """The mean change, and whether it is clearly more than that of asking again."""
        now, before = self.each(actions), self._unchanged
        variance = sum(part.var() / len(part) for part in (now, before))
        if self.numbered:  # of shares, as if each answer had come once more: eight equal answers are no certainty
            share = (now.sum() + before.sum() + 1) / (len(now) + len(before) + 2)
            variance = share * (1 - share) * (1 / len(now) + 1 / len(before))
        clear = now.mean() - before.mean() > CLEAR * variance**0.5 + 1e-9
        return {"change": float(now.mean()), "clear": bool(clear)}


def changed_states(
    agent: PlannerAgent, state: np.ndarray, others: np.ndarray, seed: int
) -> Iterator[tuple[Factor, np.ndarray]]:
    """For each factor that varies, the state with a few of its other values."""
    rng = stream(seed, "explain")
    for factor in agent.factors.state:
        different = others[(np.abs(others[:, factor.slice] - state[factor.slice]) > 1e-9).any(1)]
        if _is_outcome(factor) or not len(different):
            continue
        drawn = different[rng.choice(len(different), min(AT_ONCE, len(different)), replace=False)]
        changed = np.repeat(state[None], len(drawn), axis=0)
        changed[:, factor.slice] = drawn[:, factor.slice]
        yield factor, changed


def _edges(agent: PlannerAgent) -> list[tuple[str, str]]:
    """The edges that the world model sees; none for models without a causal mask."""
    if not isinstance(agent.given.get("gates"), Gates):
        return []
    layout, weight = Layout(agent.factors), np.asarray(agent.given["gates"].weight)  # (seeds, targets, columns)
    return [
        (layout.inputs[i].name, factor.name)
        for j, factor in enumerate(agent.factors.state)
        for i, columns in enumerate(layout.columns)
        if weight[:, j, columns].any()
    ]


def without_edge(agent: PlannerAgent, cause: str, effect: str) -> PlannerAgent:
    """The agent whose world model sees the average of the cause where it predicts the effect."""
    layout, gates = Layout(agent.factors), agent.given["gates"]
    columns = layout.columns[[factor.name for factor in layout.inputs].index(cause)]
    target = [factor.name for factor in agent.factors.state].index(effect)
    cut = gates._replace(weight=gates.weight.at[:, target, columns].set(0))
    return agent.variant({**agent.given, "gates": cut}, agent.pessimism, agent.seeds)


def _first_actions(actions: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Different actions by who takes them; None is left out."""
    first: dict[str, np.ndarray] = {}
    for name, action in actions.items():
        if action is None:
            continue
        same = next((n for n, other in first.items() if np.allclose(other, action, atol=1e-6)), None)
        if same is None:
            first[name] = np.asarray(action)
        else:
            first[f"{same}; {name}"] = first.pop(same)
    return first


# Futures -----------------------------------------------------------------------------------------------


def _futures(
    agent: PlannerAgent, situation: Situation, first: Mapping[str, np.ndarray], steps: int
) -> list[dict[str, Any]]:
    """What the model expects after each first action, if the agent, with its penalty, goes on from there."""
    factors, count = agent.factors, len(first)
    goal = np.broadcast_to(situation.goal, (len(agent.seeds), AT_ONCE, factors.goal_size))
    controller, states = agent.start(AT_ONCE, 0), np.repeat(situation.state[None], AT_ONCE, axis=0)
    actions = np.stack([list(first.values())[k % count] for k in range(AT_ONCE)])
    futures: list[dict[str, Any]] = [
        {"name": name, "action": action_in_words(agent, action), "end": "", "steps": []}
        for name, action in first.items()
    ]
    for k in range(min(steps, situation.steps_left)):
        planned = controller.act(
            np.broadcast_to(states, (len(agent.seeds), *states.shape)), goal, situation.steps_left - k
        )
        if k:
            actions = vote(np.asarray(planned), discrete=factors.codes is not None)
        after = agent.predict(states, encode_actions(factors, actions, AT_ONCE))
        for n, future in enumerate(futures):
            if not future["end"]:
                future["steps"].append(_step(agent, actions[n], states[n], after.next_state[n], after.uncertainty[n]))
                future["end"] = _end(factors, after.next_state[n], situation.goal)
        states = after.next_state
    for future in futures:
        rows = future["steps"]
        future["end"] = f"{future['end']} at step {len(rows)}" if future["end"] else f"goes on after step {len(rows)}"
        future["uncertainty"] = float(np.mean([row["uncertainty"] for row in rows]))
        if factors.outcomes:
            future["reward"] = float(sum(row["reward"] for row in rows))
    return futures


def _step(
    agent: PlannerAgent, action: np.ndarray, state: np.ndarray, after: np.ndarray, uncertainty: float
) -> dict[str, Any]:
    """One imagined step in words: the action, what changes, and the uncertainty."""
    row: dict[str, Any] = {"action": action_in_words(agent, action), "uncertainty": float(uncertainty), "changes": {}}
    for factor in agent.factors.state:
        if factor.role == "reward":
            row["reward"] = float(after[factor.start])
        elif not _is_outcome(factor) and (after != state)[factor.slice].any():
            row["changes"][factor.name] = value_in_words(factor, after)
    return row


def _end(factors: FactorSpec, state: np.ndarray, goal: np.ndarray) -> str:
    if factors.goal_size and not factors.holds_goal and bool(np.all(factors.reached(state, goal))):
        return "the goal is reached"
    return "the episode ends" if any(f.role == "end" and state[f.start] > 0.5 for f in factors.outcomes) else ""


# Words -------------------------------------------------------------------------------------------------


def _is_outcome(factor: Factor) -> bool:
    return factor.role in ("reward", "end")


def value_in_words(factor: Factor, row: np.ndarray) -> str:
    """The value of a factor in a row: numbers, the place of a level, or 'none'.

    >>> value_in_words(Factor("x", 0, 3, "categorical"), np.array([0.0, 0.0, 1.0]))
    'level 2'
    """
    values = np.asarray(row)[factor.slice]
    if factor.type == "categorical":
        return f"level {int(values.argmax())}" if values.sum() > 0.5 else "none"
    if factor.type == "binary" and factor.width == 1:
        return "yes" if values[0] > 0.5 else "no"
    if factor.type == "binary":
        return "{" + ", ".join(str(k) for k in np.flatnonzero(values > 0.5)) + "}"
    return " ".join(f"{value:.3g}" for value in values)


def action_in_words(agent: PlannerAgent, action: np.ndarray) -> dict[str, str]:
    """The value of each action factor; of numbered actions with several factors also the number."""
    columns = encode_actions(agent.factors, np.asarray(action), 1)[0]
    words = {factor.name: value_in_words(factor, columns) for factor in agent.factors.action}
    return words if agent.factors.codes is None or len(words) == 1 else {"number": str(int(action))} | words
