"""What the paper's experiments share: the jobs they need and the files they write.

An experiment is two functions: `jobs` returns the cells of the common sweep that it needs, `make` turns the finished
ones into rows, text and a figure. A job is one training; several experiments may ask for cells of the same job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from because_rl.errors import BecauseError
from because_rl.experiments.formatting import csv_text
from because_rl.experiments.grid.cells import dataset_of
from because_rl.experiments.grid.compare import Runs
from because_rl.experiments.grid.grid import address
from because_rl.experiments.grid.grid import jobs as grid_jobs
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.grid.source import hash_files, imported_files
from because_rl.experiments.paper.scale import Scale
from because_rl.io import write_json, write_text
from because_rl.provenance import provenance
from because_rl.report.graph_figure import save
from because_rl.statistics import Estimate, mean


class Product(NamedTuple):
    """What an experiment makes of its cells."""

    rows: list[dict[str, Any]]
    """the data, one CSV column per key"""
    text: str
    """the table and its explanation, as Markdown"""
    figure: Figure | None = None
    tables: Mapping[str, list[dict[str, Any]]] = {}
    """further data, one CSV file per name; an experiment that has them writes into a folder of its own"""


class Experiment(NamedTuple):
    title: str
    jobs: Callable[[Scale], list[Job]]
    make: Callable[[Scale, list[Job], Mapping[str, dict[str, Any]]], Product]
    """(scale, jobs, finished cells by key) -> product"""


# Jobs --------------------------------------------------------------------------------------------------


def trainings(scale: Scale, methods: Iterable[str] | Mapping[str, Mapping[str, Any]], **axes: Any) -> list[Job]:
    """The jobs that train these methods on the datasets of the scale's grid.

    No table or figure of the paper shows subcases of a split, so these are left out.

    Args:
        methods: names; or label -> settings, as in `Grid.methods`.
        axes: fields of the grid that differ from the scale's, such as `worlds` or `ratios`.
    """
    rows = methods if isinstance(methods, Mapping) else scale.methods(methods)
    grid = replace(scale.grid, methods=dict(rows), subcases=False, **axes)
    return grid_jobs(grid) if grid.methods and grid.worlds else []


def add_measure(jobs: Sequence[Job], measure: str, modules: Sequence[str] = (), **settings: Any) -> list[Job]:
    """The same jobs with one more cell each, in which the trained run is measured in another way.

    Args:
        measure: name of a function in `measure.RUN_MEASURES`.
        modules: modules of this package that compute it; a change of their source makes another cell.
        settings: further fields of the cell.
    """
    measured = []
    for job in jobs:
        first = next(iter(job.cells.values()))
        head = {key: first[key] for key in first if key not in ("split", "episodes", "label")}
        head |= {"measure": measure, "source": source_hash(*modules), **settings}
        cell = {address(f"{job.key}-{measure}", head): {"label": first["label"], **head}}
        measured.append(Job(job.key, {**job.cells, **cell}))
    return measured


def measures_only(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without their cells of success."""
    return [Job(job.key, {key: cell for key, cell in job.cells.items() if "measure" in cell}) for job in jobs]


def untrained_job(name: str, measure: str, modules: Sequence[str], **settings: Any) -> Job:
    """A job of one cell that needs no training; arguments as in `add_measure`."""
    head = json.loads(json.dumps({"measure": measure, "source": source_hash(*modules), **settings}))
    key = address(name, head)
    return Job(key, {key: {"label": measure, **head}})


@cache
def source_hash(*modules: str) -> str:
    """A hash of the source of these modules and of all that they import from this package."""
    return hash_files(set().union(*map(imported_files, modules)))


def merge_jobs(*lists: Iterable[Job]) -> list[Job]:
    """Every job once, with all the cells that any of the lists wants of it."""
    by_key: dict[str, Job] = {}
    for job in (job for jobs in lists for job in jobs):
        by_key[job.key] = Job(job.key, {**(by_key[job.key].cells if job.key in by_key else {}), **job.cells})
    return list(by_key.values())


