"""The commands of ``python -m benchmarks`` about discovery: level and power of tests, recovered graphs, masks, cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, Output, deliver, make_table, progress_bar, setting

app = typer.Typer()


@app.command("discovery", epilog="Example: python -m benchmarks discovery --replications 200 --test residual")
def bench_discovery(
    replications: Annotated[int, typer.Option(help="Data sets per test and case.")] = 200,
    test: Annotated[list[str] | None, typer.Option(help="Tests to run; repeatable (ours and installed peers).")] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Cases or patterns such as 'ar-*'; repeatable (all that fit).")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for p-values, from which a later run resumes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that share the data sets.")] = 1,
    budget: Annotated[
        float, typer.Option(help="CPU seconds after which a slow test stops in a case, with fewer data sets.")
    ] = float("inf"),
    output: Output = None,
    as_json: Json = False,
) -> None:
    """How often independence tests reject true nulls (should be the level) and alternatives (should be 1)."""
    from benchmarks.discovery.study import study

    with progress_bar("Calibrating", "data sets") as report:
        result = study(test, case, replications, seed, keep, report, workers, budget)
    verdicts = ("established", "excluded", "undetermined")
    rows = [
        {"test": r["test"], "case": r["case"], "true null": "yes" if r["null"] else "no"}
        | {
            level: f"{r[level]['rate']:.3f} [{r[level]['low95']:.3f}, {r[level]['high95']:.3f}]"
            for level in ("0.05", "0.01")
        }
        | {"0.0001": f"{r['0.0001']['rate']:.3f}"}
        | {name: f"{r['verdicts'].get(name, 0):.3f}" if "verdicts" in r else "" for name in verdicts}
        | {"data sets": r["replications"], "ms": round(1000 * r["seconds"], 1)}
        for r in result["rows"]
    ]
    numbers = ("0.05", "0.01", "0.0001", *verdicts, "data sets", "ms")
    deliver(result, output, as_json, make_table("Share rejected, by level, and share of each verdict", rows, numbers))


@app.command("graphs", epilog="Example: python -m benchmarks graphs --data crash-expert --seed 11 --keep work/graphs")
def bench_graphs(
    keep: Annotated[Path, typer.Option(help="Folder for datasets and verdicts, from which a later run resumes.")],
    data: Annotated[list[str] | None, typer.Option(help="Recipes, such as lift-expert; repeatable (all nine).")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Dataset seeds; repeatable (five fresh ones).")] = None,
    spurious: Annotated[list[int] | None, typer.Option(help="Spurious levels; repeatable (1 and 8).")] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help="Also ignore hidden causes, to show their effect.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share the datasets.")] = 1,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Edge scores against the true graphs: collect fresh datasets, discover, compare."""
    from benchmarks.discovery.scores import FRESH, scores

    with progress_bar("Scoring graphs", "datasets") as report:
        result = scores(data, seed or FRESH, spurious or (1, 8), keep, report, workers, pooled)
    rows = [
        {"dataset": r["dataset"], "spurious": r["spurious"], "hidden causes": "yes" if r["hidden_causes"] else "no"}
        | {"F1": f"{r['f1']:.3f} [{r['low95']:.3f}, {r['high95']:.3f}]"}
        | {name: f"{r[name]:.3f}" for name in ("precision", "recall")}
        | {"recall, decided": f"{r['recall_decided']:.3f}", "true excluded": r["true_excluded"]}
        | {"undetermined": f"{r['undetermined']:.2f}"}
        | {"from distractors": r["from_distractors"], "s": round(r["seconds"], 1)}
        for r in result["rows"]
    ]
    numbers = ("F1", "precision", "recall", "recall, decided", "true excluded", "undetermined", "from distractors", "s")
    deliver(result, output, as_json, make_table("Discovered edges against the true graph", rows, numbers))


