"""From a user's own log to a causal graph, a world model, its uncertainty and a policy, without any simulator.

The folder of a fit is complete in itself and may be moved:

    fit.json        what was asked, and what came out
    datasets/       the log as a dataset (Minari), checked
    graph/          graph.json with a p-value for every edge, and pictures
    run/            the trained models of all seeds; `load_policy` makes an agent of it
    report/         a page that shows all of it
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

from because_rl.algorithms.because import Because, mask_cache_key
from because_rl.algorithms.registry import make_method
from because_rl.datasets.load import load
from because_rl.datasets.paths import dataset_path
from because_rl.datasets.user_dataset import add_action_codes, no_policy_reason, prepare_log, write_dataset
from because_rl.datasets.user_log import read_log
from because_rl.discovery.mask import CausalMask
from because_rl.errors import BecauseError
from because_rl.evaluation.held_out import held_out_accuracy, held_out_uncertainty
from because_rl.factors import FactorSpec
from because_rl.io import exclusive, read_json, write_json
from because_rl.planning.agent import PlannerAgent
from because_rl.provenance import provenance
from because_rl.report.run_page import write_page
from because_rl.runs.discover import discover_dataset
from because_rl.runs.train import METRICS, load_agent, read_run, train
from because_rl.training.run import Report, Run
from because_rl.transitions import Transitions

FIT = "fit.json"
SETTINGS: dict[str, Any] = {
    **{"hidden": 64, "batch": 128, "world_steps": 2000, "energy_steps": 500},
    **{"behaviour_steps": 1000, "value_steps": 2000, "planner.population": 128},
}
"""For logs of some thousand steps and some ten columns, in minutes; larger ones deserve more."""
DATASET = "own/log-v0"
"""The dataset's id under the folder, which is its root."""


def fit(
    data: str | Path,
    factors: Path | None,
    folder: Path,
    root: Path | None = None,
    seeds: Sequence[int] = range(3),
    overrides: Mapping[str, Any] | None = None,
    goal: Sequence[float] | None = None,
    report: Report = lambda stage, done, total, metrics: None,
    resume: bool = False,
    chunk: int = 100,
) -> dict[str, Any]:
    """Fit BECAUSE to a log; `resume` goes on with a fit that was stopped. `goal`: one for all episodes."""
    begin = time.monotonic()
    folder = Path(folder)
    log = read_log(data, root)
    spec = add_action_codes(log, _spec(factors, log.factors, log.name))
    log = prepare_log(log, spec, goal)
    settings = SETTINGS | dict(overrides or {})
    method = make_method("because", settings)
    assert isinstance(method, Because)
    asked: dict[str, Any] = {
        "data": log.name,
        "data_sha256": log.sha256,
        "factors": spec.to_dict(),
        "settings": asdict(method.config),
        "seeds": [int(seed) for seed in seeds],
        "chunk": chunk,
    }
    with exclusive(folder.parent / f".{folder.name}.lock", f"fitting in {folder}"):
        _agree(folder, json.loads(json.dumps(asked)), resume)
        if not (dataset_path(DATASET, folder) / "data" / "metadata.json").exists():
            write_dataset(log, dataset_path(DATASET, folder))
        write_json(folder / FIT, {"asked": asked})
        seen = load(DATASET, folder, _for_learning(spec))
        mask = None if method.config.mask == "full" else _graph(folder, method, seen, report)
        shared, run = folder / "shared", folder / "run"
        trained = train(
            *("because", DATASET, folder, run, asked["seeds"], settings, report, True),
            factors=seen.factors,
            chunk=chunk,
            shared=shared,
        )
        shutil.rmtree(shared, ignore_errors=True)
        result = _result(folder, seen, mask) | {"data": asked["data"], "stages": trained["stages"]}
        result["report"] = str(_page(folder, mask, result))
        result["seconds"] = round(time.monotonic() - begin, 1)
        write_json(folder / FIT, {"asked": asked, "result": result, "provenance": provenance()})
    return {"folder": str(folder)} | result


def load_policy(folder: str | Path) -> PlannerAgent:
    """The agent of a finished fit: ``begin(worlds, seed)``, then ``act(state, goal, left)`` at every step."""
    folder = Path(folder)
    if why := no_policy_reason(FactorSpec.from_dict(_read(folder)["asked"]["factors"])):
        raise BecauseError(
            f"{folder} holds no policy: {why}.",
            need="a goal, and actions that can be planned.",
            fix="fit again with another factor spec; load_model gives the world model.",
        )
    return load_model(folder)


def load_model(folder: str | Path) -> PlannerAgent:
    """The same, for its models alone: ``imagine`` of its `learned` foretells a step and its uncertainty."""
    agent = load_agent(Path(folder) / "run", Path(folder))
    assert isinstance(agent, PlannerAgent)
    return agent


# The steps of a fit ------------------------------------------------------------------------------------


def _spec(factors: Path | None, own: FactorSpec | None, name: str) -> FactorSpec:
    if factors is not None:
        return FactorSpec.from_file(factors)
    if own is not None:
        return own
    raise BecauseError(
        f"There is no factor spec for {name}.",
        need="a file that names the columns.",
        fix="let 'because factors DATA -o factors.yaml' propose one, edit it, and pass it with --factors.",
    )


