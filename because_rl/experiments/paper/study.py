"""What the experiments share: how large they are, the cells they need, what is there of them, what they write.

An experiment is two functions: `jobs` says which cells of the common sweep it needs, `make` turns those that are there
into rows, text and a figure. A job is one training; what several experiments ask of it are cells of the same job.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from because_rl.experiments.grid.compare import Runs
from because_rl.experiments.grid.grid import PACKAGE, reached
from because_rl.experiments.grid.grid import jobs as jobs_of
from because_rl.experiments.grid.runner import Job
from because_rl.experiments.paper.scale import Scale
from because_rl.io import sha256, write_json, write_text
from because_rl.provenance import provenance
from because_rl.report.graph_figure import save
from because_rl.statistics import Estimate, mean


class Product(NamedTuple):
    rows: list[dict[str, Any]]
    """data, one column per key"""
    text: str
    """the table, and what is to be said of it, as Markdown"""
    figure: Figure | None = None


class Experiment(NamedTuple):
    title: str
    jobs: Callable[[Scale], list[Job]]
    make: Callable[[Scale, list[Job], Mapping[str, dict[str, Any]]], Product]
    """(scale, its jobs, the cells that are there by key)"""


# The cells ---------------------------------------------------------------------------------------------


def trainings(scale: Scale, methods: Iterable[str] | Mapping[str, Mapping[str, Any]], **axes: Any) -> list[Job]:
    """The jobs of a grid: methods by name, or rows of a table with a 'method' and settings of their own.

    No table or figure of the paper shows subcases of a split, so none waits for them."""
    told = methods if isinstance(methods, Mapping) else scale.methods(methods)
    grid = replace(scale.grid, methods=dict(told), subcases=False, **axes)
    return jobs_of(grid) if grid.methods and grid.worlds else []


def also(jobs: Sequence[Job], measure: str, modules: Sequence[str] = (), **what: Any) -> list[Job]:
    """The same trainings, to be measured in another way too: `what` says how, `modules` are the code that does it."""
    more = []
    for job in jobs:
        plain = next(iter(job.cells.values()))
        told = {key: plain[key] for key in plain if key not in ("split", "episodes", "label")}
        told |= {"measure": measure, "source": source(*modules), **what}
        more.append(
            Job(job.key, {**job.cells, address(f"{job.key}-{measure}", told): {"label": plain["label"], **told}})
        )
    return more


def alone(name: str, measure: str, modules: Sequence[str], **what: Any) -> Job:
    """A job without a training."""
    told = json.loads(json.dumps({"measure": measure, "source": source(*modules), **what}))
    key = address(name, told)
    return Job(key, {key: {"label": measure, **told}})


def address(name: str, told: Mapping[str, Any]) -> str:
    return f"{name}-{sha256(json.dumps(told, sort_keys=True).encode())[:16]}"


@cache
def source(*modules: str) -> str:
    """A hash of these modules of the package and of what they import from it."""
    digest = hashlib.sha256()
    for file in sorted(set().union(*map(reached, modules))):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def merged(*lists: Iterable[Job]) -> list[Job]:
    """Every job once, with all the cells that anybody wants of it."""
    found: dict[str, Job] = {}
    for job in (job for jobs in lists for job in jobs):
        found[job.key] = Job(job.key, {**(found[job.key].cells if job.key in found else {}), **job.cells})
    return list(found.values())


class Row(NamedTuple):
    """The success of one method on one dataset and split, all its seeds."""

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
    """Of the cells that tell of success; several cells may share the seeds of one row among them."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells.values():
        if "measure" not in cell:
            groups.setdefault((cell["label"], cell["dataset"], cell["split"]), []).append(cell)
    rows = []
    for (label, _, split), parts in groups.items():
        runs = sorted(
            (seed, rate, solved)
            for part in parts
            for seed, rate, solved in zip(part["seeds"], part["per_seed"], part["outcomes"], strict=True)
        )
        seeds, rates, outcomes = (list(column) for column in zip(*runs, strict=True))
        rows.append(Row(label, parts[0]["recipe"], split, seeds, Runs(rates, outcomes), mean(rates)))
    return rows


# What is written ---------------------------------------------------------------------------------------


def write(
    name: str, experiment: Experiment, scale: Scale, jobs: Sequence[Job], cells: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """``NAME.csv``, ``NAME.md``, for a figure ``NAME.svg`` and ``NAME.png``, and ``NAME.json``: where all came from."""
    product = experiment.make(scale, list(jobs), cells)
    missing = sorted({key for job in jobs for key in job.cells} - set(cells))
    other = sum(cell.get("code") != told.get("code") for cell, told in _pairs(jobs, cells))
    notes = [f"{len(missing)} of {len(missing) + len(cells)} results are missing."] if missing else []
    notes += [f"{other} results were computed by another version of the source."] if other else []
    text = "\n".join([f"# {experiment.title}", "", product.text.strip(), *(f"\n{note}" for note in notes), ""])
    files = [folder / f"{name}.csv", folder / f"{name}.md"]
    write_text(files[0], _csv(product.rows))
    write_text(files[1], text)
    if product.figure is not None:
        for suffix in (".svg", ".png"):
            files.append(folder / f"{name}{suffix}")
            save(product.figure, files[-1])
    told = {"name": name, "title": experiment.title, "cells": sorted(cells), "missing": missing}
    write_json(folder / f"{name}.json", told | {"provenance": provenance(**_plain(scale))})
    return {"name": name, "cells": len(cells), "missing": len(missing), "files": [str(file) for file in files]}


def _pairs(jobs: Sequence[Job], cells: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(cells[key], told) for job in jobs for key, told in job.cells.items() if key in cells]


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    lines.writeheader()
    lines.writerows(rows)
    return text.getvalue()


def _plain(scale: Scale) -> dict[str, Any]:
    return json.loads(json.dumps(scale, default=lambda value: dict(vars(value))))
