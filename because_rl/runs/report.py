"""The page of a run: from its folder, its dataset and, if given, the results of the oracle planner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from because_rl.datasets.paths import current_id
from because_rl.datasets.pictures import load_pictures
from because_rl.discovery.mask import CausalMask, current_row, sufficiency_text
from because_rl.envs.tasks import SPLITS
from because_rl.evaluation.energy_map import energy_maps
from because_rl.evaluation.held_out import Imagined, held_out_accuracy, imagined_steps
from because_rl.evaluation.policy_films import PolicyFilm, policy_films
from because_rl.evaluation.scenes import Scenes
from because_rl.graph import Graph, score
from because_rl.io import read_arrays, unpack_json
from because_rl.planning.agent import PlannerAgent
from because_rl.records import check_record, read_record
from because_rl.report.grid_data import Curves, Film, Grid, Maps, Rate, Result
from because_rl.report.run_page import RunReport, run_settings, write_run_page
from because_rl.report.task_page import dataset_name
from because_rl.runs.folder import read_metrics, read_run, read_sufficiency
from because_rl.runs.train import load_agent, load_run_data
from because_rl.statistics import wilson
from because_rl.transitions import Transitions
from because_rl.vision.agent import PictureAgent, without_encoder
from because_rl.vision.views import view_factors

SECONDS = 15.0
"""Default time to spend on new pictures."""
PARTS = ("data", "models", "films", "page")

Missing = list[tuple[str, str]]
"""What is missing on the page, and the command that makes it."""


def report_run(
    folder: Path,
    output: Path,
    root: Path | None = None,
    oracle: Path | None = None,
    seconds: float = SECONDS,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Write the page of the run in `folder` into the folder `output`.

    Args:
        folder: of the run; films are kept in its subfolder ``pictures``.
        output: for ``index.html``.
        root: where its dataset lives.
        oracle: the file that ``because oracle -o FILE`` wrote.
        seconds: time to spend on new films.
        report: called with (parts done, parts in all).

    Returns:
        The page's path, the rows of success (policy, split, success, low95, high95), what is missing on the page, and
        the seconds it took.
    """
    begin = time.monotonic()
    report(0, len(PARTS))
    run, missing = read_run(folder), Missing()
    data = load_run_data(folder, root)
    evaluations = [
        read_record(file, "evaluation") for split in SPLITS if (file := folder / f"evaluation-{split}.json").exists()
    ]
    report(1, len(PARTS))

    agent = load_agent(folder) if run["finished"] else None
    encoder = agent.encoder if isinstance(agent, PictureAgent) else None
    behind = None if agent is None else without_encoder(agent)
    planner = behind if isinstance(behind, PlannerAgent) else None
    if agent is None:
        missing.append(("the models: training is not finished", "because train ... --resume"))
    report(2, len(PARTS))
    scenes = Scenes(folder / "pictures", seconds)
    try:
        films = {e["split"]: policy_films(e, scenes) for e in evaluations}
    finally:
        scenes.close()
    report(3, len(PARTS))
    if run["world"] is not None and len(evaluations) < len(SPLITS):
        splits = "".join(split for split in SPLITS if split not in {e["split"] for e in evaluations})
        missing.append((f"success in split {' and '.join(splits)}", f"because evaluate {folder} --split {splits}"))
    if scenes.left_out:
        why = f" ({scenes.problem})" if scenes.problem else ""
        missing.append((f"{scenes.left_out} films{why}", f"because report {folder} --pictures 600"))
    results = [_result(run, data, evaluation) for evaluation in evaluations]
    grid = Grid(
        folder.resolve().name,
        results,
        focus=run["method"],
        oracle=_oracle(oracle, run["world"], missing),
        behaviour={run["dataset"]: _behaviour(data)},
        graphs=[graph] if (graph := _read_graph(folder, run, data)) else [],
        curves=[Curves.from_metrics(run["method"], run["dataset"], metrics)]
        if (metrics := read_metrics(folder))
        else [],
        maps=[] if encoder is not None else _maps(run, planner, data),
        films={r.task: [_film(run, f) for f in films.get(r.split, ()) if f.picture] for r in results},
        missing=missing,
    )
    imagined = Imagined({}, []) if planner is None else imagined_steps(planner, data)
    content = RunReport(
        f"{run['method']} on {dataset_name(run['dataset'])}",
        grid,
        facts=_facts(run, data, planner, grid.graphs, read_sufficiency(folder)),
        seeds=run["seeds"],
        factors=() if encoder is None else view_factors(encoder, load_pictures(current_id(run["dataset"]), root)),
        film_notes={r.task: film_notes(r, films.get(r.split, ()), scenes.problem) for r in results},
        accuracy=[] if planner is None else held_out_accuracy(planner, data),
        uncertainty=imagined.uncertainty,
        events=imagined.events,
        settings=run_settings(run),
    )
    page = write_run_page(output, content)
    report(len(PARTS), len(PARTS))
    return {
        "page": str(page),
        "success": _success_rows(grid),
        "missing": [{"what": what, "command": command} for what, command in missing],
        "seconds": round(time.monotonic() - begin, 2),
    }


