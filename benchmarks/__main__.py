"""``python -m benchmarks``: speed, calibration and robustness of the package, as JSON files with provenance.

Benchmarks are not installed with the package: run them from a checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, Root, deliver, make_table, progress_bar, run_app, setting
from benchmarks.control.commands import app as control
from benchmarks.discovery.commands import app as discovery
from benchmarks.methods.commands import app as methods
from benchmarks.third_party.commands import app as third_party
from benchmarks.vision.commands import app as vision

bench = typer.Typer(
    help="Speed, calibration and robustness of because-rl, measured on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench.add_typer(discovery)
bench.add_typer(control)
bench.add_typer(methods)
bench.add_typer(vision)
bench.add_typer(third_party, name="third-party")


@bench.command("worlds", epilog="Example: python -m benchmarks worlds -o results/worlds/speed.json")
def bench_worlds(output: Output = None, as_json: Json = False) -> None:
    """Steps per second of the fast worlds and of the real simulators, side by side."""
    from benchmarks.speed.worlds import speed

    with progress_bar("Speed", "worlds") as report:
        result = speed(report)
    rows = result["rows"]
    deliver(result, output, as_json, make_table("Steps per second", rows, tuple(rows[0])[1:]))


@bench.command("renderer", epilog="Example: python -m benchmarks renderer -o results/worlds/renderer.json")
def bench_renderer(output: Output = None, as_json: Json = False) -> None:
    """Pictures of Unlock per second, and those of minigrid's own renderer, in one process."""
    from benchmarks.speed.worlds import renderer_speed

    result = renderer_speed()
    rows = result["rows"]
    deliver(result, output, as_json, make_table("Pictures per second", rows, tuple(rows[0])[1:]))


