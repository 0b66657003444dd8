"""The command ``because``: assembles the commands of the other modules.

The contract of every command: a table for people on stdout, or with --json one JSON value alone on
stdout; logs and progress on stderr; --root or BECAUSE_HOME says where things live; exit code 0 only
on success, 1 if some jobs of a sweep failed, 2 for bad input, 130 when interrupted, 143 when terminated.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from because_rl import __version__
from because_rl.cli.console import as_command, run_app
from because_rl.cli.data import check, collect, datasets, graph, show, tasks
from because_rl.cli.explain import explain
from because_rl.cli.export import export
from because_rl.cli.fit import factors, fit
from because_rl.cli.paper import paper
from because_rl.cli.sweep import compare, sweep
from because_rl.cli.train import discover, evaluate, oracle, report, train
from because_rl.cli.tune import tune
from because_rl.cli.worth import worth

EXAMPLES: dict[Callable[..., None], str] = {
    tasks: "because tasks --json",
    factors: "because factors log.csv --state temp,pressure --action valve --episode batch_id -o factors.yaml",
    collect: "because collect unlock-medium --episodes 50 --seed 1",
    datasets: "because datasets --root demo",
    check: "because check my/logs-v0 --factors factors.yaml",
    show: "because show unlock-O-expert -o scene.png",
    graph: "because graph crash -o crash-graph.svg",
    discover: "because discover unlock-medium -o graph/ --batches 10",
    train: "because train because --data unlock-medium --seeds 10 --set batches=0",
    fit: "because fit log.csv --factors factors.yaml -o fitted --seeds 3",
    explain: "because explain fitted --row 17",
    worth: "because worth fitted --policy actions.csv",
    export: "because export fitted -o policy.onnx",
    evaluate: "because evaluate runs/td3bc-unlock-medium --split O --episodes 100 --json",
    report: "because report results -o report",
    oracle: "because oracle -o results/oracle.json",
    sweep: "because sweep paper --methods because,mopo --worlds unlock -o results/unlock",
    compare: "because compare results/unlock:because results/unlock:mopo",
    paper: "because paper all --tiny",
    tune: "because tune --methods mopo,td3bc --worlds unlock",
}
"""Every command, in the order of ``because --help``, with the example at the end of its own help."""

app = typer.Typer(
    help="Causal offline model-based RL: from logged trajectories to a causal graph and a cautious policy.",
    epilog="Start with: because tasks; because collect unlock-medium; because show unlock-O-expert -o scene.png",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"because-rl {__version__} (Python {platform.python_version()}, jax {version('jax')})")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of because-rl, Python and jax.",
        ),
    ] = False,
) -> None: ...


for command, example in EXAMPLES.items():
    app.command(epilog=f"Example: {example}")(as_command(command))


def main() -> None:
    """Run the command line in sys.argv."""
    run_app(app, "because")
