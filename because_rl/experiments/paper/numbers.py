"""What the paper reports (``paper_numbers.json``), to set beside what we measure."""

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
    """of the 95% interval, where the paper gives one"""


@cache
def paper_numbers() -> dict[str, Any]:
    return json.loads(files(__package__).joinpath(FILE).read_text())


def reported(table: str, method: str, task: str) -> Reported | None:
    """The paper's number, with its known slips put right; None where it has none.

    >>> reported("overall", "mopo", "unlock-O-medium")
    Reported(mean=39.5, half=4.7)
    >>> reported("overall", "because", "lift-I-random").mean  # printed in the column beside it
    33.8
    """
    numbers = paper_numbers()
    if table == "overall":
        for slip in numbers["slips"]:
            if task == slip["task"] and method in slip["methods"]:
                method = next(other for other in slip["methods"] if other != method)
    found = numbers[table].get(method, {}).get(task)
    return None if found is None else Reported(*found)
