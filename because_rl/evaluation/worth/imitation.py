"""A network that imitates a policy, for a policy whose own actions are expensive.

A planner plans anew at each state. Its actions in a sample of the logged states are imitated by the network of
`models.behaviour_policy`, with its own spread, and the network stands for it in other states: those of the log that are
not in the sample, and all inside the world model. How well it imitates is measured on actions that it has not learned
from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from because_rl.evaluation.worth.log import LoggedEpisodes, Policy
from because_rl.factors import FactorSpec
from because_rl.models.behaviour_policy import BehaviourPolicy, behaviour_loss, draw_action, nearest_code
from because_rl.models.prepared_data import ActionStatistics, Statistics, Summary, blank_outcomes
from because_rl.rng import child_seed, stream
from because_rl.training.stage import Stage, fit, skeleton
from because_rl.transitions import Transitions

HIDDEN, STEPS, BATCH = 128, 2000, 256
DRAWS = 8
"""Actions drawn in each state, where they are not numbered."""
HELD_OUT = 0.1
CHUNK = 256
"""States that a policy is asked about at once."""

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Rows of observed states and of goals -> action numbers (n,) where actions are numbered, else (n, columns)"""


@dataclass(frozen=True)
class Imitation:
    """The network, and how well it imitates."""

    summary: Summary
    net: BehaviourPolicy
    agreement: float
    """share of the same actions; of actions that are not numbered the explained share of their variance (R^2)"""
    asked: int
    """states in which the policy was asked"""

    @property
    def draw(self) -> Any:
        """A function of (state, goal, standard normal noise (1 + action columns,)) -> action columns."""
        s = self.summary
        return jax.tree_util.Partial(_draw, s.factors, s.stats, s.actions, self.net)

    def at_log(self, name: str, data: Transitions) -> Policy:
        """What it does in the states and the next states of a log."""
        goal = jnp.asarray(data.goal, jnp.float32)
        parts = (self._in_states(jnp.asarray(part), goal) for part in (data.state, data.next_state))
        return Policy(name, *(np.asarray(part) for part in parts))

    def _in_states(self, states: Array, goals: Array) -> Array:
        s = self.summary
        if s.factors.codes is None:
            shape = (len(states), DRAWS, 1 + s.factors.action_size)
            noise = jnp.asarray(stream(0, "worth", "draws").standard_normal(shape), jnp.float32)
            return jax.jit(jax.vmap(jax.vmap(self.draw, (None, None, 0))))(states, goals, noise)

        def chances(state: Array, goal: Array) -> Array:
            state = blank_outcomes(s.factors, s.stats, state)
            return jnp.exp(self.net(s.stats, jnp.ones(len(state)), state, goal).log_weight)

        return jax.jit(jax.vmap(chances))(states, goals)


def _draw(
    factors: FactorSpec,
    stats: Statistics,
    actions: ActionStatistics,
    net: BehaviourPolicy,
    state: Array,
    goal: Array,
    noise: Array,
) -> Array:
    state = blank_outcomes(factors, stats, state)
    return draw_action(stats, actions, net, jnp.ones(len(state)), state, goal, noise)


def ask(
    act: Act,
    data: Transitions,
    states: int,
    report: Callable[[int, int], None] = lambda done, total: None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """What a policy does in `states` of the logged states at most: their rows, and its action columns there."""
    rows = stream(seed, "worth", "imitated rows").permutation(len(data))[:states]
    parts = []
    for start in range(0, len(rows), CHUNK):
        report(start, len(rows))
        part = rows[start : start + CHUNK]
        parts.append(np.asarray(act(data.state[part, : data.factors.observed_size], data.goal[part])))
    report(len(rows), len(rows))
    return rows, np.asarray(data.factors.encode_action(np.concatenate(parts)), np.float32)


def imitate(summary: Summary, data: Transitions, rows: np.ndarray, action: np.ndarray, seed: int = 0) -> Imitation:
    """Fit the network to action columns in these rows of a log."""
    spec, learned = summary.factors, np.arange(len(rows)) >= HELD_OUT * len(rows)
    batch = {"state": data.state[rows], "goal": data.goal[rows], "action": action}
    stage: Stage = Stage(
        "imitation",
        lambda key, fixed: BehaviourPolicy(spec, key, hidden=HIDDEN),
        partial(behaviour_loss, summary.stats, summary.actions),
        STEPS,
        BATCH,
    )
    gate = jnp.ones((1, spec.state_size))
    given: dict[str, Any] = {name: jnp.asarray(part[learned], jnp.float32) for name, part in batch.items()}
    progress = fit(stage, given, gate, [child_seed(seed, "imitation") % 2**31])
    net = eqx.combine(jax.tree.map(lambda a: a[0], progress.params), skeleton(stage, gate))
    imitation = Imitation(summary, net, float("nan"), len(rows))
    asked = (jnp.asarray(batch[name][~learned], jnp.float32) for name in ("state", "goal"))
    return replace(
        imitation, agreement=_agreement(spec.codes, np.asarray(imitation._in_states(*asked)), action[~learned])
    )


def with_plans(policy: Policy, log: LoggedEpisodes, rows: np.ndarray, action: np.ndarray) -> Policy:
    """The policy with its own actions in the states of these rows, instead of what a network says."""
    if log.number is None:
        taken = np.repeat(action[:, None], policy.now.shape[1], 1)
    else:
        assert log.factors is not None
        codes = jnp.asarray(log.factors.codes, jnp.float32)
        taken = np.eye(log.actions)[np.asarray(nearest_code(codes, jnp.asarray(action)))]
    now, after = policy.now.copy(), policy.after.copy()
    now[rows] = taken
    before = rows - 1
    inside = (rows > 0) & (log.episode[before] == log.episode[rows])
    after[before[inside]] = taken[inside]
    return Policy(policy.name, now, after)


def _agreement(codes: Any, guess: np.ndarray, action: np.ndarray) -> float:
    if codes is not None:
        taken = np.asarray(nearest_code(jnp.asarray(codes, jnp.float32), jnp.asarray(action)))
        return float((guess.argmax(1) == taken).mean())
    error = ((guess.mean(1) - action) ** 2).sum()
    return float(1 - error / max(((action - action.mean(0)) ** 2).sum(), 1e-12))
