"""From a user's own log to a causal graph, a world model, its uncertainty and a policy, without any simulator.

The folder of a fit is complete in itself and may be moved:

    fit.json        the settings and the results
    datasets/       the log as a dataset (Minari), checked
    graph/          graph.json with a p-value for every edge, and pictures; until then what is known of it so far
    run/            the trained models of all seeds; `because_rl.load_agent` finds the agent in it
    factors.npz     of a log of pictures: what the page shows of each factor that was read from them
    report/         a page with the results

Of a log that is read as a sample, the dataset is the sample: it decides the graph, which the other episodes check, and
the held-out episodes. The world model is trained on rows of all episodes.

Of a log of pictures, an encoder reads factors first (`because_rl.vision.encoder`); the dataset has their columns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.algorithms.because import Because
from because_rl.algorithms.registry import load_agent, make_method
from because_rl.constraints import Constraint, parse_constraints
from because_rl.datasets.columns import Columns
from because_rl.datasets.large_log import SAMPLE_ROWS
from because_rl.datasets.load import Rest, load
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.pictures import holds_pictures
from because_rl.datasets.row_store import RowStore, open_row_store, write_row_store
from because_rl.datasets.tables import parquet_parts
from because_rl.datasets.user_dataset import complete_spec, prepare_log, write_dataset
from because_rl.datasets.user_log import Log, read_log
from because_rl.discovery.discover import choose_test, make_test
from because_rl.discovery.mask import CausalMask, check_edges
from because_rl.errors import BecauseError
from because_rl.evaluation.coverage import thin_contexts
from because_rl.evaluation.held_out import held_out_accuracy, imagined_steps
from because_rl.evaluation.imagined_policy import imagined_policy, logged_violations
from because_rl.factors import FactorSpec
from because_rl.graph import Edge
from because_rl.io import exclusive, file_sha256, remove_folder, remove_leftovers, sha256, write_json
from because_rl.planning.agent import PlannerAgent
from because_rl.planning.proposals import no_policy_reason
from because_rl.provenance import provenance
from because_rl.records import read_record
from because_rl.runs.discover import UNFINISHED, discover_dataset
from because_rl.runs.fit_page import FACTORS, write_fit_page
from because_rl.runs.folder import read_sufficiency
from because_rl.runs.pictures import read_picture_log
from because_rl.runs.train import train
from because_rl.training.run import Report
from because_rl.transitions import Transitions
from because_rl.vision.agent import without_encoder
from because_rl.vision.views import view_factors, write_factor_views

FIT = "fit.json"
SETTINGS: dict[str, Any] = {
    **{"hidden": 64, "batch": 128, "world_steps": 2000, "energy_steps": 500},
    **{"behaviour_steps": 1000, "value_steps": 2000, "planner.population": 128},
}
"""For logs of a few thousand steps and about ten columns: takes minutes. Larger logs deserve more steps."""
STORED = "rows"
"""Of a large log, until the fit is complete: the rows to train on."""
DATASET = "own/log-v0"
"""The id of the log as a dataset; its root is the folder of the fit."""


def fit(
    data: Any,
    factors: FactorSpec | Path | None,
    folder: Path,
    root: Path | None = None,
    seeds: Sequence[int] = range(3),
    overrides: Mapping[str, Any] | None = None,
    goal: Sequence[float] | None = None,
    report: Report = lambda stage, done, total, metrics: None,
    resume: bool = False,
    chunk: int = 100,
    *,
    columns: Columns | None = None,
    sample_rows: int = SAMPLE_ROWS,
    force: Iterable[Edge] = (),
    forbid: Iterable[Edge] = (),
    constraints: Iterable[str | Constraint] | str = (),
    objective: str = "",
    hold: bool = False,
) -> dict[str, Any]:
    """Fit BECAUSE to a log.

    Args:
        data: a CSV, Parquet, NPZ or HDF5 file; the folder or id of a local Minari dataset; a folder of pictures with
            a table; a pandas or Polars frame; or a dict of arrays or columns.
        factors: a factor spec or its file; None: the one in the data.
        folder: for all results.
        root: where the dataset is looked up, if `data` is an id.
        seeds: trained as one program.
        overrides: settings of BECAUSE, beside those in SETTINGS; values may be text.
        goal: one goal for all episodes, a number per goal column; None: the goals in the log.
        report: called after every chunk with (stage, steps done, steps in all, mean metrics).
        resume: continue a fit that was stopped.
        chunk: steps between two checkpoints.
        columns: the roles of columns in a table, beside those that the factor file names.
        sample_rows: of Parquet with more rows, about as many are read, in whole episodes drawn at random; 0: all.
        force: edges (cause, effect) of the graph that are kept whatever the data say.
        forbid: edges that are left out whatever the data say.
        constraints: what every step of the policy must satisfy, such as 'temp<=80', beside those of the factor spec.
        objective: what the policy is for: 'goal', 'reward' or 'both'; '': the goal, if there is one, and else rewards.
        hold: the goal is to be held, not only to be reached.

    Returns:
        The folder and the result, as in fit.json: episodes, transitions, notes, graph, graph_rows, undetermined,
        sufficiency, accuracy, uncertainty, events, thin, constraints, imagined_policy, goal_reached, goal_held,
        log_return, policy, why_no_policy, data, stages, report, seconds.
    """
    begin = time.monotonic()
    folder = Path(folder)
    columns = columns or Columns()
    pictures, encoder = None, None
    if holds_pictures(data, root):
        _check_empty(folder)  # training an encoder takes a minute
        given = [name for name, value in (("--factors", factors), ("--goal", goal)) if value is not None]
        log, pictures, encoder = read_picture_log(data, root, columns, given, report)
    else:
        if factors is not None and not isinstance(factors, FactorSpec):
            columns = columns.over(Columns.from_file(factors))
        log = read_log(data, root, columns, sample_rows)
    spec = complete_spec(log, _read_spec(factors, log.factors, log.name), objective)
    if hold and not spec.goal:
        raise BecauseError("There is no goal to hold.", need="a goal.", fix="add 'goal' to the factor file.")
    if hold:
        spec = replace(spec, goal=tuple(replace(wanted, hold=True) for wanted in spec.goal))
    spec = replace(spec, constraints=(*spec.constraints, *parse_constraints(constraints)))
    log = prepare_log(log, spec, goal)
    if encoder is not None and not spec.goal:
        encoder = encoder.without_goal()
    edges = {"force": list(force), "forbid": list(forbid)}
    settings = SETTINGS | dict(overrides or {})
    method = make_method("because", settings)
    assert isinstance(method, Because)
    asked: dict[str, Any] = {
        "data": log.name,
        "data_sha256": _data_sha256(log),
        "factors": spec.to_dict(),
        "settings": asdict(method.config),
        "seeds": [int(seed) for seed in seeds],
        "chunk": chunk,
    } | {name: [list(edge) for edge in given] for name, given in edges.items() if given}
    if method.config.mask != "full":
        _check_discovery(log, spec, method, edges)
    elif any(edges.values()):
        raise BecauseError(
            "Got edges for a full mask.", need="a graph.", fix="drop --force and --forbid, or mask=full."
        )
    with exclusive(folder.parent / f".{folder.name}.lock", f"fitting in {folder}"):
        remove_leftovers(folder)
        _check_folder(folder, json.loads(json.dumps(asked)), resume)
        if not (folder / FIT).exists():
            write_json(folder / FIT, {"asked": asked})  # first: what follows can be resumed
        if not (dataset_path(DATASET, folder) / "data" / "metadata.json").exists():
            remove_leftovers(dataset_path(DATASET, folder).parent)
            write_dataset(log, dataset_path(DATASET, folder))
        dataset, stored = load(DATASET, folder, spec), None
        if log.large is not None and "result" not in read_fit(folder):
            stored = _store_rows(folder, replace(dataset, rest=Rest(log, spec, goal)), report)
        mask = None if method.config.mask == "full" else _discover(folder, method, report, edges, stored)
        trained = train(
            *("because", DATASET, folder, folder / "run", asked["seeds"], settings, report, True),
            factors=dataset.factors,
            chunk=chunk,
            mask=mask,
            stored=stored,
            encoder=encoder,
        )
        if pictures is not None and encoder is not None:
            write_factor_views(folder / FACTORS, view_factors(encoder, pictures))
        result = _result(folder, dataset, mask, report) | {"data": asked["data"], "stages": trained["stages"]}
        result["notes"] = list(log.notes)
        if log.large is not None:
            result["sample"] = log.large.describe()
            result["rest"] = None if mask is None else mask.settings["rest"]
        result["report"] = str(write_fit_page(folder, result))
        result["seconds"] = round(time.monotonic() - begin, 1)
        write_json(folder / FIT, {"asked": asked, "result": result, "provenance": provenance()})
        remove_folder(folder / STORED)  # as large as the log, which it can be made from
    return {"folder": str(folder)} | result


# The steps of a fit ------------------------------------------------------------------------------------


def _read_spec(factors: FactorSpec | Path | None, own: FactorSpec | None, name: str) -> FactorSpec:
    if isinstance(factors, FactorSpec):
        return factors
    if factors is not None:
        return FactorSpec.from_file(factors)
    if own is not None:
        return own
    raise BecauseError(
        f"There is no factor spec for {name}.",
        need="a file that names the columns.",
        fix="let 'because factors DATA -o factors.yaml' propose one, edit it, and pass it with --factors.",
    )


def _check_folder(folder: Path, asked: Mapping[str, Any], resume: bool) -> None:
    """Refuse a folder that holds other files or another fit, and the same fit unless `resume` is set."""
    _check_empty(folder)
    if not (folder / FIT).exists():
        return
    record = read_fit(folder)
    kept = (folder / "graph" / "graph.json").exists() or any((folder / "run").glob("*.npz"))
    if not kept and record["asked"] != asked:  # another fit that has come to nothing yet, perhaps by its settings
        for part in ("datasets", "graph", "run", STORED):
            remove_folder(folder / part)
        (folder / FIT).unlink()
        return
    if other := [name for name in asked if record["asked"].get(name) != asked[name]]:
        raise BecauseError(
            f"{folder} holds another fit, which differs in {', '.join(other)}.",
            need="the same data, factors, goal, settings and seeds.",
            fix="choose another folder with -o FOLDER, or remove this one.",
        )
    if not resume:
        raise BecauseError(
            f"{folder} holds this fit already{'' if 'result' in record else ', unfinished'}.",
            need="a new folder.",
            fix="pass --resume to continue it, or choose another with -o FOLDER.",
        )


def _check_empty(folder: Path) -> None:
    """Refuse a folder that holds other files than a fit."""
    if not (folder / FIT).exists() and folder.is_dir() and any(folder.iterdir()):
        raise BecauseError(f"{folder} is not empty.", need="a new folder.", fix="choose another with -o FOLDER.")


def read_fit(folder: Path) -> dict[str, Any]:
    """The content of fit.json."""
    if not (folder / FIT).is_file():
        raise BecauseError(f"There is no fit in {folder}.", need=f"a folder with {FIT}.", fix="run 'because fit'.")
    return read_record(folder / FIT, "fit")


def _check_discovery(log: Log, spec: FactorSpec, method: Because, edges: Mapping[str, list[Edge]]) -> None:
    """Refuse what discovery would refuse later, before anything is written."""
    test = make_test(method.config.test or choose_test(spec))
    test.check_count(sum(len(episode["actions"]) for episode in log.episodes))
    check_edges(edges["force"], edges["forbid"], spec.inputs, spec.targets)


def _data_sha256(log: Log) -> str:
    """Of the episodes, and of the files of which they are a sample."""
    parts = [] if log.large is None else parquet_parts(log.large.path)
    return sha256("".join([log.sha256, *map(file_sha256, parts)]).encode()) if parts else log.sha256


def _store_rows(folder: Path, sample: Transitions, report: Report) -> RowStore:
    """All rows of a large log that are trained on, written once."""
    if (folder / STORED).exists():
        return open_row_store(folder / STORED, sample.factors)
    remove_leftovers(folder)
    return write_row_store(folder / STORED, sample, lambda done, total: report("reading", done, total, {}))


def _discover(
    folder: Path, method: Because, report: Report, edges: Mapping[str, list[Edge]], rest: RowStore | None
) -> CausalMask:
    """Discover the graph once, with p-values and pictures."""
    config = method.config
    written = folder / "graph" / "graph.json"
    if written.exists():
        remove_folder(written.parent / UNFINISHED)
        return CausalMask.from_dict(read_record(written, "mask"))
    settings = {"test": config.test, "threshold": config.threshold, "batches": config.batches, **edges}

    def progress(done: int, total: int) -> None:
        report("graph", done, total, {})

    def progress_of_rest(done: int, total: int) -> None:
        report("other episodes", done, total, {})

    where = DATASET, folder, None, folder / "graph"
    result = discover_dataset(*where, progress, rest=rest, report_rest=progress_of_rest, **settings)
    return CausalMask.from_dict(result)


def _result(folder: Path, data: Transitions, mask: CausalMask | None, report: Report) -> dict[str, Any]:
    agent = without_encoder(load_agent(folder))
    assert isinstance(agent, PlannerAgent)
    imagined = imagined_steps(agent, data)
    spec = FactorSpec.from_dict(read_fit(folder)["asked"]["factors"])
    why = no_policy_reason(spec)

    def progress(done: int, total: int) -> None:
        report("policy in the model", done, total, {})

    at_goal = np.asarray(spec.reached(data.next_state, data.goal))
    ends = np.append(data.episode[1:] != data.episode[:-1], True)
    return {
        "episodes": int(ends.sum()),
        "transitions": len(data),
        "graph": None if mask is None else {target: list(mask.graph.parents(target)) for target in mask.targets},
        "graph_rows": None if mask is None else mask.settings.get("rows_used", len(data)),
        "undetermined": []
        if mask is None
        else [
            {name: row.get(name, "") for name in ("from", "to", "kept", "why", "needs")}
            for row in mask.rows()
            if row["status"] == "undetermined"
        ],
        "sufficiency": read_sufficiency(folder / "run"),
        "accuracy": held_out_accuracy(agent, data),
        "uncertainty": imagined.uncertainty,
        "events": imagined.events,
        "thin": thin_contexts(data),
        "constraints": logged_violations(data),
        "imagined_policy": None if why else imagined_policy(agent, data, report=progress),
        "goal_reached": float(at_goal[ends].mean()) if spec.goal else None,
        "goal_held": float(at_goal.mean()) if spec.holds_goal else None,
        "log_return": float(np.bincount(data.episode, data.reward).mean()) if spec.outcomes else None,
        "policy": None if why else str(folder / "run"),
        "why_no_policy": why or None,
    }