@app.command(
    "systems", epilog="Example: python -m benchmarks systems --keep work/systems --system pendulum --size 30x100"
)
def bench_systems(
    keep: Annotated[Path, typer.Option(help="Folder for results, a file each, from which a later run resumes.")],
    system: Annotated[
        list[str] | None,
        typer.Option(help="Classic control, thermostat, linear-DxK, nonlinear-DxK; +drift; repeatable (all named)."),
    ] = None,
    behaviour: Annotated[list[str] | None, typer.Option(help="random, confounded; repeatable (both).")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Rows, or episodes x rows such as 30x100; repeatable (2000, 10000, 50000).")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seeds of the rows; repeatable (0).")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="because, or of other packages: pcmci, lasso, trees, varlingam; repeatable (because)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that share the data sets.")] = 1,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Edge scores on systems with known equations, of discovery and of other methods on the same rows."""
    from benchmarks.discovery.recovery import NAMES, OURS, SIZES, recovery
    from benchmarks.discovery.systems import BEHAVIOURS

    with progress_bar("Recovering graphs", "results") as report:
        choice = system or NAMES, behaviour or BEHAVIOURS, size or SIZES, seed or [0], method or [OURS]
        result = recovery(*choice, keep, report, workers)
    shown = {
        "precision": "precision",
        "recall": "recall",
        "f1": "F1",
        "f1_established": "F1, established",
        "undetermined": "undetermined",
        "seconds": "s",
        "failed": "failed",
    }
    rows = [
        {name: r[name] for name in ("system", "behaviour", "size", "method")}
        | {title: f"{r[name]:.3g}" if name in r else "" for name, title in shown.items()}
        for r in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Edges against the true graph", rows, tuple(shown.values())))


@app.command("scale", epilog="Example: python -m benchmarks scale --keep work/scale -o results/scale.json")
def bench_scale(
    keep: Annotated[Path, typer.Option(help="Folder for the log and results, from which a later run resumes.")],
    rows: Annotated[int, typer.Option(help="Rows of the log, in episodes of 100.")] = 10_000_000,
    parts: Annotated[int, typer.Option(help="Parquet files.")] = 40,
    command: Annotated[list[str] | None, typer.Option(help="check, discover, fit; repeatable (all).")] = None,
    sample_rows: Annotated[int | None, typer.Option(help="As for 'because fit'.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the rows.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Seconds, peak memory and F1 on a log that does not fit in memory: 40 columns in parts of Parquet."""
    from benchmarks.discovery.large_log import COMMANDS, scale

    options = [] if sample_rows is None else ["--sample-rows", str(sample_rows)]
    with progress_bar("Measuring", "steps") as report:
        result = scale(rows, parts, seed, keep, command or COMMANDS, options, report)
    names = {"seconds": "s", "cpu_seconds": "CPU s", "peak_gb": "GB", "f1": "F1", "undetermined": "undetermined"}
    shown = [
        {"command": r["command"]} | {title: r.get(name, "") for name, title in names.items()} for r in result["rows"]
    ]
    deliver(result, output, as_json, make_table(f"{rows:,} rows x 40 columns", shown, tuple(names.values())))


