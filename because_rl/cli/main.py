"""The command ``because``.

The contract of every command: a table for people on stdout, or with --json one JSON value alone on
stdout; logs and progress on stderr; --root or BECAUSE_HOME says where things live; exit code 0 only
on success, 2 for bad input, 130 when interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from because_rl.cli.console import (
    Json,
    Output,
    Root,
    deliver,
    emit,
    make_table,
    progress_bar,
    run_app,
    stderr,
)
from because_rl.cli.fit import factors, fit
from because_rl.cli.paper import paper
from because_rl.cli.sweep import compare, sweep
from because_rl.cli.train import evaluate, train
from because_rl.cli.tune import tune
from because_rl.envs.tasks import TASKS, WORLDS, Task, world_class
from because_rl.errors import BecauseError

app = typer.Typer(
    help="Causal offline model-based RL: from logged trajectories to a causal graph and a cautious policy.",
    epilog="Start with: because tasks; because collect unlock-medium; because show unlock-O-expert -o scene.png",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog="Example: because tasks --json")
def tasks(as_json: Json = False) -> None:
    """List the 18 tasks: three worlds, splits I and O, three behaviours."""
    rows = []
    for task in TASKS:
        world = world_class(task.world)
        factors = world.make_factors(1)
        rows.append(
            {
                "task": task.name,
                "dataset": task.dataset,
                "simulator": WORLDS[task.world].simulator,
                "horizon": world.horizon,
                "state_size": factors.state_size,
                "action_size": factors.action_size,
                "state_factors": len(factors.state),
                "action_factors": len(factors.action),
                "goal_size": factors.goal_size,
                "episodes": WORLDS[task.world].episodes,
                "paper_success": WORLDS[task.world].paper_success[task.behaviour],
            }
        )
    shown = [
        {
            "task": row["task"],
            "simulator": row["simulator"],
            "steps": row["horizon"],
            "state": f"{row['state_size']} in {row['state_factors']}",
            "action": f"{row['action_size']} in {row['action_factors']}",
            "episodes": row["episodes"],
            "behaviour": f"{row['paper_success']:.2f}",
        }
        for row in rows
    ]
    title = "18 tasks (columns in factors; logged episodes; success of the behaviour in the paper)"
    emit(rows, as_json, make_table(title, shown, ("steps", "state", "action", "episodes", "behaviour")))


app.command("factors", epilog="Example: because factors log.hdf5 -o factors.yaml")(factors)


@app.command(epilog="Example: because collect unlock-medium --episodes 50 --seed 1")
def collect(
    name: Annotated[str, typer.Argument(help="{lift,unlock,crash}-{random,medium,expert}, or 'all' for the nine.")],
    episodes: Annotated[int | None, typer.Option(help="Episodes (paper: 200 for unlock, else 1000).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of scenes and behaviour; the same seed gives the same bytes.")] = 0,
    spurious: Annotated[int, typer.Option(help="Spurious level: 1, 2, 4 or 8.")] = 1,
    coverage: Annotated[
        float | None, typer.Option(help="Unlock only: share q of episodes that try the door without the key.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes (all cores).")] = None,
    simulator: Annotated[bool, typer.Option("--simulator", help="Step the unmodified simulators (slow).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Collect again what is already there.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Collect an offline dataset (Minari) with a behaviour policy. Continues where it was interrupted."""
    from because_rl.datasets.collect import collect as run
    from because_rl.datasets.recipe import Recipe, all_recipes

    knobs = {"seed": seed, "spurious": spurious, "coverage": coverage}
    recipes = all_recipes(episodes=episodes, **knobs) if name == "all" else [Recipe.parse(name, episodes, **knobs)]
    done = []
    try:
        for recipe in recipes:
            with progress_bar(recipe.id, "episodes") as report:
                done.append(run(recipe, root, workers=workers, simulator=simulator, force=force, progress=report))
    except KeyboardInterrupt:
        stderr.print("Interrupted. Nothing is lost: run the same command again to continue.")
        raise typer.Exit(130) from None
    emit(done if name == "all" else done[0], as_json, _dataset_table("Collected", done))


def _dataset_table(title: str, summaries: list[dict[str, Any]]) -> Table:
    rows = []
    for s in summaries:
        low, high = s["success_ci95"] or (None, None)
        rows.append(
            {
                "dataset": s["dataset"],
                "episodes": s["episodes"],
                "transitions": s["transitions"],
                "success": "-" if low is None else f"{s['success_rate']:.3f} [{low:.3f}, {high:.3f}]",
                "MB": s["megabytes"],
                **({"seconds": s["seconds"]} if "seconds" in s else {}),
            }
        )
    return make_table(title, rows, ("episodes", "transitions", "MB", "seconds"))


