"""Train a method on a dataset into a run folder (see `runs.folder`), and load its agent again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from because_rl.algorithms import registry
from because_rl.algorithms.because import Because
from because_rl.algorithms.registry import make_method
from because_rl.datasets.paths import current_id, home_folder, short_name
from because_rl.discovery.mask import CausalMask
from because_rl.discovery.regression.threads import one_blas_thread
from because_rl.envs.tasks import world_class
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec
from because_rl.io import exclusive, remove_leftovers, write_json
from because_rl.runs.folder import (
    FORMAT,
    RUN,
    agent_folder,
    finished_run,
    is_part,
    open_run,
    read_history,
    read_run,
    read_sufficiency,
    write_metrics,
)
from because_rl.runs.pictures import load_encoded
from because_rl.runs.tensorboard import EventFiles
from because_rl.training.method import Agent
from because_rl.training.run import Report, Run
from because_rl.transitions import RowSource, Transitions
from because_rl.vision.agent import PictureAgent
from because_rl.vision.encoder import PictureEncoder


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
    mask: CausalMask | None = None,
    stored: RowSource | None = None,
    encoder: PictureEncoder | None = None,
) -> dict[str, Any]:
    """Train all seeds of a method as one program and keep the run.

    Args:
        method: its name, as in `METHODS`.
        dataset: an id under `root`, or the path of any Minari dataset or log that `load` takes.
        root: where datasets and runs live; None: BECAUSE_HOME or ~/.because-rl.
        folder: where to keep the run; None: under the root, by method and dataset.
        seeds: all different.
        overrides: settings of the method; values may be text, as from a command line.
        report: called after every chunk with (stage, steps done, steps in all, mean metrics).
        resume: continue a run that was stopped, with the same result to the bit.
        factors: a factor spec, or its file, for a dataset that has none.
        chunk: steps between two checkpoints.
        rounds: take all stages in turns this many times, each for its share of steps, and keep each round.
        shared: a folder in which runs on the same data share masks and stages.
        mask: the causal mask, for BECAUSE and its ablations; None: estimated from the data.
        stored: where the dataset is a sample: all rows to train on.
        encoder: what read the columns of the dataset from pictures, which the agent is then shown.

    Returns:
        A summary: run, method, dataset, seeds, transitions, stages (the last metrics of each), sufficiency of the mask,
        seconds.
    """
    if chunk < 1:
        raise BecauseError(f"Got a chunk of {chunk} steps.", need="at least 1.", fix="pass --chunk 500.")
    begin = time.monotonic()
    data, own_encoder = _load(dataset, root, factors, report)
    data, world, encoder = replace(data, stored=stored), data.recipe.get("world"), encoder or own_encoder
    learner = make_method(method, overrides, world)
    if mask is not None and not isinstance(learner, Because):
        raise BecauseError(f"{method} takes no mask.", need="BECAUSE or an ablation of it.", fix="leave the mask out.")
    description = {
        "format": FORMAT,
        "method": method,
        "config": asdict(learner.config),
        "dataset": str(Path(dataset).resolve()) if Path(dataset).exists() else data.name,
        "data_sha256": data.sha256(),
        "factors": data.factors.to_dict(),
        "world": world,
        "spurious": data.recipe.get("spurious", 1),
        "horizon": data.horizon,
        "seeds": [int(seed) for seed in seeds],
        "chunk": chunk,
        "rounds": rounds,
        "mask": None if mask is None else mask.weight.tolist(),
    }
    folder = Path(folder or home_folder(root) / "runs" / f"{method}-{short_name(data.name)}")
    with exclusive(folder.parent / f".{folder.name}.lock", f"training in {folder}"), one_blas_thread():
        record = open_run(folder, description, resume)
        seconds_before = record["seconds"]  # up to the last checkpoint before the run was stopped

        def elapsed() -> float:
            return round(seconds_before + time.monotonic() - begin, 2)

        def after_chunk(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
            if not metrics:  # a mask
                report(stage, done, total, metrics)
                return
            history = run.history | {stage: read_history(folder / f"{stage}.npz")}
            write_metrics(folder, history)
            events.write(history)
            if not record["finished"]:
                write_json(folder / RUN, record | {"seconds": elapsed()})
            report(stage, done, total, metrics)

        run, events = Run(description["seeds"], folder, after_chunk, chunk, shared, rounds), EventFiles(folder, seeds)
        for place in (folder, *filter(None, [shared])):
            remove_leftovers(place)
        for run.round in range(1, rounds + 1):
            last = run.round == rounds
            if last or not agent_folder(folder, run.round, rounds).exists():
                agent = learner.fit(data, run, mask) if isinstance(learner, Because) else learner.fit(data, run)
                agent = agent if encoder is None else PictureAgent(encoder, agent)
                agent.save(agent_folder(folder, run.round, rounds))
        write_metrics(folder, run.history)
        events.write(run.history)
        if not record["finished"]:
            files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if is_part(file))
            record |= {"finished": files, "seconds": elapsed()}
            write_json(folder / RUN, record)
    return {
        "run": str(folder),
        "method": method,
        "dataset": record["dataset"],
        "seeds": len(run.seeds),
        "transitions": len(data),
        "stages": {
            stage: {name: float(values[-1].mean()) for name, values in metrics.items()}
            for stage, metrics in run.history.items()
        },
        "sufficiency": read_sufficiency(folder),
        "seconds": record["seconds"],
    }


def load_agent(folder: Path, number: int | None = None) -> Agent:
    """The agent of a finished run, with all its seeds; `number`: as it was after that round. Needs no dataset."""
    record = finished_run(folder)
    rounds = record["rounds"]
    return registry.load_agent(agent_folder(Path(folder), rounds if number is None else number, rounds))


def load_run_data(folder: Path, root: Path | None = None) -> Transitions:
    """The dataset that a run was trained on, which is looked up under `root`."""
    record = read_run(folder)
    data, _ = load_encoded(current_id(record["dataset"]), root, FactorSpec.from_dict(record["factors"]))
    data = replace(data, horizon=record["horizon"])
    if data.sha256() != record["data_sha256"]:
        raise BecauseError(
            f"Dataset {record['dataset']} is not what the run in {folder} was trained on.",
            need="the same transitions.",
            fix="collect it again with its own recipe and seed, or train a new run on this one.",
        )
    return data


def load_for_training(
    dataset: str | Path, root: Path | None = None, factors: FactorSpec | Path | None = None
) -> Transitions:
    """A dataset with the horizon of its world; data from elsewhere keep the length of their longest episode."""
    return _load(dataset, root, factors)[0]


def _load(
    dataset: str | Path,
    root: Path | None,
    factors: FactorSpec | Path | None,
    report: Report = lambda stage, done, total, metrics: None,
) -> tuple[Transitions, PictureEncoder | None]:
    """The dataset, and the encoder that read it if it holds pictures."""
    data, encoder = load_encoded(dataset, root, factors, report)
    world = data.recipe.get("world")
    # If every episode of a dataset succeeds early, the data do not show how long an episode may last.
    return data if world is None else replace(data, horizon=world_class(world).horizon), encoder
