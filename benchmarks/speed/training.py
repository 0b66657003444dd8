"""Training speed: gradient steps per second of every stage, for one seed and for several as one program.

A stage trains as usual, `chunk` steps at a time. Chunks in which something is compiled are counted separately; the
others are timed until `seconds` have passed. Multiplied by a stage's number of steps this gives its training time.

Every method has its own sizes for the world of the data. TD3+BC of d3rlpy, if it is installed, is trained for
comparison, with the rows, networks and batch size of our TD3+BC. It has no discrete actions: where the data have them,
both it and our `COLUMNS` treat the action's columns as numbers in a box, which is the same work for both.

Masks are full: discovery takes no gradient steps (``python -m benchmarks mask``), and a masked edge costs as much as
an open one, since it is multiplied by 0.
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
from because_rl.runs.train import load_for_training
from because_rl.training.run import Run
from because_rl.training.stage import Batch, Progress, Stage, fit, skeleton
from because_rl.transitions import Transitions
from benchmarks.speed import training_peer as peer

TD3BC, COLUMNS = "td3bc", "td3bc on columns"
LAPS = 2
"""Minimum number of timed chunks."""
NO_END = 2**30
"""Number of steps that no benchmark reaches."""

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
    """One row for each method (all by default) and number of seeds (1 and `seeds`), then d3rlpy's.

    `overrides` are settings of all methods, such as the batch. `keep` is a folder for finished rows, from which a
    later run resumes. A method that fails has a row with the reason in `failed`.
    """
    if seeds < 1 or chunk < 1:
        raise BecauseError(f"Got seeds={seeds}, chunk={chunk}.", need="at least 1.", fix="pass --seeds 10 --chunk 20.")
    data = load_for_training(dataset, root)
    make = partial(make_unmasked, overrides or {}, data.recipe.get("world"))
    discrete = data.factors.codes is not None
    names = list(methods) or list(METHODS)
    trainings = {name: make(name).fit for name in names}  # refuses wrong names and settings first
    if TD3BC in names and discrete:
        trainings[COLUMNS] = partial(fit_columns, make(TD3BC).config)
    modes = peer.modes() if peer.installed() and TD3BC in names else []

    timed_stages: dict[str, Any] = {}
    jobs: list[tuple[Row, Callable[[], Row]]] = []
    for name, training in trainings.items():
        for count in sorted({1, seeds}):
            run = partial(Timed, name, range(count), chunk, seconds, timed_stages)
            jobs.append(({"method": name, "seeds": count}, partial(time_method, training, data, run)))
    for mode in modes:
        training = partial(time_peer, data, make(TD3BC).config, chunk, seconds, mode["threads"])
        jobs.append(({"method": peer.PEER, "seeds": 1} | mode, training))
    settings = {"data": data.name, "chunk": chunk, "seconds": seconds, "overrides": dict(overrides or {})}
    rows = []
    for done, (job, work) in enumerate(jobs):
        report(done, len(jobs))
        rows.append(cached_row(keep, settings, job, work))
    report(len(jobs), len(jobs))

    device = jax.devices()[0]
    return {
        "rows": rows,
        "peer": "trained too" if modes else peer.MISSING if TD3BC in names else "only beside td3bc",
        "times_faster": times_faster(rows, COLUMNS if discrete else TD3BC),
        "whole": total_cost(rows, seeds),
        "device": f"{device.platform} {device.device_kind}",
        "transitions": len(data),
        "provenance": provenance(**settings, seeds=seeds, peers=peer.versions()),
    }


def make_unmasked(overrides: Mapping[str, Any], world: str | None, name: str) -> Any:
    """The method, with a full mask where it would discover one."""
    mask = {"mask": "full"} if name in METHODS and METHODS[name].config is BecauseConfig else {}
    return make_method(name, mask | dict(overrides), world)


def cached_row(keep: Path | None, settings: Mapping[str, Any], job: Row, work: Callable[[], Row]) -> Row:
    """The row of a job: from the folder `keep` if it is there, else measured by `work` and stored.

    The row of a failed job is not stored, so that it is tried again the next time.
    """
    cache_key = [settings, job, revision(), jax.devices()[0].device_kind]
    name = f"{job['method']} {job['seeds']} {sha256(json.dumps(cache_key, sort_keys=True).encode())[:16]}.json"
    file = None if keep is None else keep / name.replace(" ", "-")
    if file is not None and file.exists():
        return read_json(file)
    load_before = round(os.getloadavg()[0], 2)
    try:
        row = job | work() | {"load_before": load_before}
    except Exception as error:  # the other methods must still be measured
        return job | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    if file is not None:
        write_json(file, row)
    return row


class Stopwatch:
    """Times laps of `chunk` steps. Laps in which something was compiled do not count, nor does the first."""

    def __init__(self, chunk: int, seconds: float):
        self.chunk, self.seconds = chunk, seconds
        self.laps: list[Lap] = []
        self._begin()

    def _begin(self) -> None:
        self.since = time.perf_counter(), time.process_time(), compilations()[0]

    def lap(self) -> bool:
        """End a lap; returns whether enough laps have been timed."""
        wall, cpu, compiled = self.since
        plain = bool(self.laps) and compilations()[0] == compiled
        self.laps.append(Lap(time.perf_counter() - wall, time.process_time() - cpu, plain))
        timed = [lap.wall for lap in self.laps if lap.plain]
        self._begin()
        return len(timed) >= LAPS and sum(timed) >= self.seconds

    def read(self) -> dict[str, float]:
        """Steps per second (of the median lap), cores in use, and seconds of compilation."""
        timed = [lap for lap in self.laps if lap.plain]
        median = float(np.median([lap.wall for lap in timed]))
        return {
            "steps_per_second": self.chunk / median,
            "cores": sum(lap.cpu for lap in timed) / sum(lap.wall for lap in timed),
            "compile_seconds": sum(max(0.0, lap.wall - median) for lap in self.laps if not lap.plain),
        }


class Lap(NamedTuple):
    wall: float
    cpu: float
    plain: bool
    """whether the lap counts: nothing was compiled in it"""


@cache
def compilations() -> list[int]:
    """A list with one number, which grows with every program that is compiled."""
    count = [0]

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    return count


class Enough(Exception):
    """Ends a training once enough laps are timed; carries the progress."""

    def __init__(self, progress: Progress):
        self.progress = progress


class Timed(Run):
    """A run without a folder that trains each stage just long enough to time it."""

    def __init__(self, method: str, seeds: Sequence[int], chunk: int, seconds: float, timed_stages: dict[str, Any]):
        """`timed_stages` holds the stages that methods share, so that each is timed once."""
        super().__init__(seeds, chunk=chunk)
        self.method, self.seconds, self.timed_stages = method, seconds, timed_stages
        self.stages: list[Row] = []
        self.spent = 0.0

    def fit(self, stage: Stage, data: Batch, fixed: Any) -> Any:
        begin = time.perf_counter()
        if (cache_key := self._cache_key(stage, data, fixed)) is None:
            figures, model = self._time(stage, data, fixed)
        else:
            key = json.dumps([stage.name, cache_key], sort_keys=True)
            if key not in self.timed_stages:
                self.timed_stages[key] = self._time(stage, data, fixed)
            figures, model = self.timed_stages[key]
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
    """The summary of one method's training; `rest_seconds` is the time spent outside its stages."""
    begin, run = time.perf_counter(), make_run()
    training(data, run)
    return summary(run.stages, len(run.seeds)) | {"rest_seconds": time.perf_counter() - begin - run.spent}


