"""The files of a run folder, and the rule that a folder holds one run for good.

    run.json             what was trained on what; `finished` lists the files once training is complete
    <stage>.npz          the state of each stage of training, with a checksum
    unfinished-mask/     while the mask is discovered: the evidence on finished targets
    metrics.jsonl        one line per stage and chunk
    tensorboard/seed-<k>/     the same for TensorBoard
    agent/               the trained agent (see `training.saved`), which needs nothing else in this folder
    round-<k>/           the agent as it was after round k, for training in several rounds
    evaluation-<split>.json   written by `evaluate_run`
    pictures/            films that `report_run` drew

Other settings, data or seeds are refused; the same ones continue the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.errors import BecauseError
from because_rl.io import read_arrays, read_json, read_json_lines, sha256, unpack_json, write_json, write_text
from because_rl.provenance import provenance
from because_rl.records import check_record
from because_rl.training.run import HISTORY
from because_rl.training.saved import AGENT, WEIGHTS

RUN = "run.json"
METRICS = "metrics.jsonl"
FORMAT = 5
IDENTITY = (
    "format",
    "method",
    "config",
    "dataset",
    "data_sha256",
    "factors",
    "horizon",
    "seeds",
    "chunk",
    "rounds",
    "mask",
)
"""The fields of run.json that identify a run: if one of them differs it is another run."""
DESCRIPTION = (*IDENTITY, "world", "spurious")
"""The fields that the checksum of run.json covers."""


def open_run(folder: Path, description: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """The record in `folder` of the run with this description; a new one is written if the folder holds no run.

    Another run in the folder is refused, and the same one unless `resume` is set.
    """
    wanted: dict[str, Any] = json.loads(json.dumps(description))  # as it is read back: tuples become lists
    kept = folder.is_dir() and any(folder.glob("*.npz"))
    if not (folder / RUN).exists() or not (kept or _same_run(read_run(folder), wanted)):
        # A run of other settings that has come to nothing yet, perhaps because of them, is replaced.
        if kept:
            raise BecauseError(
                f"{folder} holds stages of an unknown run.",
                need="an empty folder.",
                fix="choose another with -o FOLDER.",
            )
        record = wanted | {"finished": None, "seconds": 0.0, "sha256": _sha256(wanted), "provenance": provenance()}
        write_json(folder / RUN, record)
        return record
    record = read_run(folder)
    if differences := [text for key in sorted(IDENTITY) for text in _differences(record[key], wanted[key], key)]:
        raise BecauseError(
            f"{folder} holds another run: {'; '.join(differences[:5])}.",
            need="the same method, settings, data and seeds.",
            fix="choose another folder with -o FOLDER, or remove this one.",
        )
    if not resume:
        raise BecauseError(
            f"{folder} holds this run already{'' if record['finished'] else ', unfinished'}.",
            need="a new folder.",
            fix="pass --resume to continue it, or choose another with -o FOLDER.",
        )
    return record


def read_run(folder: Path) -> dict[str, Any]:
    """The contents of run.json, checked."""
    path = Path(folder) / RUN
    if not path.is_file():
        raise BecauseError(
            f"There is no run in {folder}.", need=f"a folder with {RUN}.", fix="make one with 'because train'."
        )
    record = read_json(path)
    if not isinstance(record, dict) or {*DESCRIPTION, "finished", "sha256"} - set(record) or record["format"] != FORMAT:
        raise BecauseError(
            f"{path} does not describe a run of this version.",
            need=f"format {FORMAT}.",
            fix="train again into a new folder.",
        )
    check_record(record, "run", str(path))
    record.setdefault("seconds", 0.0)  # older runs do not have it
    if record["sha256"] != _sha256(record):
        raise BecauseError(
            f"{path} is not what was written.", need="the file as it was.", fix="restore it, or train again."
        )
    return record


def finished_run(folder: Path) -> dict[str, Any]:
    """The contents of run.json, checked, of a run that is finished and whose files are all there."""
    record = read_run(folder)
    if not record["finished"]:
        raise BecauseError(
            f"The run in {folder} is not finished.",
            need="a finished run.",
            fix="finish it with 'because train --resume'.",
        )
    if missing := [name for name in record["finished"] if not (Path(folder) / name).is_file()]:
        raise BecauseError(
            f"The run in {folder} lacks {', '.join(missing)}.",
            need="all files of the run.",
            fix="restore them, or train again.",
        )
    return record


def _sha256(record: Mapping[str, Any]) -> str:
    """Guards the description: changed settings would continue training from these weights, or read them wrongly."""
    return sha256(json.dumps({name: record[name] for name in DESCRIPTION}, sort_keys=True).encode())


def _same_run(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return record["finished"] is not None or all(record[key] == wanted[key] for key in IDENTITY)


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}")
    elif before != now:
        yield f"{path} is {_brief(before)} there and {_brief(now)} now"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


# Agents ------------------------------------------------------------------------------------------------


def agent_folder(folder: Path, number: int, rounds: int) -> Path:
    """Where the agent is as it was after round `number` of `rounds`."""
    return folder / ("agent" if number == rounds else f"round-{number}")


def is_part(file: Path) -> bool:
    """Whether a file belongs to a finished training: a stage, or a part of an agent."""
    return file.suffix == ".npz" or file.name in (AGENT, WEIGHTS)


# Metrics -----------------------------------------------------------------------------------------------


def read_sufficiency(folder: Path) -> dict[str, dict[str, Any]]:
    """target -> how much worse the fitted world model predicts under its mask than with all inputs; {} if unknown."""
    file = Path(folder) / "sufficiency.npz"
    return dict(unpack_json(read_arrays(file)["checks"])) if file.exists() else {}


def write_metrics(folder: Path, history: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """One line per stage and chunk, each metric a list of one number per seed (null where it is not finite).

    `history`: stage -> metric -> (chunks, seeds), with the steps among the metrics.
    """
    lines = []
    for stage, metrics in history.items():
        for chunk, step in enumerate(metrics["step"][:, 0] if metrics else ()):  # a stage of no steps has no metrics
            values = {name: _numbers(values[chunk]) for name, values in metrics.items() if name != "step"}
            lines.append(json.dumps({"stage": stage, "step": int(step)} | values, allow_nan=False))
    write_text(folder / METRICS, "".join(line + "\n" for line in lines))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines that `write_metrics` wrote; none if there is no such file."""
    path = Path(folder) / METRICS
    lines = read_json_lines(path) if path.exists() else []
    return [check_record(line, "line of metrics", f"A line of {path}") for line in lines]


def read_history(file: Path) -> dict[str, np.ndarray]:
    """The metrics in the ``.npz`` of a stage, metric -> (chunks, seeds), without reading its other arrays."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name.removeprefix(HISTORY): arrays[name] for name in arrays.files if name.startswith(HISTORY)}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
