"""Computes the cells of the paper's experiments: success as in any sweep, and further measures of a trained run.

A run is kept until every experiment has its cells of it, so no experiment trains what another has trained (nor what
`because sweep --keep-runs` has).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.load import load
from because_rl.errors import BecauseError
from because_rl.experiments.grid.cells import recipe_of
from because_rl.experiments.grid.compute import TrainAndEvaluate, check_source, ensure_dataset
from because_rl.experiments.grid.runner import Job, cell_file
from because_rl.provenance import provenance
from because_rl.runs.compilation import use_compilation_cache

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    training: TrainAndEvaluate
    results: Path
    """folder of the cells"""
    wanted: Mapping[str, tuple[str, ...]]
    """key of a job -> the cells that any experiment wants of it"""

    def __call__(self, job: Job, missing: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        from because_rl.runs.train import load_agent

        success = [key for key in missing if "measure" not in job.cells[key]]
        measures = [key for key in missing if "measure" in job.cells[key]]
        run = self.training.run_folder(job)
        agent = cache(lambda: load_agent(run))  # loaded once for all measures that need it
        if success:
            yield from replace(self.training, keep_runs=True)(job, success)
        if job.parts:
            for part in job.parts:
                yield from self(part, [key for key in measures if key in part.cells])
            return
        for key in measures:
            cell = job.cells[key]
            if "method" not in cell:
                result = UNTRAINED_MEASURES[cell["measure"]](self.training.root, cell)
            else:
                self.train(job)
                result = RUN_MEASURES[cell["measure"]](run, agent, cell, self.training)
            yield key, result | {"provenance": provenance()}
        if run.exists() and not self.training.keep_runs and self._complete(job, missing):
            shutil.rmtree(run)

    def train(self, job: Job) -> None:
        """Train the run of a job as a sweep does, unless it is finished."""
        from because_rl.runs.folder import RUN, read_run

        check_source(job)
        run = self.training.run_folder(job)
        if (run / RUN).exists() and read_run(run)["finished"]:
            return
        if self.training.compile_cache is not None:
            use_compilation_cache(self.training.compile_cache)
        self.training.train(job)

    def _complete(self, job: Job, yielded: Sequence[str]) -> bool:
        """Whether no cell of the job is missing; the last one that was yielded may not be in its file yet."""
        return all(key in yielded or cell_file(self.results, key).exists() for key in self.wanted.get(job.key, ()))

    def tidy(self, jobs: Sequence[Job], folder: Path) -> None:
        """Remove the runs of complete jobs whose workers were killed before they could."""
        trainings = [part for job in jobs for part in job.trainings]
        self.training.tidy([part for part in trainings if self._complete(part, ())], folder)


# Measures of a trained run -----------------------------------------------------------------------------


def _mismatch(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """Outcome and model loss of every episode, a list for each seed."""
    from because_rl.evaluation.mismatch import episodic_loss
    from because_rl.evaluation.rollout import outcome_strings
    from because_rl.planning.agent import PlannerAgent

    if not isinstance(agent(), PlannerAgent):
        raise BecauseError(f"{cell['method']} has no model.", need="a model-based method.", fix="leave it out.")
    scenes = cell["recipe"]["world"], cell["split"], cell["scenes"], cell["spurious"]
    losses = episodic_loss(agent(), *scenes, training.processes)
    outcomes = outcome_strings(losses.success)
    return {"outcomes": outcomes, "loss": _six_digits(losses.loss), "wrong": _six_digits(losses.wrong)}


def _six_digits(values: np.ndarray) -> list[list[float]]:
    """Rounded to six significant digits, which take a third of the bytes."""
    return [[float(f"{value:.6g}") for value in row] for row in values]


def _curve(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """The learning curve of a stage: steps, and the metrics of each seed at them."""
    from because_rl.runs.folder import read_metrics

    lines = read_metrics(run)
    return {"curve": [line for line in lines if line["stage"] == cell["stage"]]}


def _energy_map(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """Maps of the model's uncertainty and of the logged steps."""
    from because_rl.evaluation.energy_map import energy_maps
    from because_rl.runs.train import load_for_training

    world = cell["recipe"]["world"]
    maps = energy_maps(agent(), load_for_training(cell["dataset"], training.root), world)
    return {"maps": [energy_map.to_dict() for energy_map in maps]}


def _recovery(run: Path, agent: Callable[[], Any], cell: Cell, training: TrainAndEvaluate) -> dict[str, Any]:
    """How well the factors that were read from pictures, their graph and the model agree with the true ones."""
    from because_rl.discovery.mask import CausalMask
    from because_rl.evaluation.recovery import factor_recovery
    from because_rl.reading import read_arrays, unpack_json

    evidence = read_arrays(run / "mask.npz")["evidence"]
    graph = CausalMask.from_dict(unpack_json(evidence)).graph
    return {"recovery": factor_recovery(agent(), recipe_of(cell), graph, cell["scenes"])}


RUN_MEASURES = {"mismatch": _mismatch, "curve": _curve, "energy-map": _energy_map, "recovery": _recovery}


# Measures without a training ----------------------------------------------------------------------------


def _graph(root: Path | None, cell: Cell) -> dict[str, Any]:
    """The causal mask of a dataset, discovered as `because` does."""
    from because_rl.discovery.discover import discover

    recipe = recipe_of(cell)
    ensure_dataset(recipe, root)
    data = load(recipe.id, root)
    return {"mask": discover(data, batches=cell["batches"]).to_dict(), "rows": len(data)}


def _oracle(root: Path | None, cell: Cell) -> dict[str, Any]:
    """Success of the oracle planner in one world and split."""
    from because_rl.runs.oracle import oracle

    return {"row": oracle([cell["world"]], [cell["split"]], cell["episodes"])["rows"][0]}


def _theorem(root: Path | None, cell: Cell) -> dict[str, Any]:
    """The suboptimality of the literal algorithm in a family of MDPs, at every number of samples."""
    from because_rl.experiments.paper.bilinear_family import Family, summarise_point

    family = Family(**cell["family"])
    points = {str(n): summarise_point(family, n, cell["repetitions"], cell["seed"]) for n in cell["samples"]}
    return {"points": points}


UNTRAINED_MEASURES = {"graph": _graph, "oracle": _oracle, "theorem": _theorem}
