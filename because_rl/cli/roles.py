"""The options that say what the columns of a user's log are; `factors`, `check`, `discover` and `fit` have them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Annotated

import typer

from because_rl.datasets.large_log import SAMPLE_ROWS as SAMPLE_ROWS
from because_rl.errors import BecauseError

LOG = "a CSV, Parquet, NPZ or HDF5 file, or a Minari dataset by its folder or id"
PICTURES = "a folder of PNG pictures with pictures.csv, or a Minari dataset of pictures"

State = Annotated[
    list[str] | None,
    typer.Option(help="Columns of the state in a table: 'temp,pressure'; repeatable.", metavar="NAMES"),
]
Action = Annotated[
    list[str] | None, typer.Option(help="Columns of the action in a table; repeatable.", metavar="NAMES")
]
Episode = Annotated[str, typer.Option(help="The column that names the episode: numbers or text.", metavar="NAME")]
Time = Annotated[str, typer.Option(help="The column that orders the rows of an episode.", metavar="NAME")]
Reward = Annotated[str, typer.Option(help="The column of the reward.", metavar="NAME")]
Missing = Annotated[
    str,
    typer.Option(
        help="Missing values (refused): drop-episode, forward-fill, or indicator, which adds columns NAME_missing."
    ),
]
SampleRows = Annotated[
    int,
    typer.Option(
        help="Of Parquet with more rows, read about as many, in whole episodes drawn at random; 0: all.",
        min=0,
        metavar="ROWS",
    ),
]
Force = Annotated[list[str] | None, typer.Option(help="An edge that must be there: 'push->cart'; repeatable.")]
Forbid = Annotated[list[str] | None, typer.Option(help="An edge that cannot be there; repeatable.")]


def split_names(given: Iterable[str] | None) -> tuple[str, ...]:
    """Names with commas between them; a name that has a comma itself is quoted.

    >>> split_names(["temp, pressure", '"a,b"'])
    ('temp', 'pressure', 'a,b')
    """
    return tuple(name.strip() for row in csv.reader(given or (), skipinitialspace=True) for name in row if name.strip())


def parse_edges(given: Iterable[str] | None) -> list[tuple[str, str]]:
    """The two factors in each ``cause->effect``.

    >>> parse_edges(["push -> cart"])
    [('push', 'cart')]
    """
    edges = []
    for text in given or ():
        source, arrow, target = text.partition("->")
        if not arrow:
            raise BecauseError(
                f"Got the edge {text!r}.", need="cause->effect.", fix="for example --forbid 'colour->cube_x'."
            )
        edges.append((source.strip(), target.strip()))
    return edges