# Cells -------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The success of one method on one dataset, or one draw of it for each seed, and split; all its seeds."""

    label: str
    recipe: Mapping[str, Any]
    split: str
    seeds: list[int]
    runs: Runs
    success: Estimate
    """over seeds, with a 95% t-interval"""

    @property
    def task(self) -> str:
        return f"{self.recipe['world']}-{self.split}-{self.recipe['behaviour']}"


def success_rows(cells: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """One row for each label, dataset and split; other measures are left out.

    Several cells with different seeds may make up one row, also seeds that have a draw of the dataset each.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        if "measure" not in cell:
            groups.setdefault((cell["label"], dataset_of(cell), cell["split"]), []).append(cell)
    rows = []
    for (label, _, split), group in groups.items():
        runs = sorted(
            (seed, rate, solved, cell.get("scenes_draw"))
            for cell in group
            for seed, rate, solved in zip(cell["seeds"], cell["per_seed"], cell["outcomes"], strict=True)
        )
        seeds, rates, outcomes, draws = (list(column) for column in zip(*runs, strict=True))
        own = Runs(rates, outcomes, None if None in draws else draws)
        rows.append(Row(label, group[0]["recipe"], split, seeds, own, mean(rates)))
    return rows


def check_same_data(cells: Mapping[str, Mapping[str, Any]], draft: bool) -> list[str]:
    """Compare the hashes of the data: cells of one dataset must have learned from the same rows.

    Raises an error where they did not; for a draft, which may mix versions of the source, returns a note on each
    dataset instead.
    """
    hashes: dict[str, dict[str, str]] = {}
    for key, cell in cells.items():
        if "data_sha256" in cell:
            hashes.setdefault(cell["dataset"], {}).setdefault(cell["data_sha256"], key)
    mixed = {dataset: sorted(keys.values()) for dataset, keys in hashes.items() if len(keys) > 1}
    if mixed and not draft:
        dataset, keys = next(iter(mixed.items()))
        raise BecauseError(
            f"Results of {dataset} are from {len(keys)} versions of it: {', '.join(keys)}.",
            need="one dataset behind all of its results.",
            fix="remove the cells of the older version, and run the same command again.",
        )
    return [f"Results of {dataset} are from {len(keys)} versions of it." for dataset, keys in mixed.items()]


# Files ------------------------------------------------------------------------------------------------


def write_experiment(
    name: str, experiment: Experiment, scale: Scale, jobs: Sequence[Job], cells: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Write ``NAME.csv``, ``NAME.md``, for a figure ``NAME.svg`` and ``NAME.png``, and ``NAME.json`` (provenance);
    into ``NAME/``, with a CSV for each of them, where the product has further tables.

    `cells` are the finished cells of the jobs. Returns the numbers of finished and missing cells, and the files.
    """
    product = experiment.make(scale, list(jobs), cells)
    heads = {key: head for job in jobs for key, head in job.cells.items()}
    missing = sorted(set(heads) - set(cells))
    other = sum(cells[key].get("code") != head.get("code") for key, head in heads.items() if key in cells)
    notes = [f"{len(missing)} of {len(missing) + len(cells)} results are missing."] if missing else []
    title = experiment.title
    if other:
        title += " (draft)"
        notes.append(f"A draft: {other} results were computed by other versions of the source.")
    notes += check_same_data(cells, draft=bool(other))
    text = "\n".join([f"# {title}", "", product.text.strip(), *(f"\n{note}" for note in notes), ""])
    folder = folder / name if product.tables else folder
    files = [folder / f"{name}.csv", folder / f"{name}.md", *(folder / f"{table}.csv" for table in product.tables)]
    for file, rows in zip((files[0], *files[2:]), (product.rows, *product.tables.values()), strict=True):
        write_text(file, csv_text(rows))
    write_text(files[1], text)
    if product.figure is not None:
        for suffix in (".svg", ".png"):
            files.append(folder / f"{name}{suffix}")
            save(product.figure, files[-1])
    record = {"name": name, "title": title, "cells": sorted(cells), "missing": missing}
    write_json(folder / f"{name}.json", record | {"provenance": provenance(**_plain(scale))})
    return {"name": name, "cells": len(cells), "missing": len(missing), "files": [str(file) for file in files]}


def _plain(scale: Scale) -> dict[str, Any]:
    """As JSON data."""
    return json.loads(json.dumps(scale, default=lambda value: dict(vars(value))))
