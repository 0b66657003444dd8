"""Computes the cells of a grid's jobs: collect the dataset, train, evaluate."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from because_rl.datasets.paths import dataset_path, home_folder
from because_rl.datasets.recipe import Recipe
from because_rl.envs.tasks import SPLITS, check_simulator
from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import recipe_of
from because_rl.experiments.grid.runner import Job, StopSweep, claim, finished, stops_sweep
from because_rl.experiments.grid.source import code_version
from because_rl.io import exclusive
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

if TYPE_CHECKING:  # they import JAX, which the list of jobs does not need
    from because_rl.training.method import Agent
    from because_rl.training.side_by_side import Team
    from because_rl.transitions import Transitions

ONE_STEP_EPISODES = 50


@dataclass(frozen=True)
class TrainAndEvaluate:
    """Computes the cells of a job: collect the dataset if it is missing, train, evaluate.

    A training that was stopped goes on from its last checkpoint.
    """

    root: Path | None = None
    work: Path | None = None
    """folder of the runs until all their cells are there; None: under the root"""
    keep_runs: bool = False
    compile_cache: Path | None = None
    processes: int = 1
    """number of processes that share the simulation of slow worlds"""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        from because_rl.discovery.regression.threads import one_blas_thread
        from because_rl.training.side_by_side import Team

        self.start_programs()
        team, parts = Team(), [part for part in job.trainings if not part.cells.keys().isdisjoint(missing)]
        # Masks are estimated one after another, and jobs share them: each begins elsewhere, or all would wait for one.
        first = crc32(job.key.encode()) % len(parts)
        parts = parts[first:] + parts[:first]
        with one_blas_thread():  # for all: each sets back what it found, and they do not end in order
            outcomes = team.run([partial(self._train_and_load, part) for part in parts])
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if fatal := [error for error in failures if stops_sweep(error)]:
            raise fatal[0]
        trained = {part.key: run for part, run in zip(parts, outcomes, strict=True) if not isinstance(run, Exception)}
        same_split: dict[tuple[str, int, int], list[tuple[str, Trained]]] = {}
        for part in (part for part in parts if part.key in trained):
            for key in (key for key in missing if key in part.cells):
                cell = part.cells[key]
                split = cell["split"], cell["episodes"], cell["spurious"]
                same_split.setdefault(split, []).append((key, trained[part.key]))
        waiting = list(same_split.items())
        while waiting:
            split, cells = waiting.pop(0)
            try:
                results = self._evaluate(job, split, cells, team)
            except Exception as error:
                if len(cells) == 1:
                    failures.append(error)
                else:  # one of them is at fault
                    waiting = [(split, [cell]) for cell in cells] + waiting
            else:
                yield from results
        if failures:
            raise failures[0]
        for key in () if self.keep_runs else trained:
            shutil.rmtree(self.run_folder(key))

    def _train_and_load(self, job: Job) -> Trained:
        from because_rl.runs.folder import read_run
        from because_rl.runs.train import load_agent, load_for_training

        summary, run = self.train(job), self.run_folder(job)
        record = read_run(run)
        return Trained(load_agent(run), record, load_for_training(record["dataset"], self.root), summary)

    def _evaluate(
        self, job: Job, split: tuple[str, int, int], cells: Sequence[tuple[str, Trained]], team: Team
    ) -> list[tuple[str, dict[str, Any]]]:
        """The results of cells with the same split, episodes and spurious level, whose agents act side by side."""
        import jax

        begin, runs, heads = time.monotonic(), [run for _, run in cells], [job.cells[key] for key, _ in cells]
        results = self.success(runs, *split, team, [head.get("scenes_draw", 0) for head in heads])
        works = [partial(self.metrics, run, recipe_of(h), split[0]) for run, h in zip(runs, heads, strict=True)]
        for run, result, metrics in zip(runs, results, team.run(works), strict=True):
            if isinstance(metrics, Exception):
                raise metrics
            seconds = {"training": run.summary["seconds"], "evaluation": round(time.monotonic() - begin, 2)}
            result |= metrics | {"data_sha256": run.record["data_sha256"], "stages": run.summary["stages"]}
            result |= {"seconds": seconds, "provenance": provenance(device=jax.devices()[0].device_kind)}
        return [(key, result) for (key, _), result in zip(cells, results, strict=True)]

    def success(
        self, runs: Sequence[Trained], split: str, episodes: int, spurious: int, team: Team, draws: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The success of agents that act side by side, each in its draw of scenes."""
        from because_rl.runs.evaluate import evaluate_agents

        agents, records = [run.agent for run in runs], [run.record for run in runs]
        return evaluate_agents(agents, records, split, episodes, spurious, self.processes, team, draws)

    def metrics(self, run: Trained, recipe: Recipe, split: str) -> dict[str, Any]:
        """One-step error and figures of the agent's model; nothing where it has none or the split is a subcase."""
        from because_rl.evaluation.one_step import new_steps, one_step_error
        from because_rl.evaluation.representation import agent_diagnostics
        from because_rl.planning.agent import PlannerAgent

        if not isinstance(run.agent, PlannerAgent) or split not in SPLITS:
            return {}
        steps = new_steps(recipe, split, ONE_STEP_EPISODES, run.agent.factors)
        figures = {name: np.asarray(values).tolist() for name, values in agent_diagnostics(run.agent, run.data).items()}
        return {"one_step": one_step_error(run.agent, steps), "figures": figures}

    def start_programs(self) -> None:
        """Before a job: set the compilation cache, and drop the last job's programs, which this one cannot use."""
        import jax

        if self.compile_cache is not None:
            use_compilation_cache(self.compile_cache)
        jax.clear_caches()

    def train(self, job: Job) -> dict[str, Any]:
        """Train the run of a job, or finish it; returns the summary of `runs.train.train`."""
        from because_rl.runs.train import train

        head, run = check_source(job), self.run_folder(job)
        try:
            check_simulator(head["recipe"]["world"], self.processes)
        except BecauseError as error:  # this machine's fault, and better known before the training than after it
            raise StopSweep(error.got, need=error.need, fix=error.fix) from error
        ensure_dataset(recipe_of(head), self.root)
        return train(
            *(head["method"], head["dataset"], self.root, run, head["seeds"], head["config"]),
            resume=True,
            chunk=head["chunk"],
            shared=run.parent / f"shared-{code_version()}",
        )

    def tidy(self, jobs: Sequence[Job], folder: Path) -> None:
        """Remove the runs of finished jobs whose workers were killed before they could."""
        for job in (part for whole in jobs for part in whole.trainings):
            if self.keep_runs or not self.run_folder(job).exists() or not finished(folder, job):
                continue
            with claim(folder, job) as claimed:
                if claimed:
                    shutil.rmtree(self.run_folder(job))

    def run_folder(self, job: Job | str) -> Path:
        """Of a job of one training, or of its key."""
        return (self.work or home_folder(self.root) / "sweep") / (job if isinstance(job, str) else job.key)