# Success -----------------------------------------------------------------------------------------------


def _result(run: Mapping[str, Any], data: Transitions, evaluation: Mapping[str, Any]) -> Result:
    policy = data.recipe.get("behaviour", "")
    return Result(
        method=run["method"],
        task=f"{run['world']}-{evaluation['split']}-{policy}",
        world=run["world"],
        split=evaluation["split"],
        policy=policy,
        dataset=run["dataset"],
        spurious=evaluation["spurious"],
        rate=Rate(*(evaluation[name] for name in ("success", "low95", "high95"))),
        per_seed=evaluation["per_seed"],
        outcomes=evaluation.get("outcomes", ()),
        one_step=(),
        cells=(),
    )


def _behaviour(data: Transitions) -> Rate:
    low, high = wilson(data.success_rate, data.episodes)
    return Rate(data.success_rate, float(low), float(high))


def _oracle(file: Path | None, world: str | None, missing: Missing) -> dict[tuple[str, str], Rate]:
    if file is None:
        if world is not None:
            command = f"because oracle --world {world} -o oracle.json, then because report --oracle oracle.json"
            missing.append(("the oracle planner, a ceiling for all methods", command))
        return {}
    rows = [row for row in read_record(file, "oracle table")["rows"] if row["world"] == world]
    return {(row["world"], row["split"]): Rate(row["success"], row["low95"], row["high95"]) for row in rows}


def _success_rows(grid: Grid) -> list[dict[str, Any]]:
    rates = [("behaviour", "I", rate) for rate in grid.behaviour.values()]
    rates += [(r.method, r.split, r.rate) for r in grid.results]
    rates += [("oracle planner", split, rate) for (_, split), rate in grid.oracle.items()]
    return [{"policy": p, "split": s, "success": r.value, "low95": r.low, "high95": r.high} for p, s, r in rates]


# Films -------------------------------------------------------------------------------------------------


def _film(run: Mapping[str, Any], film: PolicyFilm) -> Film:
    assert film.picture is not None
    caption = f"{'Solved' if film.solved else 'Failed'}: scene {film.scene}, seed {run['seeds'][film.seed]}."
    if film.picture.reached != film.solved:
        caption += " (In the simulator that draws it, rounding led to the other outcome.)"
    return Film(caption, film.picture)


def film_notes(result: Result, films: Sequence[PolicyFilm], problem: str = "") -> list[str]:
    """Sentences on the films of a split that are not there; `problem`: why none could be drawn."""
    if not result.outcomes or not films:
        return ["No films: an older version evaluated this run. Evaluate it again to see its policy."]
    notes, scenes = [], len(result.outcomes[0])
    whole = f"all {scenes} scenes" if scenes > 1 else "the only scene"
    if all("0" not in seed for seed in result.outcomes):
        notes.append(f"Every seed solved {whole}: there is no failure to show.")
    if all("1" not in seed for seed in result.outcomes):
        notes.append(f"Every seed failed {whole}: there is no success to show.")
    if left_out := [film for film in films if film.picture is None]:
        words = " and ".join("a solved scene" if film.solved else "a failed scene" for film in left_out)
        why = problem or "there was no time to draw it; the overview names the command that does."
        notes.append(f"No film of {words}: {why}")
    return notes


