"""The command ``because worth``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from because_rl.cli.console import Json, MaxGB, emit, interruptible, make_table, training_bar


def worth(
    fitted: Annotated[Path, typer.Argument(help="The folder of a fit.")],
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Another policy: what it does in each row of the log, in its order, as CSV, Parquet or NPZ. One action"
            " number, or a probability for each numbered action; else the columns of the action."
        ),
    ] = None,
    discount: Annotated[float, typer.Option(help="Of rewards, per step; 1: all count alike.")] = 1.0,
    resamples: Annotated[int, typer.Option(max=10_000, help="Of the episodes, for intervals.")] = 50,
    states: Annotated[
        int, typer.Option(min=50, max=1_000_000, help="Logged states in which the fitted policy plans, at most.")
    ] = 5000,
    max_gb: MaxGB = None,
    as_json: Json = False,
) -> None:
    """What is the policy of a fit worth? From the log alone, before it acts, beside the behaviour that was logged.

    Worth is the expected sum of rewards of an episode that begins like the logged ones and lasts at most as long as the
    longest of them; where a goal and no rewards were logged, the probability of reaching it. The verdict is that the
    policy is better or worse than the behaviour with 95% confidence, or that the log cannot tell. Writes worth.json
    into the folder, and the numbers onto its page.
    """
    from because_rl.runs.fit_page import worth_notes, worth_rows
    from because_rl.runs.worth import worth as run

    with interruptible(), training_bar(fitted.name) as progress:
        result = run(fitted, policy, discount=discount, resamples=resamples, states=states, report=progress)
    rows = worth_rows(result)
    emit(result, as_json, make_table(f"Worth of policies, {result['seconds']} s", rows, ("worth", "95%", "gain")))
    if not as_json:
        for text in worth_notes(result):
            print(text)
