"""A trained run that the tests of this folder share; all of them train the same small program."""

import pytest

from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.runs.train import train
from tests.runs.small import DATA, SMALL


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A root with two datasets and, in "run", two seeds of CCIL trained on the first. Tests may add evaluations."""
    root = tmp_path_factory.mktemp("home")
    for seed in (0, 1):
        collect(Recipe.parse("unlock-medium", 20, seed=seed), root)
    train("ccil", DATA, root, root / "run", **SMALL)
    return root
