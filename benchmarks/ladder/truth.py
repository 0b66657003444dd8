"""A planning method some of whose next-state factors come from the equations of its world, not from its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from because_rl.envs.crash.batch import crash_step
from because_rl.envs.crash.scene import BODIES
from because_rl.envs.unlock.batch import DESTINATION
from because_rl.envs.unlock.env import CELLS
from because_rl.models.bilinear import Outputs
from because_rl.models.layout import Layout
from because_rl.models.likelihood import split
from because_rl.models.prepared_data import Statistics, Summary
from because_rl.planning.agent import PlannerAgent, PlanningMethod
from because_rl.training.method import Agent
from because_rl.training.run import Seeds
from because_rl.transitions import Transitions

CERTAIN = 20.0
"""Logit of what is certain."""


class Truth(NamedTuple):
    """The equations of a world, without its hidden causes."""

    step: Callable[[Array, Array], Array]
    """(state, action) of one row -> next state, in JAX"""
    parts: Mapping[str, tuple[str, ...]]
    """what a ladder replaces at a time: name -> state factors"""


def unlock_row(state: Array, action: Array) -> Array:
    """`unlock_step` of one row, in JAX.

    Args:
        state: (110 or more,) agent, key, doors and has_key, then columns that stay.
        action: (8,) the columns of an action.
    """
    agent, key, door = (state[start : start + CELLS] for start in (0, CELLS, 2 * CELLS))
    picked = agent * key * action[5]
    has_key = state[3 * CELLS + 1]
    has_key_after = jnp.maximum(has_key, picked.sum())
    moves = jax.nn.one_hot(DESTINATION, CELLS)  # (cells, directions, cells)
    moved = jnp.einsum("c,d,cde->e", agent, action[:4], moves)
    agent_after = jnp.where(action[:4].any(), moved, agent)
    levels = jnp.stack([1 - has_key_after, has_key_after])
    door_after = door * (1 - agent * action[7] * has_key)
    return jnp.concatenate([agent_after, key - picked, door_after, levels, state[3 * CELLS + 2 :]])


TRUTH = {
    "unlock": Truth(unlock_row, {"agent": ("agent",), "has_key": ("has_key",), "key and doors": ("key", "door")}),
    "crash": Truth(
        lambda state, action: crash_step(state, action, 0.0), {"motion": tuple(BODIES), "flags": ("flag1", "flag2")}
    ),
}
"""Of Lift there are none: its contacts are MuJoCo's."""


class WithTruth(PlanningMethod):
    """A method whose model knows the truth about `factors`; all else is the method's own."""

    def __init__(self, method: PlanningMethod, truth: Truth, factors: Iterable[str]):
        self.name, self.config = method.name, method.config  # type: ignore[misc]
        self.method, self.truth, self.known = method, truth, frozenset(factors)

    def fit(self, data: Transitions, seeds: Seeds = 1) -> Agent:
        fitted = self.method.fit(data, seeds)
        assert isinstance(fitted, PlannerAgent)
        return self.agent(fitted)

    def untrained(self, summary: Summary, key: PRNGKeyArray) -> dict[str, Any]:
        return self.method.untrained(summary, key)

    def predict(
        self, layout: Layout, stats: Statistics, p: dict[str, Any], state: Array, action: Array
    ) -> tuple[list[Outputs], Array]:
        outputs, penalty = self.method.predict(layout, stats, p, state, action)
        exact = certain_outputs(layout, stats, outputs, state, self.truth.step(state, action))
        names = [factor.name for factor in layout.factors.state]
        mixed = []
        for family, learned, known in zip(layout.families, outputs, exact, strict=True):
            is_known = np.array([names[j] in self.known for j in family.members])
            rows = is_known.reshape(-1, *[1] * (learned.value.ndim - 1))
            mixed.append(learned._replace(value=jnp.where(rows, known, learned.value)))
        return mixed, penalty

    def agent(self, fitted: PlannerAgent) -> PlannerAgent:
        """The fitted agent, planning with the truth."""
        return PlannerAgent(self, fitted.summary, fitted.seeds, fitted.parameters, fitted.pessimism)


def certain_outputs(
    layout: Layout, stats: Statistics, outputs: list[Outputs], state: Array, after: Array
) -> list[Array]:
    """For each family the `Outputs.value` of a model that is certain of the next state `after`."""
    parts = []
    for family, out in zip(layout.families, outputs, strict=True):
        now, then = split(layout, family, state), split(layout, family, after)
        if family.is_continuous:
            value = family.difference(then, now) / split(layout, family, stats.change)
        else:
            absent = 1.0 - then.sum(1, keepdims=True) if family.optional else then[:, :0]
            value = _logit(jnp.concatenate([then, absent], axis=1))
        value = value.reshape(len(value), *[1] * (out.value.ndim - 2), -1)  # the same for all networks that vote
        parts.append(jnp.broadcast_to(value, out.value.shape))
    return parts


def _logit(p: Array) -> Array:
    return jnp.clip(jnp.log(jnp.maximum(p, 1e-30)) - jnp.log(jnp.maximum(1 - p, 1e-30)), -CERTAIN, CERTAIN)
