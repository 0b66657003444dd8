"""The function of a cell: a training and its success as in any sweep, and what else experiments ask of it.

A run is kept until every experiment has what it wants of it, so no experiment trains what another has trained
(nor what a sweep has, if it was told --keep-runs).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.load import load
from because_rl.datasets.recipe import Recipe
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import TrainAndEvaluate, code_version, collected
from because_rl.experiments.grid.runner import Job, StopSweep, cell_file
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    training: TrainAndEvaluate
    results: Path
    owed: Mapping[str, tuple[str, ...]]
    """key of a job -> all cells that some experiment wants of it"""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        from because_rl.runs.train import load_agent

        plain = [key for key in missing if "measure" not in job.cells[key]]
        special = [key for key in missing if "measure" in job.cells[key]]
        run = self.training._run(job)
        agent = cache(lambda: load_agent(run, self.training.root))  # loaded once for all measures that want it
        if plain:
            yield from replace(self.training, keep_runs=True)(job, plain)
        for key in special:
            cell = job.cells[key]
            if "method" not in cell:
                found = ALONE[cell["measure"]](self.training.root, cell)
            else:
                self._train(job)
                found = OF_RUN[cell["measure"]](run, agent, cell, self.training)
            yield key, found | {"provenance": provenance()}
        if run.exists() and not self.training.keep_runs and self._all_there(job, missing):
            shutil.rmtree(run)

    def _train(self, job: Job) -> None:
        """As a sweep does; a run that is finished is left as it is."""
        from because_rl.runs.folder import RUN, read_run
        from because_rl.runs.train import train

        told, run = next(iter(job.cells.values())), self.training._run(job)
        if told["code"] != code_version(told["method"]):
            raise StopSweep(
                "The source code has changed since this began.", need="results of one version.", fix="start it again."
            )
        if (run / RUN).exists() and read_run(run)["finished"]:
            return
        if self.training.compile_cache is not None:
            use_compilation_cache(self.training.compile_cache)
        collected(_recipe(told), self.training.root)
        train(
            *(told["method"], told["dataset"], self.training.root, run, told["seeds"], told["config"]),
            resume=True,
            chunk=told["chunk"],
            shared=run.parent / f"shared-{code_version()}",
        )

    def _all_there(self, job: Job, now: Sequence[str]) -> bool:
        """`now`: what has just been handed over, of which the last may not be in its file yet."""
        return all(key in now or cell_file(self.results, key).exists() for key in self.owed.get(job.key, ()))

    def tidy(self, jobs: Sequence[Job], folder: Path) -> None:
        """Remove the runs of which nothing is wanted any more, had a worker been killed before it could."""
        done = [job for job in jobs if self._all_there(job, ())]
        self.training.tidy(done, folder)


# What else is asked of a run ---------------------------------------------------------------------------


def _mismatch(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """Success and model loss of every episode."""
    from because_rl.evaluation.mismatch import episodic_loss
    from because_rl.planning.agent import PlannerAgent

    if not isinstance(agent(), PlannerAgent):
        raise BecauseError(f"{cell['method']} has no model.", need="a model-based method.", fix="leave it out.")
    where = cell["recipe"]["world"], cell["split"], cell["scenes"], cell["spurious"]
    told = episodic_loss(agent(), *where, training.processes)
    each = ["".join("01"[int(solved)] for solved in row) for row in told.success]
    return {"outcomes": each, "loss": _short(told.loss), "wrong": _short(told.wrong)}


def _short(values: np.ndarray) -> list[list[float]]:
    """Six digits are plenty, and a third of the bytes."""
    return [[float(f"{value:.6g}") for value in row] for row in values]


def _curve(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """The learning curve of a stage: steps, and of each seed the metrics at them."""
    from because_rl.runs.folder import METRICS

    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    return {"curve": [line for line in lines if line["stage"] == cell["stage"]]}


def _energy_map(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """How unsure the model is, and where steps were logged."""
    from because_rl.evaluation.energy_map import energy_maps
    from because_rl.runs.train import load_for_training

    world = cell["recipe"]["world"]
    maps = energy_maps(agent(), load_for_training(cell["dataset"], training.root), world)
    return {"maps": [told.to_dict() for told in maps]}


OF_RUN = {"mismatch": _mismatch, "curve": _curve, "energy-map": _energy_map}


# What needs no training --------------------------------------------------------------------------------


def _graph(root: Path | None, cell: Cell) -> dict[str, Any]:
    """The mask of a dataset, as `because` takes it."""
    from because_rl.discovery.discover import discover

    recipe = _recipe(cell)
    collected(recipe, root)
    data = load(recipe.id, root)
    found = discover(data.factors, data.state, data.action, data.next_state, data.episode, batches=cell["batches"])
    return {"mask": found.mask.to_dict(), "rows": len(data)}


def _oracle(root: Path | None, cell: Cell) -> dict[str, Any]:
    from because_rl.runs.oracle import oracle

    return {"row": oracle([cell["world"]], [cell["split"]], cell["episodes"])["rows"][0]}


ALONE = {"graph": _graph, "oracle": _oracle}


def _recipe(cell: Cell) -> Recipe:
    return Recipe(**{key: value for key, value in cell["recipe"].items() if key != "format"})
