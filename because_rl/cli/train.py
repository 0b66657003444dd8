"""The commands for one run: ``because train`` makes it, ``because evaluate`` tells how good it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Root, emit, make_table, progress_bar, setting, stderr, training_bar


def train(
    method: Annotated[str, typer.Argument(help="because, one of its ablations, or a baseline: see docs/methods.md.")],
    data: Annotated[str, typer.Option(help="A dataset id, or the path of any Minari dataset.")],
    seeds: Annotated[int, typer.Option(help="Train the seeds 0, 1, ... as one program.")] = 10,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: 'alpha=1.5'; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the run (under the root, by method and data).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    factors: Annotated[Path | None, typer.Option(help="Factor spec (JSON or YAML) if the dataset has none.")] = None,
    chunk: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 500,
    rounds: Annotated[
        int, typer.Option(help="Train all stages in turns, so many times, and let 'evaluate' find the best of them.")
    ] = 1,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train a method on a dataset, several seeds at once. Stopped at any moment, --resume loses one chunk at most."""
    from because_rl.runs.compilation import use_home_compilation_cache
    from because_rl.runs.train import train as run

    use_home_compilation_cache(root)
    overrides = dict(setting(text) for text in settings or ())
    try:
        with training_bar(f"{method} on {data}") as report:
            result = run(
                *(method, data, root, output, range(seeds), overrides, report, resume),
                factors=factors,
                chunk=chunk,
                rounds=rounds,
            )
    except KeyboardInterrupt:
        stderr.print("Interrupted. Run the same command with --resume to continue.")
        raise typer.Exit(130) from None
    rows = [
        {"stage": stage, "steps": int(metrics["step"]), "loss": f"{metrics['loss']:.4g}"}
        for stage, metrics in result["stages"].items()
        if metrics  # none without steps
    ]
    title = f"{method} on {result['dataset']}: {result['seeds']} seeds, {result['seconds']} s, kept in {result['run']}"
    emit(result, as_json, make_table(title, rows, ("steps", "loss")))


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    split: Annotated[str, typer.Option(help="I (training law), O (law broken), or both: IO.")] = "O",
    episodes: Annotated[int, typer.Option(help="Episodes per seed, the same scenes for every method.")] = 100,
    spurious: Annotated[int | None, typer.Option(help="Spurious level: 1, 2, 4 or 8 (as in the data).")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Success of a trained method in worlds that it has not seen, final and best of its rounds; kept beside the run."""
    from because_rl.runs.compilation import use_home_compilation_cache
    from because_rl.runs.evaluate import evaluate_run

    use_home_compilation_cache(root)
    with progress_bar("Evaluating", "steps") as report:
        results = evaluate_run(run, root, split, episodes, spurious, report)
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
    told = next(iter(results.values())) if len(results) == 1 else {"splits": results}
    emit(told, as_json, make_table("Success (mean over seeds, 95% t-interval)", rows, tuple(rows[0])[3:]))
