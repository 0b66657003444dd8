"""The commands for tasks and datasets: list, collect, check and draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from because_rl.cli.completion import complete_dataset, complete_recipe, complete_task, complete_world
from because_rl.cli.console import (
    MAX_COUNT,
    RERUN,
    Json,
    MaxGB,
    Output,
    Root,
    emit,
    interruptible,
    make_table,
    print_notes,
    progress_bar,
)
from because_rl.cli.roles import (
    LOG,
    PICTURES,
    SAMPLE_ROWS,
    Action,
    Episode,
    Missing,
    Reward,
    SampleRows,
    State,
    Time,
    split_names,
)
from because_rl.envs.tasks import TASKS, WORLDS, Task, world_class
from because_rl.errors import BecauseError


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


def collect(
    name: Annotated[
        str,
        typer.Argument(
            help="{lift,unlock,crash}-{random,medium,expert}, or 'all' for the nine; unlock-visual-medium: pictures.",
            autocompletion=complete_recipe,
        ),
    ],
    episodes: Annotated[
        int | None, typer.Option(max=MAX_COUNT, help="Episodes (paper: 200 for unlock, else 1000).")
    ] = None,
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

    options = {"seed": seed, "spurious": spurious, "coverage": coverage}
    recipes = all_recipes(episodes=episodes, **options) if name == "all" else [Recipe.parse(name, episodes, **options)]
    summaries = []
    with interruptible(RERUN):
        for recipe in recipes:
            with progress_bar(recipe.id, "episodes") as report:
                summaries.append(run(recipe, root, workers=workers, simulator=simulator, force=force, progress=report))
    emit(summaries if name == "all" else summaries[0], as_json, _dataset_table("Collected", summaries))


def _dataset_table(title: str, summaries: list[dict[str, Any]]) -> Table:
    """One row per summary of `collect` or of `datasets`."""
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


def datasets(root: Root = None, output: Output = None, as_json: Json = False) -> None:
    """List the local datasets."""
    from because_rl.datasets.collect import summary
    from because_rl.datasets.paths import home_folder, list_datasets

    summaries = [summary(dataset_id, root) for dataset_id in list_datasets(root)]
    if output is not None:
        from because_rl.io import write_json
        from because_rl.provenance import provenance

        rows = [{key: value for key, value in row.items() if key != "path"} for row in summaries]
        write_json(output, {"rows": rows, "provenance": provenance()})
    emit(summaries, as_json, _dataset_table(f"Datasets in {home_folder(root)}", summaries))


def check(
    dataset: Annotated[
        str, typer.Argument(help=f"A dataset id, or {LOG}; or {PICTURES}.", autocompletion=complete_dataset)
    ],
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
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
    """Validate a dataset or a log of your own: every value, every episode end, every checksum."""
    from because_rl.datasets.columns import Columns
    from because_rl.datasets.load import load
    from because_rl.datasets.pictures import holds_pictures, load_pictures

    if holds_pictures(dataset, root):
        columns = Columns(split_names(state), split_names(action), (), episode, time, reward, missing)
        pictures = load_pictures(dataset, root, columns)
        size = " x ".join(map(str, pictures.frames.shape[1:3]))
        result = {"dataset": pictures.name, "valid": True, "episodes": int(pictures.episode[-1]) + 1}
        result |= {"transitions": len(pictures.before), "pictures": len(pictures.frames), "pixels": size}
        emit(result, as_json, make_table("Valid", [result]))
        return
    data = load(
        dataset,
        root,
        factors,
        state=split_names(state),
        action=split_names(action),
        episode=episode,
        time=time,
        reward=reward,
        missing=missing,
        sample_rows=sample_rows,
    )
    episodes, transitions, successes = data.episodes, len(data), int(data.terminated.sum())
    notes = data.metadata.get("notes", [])
    if data.rest is not None:
        notes = notes[1:]  # all but that it is a sample
        with progress_bar("Checking", "chunks") as report:
            report(0, total := len(data.rest))
            for done, chunk in enumerate(data.rest, 1):
                episodes, transitions = episodes + chunk.episodes, transitions + len(chunk)
                successes += int(chunk.terminated.sum())
                report(done, total)
    result = {
        "dataset": data.name,
        "valid": True,
        "episodes": episodes,
        "transitions": transitions,
        "success_rate": successes / episodes,
        "state_factors": len(data.factors.state),
        "action_factors": len(data.factors.action),
    }
    if not as_json:
        print_notes(notes)
    emit(result | {"notes": notes}, as_json, make_table("Valid", [result]))


def show(
    task: Annotated[str, typer.Argument(help="A task, as 'because tasks' lists them.", autocompletion=complete_task)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The PNG to write.")] = Path("scene.png"),
    seed: Annotated[int, typer.Option(help="Which scene.")] = 0,
    spurious: Annotated[int, typer.Option(help="Spurious level: 1, 2, 4 or 8.")] = 1,
    frames: Annotated[int, typer.Option(max=1000, help="Frames in the strip.")] = 6,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Render a strip of one episode of the expert on the real simulator."""
    from because_rl.datasets.render import render_episode, save_png, tile_frames

    parsed = Task.parse(task)
    with progress_bar(f"Rendering {parsed.name}", "episode") as report:
        report(0, 1)
        pictures, success = render_episode(parsed, seed, spurious)
        save_png(tile_frames(pictures, frames), output)
        report(1, 1)
    result = {"task": parsed.name, "seed": seed, "steps": len(pictures) - 1, "success": success, "picture": str(output)}
    emit(result, as_json, make_table("Rendered", [result]))


def graph(
    world: Annotated[str, typer.Argument(help="lift, unlock or crash", autocompletion=complete_world)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write: .svg, .png, .dot, .graphml or .json (node-link).")
    ] = Path("graph.svg"),
    spurious: Annotated[int, typer.Option(help="Spurious level: 1, 2, 4 or 8.")] = 1,
    as_json: Json = False,
) -> None:
    """Draw the true causal graph of a world, or write it for other tools: by the suffix of the file."""
    from because_rl.discovery.export import FORMATS
    from because_rl.io import write_text
    from because_rl.report.graph_figure import draw_graph, save

    truth = world_class(world).make_true_graph(spurious)
    if output.suffix in FORMATS:
        write_text(output, FORMATS[output.suffix](truth))
    elif output.suffix in (".svg", ".png"):
        save(draw_graph(truth, world.capitalize()), output)
    else:
        need = f"one ending in .svg, .png, {', '.join(FORMATS)}."
        raise BecauseError(f"Got the file name {output}.", need=need, fix="rename it.")
    rows = [{"next": target, "causes": ", ".join(truth.parents(target))} for target in truth.targets]
    emit(truth.to_dict(), as_json, make_table(f"True graph of {world}, in {output}", rows))
