"""The numbers that the paper reports (``paper_numbers.json``), to compare ours with."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

FILE = "paper_numbers.json"


class Reported(NamedTuple):
    """Success in percent."""

    mean: float
    half: float | None
    """half the width of the 95% interval, where the paper gives one"""


@cache
def paper_numbers() -> dict[str, Any]:
    return json.loads(files(__package__).joinpath(FILE).read_text("utf-8"))


def paper_success(table: str, method: str, task: str) -> Reported | None:
    """The paper's success of a method on a task, with its known misprints corrected; None where it has none.

    `table` is 'overall', 'ablation' or 'visual'.

    >>> paper_success("overall", "mopo", "unlock-O-medium")
    Reported(mean=39.5, half=4.7)
    >>> paper_success("overall", "because", "lift-I-random").mean  # printed in the column beside it
    33.8
    """
    numbers = paper_numbers()
    if table == "overall":
        for slip in numbers["slips"]:
            if task == slip["task"] and method in slip["methods"]:
                method = next(other for other in slip["methods"] if other != method)
    pair = numbers[table].get(method, {}).get(task)
    return None if pair is None else Reported(*pair)