def _agree(folder: Path, asked: Mapping[str, Any], resume: bool) -> None:
    if not (folder / FIT).exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise BecauseError(f"{folder} is not empty.", need="a new folder.", fix="choose another with -o FOLDER.")
        return
    known = _read(folder)
    if other := [name for name in asked if known["asked"].get(name) != asked[name]]:
        raise BecauseError(
            f"{folder} holds another fit, which differs in {', '.join(other)}.",
            need="the same data, factors, goal, settings and seeds.",
            fix="choose another folder with -o FOLDER, or remove this one.",
        )
    if not resume:
        raise BecauseError(
            f"{folder} holds this fit already{'' if 'result' in known else ', unfinished'}.",
            need="a new folder.",
            fix="pass --resume to go on with it, or choose another with -o FOLDER.",
        )


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / FIT).is_file():
        raise BecauseError(f"There is no fit in {folder}.", need=f"a folder with {FIT}.", fix="run 'because fit'.")
    known = read_json(folder / FIT)
    if not isinstance(known, dict) or not isinstance(known.get("asked"), dict):
        raise BecauseError(f"{folder / FIT} does not describe a fit.", need="the file as written.", fix="fit again.")
    return known


def _for_learning(spec: FactorSpec) -> FactorSpec:
    """The spec as the method gets it. One code for all actions tells it not to learn how to draw them: where no
    policy can be planned there is nothing to draw for."""
    if spec.codes is None and no_policy_reason(spec):
        return replace(spec, codes=((0.0,) * spec.action_size,))
    return spec


def _graph(folder: Path, method: Because, data: Transitions, report: Report) -> CausalMask:
    """Discover once, with p-values and pictures, and leave the mask where training finds it."""
    config, shared = method.config, folder / "shared"
    written = folder / "graph" / "graph.json"
    if written.exists():
        return CausalMask.from_dict(read_json(written))
    knobs = {"test": config.test, "threshold": config.threshold, "batches": config.batches}

    def masks(done: int, total: int) -> None:
        report("graph", done, total, {})

    mask = CausalMask.from_dict(discover_dataset(DATASET, folder, None, folder / "graph", masks, **knobs))
    weights = {"weights": mask.weight.astype(np.float32)}
    Run([0], shared=shared).cached("mask", lambda: weights, mask_cache_key(config, data))
    return mask


def _result(folder: Path, data: Transitions, mask: CausalMask | None) -> dict[str, Any]:
    agent = load_model(folder)
    spec = FactorSpec.from_dict(_read(folder)["asked"]["factors"])
    why = no_policy_reason(spec)
    ends = np.append(data.episode[1:] != data.episode[:-1], True)
    return {
        "episodes": int(ends.sum()),
        "transitions": len(data),
        "graph": None if mask is None else {target: list(mask.graph.parents(target)) for target in mask.targets},
        "untestable": []
        if mask is None
        else [[e["from"], e["to"]] for e in mask.rows() if e["status"] == "untestable"],
        "accuracy": held_out_accuracy(agent, data),
        "uncertainty": held_out_uncertainty(agent, data),
        "goal_reached": float(data.terminated[ends].mean()) if spec.goal else None,
        "policy": None if why else str(folder / "run"),
        "why_no_policy": why or None,
    }


def _page(folder: Path, mask: CausalMask | None, result: Mapping[str, Any]) -> Path:
    run = read_run(folder / "run")
    lines = (folder / "run" / METRICS).read_text().splitlines()
    tables = {"Overview": [{"": key, " ": value} for key, value in overview(result)]}
    tables["Held-out accuracy, by factor"] = accuracy_rows(result["accuracy"])
    if mask is not None:
        tables["Edges"] = edge_rows(mask)
    told = json.dumps({"config": run["config"], "provenance": run["provenance"]}, indent=1)
    graph = None if mask is None else mask.graph
    title = f"{result['data']}, {len(run['seeds'])} seed{'s' * (len(run['seeds']) > 1)}"
    return write_page(folder / "report", title, graph, [json.loads(line) for line in lines], [], told, tables)


def overview(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What there is to say in a line each."""
    reached, seen = result["goal_reached"], result["uncertainty"]
    rows = [("log", f"{result['transitions']} transitions in {result['episodes']} episodes, every tenth held out")]
    if reached is not None:
        rows.append(("episodes that end at their goal", f"{reached:.0%}"))
    rows.append(("uncertainty of held-out steps", f"{seen['held_out']:.2f} (0 to 1)"))
    rows.append(("... of steps mixed from several", f"{seen['mixed']:.2f}"))
    policy = f"none: {result['why_no_policy']}" if result["policy"] is None else result["policy"]
    if reached == 0:
        policy += " (no logged episode reaches its goal: expect little of it)"
    return [*rows, ("policy", policy)]


def graph_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The causes of each factor; in brackets those that these data cannot test, which are kept to be safe."""
    doubted = {tuple(edge) for edge in result["untestable"]}
    return [
        {"next": target, "causes": ", ".join(f"[{c}]" if (c, target) in doubted else c for c in causes)}
        for target, causes in (result["graph"] or {}).items()
    ]


def accuracy_rows(accuracy: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [
        {"factor": row["factor"], "type": row["type"], "measure": row["measure"]}
        | {"held out": "never changes" if row["value"] is None else _short(row["value"])}
        | {"worst seed": "" if row["value"] is None else _short(min(row["per_seed"]))}
        | {"if nothing changed": "" if row["unchanged"] is None else _short(row["unchanged"])}
        for row in accuracy
    ]


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # never -0.000


def edge_rows(mask: CausalMask) -> list[dict[str, str]]:
    """Of the edges that are kept, or that some batch of the data kept."""
    return [
        {"cause": e["from"], "effect": f"next {e['to']}", "verdict": e["status"], "p": f"{e['p']:.2g}"}
        | {"effect size": f"{e['effect']:.3f}", "weight": f"{e['weight']:.2f}"}
        for e in mask.rows()
        if e["weight"] > 0
    ]
