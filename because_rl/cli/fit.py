"""The commands for your own data: ``because factors`` proposes what its columns mean, ``because fit`` learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.completion import complete_world
from because_rl.cli.console import (
    MAX_COUNT,
    MAX_SEEDS,
    RESUME,
    Json,
    MaxGB,
    Root,
    emit,
    interruptible,
    make_table,
    print_notes,
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
from because_rl.envs.tasks import WORLDS, world_class
from because_rl.errors import BecauseError

MOST_THIN = 12
"""Rows of a table on the terminal; the page has more."""


def factors(
    source: Annotated[
        str,
        typer.Argument(help=f"A world (lift, unlock, crash), or {LOG}.", autocompletion=complete_world),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The YAML file to write.")] = None,
    spurious: Annotated[int, typer.Option(help="For a world: spurious level 1, 2, 4 or 8.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
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
    """Print the factors of a world, or propose factors for your own data, to be edited and passed to 'because fit'."""
    import yaml

    from because_rl.datasets.columns import Columns
    from because_rl.datasets.pictures import holds_pictures
    from because_rl.datasets.propose_factors import propose_factors
    from because_rl.datasets.user_log import read_log
    from because_rl.factors import FactorSpec
    from because_rl.io import write_text

    if output is not None and output.exists() and not force:
        raise BecauseError(f"{output} already exists.", need="a new file.", fix="pass --force to overwrite it.")
    if source not in WORLDS and holds_pictures(source, root):
        raise BecauseError(
            f"{source} holds pictures.",
            need="a log of columns: factors of pictures are learned.",
            fix=f"go on without a factor file: because fit {source} -o fitted",
        )
    if source in WORLDS:
        spec, text, title = world_class(source).make_factors(spurious), None, f"Factors of {source}"
    else:
        try:
            log = read_log(
                source,
                root,
                Columns(split_names(state), split_names(action), (), episode, time, reward, missing),
                sample_rows,
            )
        except BecauseError as error:
            if not error.got.startswith("There is no data"):
                raise
            raise BecauseError(
                f"There is no world {source!r}, and no data of that name.",
                need=f"one of {', '.join(WORLDS)}, or {LOG}.",
                fix="correct the name.",
            ) from error
        text = propose_factors(log)
        if output is not None and not as_json:
            print_notes(log.notes)
        spec, title = FactorSpec.from_dict(yaml.safe_load(text)), f"Proposed factors of {log.name}"
    if output is not None:
        write_text(output, text if text is not None else yaml.safe_dump(spec.to_dict(), sort_keys=False))
        title += f", written to {output}"
    elif text is not None and not as_json:
        print(text, end="")
        return
    emit(spec.to_dict(), as_json, make_table(title, spec.rows(), ("width",)))


def fit(
    data: Annotated[str, typer.Argument(help=f"{LOG[0].upper()}{LOG[1:]}; or {PICTURES}.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for all results.")],
    factors: Annotated[
        Path | None, typer.Option(help="What the columns mean (YAML or JSON); 'because factors DATA' proposes it.")
    ] = None,
    goal: Annotated[
        list[float] | None, typer.Option(help="One goal for all episodes, a number per goal column; repeatable.")
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="What the policy is for: goal, reward or both. Left out: the goal if there is one."),
    ] = "",
    hold: Annotated[bool, typer.Option("--hold", help="The goal is to be held, not only to be reached.")] = False,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="A limit that no reward buys off: 'temp<=80'; of levels 'mode!=2'. Repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(max=MAX_SEEDS, help="Train the seeds 0, 1, ... as one program.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of BECAUSE: 'world_steps=3000'; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a fit that was stopped.")] = False,
    chunk: Annotated[int, typer.Option(max=MAX_COUNT, help="Steps between two checkpoints.")] = 100,
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
    """Learn from your own log: causal graph, world model with held-out accuracy, uncertainty, policy, report."""
    from because_rl.datasets.columns import Columns
    from because_rl.runs.fit import fit as run
    from because_rl.runs.fit_page import accuracy_rows, graph_rows, overview, thin_rows, undetermined_rows, warnings

    overrides = dict(setting(text) for text in settings or ())
    with interruptible(RESUME), training_bar(Path(data).stem) as progress:
        result = run(
            *(data, factors, output, root, range(seeds), overrides, goal or None, progress, resume),
            chunk=chunk,
            columns=Columns(split_names(state), split_names(action), (), episode, time, reward, missing),
            sample_rows=sample_rows,
            force=parse_edges(force),
            forbid=parse_edges(forbid),
            constraints=constraint or (),
            objective=objective,
            hold=hold,
        )
    if not as_json:
        if result["graph"] is not None:
            undetermined = undetermined_rows(result["undetermined"])
            title = "Graph" + ("; in brackets: undetermined, kept to be safe" if undetermined else "")
            emit(None, False, make_table(title, graph_rows(result)))
            if undetermined:
                title = "Undetermined: these data cannot decide"
                emit(None, False, make_table(title, undetermined, wrap=("why", "needs")))
        emit(None, False, make_table("Held-out accuracy", accuracy_rows(result["accuracy"]), ("held out",)))
        if thin := thin_rows(result["thin"]):
            title = "Hardly tried" + (f", {MOST_THIN} of {len(thin)}" if len(thin) > MOST_THIN else "")
            emit(None, False, make_table(title, thin[:MOST_THIN], ("tried", "elsewhere")))
        for text in warnings(result):
            print(f"Warning: {text}")
    rows = [{"quantity": name, "result": value} for name, value in overview(result)]
    emit(result, as_json, make_table(f"{result['seconds']} s; open {result['report']}", rows))