# The models --------------------------------------------------------------------------------------------


def _read_graph(folder: Path, run: Mapping[str, Any], data: Transitions) -> dict[str, Any] | None:
    """The graph of a run, as in a graph.json; None if its method has none or keeps every edge.

    It has a score if the dataset says what the true graph is. Older runs kept only the weights of the edges.
    """
    if not (folder / "mask.npz").exists() or run["config"].get("mask") == "full":
        return None
    arrays, factors = read_arrays(folder / "mask.npz"), data.factors
    if "evidence" in arrays:
        graph = check_record(unpack_json(arrays["evidence"]), "mask", f"The mask in {folder}")
        estimate = CausalMask.from_dict(graph).graph
    else:
        edges: list[dict[str, Any]] = [
            {"from": source, "to": target, "weight": float(weight), "kept": bool(weight > 0)}
            | {"status": "established" if weight > 0 else "excluded"}
            for target, column in zip(factors.targets, arrays["weights"].T, strict=True)
            for source, weight in zip(factors.inputs, column, strict=True)
        ]
        graph = {"inputs": factors.inputs, "targets": factors.targets, "edges": edges}
        kept = frozenset((edge["from"], edge["to"]) for edge in edges if edge["weight"] > 0)
        estimate = Graph(factors.inputs, factors.targets, kept)
    if truth := data.metadata.get("because", {}).get("true_graph"):
        graph["score"] = score(estimate, Graph.from_dict(truth)).to_dict()
    return {"dataset": data.name} | graph


def _maps(run: Mapping[str, Any], planner: PlannerAgent | None, data: Transitions) -> list[Maps]:
    """The energy maps of a run of BECAUSE in one of our worlds."""
    if planner is None or "energy" not in planner.parameters or run["world"] is None:
        return []
    maps = energy_maps(planner, data, run["world"])
    return [Maps(run["dataset"], len(run["seeds"]), run["provenance"]["revision"], run["provenance"]["when"], maps)]


def _facts(
    run: Mapping[str, Any],
    data: Transitions,
    planner: PlannerAgent | None,
    graphs: Sequence[Mapping[str, Any]],
    sufficiency: Mapping[str, Any],
) -> list[tuple[str, str]]:
    seeds = len(run["seeds"])
    rate = _behaviour(data)
    facts = [
        ("method", run["method"]),
        ("data", f"{run['dataset']}: {len(data):,} transitions in {data.episodes:,} episodes"),
        ("logging policy", f"{100 * rate.value:.1f}% of the episodes end at their goal"),
        ("training", f"{seeds} seed{'s' * (seeds > 1)}, {run['seconds']:,.0f} s"),
    ]
    if run["finished"] and planner is None:
        facts.append(("world model", "none: this method learns a policy only"))
    for graph in graphs:
        rows = [current_row(edge) for edge in graph["edges"]]
        undetermined = [row for row in rows if row["status"] == "undetermined"]
        kept = sum(row["kept"] for row in undetermined)
        facts.append(("undetermined edges", f"{len(undetermined)} of {len(rows)}, of which {kept} are kept"))
    if sufficiency:
        facts.append(("mask in the world model", sufficiency_text(sufficiency)))
    if not graphs:
        every = run["config"].get("mask") == "full"
        facts.append(("causal graph", "none: every factor may depend on every other" if every else "none"))
    if planner is not None:
        lambdas = np.asarray(planner.diagnostics["pessimism"])
        facts.append(("pessimism λ", " to ".join(dict.fromkeys(f"{x:.3g}" for x in (lambdas.min(), lambdas.max())))))
    return facts
