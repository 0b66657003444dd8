"""The commands of ``python -m benchmarks`` about factors that are read from pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, Root, deliver, make_table, progress_bar

app = typer.Typer()


@app.command("factors", epilog="Example: python -m benchmarks factors")
def bench_factors(
    data: Annotated[str, typer.Option(help="A collected dataset of pictures.")] = "unlock-visual-medium",
    path: Annotated[Path, typer.Option("--output", "-o", help="The picture.")] = Path("docs/images/visual.png"),
    root: Root = None,
) -> None:
    """Draw the picture of docs/visual.md: where the factors are that were read from pictures."""
    from benchmarks.vision.pictures import draw_factors

    draw_factors(data, root, path)
    print(path)


@app.command("factor-limits", epilog="Example: python -m benchmarks factor-limits -o results/visual/limits.json")
def bench_factor_limits(
    seed: Annotated[int, typer.Option(help="Seed of the dataset unlock-visual-medium.")] = 500,
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """What reading factors from pictures depends on: episodes, noise of pixels, training of the network."""
    from because_rl.datasets.recipe import Recipe
    from benchmarks.vision.limits import read_limits

    with progress_bar("Reading factors", "cases") as report:
        result = read_limits(Recipe.parse("unlock-visual-medium", seed=seed), root, report=report)
    rows = [
        {key: row.get(key, "") for key in ("episodes", "noise", "steps", "codes", "all", "factors")}
        for row in result["rows"]
    ]
    deliver(
        result,
        output,
        as_json,
        make_table("Factors read from pictures", rows, ("episodes", "noise", "steps", "codes", "all")),
    )


@app.command("factor-readers", epilog="Example: python -m benchmarks factor-readers -o results/visual/readers.json")
def bench_factor_readers(
    seed: Annotated[int, typer.Option(help="Seed of the dataset unlock-visual-medium.")] = 500,
    seeds: Annotated[int, typer.Option(help="Trainings of each way to read factors.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of training of the slot autoencoder.")] = 4000,
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Two ways to read factors from pictures, trained on the same episodes: codes of cells, and a slot autoencoder."""
    from because_rl.datasets.recipe import Recipe
    from because_rl.vision.encoder import STEPS
    from benchmarks.vision.compare import compare_readers, reader_rows

    with progress_bar("Training readers", "trainings") as report:
        recipe = Recipe.parse("unlock-visual-medium", seed=seed)
        result = compare_readers(recipe, root, (STEPS, steps), range(seeds), report)
    rows = reader_rows(result)
    deliver(result, output, as_json, make_table("Factors read from pictures", rows, tuple(rows[0])[1:]))