@app.command(
    "held-out", epilog="Example: python -m benchmarks held-out --keep work/held-out -o results/discovery/held-out.json"
)
def bench_held_out(
    keep: Annotated[Path, typer.Option(help="Folder for results, a file per log, from which a later run resumes.")],
    system: Annotated[
        list[str] | None, typer.Option(help="Systems as for 'systems'; repeatable (pendulum, acrobot).")
    ] = None,
    behaviour: Annotated[list[str] | None, typer.Option(help="random, confounded; repeatable (both).")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Episodes x rows of each; repeatable (30x200, 50x200).")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seeds of the logs; repeatable (0).")] = None,
    training_seeds: Annotated[int, typer.Option(help="World models of each fit.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of BECAUSE: 'world_steps=4000'; repeatable.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Held-out accuracy of world models with the mask that 'because fit' discovers, beside all inputs."""
    from benchmarks.discovery.prediction import SIZES, SYSTEMS, compare_masks
    from benchmarks.discovery.systems import BEHAVIOURS

    overrides = dict(setting(text) for text in settings or ())
    with progress_bar("Fitting", "logs") as report:
        choice = system or SYSTEMS, behaviour or BEHAVIOURS, size or SIZES, seed or [0]
        result = compare_masks(*choice, keep, training_seeds, overrides, report)
    rows = [
        {name: row[name] for name in ("system", "behaviour", "size", "seed", "factor")}
        | {name: f"{row[name]:.4f}" for name in ("discovered", "full", "loss")}
        for row in result["rows"]
    ]
    title = f"Held-out accuracy by mask; largest loss {result['largest_loss']:.4f}"
    deliver(result, output, as_json, make_table(title, rows, ("discovered", "full", "loss")))


@app.command(
    "regimes", epilog="Example: python -m benchmarks regimes --keep work/regimes -o results/discovery/regimes.json"
)
def bench_regimes(
    keep: Annotated[Path, typer.Option(help="Folder for results, a file per draw, from which a later run resumes.")],
    noise: Annotated[list[str] | None, typer.Option(help="non-gaussian, heteroscedastic; repeatable (both).")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Draws of graphs and rows per noise.")] = 10,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first draw.")] = 0,
    regimes: Annotated[str, typer.Option(help="The number looked for, or auto.")] = "auto",
    true: Annotated[int, typer.Option(min=1, help="The number that there are.")] = 3,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Graphs that change at unknown times: share of rows in the right regime, and F1 of each regime's edges."""
    from because_rl.discovery.regimes.find import parse_regimes
    from benchmarks.discovery.regime_recovery import SCORES, regime_recovery
    from benchmarks.discovery.regime_systems import NOISES

    number = parse_regimes(regimes) or "auto"
    with progress_bar("Recovering regimes", "draws") as report:
        result = regime_recovery(noise or NOISES, range(first, first + draws), number, keep, true, report)
    rows = [
        {"noise": row["noise"], "draws": row["draws"]}
        | {name.replace("_", " "): f"{row[name]['mean']:.3f} (least {row[name]['least']:.3f})" for name in SCORES}
        for row in result["rows"]
    ]
    deliver(result, output, as_json, make_table("Regimes and their graphs against the truth", rows, tuple(rows[0])[1:]))


@app.command("mask", epilog="Example: python -m benchmarks mask --n 2000 --n 15000 -o results/discovery/cost.json")
def bench_mask(
    n: Annotated[list[int] | None, typer.Option(help="Transitions; repeatable (15000).")] = None,
    pairs: Annotated[int, typer.Option(help="Pairs to time fcit on, scaled to all 285; 0 leaves it out.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Seconds and memory of a whole mask on data of Lift's shape, beside fcit; with -o also a plot (SVG, PNG)."""
    from because_rl.report.graph_figure import save
    from benchmarks.discovery.cost import cost, draw_cost

    with progress_bar("Timing", "measurements") as report:
        result = cost(n or [15_000], pairs, seed, report)
    if output is not None:
        for suffix in (".svg", ".png"):
            save(draw_cost(result["rows"]), output.with_suffix(suffix))
    shown = ("test", "n", "run", "device", "pairs", "mask_seconds", "mask_cpu_seconds", "peak_gb", "load_before")
    rows = [{name.replace("_", " "): row[name] for name in shown} for row in result["rows"]]
    table = make_table("Cost of a whole mask", rows, tuple(name.replace("_", " ") for name in shown[4:]))
    deliver(result, output, as_json, table)


@app.command("pictures", epilog="Example: python -m benchmarks pictures")
def bench_pictures(
    p_values: Annotated[
        Path, typer.Option(help="Folder of p-values that 'discovery --keep' wrote, for the picture of the level.")
    ] = Path("results/discovery/p-values/level"),
    power: Annotated[
        Path, typer.Option(help="File of 'discovery --case added-* --case product-*', for that of the power.")
    ] = Path("results/discovery/power.json"),
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures.")] = Path("docs/images"),
) -> None:
    """Draw the pictures of docs/discovery.md again, from the results of 'discovery'."""
    from because_rl.io import read_json
    from because_rl.report.graph_figure import save
    from benchmarks.discovery.figures import draw_calibration, draw_power, read_p_values

    figures = {"level": draw_calibration(read_p_values(p_values)), "power": draw_power(read_json(power)["rows"])}
    for name, figure in figures.items():
        save(figure, folder / f"discovery-{name}.svg")
        typer.echo(folder / f"discovery-{name}.svg")
