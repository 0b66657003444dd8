"""Write an agent with its planner as an ONNX file, for processes without Python, JAX or this package.

The file holds one step of the whole agent: the planners of all seeds and their vote. What a planner remembers between
steps, its last plan and the key of its random numbers, are inputs and outputs. The metadata describe them, and the
columns (`describe`); `because_rl/onnx/runner.py` is an example of how to use both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import because_rl.onnx
from because_rl.errors import BecauseError
from because_rl.io import write_bytes

FORMAT = "because-rl policy 1"
RUNNER = "policy_runner.py"


def write_policy(agent: Any, path: str | Path) -> dict[str, Any]:
    """Write `path` and, beside it, the runner. Returns what the metadata say."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError as error:
        raise BecauseError(
            "The package onnx is not installed.",
            need="it, to write ONNX files.",
            fix="pip install 'because-rl[export]'",
        ) from error
    if agent.factors.constraints:
        raise BecauseError(
            "This agent keeps constraints, which exported planners do not yet.",
            need="an agent without constraints.",
            fix="act with `because_rl.load_agent`, or fit without --constraint to export.",
        )
    from because_rl.planning.export_graphs import planner_memory, shooting_model, value_iteration_model

    path = Path(path)
    if path.suffix != ".onnx":
        raise BecauseError(f"Got the file name {path.name!r}.", need="a name ending in .onnx.", fix="add the ending.")
    make = value_iteration_model if agent.exact else shooting_model
    memory = [] if agent.exact else planner_memory(agent)
    description = describe(agent, memory)
    model = make(agent, {"because-rl": json.dumps(description)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, model.SerializeToString())
    shutil.copyfile(Path(because_rl.onnx.__file__).with_name("runner.py"), path.with_name(RUNNER))
    return description


def describe(agent: Any, memory: Sequence[Any]) -> dict[str, Any]:
    """What a user of the file has to know, as JSON."""
    factors = agent.factors
    observed = [factor for factor in factors.state if factor not in factors.outcomes]
    action: dict[str, Any] = {"columns": [_column(factor) for factor in factors.action]}
    if factors.codes is not None:
        action = {"numbers": len(factors.codes), "codes": factors.codes} | action
    return {
        "format": FORMAT,
        "method": agent.method.name,
        "seeds": list(agent.seeds),
        "trained_on": {name: agent.trained_on.get(name) for name in ("name", "sha256")},
        "observation": [_column(factor) for factor in observed],
        "goal": [_column(goal) | {"of": goal.factor, "relation": goal.relation} for goal in factors.goal],
        "action": action,
        "horizon": agent.horizon,
        "steps_left": "steps until the episode ends, 1 to the horizon"
        + ("; always the horizon, as rewards have no last step" if factors.maximises_reward else ""),
        "memory": [part._asdict() for part in memory],
        "seed": "the first 4 bytes of SHA-256 of '<seed>/plan', as a little-endian number, modulo 2^31",
        "planner": "value iteration" if agent.exact else "shooting",
    }


def _column(factor: Any) -> dict[str, Any]:
    """A factor: its columns, and how a value is written in them."""
    out = {"name": factor.name, "columns": [factor.start, factor.stop], "type": factor.type}
    if getattr(factor, "optional", False):
        out["optional"] = True
    if factor.period is not None:
        out["period"] = factor.period
    ways = {"categorical": "one-hot" if factor.stop - factor.start > 1 else "0 or 1", "binary": "0 or 1"}
    return out | {"encoding": ways.get(factor.type, "the number, in the units of the log")}
