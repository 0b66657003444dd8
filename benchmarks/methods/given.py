"""What each method that plans in a model is given, read off its settings and its networks on a small set of factors.

docs/methods.md has the table; `tests/benchmarks/test_methods.py` compares the two.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from because_rl.algorithms.because import Because
from because_rl.algorithms.cdl import CDL
from because_rl.algorithms.denoised_mdp import DenoisedMDP
from because_rl.algorithms.ifactor import IFactor
from because_rl.algorithms.registry import METHODS, make_method
from because_rl.factors import FactorSpec, GoalFactor, pack
from because_rl.models.nets import SharedMLP
from because_rl.models.prepared_data import Summary, summarise
from because_rl.planning.agent import PlanningMethod
from because_rl.planning.proposals import needs_proposals
from because_rl.provenance import provenance
from because_rl.transitions import Transitions

WORLD = "crash"
"""Whose settings are shown: candidates differ between worlds, and nothing else in the table."""
FACTORS = FactorSpec(
    pack(("car", 1, "continuous", "body"), ("walker", 1, "continuous", "body"), ("flag", 1, "binary")),
    pack(("push", 1, "continuous")),
    (GoalFactor("hit", 0, 1, "binary", factor="flag", relation="at_least"),),
)
FLAG = 1
"""The number of the flag's family."""
GATES = {CDL: "its graph", DenoisedMDP: "its chain x", IFactor: "its blocks ar and r"}
"""method -> the factors that a seed's proposals see, if not all."""


def given() -> dict[str, Any]:
    """A row for each method that plans in a model."""
    summary, known = _summary(), dict[Any, tuple[str, int]]()
    methods = {name: make_method(name, None, WORLD) for name in METHODS}
    rows = [_row(name, m, summary, known) for name, m in methods.items() if isinstance(m, PlanningMethod)]
    return {"rows": rows, "provenance": provenance(world=WORLD)}


def markdown(rows: list[dict[str, str]]) -> str:
    """The rows as a table of docs/methods.md."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)])


def _row(name: str, method: PlanningMethod, summary: Summary, known: dict[Any, tuple[str, int]]) -> dict[str, str]:
    c = method.config
    key = type(method), getattr(c, "plain", False)
    if key not in known:  # variants of a method have the same networks
        known[key] = _networks(method, summary)
    encoders, votes = known[key]
    weight = c.background if hasattr(c, "background") else c.weights.background if hasattr(c, "weights") else 0.0
    return {
        "method": f"`{name}`",
        "encoders": encoders,
        "proposals": f"{c.planner.population}, {c.planner.proposals}",
        "value": "yes" if needs_proposals(FACTORS) else "no",
        "vote on events": f"{votes}, {_left_out(c)}" if votes > 1 else "no",
        "background": "yes" if weight > 0 and not getattr(c, "plain", False) else "no",
        "proposals see": _gate(method),
        "penalty": "none"
        if c.pessimism == 0
        else f"λ by {c.price:g} of the goal"
        if c.pessimism is None
        else "fixed λ",
    }


def _networks(method: PlanningMethod, summary: Summary) -> tuple[str, int]:
    """The encoders of a method, and how many networks vote on an event."""
    model = eqx.filter_eval_shape(lambda key: method.untrained(summary, key), jax.random.key(0))
    row = jnp.zeros(3), jnp.zeros(1)
    outputs, _ = eqx.filter_eval_shape(lambda m: method.predict(summary.layout, summary.stats, m, *row), model)
    nets = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, SharedMLP))
    shared = any(isinstance(net, SharedMLP) for net in nets)
    return "by kind" if shared else "flat", outputs[FLAG].value.shape[1]


def _left_out(c: Any) -> str:
    """How networks that vote come to differ."""
    return "bootstraps" if hasattr(c, "members") else "jackknife"


def _gate(method: PlanningMethod) -> str:
    if isinstance(method, Because):
        return "all" if method.config.mask == "full" else "its mask"
    return GATES.get(type(method), "all")


def _summary() -> Summary:
    n = 20
    rng = np.random.default_rng(0)
    state = np.hstack([rng.normal(size=(n, 2)), rng.integers(0, 2, (n, 1))]).astype(np.float32)
    action, after = rng.normal(size=(n, 1)).astype(np.float32), state[::-1].copy()
    flat = np.zeros(n, np.float32), np.zeros(n, bool), np.arange(n) // 10, np.arange(n) % 10
    return summarise(Transitions(FACTORS, state, action, after, np.ones((n, 1), np.float32), *flat, 10))
