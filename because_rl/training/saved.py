"""A saved agent: a folder that holds all that acting needs, and no data.

    agent.json             format, method, settings, factors, seeds, what it was trained on, versions, checksum
    weights.safetensors    the arrays

Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from because_rl.errors import BecauseError
from because_rl.io import new_folder, read_bytes, read_json, sha256, write_bytes, write_json
from because_rl.provenance import provenance
from because_rl.records import check_record

FORMAT = 2
AGENT, WEIGHTS = "agent.json", "weights.safetensors"
FIELDS = ("method", "config", "factors", "horizon", "seeds", "trained_on")


def write_agent(folder: Path, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a saved agent in one step; one that is there already is replaced, any other folder is refused."""
    if folder.exists() and (not folder.is_dir() or {file.name for file in folder.iterdir()} - {AGENT, WEIGHTS}):
        raise BecauseError(
            f"{folder} holds other files.", need="a new folder, or a saved agent.", fix="choose another folder."
        )
    weights = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    record = {"format": FORMAT, **description, "weights_sha256": sha256(weights)}
    with new_folder(folder) as new:
        write_bytes(new / WEIGHTS, weights)
        write_json(new / AGENT, record | {"sha256": _sha256(record), "provenance": provenance()})


def read_agent(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the arrays of a saved agent, checked."""
    folder = Path(folder)
    if not (folder / AGENT).is_file():
        raise BecauseError(
            f"There is no saved agent in {folder}.", need=f"a folder with {AGENT}.", fix="save one with agent.save."
        )
    record = read_json(folder / AGENT)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        got = record.get("format") if isinstance(record, dict) else None
        raise BecauseError(
            f"{folder / AGENT} has format {got!r}.", need=f"format {FORMAT}.", fix="fit and save the agent again."
        )
    check_record(record, "agent", str(folder / AGENT))
    if set(FIELDS) - set(record) or record["sha256"] != _sha256(record):
        raise _damaged(folder / AGENT)
    if not (folder / WEIGHTS).is_file():
        raise _damaged(folder / WEIGHTS)
    weights = read_bytes(folder / WEIGHTS)
    if sha256(weights) != record["weights_sha256"]:
        raise _damaged(folder / WEIGHTS)
    try:
        arrays = safetensors.numpy.load(weights)
    except Exception as error:  # not a file of arrays, though its checksum is right
        raise _damaged(folder / WEIGHTS) from error
    if infinite := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise BecauseError(
            f"{folder / WEIGHTS}: {min(infinite)} has numbers that are not finite.",
            need="a trained agent.",
            fix="restore the file, or train again.",
        )
    return record, arrays


def _sha256(record: Mapping[str, Any]) -> str:
    fields = {name: record[name] for name in ("format", *FIELDS, "weights_sha256")}
    return sha256(json.dumps(fields, sort_keys=True).encode())


def _damaged(path: Path) -> BecauseError:
    return BecauseError(
        f"{path} is not what was written.", need="the file as it was.", fix="restore it, or save the agent again."
    )
