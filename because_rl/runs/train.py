"""Train a method on a dataset into a run folder, and load it again.

A run folder holds ``run.json`` (what was trained on what), one checksummed ``.npz`` per stage, ``metrics.jsonl``
and, once evaluated, ``evaluation-<split>.json``. Of training in several rounds ``round-<k>`` keeps what there was after
each but the last. A folder is one run for good: other settings, data or seeds are
refused, and the same ones continue it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.algorithms.registry import make_method
from because_rl.datasets.load import load
from because_rl.datasets.paths import home_folder
from because_rl.discovery.regression.threads import one_blas_thread
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import exclusive, read_json, remove_leftovers, sha256, write_json, write_text
from because_rl.provenance import provenance
from because_rl.runs.compilation import disable_concurrent_ops
from because_rl.runs.tensorboard import write_events
from because_rl.training.method import Agent
from because_rl.training.run import HISTORY, Report, Run
from because_rl.transitions import Transitions

RUN = "run.json"
METRICS = "metrics.jsonl"
FORMAT = 3
SAME = ("format", "method", "config", "dataset", "data_sha256", "factors", "horizon", "seeds", "chunk", "rounds")
"""What a run is: where one of these differs it is another run."""
WRITTEN = (*SAME, "world", "spurious")


def train(
    method: str,
    dataset: str | Path,
    root: Path | None = None,
    folder: Path | None = None,
    seeds: Sequence[int] = range(10),
    overrides: Mapping[str, Any] | None = None,
    report: Report = lambda stage, done, total, metrics: None,
    resume: bool = False,
    *,
    factors: FactorSpec | Path | None = None,
    chunk: int = 500,
    rounds: int = 1,
    shared: Path | None = None,
) -> dict[str, Any]:
    """Train all seeds together and keep the run; `resume` goes on with one that was stopped, to the same bits.

    `chunk`: steps between two checkpoints. `rounds`: take all stages so many times for a share of their steps, and keep
    what there was after each. `shared`: where runs on the same data find each other's masks. Returns a summary.
    """
    if chunk < 1:
        raise BecauseError(f"Got a chunk of {chunk} steps.", need="at least 1.", fix="pass --chunk 500.")
    begin = time.monotonic()
    if len(seeds) > 1:
        disable_concurrent_ops()
    data = load_for_training(dataset, root, factors)
    world = data.recipe.get("world")
    made = make_method(method, overrides, world)
    wanted = {
        "format": FORMAT,
        "method": method,
        "config": asdict(made.config),
        "dataset": _address(dataset, data),
        "data_sha256": data.sha256(),
        "factors": data.factors.to_dict(),
        "world": world,
        "spurious": data.recipe.get("spurious", 1),
        "horizon": data.horizon,
        "seeds": [int(seed) for seed in seeds],
        "chunk": chunk,
        "rounds": rounds,
    }
    wanted = json.loads(json.dumps(wanted))  # as it will be read back: tuples are lists
    short_name = data.name.removeprefix("because/").removesuffix("-v0")
    folder = Path(folder or home_folder(root) / "runs" / f"{method}-{short_name}")
    with exclusive(folder.parent / f".{folder.name}.lock", f"training in {folder}"), one_blas_thread():
        known = _agree(folder, wanted, resume) or _begin(folder, wanted)

        def after(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
            _write_metrics(folder, run.history | {stage: _kept_history(folder / f"{stage}.npz")})
            if not known["finished"]:
                write_json(folder / RUN, known | {"seconds": spent()})
            report(stage, done, total, metrics)

        def spent() -> float:
            """Seconds, those before the run was stopped included, as far as its checkpoints tell."""
            return round(known["seconds"] + time.monotonic() - begin, 2)

        run = Run(wanted["seeds"], folder, after, chunk, shared, rounds)
        remove_leftovers(folder)
        for run.round in range(1, rounds + 1):
            if (kept := _round(folder, run.round, rounds)) == folder or not kept.exists():
                made.fit(data, run)
                _keep_round(folder, kept)
        _write_metrics(folder, run.history)
        write_events(folder, run.history, run.seeds)
        if not known["finished"]:
            files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.npz"))
            known |= {"finished": files, "seconds": spent()}
            write_json(folder / RUN, known)
    return {
        "run": str(folder),
        "method": method,
        "dataset": wanted["dataset"],
        "seeds": len(run.seeds),
        "transitions": len(data),
        "stages": {
            stage: {name: float(values[-1].mean()) for name, values in metrics.items()}
            for stage, metrics in run.history.items()
        },
        "seconds": known["seconds"],
    }


def _round(folder: Path, number: int, rounds: int) -> Path:
    """Where the stages are that there were after a round."""
    return folder if number == rounds else folder / f"round-{number}"


def _keep_round(folder: Path, kept: Path) -> None:
    """Whole or not at all."""
    if kept != folder:
        shutil.rmtree(partial := kept.with_name(f".{kept.name}"), ignore_errors=True)
        partial.mkdir()
        for file in folder.glob("*.npz"):
            shutil.copyfile(file, partial / file.name)
        partial.rename(kept)


def load_agent(folder: Path, root: Path | None = None, number: int | None = None) -> Agent:
    """The agent of a finished run, all its seeds; `number`: as it was after that round.

    Nothing is trained; only the run and its dataset are read.
    """
    known = read_run(folder)
    if not known["finished"]:
        raise BecauseError(
            f"The run in {folder} is not finished.",
            need="a finished run.",
            fix="finish it with 'because train --resume'.",
        )
    if missing := [name for name in known["finished"] if not (Path(folder) / name).is_file()]:
        raise BecauseError(
            f"The run in {folder} lacks {', '.join(missing)}.",
            need="all files of the run.",
            fix="restore them, or train again.",
        )
    data = load(known["dataset"], root, FactorSpec.from_dict(known["factors"]))
    data = replace(data, horizon=known["horizon"])
    if data.sha256() != known["data_sha256"]:
        raise BecauseError(
            f"Dataset {known['dataset']} is not what the run in {folder} was trained on.",
            need="the same transitions.",
            fix="collect it again with its own recipe and seed, or train a new run on this one.",
        )
    rounds = known["rounds"]
    number = rounds if number is None else number
    run = Run(known["seeds"], _round(Path(folder), number, rounds), chunk=known["chunk"], rounds=rounds)
    run.round = number
    return make_method(known["method"], known["config"]).fit(data, run)


def read_run(folder: Path) -> dict[str, Any]:
    path = Path(folder) / RUN
    if not path.is_file():
        raise BecauseError(
            f"There is no run in {folder}.", need=f"a folder with {RUN}.", fix="make one with 'because train'."
        )
    known = read_json(path)
    if not isinstance(known, dict) or {*WRITTEN, "finished", "sha256"} - set(known) or known["format"] != FORMAT:
        raise BecauseError(
            f"{path} does not describe a run of this version.",
            need=f"format {FORMAT}.",
            fix="train again into a new folder.",
        )
    files = [] if known["finished"] is None else known["finished"]
    seconds = known.setdefault("seconds", 0.0)  # older runs do not tell
    wrong = not isinstance(files, list) or not all(isinstance(file, str) for file in files)
    if known["sha256"] != _sha256(known) or wrong or not isinstance(seconds, int | float):
        raise BecauseError(
            f"{path} is not what was written.", need="the file as it was.", fix="restore it, or train again."
        )
    return known


def _sha256(known: Mapping[str, Any]) -> str:
    """Of what was trained on what: other settings would go on with these weights, or read them wrongly."""
    return sha256(json.dumps({name: known[name] for name in WRITTEN}, sort_keys=True).encode())


def load_for_training(
    dataset: str | Path, root: Path | None = None, factors: FactorSpec | Path | None = None
) -> Transitions:
    """A dataset with the horizon of its world; data from elsewhere keep the length of their longest episode."""
    data = load(dataset, root, factors)
    world = data.recipe.get("world")
    # A dataset in which every episode succeeds early does not show how long an episode may last.
    return data if world is None else replace(data, horizon=world_class(world).horizon)


def _address(dataset: str | Path, data: Transitions) -> str:
    """How to find the dataset again: its id, or its path."""
    return str(Path(dataset).resolve()) if Path(dataset).is_dir() else data.name


def _agree(folder: Path, wanted: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """The run that is there already, if it is the same one and may go on."""
    if not (folder / RUN).exists():
        if folder.is_dir() and any(folder.glob("*.npz")):
            raise BecauseError(
                f"{folder} holds stages of an unknown run.",
                need="an empty folder.",
                fix="choose another with -o FOLDER.",
            )
        return None
    known = read_run(folder)
    if other := list(_differences({k: known[k] for k in SAME}, {k: wanted[k] for k in SAME})):
        raise BecauseError(
            f"{folder} holds another run: {'; '.join(other[:5])}.",
            need="the same method, settings, data and seeds.",
            fix="choose another folder with -o FOLDER, or remove this one.",
        )
    if not resume:
        raise BecauseError(
            f"{folder} holds this run already{'' if known['finished'] else ', unfinished'}.",
            need="a new folder.",
            fix="pass --resume to go on with it, or choose another with -o FOLDER.",
        )
    return known


def _begin(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    known = wanted | {"finished": None, "seconds": 0.0, "sha256": _sha256(wanted), "provenance": provenance()}
    write_json(folder / RUN, known)
    return known


def _differences(there: Any, now: Any, path: str = "") -> Any:
    if isinstance(there, dict) and isinstance(now, dict):
        for key in sorted({*there, *now}):
            yield from _differences(there.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif there != now:
        yield f"{path} is {_brief(there)} there and {_brief(now)} now"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _kept_history(file: Path) -> dict[str, np.ndarray]:
    """The metrics in the file of a stage that has just been written (members of an ``.npz`` are read singly)."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name.removeprefix(HISTORY): arrays[name] for name in arrays.files if name.startswith(HISTORY)}


def _write_metrics(folder: Path, history: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """One line per stage and chunk; a metric has one number per seed."""
    lines = []
    for stage, metrics in history.items():
        for chunk, step in enumerate(metrics["step"][:, 0] if metrics else ()):  # no steps, no metrics
            each = {name: _numbers(values[chunk]) for name, values in metrics.items() if name != "step"}
            lines.append(json.dumps({"stage": stage, "step": int(step)} | each, allow_nan=False))
    write_text(folder / METRICS, "".join(line + "\n" for line in lines))


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