def fit_columns(config: TD3BCConfig, data: Transitions, run: Run) -> None:
    """Fit our TD3+BC on the columns of discrete actions, as if they were continuous."""
    run.fit(td3bc_stage(config, *peer.columns(data)), data.batch(~data.held_out), ())


def time_peer(data: Transitions, config: TD3BCConfig, chunk: int, seconds: float, threads: int) -> Row:
    """The summary of d3rlpy's TD3+BC with the sizes of `config`."""
    chunks, watch, enough = peer.prepare(data, config, chunk, threads), Stopwatch(chunk, seconds), False
    while not enough:
        parameters, update = next(chunks)
        enough = watch.lap()
    figures = {"stage": TD3BC, "steps": config.steps, "batch": config.batch, "parameters": parameters}
    return summary([figures | watch.read()], 1) | {"update_steps_per_second": 1 / update}


def summary(stages: list[Row], seeds: int) -> Row:
    """Speed and time of a whole training, with as many steps of each stage as the method takes."""
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
    """Speed of our TD3+BC (method `ours`) over that of d3rlpy's fastest mode, which trains one seed after the other."""
    finished = [row for row in rows if "failed" not in row]
    peers = [row for row in finished if row["method"] == peer.PEER]
    if not peers:
        return []
    pace, update = (max(row[name] for row in peers) for name in ("steps_per_second", "update_steps_per_second"))
    return [
        {"method": ours, "seeds": row["seeds"], "than_peer": row["all_seeds_steps_per_second"] / pace}
        | {"than_its_updates_alone": row["all_seeds_steps_per_second"] / update}
        for row in finished
        if row["method"] == ours
    ]


def total_cost(rows: list[Row], seeds: int) -> dict[str, Any]:
    """Hours to train all these methods on these data, without discovery and evaluation."""
    counted = [r for r in rows if "failed" not in r and r["seeds"] == seeds and r["method"] in METHODS]
    cost = [r["training_seconds"] + r["compile_seconds"] + r["rest_seconds"] for r in counted]
    return {
        "methods": len(counted),
        "seeds": seeds,
        "hours": sum(cost) / 3600,
        "training_cpu_hours": sum(r["training_cpu_seconds"] for r in counted) / 3600,
    }
