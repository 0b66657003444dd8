"""What the tests of experiments share: the command in this process, and a small grid."""

import contextlib
import io
import json
import sys
from typing import NamedTuple
from unittest import mock

from because_rl.experiments.grid.grid import jobs, read_grid

SMALL = {"steps": 40, "hidden": 8, "batch": 16}
"""Settings of a method that trains in no time."""
SPEC = {
    "methods": {"ccil": SMALL},
    "worlds": ["unlock"],
    "policies": ["medium"],
    "seeds": 2,
    "episodes": 5,
    "ratios": [0.1],
    "subcases": False,
    "chunk": 20,
}
"""Fields of a grid of one job with two cells."""


def grid_jobs(**changes):
    return jobs(read_grid("paper", SPEC | changes))


def keys(jobs):
    """The keys of all cells of the jobs."""
    return {key for job in jobs for key in job.cells}


class Ended(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def text(self):
        return self.stdout + self.stderr

    @property
    def json(self):
        assert self.code == 0, self.text
        return json.loads(self.stdout)


def command(*arguments):
    """Run ``because`` with these arguments in this process."""
    from because_rl.cli.main import main

    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["because", *map(str, arguments)]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Ended(code, stdout.getvalue(), stderr.getvalue())


def tables(folder):
    """The bytes of a sweep's tables."""
    return [(folder / f"table.{suffix}").read_bytes() for suffix in ("json", "csv")]