@bench.command("behaviours", epilog="Example: python -m benchmarks behaviours -o results/worlds/behaviours.json")
def bench_behaviours(
    episodes: Annotated[int, typer.Option(help="Episodes on the unmodified simulator, per behaviour.")] = 100,
    many: Annotated[int, typer.Option(help="Episodes on the fast world, per behaviour.")] = 1000,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Success of the nine behaviours on the fast worlds and on the unmodified simulators, same seeds."""
    from benchmarks.speed.worlds import agreement

    with progress_bar("Behaviours", "behaviours") as report:
        result = agreement(episodes, many, report)
    rows = result["rows"]
    deliver(result, output, as_json, make_table("Success of behaviours", rows, tuple(rows[0])[1:]))


@bench.command("planning", epilog="Example: python -m benchmarks planning --hidden 128 -o results/planning.json")
def bench_planning(
    hidden: Annotated[int, typer.Option(help="Width of the model's layers.")] = 128,
    episodes: Annotated[int, typer.Option(help="Worlds planned for at once.")] = 16,
    population: Annotated[int, typer.Option(help="Candidates per plan.")] = 256,
    matmul: Annotated[int, typer.Option(help="Side of the matmul that sets the peak (GPU: 8192).")] = 2048,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Model evaluations per second of the planner, and its share of the matmul peak."""
    from benchmarks.speed.planning import planning_speed

    with progress_bar("Planning", "worlds") as report:
        result = planning_speed(hidden, episodes=episodes, population=population, matmul=matmul, report=report)
    rows = [{k: v if isinstance(v, str) else f"{v:.4g}" for k, v in r.items()} for r in result["rows"]]
    deliver(result, output, as_json, make_table(f"Planning on {result['device']}", rows, tuple(rows[0])[1:]))


@bench.command(
    "training", epilog="Example: python -m benchmarks training --data unlock-medium -o results/training-speed.json"
)
def bench_training(
    data: Annotated[str, typer.Option(help="A dataset id, or the path of any Minari dataset.")] = "unlock-medium",
    method: Annotated[list[str] | None, typer.Option(help="Methods; repeatable (all).")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds trained as one program, measured beside a single one.")] = 10,
    chunk: Annotated[int, typer.Option(help="Steps per timed chunk (GPU: 500).")] = 20,
    seconds: Annotated[float, typer.Option(help="Seconds to time each stage for, once it is compiled.")] = 2.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of all methods: 'batch=256'; repeatable.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for rows, from which a later run resumes.")] = None,
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Gradient steps per second of every method, and of d3rlpy's TD3+BC where it is installed."""
    from benchmarks.speed.training import training_speed

    overrides = dict(setting(text) for text in settings or ())
    with progress_bar("Training", "measurements") as report:
        result = training_speed(data, method or (), seeds, chunk, seconds, overrides, root, keep, report)
    shown = {
        "batch": "batch",
        "parameters": "parameters",
        "steps_per_second": "steps/s",
        "all_seeds_steps_per_second": "all seeds steps/s",
        "compile_seconds": "compile s",
        "training_seconds": "training s",
    }
    rows = [
        {"method": r["method"], "seeds": r["seeds"]}
        | {title: f"{r[name]:,.0f}" if name in r else "" for name, title in shown.items()}
        | {"failed": r.get("failed", "")}
        for r in result["rows"]
    ]
    faster = [f"{f['than_peer']:.1f} times ({f['seeds']} seeds)" for f in result["times_faster"]]
    title = f"Training on {result['device']}; d3rlpy: {', '.join(faster) or result['peer']}"
    deliver(result, output, as_json, make_table(title, rows, ("seeds", *shown.values())))


@bench.command("run", epilog="Example: python -m benchmarks run --data crash-medium -o results/cost/crash-medium.json")
def bench_run(
    data: Annotated[str, typer.Option(help="The id of a collected dataset.")] = "unlock-medium",
    method: Annotated[str, typer.Option(help="The method to train.")] = "because",
    seeds: Annotated[int, typer.Option(help="Seeds trained as one program.")] = 1,
    episodes: Annotated[int, typer.Option(help="Episodes per split and seed.")] = 100,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: 'batch=256'; repeatable.")
    ] = None,
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Seconds of one experiment: training and evaluation in both splits, compilation included."""
    from benchmarks.speed.run import run_cost

    overrides = dict(setting(text) for text in settings or ())
    with progress_bar("Timing", "commands") as report:
        result = run_cost(data, method, seeds, episodes, overrides, root, report)
    rows = [{k: v for k, v in row.items() if k != "success"} for row in result["rows"]]
    deliver(result, output, as_json, make_table("Seconds of one experiment", rows, tuple(rows[0])[2:]))


@bench.command(
    "ladder", epilog="Example: python -m benchmarks ladder crash-O-expert --keep work/ladder -o results/ladder.json"
)
def bench_ladder(
    task: Annotated[str, typer.Argument(help="One of the 18 tasks, such as crash-O-expert.")],
    keep: Annotated[Path, typer.Option(help="Folder for datasets, agents and rungs, from which a later run resumes.")],
    seed: Annotated[int, typer.Option(help="Dataset seed, one for development: 500 to 599.")] = 500,
    method: Annotated[str, typer.Option(help="A method that learns a world model.")] = "because",
    seeds: Annotated[int, typer.Option(help="Seeds trained as one program.")] = 1,
    episodes: Annotated[int, typer.Option(help="Development scenes.")] = 100,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: 'batch=256'; repeatable.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Success with each part of a method replaced by the truth, one at a time: which part is the limit?"""
    from benchmarks.ladder.run import ladder

    overrides = dict(setting(text) for text in settings or ())
    with progress_bar("Climbing", "rungs") as report:
        result = ladder(task, seed, keep, method, seeds, episodes, overrides, report)
    rows = [
        {"rung": row["rung"], "success": f"{row['success']:.1%}", "95%": f"{row['low95']:.1%} to {row['high95']:.1%}"}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table(f"{task}, dataset seed {seed}", rows, ("success", "95%")))


@bench.command("worth", epilog="Example: python -m benchmarks worth random --keep work/worth -o results/worth.json")
def bench_worth(
    world: Annotated[str, typer.Argument(help="random (a small world of ours), icu-sepsis or unlock.")],
    keep: Annotated[Path, typer.Option(help="Folder with a file for each log, from which a later run resumes.")],
    logs: Annotated[int, typer.Option(help="How many.")] = 200,
    first: Annotated[int, typer.Option(help="Seed of the first log; the others follow.")] = 500,
    dynamics: Annotated[
        Path | None, typer.Option(help="For icu-sepsis: icu_sepsis/envs/assets/dynamics.npz of its wheel.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Can the estimates of 'because worth' be trusted? Ten policies in each of many logs, beside their true worth."""
    from benchmarks.worth.run import calibrate

    with progress_bar("Appraising", "logs") as report:
        result = calibrate(world, keep, logs, first, dynamics, report)
    rows = [
        {"policy": row["policy"], **{name: f"{row[name]:.3f}" for name in ("truth", "estimate", "width", "coverage")}}
        | {"verdicts": ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items())}
        for row in result["rows"]
    ]
    title = (
        f"{world}, {result['logs']} logs: coverage {result['coverage']:.1%}, rank {result['rank_correlation']:.2f}, "
        f"regret@1 {result['regret_at_1']:.3f}, 'better' of worse policies {result['false_better']:.1%}"
    )
    deliver(result, output, as_json, make_table(title, rows, ("truth", "estimate", "width", "coverage")))


@bench.command("clients", epilog="Example: python -m benchmarks clients -o results/worlds/clients.json")
def bench_clients(
    steps: Annotated[int, typer.Option(help="Training steps of each client.")] = 1000,
    episodes: Annotated[int, typer.Option(help="Logged episodes that d3rlpy learns from.")] = 20,
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """d3rlpy and Stable-Baselines3 on our datasets and worlds, in an environment that has them."""
    from benchmarks.clients.run import clients

    with progress_bar("Clients", "clients") as report:
        result = clients(steps, episodes, root, report)
    shown = ("client", "world", "algorithm", "steps", "mean_return", "shifted", "relabelled_reward", "seconds")
    rows = [{name.replace("_", " "): row.get(name, "") for name in shown} for row in result["rows"]]
    deliver(result, output, as_json, make_table("Clients", rows, tuple(rows[0])[3:]))


@bench.command("soak", epilog="Example: python -m benchmarks soak --keep work/soak -o results/soak.json")
def bench_soak(
    keep: Annotated[Path, typer.Option(help="New folder for the cells.")],
    cells: Annotated[int, typer.Option(help="Tiny cells.")] = 500,
    method: Annotated[str, typer.Option(help="The method of all cells.")] = "ccil",
    root: Root = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Memory and descriptors of one process during a long sweep; beside the JSON file, a picture (SVG)."""
    from benchmarks.speed.soak import draw_soak, soak

    with progress_bar("Computing", "cells") as report:
        result = soak(keep, cells, method, root, report)
    if output is not None:
        draw_soak(result, output.with_suffix(".svg"))
    rows = [{"held": name, "added by 100 cells": f"{value:.3g}"} for name, value in result["growth_per_100"].items()]
    deliver(result, output, as_json, make_table(f"After {cells} cells", rows, ("added by 100 cells",)))


@bench.command("fuzz", epilog="Example: python -m benchmarks fuzz --inputs 20000 -o results/fuzz.json")
def bench_fuzz(
    inputs: Annotated[int, typer.Option(help="Damaged inputs in all.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the damage.")] = 0,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="grid, settings, factors, log, dataset, arrays, records, structures, names, agent or run (all)."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Targets examined at a time.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Folder for verdicts, from which a later run resumes.")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Damage configs, factor specs, datasets and checkpoints: each must be refused with a reason, or still be valid."""
    from benchmarks.fuzz.run import fuzz

    with progress_bar("Fuzzing", "inputs") as report:
        result = fuzz(inputs, seed, target or (), report, workers, keep)
    rows = result["rows"]
    deliver(result, output, as_json, make_table(f"{result['faults']} faults", rows, tuple(rows[0])[1:]))
    if result["faults"]:
        raise typer.Exit(1)


@bench.command("faults", epilog="Example: python -m benchmarks faults collect train --keep work/faults -o faults.json")
def bench_faults(
    commands: Annotated[
        list[str] | None,
        typer.Argument(help="collect, discover, train, evaluate, fit, sweep, report (all)."),
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="ENOSPC, EIO or SIGKILL; repeatable (all).")] = None,
    every: Annotated[int, typer.Option(min=1, help="Only every so many operations.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Folder for outcomes, from which a later run resumes.")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Let each operation on files of a command fail in turn: the same command must then finish its work."""
    from benchmarks.faults.run import KINDS, inject_faults

    with progress_bar("Injecting", "faults") as report:
        result = inject_faults(commands or (), kind or tuple(KINDS), every, report, keep)
    rows = result["rows"]
    deliver(result, output, as_json, make_table(f"{len(result['failures'])} failures", rows, tuple(rows[0])[1:]))
    for failure in result["failures"]:
        print(json.dumps(failure), file=sys.stderr)
    if result["failures"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_app(bench, "benchmarks")
