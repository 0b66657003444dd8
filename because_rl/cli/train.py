"""The commands for one dataset and one run: discover, train, evaluate, report, and the oracle planner beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from because_rl.cli.completion import complete_dataset, complete_method, complete_world
from because_rl.cli.console import (
    MAX_COUNT,
    MAX_SEEDS,
    RERUN,
    RESUME,
    Json,
    MaxGB,
    Output,
    Root,
    deliver,
    emit,
    interruptible,
    make_table,
    print_notes,
    progress_bar,
    setting,
    training_bar,
)
from because_rl.cli.roles import (
    LOG,
    PICTURES,
    SAMPLE_ROWS,
    Action,
    Episode,
    Forbid,
    Force,
    Missing,
    Reward,
    SampleRows,
    State,
    Time,
    parse_edges,
    split_names,
)


def train(
    method: Annotated[
        str,
        typer.Argument(
            help="because, one of its ablations, or a baseline: see docs/methods.md.", autocompletion=complete_method
        ),
    ],
    data: Annotated[str, typer.Option(help=f"A dataset id, or {LOG}; or {PICTURES}.", autocompletion=complete_dataset)],
    seeds: Annotated[int, typer.Option(max=MAX_SEEDS, help="Train the seeds 0, 1, ... as one program.")] = 10,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: 'alpha=1.5'; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the run (under the root, by method and data).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
    chunk: Annotated[int, typer.Option(max=MAX_COUNT, help="Steps between two checkpoints.")] = 500,
    rounds: Annotated[
        int,
        typer.Option(
            max=MAX_COUNT,
            help="Train all stages in turns, this many times; 'evaluate' then also reports the best round.",
        ),
    ] = 1,
    max_gb: MaxGB = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train a method on a dataset, several seeds at once. Stopped at any moment, --resume loses one chunk at most."""
    from because_rl.discovery.mask import sufficiency_text
    from because_rl.runs.compilation import use_home_compilation_cache
    from because_rl.runs.train import train as run

    use_home_compilation_cache(root)
    overrides = dict(setting(text) for text in settings or ())
    with interruptible(RESUME), training_bar(f"{method} on {data}") as progress:
        result = run(
            *(method, data, root, output, range(seeds), overrides, progress, resume),
            factors=factors,
            chunk=chunk,
            rounds=rounds,
        )
    rows = [
        {"stage": stage, "steps": int(metrics["step"]), "loss": f"{metrics['loss']:.4g}"}
        for stage, metrics in result["stages"].items()
        if metrics  # a stage of no steps has none
    ]
    title = f"{method} on {result['dataset']}: {result['seeds']} seeds, {result['seconds']} s, kept in {result['run']}"
    emit(result, as_json, make_table(title, rows, ("steps", "loss")))
    if not as_json and (checked := sufficiency_text(result["sufficiency"])):
        print(f"The mask in the world model. {checked}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    split: Annotated[
        str, typer.Option(help="I (confounded as in training), O (confounding broken), or both: IO.")
    ] = "O",
    episodes: Annotated[
        int, typer.Option(max=MAX_COUNT, help="Episodes per seed, the same scenes for every method.")
    ] = 100,
    spurious: Annotated[int | None, typer.Option(help="Spurious level: 1, 2, 4 or 8 (as in the data).")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Measure the success of a trained method in new scenes, final and best of its rounds; kept beside the run."""
    from because_rl.runs.compilation import use_home_compilation_cache
    from because_rl.runs.evaluate import evaluate_run

    use_home_compilation_cache(root)
    with progress_bar("Evaluating", "steps") as progress:
        results = evaluate_run(run, split, episodes, spurious, progress)
    rows = [
        {
            "method": result["method"],
            "dataset": result["dataset"],
            "split": result["split"],
            "seeds": result["seeds"],
            "episodes": result["episodes"],
            "success": f"{result['success']:.3f} [{result['low95']:.3f}, {result['high95']:.3f}]",
            "best round": f"{result['best']['success']:.3f}",
            "worst seed": f"{min(result['per_seed']):.3f}",
            "best seed": f"{max(result['per_seed']):.3f}",
        }
        for result in results.values()
    ]
    result = next(iter(results.values())) if len(results) == 1 else {"splits": results}
    emit(result, as_json, make_table("Success (mean over seeds, 95% t-interval)", rows, tuple(rows[0])[3:]))


def discover(
    dataset: Annotated[
        str, typer.Argument(help=f"A dataset id, or {LOG}; or {PICTURES}.", autocompletion=complete_dataset)
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the graph in all formats, and pictures (under the root)."),
    ] = None,
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
    test: Annotated[str | None, typer.Option(help="gtest, residual, fcit, fisherz or l0 (by types).")] = None,
    threshold: Annotated[float | None, typer.Option(help="Keep an edge when p is below this (by the test).")] = None,
    fdr: Annotated[bool, typer.Option("--fdr", help="Control the false discovery rate (Benjamini-Yekutieli).")] = False,
    batches: Annotated[
        int, typer.Option(max=MAX_COUNT, help="Batches of trajectories for edge weights (M-bar); 0: none.")
    ] = 0,
    regimes: Annotated[
        str, typer.Option(help="Regimes with a graph of their own: auto, or their number (1: one graph).")
    ] = "1",
    seed: Annotated[int, typer.Option(help="Seed of folds, shuffles and batches.")] = 0,
    force: Force = None,
    forbid: Forbid = None,
    state: State = None,
    action: Action = None,
    episode: Episode = "",
    time: Time = "",
    reward: Reward = "",
    missing: Missing = "",
    sample_rows: SampleRows = SAMPLE_ROWS,
    max_gb: MaxGB = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Find which factors drive which: a causal graph from logged transitions. Stopped, the same command continues."""
    from because_rl.runs.discover import discover_dataset

    with interruptible(RERUN), training_bar(f"Discovering in {dataset}") as progress:
        result = discover_dataset(
            dataset,
            root,
            factors,
            output,
            lambda done, total: progress("targets", done, total, {}),
            {"state": split_names(state), "action": split_names(action), "episode": episode}
            | {"time": time, "reward": reward, "missing": missing, "sample_rows": sample_rows},
            regimes=regimes,
            report_rest=lambda done, total: progress("other episodes", done, total, {}),
            test=test,
            threshold=threshold,
            fdr=fdr,
            batches=batches,
            seed=seed,
            force=parse_edges(force),
            forbid=parse_edges(forbid),
        )
    if "graphs" in result:
        _show_regimes(result, as_json)
    else:
        _show_graph(result, as_json)
        if not as_json and "regimes" in result:
            print("One regime: the graph does not change.")


def _show_regimes(result: dict[str, Any], as_json: bool) -> None:
    """A line for each regime, and the edges of all with the regimes that have them."""
    if not as_json:
        print_notes(result["graphs"][0].get("notes", ()))
        for regime, graph in zip(result["regimes"], result["graphs"], strict=True):
            print(
                f"Regime {regime['regime']}: {regime['rows']} rows in {regime['episodes']} episodes, "
                f"{regime['kept']} of {len(graph['edges'])} edges kept; written to {graph['folder']}"
            )
    rows = [
        {"from": edge["from"], "to": edge["to"], "verdict": edge["verdict"]}
        | {"regimes": ", ".join(map(str, edge["regimes"]))}
        for edge in result["edges"]
    ]
    counts = ", ".join(
        f"{sum(edge['verdict'] == verdict for edge in result['edges'])} {meaning}"
        for verdict, meaning in (("stable", "stable"), ("bound", "bound to regimes"), ("open", "open"))
    )
    emit(result, as_json, make_table(f"{result['dataset']}: {counts}; written to {result['folder']}", rows))


def _show_graph(result: dict[str, Any], as_json: bool) -> None:
    """The kept edges, those that are undetermined, and what the mask costs in prediction."""
    from because_rl.discovery.mask import sufficiency_text
    from because_rl.runs.fit_page import rows_used, undetermined_rows

    rows = [
        {"from": e["from"], "to": e["to"], "verdict": e["status"], "p": f"{e['p']:.2g}", "effect": f"{e['effect']:.3f}"}
        | {"detectable": "none" if e["detectable"] is None else f"{e['detectable']:.2g}" if e["detectable"] else ""}
        | {"weight": f"{e['weight']:.2f}"}
        for e in result["edges"]
        if e["kept"]
    ]
    title = f"{result['dataset']}: {len(rows)} of {len(result['edges'])} edges kept"
    for status in ("excluded", "undetermined"):
        title += f", {sum(e['status'] == status for e in result['edges'])} {status}"
    title += rows_used(result.get("settings", {}))
    title += f"; written to {result['folder']}"
    if "score" in result:
        title += f"; against the true graph F1 {result['score']['f1']:.3f}, SHD {result['score']['shd']}"
    if not as_json:
        print_notes(result.get("notes", ()))
    if not as_json and (checked := sufficiency_text(result.get("sufficiency", {}))):
        print(f"The mask. {checked}")
    if not as_json and (undetermined := undetermined_rows(result["edges"])):
        emit(None, False, make_table("Undetermined: these data cannot decide", undetermined, wrap=("why", "needs")))
    emit(result, as_json, make_table(title, rows, ("p", "effect", "detectable", "weight")))


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a sweep's results.", metavar="RUN|RESULTS")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for index.html and its pictures.")] = Path(
        "report"
    ),
    oracle: Annotated[
        Path | None, typer.Option(help="What 'because oracle -o FILE' wrote (for a sweep: RESULTS/oracle.json).")
    ] = None,
    pictures: Annotated[
        float, typer.Option(help="Seconds to spend on new pictures, which RUN/pictures or RESULTS/pictures keeps.")
    ] = 15.0,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Put a run on a page: films of its policy, graph, models, success beside behaviour and oracle. Or a whole grid.

    The last line is the path of the page.
    """
    from because_rl.experiments.grid_report import is_grid, report_grid
    from because_rl.runs.compilation import use_home_compilation_cache
    from because_rl.runs.report import report_run

    if is_grid(run):
        with progress_bar(f"Reporting {run.name}", "parts") as progress:
            result = report_grid(run, output, oracle, pictures, progress)
        missing = [{"missing": m["what"], "made by": m["command"]} for m in result["missing"]]
        title = f"{len(result['methods'])} methods on {len(result['tasks'])} tasks"
        title += f", {result['megabytes']} MB in {result['seconds']} s"
        table = make_table(title, missing or [{"missing": "nothing"}])
    else:
        use_home_compilation_cache(root)
        with progress_bar(f"Reporting {run.name}", "parts") as progress:
            result = report_run(run, output, root, oracle, pictures, progress)
        rows = [
            {"policy": r["policy"], "split": r["split"], "success": f"{r['success']:.3f}"}
            | {"95%": f"[{r['low95']:.3f}, {r['high95']:.3f}]"}
            for r in result["success"]
        ]
        table = make_table(f"Report in {result['seconds']} s", rows, ("success", "95%"))
    emit(result, as_json, table)
    if not as_json:
        print(result["page"])


def oracle(
    world: Annotated[
        list[str] | None, typer.Option(help="Worlds; repeatable (all).", autocompletion=complete_world)
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="Splits; repeatable (I and O).")] = None,
    episodes: Annotated[int | None, typer.Option(max=MAX_COUNT, help="Per world and split (200, 100, 30).")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure the success of the oracle planner: the same planners with the simulator as their model."""
    from because_rl.runs.oracle import oracle as run

    with progress_bar("Oracle", "tasks") as progress:
        result = run(world, split, episodes, progress)
    rows = result["rows"]
    deliver(result, output, as_json, make_table("Oracle planner", rows, tuple(rows[0])[2:]))