@app.command(epilog="Example: because datasets --root demo")
def datasets(root: Root = None, output: Output = None, as_json: Json = False) -> None:
    """List the datasets that are here."""
    from because_rl.datasets.collect import summary
    from because_rl.datasets.paths import home_folder, list_datasets

    found = [summary(dataset_id, root) for dataset_id in list_datasets(root)]
    if output is not None:
        from because_rl.io import write_json
        from because_rl.provenance import provenance

        rows = [{key: value for key, value in row.items() if key != "path"} for row in found]
        write_json(output, {"rows": rows, "provenance": provenance()})
    emit(found, as_json, _dataset_table(f"Datasets in {home_folder(root)}", found))


@app.command(epilog="Example: because check my/logs-v0 --factors factors.yaml")
def check(
    dataset: Annotated[str, typer.Argument(help="A dataset id, or the path of any Minari dataset.")],
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Validate a dataset: every value, every episode end, every checksum."""
    from because_rl.datasets.load import load

    data = load(dataset, root, factors)
    result = {
        "dataset": data.name,
        "valid": True,
        "episodes": data.episodes,
        "transitions": len(data),
        "success_rate": data.success_rate,
        "state_factors": len(data.factors.state),
        "action_factors": len(data.factors.action),
    }
    emit(result, as_json, make_table("Valid", [result]))


@app.command(epilog="Example: because show unlock-O-expert -o scene.png")
def show(
    task: Annotated[str, typer.Argument(help="A task, as 'because tasks' lists them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The PNG to write.")] = Path("scene.png"),
    seed: Annotated[int, typer.Option(help="Which scene.")] = 0,
    spurious: Annotated[int, typer.Option(help="Spurious level: 1, 2, 4 or 8.")] = 1,
    frames: Annotated[int, typer.Option(help="Frames in the strip.")] = 6,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Render a strip of one episode of the expert on the real simulator."""
    from because_rl.datasets.render import render_episode, save_png, tile_frames

    wanted = Task.parse(task)
    with progress_bar(f"Filming {wanted.name}", "episode") as report:
        report(0, 1)
        pictures, success = render_episode(wanted, seed, spurious)
        save_png(tile_frames(pictures, frames), output)
        report(1, 1)
    result = {"task": wanted.name, "seed": seed, "steps": len(pictures) - 1, "success": success, "picture": str(output)}
    emit(result, as_json, make_table("Rendered", [result]))


@app.command(epilog="Example: because graph crash -o crash-graph.svg")
def graph(
    world: Annotated[str, typer.Argument(help="lift, unlock or crash")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The SVG or PNG to write.")] = Path("graph.svg"),
    spurious: Annotated[int, typer.Option(help="Spurious level: 1, 2, 4 or 8.")] = 1,
    as_json: Json = False,
) -> None:
    """Draw the true causal graph of a world."""
    from because_rl.report.graph_figure import draw_graph, save

    truth = world_class(world).make_true_graph(spurious)
    save(draw_graph(truth, world.capitalize()), output)
    rows = [{"next": target, "causes": ", ".join(truth.parents(target))} for target in truth.targets]
    emit(truth.to_dict(), as_json, make_table(f"True graph of {world}, drawn in {output}", rows))


@app.command(epilog="Example: because discover unlock-medium -o graph/ --batches 10")
def discover(
    dataset: Annotated[str, typer.Argument(help="A dataset id, or the path of any Minari dataset.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for graph.json and pictures (under the root).")
    ] = None,
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
    test: Annotated[str | None, typer.Option(help="gtest, residual, fcit, fisherz or l0 (by types).")] = None,
    threshold: Annotated[float | None, typer.Option(help="Keep an edge when p is below this (by the test).")] = None,
    fdr: Annotated[bool, typer.Option("--fdr", help="Control the false discovery rate (Benjamini-Yekutieli).")] = False,
    batches: Annotated[int, typer.Option(help="Batches of trajectories for edge weights (M-bar); 0: none.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of folds, shuffles and batches.")] = 0,
    force: Annotated[
        list[str] | None, typer.Option(help="An edge that must be there: 'push->cart'; repeatable.")
    ] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="An edge that cannot be there; repeatable.")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Find which factors drive which: a causal graph from logged transitions."""
    from because_rl.runs.discover import discover_dataset

    with progress_bar(f"Discovering in {dataset}", "masks") as report:
        result = discover_dataset(
            dataset,
            root,
            factors,
            output,
            report,
            test=test,
            threshold=threshold,
            fdr=fdr,
            batches=batches,
            seed=seed,
            force=[_edge(text) for text in force or ()],
            forbid=[_edge(text) for text in forbid or ()],
        )
    rows = [
        {"from": e["from"], "to": e["to"], "status": e["status"], "p": f"{e['p']:.2g}", "effect": f"{e['effect']:.3f}"}
        | {"weight": f"{e['weight']:.2f}", "why": e.get("why", "")}
        for e in result["edges"]
        if e["status"] not in ("no edge", "forbidden")
    ]
    title = f"{result['dataset']}: {len(rows)} of {len(result['edges'])} edges kept, written to {result['folder']}"
    if "score" in result:
        title += f"; against the true graph F1 {result['score']['f1']:.3f}, SHD {result['score']['shd']}"
    emit(result, as_json, make_table(title, rows, ("p", "effect", "weight")))


def _edge(text: str) -> tuple[str, str]:
    source, arrow, target = text.partition("->")
    if not arrow:
        raise BecauseError(
            f"Got the edge {text!r}.", need="cause->effect.", fix="for example --forbid 'colour->cube_x'."
        )
    return source.strip(), target.strip()


app.command("train", epilog="Example: because train because --data unlock-medium --seeds 10 --set batches=0")(train)
app.command("fit", epilog="Example: because fit log.hdf5 --factors factors.yaml -o fitted --seeds 3")(fit)
app.command("evaluate", epilog="Example: because evaluate runs/td3bc-unlock-medium --split O --episodes 100 --json")(
    evaluate
)


@app.command("report", epilog="Example: because report results -o report")
def report_command(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a sweep's results.", metavar="RUN|RESULTS")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for index.html and its pictures.")] = Path(
        "report"
    ),
    oracle: Annotated[
        Path | None, typer.Option(help="What 'because oracle -o FILE' wrote (of a sweep: RESULTS/oracle.json).")
    ] = None,
    pictures: Annotated[
        float, typer.Option(help="Of a sweep: seconds to spend on new pictures, which RESULTS/pictures keeps.")
    ] = 15.0,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Put a run on a page: graph, learning curves, success beside behaviour and oracle. Or a whole grid of results."""
    from because_rl.experiments.grid_report import is_grid, report_grid
    from because_rl.runs.report import report_run

    if is_grid(run):
        with progress_bar(f"Reporting {run.name}", "parts") as report:
            result = report_grid(run, output, oracle, pictures, report)
        told = [{"missing": m["what"], "made by": m["command"]} for m in result["missing"]]
        title = f"{len(result['methods'])} methods on {len(result['tasks'])} tasks: {result['page']}"
        title += f", {result['megabytes']} MB in {result['seconds']} s"
        return emit(result, as_json, make_table(title, told or [{"missing": "nothing"}]))
    result = report_run(run, output, root, oracle)
    rows = [
        {"policy": r["policy"], "split": r["split"], "success": f"{r['success']:.3f}"}
        | {"95%": f"[{r['low95']:.3f}, {r['high95']:.3f}]"}
        for r in result["success"]
    ]
    emit(result, as_json, make_table(f"Written to {result['page']}", rows, ("success", "95%")))


@app.command("oracle", epilog="Example: because oracle -o results/oracle.json")
def oracle_command(
    world: Annotated[list[str] | None, typer.Option(help="Worlds; repeatable (all).")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Splits; repeatable (I and O).")] = None,
    episodes: Annotated[int | None, typer.Option(help="Per world and split (200, 100, 30).")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Success of the oracle planner: the same planners with the simulator as their model."""
    from because_rl.runs.oracle import oracle

    with progress_bar("Oracle", "tasks") as report:
        result = oracle(world, split, episodes, report)
    rows = result["rows"]
    deliver(result, output, as_json, make_table("Oracle planner", rows, tuple(rows[0])[2:]))


app.command("sweep", epilog="Example: because sweep paper --methods because,mopo --worlds unlock -o results/unlock")(
    sweep
)
app.command("compare", epilog="Example: because compare results/unlock:because results/unlock:mopo")(compare)
app.command("paper", epilog="Example: because paper all --tiny")(paper)
app.command("tune", epilog="Example: because tune --methods mopo,td3bc --worlds unlock -o results/tuning")(tune)


def main() -> None:
    run_app(app, "because")
