"""Folders of datasets, runs and everything else that the package keeps."""

from __future__ import annotations

import os
import re
from pathlib import Path

from because_rl.errors import BecauseError

VERSION = "v1"
"""Of the datasets that this package collects; in v0, observations had other names."""
VISUAL_VERSION = "v0"
"""Of those whose observations are pictures."""


def home_folder(root: str | Path | None = None) -> Path:
    """The folder that holds datasets and runs: `root` if given, else ``$BECAUSE_HOME``, else ``~/.because-rl``."""
    # Absolute, since Minari reports a wrong size for a dataset at a relative path.
    return Path(root or os.environ.get("BECAUSE_HOME") or Path.home() / ".because-rl").expanduser().absolute()


def dataset_path(dataset_id: str, root: str | Path | None = None) -> Path:
    """The folder of a dataset. With ``MINARI_DATASETS_PATH=<root>/datasets`` Minari finds it by the same id."""
    if not re.fullmatch(r"[\w-]+(/[\w-]+)*", dataset_id):
        raise BecauseError(
            f"Got the dataset id {dataset_id!r}.",
            need="letters, digits, '_' and '-', with '/' between namespace and name.",
            fix="for example because/unlock-medium-v1.",
        )
    return home_folder(root) / "datasets" / dataset_id


def short_name(dataset_id: str) -> str:
    """The id without our namespace and without its version.

    >>> short_name("because/unlock-medium-v1"), short_name("because/unlock-medium-x4-v0"), short_name("own/log-v0")
    ('unlock-medium', 'unlock-medium-x4', 'own/log')
    """
    return re.sub(r"^because/|-v\d+$", "", dataset_id)


def full_id(short: str) -> str:
    """The id of a dataset of ours in today's version, for its short name.

    >>> full_id("unlock-medium"), full_id("unlock-visual-medium-seed3")
    ('because/unlock-medium-v1', 'because/unlock-visual-medium-seed3-v0')
    """
    return f"because/{short}-{VISUAL_VERSION if '-visual-' in short else VERSION}"


def current_id(dataset_id: str) -> str:
    """The id in today's version, for an id in a record: a new version has the same transitions.

    >>> current_id("because/unlock-medium-v0"), current_id("own/log-v0")
    ('because/unlock-medium-v1', 'own/log-v0')
    """
    is_ours = re.fullmatch(r"because/.+-v\d+", dataset_id)
    return full_id(short_name(dataset_id)) if is_ours else dataset_id


def list_datasets(root: str | Path | None = None) -> list[str]:
    """Ids of all datasets under `root`, sorted; hidden folders, which are unfinished datasets, are left out."""
    base = home_folder(root) / "datasets"
    ids = []
    for metadata in base.rglob("data/metadata.json"):
        name = metadata.parent.parent.relative_to(base)
        if not any(part.startswith(".") for part in name.parts):
            ids.append(name.as_posix())
    return sorted(ids)
