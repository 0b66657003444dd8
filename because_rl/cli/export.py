"""The command that writes a fitted agent as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, emit, interruptible, make_table


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of 'because fit' or 'because train', or a saved agent.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("policy.onnx"),
    seed: Annotated[int | None, typer.Option(help="One of the trained seeds; without it all of them vote.")] = None,
    as_json: Json = False,
) -> None:
    """Write a fitted agent with its planner as an ONNX file, for programs without Python, JAX or this package.

    Beside it goes policy_runner.py, which needs onnxruntime and numpy alone. The file's metadata describe columns,
    encodings, and what has to be remembered between the steps of an episode. Methods without a world model, and agents
    that see pictures, cannot be exported.
    """
    from because_rl.algorithms.registry import load_agent
    from because_rl.planning.export import RUNNER

    with interruptible():
        agent = load_agent(folder)
        about = (agent if seed is None else agent.select(seed)).export(output)
    runner = output.with_name(RUNNER)
    rows = [
        {"quantity": "planner", "result": f"{about['planner']} of {len(about['seeds'])} seed(s)"},
        {"quantity": "observation", "result": ", ".join(part["name"] for part in about["observation"])},
        {"quantity": "size", "result": f"{output.stat().st_size / 1e6:.1f} MB"},
        {"quantity": "runner", "result": str(runner)},
    ]
    result = {"file": str(output), "runner": str(runner)} | about
    emit(result, as_json, make_table(f"Written to {output}", rows))
