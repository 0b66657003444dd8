"""How fast methods train: gradient steps per second of every stage, for one seed and for several as one program.

A stage trains as it always does, `chunk` steps at a time. Chunks in which something is compiled are told apart; the
others are timed until `seconds` have passed. With a stage's own number of steps this tells what its training takes.

Every method has its own sizes for the world of the data. Beside them trains TD3+BC of d3rlpy, if it is installed,
with the rows, networks and batch of our TD3+BC. It knows no discrete actions: where the data have them, it and our
`COLUMNS` both take the action's columns as numbers in a box, which is the same work for both.

Masks are left open: finding one is no gradient step (``python -m benchmarks mask``), and a shut edge is one times 0.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from because_rl.algorithms.because import BecauseConfig
from because_rl.algorithms.registry import METHODS, make_method
from because_rl.algorithms.td3bc import TD3BCConfig, td3bc_stage
from because_rl.errors import BecauseError
from because_rl.io import read_json, sha256, write_json
from because_rl.provenance import provenance, revision
from because_rl.runs.compilation import disable_concurrent_ops
from because_rl.runs.train import load_for_training
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Progress, Stage, fit, skeleton
from because_rl.transitions import Transitions
from benchmarks.speed import training_peer as peer

TD3BC, COLUMNS = "td3bc", "td3bc on columns"
LAPS = 2
"""Timed chunks at least."""
NO_END = 2**30
"""Steps."""

Row = dict[str, Any]


def training_speed(
    dataset: str = "unlock-medium",
    methods: Sequence[str] = (),
    seeds: int = 10,
    chunk: int = 20,
    seconds: float = 2.0,
    overrides: Mapping[str, Any] | None = None,
    root: Path | None = None,
    keep: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """A row for each method (all) and number of seeds (1 and `seeds`), then the peer's.

    `overrides` are settings of all methods, such as the batch. `keep` is a folder from which a later run goes on. A
    method that fails has a row that says why.
    """
    if seeds < 1 or chunk < 1:
        raise BecauseError(f"Got seeds={seeds}, chunk={chunk}.", need="at least 1.", fix="pass --seeds 10 --chunk 20.")
    if seeds > 1:
        disable_concurrent_ops()
    data = load_for_training(dataset, root)
    make = partial(make_openly, overrides or {}, data.recipe.get("world"))
    discrete = data.factors.codes is not None
    names = list(methods) or list(METHODS)
    trainings = {name: make(name).fit for name in names}  # wrong names and settings are refused before all work
    if TD3BC in names and discrete:
        trainings[COLUMNS] = partial(fit_columns, make(TD3BC).config)
    ways = peer.ways() if peer.installed() and TD3BC in names else []

    shared: dict[str, Any] = {}
    jobs: list[tuple[Row, Callable[[], Row]]] = []
    for name, training in trainings.items():
        for count in sorted({1, seeds}):
            run = partial(Timed, name, range(count), chunk, seconds, shared)
            jobs.append(({"method": name, "seeds": count}, partial(time_method, training, data, run)))
    for way in ways:
        training = partial(time_peer, data, make(TD3BC).config, chunk, seconds, way["threads"])
        jobs.append(({"method": peer.PEER, "seeds": 1} | way, training))
    settings = {"data": data.name, "chunk": chunk, "seconds": seconds, "overrides": dict(overrides or {})}
    rows = []
    for done, (job, work) in enumerate(jobs):
        report(done, len(jobs))
        rows.append(kept(keep, settings, job, work))
    report(len(jobs), len(jobs))

    here = jax.devices()[0]
    return {
        "rows": rows,
        "peer": "trained too" if ways else peer.MISSING if TD3BC in names else "only beside td3bc",
        "times_faster": times_faster(rows, COLUMNS if discrete else TD3BC),
        "whole": whole(rows, seeds),
        "device": f"{here.platform} {here.device_kind}",
        "transitions": len(data),
        "provenance": provenance(**settings, seeds=seeds, peers=peer.versions()),
    }


def make_openly(overrides: Mapping[str, Any], world: str | None, name: str) -> Any:
    """The method, with every edge of a mask that would have to be discovered."""
    mask = {"mask": "full"} if name in METHODS and METHODS[name].config is BecauseConfig else {}
    return make_method(name, mask | dict(overrides), world)


def kept(keep: Path | None, settings: Mapping[str, Any], job: Row, work: Callable[[], Row]) -> Row:
    """The row of a job: from the folder if it is there, else measured. What failed is tried again the next time."""
    decides = [settings, job, revision(), jax.devices()[0].device_kind]
    name = f"{job['method']} {job['seeds']} {sha256(json.dumps(decides, sort_keys=True).encode())[:16]}.json"
    file = None if keep is None else keep / name.replace(" ", "-")
    if file is not None and file.exists():
        return read_json(file)
    load_before = round(os.getloadavg()[0], 2)
    try:
        row = job | work() | {"load_before": load_before}
    except Exception as error:  # one method must not cost us the others
        return job | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    if file is not None:
        write_json(file, row)
    return row


class Stopwatch:
    """Laps of `chunk` steps. One in which something was compiled is no measure of training; the first never is."""

    def __init__(self, chunk: int, seconds: float):
        self.chunk, self.seconds = chunk, seconds
        self.laps: list[Lap] = []
        self._begin()

    def _begin(self) -> None:
        self.since = time.perf_counter(), time.process_time(), compilations()[0]

    def lap(self) -> bool:
        """Whether there have been enough."""
        wall, cpu, compiled = self.since
        plain = bool(self.laps) and compilations()[0] == compiled
        self.laps.append(Lap(time.perf_counter() - wall, time.process_time() - cpu, plain))
        timed = [lap.wall for lap in self.laps if lap.plain]
        self._begin()
        return len(timed) >= LAPS and sum(timed) >= self.seconds

    def read(self) -> dict[str, float]:
        timed = [lap for lap in self.laps if lap.plain]
        usual = float(np.median([lap.wall for lap in timed]))
        return {
            "steps_per_second": self.chunk / usual,
            "cores": sum(lap.cpu for lap in timed) / sum(lap.wall for lap in timed),
            "compile_seconds": sum(max(0.0, lap.wall - usual) for lap in self.laps if not lap.plain),
        }


class Lap(NamedTuple):
    wall: float
    cpu: float
    plain: bool
    """nothing was compiled"""


@cache
def compilations() -> list[int]:
    """One number, which grows with every program that is compiled."""
    count = [0]

    def hear(event: str, duration_secs: float, **_: str | int) -> None:
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(hear)
    return count


class Enough(Exception):
    """Carries out of a training what it has come to."""

    def __init__(self, progress: Progress):
        self.progress = progress


class Timed(Run):
    """A run in memory that trains each stage just long enough to time it."""

    def __init__(self, method: str, seeds: Sequence[int], chunk: int, seconds: float, common: dict[str, Any]):
        """`common` keeps the stages that methods share, which are timed once."""
        super().__init__(seeds, chunk=chunk)
        self.method, self.seconds, self.common = method, seconds, common
        self.stages: list[Row] = []
        self.spent = 0.0

    def fit(self, stage: Stage, data: Batch, fixed: Any) -> Any:
        begin = time.perf_counter()
        if (cache_key := self._cache_key(stage, data, fixed)) is None:
            figures, model = self._time(stage, data, fixed)
        else:
            key = json.dumps([stage.name, cache_key], sort_keys=True)
            if key not in self.common:
                self.common[key] = self._time(stage, data, fixed)
            figures, model = self.common[key]
        self.stages.append(figures)
        self.spent += time.perf_counter() - begin
        return model

    def _time(self, stage: Stage, data: Batch, fixed: Any) -> tuple[Row, Any]:
        watch = Stopwatch(self.chunk, self.seconds)

        def after(stage: Stage, progress: Progress, metrics: dict[str, np.ndarray]) -> None:
            if watch.lap():
                raise Enough(progress)

        try:
            progress = fit(replace(stage, steps=NO_END), data, fixed, self.seeds, chunk=self.chunk, report=after)
        except Enough as enough:
            progress = enough.progress
        count = sum(leaf.size for leaf in jax.tree.leaves(progress.params)) // len(self.seeds)
        figures = {"stage": stage.name, "timed_in": self.method, "steps": stage.steps, "batch": stage.batch}
        return figures | {"parameters": count} | watch.read(), eqx.combine(progress.params, skeleton(stage, fixed))


def time_method(training: Callable[[Transitions, Run], Any], data: Transitions, make_run: Callable[[], Timed]) -> Row:
    begin, run = time.perf_counter(), make_run()
    training(data, run)
    return summary(run.stages, len(run.seeds)) | {"rest_seconds": time.perf_counter() - begin - run.spent}


def fit_columns(config: TD3BCConfig, data: Transitions, run: Run) -> None:
    """Our TD3+BC on the columns of discrete actions."""
    run.fit(td3bc_stage(config, *peer.columns(data)), data.batch(~data.held_out), ())


def time_peer(data: Transitions, config: TD3BCConfig, chunk: int, seconds: float, threads: int) -> Row:
    chunks, watch, enough = peer.prepare(data, config, chunk, threads), Stopwatch(chunk, seconds), False
    while not enough:
        parameters, update = next(chunks)
        enough = watch.lap()
    figures = {"stage": TD3BC, "steps": config.steps, "batch": config.batch, "parameters": parameters}
    return summary([figures | watch.read()], 1) | {"update_steps_per_second": 1 / update}


def summary(stages: list[Row], seeds: int) -> Row:
    """Of a whole training, with as many steps of each stage as the method takes."""
    needed = [stage["steps"] / stage["steps_per_second"] for stage in stages]
    pace = sum(stage["steps"] for stage in stages) / sum(needed)
    return {
        "steps_per_second": pace,
        "all_seeds_steps_per_second": seeds * pace,
        "parameters": sum(stage["parameters"] for stage in stages),
        "batch": max(stage["batch"] for stage in stages),
        "compile_seconds": sum(stage["compile_seconds"] for stage in stages),
        "training_seconds": sum(needed),
        "training_cpu_seconds": sum(s * stage["cores"] for s, stage in zip(needed, stages, strict=True)),
        "stages": stages,
    }


def times_faster(rows: list[Row], ours: str) -> list[Row]:
    """Our TD3+BC beside the fastest way of the peer, which trains seeds one after the other."""
    sound = [row for row in rows if "failed" not in row]
    peers = [row for row in sound if row["method"] == peer.PEER]
    if not peers:
        return []
    pace, update = (max(row[name] for row in peers) for name in ("steps_per_second", "update_steps_per_second"))
    return [
        {"method": ours, "seeds": row["seeds"], "than_peer": row["all_seeds_steps_per_second"] / pace}
        | {"than_its_updates_alone": row["all_seeds_steps_per_second"] / update}
        for row in sound
        if row["method"] == ours
    ]


def whole(rows: list[Row], seeds: int) -> dict[str, Any]:
    """What training all these methods on such data takes, without masks and evaluation."""
    counted = [r for r in rows if "failed" not in r and r["seeds"] == seeds and r["method"] in METHODS]
    cost = [r["training_seconds"] + r["compile_seconds"] + r["rest_seconds"] for r in counted]
    return {
        "methods": len(counted),
        "seeds": seeds,
        "hours": sum(cost) / 3600,
        "training_cpu_hours": sum(r["training_cpu_seconds"] for r in counted) / 3600,
    }