class Trained(NamedTuple):
    """A training as its evaluations need it."""

    agent: Agent
    record: Mapping[str, Any]
    data: Transitions
    summary: Mapping[str, Any]
    """of `runs.train.train`"""


def check_source(job: Job) -> Mapping[str, Any]:
    """The head of a job's first cell, which describes the training; raises if the source has changed since."""
    head = next(iter(job.cells.values()))
    if head["code"] != code_version(head["method"], recipe_of(head).visual):
        raise StopSweep(
            "The source code has changed since this sweep began.",
            need="results of one version.",
            fix="start the sweep again: what the change does not touch is not run again.",
        )
    return head


def ensure_dataset(recipe: Recipe, root: Path | None) -> None:
    """Collect a dataset unless it is there, with nothing left of a killed collection; wait for other processes' one."""
    from because_rl.datasets.collect import collect

    target = dataset_path(recipe.id, root)
    files, left = target / "data" / "metadata.json", (f".{target.name}.partial", f".{target.name}.*lock")
    while not files.exists() or any(path for pattern in left for path in target.parent.glob(pattern)):
        try:
            with exclusive(target.parent / f".{target.name}.wanted.lock", f"collecting {recipe.id}"):
                collect(recipe, root, workers=1)
        except BecauseError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            time.sleep(1.0)
